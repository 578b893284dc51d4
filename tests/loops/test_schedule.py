"""Operations on schedules: what they do to the loops, and what they refuse."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import ScheduleError
from autoshard.loops import Schedule, schedule

MATMUL = "A(i,j) += B(i,k) * C(k,j)"


def matmul() -> Schedule:
    return schedule(MATMUL, i=8, j=8, k=8)


def spread() -> Schedule:
    return matmul().distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 4))


def names(nest: Schedule) -> list[str]:
    return [loop.variable for loop in nest.loops]


def test_a_statement_begins_as_its_plain_loops() -> None:
    assert [(loop.variable, loop.extent) for loop in matmul().loops] == [
        ("i", 8),
        ("j", 8),
        ("k", 8),
    ]


def test_distribute_puts_the_parts_over_the_grid_outermost() -> None:
    loops = spread().loops
    assert [(x.variable, x.extent, x.grid_dim) for x in loops] == [
        ("io", 2, 0),
        ("jo", 4, 1),
        ("ii", 4, None),
        ("ji", 2, None),
        ("k", 8, None),
    ]


def test_divide_says_how_many_parts_and_split_how_large() -> None:
    divided = matmul().divide("k", "ko", "ki", 2)
    assert (divided.extent("ko"), divided.extent("ki")) == (2, 4)
    parted = matmul().split("k", "ko", "ki", 2)
    assert (parted.extent("ko"), parted.extent("ki")) == (4, 2)


def test_reorder_fills_the_places_of_the_loops_it_names() -> None:
    assert names(spread().reorder("k", "ji")) == ["io", "jo", "ii", "k", "ji"]


def test_rotate_takes_the_place_of_its_loop() -> None:
    nest = spread().divide("k", "ko", "ki", 2).reorder("ko", "ii", "ji", "ki")
    rotated = nest.rotate("ko", ("io", "jo"), "kos")
    assert names(rotated) == ["io", "jo", "kos", "ii", "ji", "ki"]
    at = {"io": 1, "jo": 2, "kos": 1, "ki": 3}
    assert rotated.value("k", at) == ((1 + 1 + 2) % 2) * 4 + 3


def test_a_mirrored_rotation_runs_backwards_in_its_second_half() -> None:
    nest = schedule(MATMUL, i=16, j=4, k=4).distribute(("j",), ("jo",), ("ji",), (4,))
    nest = nest.divide("i", "io", "ii", 4).divide("ii", "ih", "il", 2)
    nest = nest.reorder("io", "ih", "ji", "il").rotate("io", ("jo",), "ios", mirrored="ih")
    turns = [[nest.value("io", {"jo": 1, "ios": t, "ih": h}) for t in range(4)] for h in (0, 1)]
    assert turns == [[1, 2, 3, 0], [1, 0, 3, 2]]


def test_a_schedule_is_a_value() -> None:
    nest = matmul()
    other = nest.divide("k", "ko", "ki", 2)
    assert names(nest) == ["i", "j", "k"]
    assert other == matmul().divide("k", "ko", "ki", 2)
    assert other != nest


@st.composite
def reshaped(draw: st.DrawFn) -> Schedule:
    """A matrix product after a few legal operations, whatever they are."""
    nest = matmul()
    if draw(st.booleans()):
        nest = spread()
    for number in range(draw(st.integers(0, 4))):
        loops = [x for x in nest.time_loops if x.extent > 1]
        if not loops:
            break
        loop = draw(st.sampled_from(loops))
        kind = draw(st.sampled_from(["divide", "split", "reorder", "rotate"]))
        new = (f"{loop.variable}o{number}", f"{loop.variable}i{number}")
        if kind == "divide":
            nest = nest.divide(loop.variable, *new, 2)
        elif kind == "split":
            nest = nest.split(loop.variable, *new, 2)
        elif kind == "rotate":
            around = names(nest)[: names(nest).index(loop.variable)]
            if around:
                nest = nest.rotate(loop.variable, (draw(st.sampled_from(around)),), new[0])
        else:
            order = draw(st.permutations([x.variable for x in nest.time_loops]))
            with contextlib.suppress(ScheduleError):
                nest = nest.reorder(*order)
    return nest


@given(reshaped())
def test_no_operation_changes_which_products_are_added(nest: Schedule) -> None:
    ranges = [np.arange(loop.extent) for loop in nest.loops]
    grids = np.meshgrid(*ranges, indexing="ij")
    at = {loop.variable: grid for loop, grid in zip(nest.loops, grids, strict=True)}
    i, j, k = (np.asarray(nest.value(name, at)).ravel() for name in "ijk")
    assert sorted((i * 8 + j) * 8 + k) == list(range(8**3))


REFUSED: list[tuple[Callable[[], object], str]] = [
    (
        lambda: matmul().divide("x", "xo", "xi", 2),
        "there is no loop x\n  where: divide(x, xo, xi, 2)\n  fix: the loops are: i, j, k",
    ),
    (
        lambda: spread().divide("i", "a", "b", 2),
        "i is no loop any more: it was cut into io and ii\n"
        "  where: divide(i, a, b, 2)\n"
        "  fix: use io or ii",
    ),
    (
        lambda: spread().rotate("k", ("io",), "ks").divide("k", "a", "b", 2),
        "k is no loop any more: it was rotated into ks\n  where: divide(k, a, b, 2)\n  fix: use ks",
    ),
    (
        lambda: matmul().divide("k", "ko", "ki", 3),
        "loop k has 8 turns, which 3 parts do not divide\n"
        "  where: divide(k, ko, ki, 3)\n"
        "  fix: pad it to 9, or use a divisor of 8",
    ),
    (
        lambda: matmul().split("k", "ko", "ki", 5),
        "loop k has 8 turns, which 5 turns at a time do not divide\n"
        "  where: split(k, ko, ki, 5)\n"
        "  fix: pad it to 10, or use a divisor of 8",
    ),
    (
        lambda: matmul().divide("k", "i", "ki", 2),
        "'i' is taken\n  where: divide(k, i, ki, 2)\n  fix: choose a new name for each new loop",
    ),
    (
        lambda: spread().divide("io", "a", "b", 2),
        "loop io runs over dimension 0 of the grid, not over time\n"
        "  where: divide(io, a, b, 2)\n"
        "  fix: use a loop that each processor runs by itself",
    ),
    (
        lambda: spread().distribute(("k",), ("ko",), ("ki",), (2,)),
        "the schedule is distributed already\n"
        "  where: distribute(k)\n"
        "  fix: name all loops to distribute in one call",
    ),
    (
        lambda: matmul().distribute(("i",), ("io",), ("ii",), (2, 2)),
        "distribute has 1 targets, 1 outer and 1 inner names for a grid of 2 dimensions\n"
        "  where: distribute(i)\n"
        "  fix: give one of each for every dimension of the grid",
    ),
    (
        lambda: spread().reorder("k", "io", "jo"),
        "loop k would stand outside io, which runs over the grid\n"
        "  where: reorder(k, io, jo)\n"
        "  fix: keep the loops over the grid outermost: each processor runs its own time",
    ),
    (
        lambda: spread().rotate("k", ("ii",), "ks").reorder("ks", "ii", "ji"),
        "loop ks would stand outside ii, by which it is rotated\n"
        "  where: reorder(ks, ii, ji)\n"
        "  fix: keep ks inside ii",
    ),
    (
        lambda: spread().reorder("k", "k"),
        "a loop is named twice\n  where: reorder(k, k)\n  fix: name each loop once",
    ),
    (
        lambda: spread().communicate("A", "io"),
        "loop io does not enclose the work of one processor: jo is spread over the grid inside it\n"
        "  where: communicate(A, io)\n"
        "  fix: communicate at jo, the last loop over the grid, or further in",
    ),
    (
        lambda: spread().communicate("D", "jo"),
        "the statement has no tensor D; its tensors are: A, B, C\n"
        "  where: A(i,j) += B(i,k) * C(k,j)\n"
        "  fix: use one of them",
    ),
    (
        lambda: spread().communicate("A", "jo").communicate("A", "k"),
        "tensor A is communicated at jo already\n"
        "  where: communicate(A, k)\n"
        "  fix: say once for each tensor where it is communicated",
    ),
    (
        lambda: spread().communicate("B", "k").divide("k", "ko", "ki", 2),
        "tensor B is communicated at k, which would be cut\n"
        "  where: divide(k, ko, ki, 2)\n"
        "  fix: cut loops first and communicate afterwards",
    ),
    (
        lambda: spread().rotate("io", ("jo",), "ios"),
        "loop io runs over dimension 0 of the grid, not over time\n"
        "  where: rotate(io, {jo}, ios)\n"
        "  fix: use a loop that each processor runs by itself",
    ),
    (
        lambda: spread().rotate("ii", ("k",), "iis"),
        "loop k is not around ii, so its value is not known there\n"
        "  where: rotate(ii, {k}, iis)\n"
        "  fix: reorder ii to the inside of k first",
    ),
    (
        lambda: spread().rotate("nothing", ("io",), "s"),
        "there is no loop nothing\n"
        "  where: rotate(nothing, {io}, s)\n"
        "  fix: the loops are: io, jo, ii, ji, k",
    ),
    (
        lambda: spread().rotate("k", (), "ks"),
        "nothing to rotate by\n  where: rotate(k, {}, ks)\n  fix: name at least one loop around it",
    ),
    (
        lambda: spread().rotate("k", ("io",), "ks", mirrored="ji"),
        "loops ji and k are cut from different variables\n"
        "  where: rotate(k, {io}, ks)\n"
        "  fix: mirror by a loop that is cut from the same variable",
    ),
    (
        lambda: spread().rotate("k", ("io",), "ks", mirrored="ii"),
        "loop ii has 4 turns, and a mirrored rotation needs two\n"
        "  where: rotate(k, {io}, ks)\n"
        "  fix: divide a loop into 2 parts and name the outer one ii",
    ),
    (
        lambda: schedule(MATMUL, i=8, j=8),
        "variable k has no range\n"
        "  where: A(i,j) += B(i,k) * C(k,j)\n"
        "  fix: give it, as in schedule(..., k=8)",
    ),
    (
        lambda: schedule(MATMUL, i=8, j=8, k=8, q=1),
        "the statement has no variable q\n"
        "  where: A(i,j) += B(i,k) * C(k,j)\n"
        "  fix: its variables are: i, j, k",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[m.split("\n")[0] for _, m in REFUSED])
def test_what_is_not_legal_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        make()
    assert str(caught.value) == message
