from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from math import gcd

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import FORBIDDEN, Edge, EdgeMemory, NodeMemory, Problem, evaluate, verify_problem
from solvers.engines.brute_force import BruteForce
from solvers.engines.protocol import Request
from solvers.presolve import (
    ALL_RULES,
    LowDegree,
    Presolved,
    Reduced,
    drop_unfitting,
    eliminate_low_degree,
    presolve,
    reduce_fully,
    rules,
)
from solvers.presolve.graph import Term
from solvers.presolve.rules import (
    STRUCTURAL_RULES,
    Rule,
    decompose,
    drop_dominated,
    fix_single,
    forbid,
    merge_forced,
    merge_leaf,
    usage_by_time,
)
from solvers.problem import IntArray
from tests.solvers.instances import random_problem, small_problems


def optimum(problem: Problem) -> int | None:
    choices = BruteForce().solve(problem, Request()).choices
    return None if choices is None else evaluate(problem, choices).cost


def ints(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def assert_same_optimum(problem: Problem, smaller: Presolved | LowDegree | Reduced) -> None:
    """The law of every reduction: same optimum, and the restored answer has the cost claimed."""
    expected = optimum(problem)
    if smaller.is_infeasible:
        assert expected is None
        return
    assert verify_problem(smaller.problem) == []
    found = BruteForce().solve(smaller.problem, Request()).choices
    if expected is None:
        assert found is None
        return
    assert found is not None
    reached = evaluate(problem, smaller.restore(found))
    assert reached.is_allowed
    assert reached.cost == evaluate(smaller.problem, found).cost + smaller.constant == expected


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.__name__)
@settings(max_examples=60, deadline=None)
@given(problem=small_problems())
def test_each_rule_alone_keeps_the_optimum(rule: Rule, problem: Problem) -> None:
    assert_same_optimum(problem, presolve(problem, rules=(rule,)))


@settings(max_examples=150, deadline=None)
@given(problem=small_problems())
def test_all_rules_together_keep_the_optimum(problem: Problem) -> None:
    assert_same_optimum(problem, presolve(problem))


@settings(max_examples=150, deadline=None)
@given(problem=small_problems())
def test_rules_and_eliminations_repeated_keep_the_optimum(problem: Problem) -> None:
    assert_same_optimum(problem, reduce_fully(problem))


@settings(max_examples=60, deadline=None)
@given(problem=small_problems())
def test_without_memory_the_optimum_is_that_of_the_unlimited_problem(problem: Problem) -> None:
    unlimited = replace(problem, memory_limit=None)
    assert_same_optimum(unlimited, reduce_fully(problem, use_memory=False))


@settings(max_examples=60, deadline=None)
@given(problem=small_problems())
def test_low_degree_elimination_keeps_the_optimum(problem: Problem) -> None:
    once = presolve(problem, rules=())
    if not once.is_infeasible:
        assert_same_optimum(once.problem, eliminate_low_degree(once.problem))


@settings(max_examples=60, deadline=None)
@given(problem=small_problems())
def test_reducing_restored_choices_gives_them_back(problem: Problem) -> None:
    reduced = reduce_fully(problem)
    if not reduced.is_infeasible:
        choices = tuple(len(costs) - 1 for costs in reduced.problem.node_costs)
        assert reduced.reduce(reduced.restore(choices)) == choices


@st.composite
def problems_with_equals(draw: st.DrawFn) -> Problem:
    """Random problems with many more edges whose choices follow one to one, also round cycles."""
    problem = draw(small_problems())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = [len(costs) for costs in problem.node_costs]
    edges = list(problem.edges)
    for u, v in itertools.permutations(range(len(sizes)), 2):
        if sizes[u] == sizes[v] and rng.random() < 0.3:
            costs = np.full((sizes[u], sizes[v]), FORBIDDEN, dtype=np.int64)
            partner = np.arange(sizes[u]) if rng.random() < 0.5 else rng.permutation(sizes[u])
            costs[np.arange(sizes[u]), partner] = rng.integers(0, 3, sizes[u])
            edges.append(Edge(u, v, costs))
    return replace(problem, edges=tuple(edges))


@settings(max_examples=200, deadline=None)
@given(problem=problems_with_equals())
def test_merging_equals_keeps_the_optimum(problem: Problem) -> None:
    assert_same_optimum(problem, presolve(problem, rules=(merge_forced,)))
    assert_same_optimum(problem, reduce_fully(problem))


def test_equals_become_one_node_that_pays_and_holds_for_all() -> None:
    swapped = np.array([[FORBIDDEN, 1], [0, FORBIDDEN]])
    problem = Problem(
        (ints(1, 2), ints(30, 40), ints(500, 600)),
        (Edge(0, 1, swapped), Edge(2, 1, swapped)),
        (NodeMemory(0, 0, 2, ints(1, 2)), NodeMemory(2, 0, 2, ints(5, 0))),
        memory_limit=4,
    )
    small = presolve(problem, rules=(merge_forced,))
    assert small.nodes == (1,)  # the one with the most neighbours
    assert small.constant == 40 + (1 + 1) + (500 + 1)
    assert small.problem.node_costs[0].tolist() == [30 + 2 + 600 - small.constant, 0]
    assert small.problem.node_memory[0].usage.tolist() == [2 + 0, 1 + 5]
    assert small.restore((0,)) == (1, 0, 1)
    assert small.restore((1,)) == (0, 1, 0)


def test_equals_that_disagree_round_a_cycle_are_forbidden() -> None:
    same = np.array([[0, FORBIDDEN], [FORBIDDEN, 0]])
    other = np.array([[FORBIDDEN, 0], [0, FORBIDDEN]])
    problem = Problem((ints(0, 0),) * 3, (Edge(0, 1, same), Edge(1, 2, same), Edge(0, 2, other)))
    assert presolve(problem, rules=(merge_forced, forbid)).is_infeasible


def test_forbid_removes_a_choice_without_partner_and_then_those_that_needed_it() -> None:
    problem = Problem(
        (ints(0, 0), ints(0, 0), ints(0, 0)),
        (
            Edge(0, 1, np.array([[1, 2], [FORBIDDEN, FORBIDDEN]])),
            Edge(1, 2, np.array([[1, 2], [3, 4]])),
        ),
    )
    assert [len(c) for c in presolve(problem, rules=(forbid,)).problem.node_costs] == [1, 2, 2]


def test_decompose_drops_row_plus_column_tables() -> None:
    problem = Problem((ints(0, 9), ints(5, 0)), (Edge(0, 1, np.array([[1, 2], [11, 12]])),))
    small = presolve(problem, rules=(decompose,))
    assert small.problem.edges == ()
    assert [costs.tolist() for costs in small.problem.node_costs] == [[0, 19], [4, 0]]
    assert small.constant == 2


def test_decompose_keeps_an_edge_that_holds_memory() -> None:
    problem = Problem(
        (ints(0, 9), ints(5, 0)),
        (Edge(0, 1, np.array([[1, 2], [11, 12]])),),
        edge_memory=(EdgeMemory(0, 0, 1, np.array([[1, 2], [3, 4]])),),
        memory_limit=3,
    )
    assert len(presolve(problem, rules=(decompose,)).problem.edges) == 1


def test_fix_single_moves_the_row_and_the_copy_to_the_neighbour() -> None:
    problem = Problem(
        (ints(7), ints(1, 2)),
        (Edge(0, 1, np.array([[30, 40]])),),
        edge_memory=(EdgeMemory(0, 5, 6, np.array([[8, 9]])),),
        memory_limit=8,
    )
    small = presolve(problem, rules=(fix_single,))
    assert small.problem.num_nodes == 1
    assert small.problem.node_memory[0].usage.tolist() == [8, 9]
    assert small.row_times == (5,)
    assert small.restore((0,)) == (0, 0)


def test_merge_forced_lets_a_node_follow_and_takes_its_memory_over() -> None:
    only = np.full((2, 2), FORBIDDEN)
    only[0, 1] = only[1, 0] = 4
    problem = Problem(
        (ints(1, 2), ints(10, 20)),
        (Edge(0, 1, only),),
        node_memory=(NodeMemory(0, 0, 2, ints(5, 0)), NodeMemory(1, 1, 3, ints(0, 6))),
        memory_limit=10,
    )
    small = presolve(problem, rules=(merge_forced,))
    assert small.problem.num_nodes == 1
    assert small.restore((0,)) in {(0, 1), (1, 0)}
    held = {small.restore((s,)): small.problem.node_costs[0][s] + small.constant for s in (0, 1)}
    assert held == {(0, 1): 25, (1, 0): 16}


def test_merge_leaf_follows_where_the_cheapest_choice_is_the_leanest_too() -> None:
    table = np.array([[0, 5, 9], [5, 0, 9]])
    nodes = (ints(1, 2), ints(3, 3, 3))
    dear_but_lean = NodeMemory(0, 0, 1, ints(1, 0))  # keeps node 0 from being merged instead
    lean = NodeMemory(1, 0, 1, ints(4, 4, 6))
    memory = (dear_but_lean, lean)
    problem = Problem(nodes, (Edge(0, 1, table),), node_memory=memory, memory_limit=4)
    small = presolve(problem, rules=(merge_leaf,))
    assert small.problem.num_nodes == 1
    assert {small.restore((s,)) for s in (0, 1)} == {(0, 0), (1, 1)}
    memory = (dear_but_lean, replace(lean, usage=ints(4, 4, 3)))
    kept = presolve(replace(problem, node_memory=memory), rules=(merge_leaf,))
    assert kept.problem.num_nodes == 2


def test_dominance_spares_a_dearer_choice_that_holds_less() -> None:
    memory = NodeMemory(0, 0, 1, ints(5, 9))
    problem = Problem((ints(2, 1),), node_memory=(memory,), memory_limit=6)
    assert len(presolve(problem, rules=(drop_dominated,)).problem.node_costs[0]) == 2
    relaxed = presolve(problem, use_memory=False, rules=(drop_dominated,))
    assert relaxed.problem.node_costs[0].tolist() == [0]


def test_of_two_equal_choices_the_first_stays() -> None:
    small = presolve(Problem((ints(3, 3, 3),)), rules=(drop_dominated,))
    assert small.restore((0,)) == (0,)
    assert small.problem.num_columns == 1


def beats(problem: Problem, node: int, p: int, s: int) -> bool:
    """The formula of `drop_dominated`, memory left out."""
    more = int(problem.node_costs[node][p] - problem.node_costs[node][s])
    for edge in problem.edges:
        if node in (edge.u, edge.v):
            table = edge.costs if edge.u == node else edge.costs.T
            more += int((table[p] - table[s]).max())
    return more <= 0


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_no_choice_is_left_that_another_one_beats(seed: int) -> None:
    problem = random_problem(seed, forbidden_share=0.0, has_memory=False, most_choices=6)
    small = presolve(problem, rules=(drop_dominated,)).problem
    for node, costs in enumerate(small.node_costs):
        for p, s in itertools.permutations(range(len(costs)), 2):
            assert not beats(small, node, p, s)


def test_a_choice_that_is_beaten_is_compared_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def counted(table: IntArray, p: IntArray, s: IntArray, *rest: IntArray) -> None:
        compared.append(len(p))
        find_excess(table, p, s, *rest)

    find_excess = rules._find_excess
    monkeypatch.setattr(rules, "_find_excess", counted)
    num_choices = 50  # each beats all that follow
    table = np.arange(num_choices, dtype=np.int64)[:, None] + np.array([[0, 3]])
    problem = Problem((np.zeros(num_choices, dtype=np.int64), ints(5, 0)), (Edge(0, 1, table),))
    small = presolve(problem, rules=(drop_dominated,))
    assert [len(costs) for costs in small.problem.node_costs] == [1, 1]
    assert compared[0] <= num_choices


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 2)), max_size=8))
def test_what_terms_hold_together_at_any_time_is_told_up_to_multiples(
    spans: list[tuple[int, int, int]],
) -> None:
    usages = [ints(1, 2), ints(3, 1), ints(4, 4)]
    terms = [Term(start, max(start, stop), usages[which]) for start, stop, which in spans]
    live = [Counter(which for start, stop, which in spans if start <= t < stop) for t in range(7)]
    expected = {
        np.sum([n // gcd(*now.values()) * usages[which] for which, n in now.items()], 0).tobytes()
        for now in live
        if now
    }
    found = [usage.tobytes() for usage in usage_by_time(terms)]
    if len({which for *_, which in spans}) > 1:
        assert sorted(found) == sorted(expected)


def test_layers_that_hold_the_same_at_once_are_told_once() -> None:
    usage = ints(1, 2)
    terms = [Term(0, time, usage) for time in range(1, 20)]
    assert [held.tolist() for held in usage_by_time(terms)] == [[1, 2]]


def test_copies_that_hold_the_same_one_after_the_other_are_told_once() -> None:
    usage = ints(1, 2)
    terms = [Term(time, time + 2, usage) for time in range(0, 20, 2)]
    (held,) = usage_by_time(terms)
    assert held.tolist() == [1, 2]


def test_equal_layers_share_their_tables_after_the_rules() -> None:
    table = np.array([[0, 5, 9], [5, 0, 7], [9, 7, 0]])
    costs = ints(0, 1, 0)
    problem = Problem((costs,) * 5, tuple(Edge(i, i + 1, table) for i in range(4)))
    tables = {id(edge.costs) for edge in presolve(problem).problem.edges}
    assert len(tables) <= 1


@settings(max_examples=150, deadline=None)
@given(problem=small_problems())
def test_every_answer_that_fits_is_left_once_choices_that_cannot_are_gone(problem: Problem) -> None:
    rows = presolve(problem, rules=()).problem
    dropped = drop_unfitting(rows)
    if dropped is None:
        return
    assert dropped.problem.num_columns < rows.num_columns
    left = set(map(dropped.restore, itertools.product(*map(_choices, dropped.problem.node_costs))))
    for choices in itertools.product(*map(_choices, rows.node_costs)):
        assert choices in left or not evaluate(rows, choices).is_allowed


def _choices(costs: IntArray) -> range:
    return range(len(costs))


def test_a_choice_that_cannot_fit_makes_another_the_only_one() -> None:
    """Beside the least of node 1 choice 1 of node 0 is too large; beside choice 0 all of 1 fits."""
    memory = (NodeMemory(0, 0, 2, ints(3, 8)), NodeMemory(1, 1, 3, ints(4, 4, 5)))
    problem = Problem((ints(9, 0), ints(2, 1, 0)), node_memory=memory, memory_limit=10)
    reduced = reduce_fully(problem, rules=STRUCTURAL_RULES)
    assert reduced.has_dropped_unfitting
    assert reduced.problem.num_nodes == 0
    assert (reduced.restore(()), reduced.constant) == ((0, 2), 9)
    kept = reduce_fully(problem, rules=STRUCTURAL_RULES, drops_unfitting=False)
    assert not kept.has_dropped_unfitting
    assert len(kept.problem.node_costs) == 2


@given(problem=small_problems())
def test_rules_treat_a_repeated_layer_as_they_treat_one(problem: Problem) -> None:
    """What was decided for the first copy is recalled for the second, which shares its tables."""
    count, later = problem.num_nodes, 20
    twice = replace(
        problem,
        node_costs=problem.node_costs * 2,
        edges=(*problem.edges, *(Edge(e.u + count, e.v + count, e.costs) for e in problem.edges)),
        node_memory=(
            *problem.node_memory,
            *(
                NodeMemory(t.node + count, t.start + later, t.stop + later, t.usage)
                for t in problem.node_memory
            ),
        ),
        edge_memory=(
            *problem.edge_memory,
            *(
                EdgeMemory(t.edge + len(problem.edges), t.start + later, t.stop + later, t.usage)
                for t in problem.edge_memory
            ),
        ),
    )
    one, two = presolve(problem), presolve(twice)
    assert two.is_infeasible == one.is_infeasible
    if one.is_infeasible:
        return

    def left(smaller: Presolved) -> list[list[int]]:
        kept = zip(smaller.nodes, smaller.surviving, strict=True)
        return [choices.tolist() for node, choices in kept if node >= 0]

    assert left(two) == left(one) * 2
    assert two.constant == 2 * one.constant
