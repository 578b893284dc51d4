from __future__ import annotations

import pytest

from autoshard import optimize_module
from autoshard.errors import ExportError, PlanError
from autoshard.export import run_stage, verify_module
from autoshard.export.sound_module import require_sound
from autoshard.mlir_modules import module_bytecode, module_context, parse_module

GOOD = (
    'sdy.mesh @mesh = <["x"=8]>\n'
    "func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {\n"
    "  %0 = stablehlo.tanh %a : tensor<8xf32>\n"
    "  return %0 : tensor<8xf32>\n}"
)
STABLEHLO_ONLY = "  fix: write the program in stablehlo, chlo, func and sdy alone"
WHOLE = "  fix: pass the whole module, written for this version of StableHLO"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            GOOD[: GOOD.index("tanh") + 2],
            "the module does not parse: custom op 'stablehlo.ta' is unknown\n"
            "  where: the module, line 3, column 8\n"
            "      %0 = stablehlo.ta\n"
            "           ^\n" + WHOLE,
        ),
        (
            GOOD.replace("stablehlo.tanh", "foo.bar"),
            "the module does not parse: op foo.bar is of dialect foo, which is not known here\n"
            "  where: the module, line 3, column 8\n"
            "      %0 = foo.bar %a : tensor<8xf32>\n"
            "           ^\n" + STABLEHLO_ONLY,
        ),
        (
            GOOD.replace("stablehlo.tanh %a :", '"foo.bar"(%a) : (tensor<8xf32>) ->'),
            "the module does not parse: an op of a dialect that is not known here\n"
            "  where: the module, line 3, column 17\n"
            '      %0 = "foo.bar"(%a) : (tensor<8xf32>) -> tensor<8xf32>\n'
            "                    ^\n" + STABLEHLO_ONLY,
        ),
        (
            GOOD.replace(
                "tanh %a", "tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@gone, [{}]>]>}"
            ),
            "the module does not parse: a sharding names mesh @gone, which the module does not"
            " have\n"
            "  where: the module, line 3, column 8\n"
            "      %0 = stablehlo.tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@gone, [{}]>]>}"
            " : tensor<8xf32>\n"
            "           ^\n"
            "  fix: add sdy.mesh @gone = <[...]> to the module, or name one that it has",
        ),
        (
            "",
            "the module is empty\n  where: the module\n"
            "  fix: pass a module with a function called main",
        ),
    ],
)
def test_a_module_that_does_not_parse_is_told_with_line_and_column(text: str, message: str) -> None:
    with pytest.raises(ExportError) as error:
        verify_module(text)
    assert str(error.value) == message


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_truncated_bytecode_is_told_as_such(share: float) -> None:
    with module_context():
        content = module_bytecode(parse_module(GOOD))
    cut = content[: int(len(content) * share)]
    with pytest.raises(ExportError) as error:
        run_stage(cut, "closed")
    assert str(error.value).startswith("the module does not parse: ")
    assert error.value.where == f"the module: {len(cut)} bytes of bytecode"


@pytest.mark.parametrize(
    ("written", "is_read"), [(b"xyz", True), (b"x\xc3\xa9", True), (b"xy\xff", False)]
)
def test_bytecode_with_a_name_that_is_not_utf8_is_refused(written: bytes, is_read: bool) -> None:
    """It ended in `RuntimeError: nanobind::detail::str_from_cstr_and_size(): conversion error!`."""
    with module_context():
        content = module_bytecode(parse_module(GOOD.replace('"x"', '"qqq"')))
    damaged = content.replace(b"qqq", written)
    if is_read:
        require_sound(damaged, "step.mlir")
        return
    with pytest.raises(ExportError, match="a name in it is not UTF-8"):
        require_sound(damaged, "step.mlir")


def test_bytes_that_are_no_module_are_told_as_such() -> None:
    with pytest.raises(ExportError) as error:
        verify_module(b"\xff\xfe\x00")
    assert str(error.value) == (
        "neither text nor MLIR bytecode\n"
        "  where: the module: 3 bytes that begin with b'\\xff\\xfe\\x00'\n"
        "  fix: pass what lowered.as_text(), write_bytecode or jax.export wrote, whole"
    )


def test_a_module_without_a_mesh_has_no_explicit_reshards() -> None:
    with pytest.raises(ExportError) as error:
        run_stage(GOOD.partition("\n")[2], "explicit")
    assert str(error.value) == (
        "the module has no mesh\n"
        "  where: the module\n"
        '  fix: add sdy.mesh @mesh = <["x"=2, "y"=4]> with your axes to it'
    )


def test_a_module_without_main_cannot_be_planned() -> None:
    with pytest.raises(ExportError) as error:
        optimize_module(GOOD.replace("@main", "@step"), mesh="x=8", hardware="cpu-host")
    assert str(error.value) == (
        "the module has no function called main\n"
        "  where: module; its functions: @step\n"
        "  fix: name the function to plan @main"
    )


def test_a_module_for_another_number_of_devices_cannot_be_planned() -> None:
    with pytest.raises(ExportError) as error:
        optimize_module(GOOD, mesh="x=4", hardware="cpu-host")
    assert str(error.value) == (
        "the module names @mesh = mesh (x=8), which has 8 devices, and is to be planned on mesh"
        " (x=4), which has 4\n"
        "  where: module, line 1, column 1\n"
        "  fix: plan it on a mesh over as many devices, or take its shardings out"
    )


def test_a_module_with_collectives_was_planned_already() -> None:
    text = GOOD.replace(
        "stablehlo.tanh %a :", 'sdy.all_slice [{"x"}] %a out_sharding=<@mesh, [{"x"}]> :'
    )
    with pytest.raises(ExportError) as error:
        optimize_module(text, mesh="x=8", hardware="cpu-host")
    assert str(error.value) == (
        "the module has an sdy.all_slice in it: it was planned already\n"
        "  where: module, line 3, column 8\n"
        "  fix: plan the module as it was before its reshards became collectives"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {\n"
            "  %0 = call @step(%a) : (tensor<8xf32>) -> tensor<8xf32>\n"
            "  return %0 : tensor<8xf32>\n}\n"
            "func.func private @step(%a: tensor<8xf32>) -> tensor<8xf32> {\n"
            "  %0 = call @main(%a) : (tensor<8xf32>) -> tensor<8xf32>\n"
            "  return %0 : tensor<8xf32>\n}",
            "@main calls itself, by way of @step\n"
            "  where: module, line 6, column 8\n"
            "  fix: write the recursion as a stablehlo.while",
        ),
        (
            "func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {\n  cf.br ^bb1\n"
            "^bb1:\n  return %a : tensor<8xf32>\n}",
            "@main has branches between blocks\n"
            "  where: module, line 1, column 1\n"
            "  fix: write them as stablehlo.case, stablehlo.if or stablehlo.while",
        ),
        (
            "func.func private @main(tensor<8xf32>) -> tensor<8xf32>",
            "main is declared and has no body\n"
            "  where: module, line 1, column 1\n"
            "  fix: pass the module that defines it",
        ),
        (
            "func.func private @other(tensor<8xf32>) -> tensor<8xf32>\n"
            "func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {\n"
            "  %0 = call @other(%a) : (tensor<8xf32>) -> tensor<8xf32>\n"
            "  return %0 : tensor<8xf32>\n}",
            "@other is called and has no body\n"
            "  where: module, line 3, column 8\n"
            "  fix: pass a module that defines all it calls, or call it by stablehlo.custom_call",
        ),
        (
            "func.func @main() {\n  return\n}",
            "main has neither arguments nor results: there is nothing to shard\n"
            "  where: module, line 1, column 1\n"
            "  fix: pass the module that computes something",
        ),
        (
            "func.func @main(%a: tensor<8xf32>, %t: !stablehlo.token) -> tensor<8xf32> {\n"
            "  return %a : tensor<8xf32>\n}",
            "an argument or result of main is of type !stablehlo.token, which is no ranked tensor\n"
            "  where: module, line 1, column 1\n"
            "  fix: give main tensors only: flat ones in place of tuples, no tokens",
        ),
        (
            "func.func @main(%a: tensor<8xf32>, %n: tensor<1xi32>) -> tensor<8xf32> {\n"
            "  %0 = stablehlo.dynamic_reshape %a, %n : (tensor<8xf32>, tensor<1xi32>)"
            " -> tensor<?xf32>\n"
            "  return %a : tensor<8xf32>\n}",
            "a tensor of type tensor<?xf32> has no fixed size\n"
            "  where: module, line 2, column 8\n"
            "  fix: export it with fixed shapes, not with symbolic ones",
        ),
        (
            'func.func @main(%a: tensor<8xf32> {mhlo.sharding = "{devices=[8]<=[8]}"})'
            " -> tensor<8xf32> {\n  return %a : tensor<8xf32>\n}",
            "the module has shardings in GSPMD's notation (mhlo.sharding), which are not read\n"
            "  where: module, line 1, column 1\n"
            "  fix: lower it with Shardy (jax_use_shardy_partitioner), or take them out",
        ),
        (
            GOOD.replace(
                "tensor<8xf32>) ->",
                'tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"q"}]>}) ->',
            ),
            "the module does not parse: 'func.func' op arg 0 - unknown axis name: \"q\"\n"
            "  where: module, line 2, column 1\n"
            '    func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"q"}]>})'
            " -> tensor<8xf32> {\n"
            "    ^\n"
            "  fix: name axes that the mesh of the sharding has",
        ),
    ],
)
def test_a_module_that_cannot_be_planned_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ExportError) as error:
        optimize_module(text, mesh="x=8", hardware="cpu-host")
    assert str(error.value) == message


def test_the_plan_of_a_module_has_no_function_to_run() -> None:
    plan = optimize_module(GOOD, mesh="x=8", hardware="cpu-host", baselines=False)
    for run in (plan.jit, plan.wrap):
        with pytest.raises(PlanError) as error:
            run(lambda a: a)
        assert str(error.value) == (
            "the plan is of a StableHLO module, which has no function to run under it\n"
            "  where: plan for module\n"
            "  fix: call the module itself, jax.jit(plan.export().call)(*arrays), or write it:"
            " plan.stablehlo()"
        )
