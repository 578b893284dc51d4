"""What moves make of answers at once, within the limit."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers import FORBIDDEN, Problem, Result, evaluate, first_moves, solve
from solvers.engines.protocol import Request
from solvers.first_moves import best_of_answers, moved_on
from solvers.memory_rows import compress_memory, num_rows_of
from solvers.recombination import recombine
from tests.solvers.instances import LayeredShape, layered_problem, small_problems


@given(problem=small_problems(), data=st.data())
def test_answers_stay_allowed_and_get_no_dearer(problem: Problem, data: st.DataObject) -> None:
    choices = st.tuples(*(st.integers(0, len(costs) - 1) for costs in problem.node_costs))
    hints = data.draw(st.lists(choices, max_size=3))
    told = [evaluate(problem, hint) for hint in hints]
    fitting = [found.cost for found in told if found.is_allowed and found.cost < FORBIDDEN]
    moved = [evaluate(problem, answer) for answer in moved_on(problem, hints, Request())]
    assert bool(moved) == bool(fitting)
    assert all(found.is_allowed for found in moved)
    assert min((found.cost for found in moved), default=0) <= min(fitting, default=0)


@cache
def solved(shape: LayeredShape) -> tuple[Problem, Result, Result]:
    """A problem, the answer that costs least, and the one that holds least."""
    problem = layered_problem(shape)
    gap = 0.01 if shape == LARGE else 0.0
    cheapest, lean = (
        solve(one, relative_gap=gap) for one in (problem, replace(problem, memory_limit=0))
    )
    return problem, cheapest, lean


SMALL = LayeredShape(num_layers=6, ops_per_layer=8, num_choices=6)
LARGE = LayeredShape(num_layers=24, ops_per_layer=20, num_choices=8)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_what_holds_least_and_what_costs_least_make_a_better_answer_of_both(share: float) -> None:
    problem, cheapest, leanest_found = solved(SMALL)
    lean = leanest_found.least_peak_choices
    assert cheapest.choices is not None
    assert cheapest.peak is not None
    assert lean is not None
    leanest = evaluate(problem, lean)
    limit = int(leanest.peak + share * (cheapest.peak - leanest.peak))
    tight = replace(problem, memory_limit=limit)
    moved = moved_on(tight, [lean, cheapest.choices], Request(relative_gap=0.01))
    cost = min(evaluate(tight, choices).cost for choices in moved)
    best = solve(tight, relative_gap=0.01).cost
    assert best is not None
    assert cost - best <= 0.2 * (leanest.cost - best)


@given(problem=small_problems(), data=st.data())
def test_the_best_of_answers_takes_every_choice_from_one_and_is_no_dearer(
    problem: Problem, data: st.DataObject
) -> None:
    choices = st.tuples(*(st.integers(0, len(costs) - 1) for costs in problem.node_costs))
    hints = data.draw(st.lists(choices, max_size=3))
    told = [evaluate(problem, hint) for hint in hints]
    fitting = [found.cost for found in told if found.is_allowed and found.cost < FORBIDDEN]
    found = best_of_answers(problem, hints, Request())
    assert bool(found) == bool(fitting)
    for best in found:
        assert all(choice in taken for choice, *taken in zip(best, *hints, strict=True))
        assert evaluate(problem, best).is_allowed
        assert evaluate(problem, best).cost <= min(fitting)


def test_the_best_of_answers_is_the_same_however_long_a_search_may_take() -> None:
    """Branch and cut took a tenth of the time that was left: a busy machine found a dearer plan."""
    problem, cheapest, leanest_found = solved(LARGE)
    lean = leanest_found.least_peak_choices
    assert cheapest.choices is not None
    assert cheapest.peak is not None
    assert lean is not None
    least = evaluate(problem, lean).peak
    tight = replace(problem, memory_limit=int(least + 0.3 * (cheapest.peak - least)))
    hints = [lean, cheapest.choices]
    soon = Request(relative_gap=0.001, deadline=time.monotonic() + 20.0)
    found = best_of_answers(tight, hints, soon)
    assert found == best_of_answers(tight, hints, Request(relative_gap=0.001))
    assert evaluate(tight, found[0]).cost <= 1.02 * (cheapest.cost or 0)


def test_who_asks_for_the_best_so_far_gets_what_fits_at_once() -> None:
    problem, _, leanest_found = solved(SMALL)
    lean = leanest_found.least_peak_choices
    assert lean is not None
    tight = replace(problem, memory_limit=evaluate(problem, lean).peak)
    assert moved_on(tight, [lean], Request(stop=lambda: True)) == [lean]
    assert moved_on(tight, [lean], Request()) != [lean]


def test_answers_are_recombined_with_the_limit_at_the_rows_where_they_pass_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, cheapest, lean = solved(LARGE)
    assert cheapest.choices is not None
    assert cheapest.peak is not None
    assert lean.least_peak is not None
    assert lean.least_peak_choices is not None
    limit = int(lean.least_peak + 0.8 * (cheapest.peak - lean.least_peak))
    tight = replace(problem, memory_limit=limit)
    looked_at: list[int] = []

    def recombined(problem: Problem, *given: Any) -> Any:
        looked_at.append(num_rows_of(problem))
        return recombine(problem, *given)

    monkeypatch.setattr(first_moves, "recombine", recombined)
    hints = [lean.least_peak_choices, cheapest.choices]
    (found,) = best_of_answers(tight, hints, Request(relative_gap=0.001))
    assert evaluate(tight, found).is_allowed
    assert looked_at[-1] <= 0.5 * num_rows_of(compress_memory(tight)[0])
