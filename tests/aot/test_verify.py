"""A plan beside its compiled program, on host devices; and everything that can go wrong before."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.aot import installed, kept_compiles
from autoshard.aot import verify as verify_room
from autoshard.aot.compile_process import (
    CompiledAhead,
    CompileFailure,
    CompileRequest,
    finished,
    run_compiler,
)
from autoshard.aot.program import AheadProgram, Lowerer
from autoshard.aot.remedies import remedy_for
from autoshard.aot.targets import parse_target
from autoshard.errors import InputError, PlanError
from autoshard.mlir_modules import module_context, module_text, parse_module
from autoshard.refine.compiled_plan import compiler_for
from autoshard.sharding import Sharding
from tests.aot.compilers import at_once

FLOAT = jnp.float32


def mlp(params: dict[str, Any], x: jax.Array) -> Any:
    hidden = checkpoint_name(jnp.tanh(x @ params["up"]), "hidden")
    return checkpoint_name(hidden @ params["down"], "out")


def step(params: dict[str, Any], x: jax.Array) -> Any:
    gradients = jax.grad(lambda p: jnp.sum(mlp(p, x) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def planned(mesh: str = "data=2,model=4", **options: Any) -> autoshard.Plan:
    params = {
        "up": jax.ShapeDtypeStruct((64, 256), FLOAT),
        "down": jax.ShapeDtypeStruct((256, 64), FLOAT),
    }
    return autoshard.optimize(
        step,
        params,
        jax.ShapeDtypeStruct((128, 64), FLOAT),
        mesh=mesh,
        hardware="cpu-host",
        donate_argnums=0,
        baselines=False,
        **options,
    )


@pytest.fixture(scope="module")
def plan() -> autoshard.Plan:
    return planned()


@pytest.fixture(scope="module")
def pinned() -> autoshard.Plan:
    """A plan with constraints in it."""
    return planned(constraints={"name:hidden": P("data", "model"), "name:out": P("model", "data")})


def test_the_local_compiler_makes_what_was_planned(plan: autoshard.Plan) -> None:
    found = plan.verify()
    assert (found.status, found.topology) == ("compiled", "local")
    assert found.predicted_bytes == found.compiled_bytes > 0
    assert found.bytes_difference == 0
    assert found.memory is not None
    assert found.memory.argument_bytes == found.memory.predicted_argument_bytes
    assert found.memory.alias_bytes > 0  # the parameters are donated
    assert found.time is None  # the host's compiler counts no cycles
    assert json.loads(found.to_json())["memory"]["temp_bytes"] == found.memory.temp_bytes


def test_the_program_verified_is_the_one_that_runs(plan: autoshard.Plan) -> None:
    float32 = jax.ShapeDtypeStruct
    params = {"up": float32((64, 256), FLOAT), "down": float32((256, 64), FLOAT)}
    compiled = plan.jit().lower(params, float32((128, 64), FLOAT)).compile()
    found = plan.verify()
    memory = compiled.memory_analysis()
    assert found.memory is not None
    assert found.memory.temp_bytes == memory.temp_size_in_bytes
    assert found.memory.output_bytes == memory.output_size_in_bytes


def test_host_devices_are_as_many_as_the_mesh_has() -> None:
    found = planned("data=4,model=8").verify()
    assert found.status == "compiled"
    assert found.mesh == '<["data"=4, "model"=8]>'


def test_a_stablehlo_module_is_verified_too(plan: autoshard.Plan) -> None:
    module = autoshard.optimize_module(
        plan.stablehlo(), mesh="data=2,model=4", hardware="cpu-host", baselines=False
    )
    found = module.verify()
    assert found.status == "compiled"
    assert found.memory is not None
    assert found.memory.argument_bytes == found.memory.predicted_argument_bytes


def test_a_plan_without_its_program_says_how_to_find_it(
    plan: autoshard.Plan, tmp_path: Path
) -> None:
    plan.save(tmp_path / "plan.json")
    with pytest.raises(PlanError) as caught:
        autoshard.load_plan(tmp_path / "plan.json", step).verify()
    assert str(caught.value) == (
        "the plan was read from a file and does not know its program\n"
        "  where: plan for step\n"
        "  fix: read it with the function and its arguments: autoshard.load_plan(path, fn, *args),"
        " or run `autoshard verify`, which loads them"
    )


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (
            "v5e:2x4",
            "the TPU compiler (libtpu) is not installed\n"
            '  where: topology "v5e:2x4"\n'
            '  fix: run pip install "autoshard[tpu]"; it needs no TPU',
        ),
        (
            "8xH100",
            "the GPU compiler (jax-cuda13-plugin, jax-cuda13-pjrt, nvidia-cuda-nvcc, nvidia-nvvm)"
            " is not installed\n"
            '  where: topology "8xH100"\n'
            '  fix: run pip install "autoshard[gpu-verify]"; it needs no GPU',
        ),
    ],
)
def test_a_missing_compiler_is_named_with_the_command_that_brings_it(
    plan: autoshard.Plan, topology: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "_is_there", lambda _: False)
    with pytest.raises(InputError) as caught:
        plan.verify(topology)
    assert str(caught.value) == message


def num_constraints(program: AheadProgram) -> int:
    with module_context():
        return module_text(parse_module(program.module)).count("sdy.sharding_constraint")


def test_where_constraints_crash_the_compiler_a_set_that_compiles_is_found(
    pinned: autoshard.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run_compiler
    tries = []

    def fragile(program: AheadProgram, request: CompileRequest) -> CompiledAhead | CompileFailure:
        tries.append(num_constraints(program))
        if tries[-1] == len(pinned.constraints):
            return CompileFailure(
                kind="crashed", what="its process was ended by SIGSEGV", last_lines=("a line",)
            )
        return real(program, request)

    monkeypatch.setattr(kept_compiles, "compiling", at_once(fragile))
    found = pinned.verify()
    assert found.status == "compiled with fewer constraints"
    assert len(found.culprits) == 1
    assert found.culprits[0] in pinned.constraints
    assert len(pinned.constraints) > 1
    assert tries[0] == len(pinned.constraints)
    assert tries[1] == 0
    failure = found.failures[0]
    assert (failure.status, failure.num_constraints) == ("crashed", len(pinned.constraints))
    assert (failure.what, failure.last_lines) == (
        "its process was ended by SIGSEGV",
        ("a line",),
    )


def always(failure: CompileFailure, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes every compile fail; returns a list with an entry for each."""
    tries: list[int] = []

    def run(program: AheadProgram, _: CompileRequest) -> CompileFailure:
        tries.append(num_constraints(program))
        return failure

    monkeypatch.setattr(kept_compiles, "compiling", at_once(run))
    monkeypatch.setattr(installed, "_is_there", lambda _: True)
    return tries


def test_a_crash_without_any_constraints_is_the_programs_own(
    pinned: autoshard.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = always(CompileFailure(kind="crashed", what="SIGSEGV"), monkeypatch)
    found = pinned.verify("v5e:2x4")
    assert (found.status, found.is_compiled, tries[1:]) == ("crashed", False, [0])
    assert found.compiled_bytes == 0
    assert found.predicted_bytes == pinned.data.collective_bytes


def test_no_search_for_constraints_begins_once_time_is_up(
    pinned: autoshard.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = always(CompileFailure(kind="crashed", what="SIGSEGV"), monkeypatch)
    assert pinned.traced is not None
    data = dataclasses.replace(pinned.data, constraints=pinned.constraints)
    compiles = compiler_for(pinned.traced, verify_room.VerifyOptions(topology="v5e:2x4"), None)
    found = finished(compiles(data, 0.0))
    assert (found.status, len(tries)) == ("crashed", 1)


@pytest.mark.parametrize("kind", ["timed out", "out of memory", "refused"])
def test_other_failures_are_told_at_once(
    kind: str, plan: autoshard.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = always(CompileFailure(kind=kind, what="Used 20G of 15.75G hbm"), monkeypatch)
    found = plan.verify("v5e:2x4")
    assert (found.status, len(tries)) == (kind, 1)
    assert found.failures[0].what == "Used 20G of 15.75G hbm"


NO_TILES = "INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.269"
NO_TRITON = "xla_gpu_enable_triton_gemm"


def test_a_failure_with_a_known_remedy_is_tried_again_with_it(
    plan: autoshard.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run_compiler
    asked: list[dict[str, Any]] = []

    def without_tiles(
        program: AheadProgram, request: CompileRequest
    ) -> CompiledAhead | CompileFailure:
        asked.append(dict(request.compiler_options))
        if NO_TRITON not in request.compiler_options:
            return CompileFailure(kind="refused", what=NO_TILES)
        here = parse_target("local")
        return real(program, dataclasses.replace(request, target=here, compiler_options={}))

    monkeypatch.setattr(kept_compiles, "compiling", at_once(without_tiles))
    monkeypatch.setattr(installed, "_is_there", lambda _: True)
    monkeypatch.setattr(verify_room, "Lowerer", LowererForHost)
    found = plan.verify("8xH100", compiler_options={"xla_gpu_autotune_level": "0"})
    assert found.status == "compiled"
    assert [NO_TRITON in flags for flags in asked] == [False, True]
    assert asked[1][NO_TRITON] is False
    own = {"xla_gpu_threshold_for_windowed_einsum_mib": "1000000"}
    assert found.compiler_options == {**own, "xla_gpu_autotune_level": "0", NO_TRITON: "False"}
    assert [failure.what for failure in found.failures] == [NO_TILES]
    assert any("xla_gpu_enable_triton_gemm=False" in note for note in found.notes)


def test_scatters_that_the_gpu_compiler_breaks_compile_without_the_pass_that_does() -> None:
    what = "Repeated dimensions not allowed in scatter_dims_to_operand_dims; got: 0, 0, 2, 3, 4."
    remedy = remedy_for("cuda", f"INVALID_ARGUMENT: during context [hlo verifier]: {what}", {})
    assert remedy is not None
    assert remedy.options == {"xla_disable_hlo_passes": "algsimp"}
    assert remedy_for("tpu", what, {}) is None


class LowererForHost(Lowerer):
    """Lowers for the devices at hand, whatever it is asked for."""

    def lower(self, constraints: Mapping[str, Sharding]) -> AheadProgram:
        return Lowerer(self.program, "cpu").lower(constraints)


@pytest.mark.parametrize(("topology", "flags"), [("v5e:2x4", {}), ("8xH100", {NO_TRITON: "false"})])
def test_what_no_remedy_helps_is_told_at_once(
    topology: str, flags: dict[str, Any], plan: autoshard.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = always(CompileFailure(kind="refused", what=NO_TILES), monkeypatch)
    found = plan.verify(topology, compiler_options=flags)
    assert (found.status, len(tries)) == ("refused", 1)
    assert found.compiler_options.keys() >= flags.keys()
    assert str(found).splitlines()[1] == f"refused: {NO_TILES}"


def test_a_comparison_prints_what_came_of_it(plan: autoshard.Plan) -> None:
    first, second = str(plan.verify()).splitlines()
    assert first == 'step on <["data"=2, "model"=4]>, compiled for local: compiled'
    assert second.startswith("bytes through collectives +0.0%, peak memory ")


def test_an_impossible_slice_is_refused_with_those_there_are(
    plan: autoshard.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = "INVALID_ARGUMENT: Invalid topology name v5e:1x8"
    always(CompileFailure(kind="refused", what=what), monkeypatch)
    with pytest.raises(InputError) as caught:
        plan.verify("v5e:1x8")
    assert str(caught.value) == (
        f"the compiler knows no such topology: {what}\n"
        '  where: topology "v5e:1x8"\n'
        "  fix: write one of 1x1, 1x2, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16 behind v5e:"
    )


def test_other_hardware_than_planned_for_is_noted(
    plan: autoshard.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(CompileFailure(kind="timed out", what="no answer"), monkeypatch)
    found = plan.verify("v5e:2x4")
    assert found.notes == ("the plan was made for cpu-host, and compiled for tpu-v5e",)


def test_windowed_einsums_are_switched_off_by_a_flag_unless_they_are_asked_for(
    plan: autoshard.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(CompileFailure(kind="timed out", what="no answer"), monkeypatch)
    found = plan.verify("v5e:2x4", compiler_options={"xla_other": 1})
    assert found.compiler_options == {
        "xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000",
        "xla_other": "1",
    }
    assert plan.verify("v5e:2x4", windowed_einsum=True).compiler_options == {}


def test_a_verification_is_a_value(plan: autoshard.Plan) -> None:
    found = plan.verify()
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.status = "other"  # type: ignore[misc]
