"""What was lowered is priced as its schedule takes, and another plan taken where it is faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.planning import followed, planner
from autoshard.planning.searches import Searches, SolveOptions
from autoshard.planning.solution import Solution
from autoshard.planning.stages import Stages
from autoshard.planning.tightened import Differences, tightened
from autoshard.sharding import parse_mesh_sizes
from cost_models import get_hardware
from solvers import evaluate, solve
from tests.planner.test_hidden import batch_and_cut_weights, chain

EXACT = SolveOptions(relative_gap=0.0, time_limit_seconds=20.0)


def first_plan(hardware: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> Solution:
    """A plan whose schedule was not looked at: weights that are cut have to be gathered."""
    graph = chain(rows, 4096)
    monkeypatch.setattr(followed, "tightened", lambda solution, _: solution)
    machine, wishes = get_hardware(hardware), batch_and_cut_weights(graph)
    return planner.plan_graph(graph, parse_mesh_sizes("x=4"), machine, wishes, None, EXACT)


PROGRAMS = [("h100", 1024), ("h100", 16384), ("tpu-v5e", 512), ("tpu-v5e", 3072)]


@pytest.mark.parametrize(("hardware", "rows"), PROGRAMS)
def test_measured_choices_cost_what_their_schedule_takes(
    hardware: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    solution = first_plan(hardware, rows, monkeypatch)
    found = Differences()
    found.measure(solution)
    problem = found.on(solution.encoded.problem)
    cost = evaluate(problem, solution.choices).cost
    assert cost / PICOSECONDS == pytest.approx(solution.estimate.seconds, rel=1e-6)
    assert evaluate(solution.encoded.problem, solution.choices).cost == solution.result.cost


@pytest.mark.parametrize(("hardware", "rows"), PROGRAMS)
def test_a_tightened_plan_is_never_slower_and_never_further_from_its_price(
    hardware: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = first_plan(hardware, rows, monkeypatch)
    after = tightened(before, Searches(EXACT, Stages()))
    assert after.step_seconds <= before.step_seconds
    assert after.model_gap <= before.model_gap
    if before.model_gap > 0.005:
        assert after is not before


def test_a_plan_that_agrees_with_its_price_is_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solution = first_plan("h100", 1024, monkeypatch)
    stages = Stages()
    near = replace(EXACT, relative_gap=1.0)
    assert tightened(solution, Searches(near, stages)) is solution
    assert not stages.seconds


@pytest.mark.parametrize(("hardware", "rows"), PROGRAMS)
def test_the_bound_that_is_kept_without_a_solve_is_one(
    hardware: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    solution = first_plan(hardware, rows, monkeypatch)
    found = Differences()
    found.measure(solution)
    before = solution.encoded.problem
    after = found.on(before)
    bound = solution.result.lower_bound + found.lowered(before, after)
    best = solve(after, relative_gap=0.0)
    assert best.cost is not None
    assert bound <= best.cost
