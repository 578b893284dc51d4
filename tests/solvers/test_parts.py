"""Parts that have nothing in common, parts that repeat, and limits that hold for some times."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import Edge, MemoryLimit, NodeMemory, Problem, Status, evaluate, solve
from solvers.engines.apart import Apart
from solvers.engines.brute_force import BruteForce
from solvers.engines.protocol import Answer, Request
from solvers.incumbent import Incumbent
from solvers.memory_limits import with_one_limit
from solvers.presolve import join_parts, reduce_fully, split_into_parts, tie_repeats
from tests.solvers.instances import random_problem, small_problems


def optimum(problem: Problem) -> int | None:
    choices = BruteForce().solve(problem, Request()).choices
    return None if choices is None else evaluate(problem, choices).cost


def side_by_side(first: Problem, second: Problem, shift: int) -> Problem:
    """Two problems as one, the second one's memory `shift` later."""
    offset, edges = first.num_nodes, len(first.edges)
    return Problem(
        (*first.node_costs, *second.node_costs),
        (*first.edges, *(Edge(e.u + offset, e.v + offset, e.costs) for e in second.edges)),
        (
            *first.node_memory,
            *(
                NodeMemory(t.node + offset, t.start + shift, t.stop + shift, t.usage)
                for t in second.node_memory
            ),
        ),
        (
            *first.edge_memory,
            *(
                replace(t, edge=t.edge + edges, start=t.start + shift, stop=t.stop + shift)
                for t in second.edge_memory
            ),
        ),
        memory_limit=first.memory_limit,
    )


@settings(max_examples=60, deadline=None)
@given(problem=small_problems())
def test_parts_cover_every_node_once_and_their_optima_make_the_whole_one(problem: Problem) -> None:
    whole = reduce_fully(problem, rules=()).problem
    parts = split_into_parts(whole)
    assert sorted(node for part in parts for node in part.nodes) == list(range(whole.num_nodes))
    best = [BruteForce().solve(part.problem, Request()).choices for part in parts]
    if any(choices is None for choices in best):
        assert optimum(whole) is None
    else:
        joined = join_parts(parts, [choices for choices in best if choices is not None])
        found = evaluate(whole, joined)
        assert found.is_allowed
        assert found.cost == optimum(whole)


@settings(max_examples=40, deadline=None)
@given(problem=small_problems())
def test_a_engine_that_works_apart_finds_the_optimum(problem: Problem) -> None:
    whole = reduce_fully(problem, rules=()).problem
    answer = Apart(BruteForce()).solve(whole, Request())
    best = optimum(whole)
    if best is None:
        assert answer.is_infeasible
    else:
        assert answer.choices is not None
        assert evaluate(whole, answer.choices).cost == answer.lower_bound == best


def test_problems_side_by_side_are_parts_unless_a_memory_row_joins_them() -> None:
    table = np.array([[0, 3], [3, 0]])
    costs = np.array([1, 2])
    usage = np.array([4, 5])
    one = Problem(
        (costs, costs), (Edge(0, 1, table),), (NodeMemory(0, 0, 2, usage),), memory_limit=4
    )
    assert [part.nodes for part in split_into_parts(side_by_side(one, one, 2))] == [(0, 1), (2, 3)]
    assert len(split_into_parts(side_by_side(one, one, 1))) == 1


@settings(max_examples=80, deadline=None)
@given(problem=small_problems(), rounds=st.integers(0, 3), data=st.data())
def test_tied_choices_cost_and_hold_the_same_when_untied(
    problem: Problem, rounds: int, data: st.DataObject
) -> None:
    tied = tie_repeats(problem, rounds=rounds)
    choices = [data.draw(st.integers(0, len(costs) - 1)) for costs in tied.problem.node_costs]
    told, untied = evaluate(tied.problem, choices), evaluate(problem, tied.untie(choices))
    assert told.is_allowed == untied.is_allowed
    assert (told.peak, told.peak_time) == (untied.peak, untied.peak_time)
    if told.is_allowed:
        assert told.cost == untied.cost


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_equal_problems_side_by_side_are_tied_into_one_and_lose_nothing(seed: int) -> None:
    one = random_problem(seed, most_nodes=4, has_memory=False)
    both = side_by_side(one, one, 0)
    tied = tie_repeats(both)
    assert tied.problem.num_nodes <= one.num_nodes
    best = optimum(one)
    if best is not None and len(set(tied.class_of)) == one.num_nodes:
        assert optimum(tied.problem) == 2 * best


@settings(max_examples=80, deadline=None)
@given(
    problem=small_problems(),
    limits=st.lists(
        st.builds(
            lambda start, length, limit: MemoryLimit(start, start + length, limit),
            st.integers(0, 8),
            st.integers(0, 6),
            st.integers(0, 20),
        ),
        min_size=1,
        max_size=3,
    ),
    data=st.data(),
)
def test_one_limit_allows_exactly_what_several_do(
    problem: Problem, limits: list[MemoryLimit], data: st.DataObject
) -> None:
    if data.draw(st.booleans()):
        problem = replace(problem, memory_limit=None)
    several = replace(problem, memory_limits=tuple(limits))
    one = with_one_limit(several)
    assert one.problem.memory_limits == ()
    choices = [data.draw(st.integers(0, len(costs) - 1)) for costs in problem.node_costs]
    told, as_one = evaluate(several, choices), evaluate(one.problem, one.extend(choices))
    assert told.is_allowed == as_one.is_allowed
    assert told.cost == as_one.cost
    assert one.restore(one.extend(choices)) == tuple(choices)


def test_a_lower_limit_for_some_times_changes_the_answer_only_there() -> None:
    problem = Problem(
        (np.array([1, 10]), np.array([1, 10])),
        node_memory=(
            NodeMemory(0, 0, 1, np.array([100, 50])),
            NodeMemory(1, 5, 6, np.array([100, 50])),
        ),
        memory_limit=100,
        memory_limits=(MemoryLimit(5, 7, 99),),
    )
    result = solve(problem)
    assert (result.status, result.choices, result.peak) == (Status.OPTIMAL, (0, 1), 100)
    none = solve(replace(problem, memory_limits=(MemoryLimit(5, 7, 49),)))
    assert none.status is Status.INFEASIBLE
    assert none.choices is None


@settings(max_examples=40, deadline=None)
@given(seeds=st.tuples(st.integers(0, 2**31), st.integers(0, 2**31)))
def test_what_parts_find_is_told_as_one(seeds: tuple[int, int]) -> None:
    first, second = (random_problem(seed, has_memory=False) for seed in seeds)
    whole = reduce_fully(side_by_side(first, second, 0), rules=()).problem
    incumbent = Incumbent()
    answer = Apart(BruteForce()).solve(whole, Request.of(incumbent))
    if len(split_into_parts(whole)) == 1 or answer.choices is None:
        return
    best = optimum(whole)
    assert (incumbent.best()[0], incumbent.bound(), answer.lower_bound) == (best, best, best)


def test_a_part_stops_when_the_whole_is_over() -> None:
    pair = Problem((np.array([0, 1]),) * 2, (Edge(0, 1, np.array([[2, 0], [0, 3]])),))
    whole = side_by_side(pair, pair, 0)
    assert len(split_into_parts(whole)) > 1
    incumbent = Incumbent()
    incumbent.stop()
    asked = []

    @dataclass(frozen=True)
    class Asking:
        name: str = "asking"
        is_polling: bool = True

        def solve(self, problem: Problem, request: Request) -> Answer:
            del problem
            assert request.incumbent is not None
            asked.append((request.is_over(), request.incumbent.is_stopped()))
            return Answer(choices=None)

    assert Apart(Asking()).solve(whole, Request.of(incumbent)).choices is None
    assert set(asked) == {(True, True)}


@settings(max_examples=80, deadline=None)
@given(problem=small_problems(), rounds=st.integers(0, 3), data=st.data())
def test_choices_that_are_alike_are_tied_and_untied_again(
    problem: Problem, rounds: int, data: st.DataObject
) -> None:
    tied = tie_repeats(problem, rounds=rounds)
    choices = [data.draw(st.integers(0, len(costs) - 1)) for costs in tied.problem.node_costs]
    assert tied.tie(tied.untie(choices)) == tuple(choices)
