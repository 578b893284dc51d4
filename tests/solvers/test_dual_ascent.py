from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import FORBIDDEN, Edge, Problem, evaluate
from solvers.dual_ascent import DualAscent
from solvers.engines.brute_force import BruteForce
from solvers.engines.protocol import Request
from solvers.problem import IntArray
from tests.solvers.instances import random_problem, small_problems


def best_cost(problem: Problem) -> int | None:
    """What the best allowed choices cost, by trying all."""
    answer = BruteForce().solve(problem, Request())
    return None if answer.choices is None else evaluate(problem, answer.choices).cost


def best_cost_by_choice(problem: Problem, node: int, choice: int) -> int | None:
    """What the best allowed choices with one of them given cost."""
    costs = list(problem.node_costs)
    costs[node] = np.where(np.arange(len(costs[node])) == choice, costs[node], FORBIDDEN)
    return best_cost(Problem(node_costs=tuple(costs), edges=problem.edges))


def array(*rows: object) -> IntArray:
    return np.array(rows, dtype=np.int64)


def chain() -> Problem:
    """Three nodes in a row; the best is (1, 0, 1) at 0 + 2 + 1 + 0 + 1 = 4."""
    return Problem(
        node_costs=(array(3, 0), array(1, 5), array(9, 1)),
        edges=(
            Edge(0, 1, array([4, 0], [2, 7])),
            Edge(2, 1, array([3, 8], [0, 6])),
        ),
    )


def triangle() -> Problem:
    """Pays 10 for every equal pair of three nodes with two choices: the best pays once."""
    differ = array([10, 0], [0, 10])
    return Problem(
        node_costs=(array(0, 0), array(0, 0), array(0, 0)),
        edges=(Edge(0, 1, differ), Edge(1, 2, differ), Edge(0, 2, differ)),
    )


def test_on_a_tree_the_bound_is_the_best_cost_after_one_sweep() -> None:
    assert best_cost(chain()) == 4
    assert DualAscent(chain()).sweep() == 4


def test_on_a_tree_the_decoded_choices_are_the_best() -> None:
    ascent = DualAscent(chain())
    ascent.sweep()
    assert evaluate(chain(), ascent.decoded().tolist()).cost == 4


def test_on_an_odd_cycle_without_fractional_costs_the_bound_stays_below() -> None:
    # Half of each choice at every node pays nothing: no redistribution proves more.
    ascent = DualAscent(triangle())
    assert ascent.sweep(20) == 0
    assert best_cost(triangle()) == 10


def test_a_problem_without_nodes_has_bound_zero() -> None:
    ascent = DualAscent(Problem(node_costs=()))
    assert ascent.sweep() == 0
    assert ascent.recomputed_bound() == 0
    assert ascent.reach_by_node() == []


def test_a_problem_whose_forbidden_costs_leave_nothing_is_proven_infeasible() -> None:
    never = np.full((2, 2), FORBIDDEN, dtype=np.int64)
    ascent = DualAscent(Problem(node_costs=(array(0, 1), array(2, 3)), edges=(Edge(0, 1, never),)))
    ascent.sweep()
    assert ascent.is_infeasible


@given(problem=small_problems(has_memory=False), num_sweeps=st.integers(1, 8))
def test_the_bound_is_never_above_the_best_cost(problem: Problem, num_sweeps: int) -> None:
    best = best_cost(problem)
    ascent = DualAscent(problem)
    ascent.sweep(num_sweeps)
    if best is not None:
        assert ascent.bound <= ascent.recomputed_bound() <= best
        assert not ascent.is_infeasible


@given(problem=small_problems(has_memory=False))
def test_more_sweeps_never_lower_the_bound(problem: Problem) -> None:
    ascent = DualAscent(problem)
    bounds = [ascent.sweep() for _ in range(6)]
    assert bounds == sorted(bounds)


@given(seed=st.integers(0, 2**32 - 1), num_sweeps=st.integers(1, 5))
def test_no_answer_with_a_choice_costs_less_than_its_reach(seed: int, num_sweeps: int) -> None:
    problem = random_problem(seed, most_nodes=4, has_memory=False)
    ascent = DualAscent(problem)
    ascent.sweep(num_sweeps)
    for node, reach in enumerate(ascent.reach_by_node()):
        for choice, least in enumerate(reach):
            best = best_cost_by_choice(problem, node, choice)
            assert best is None or least <= best


@given(seed=st.integers(0, 2**32 - 1), num_sweeps=st.integers(1, 5))
def test_no_answer_with_a_pair_costs_less_than_its_reach(seed: int, num_sweeps: int) -> None:
    problem = random_problem(seed, most_nodes=4, has_memory=False)
    ascent = DualAscent(problem)
    ascent.sweep(num_sweeps)
    for e, edge in enumerate(problem.edges):
        for (s, t), least in np.ndenumerate(ascent.pair_reach(e)):
            only = np.full(edge.costs.shape, FORBIDDEN, dtype=np.int64)
            only[s, t] = 0
            with_pair = Problem(
                node_costs=problem.node_costs, edges=(*problem.edges, Edge(edge.u, edge.v, only))
            )
            best = best_cost(with_pair)
            assert best is None or least <= best


@given(problem=small_problems(has_memory=False), seed=st.integers(0, 2**32 - 1))
def test_moving_a_forest_or_single_nodes_never_costs_more(problem: Problem, seed: int) -> None:
    ascent = DualAscent(problem)
    rng = np.random.default_rng(seed)
    choices = np.array([rng.integers(len(costs)) for costs in problem.node_costs])
    before = evaluate(problem, choices.tolist())
    for moved in (ascent.moved_forest(choices, rng), ascent.descended(choices)):
        after = evaluate(problem, moved.tolist())
        assert after.is_allowed >= before.is_allowed
        if before.is_allowed:
            assert after.cost <= before.cost


def test_a_forest_that_is_the_whole_problem_is_moved_to_the_best() -> None:
    ascent = DualAscent(chain())
    start = np.zeros(3, dtype=np.int64)
    moved = ascent.moved_forest(start, np.random.default_rng(0))
    assert moved.tolist() == [1, 0, 1]
    assert start.tolist() == [0, 0, 0]


@given(problem=small_problems(has_memory=False))
def test_the_cost_to_compare_by_is_the_referees_for_allowed_choices(problem: Problem) -> None:
    ascent = DualAscent(problem)
    ascent.sweep(2)
    choices = ascent.decoded()
    found = evaluate(problem, choices.tolist())
    if found.is_allowed:
        assert ascent.approximate_cost(choices) == found.cost


@pytest.mark.parametrize("factor", [10**6, 10**9, 10**13], ids=str)
@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_costs_too_large_for_doubles_still_give_a_bound_near_the_best(
    factor: int, seed: int
) -> None:
    small = random_problem(seed, forbidden_share=0, has_memory=False)
    problem = Problem(
        node_costs=tuple(costs * factor + 1 for costs in small.node_costs),
        edges=tuple(Edge(edge.u, edge.v, edge.costs * factor + 1) for edge in small.edges),
    )
    best = best_cost(problem)
    assert best is not None
    coarse, fine = DualAscent(problem), DualAscent(small)
    coarse.sweep(5)
    fine.sweep(5)
    assert coarse.recomputed_bound() <= best
    assert coarse.bound >= factor * (fine.bound - 1)


@st.composite
def extra_costs(draw: st.DrawFn) -> tuple[Problem, dict[int, IntArray], dict[int, IntArray]]:
    """A problem with extra costs, some of them negative, at some nodes and edges."""
    problem = draw(small_problems(has_memory=False))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    nodes = {
        node: rng.integers(-5, 40, len(costs))
        for node, costs in enumerate(problem.node_costs)
        if rng.random() < 0.6
    }
    edges = {
        e: rng.integers(-5, 40, edge.costs.shape)
        for e, edge in enumerate(problem.edges)
        if rng.random() < 0.6
    }
    return problem, nodes, edges


def with_extra_costs(
    problem: Problem, nodes: dict[int, IntArray], edges: dict[int, IntArray]
) -> Problem:
    """The problem with its extra costs added (forbidden stays forbidden)."""
    return Problem(
        node_costs=tuple(
            np.where(costs >= FORBIDDEN, FORBIDDEN, costs + nodes.get(node, 0))
            for node, costs in enumerate(problem.node_costs)
        ),
        edges=tuple(
            Edge(
                edge.u,
                edge.v,
                np.where(edge.costs >= FORBIDDEN, FORBIDDEN, edge.costs + edges.get(e, 0)),
            )
            for e, edge in enumerate(problem.edges)
        ),
    )


@given(extra=extra_costs(), num_before=st.integers(0, 4), num_after=st.integers(1, 4))
def test_after_extra_costs_change_the_bound_is_one_on_the_new_costs(
    extra: tuple[Problem, dict[int, IntArray], dict[int, IntArray]],
    num_before: int,
    num_after: int,
) -> None:
    problem, nodes, edges = extra
    new = with_extra_costs(problem, nodes, edges)
    best = best_cost(new)
    ascent = DualAscent(problem)
    ascent.sweep(num_before)
    ascent.set_extra_costs(nodes, edges)
    if best is None:
        return
    assert ascent.bound <= best
    ascent.sweep(num_after)
    assert ascent.bound <= ascent.recomputed_bound() <= best
    for node, reach in enumerate(ascent.reach_by_node()):
        for choice, least in enumerate(reach):
            with_choice = best_cost_by_choice(new, node, choice)
            assert with_choice is None or least <= with_choice
    ascent.set_extra_costs({}, {})
    ascent.sweep(num_after)
    back = best_cost(problem)
    assert back is not None
    assert ascent.bound <= ascent.recomputed_bound() <= back


def test_extra_costs_that_outgrow_the_room_for_them_still_give_a_bound() -> None:
    factor = 5 * 10**12
    large = Problem(
        node_costs=tuple(costs * factor for costs in chain().node_costs),
        edges=tuple(Edge(edge.u, edge.v, edge.costs * factor) for edge in chain().edges),
    )
    ascent = DualAscent(large)
    assert ascent.sweep() == 4 * factor
    dear = 10**15
    ascent.set_extra_costs({0: array(dear, dear)}, {})
    ascent.sweep(2)
    assert 0.999 * (dear + 4 * factor) <= ascent.bound
    assert ascent.bound <= ascent.recomputed_bound() <= dear + 4 * factor
    ascent.set_extra_costs({}, {})
    ascent.sweep(2)
    assert 0.999 * 4 * factor <= ascent.bound <= ascent.recomputed_bound() <= 4 * factor
