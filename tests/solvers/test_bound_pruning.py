from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from solvers import (
    FORBIDDEN,
    Edge,
    EdgeMemory,
    NodeMemory,
    Problem,
    ProblemError,
    bound_pruning,
    evaluate,
)
from solvers.bound_pruning import BoundedAnswer, solve_by_bounds
from solvers.dual_ascent import DualAscent
from solvers.engines.brute_force import BruteForce
from solvers.engines.protocol import Request
from solvers.problem import IntArray
from solvers.pruning import forbid_pairs, prune_choices, prune_choices_and_pairs
from solvers.restricted import restrict
from tests.solvers.instances import LayeredShape, layered_problem, small_problems


def best_cost(problem: Problem) -> int | None:
    """What the best allowed choices cost, by trying all."""
    answer = BruteForce().solve(problem, Request())
    return None if answer.choices is None else evaluate(problem, answer.choices).cost


def array(*rows: object) -> IntArray:
    return np.array(rows, dtype=np.int64)


def grid(side: int, num_choices: int, seed: int) -> Problem:
    """Random costs on a square grid: message passing alone does not close its gap."""
    rng = np.random.default_rng(seed)
    edges = [
        Edge(
            row * side + column,
            (row + down) * side + column + right,
            rng.integers(0, 1000, (num_choices, num_choices)),
        )
        for row in range(side)
        for column in range(side)
        for down, right in ((0, 1), (1, 0))
        if row + down < side and column + right < side
    ]
    node_costs = tuple(rng.integers(0, 1000, num_choices) for _ in range(side * side))
    return Problem(node_costs=node_costs, edges=tuple(edges))


def test_restricting_keeps_the_named_choices_and_their_memory() -> None:
    problem = Problem(
        node_costs=(array(5, 6, 7), array(8, 9)),
        edges=(Edge(1, 0, array([1, 2, 3], [4, 5, 6])),),
        node_memory=(NodeMemory(0, 0, 2, array(10, 20, 30)),),
        edge_memory=(EdgeMemory(0, 1, 2, array([1, 2, 3], [4, 5, 6])),),
        memory_limit=40,
    )
    restricted = restrict(problem, [np.array([True, False, True]), np.array([False, True])])
    small = restricted.problem
    assert [costs.tolist() for costs in small.node_costs] == [[5, 7], [9]]
    assert small.edges[0].costs.tolist() == [[4, 6]]
    assert small.node_memory[0].usage.tolist() == [10, 30]
    assert small.edge_memory[0].usage.tolist() == [[4, 6]]
    assert small.memory_limit == 40
    assert restricted.restore((1, 0)) == (2, 1)
    assert restricted.reduce((2, 1)) == (1, 0)
    assert restricted.reduce((1, 0)) == (0, 0)


@settings(deadline=None)
@given(problem=small_problems(), slack=st.integers(0, 3))
def test_every_answer_up_to_the_limit_survives_pruning(problem: Problem, slack: int) -> None:
    best = best_cost(problem)
    if best is None:
        return
    ascent = DualAscent(problem)
    ascent.sweep(3)
    pruned = prune_choices(problem, ascent, best + slack)
    assert pruned is not None
    assert best_cost(pruned.problem) == best


@given(problem=small_problems(has_memory=False))
def test_an_optimum_survives_forbidding_pairs(problem: Problem) -> None:
    best = best_cost(problem)
    if best is None:
        return
    ascent = DualAscent(problem)
    ascent.sweep(3)
    assert best_cost(forbid_pairs(problem, ascent, best)) == best


@given(problem=small_problems(has_memory=False), slack=st.integers(0, 3))
def test_an_optimum_survives_pruning_choices_and_pairs(problem: Problem, slack: int) -> None:
    best = best_cost(problem)
    if best is None:
        return
    ascent = DualAscent(problem)
    ascent.sweep(3)
    pruned = prune_choices_and_pairs(problem, ascent, best + slack)
    assert pruned is not None
    assert best_cost(pruned.problem) == best


@given(problem=small_problems(has_memory=False), data=st.data())
def test_the_bounds_of_some_pairs_are_those_of_all_pairs_there(
    problem: Problem, data: st.DataObject
) -> None:
    ascent = DualAscent(problem)
    ascent.sweep(2)
    for e, edge in enumerate(problem.edges):
        rows, columns = (
            array(*data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
            for size in edge.costs.shape
        )
        whole = ascent.pair_reach(e)
        assert (ascent.pair_reach(e, rows, columns) == whole[np.ix_(rows, columns)]).all()


def test_pruning_below_the_best_cost_leaves_nothing_on_a_tree() -> None:
    problem = Problem(
        node_costs=(array(3, 1), array(2, 4)), edges=(Edge(0, 1, array([0, 5], [6, 1])),)
    )
    ascent = DualAscent(problem)
    ascent.sweep(2)
    assert best_cost(problem) == 5
    assert prune_choices(problem, ascent, 4) is None
    kept = prune_choices(problem, ascent, 5)
    assert kept is not None
    assert [kept.tolist() for kept in kept.surviving] == [[0], [0]]


@given(problem=small_problems(has_memory=False), seed=st.integers(0, 3))
def test_small_problems_are_solved_to_a_proof(problem: Problem, seed: int) -> None:
    best = best_cost(problem)
    answer = solve_by_bounds(problem, seed=seed)
    assert answer.is_infeasible == (best is None)
    if best is None:
        assert answer.choices is None
        return
    assert answer.choices is not None
    assert evaluate(problem, answer.choices).cost == answer.cost == answer.lower_bound == best
    assert answer.gap == 0


@given(problem=small_problems())
def test_with_a_memory_limit_the_bound_still_holds(problem: Problem) -> None:
    best = best_cost(problem)
    answer = solve_by_bounds(problem)
    assert best is None or answer.lower_bound <= best
    assert best is None or not answer.is_infeasible


@given(problem=small_problems(has_memory=False), data=st.data())
def test_hints_never_make_the_answer_worse(problem: Problem, data: st.DataObject) -> None:
    hint = [data.draw(st.integers(0, len(costs) - 1)) for costs in problem.node_costs]
    hinted = evaluate(problem, hint)
    answer = solve_by_bounds(problem, relative_gap=1.0, hints=[hint])
    if hinted.is_allowed:
        assert answer.cost is not None
        assert answer.lower_bound <= answer.cost <= hinted.cost


def test_a_hint_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ProblemError) as caught:
        solve_by_bounds(Problem(node_costs=(array(1, 2),)), hints=[(0, 0)])
    assert str(caught.value) == "choices: 2 choices given, expected one per node: 1"


@pytest.mark.parametrize("seed", range(3))
def test_layered_problems_are_solved_to_a_proof(seed: int) -> None:
    problem = replace(layered_problem(LayeredShape(seed=seed)), node_memory=())
    answer = solve_by_bounds(problem)
    assert answer.choices is not None
    assert answer.lower_bound == answer.cost == evaluate(problem, answer.choices).cost


def test_one_seed_gives_one_answer() -> None:
    problem = grid(7, 4, seed=1)

    def run(seed: int) -> BoundedAnswer:
        return replace(solve_by_bounds(problem, seed=seed), log=())

    assert run(5) == run(5)


def test_a_requested_gap_is_enough_to_stop() -> None:
    problem = grid(12, 5, seed=0)
    answer = solve_by_bounds(problem, relative_gap=0.1)
    assert 0 < answer.gap <= 0.1


@pytest.fixture
def no_elimination(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems of a few nodes are eliminated at once; this makes bounds stall as on large ones."""
    monkeypatch.setattr(bound_pruning, "QUICK_WORK", 0)
    monkeypatch.setattr(bound_pruning, "PATIENT_WORK", 0)


def frustrated_clique(num_nodes: int) -> Problem:
    """Every pair of nodes pays for being equal, by an amount of its own."""
    rng = np.random.default_rng(0)
    edges = tuple(
        Edge(u, v, np.diag(rng.integers(1, 100, 3))) for u in range(num_nodes) for v in range(u)
    )
    return Problem(node_costs=(array(0, 0, 0),) * num_nodes, edges=edges)


@pytest.mark.usefixtures("no_elimination")
def test_a_finisher_proves_what_bounds_leave_open() -> None:
    problem = frustrated_clique(6)
    best = best_cost(problem)
    assert best is not None
    left_open = solve_by_bounds(problem)
    assert left_open.cost == best
    assert left_open.lower_bound < best
    finished = solve_by_bounds(problem, finisher=BruteForce())
    assert finished.lower_bound == finished.cost == best
    assert "brute_force finished" in finished.log[-1]


@pytest.mark.usefixtures("no_elimination")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=small_problems(has_memory=False))
def test_what_is_left_for_the_finisher_keeps_an_optimum(problem: Problem) -> None:
    best = best_cost(problem)
    answer = solve_by_bounds(problem, finisher=BruteForce())
    assert answer.cost == best
    assert answer.is_infeasible == (best is None)
    assert best is None or answer.lower_bound == best


def test_a_deadline_already_past_still_gives_an_answer_and_a_bound() -> None:
    problem = grid(12, 5, seed=0)
    answer = solve_by_bounds(problem, deadline=time.monotonic() - 1)
    assert answer.choices is not None
    assert 0 < answer.lower_bound < evaluate(problem, answer.choices).cost


def test_forbidden_costs_that_leave_nothing_are_found_out() -> None:
    never = np.full((2, 2), FORBIDDEN, dtype=np.int64)
    problem = Problem(node_costs=(array(0, 1), array(2, 3)), edges=(Edge(0, 1, never),))
    answer = solve_by_bounds(problem)
    assert answer.is_infeasible
    assert answer.choices is None


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**16), num_choices=st.integers(2, 3))
def test_looking_from_the_bound_up_finds_the_best_or_raises_the_bound(
    seed: int, num_choices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without elimination and without a finisher, so that steps up from the bound do the work."""
    monkeypatch.setattr(bound_pruning, "QUICK_WORK", 0)
    monkeypatch.setattr(bound_pruning, "PATIENT_WORK", 0)
    problem = grid(3, num_choices, seed)
    best = best_cost(problem)
    answer = solve_by_bounds(problem, seed=seed)
    assert best is not None
    assert answer.cost is not None
    assert answer.lower_bound <= best <= answer.cost


def test_looking_among_the_cheapest_choices_proves_what_bounds_alone_leave_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = grid(12, 5, 0)
    monkeypatch.setattr(bound_pruning, "PATIENT_WORK", 0)
    monkeypatch.setattr(bound_pruning, "STEPS_UP", ())
    looking = solve_by_bounds(problem)
    monkeypatch.setattr(bound_pruning, "SHARES_KEPT", ())
    without = solve_by_bounds(problem)
    assert looking.gap < without.gap


def test_the_gap_counts_what_is_paid_beyond_the_problem() -> None:
    problem = grid(12, 5, seed=0)
    alone = solve_by_bounds(problem, relative_gap=0.003)
    assert alone.cost is not None
    answer = solve_by_bounds(problem, relative_gap=0.003, constant=9 * alone.cost)
    assert answer.cost is not None
    assert answer.gap > 0.003
    assert answer.cost - answer.lower_bound <= 0.003 * (answer.cost + 9 * alone.cost)
