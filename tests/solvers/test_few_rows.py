from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers import Problem, evaluate, few_rows, solve
from solvers.engines.brute_force import BruteForce
from solvers.engines.protocol import Request
from solvers.few_rows import solve_at_few_rows
from solvers.incumbent import Incumbent
from solvers.memory_rows import at_times, compress_memory
from tests.solvers.instances import LayeredShape, layered_problem, small_problems

GAP = 0.05


def layered_with_limit(share: float) -> tuple[Problem, tuple[int, ...]]:
    """A layered problem whose limit lies between its least peak (0) and that of its best answer."""
    problem = layered_problem(LayeredShape(num_layers=4, ops_per_layer=8, num_choices=6))
    cheapest = solve(problem).choices
    assert cheapest is not None
    most = evaluate(problem, cheapest).peak
    least = solve(replace(problem, memory_limit=0)).least_peak
    assert least is not None
    assert least < most
    return replace(problem, memory_limit=int(least + share * (most - least))), cheapest


@given(problem=small_problems(), data=st.data())
def test_answers_fit_everywhere_and_bounds_hold_for_the_whole_problem(
    problem: Problem, data: st.DataObject
) -> None:
    best = BruteForce().solve(problem, Request()).choices
    hint = tuple(data.draw(st.integers(0, len(costs) - 1)) for costs in problem.node_costs)
    incumbent = Incumbent(relative_gap=0.01)
    solve_at_few_rows(problem, incumbent, [hint])
    cost, choices = incumbent.best()
    if best is None:
        assert choices is None
        return
    assert incumbent.bound() <= evaluate(problem, best).cost
    assert not incumbent.is_infeasible()
    if choices is not None:
        found = evaluate(problem, choices)
        assert found.is_allowed
        assert found.cost == cost


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_a_limit_that_binds_at_a_few_rows_is_met_within_the_gap(share: float) -> None:
    problem, cheapest = layered_with_limit(share)
    assert not evaluate(problem, cheapest).is_allowed
    incumbent = Incumbent(relative_gap=GAP)
    solve_at_few_rows(problem, incumbent, [cheapest])
    cost, choices = incumbent.best()
    assert choices is not None
    assert cost is not None
    assert evaluate(problem, choices).is_allowed
    assert cost - incumbent.bound() <= GAP * cost


def test_rows_are_added_where_answers_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "ROWS_A_LOOK", 1)
    problem, cheapest = layered_with_limit(0.1)
    incumbent = Incumbent(relative_gap=0.001)
    solve_at_few_rows(problem, incumbent, [cheapest])
    looked = [line for line in incumbent.log() if line.startswith("few rows: with the limit at")]
    assert "at 1 rows" in looked[0]
    assert len(looked) > 1


def test_only_the_cheapest_hint_says_at_which_rows_the_limit_binds() -> None:
    problem, cheapest = layered_with_limit(0.97)
    wasteful = list(cheapest)
    for term in problem.node_memory:
        wasteful[term.node] = int(term.usage.argmax())

    def first_look(hints: list[tuple[int, ...]]) -> str:
        incumbent = Incumbent(relative_gap=GAP)
        solve_at_few_rows(problem, incumbent, hints)
        return next(line for line in incumbent.log() if line.startswith("few rows"))

    alone = first_look([cheapest])
    assert first_look([tuple(wasteful)]) != alone
    assert first_look([tuple(wasteful), cheapest]) == alone


@given(problem=small_problems(), data=st.data())
def test_what_fits_fits_at_some_of_the_times(problem: Problem, data: st.DataObject) -> None:
    compressed, times = compress_memory(problem)
    rows = data.draw(st.sets(st.integers(0, len(times) - 1))) if times else set()
    few = at_times(compressed, sorted(rows))
    choices = [data.draw(st.integers(0, len(costs) - 1)) for costs in problem.node_costs]
    assert evaluate(few, choices).cost == evaluate(problem, choices).cost
    assert evaluate(few, choices).peak <= evaluate(problem, choices).peak


def test_without_an_answer_that_fits_the_leanest_seen_is_told() -> None:
    problem, cheapest = layered_with_limit(0.3)
    held = evaluate(problem, cheapest).peak
    incumbent = Incumbent(relative_gap=GAP, deadline=0.0)
    solve_at_few_rows(problem, incumbent, [cheapest])
    assert incumbent.best() == (None, None)
    assert incumbent.least_peak() == (held, cheapest)
