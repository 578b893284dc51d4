"""Budgets that plans meet because much of what they hold lies in the memory of the chip."""

from __future__ import annotations

import pytest

import autoshard
from autoshard.planning.room_on_chip import with_room_on_chip
from autoshard.planning.searches import Searches, SolveOptions
from autoshard.planning.stages import Stages
from autoshard.plans.plan import PlanData
from experiments.workloads import get_workload
from tests.planner.graphs import Program, plan


def embedding_within(budget: int) -> PlanData:
    """A training step with look-up tables on eight chips of a v5e, whose temporaries they hold."""
    workload = get_workload("embedding", rows=(65536, 32768), d_embed=128, batch=4096)
    planned = autoshard.optimize(
        workload.step,
        workload.state,
        workload.batch,
        mesh="data=8",
        hardware="tpu-v5e",
        donate_argnums=workload.donate_argnums,
        memory_budget=budget,
        baselines=False,
    )
    return planned.data


@pytest.fixture(scope="module")
def least() -> int:
    """The least peak in bytes, as a budget that nothing meets names it."""
    nothing = embedding_within(1)
    assert not nothing.is_feasible
    return nothing.memory.peak_bytes


@pytest.mark.parametrize("share", [pytest.param(1.0, marks=pytest.mark.slow), 1.1])
def test_a_budget_that_the_leanest_plan_meets_is_met(least: int, share: float) -> None:
    budget = int(share * least)
    data = embedding_within(budget)
    assert data.is_feasible
    assert data.memory.peak_bytes <= budget
    assert 0 <= data.solver.gap <= 1


@pytest.mark.slow
def test_below_the_least_there_is_no_plan(least: int) -> None:
    data = embedding_within(least - 1)
    assert not data.is_feasible
    assert data.memory.peak_bytes == least


def test_a_plan_that_was_found_is_left_as_it_is() -> None:
    program = Program()
    graph = program.graph(
        program.sum(program.matmul(program.argument(64, 64), program.argument(64, 64)))
    )
    solution = plan(graph, "x=4", None, None, "tpu-v5e")
    assert with_room_on_chip(solution, Searches(SolveOptions(), Stages(), None)) is solution
