"""Ops that the partitioner would run whole on every device run on each device's examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.hlo.compiled import compare_collectives, read_compiled
from tests.export.compile_module import compiles

RANDOM = np.random.default_rng(0)
REAL = RANDOM.standard_normal((32, 32, 64)).astype(np.float32)
COMPLEX = REAL.astype(np.complex64)
MESH = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def planned(fn: Callable[..., Any], x: Any, **options: Any) -> autoshard.Plan:
    return autoshard.optimize(
        fn, x, mesh=MESH, hardware="cpu-host", **{"baselines": False, **options}
    )


@pytest.mark.parametrize("spec", [P("data", "model"), P("data"), P(None, ("data", "model"))])
@pytest.mark.parametrize(
    ("fn", "x", "axes"),
    [
        (jnp.fft.fft, COMPLEX, (2,)),
        (lambda x: jnp.fft.fft(x, axis=0), COMPLEX, (0,)),
        (jnp.fft.fft2, COMPLEX, (1, 2)),
        (jnp.fft.irfft, COMPLEX, (2,)),
        (lambda x: jnp.fft.irfftn(jnp.fft.rfftn(x, axes=(0, 1)), axes=(0, 1)), REAL, (0, 1)),
        (lambda x: jax.lax.top_k(x, 4), REAL, (2,)),
    ],
    ids=["fft", "fft of the first axis", "fft2", "irfft", "rfftn and back", "top_k"],
)
def test_examples_stay_where_they_are(
    fn: Callable[..., Any], x: Any, axes: tuple[int, ...], spec: P
) -> None:
    plan = planned(fn, x, in_shardings=spec)
    real = read_compiled(plan.jit().lower(x).compile(), plan.data.mesh).collectives
    found = compare_collectives(plan.data.collectives, real)
    assert found.predicted_bytes == found.compiled_bytes
    along = [axis for axis, names in enumerate(spec) if names and axis in axes]
    assert (found.predicted_bytes > 0) == bool(along)
    assert found.compiled_bytes <= x.nbytes / 4  # an exchange of pieces, and no gather
    assert plan.data.notes == ()
    for ours, theirs in zip(
        jax.tree.leaves(plan.jit()(x)), jax.tree.leaves(jax.jit(fn)(x)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3)
        assert not ours.sharding.is_fully_replicated


def spectral_step(u: Any) -> Any:
    def body(u: Any, _: Any) -> tuple[Any, None]:
        return jnp.fft.irfft(jnp.fft.rfft(u) * jnp.exp(-jnp.arange(33) / 33.0)), None

    def energy(u: Any) -> Any:
        return jnp.sum(jax.lax.scan(body, u, None, length=3)[0] ** 2)

    return jax.grad(energy)(u)


def test_transforms_in_loops_and_gradients_are_found_again_in_a_file(tmp_path: Path) -> None:
    plan = planned(spectral_step, REAL, in_shardings=P("data", "model"))
    assert plan.data.collectives == ()
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.load_plan(tmp_path / "plan.json", spectral_step)
    assert loaded.data == plan.data
    expected = jax.jit(spectral_step)(REAL)
    np.testing.assert_allclose(loaded.jit()(REAL), expected, rtol=1e-4, atol=1e-4)


def test_an_exported_plan_runs_them_in_manual_computations() -> None:
    plan = planned(jnp.fft.fft, COMPLEX, in_shardings=P("data"))
    assert "sdy.manual_computation" in plan.stablehlo()
    run = jax.jit(plan.export().call)
    np.testing.assert_allclose(run(plan.shard(COMPLEX)), np.fft.fft(COMPLEX), rtol=1e-4, atol=1e-3)


def test_an_op_that_has_to_run_whole_is_noted_with_its_line() -> None:
    def whole(x: Any) -> Any:
        return jnp.abs(jnp.fft.fft(x))

    plan = planned(whole, COMPLEX[0, 0])
    (note,) = plan.data.notes
    assert note.startswith("fft at test_unpartitioned_ops.py:")
    assert note.endswith(" (whole) runs whole on every device: its operand is replicated")


def test_a_module_without_a_function_has_no_shard_map_and_says_so() -> None:
    text = jax.jit(jnp.fft.fft).lower(COMPLEX).as_text()
    plan = autoshard.optimize_module(text, mesh="data=2,model=4", hardware="cpu-host")
    assert [note for note in plan.data.notes if "runs whole on every device" in note]


def test_a_transform_between_gathers_keeps_the_dimension_order_that_host_cpus_compute() -> None:
    halves = jax.sharding.NamedSharding(MESH, P(None, "model"))

    def between_gathers(x: Any) -> Any:
        made = jnp.abs(jnp.fft.fft2(jax.lax.complex(x, jnp.sin(x)))) - x
        return jax.lax.with_sharding_constraint(made, halves)

    x = REAL[0, :13, :8]
    plan = planned(between_gathers, x, in_shardings=halves, out_shardings=P())
    expected = np.abs(np.fft.fft2(x + 1j * np.sin(x))) - x
    for found in (plan.jit()(x), jax.jit(plan.export().call)(plan.shard(x))):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_a_transform_with_a_result_cut_over_all_devices_runs_after_every_stage() -> None:
    every = jax.sharding.NamedSharding(MESH, P(None, None, ("data", "model")))
    x = COMPLEX[:2, :4, :8]
    plan = planned(jnp.fft.fft, x, out_shardings=every)
    text = plan.stablehlo("collectives")
    (found,) = compiles(text, plan.export(), (x,), plan)
    np.testing.assert_allclose(found, np.fft.fft(x), rtol=1e-4, atol=1e-3)
