from __future__ import annotations

import pytest

from autoshard.export import run_stages, verify_module
from autoshard.mlir_modules import module_bytecode, module_context, parse_module
from tests.export.generated_modules import sharded_module
from tests.export.test_stages import EXPLICIT, jaxlibs

ROWS = '[{"x"}, {}]'
COLUMNS = '[{}, {"y"}]'
BOTH = '[{"x"}, {"y"}]'
WHOLE = "[{}, {}]"


def _sharded(sharding: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {sharding}>]>}}"


def _module(*lines: str, given: str = BOTH, out: str = "8x32xf32", wanted: str = "") -> str:
    """A function of one argument that returns `%0`."""
    result = f"tensor<{out}>"
    if wanted:
        result = f"({result} {{sdy.sharding = #sdy.sharding<@mesh, {wanted}>}})"
    return "\n".join(
        [
            'sdy.mesh @mesh = <["x"=4, "y"=2]>',
            "func.func @main(%a: tensor<8x32xf32>"
            f" {{sdy.sharding = #sdy.sharding<@mesh, {given}>}}) -> {result} {{",
            *(f"  {line}" for line in lines),
            f"  return %0 : tensor<{out}>",
            "}",
        ]
    )


def _told(text: str) -> list[str]:
    return [str(violation) for violation in verify_module(text)]


TANH = f"%0 = stablehlo.tanh %a {_sharded(COLUMNS)} : tensor<8x32xf32>"
ZERO = "%z = stablehlo.constant dense<0.0> : tensor<f32>"


def test_a_factor_cut_otherwise_in_two_tensors_is_told_with_its_place() -> None:
    assert _told(_module(TANH, wanted=COLUMNS)) == [
        "line 3, column 8: stablehlo.tanh: the factor of size 8 in dimension 0 of operand 0 and"
        ' dimension 0 of result 0 is cut by {"x"} in operand 0 and by {} in result 0'
    ]


def test_a_factor_that_has_to_be_whole_is_told() -> None:
    sort = (
        '%0 = "stablehlo.sort"(%a) <{dimension = 0 : i64}> ({',
        "^bb0(%p: tensor<f32>, %q: tensor<f32>):",
        "  %l = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>",
        "  stablehlo.return %l : tensor<i1>",
        f"}}) {_sharded(BOTH)} : (tensor<8x32xf32>) -> tensor<8x32xf32>",
    )
    assert _told(_module(*sort)) == [
        "line 3, column 8: stablehlo.sort: the factor of size 8 in dimension 0 of operand 0 and"
        ' dimension 0 of result 0 is cut by {"x"} and has to be whole'
    ]


def test_a_partial_sum_that_nobody_adds_up_is_told() -> None:
    made = _sharded('[{"x"}]')
    reduce = (
        "%0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1]"
        f" {made} : (tensor<8x32xf32>, tensor<f32>) -> tensor<8xf32>"
    )
    assert _told(_module(ZERO, reduce, out="8xf32")) == [
        'line 4, column 24: stablehlo.reduce: result 0 is a partial sum over {"y"}, and func.return'
        " at line 5, column 3 reads it before it is added up"
    ]


def test_a_partial_sum_added_up_over_less_is_told() -> None:
    reduce = (
        "%s = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0, 1]"
        f" {_sharded('[]')} : (tensor<8x32xf32>, tensor<f32>) -> tensor<f32>"
    )
    less = '%0 = sdy.all_reduce {"y"} %s out_sharding=<@mesh, []> : tensor<f32>'
    assert _told(_module(ZERO, reduce, less, out="f32"))[0] == (
        'line 4, column 24: stablehlo.reduce: result 0 is a partial sum over {"x", "y"}, and'
        " sdy.all_reduce at line 5, column 8 adds up less"
    )


def test_an_all_reduce_of_what_is_no_partial_sum_is_told() -> None:
    tanh = f"%t = stablehlo.tanh %a {_sharded(ROWS)} : tensor<8x32xf32>"
    add_up = f'%0 = sdy.all_reduce {{"y"}} %t out_sharding=<@mesh, {ROWS}> : tensor<8x32xf32>'
    assert _told(_module(tanh, add_up, given=ROWS)) == [
        'line 4, column 8: sdy.all_reduce: it sums over {"y"}, and its operand is a partial sum'
        " over {}"
    ]


def test_an_op_nothing_is_known_of_must_be_whole() -> None:
    call = (
        f"%0 = stablehlo.custom_call @mystery(%a) {_sharded(WHOLE)}"
        " : (tensor<8x32xf32>) -> tensor<8x32xf32>"
    )
    assert _told(_module(call)) == [
        "line 3, column 8: stablehlo.custom_call: operand 0 is cut, and nothing tells how to work"
        " on a piece of it"
    ]


def test_what_a_loop_hands_on_must_lie_as_the_loop_says() -> None:
    loop = (
        "%c = stablehlo.constant dense<0> : tensor<i32>",
        "%w:2 = stablehlo.while(%i = %c, %t = %a) : tensor<i32>, tensor<8x32xf32> attributes"
        ' {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"y"}, {}]>]>}',
        "cond {",
        "  %p = stablehlo.compare LT, %i, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>",
        "  stablehlo.return %p : tensor<i1>",
        "} do {",
        "  stablehlo.return %i, %t : tensor<i32>, tensor<8x32xf32>",
        "}",
        f"%0 = sdy.reshard %w#1 <@mesh, {WHOLE}> : tensor<8x32xf32>",
    )
    assert _told(_module(*loop)) == [
        'line 4, column 10: stablehlo.while: operand 1 is <@mesh, [{"x"}, {"y"}]> and is handed on'
        ' as <@mesh, [{"y"}, {}]>'
    ]


def test_every_violation_is_told_not_only_the_first() -> None:
    assert len(verify_module(sharded_module(1))) > 5


def test_bytecode_is_verified_as_it_would_be_printed() -> None:
    with module_context():
        content = module_bytecode(parse_module(_module(TANH, wanted=COLUMNS)))
    (violation,) = verify_module(content)
    assert (violation.op, violation.place.line) == ("stablehlo.tanh", 4)


@pytest.mark.parametrize("seed", range(8))
def test_a_module_without_violations_is_one_jaxlibs_pass_leaves_alone(seed: int) -> None:
    final = run_stages(sharded_module(seed), "explicit")
    assert verify_module(final) == ()
    assert jaxlibs(final, EXPLICIT).count("sdy.reshard") == final.count("sdy.reshard")


@pytest.mark.parametrize("seed", range(8))
def test_a_module_that_jaxlibs_pass_changes_has_violations(seed: int) -> None:
    text = sharded_module(seed)
    assert jaxlibs(text, EXPLICIT) != jaxlibs(text, "")
    assert verify_module(text)
