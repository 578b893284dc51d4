"""A calibrated machine plans like its base where its numbers are the same."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import autoshard
from cost_models import Hardware, Measured, format_hardware, get_hardware, parse_hardware


def calibrated(name: str) -> Hardware:
    """As a calibration in which nothing was fitted is written and read."""
    base = get_hardware(name)
    measured = Measured(
        date="2026-11-23",
        base=name,
        platform=base.backend,
        device_kind="the same",
        num_devices=8,
        host="Linux x86_64, 2 cores",
        versions="jax 0.10.2",
        collectives=(),
        ops=(),
        kept=(),
    )
    machine = replace(base, name=f"{name}-measured", measured=measured)
    return parse_hardware(format_hardware(machine))


def planned(hardware: str | Hardware, memory_budget: int | None = None) -> autoshard.Plan:
    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = jax.nn.softmax(jnp.tanh(x @ weight))
        return x.mean()

    weights = [jax.ShapeDtypeStruct((1024, 1024), jnp.float32)] * 3
    x = jax.ShapeDtypeStruct((2048, 1024), jnp.float32)
    return autoshard.optimize(
        jax.value_and_grad(loss),
        weights,
        x,
        mesh="data=2,model=4",
        hardware=hardware,
        memory_budget=memory_budget,
    )


@pytest.mark.parametrize("name", ["tpu-v5e", "tpu-v5p", "h100", "cpu-host"])
def test_a_calibrated_machine_plans_like_its_base(name: str) -> None:
    base, measured = planned(name).data, planned(calibrated(name)).data
    assert measured.hardware == f"{name}-measured"
    assert measured.compiler_model == base.compiler_model
    assert measured.values == base.values
    assert measured.collectives == base.collectives
    assert measured.memory == base.memory
    assert (measured.seconds, measured.overlapped_seconds) == (
        base.seconds,
        base.overlapped_seconds,
    )


def test_a_generic_tpu_plans_otherwise() -> None:
    generic = replace(get_hardware("tpu-v5e"), name="ours", compiler=None)
    base, found = planned("tpu-v5e").data, planned(generic).data
    assert found.compiler_model == "generic TPU, not probed for ours"
    assert found.memory.peak_bytes > base.memory.peak_bytes  # nothing lies in VMEM
