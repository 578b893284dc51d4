"""A plan as a program: shardings on every value, and numbers as the JAX way's."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import autoshard
from autoshard.apply.nested_ops import operations_of
from autoshard.export import stage_names, verify_module
from autoshard.export.value_shardings import HOLDS_PROGRAM
from autoshard.mlir_modules import (
    SHARDING,
    module_context,
    parse_module,
    result_shardings,
    shape_of,
)
from tests.export.compile_module import compiles
from tests.export.programs import PROGRAMS, planned


@cache
def _planned(name: str) -> tuple[autoshard.Plan, tuple[Any, ...]]:
    return planned(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_value_has_a_sharding(name: str) -> None:
    plan, _ = _planned(name)
    text = plan.stablehlo()
    without = []
    with module_context():
        for op in operations_of(parse_module(text).operation):
            holder = op.block.owner.operation.name if op.block is not None else ""
            if op.name == "func.func":
                for side in ("arg_attrs", "res_attrs"):
                    assert str(op.attributes[side]).count(f"{SHARDING} =") == len(
                        op.attributes[side]
                    )
            elif holder in HOLDS_PROGRAM and any(shape_of(v) is not None for v in op.results):
                written = result_shardings(op)
                if any(sharding is None for sharding in written):
                    without.append(str(op)[:80])
    assert without == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_after_the_last_step_no_op_has_incompatible_shardings(name: str) -> None:
    plan, _ = _planned(name)
    for stage in ("explicit", "no-rules", "collectives"):
        assert verify_module(plan.stablehlo(stage)) == ()


@pytest.mark.parametrize("stage", ["planned", *stage_names()])
def test_each_step_leaves_no_more_of_what_it_removes(stage: str) -> None:
    text = _planned("grouped")[0].stablehlo(stage)
    names = stage_names()
    place = 0 if stage == "planned" else names.index(stage)
    if place >= names.index("reshards"):
        assert "sdy.sharding_constraint" not in text
    if place >= names.index("no-groups"):
        assert "sdy.sharding_group" not in text
    elif stage != "planned":
        assert text.count("sdy.sharding_group") == 2
    if place >= names.index("no-edges"):
        assert "sdy.data_flow_edge" not in text
    if place >= names.index("closed"):
        assert "?" not in text
    if stage == "collectives":
        assert "sdy.reshard" not in text


@pytest.mark.parametrize("name", PROGRAMS)
def test_exported_the_numbers_are_those_of_the_jax_way(name: str) -> None:
    plan, args = _planned(name)
    placed = [jax.device_put(a, s) for a, s in zip(args, plan.in_shardings, strict=True)]
    wanted = plan.jit()(*placed)
    found = jax.jit(plan.export().call)(*placed)
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        assert b.sharding.is_equivalent_to(a.sharding, a.ndim)


@pytest.mark.parametrize("name", ["train", "branches", "examples", "convolved"])
def test_all_the_steps_compute_what_the_function_computes(name: str) -> None:
    plan, args = _planned(name)
    function, _ = PROGRAMS[name]
    exported = plan.export()
    text = plan.stablehlo("collectives", platform=jax.default_backend())
    found = compiles(text, exported, args, plan)
    for a, b in zip(jax.tree.leaves(jax.jit(function)(*args)), found, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-5)


CALL = """
import sys
import jax, jax.export, numpy as np
exported = jax.export.deserialize(open(sys.argv[1], "rb").read())
mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("x", "y"))
given = np.load(sys.argv[2])
leaves = [given[f"arr_{i}"] for i in range(len(given.files))]
placed = [jax.device_put(a, s) for a, s in zip(leaves, exported.in_shardings_jax(mesh))]
args, kwargs = jax.tree.unflatten(exported.in_tree, placed)
np.savez(sys.argv[3], *map(np.asarray, jax.tree.leaves(jax.jit(exported.call)(*args, **kwargs))))
assert "autoshard" not in sys.modules
"""


def test_serialized_it_is_called_in_a_process_that_has_neither_function_nor_planner(
    tmp_path: Path,
) -> None:
    plan, args = _planned("train")
    (tmp_path / "step.bin").write_bytes(plan.export().serialize())
    np.savez(tmp_path / "in.npz", *jax.tree.leaves(args))
    files = [str(tmp_path / name) for name in ("step.bin", "in.npz", "out.npz")]
    subprocess.run([sys.executable, "-c", CALL, *files], check=True, timeout=120)
    found = np.load(tmp_path / "out.npz")
    wanted = plan.jit()(*args)
    for index, leaf in enumerate(jax.tree.leaves(wanted)):
        np.testing.assert_array_equal(np.asarray(leaf), found[f"arr_{index}"])


COMPILE = """
import sys
from pathlib import Path
from tests.export.compile_module import compile_text
for name in sys.argv[1:]:
    print(name, flush=True)
    compile_text(Path(name).read_text(), 8)
"""


def test_the_text_compiles_as_it_is(tmp_path: Path) -> None:
    """In a process of its own: shardings on a loop have crashed XLA before."""
    files = []
    for name in PROGRAMS:
        file = tmp_path / f"{name}.mlir"
        file.write_text(_planned(name)[0].stablehlo(platform="cpu"))
        files.append(str(file))
    root = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", COMPILE, *files], check=True, timeout=120, cwd=root)


def test_flat_arrays_go_in_and_out_where_trees_cannot_be_serialized() -> None:
    plan, args = _planned("train")
    exported = jax.export.deserialize(plan.export(flat=True).serialize())
    leaves = jax.tree.leaves(args)
    placed = [
        jax.device_put(a, s)
        for a, s in zip(leaves, jax.tree.leaves(plan.in_shardings), strict=True)
    ]
    found = jax.jit(exported.call)(*placed)
    for a, b in zip(jax.tree.leaves(plan.jit()(*args)), found, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("hardware", ["cpu-host", "tpu-v5e"])
def test_captured_arrays_are_written_into_what_is_exported(hardware: str) -> None:
    """For the platform that the plan was lowered for, whose module has them already, too."""
    table = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)

    def lookup(x: Any) -> Any:
        return x @ jax.numpy.asarray(table)

    x = np.ones((128, 64), np.float32)
    plan = autoshard.optimize(lookup, x, mesh="x=2,y=4", hardware=hardware, baselines=False)
    assert plan.export(platform="tpu").serialize()
    found = jax.jit(plan.export().call)(jax.device_put(x, plan.in_shardings[0]))
    np.testing.assert_array_equal(np.asarray(found), x @ table)


def test_a_stage_that_does_not_exist_is_refused() -> None:
    with pytest.raises(autoshard.InputError) as error:
        _planned("grouped")[0].stablehlo("last")
    assert error.value.what == "there is no export stage called 'last'"


def test_a_plan_without_its_program_has_none_to_write(tmp_path: Path) -> None:
    plan, _ = _planned("grouped")
    plan.save(tmp_path / "plan.json")
    with pytest.raises(autoshard.PlanError) as error:
        autoshard.load_plan(tmp_path / "plan.json").stablehlo()
    assert error.value.what == (
        "a plan read from a file does not know the trees of the function's arguments"
    )


@pytest.mark.parametrize("stage", ["planned", "explicit", "collectives"])
def test_complex_constants_and_typed_keys_are_written(stage: str) -> None:
    """Python bindings hold no complex constants, and JAX says keys on a mesh without axes."""

    def fn(key: jax.Array, x: jax.Array) -> Any:
        return x * 1j + jax.random.normal(key, x.shape)

    x = jax.ShapeDtypeStruct((8, 8), np.dtype(np.float32))
    plan = autoshard.optimize(
        fn, jax.random.key(0), x, mesh="a=2,b=4", hardware="cpu-host", baselines=False
    )
    text = plan.stablehlo(stage)
    assert "(0.000000e+00,1.000000e+00)" in text
    assert "sdy.constant" not in text


def test_complex_constants_compute_the_same_when_exported() -> None:
    def fn(x: jax.Array) -> Any:
        return x * 1j

    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    plan = autoshard.optimize(fn, x, mesh="a=2,b=4", hardware="cpu-host", baselines=False)
    found = jax.jit(plan.export().call)(plan.shard(x))
    np.testing.assert_array_equal(found, x * 1j)


def test_a_sum_over_an_axis_of_one_device_is_what_it_sums() -> None:
    """XLA refuses it where its operand is cut: "must be in (partial) manual partitioning mode"."""
    mesh = jax.make_mesh((8, 1), ("data", "one"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    fn = jax.shard_map(
        lambda x: lax.psum(x, "one") + 1.0,
        mesh=mesh,
        in_specs=jax.sharding.PartitionSpec("one"),
        out_specs=jax.sharding.PartitionSpec("one"),
        axis_names={"one"},
        check_vma=False,
    )
    x = np.arange(24 * 40, dtype=np.float32).reshape(24, 40)
    plan = autoshard.optimize(
        fn, x, mesh=mesh, hardware="cpu-host", out_shardings=jax.sharding.PartitionSpec("data")
    )
    (found,) = compiles(plan.stablehlo("collectives"), plan.export(), (x,), plan)
    np.testing.assert_array_equal(found, x + 1)


def test_a_constant_that_is_sharded_is_restored_with_its_sharding() -> None:
    """Its text was read without the mesh that the sharding names: `unknown mesh: @mesh`."""

    def rows(x: Any) -> Any:
        return x[np.array([1, 0])]

    x = np.ones((8, 4), np.float32)
    plan = autoshard.optimize(rows, x, mesh="x=4,y=2", hardware="cpu-host", baselines=False)
    assert verify_module(plan.stablehlo("collectives")) == ()


def test_a_custom_call_that_names_a_comparator_is_exported() -> None:
    """The comparator is a function that ends as the region of an op does: it was taken for main."""

    def largest(x: Any) -> Any:
        return lax.approx_max_k(jnp.sin(x), 2)[0]

    plan = autoshard.optimize(
        largest, jnp.ones((8, 16)), mesh="a=8", hardware="cpu-host", baselines=False
    )
    assert verify_module(plan.stablehlo("collectives")) == ()


def test_a_pad_is_run_whole_where_the_last_step_says_so() -> None:
    """Cut as another reader of its operand, it ended the process: a check of XLA's partitioner."""

    def fn(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        wave = jnp.sin(x)
        return lax.pad(wave, jnp.float32(0), [(-1, 2, 1)]), jnp.cos(wave)

    x = jnp.arange(16.0)
    plan = autoshard.optimize(
        fn,
        x,
        mesh="p=4",
        hardware="cpu-host",
        in_shardings=jax.P(),
        out_shardings=(jax.P(), jax.P("p")),
        baselines=False,
    )
    found = compiles(plan.stablehlo("collectives"), plan.export(), (x,), plan)
    for made, expected in zip(found, fn(x), strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
