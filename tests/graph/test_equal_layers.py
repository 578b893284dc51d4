"""Runs of equal equations, and which of their copies belong to one layer."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from autoshard.graph.equal_layers import KEPT, Run, equal_layers, find_runs

COLOURS = st.lists(st.integers(0, 3), max_size=6)


def stack(num_layers: int) -> tuple[list[int], list[list[int]]]:
    """Colours and reads of layers of two equations with a weight, forward and backward.

    Argument `-1 - i` is the weight of layer `i`; each layer back reads what the layer made.
    """
    colours = [9]
    reads: list[list[int]] = [[]]
    forward = []
    for layer in range(num_layers):
        before = len(colours) - 1
        colours += [1, 2]
        reads += [[before, -1 - layer], [before + 1, before]]
        forward.append(before + 1)
    colours.append(8)
    reads.append([len(colours) - 2])
    for layer in reversed(range(num_layers)):
        before = len(colours) - 1
        colours += [3, 4, 5]
        reads += [[before, forward[layer]], [before + 1, -1 - layer], [before + 1]]
    return colours, reads


def finest(colours: list[int], reads: list[list[int]]) -> list[Run]:
    return next(equal_layers(colours, reads), [])


def test_a_few_repeats_are_no_run() -> None:
    assert find_runs([1, 2] * (2 * KEPT + 1)) == []


def test_a_run_ends_where_its_colours_do() -> None:
    assert find_runs([7, *[1, 2, 3] * 6, 1, 5]) == [Run(1, 20, 3)]


def test_forward_and_backward_leave_out_the_same_layers() -> None:
    colours, reads = stack(8)
    forward, backward = sorted(finest(colours, reads), key=lambda run: run.start)
    weights = [
        {-1 - read for e in run.left_out for read in reads[e] if read < 0}
        for run in (forward, backward)
    ]
    assert weights[0] == weights[1] == set(range(1, 7))


def test_those_left_out_are_like_a_layer_that_is_at_no_end() -> None:
    last, first = Run(0, 12, 2, tuple(range(2, 8))), Run(0, 12, 2, tuple(range(4, 10)))
    assert [last.inner_copy(e) for e in last.left_out] == [8, 9] * 3
    assert [first.inner_copy(e) for e in first.left_out] == [2, 3] * 3


def test_layers_in_the_order_of_their_names_leave_out_the_same_ones() -> None:
    colours, reads = stack(12)
    by_name = sorted(range(12), key=str)  # 0, 1, 10, 11, 2
    colours += [7, 6, 6, 6] * 12
    for layer in by_name:
        before = len(reads)
        reads += [[-1 - layer], [before], [before + 1], [before + 2]]
    runs = finest(colours, reads)
    assert len(runs) == 3
    for run in runs:
        weights = {-1 - read for e in run.left_out for read in reads[e] if read < 0}
        assert weights == set(range(12)) - {0, 11, by_name[-1]}


def test_layers_that_are_little_of_a_program_stay() -> None:
    colours, reads = stack(8)
    others = range(100, 150)
    more = [*colours, *others]
    assert finest(colours, reads)
    assert finest(more, [*reads, *([] for _ in others)]) == []


def test_layers_that_nothing_joins_are_not_left_out_together() -> None:
    colours = [*[1, 2] * 12, *[3, 4] * 5]
    runs = finest(colours, [[] for _ in colours])
    assert [run.start for run in runs] == [0]


def test_layers_that_are_computed_again_two_at_once_are_taken_two_at_once() -> None:
    colours = [9]
    reads: list[list[int]] = [[]]
    for layer in range(16):
        colours += [1, 2]
        reads += [[len(reads) - 1, -1 - layer], [len(reads)]]
    for first in reversed(range(0, 16, 2)):
        colours.append(3)
        reads.append([len(reads) - 1, 2 * first, -1 - first, -2 - first])
    ways = list(equal_layers(colours, reads))
    assert [{run.period for run in runs} for runs in ways] == [{2}, {4, 1}]
    left_out = [
        {-1 - read for e in run.left_out for read in reads[e] if read < 0} for run in ways[1]
    ]
    assert left_out == [set(range(4, 14))] * 2


@given(before=COLOURS, layer=COLOURS.filter(bool), repeats=st.integers(1, 12), after=COLOURS)
def test_what_is_left_out_has_a_copy_that_stays(
    before: list[int], layer: list[int], repeats: int, after: list[int]
) -> None:
    colours = [*before, *layer * repeats, *after]
    chain = [[index - 1] if index else [] for index in range(len(colours))]
    runs = finest(colours, chain)
    left_out = {equation for run in runs for equation in run.left_out}
    for run in runs:
        assert all(run.start <= equation < run.stop for equation in run.left_out)
        for equation in run.left_out:
            copy = run.kept_copy(equation)
            assert copy < run.left_out[0]
            assert copy not in left_out
            assert colours[copy] == colours[equation]


@given(colours=st.lists(st.integers(0, 2), max_size=60))
def test_runs_repeat_and_do_not_overlap(colours: list[int]) -> None:
    runs = sorted(find_runs(colours), key=lambda run: run.start)
    for run in runs:
        own = colours[run.start : run.stop]
        assert own[run.period :] == own[: -run.period]
        assert len(own) >= (2 * KEPT + 2) * run.period
    assert all(one.stop <= other.start for one, other in pairwise(runs))
