"""Problems that repeat themselves: bounds and searches by class against those without."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import FORBIDDEN, Edge, NodeMemory, Problem, class_search, evaluate, solve
from solvers.class_bound import ClassBound
from solvers.dual_ascent import DualAscent
from solvers.engines.elimination import Elimination
from solvers.engines.protocol import Request
from solvers.presolve.alike import alike, distinct_rows
from solvers.presolve.repeats import tie
from solvers.run import Run
from tests.solvers.instances import random_problem


def stack(seed: int, layers: int) -> Problem:
    """Equal layers of a few nodes, each joined to the next, and a node that all of them read."""
    rng = np.random.default_rng(seed)
    layer = random_problem(seed, most_nodes=4, has_memory=False)
    size = layer.num_nodes

    def table(u: int, v: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        costs = rng.integers(0, 9, (len(layer.node_costs[u]), len(layer.node_costs[v])))
        return np.where(rng.random(costs.shape) < 0.1, FORBIDDEN, costs).astype(np.int64)

    joined = [(int(u), int(v), table(u, v)) for u, v in rng.integers(0, size, (2, 2))]
    shared = int(rng.integers(0, size))
    read, usage = table(shared, shared), rng.integers(0, 9, len(layer.node_costs[shared]))
    edges = []
    for first in range(0, layers * size, size):
        edges += [Edge(first + edge.u, first + edge.v, edge.costs) for edge in layer.edges]
        edges.append(Edge(first + shared, layers * size, read))
        if first:
            edges += [Edge(first - size + u, first + v, costs) for u, v, costs in joined]
    return Problem(
        node_costs=(*layer.node_costs * layers, layer.node_costs[shared]),
        edges=tuple(edges),
        node_memory=tuple(
            NodeMemory(node, node, layers * size, usage)
            for node in range(shared, layers * size, size)
        ),
    )


def optimum(problem: Problem) -> int | None:
    answer = Elimination().solve(replace(problem, node_memory=()), Request())
    return None if answer.choices is None else evaluate(problem, answer.choices).cost


@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.integers(1, 4), st.integers(0, 20))
def test_no_answer_costs_less_than_a_bound_by_class(
    seed: int, layers: int, rounds: int, sweeps: int
) -> None:
    problem = stack(seed, layers)
    ascent = ClassBound(problem, alike(problem, rounds))
    ascent.sweep(sweeps)
    best = optimum(problem)
    assert best is None or best >= FORBIDDEN or ascent.proven() <= best


def test_a_bound_by_class_is_about_that_without_classes() -> None:
    rng = np.random.default_rng(0)
    own = rng.integers(0, 100, (4, 5))
    within, between = rng.integers(0, 100, (2, 5, 5))
    edges = [Edge(node, node + 1, within) for node in range(199) if node % 4 != 3]
    edges += [Edge(node, node + 1, between) for node in range(3, 199, 4)]
    problem = Problem(tuple(own[node % 4] for node in range(200)), tuple(edges))
    ascent, whole = ClassBound(problem, alike(problem, 6)), DualAscent(problem)
    ascent.sweep(60)
    whole.sweep(60)
    assert ascent.proven() >= 0.99 * whole.bound


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(4, 9), st.booleans())
def test_searches_with_and_without_classes_cost_the_same_within_the_gap(
    seed: int, layers: int, is_limited: bool
) -> None:
    problem = stack(seed, layers)
    whole = without_limit = solve(problem, relative_gap=0.0)
    if is_limited and whole.peak:
        problem = replace(problem, memory_limit=whole.peak - 1)
        whole = solve(problem, relative_gap=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(class_search, "LEAST_COLUMNS", 0)
        by_class = solve(problem, relative_gap=0.02)
    apart = solve(problem, relative_gap=0.02, by_class=False)
    for found in (by_class, apart):
        if without_limit.cost is not None:
            assert found.bound_without_limit <= without_limit.cost
        assert found.status.has_choices == whole.status.has_choices
        if found.cost is not None and whole.cost is not None:
            assert found.lower_bound <= whole.cost <= found.cost
            assert found.gap <= 0.02


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(4, 9))
def test_with_a_lower_limit_what_was_proven_and_found_for_a_higher_one_is_not_sought_again(
    seed: int, layers: int
) -> None:
    problem = stack(seed, layers)
    loose = solve(problem, relative_gap=0.02)
    if loose.choices is None or not loose.peak:
        return
    problem = replace(problem, memory_limit=loose.peak - 1)
    best = solve(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(class_search, "LEAST_COLUMNS", 0)
        hints = [loose.choices]
        found = solve(problem, relative_gap=0.02, hints=hints, lower_bound=loose.lower_bound)
    assert not [stage for stage in found.seconds_by_stage if "without memory" in stage]
    assert found.status.has_choices == best.status.has_choices
    if found.cost is not None and best.cost is not None:
        assert loose.lower_bound <= found.lower_bound <= best.cost <= found.cost
        assert found.gap <= 0.02


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(4, 9))
def test_where_copies_must_choose_alike_the_best_of_such_answers_is_found(
    seed: int, layers: int
) -> None:
    problem = stack(seed, layers)
    tied = tie(problem, alike(problem, class_search.ROUNDS))
    best = solve(tied.problem, relative_gap=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(class_search, "LEAST_COLUMNS", 0)
        found = solve(problem, relative_gap=0.02, copies_alike=True)
        no_room = replace(problem, memory_limit=0)
        leanest = solve(no_room, relative_gap=0.02, copies_alike=True)
    if found.choices is not None and class_search.Classes.of(problem) is not None:
        assert tied.untie(tied.tie(found.choices)) == found.choices
    if best.cost is not None and found.cost is not None:
        assert found.lower_bound <= best.cost
        assert found.gap <= 0.02
    assert found.status.has_choices == best.status.has_choices
    if leanest.least_peak_choices is not None:
        assert evaluate(problem, leanest.least_peak_choices).peak == leanest.least_peak


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(4, 9))
def test_of_what_is_too_large_copies_choose_alike_and_bounds_hold_for_all_answers(
    seed: int, layers: int
) -> None:
    problem = stack(seed, layers)
    best = solve(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(class_search, "LEAST_COLUMNS", 0)
        patch.setattr(sys.modules["solvers.solve"], "MOST_WHOLE_COLUMNS", 0)
        classes = class_search.Classes.of(problem)
        found = solve(problem, relative_gap=1e-9)
    if classes is None or best.cost is None or found.cost is None:
        return
    assert found.choices is not None
    assert classes.tied.untie(classes.tied.tie(found.choices)) == found.choices
    assert found.lower_bound <= best.cost <= found.cost


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(4, 9), st.integers(0, 9))
def test_where_nothing_fits_in_which_copies_choose_alike_no_other_answer_is_looked_for(
    seed: int, layers: int, less: int
) -> None:
    problem = stack(seed, layers)
    tied = tie(problem, alike(problem, class_search.ROUNDS)).problem
    least = solve(replace(tied, memory_limit=0)).least_peak
    if least is None or least < less:
        return
    problem = replace(problem, memory_limit=least - less)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(class_search, "LEAST_COLUMNS", 0)
        has_classes = class_search.Classes.of(problem) is not None
        found = solve(problem, relative_gap=0.02, alike_must_fit=True)
        apart = solve(problem, relative_gap=0.02)
    if less and has_classes:
        assert found.cost is None
        assert found.least_peak == least
    else:
        assert found.cost == apart.cost


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(0, 3))
def test_no_answer_that_fits_costs_less_than_a_bound_by_class_with_memory_priced(
    seed: int, layers: int, price: int
) -> None:
    problem = stack(seed, layers)
    whole = solve(problem)
    problem = replace(problem, memory_limit=max(0, (whole.peak or 0) - 1))
    best = solve(problem)
    run = Run(
        problem=problem,
        deadline=None,
        seed=0,
        relative_gap=0.01,
        progress=None,
        stop=threading.Event(),
    )
    times = {term.start: 0.5 * price for term in problem.node_memory[::2]}
    bound = class_search.priced_bound(run, times)
    assert best.cost is None or bound <= best.cost


@given(st.integers(0, 10**6), st.integers(0, 40), st.integers(1, 4))
def test_distinct_rows_are_in_lexicographic_order(seed: int, num_rows: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, rng.integers(1, 8, columns), (num_rows, columns))
    first, of_row, counts = distinct_rows(rows)
    assert [*map(tuple, rows[first].tolist())] == sorted(set(map(tuple, rows.tolist())))
    assert rows[first[of_row]].tolist() == rows.tolist()
    assert counts.tolist() == np.bincount(of_row, minlength=len(first)).tolist()
