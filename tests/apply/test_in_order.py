"""Plans that use much of their memory budget are compiled to run in order."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import autoshard

MATRIX = jax.ShapeDtypeStruct((256, 256), jnp.float32)
PARAMS = [MATRIX] * 6


def layers(params: Any, x: Any) -> Any:
    for w in params:
        x = jnp.tanh(x @ w)
    return x


def planned(memory_budget: int) -> autoshard.Plan:
    rows = jax.P("data")
    return autoshard.optimize(
        layers,
        PARAMS,
        MATRIX,
        mesh="data=8",
        hardware="cpu-host",
        in_shardings=([rows] * 6, rows),
        out_shardings=rows,
        memory_budget=memory_budget,
        schedules="none",
        baselines=False,
    )


def temporary_bytes(plan: autoshard.Plan, **options: Any) -> int:
    program = plan.jit(**options).lower(PARAMS, MATRIX).compile()
    return int(program.memory_analysis().temp_size_in_bytes)


def test_a_tight_plan_gathers_each_weight_only_when_it_is_wanted() -> None:
    whole = 256 * 256 * 4
    tight, roomy = planned(4 * whole), planned(100 * whole)
    assert tight.data.collectives == roomy.data.collectives
    assert tight.data.is_tight
    assert not roomy.data.is_tight
    predicted = tight.data.memory.peak_bytes - tight.data.memory.argument_bytes
    assert temporary_bytes(tight) <= predicted
    assert temporary_bytes(roomy) > predicted  # all weights are gathered first
    as_given = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_CONCURRENCY_OPTIMIZED"}
    assert temporary_bytes(tight, compiler_options=as_given) == temporary_bytes(roomy)


def test_a_tight_plan_can_still_be_called_inside_of_other_transformations() -> None:
    plan = planned(4 * 256 * 256 * 4)
    draw = np.random.default_rng(0)
    params = [jnp.asarray(draw.normal(size=(256, 256)) / 16, jnp.float32) for _ in PARAMS]
    x = params[0]
    step = plan.jit()
    expected = layers(params, x)
    np.testing.assert_allclose(step(params, x), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jax.jit(step)(params, x), expected, rtol=1e-4, atol=1e-5)
    found, slope = (jax.grad(lambda x, fn=fn: fn(params, x).sum())(x) for fn in (step, layers))
    np.testing.assert_allclose(found, slope, rtol=1e-3, atol=1e-4)
