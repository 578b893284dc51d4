"""A small training step, its plan, and compilers that say what a test wants."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

import autoshard
from autoshard.aot.compile_process import Underway
from autoshard.plans.plan import PlanData
from autoshard.refine.attribution import Observation
from autoshard.refine.compiled_plan import Compile, CompiledPlan
from autoshard.refine.contenders import Contenders
from autoshard.refine.rounds import Refined, RefineOptions, refine_plan

FLOAT = jnp.float32
PARAMS = {
    "up": jax.ShapeDtypeStruct((1024, 4096), FLOAT),
    "down": jax.ShapeDtypeStruct((4096, 1024), FLOAT),
}
BATCH = jax.ShapeDtypeStruct((8192, 1024), FLOAT)


def step(params: dict[str, Any], x: jax.Array) -> Any:
    def loss(p: dict[str, Any]) -> Any:
        return jnp.sum((jnp.tanh(x @ p["up"]) @ p["down"]) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


@cache
def planned(**options: Any) -> autoshard.Plan:
    options = {"mesh": "data=2,model=4", "hardware": "tpu-v5e", **options}
    return autoshard.optimize(step, PARAMS, BATCH, donate_argnums=0, **options)


Judge = Callable[[PlanData], tuple[float, int] | str]


def says(judge: Judge, compiled: list[PlanData] | None = None) -> Compile:
    """A compiler that takes what `judge` says: seconds and peak bytes, or how it failed."""

    def compiles(data: PlanData, _: float) -> Underway[CompiledPlan]:
        yield
        if compiled is not None:
            compiled.append(data)
        constraints = data.constraints or {}
        told = judge(data)
        if isinstance(told, str):
            return CompiledPlan(status=told, constraints=constraints, reason="as told")
        seconds, peak = told
        return CompiledPlan(
            status="compiled", constraints=constraints, seconds=seconds, peak_bytes=peak
        )

    return compiles


def refined(
    judge: Judge,
    plan: autoshard.Plan | None = None,
    candidates: dict[str, Any] | None = None,
    compiled: list[PlanData] | None = None,
    **options: Any,
) -> Refined:
    """A refinement of the small step by a compiler that says what `judge` does."""
    plan = plan or planned()
    assert plan.solved is not None
    contenders = Contenders("step", plan.solved, plan.data)
    asked = {"observe": lambda _, __: Observation(), "rounds": 2, **options}
    return refine_plan(
        contenders,
        candidates or {},
        says(judge, compiled),
        RefineOptions(target="v5e:2x4", **asked),
    )


def autoshard_args_step() -> dict[str, Any]:
    """What the command line plans `step` with."""
    return {"args": (PARAMS, BATCH), "donate_argnums": 0}
