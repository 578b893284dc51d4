from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import Edge, NodeMemory, Problem, evaluate
from solvers.local_search import LocalSearch
from solvers.local_search import _State as State
from solvers.presolve import presolve
from tests.solvers.instances import small_problems


def start_of(problem: Problem, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(rng.integers(len(costs))) for costs in problem.node_costs]


@settings(max_examples=100, deadline=None)
@given(problem=small_problems(), seed=st.integers(0, 1000))
def test_improving_keeps_what_is_allowed_allowed_and_never_costs_more(
    problem: Problem, seed: int
) -> None:
    small = presolve(problem, rules=())
    choices = start_of(small.problem, seed)
    before = evaluate(small.problem, choices)
    search = LocalSearch(small.problem, len(small.row_times))
    if before.is_allowed:
        after = evaluate(small.problem, search.improved(choices).tolist())
        assert after.is_allowed
        assert after.cost <= before.cost


@settings(max_examples=100, deadline=None)
@given(problem=small_problems(), seed=st.integers(0, 1000))
def test_repairing_never_raises_the_excess(problem: Problem, seed: int) -> None:
    small = presolve(problem, rules=())
    choices = start_of(small.problem, seed)
    search = LocalSearch(small.problem, len(small.row_times))
    limit = small.problem.memory_limit
    if limit is not None:
        after = evaluate(small.problem, search.repaired(choices).tolist())
        before = evaluate(small.problem, choices)
        assert after.peak <= max(limit, before.peak * len(small.row_times))
        if before.peak <= limit:
            assert after == before


@settings(max_examples=100, deadline=None)
@given(problem=small_problems(), seed=st.integers(0, 1000), share=st.floats(0.0, 1.2))
def test_a_repair_first_frees_the_cheapest_bytes_above_the_limit(
    problem: Problem, seed: int, share: float
) -> None:
    small = presolve(problem, rules=())
    choices = start_of(small.problem, seed)
    limit = int(share * evaluate(small.problem, choices).peak)
    tight = replace(small.problem, memory_limit=limit)
    search = LocalSearch(tight, len(small.row_times))
    before = State(search, choices)
    for node, costs in enumerate(tight.node_costs):
        found = before.best_relief(node)
        prices = []
        for choice in range(len(costs)):
            after = State(search, choices)
            after.move(node, choice)
            freed = before.excess() - after.excess()
            more = int(before.paid[node][choice] - before.paid[node][choices[node]])
            if freed > 0 and before.paid[node][choice] < search.forbidden // 2:
                prices.append((float(more) / float(freed), choice))
        assert found == min(prices, default=None)


@settings(max_examples=100, deadline=None)
@given(problem=small_problems(), seed=st.integers(0, 1000))
def test_blending_two_answers_fits_and_costs_no_more_than_the_fitting_one(
    problem: Problem, seed: int
) -> None:
    small = presolve(problem, rules=())
    first, second = start_of(small.problem, seed), start_of(small.problem, seed + 1)
    before = evaluate(small.problem, first)
    if before.is_allowed:
        search = LocalSearch(small.problem, len(small.row_times))
        after = evaluate(small.problem, search.blended(first, second).tolist())
        assert after.is_allowed
        assert after.cost <= before.cost


def test_blending_takes_the_parts_that_fit() -> None:
    problem = Problem(
        node_costs=tuple(np.array([10, 0]) for _ in range(3)),
        edges=(Edge(0, 1, np.zeros((2, 2), dtype=np.int64)),),
        node_memory=tuple(NodeMemory(i, 0, 1, np.array([1, 3])) for i in range(3)),
        memory_limit=7,
    )
    search = LocalSearch(problem, 1)
    assert search.blended([0, 0, 0], [1, 1, 1]).tolist() in ([1, 1, 0], [0, 0, 1])
    assert search.blended([0, 0, 0], [1, 0, 1]).tolist() == [1, 0, 1]


def test_repair_takes_the_cheapest_way_per_byte() -> None:
    problem = Problem(
        node_costs=(np.array([0, 5]), np.array([0, 50])),
        node_memory=tuple(NodeMemory(i, 0, 1, np.array([10, 4])) for i in range(2)),
        memory_limit=14,
    )
    assert LocalSearch(problem, 1).repaired([0, 0]).tolist() == [1, 0]


def test_equal_terms_of_a_node_relieve_every_row_in_which_they_hold() -> None:
    usage = np.array([10, 4])
    problem = Problem(
        node_costs=(np.array([0, 15]), np.array([0, 10])),
        node_memory=(
            *(NodeMemory(0, start, start + 2, usage) for start in (0, 1, 4)),
            NodeMemory(1, 0, 6, np.array([10, 9])),
        ),
        memory_limit=18,
    )
    # Of 20 bytes of excess in five rows the first one takes all, the second one a byte a row.
    assert LocalSearch(problem, 6).repaired([0, 0]).tolist() == [1, 0]


def test_a_node_of_one_choice_with_many_terms_takes_no_table_of_all_pairs_of_them() -> None:
    """It stands for all that is settled: of 126 layers 39,029 terms, a table of 11 GiB."""
    terms = 100_000
    problem = Problem(
        node_costs=(np.zeros(1, dtype=np.int64), np.array([0, 5])),
        edges=(),
        node_memory=(
            *(NodeMemory(0, row, row + 1, np.array([row])) for row in range(terms)),
            NodeMemory(1, terms - 1, terms, np.array([7, 3])),
        ),
        memory_limit=terms + 2,
    )
    assert LocalSearch(problem, terms).repaired([0, 0]).tolist() == [0, 1]
