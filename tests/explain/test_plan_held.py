"""A saved plan found again in the problem that planning again gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

import autoshard
from autoshard.explain.plan_held import held_to
from autoshard.plan import Plan
from autoshard.planning.solution import Solution
from autoshard.sharding import parse_sharding
from experiments.workloads import get_workload


def planned(name: str, **options: object) -> Plan:
    workload = get_workload(name)
    given: dict[str, Any] = {
        "mesh": "data=2,model=4",
        "hardware": "cpu-host",
        "donate_argnums": 0,
        "baselines": False,
    }
    return autoshard.optimize(workload.step, workload.state, workload.batch, **{**given, **options})


def loosely(plan_name: str, **options: object) -> Solution:
    """The problem, with the first plan that comes along as its answer."""
    solution = planned(plan_name, relative_gap=1.0, **options).solution
    assert solution is not None
    return solution


@pytest.mark.parametrize("name", ["mlp", "gpt_scan"])
def test_a_plan_is_found_again_tensor_by_tensor_at_its_price(name: str, tmp_path: Path) -> None:
    plan = planned(name, simplicity=0)  # a simpler plan may read operands at more than least cost
    plan.save(tmp_path / "plan.json")
    saved = autoshard.load_plan(tmp_path / "plan.json").data
    held = held_to(loosely(name), saved)
    assert held is not None
    account, parts = held.account, held.encoded.parts
    seconds = account.compute_seconds + account.communication_seconds
    assert seconds == pytest.approx(saved.seconds, rel=1e-6)
    assert account.memory.peak_bytes == saved.memory.peak_bytes
    found = {
        path: parts.to_sharding(held.decoded.layouts[held.graph.value_by_path[path]])
        for path in saved.values
    }
    assert found == saved.values


def test_what_is_proven_of_the_plan_stays_what_was_proven_when_it_was_made() -> None:
    plan = planned("mlp")
    solver = replace(plan.data.solver, bound_seconds=0.9 * plan.data.solver.seconds)
    held = held_to(loosely("mlp"), replace(plan.data, solver=solver))
    assert held is not None
    assert held.result.gap == pytest.approx(0.1, abs=1e-3)


def test_a_plan_that_no_longer_keeps_within_memory_is_not_found() -> None:
    plan = planned("mlp")
    whole = tuple(
        replace(tensor, sharding=parse_sharding(f"[{', '.join(['{}'] * len(tensor.shape))}]"))
        for tensor in plan.data.arguments
    )
    limit = plan.data.memory.peak_bytes + 1000
    solution = loosely("mlp", memory_budget=limit, remat="keep")  # of the same program
    assert held_to(solution, plan.data) is not None
    assert held_to(solution, replace(plan.data, arguments=whole)) is None


def test_keys_are_held_in_the_shape_that_jax_shows() -> None:
    def draw(keys: jax.Array) -> jax.Array:
        drawn: jax.Array = jax.vmap(lambda key: jax.random.normal(key, (64,)))(keys)
        return drawn

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 16))
    plan = autoshard.optimize(
        draw, keys, mesh="data=8", hardware="cpu-host", baselines=False, in_shardings=jax.P("data")
    )
    assert plan.solution is not None
    held = held_to(plan.solution, plan.data)
    assert held is not None
    assert held.decoded.layouts[0] == ((0,), ())
