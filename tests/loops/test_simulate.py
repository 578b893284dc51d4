"""Schedules run step by step in NumPy, on a grid with a store for every processor."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from autoshard.errors import ScheduleError
from autoshard.loops import (
    Placed,
    Schedule,
    all_gather_matmul,
    cannon,
    cosma,
    johnson,
    matmul_reduce_scatter,
    placed,
    pumma,
    schedule,
    simulate,
    solomonik,
    summa,
    unroll,
)
from autoshard.loops.closed_forms import (
    Volume,
    all_gather_matmul_volume,
    cannon_volume,
    cosma_volume,
    johnson_volume,
    matmul_reduce_scatter_volume,
    pumma_volume,
    solomonik_volume,
    summa_volume,
)
from autoshard.loops.unroll import Bring

SIZES = [(16, 16, 16), (8, 32, 16), (32, 16, 64)]
PLANE = [(2, 2), (2, 4), (4, 2), (4, 4)]


def random_arrays(made: Placed) -> list[NDArray[np.float64]]:
    draw = np.random.default_rng(7)
    operands = made.schedule.statement.operands
    return [draw.normal(size=made.shape(access.tensor)) for access in operands]


def check(made: Placed, volume: Volume | None = None) -> None:
    """The result is that of `einsum`, and words moved and held are those of the formulas."""
    arrays = random_arrays(made)
    ran = simulate(made, *arrays)
    expected = np.einsum(made.schedule.statement.einsum_text(), *arrays)
    np.testing.assert_allclose(ran.value, expected, rtol=1e-12, atol=1e-12)
    if volume is not None:
        received = tuple(sum(ran.words_received[tensor].values()) for tensor in "ABC")
        assert received == tuple(words * made.num_processors for words in volume.received)
        assert ran.most_peak_words == volume.held


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("grid", PLANE)
@pytest.mark.parametrize("panel", [None, 4, 8, 16])
def test_summa_moves_and_holds_what_the_formula_says(
    sizes: tuple[int, int, int], grid: tuple[int, int], panel: int | None
) -> None:
    check(summa(*sizes, grid, panel=panel), summa_volume(*sizes, grid, panel))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("grid", PLANE)
def test_summa_by_neighbouring_values_moves_the_same(
    sizes: tuple[int, int, int], grid: tuple[int, int]
) -> None:
    made = summa(*sizes, grid, panel=2, is_contiguous=True)
    check(made, summa_volume(*sizes, grid, 2))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("grid", PLANE)
def test_pumma_moves_and_holds_what_the_formula_says(
    sizes: tuple[int, int, int], grid: tuple[int, int]
) -> None:
    check(pumma(*sizes, grid), pumma_volume(*sizes, grid))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (4, 4)])
def test_cannon_moves_and_holds_what_the_formula_says(
    sizes: tuple[int, int, int], grid: tuple[int, int]
) -> None:
    check(cannon(*sizes, grid), cannon_volume(*sizes, grid))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("grid", [(2, 2, 2), (2, 4, 2), (1, 2, 4)])
def test_johnson_moves_and_holds_what_the_formula_says(
    sizes: tuple[int, int, int], grid: tuple[int, int, int]
) -> None:
    check(johnson(*sizes, grid), johnson_volume(*sizes, grid))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("grid", [(2, 2, 1), (2, 2, 2), (4, 4, 2), (4, 4, 4)])
def test_solomonik_moves_and_holds_what_the_formula_says(
    sizes: tuple[int, int, int], grid: tuple[int, int, int]
) -> None:
    sizes = (16, 32, 16) if grid == (4, 4, 4) else sizes
    check(solomonik(*sizes, grid), solomonik_volume(*sizes, grid))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("grid", [(2, 2, 2), (2, 4, 2), (1, 2, 4)])
@pytest.mark.parametrize("panel", [None, 4])
def test_cosma_moves_and_holds_what_the_formula_says(
    sizes: tuple[int, int, int], grid: tuple[int, int, int], panel: int | None
) -> None:
    check(cosma(*sizes, grid, panel=panel), cosma_volume(*sizes, grid, panel))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("both_ways", [False, True])
def test_rings_move_and_hold_what_the_formulas_say(
    sizes: tuple[int, int, int], both_ways: bool
) -> None:
    made = all_gather_matmul(*sizes, 4, both_ways=both_ways)
    check(made, all_gather_matmul_volume(*sizes, 4))
    made = matmul_reduce_scatter(*sizes, 4, both_ways=both_ways)
    check(made, matmul_reduce_scatter_volume(*sizes, 4))


def test_more_layers_move_fewer_words() -> None:
    # 16 processors a side and more of them: words fall with the square root of c.
    words = [float(solomonik_volume(64, 64, 64, (16, 16, c)).words) for c in (1, 2, 4)]
    assert words == sorted(words, reverse=True)


def test_spreading_the_faces_moves_the_same_words_and_shares_them_evenly() -> None:
    made = johnson(16, 16, 16, (2, 2, 2))
    spread = made.spread()
    check(spread, johnson_volume(16, 16, 16, (2, 2, 2)))
    totals = [
        sum(counts[processor] for counts in unroll(spread).words_received().values())
        for processor in itertools.product((0, 1), repeat=3)
    ]
    assert len(set(totals)) == 1


def test_a_rotated_piece_comes_from_the_neighbour() -> None:
    steps = unroll(cannon(8, 8, 8, (4, 4))).steps
    passed = [step for step in steps if isinstance(step, Bring) and step.passed_on]
    assert len(passed) == 2 * 3
    offsets = {
        (step.tensor, tuple((s - t) % 4 for s, t in zip(m.source, m.target, strict=True)))
        for step in passed
        for m in step.moves
    }
    assert offsets == {("B", (0, 1)), ("C", (1, 0))}


def test_communicating_further_in_moves_more_often_and_holds_less() -> None:
    nest = schedule("A(i,j) += B(i,k) * C(k,j)", i=8, j=8, k=8)
    nest = nest.distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 2))
    homes = {"A": "A ij -> ij M", "B": "B ik -> ik M", "C": "C kj -> kj M"}
    outer = placed(nest.communicate(("A", "B", "C"), "jo"), **homes)
    naive = placed(nest, **homes)
    runs = [simulate(made, *random_arrays(made)) for made in (outer, naive)]
    assert [run.words_per_processor for run in runs] == [32, 128]
    assert [run.most_peak_words for run in runs] == [64, 3]
    check(naive)


EINSUMS = [
    (
        "MTTKRP",
        schedule("A(i,l) += B(i,j,k) * C(j,l) * D(k,l)", i=4, j=4, k=4, l=3)
        .distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 2))
        .communicate(("A", "B", "C", "D"), "jo"),
        {"A": "A il -> i* M", "B": "B ijk -> ij M", "C": "C jl -> *j M", "D": "D kl -> ** M"},
    ),
    (
        "TTM",
        schedule("A(i,j,l) += B(i,j,k) * C(k,l)", i=4, j=4, k=4, l=4)
        .distribute(("i", "k"), ("io", "ko"), ("ii", "ki"), (2, 2))
        .communicate(("A", "B", "C"), "ko"),
        {"A": "A ijl -> ij M", "B": "B ijk -> ik M", "C": "C kl -> *k M"},
    ),
    (
        "batched matrix product",
        schedule("A(b,i,j) += B(b,i,k) * C(b,k,j)", b=4, i=4, j=4, k=4)
        .distribute(("b", "i"), ("bo", "io"), ("bi", "ii"), (2, 2))
        .communicate(("A", "B", "C"), "io"),
        {"A": "A bij -> bi M", "B": "B bik -> bi M", "C": "C bkj -> bj M"},
    ),
    (
        "inner product",
        schedule("a() += B(i,j) * C(i,j)", i=4, j=4)
        .distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 2))
        .communicate(("a", "B", "C"), "jo"),
        {"a": "a -> ** M", "B": "B ij -> ij M", "C": "C ij -> ji M"},
    ),
    (
        "dealt out in turns",
        schedule("A(i,j) += B(i,k) * C(k,j)", i=8, j=8, k=8)
        .distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 2))
        .split("k", "ko", "ki", 2)
        .reorder("ko", "ii", "ji", "ki")
        .communicate("A", "jo")
        .communicate(("B", "C"), "ko"),
        {"A": "A ij -> i%j M", "B": "B ik -> ik%[2] M", "C": "C kj -> k%j M"},
    ),
]


@pytest.mark.parametrize(
    ("nest", "homes"), [case[1:] for case in EINSUMS], ids=[case[0] for case in EINSUMS]
)
def test_other_statements_and_homes_run_as_well(nest: Schedule, homes: dict[str, str]) -> None:
    check(placed(nest, **homes))


HOMES = st.sampled_from(["ik", "ki", "i*", "*k", "0k", "i%k", "**", "10"])


@settings(max_examples=25, deadline=None)
@given(
    home=HOMES,
    parts=st.sampled_from([1, 2, 4]),
    at=st.sampled_from(["jo", "ko", "ki"]),
    over=st.sampled_from([(), ("io",), ("jo",), ("io", "jo")]),
)
def test_wherever_an_operand_lives_and_is_brought_the_product_is_right(
    home: str, parts: int, at: str, over: tuple[str, ...]
) -> None:
    nest = schedule("A(i,j) += B(i,k) * C(k,j)", i=4, j=4, k=4)
    nest = nest.distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 2))
    nest = nest.divide("k", "ko", "ki", parts).reorder("ko", "ii", "ji", "ki")
    if over:
        nest = nest.rotate("ko", over, "kos")
    at = "kos" if at == "ko" and over else at
    nest = nest.communicate("A", "jo").communicate("B", at)
    check(placed(nest, A="A ij -> ij M", B=f"B ik -> {home} M", C="C kj -> kj M"))


def test_arrays_of_another_shape_are_refused() -> None:
    with pytest.raises(ScheduleError) as caught:
        simulate(cannon(8, 8, 8, (2, 2)), np.zeros((8, 4)), np.zeros((8, 8)))
    assert str(caught.value) == (
        "B has shape [8, 4], and the schedule is for [8, 8]\n"
        "  where: A(i,j) += B(i,k) * C(k,j)\n"
        "  fix: make the schedule for these shapes"
    )
