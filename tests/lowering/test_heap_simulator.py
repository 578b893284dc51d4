"""Memory of tensors that are laid out as they are made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.graph.program import Graph
from autoshard.lowering.heap_simulator import beside_results, heap_bytes
from autoshard.planning import searches
from autoshard.wishes.wishes import Wishes
from solvers import Problem, Result, evaluate, solve
from tests.planner.graphs import Program, beside_arguments, parts_of, plan, wishes_for

Span = tuple[int, int, int]
SIDE = 1024
MATRIX = SIDE * SIDE * 4


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    starts = st.integers(0, 8)
    found = draw(st.lists(st.tuples(starts, st.integers(1, 6), st.integers(1, 9)), max_size=12))
    return [(start, start + length, size) for start, length, size in found]


def most_alive(found: list[Span]) -> int:
    return max((sum(s for a, z, s in found if a <= time < z) for time in range(16)), default=0)


@given(found=spans())
def test_a_heap_is_no_smaller_than_what_is_alive_nor_larger_than_everything(
    found: list[Span],
) -> None:
    assert most_alive(found) <= heap_bytes(found) <= sum(size for _, _, size in found)


@given(found=spans())
def test_only_the_times_count_and_not_the_order_of_the_list(found: list[Span]) -> None:
    assert heap_bytes(sorted(found)) == heap_bytes(sorted(found, reverse=True))


def looked_at_one_by_one(found: list[Span]) -> int:
    """The size of a heap whose gaps are all looked at for every tensor."""
    held: list[tuple[int, int, int]] = []  # offset, end, when it is let go
    most = 0
    for start, stop, size in sorted(found, key=lambda span: (span[0], -span[2], -span[1])):
        held = sorted(one for one in held if one[2] > start)
        ends = [0, *(end for _, end, _ in held)]
        gaps = [offset - end for (offset, _, _), end in zip(held, ends, strict=False)]
        fitting = [(gap, end) for gap, end in zip(gaps, ends, strict=False) if gap >= size]
        offset = min(fitting)[1] if fitting else ends[-1]
        held.append((offset, offset + size, stop))
        most = max(most, offset + size)
    return most


@given(found=spans())
def test_the_smallest_gap_of_all_is_taken(found: list[Span]) -> None:
    assert heap_bytes(found) == looked_at_one_by_one(found)


@pytest.mark.parametrize(
    ("found", "size"),
    [
        ([], 0),
        ([(0, 1, 4), (1, 2, 4)], 4),  # one after the other
        ([(0, 2, 8), (1, 9, 4), (2, 9, 8)], 12),  # into the place of the first
        ([(0, 2, 8), (1, 9, 4), (2, 9, 12)], 24),  # it does not fit there
        ([(0, 2, 8), (0, 9, 4), (0, 2, 2), (0, 9, 1), (2, 9, 2)], 15),  # into the smaller gap
        ([(0, 9, 1), (0, 2, 8), (2, 9, 9)], 18),  # the larger one first
    ],
)
def test_each_goes_into_the_smallest_gap_else_to_the_end(found: list[Span], size: int) -> None:
    assert heap_bytes(found) == size


def test_a_small_one_keeps_a_gap_from_a_large_one() -> None:
    """A gradient of a weight in the place of scores keeps their gradient out of it."""
    scores, gradient, weight = (0, 2, 1000), (4, 9, 1000), (3, 9, 1)
    assert heap_bytes([scores, gradient]) == 1000
    assert heap_bytes([scores, gradient, weight]) == 1001
    assert heap_bytes([scores, gradient, weight, (1, 9, 20)]) == 2020


def with_a_gap() -> Graph:
    """A product that is read soon, one that is kept, and one that needs more room than the first.

    Each needs the one before, so that they can be made in no other order.
    """
    program = Program()
    w, few = program.argument(SIDE, SIDE), program.argument(SIDE, 8)
    wide, narrow = program.argument(SIDE, 2 * SIDE), program.argument(2 * SIDE, 8)
    first = program.matmul(program.argument(2 * SIDE, SIDE), w)
    kept = program.matmul(wide, first)
    read = program.matmul(first, program.matmul(kept, few))
    larger = program.matmul(read, program.argument(8, 2 * SIDE))
    end = program.matmul(wide, program.matmul(larger, narrow))
    return program.graph(program.matmul(kept, end))


def held_whole(graph: Graph) -> Wishes:
    """Everything on every device: there is one plan."""
    whole = parts_of("x=4").to_sharding(((), ()))
    ends = dict.fromkeys(range(6), whole), {0: whole}
    values = {value.index: whole for value in graph.values}
    return replace(wishes_for(graph, *ends), values=values)


def test_on_a_tpu_a_gap_that_nothing_fits_into_counts() -> None:
    graph = with_a_gap()
    wishes = held_whole(graph)
    solution = plan(graph, "x=4", wishes, None, "tpu-v5p")
    alive = evaluate(solution.encoded.problem, solution.choices).peak
    held = beside_arguments(solution) + solution.account.memory.argument_bytes
    # of two matrices in bfloat16, as products alone read them
    assert held - alive == pytest.approx(MATRIX, rel=0.05)


def test_a_plan_fits_its_budget_with_the_gaps() -> None:
    graph = with_a_gap()
    roomy = plan(graph, "x=4", None, None, "tpu-v5p")
    peak = roomy.account.memory.peak_bytes
    assert evaluate(roomy.encoded.problem, roomy.choices).peak < peak - 1
    tight = plan(graph, "x=4", None, peak - 1, "tpu-v5p")
    assert tight.is_feasible
    assert tight.account.memory.peak_bytes < peak


def test_a_plan_fits_a_budget_little_above_the_least_with_the_gaps() -> None:
    graph = with_a_gap()
    leanest = plan(graph, "x=4", None, 1, "tpu-v5p")
    assert not leanest.is_feasible
    budget = int(1.02 * leanest.account.memory.peak_bytes)
    tight = plan(graph, "x=4", None, budget, "tpu-v5p")
    assert tight.is_feasible
    assert tight.account.memory.peak_bytes <= budget


def test_a_budget_that_none_meets_with_its_gaps_says_what_was_found() -> None:
    graph = with_a_gap()
    roomy = plan(graph, "x=4", None, None, "tpu-v5p")
    least = plan(graph, "x=4", None, 1, "tpu-v5p")
    assert not least.is_feasible
    alive = evaluate(least.encoded.problem, least.choices).peak
    needed = least.account.memory.peak_bytes
    assert alive <= needed <= roomy.account.memory.peak_bytes
    for budget in (needed - 1, needed):
        found = plan(graph, "x=4", None, budget, "tpu-v5p")
        assert found.is_feasible == (found.account.memory.peak_bytes <= budget)
        if not found.is_feasible:
            assert found.peak_bytes > budget
    assert not least.is_too_large_with_gaps


def test_a_plan_that_only_its_gaps_make_too_large_is_told_from_one_that_holds_too_much() -> None:
    graph = with_a_gap()
    wishes = held_whole(graph)
    needed = plan(graph, "x=4", wishes, None, "tpu-v5p").peak_bytes
    with_gaps, too_much = (
        plan(graph, "x=4", wishes, budget, "tpu-v5p") for budget in (needed - 1, needed // 2)
    )
    assert not with_gaps.is_feasible
    assert with_gaps.is_too_large_with_gaps
    assert not too_much.is_feasible
    assert not too_much.is_too_large_with_gaps


def test_a_search_that_is_interrupted_is_not_followed_by_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = []

    def interrupted(problem: Problem, **asked: Any) -> Result:
        seconds.append(asked["time_limit_seconds"])
        return replace(solve(problem, **asked), is_interrupted=True)

    graph = with_a_gap()
    peak = plan(graph, "x=4", None, None, "tpu-v5p").account.memory.peak_bytes
    monkeypatch.setattr(searches, "solve", interrupted)
    for limit in (peak - 1, 1):
        seconds.clear()
        found = plan(graph, "x=4", None, limit, "tpu-v5p")
        assert len(seconds) == 1
        assert found.result.is_interrupted
        assert found.is_feasible == (found.peak_bytes <= limit)


def test_a_small_result_keeps_no_gap_from_the_next_large_temporary() -> None:
    small_result = (1, 9, 1)
    assert beside_results([(0, 1, 100), small_result, (2, 3, 100)], 9) == (
        1,
        [(0, 1, 100), (2, 3, 100)],
    )


def test_a_temporary_reuses_the_memory_of_a_result_that_is_made_later() -> None:
    result = (5, 9, 100)
    assert beside_results([result, (0, 3, 80), (1, 4, 90)], 9) == (100, [(0, 3, 80)])
    assert beside_results([result, (0, 6, 80)], 9) == (100, [(0, 6, 80)])
