from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import Edge, NodeMemory, Problem, evaluate
from solvers.memory_rows import num_rows_of
from solvers.presolve import fitting_choices
from solvers.scalable.branching import Branching
from solvers.scalable.clock import Effort
from solvers.scalable.layout import lay_out
from solvers.scalable.price_rule import PriceRule
from solvers.scalable.priced_ascent import PricedAscent
from solvers.scalable.priced_optimum import PricedOptimum
from solvers.scalable.tightened import tighten
from tests.solvers.scalable.reduced_problems import best_cost, lane_problem, lane_problems

UNSOLVABLE = 10**15


def never() -> bool:
    return False


def moves(count: int) -> Effort:
    return Effort(seconds=None, moves=count)


@settings(max_examples=60, deadline=None)
@given(
    problem=lane_problems(),
    expected=st.sampled_from([2.0, 30.0, 1e6]),
    price=st.floats(0.0, 20.0),
)
def test_bounds_hold_at_any_prices_and_any_resolution(
    problem: Problem, expected: float, price: float
) -> None:
    num_rows = num_rows_of(problem)
    ascent = PricedAscent(lay_out(problem, num_rows), expected)
    best = best_cost(problem)
    generator = np.random.default_rng(0)
    if problem.memory_limit is None:
        price = 0.0
    for _ in range(4):
        ascent.set_prices(price * generator.random(num_rows))
        ascent.sweep()
        assert best is None or ascent.current_bound() <= best
    assert best is None or ascent.bound <= best


@settings(max_examples=60, deadline=None)
@given(problem=lane_problems(), price=st.floats(0.0, 5.0), above=st.integers(0, 5))
def test_no_choice_of_an_answer_within_the_cost_is_beyond_it(
    problem: Problem, price: float, above: int
) -> None:
    best = best_cost(problem)
    if best is None:
        return
    num_rows = num_rows_of(problem)
    layout = lay_out(problem, num_rows)
    ascent = PricedAscent(layout, 30.0)
    if problem.memory_limit is not None:
        ascent.set_prices(np.full(num_rows, price))
    beyond = ascent.beyond(best + above)
    kept = replace(
        problem,
        node_costs=tuple(
            np.where(beyond[start:stop], UNSOLVABLE, costs)
            for costs, start, stop in zip(
                problem.node_costs,
                layout.graph.node_start,
                layout.graph.node_start[1:],
                strict=False,
            )
        ),
    )
    assert best_cost(kept) == best


@settings(max_examples=60, deadline=None)
@given(problem=lane_problems())
def test_branching_proves_bounds_and_ends_at_the_optimum_where_no_half_is_left(
    problem: Problem,
) -> None:
    best = best_cost(problem)
    if best is None:
        return
    layout = lay_out(problem, num_rows_of(problem))
    ascent = PricedAscent(layout, 30.0)
    rule = PriceRule(ascent, 30.0)
    for _ in range(5):
        rule.sweep()
    branching = Branching(layout, ascent, rule, lambda _: None, lambda: float(best), never)
    line = branching.run(moves(3000))
    assert branching.bound <= best
    if line is not None and line.startswith("no half"):
        assert branching.bound == best


def test_branching_stops_before_its_halves_take_too_much_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("solvers.scalable.branching.MOST_BYTES", 1)
    lines = []
    for seed in range(40):
        problem = lane_problem(seed)
        best = best_cost(problem)
        if best is None:
            continue
        layout = lay_out(problem, num_rows_of(problem))
        ascent = PricedAscent(layout, 30.0)
        rule = PriceRule(ascent, 30.0)
        rule.sweep()
        branching = Branching(layout, ascent, rule, lambda _: None, lambda: np.inf, never)
        lines.append(branching.run(moves(3000)))
        assert branching.bound <= best
    assert any(line is not None and line.startswith("2 halves are open") for line in lines)


@settings(max_examples=60, deadline=None)
@given(problem=lane_problems())
def test_optima_at_given_prices_bound_the_problem(problem: Problem) -> None:
    if problem.memory_limit is None:
        return
    best = best_cost(problem)
    bounds: list[int] = []
    answers: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    optimum = PricedOptimum(problem, answers.append, bounds.append, never)
    optimum.run(np.full(num_rows_of(problem), 0.5), moves(4 * problem.num_nodes))
    assert best is None or all(bound <= best for bound in bounds)
    for choices in answers:
        evaluate(problem, choices.tolist())  # raises where they are none of the problem's


@settings(max_examples=100, deadline=None)
@given(problem=lane_problems())
def test_what_tightening_takes_out_is_in_no_answer_that_fits(problem: Problem) -> None:
    best = best_cost(problem)
    tightened = tighten(problem, never)
    if tightened.is_infeasible:
        assert best is None
        return
    after = best_cost(tightened.problem)
    if best is None:
        assert after is None
        return
    assert after is not None
    assert after + tightened.constant == best


@settings(max_examples=60, deadline=None)
@given(problem=lane_problems(), seed=st.integers(0, 100))
def test_choices_restored_from_a_tightened_problem_cost_what_they_did_and_the_constant(
    problem: Problem, seed: int
) -> None:
    tightened = tighten(problem, never)
    if tightened.is_infeasible:
        return
    generator = np.random.default_rng(seed)
    choices = [int(generator.integers(len(costs))) for costs in tightened.problem.node_costs]
    found = evaluate(tightened.problem, choices)
    restored = evaluate(problem, tightened.restore(choices))
    if found.is_allowed:
        assert restored.is_allowed
        assert restored.cost == found.cost + tightened.constant


def test_a_choice_that_passes_the_limit_with_the_least_of_all_others_goes() -> None:
    problem = Problem(
        node_costs=(np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)),
        node_memory=(
            NodeMemory(0, 0, 2, np.array([3, 9])),
            NodeMemory(1, 1, 3, np.array([2, 7])),
        ),
        memory_limit=10,
    )
    keep = fitting_choices(problem, 3)
    assert keep is not None
    assert [mask.tolist() for mask in keep] == [[True, False], [True, True]]


def test_nothing_fits_where_the_least_of_all_usages_does_not() -> None:
    problem = Problem(
        node_costs=(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)),
        edges=(Edge(0, 1, np.zeros((1, 1), dtype=np.int64)),),
        node_memory=(NodeMemory(0, 0, 2, np.array([6])), NodeMemory(1, 1, 3, np.array([5]))),
        memory_limit=10,
    )
    assert fitting_choices(problem, 3) is None
    assert tighten(problem, never).is_infeasible
