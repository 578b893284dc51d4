"""What the library refuses, and COSMA's choice of a grid."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autoshard.errors import AutoshardError, ScheduleError
from autoshard.loops import (
    all_gather_matmul,
    cannon,
    cosma,
    cosma_strategy,
    johnson,
    placed,
    pumma,
    schedule,
    simulate,
    solomonik,
    summa,
)

REFUSED: list[tuple[Callable[[], object], str]] = [
    (
        lambda: cannon(8, 8, 8, (2, 4)),
        "cannon passes blocks round rows and columns in step, and the grid is 2 x 4\n"
        "  where: cannon\n"
        "  fix: use a square grid; summa takes any, pumma one whose sides divide",
    ),
    (
        lambda: cannon(8, 8, 9, (2, 2)),
        "loop k has 9 turns, which 2 parts do not divide\n"
        "  where: divide(k, ko, ki, 2)\n"
        "  fix: pad it to 10, or use a divisor of 9",
    ),
    (
        lambda: summa(9, 8, 8, (2, 2)),
        "loop i has 9 turns, which 2 parts do not divide\n"
        "  where: divide(i, io, ii, 2)\n"
        "  fix: pad it to 10, or use a divisor of 9",
    ),
    (
        lambda: summa(8, 8, 9, (2, 2)),
        "dimension k has size 9, which 2 does not divide\n"
        "  where: B ik -> ik M\n"
        "  fix: pad dimension k to 10, or cut it less",
    ),
    (
        lambda: summa(8, 8, 8, (2, 2), panel=3),
        "a panel of 3 does not divide the 8 values of k on a processor evenly over 2 pieces\n"
        "  where: panel=3\n"
        "  fix: use a multiple of 2 that divides 8",
    ),
    (
        lambda: summa(8, 8, 8, (2, 2, 2)),
        "summa runs on a grid of 2 dimensions, found 3\n"
        "  where: grid 2 x 2 x 2\n"
        "  fix: give 2 sizes",
    ),
    (
        lambda: pumma(12, 12, 12, (2, 3)),
        "pumma passes blocks of 1/2 of k, which do not fit the pieces of 1/3\n"
        "  where: grid 2 x 3\n"
        "  fix: use a grid of which one side divides the other, or summa",
    ),
    (
        lambda: johnson(8, 8, 8, (2, 2)),
        "johnson runs on a grid of 3 dimensions, found 2\n  where: grid 2 x 2\n  fix: give 3 sizes",
    ),
    (
        lambda: solomonik(8, 8, 8, (2, 2, 4)),
        "solomonik shares the 2 steps of a square grid among its layers, and the grid is"
        " 2 x 2 x 4\n"
        "  where: solomonik\n"
        "  fix: use a grid g x g x c with c a divisor of g",
    ),
    (
        lambda: cosma(7, 8, 8, (2, 2, 2)),
        "loop i has 7 turns, which 2 parts do not divide\n"
        "  where: divide(i, io, ii, 2)\n"
        "  fix: pad it to 8, or use a divisor of 7",
    ),
    (
        lambda: all_gather_matmul(6, 8, 8, 4),
        "loop i has 6 turns, which 4 parts do not divide\n"
        "  where: divide(i, io, ii, 4)\n"
        "  fix: pad it to 8, or use a divisor of 6",
    ),
    (
        lambda: placed(schedule("A(i) += B(i)", i=4), A="A i -> i M", B="B i -> i M"),
        "the schedule is not distributed over a grid\n"
        "  where: A(i) += B(i)\n"
        "  fix: call distribute first",
    ),
    (
        lambda: placed(
            schedule("A(i) += B(i)", i=4).distribute(("i",), ("io",), ("ii",), (2,)),
            A="A i -> i M",
        ),
        "tensor B has no home\n  where: A(i) += B(i)\n  fix: place it, as in B='B i -> ...'",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[m.split("\n")[0] for _, m in REFUSED])
def test_what_does_not_divide_or_fit_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(AutoshardError) as caught:
        make()
    assert str(caught.value) == message


def test_cosma_takes_a_cube_for_a_cube_and_a_line_for_a_line() -> None:
    assert cosma_strategy(64, 64, 64, 8, 10**6).grid == (2, 2, 2)
    assert cosma_strategy(16, 16, 4096, 8, 10**6).grid == (1, 1, 8)
    assert cosma_strategy(4096, 16, 16, 8, 10**6).grid == (8, 1, 1)


def test_cosma_splits_what_is_largest_first_and_takes_steps_last() -> None:
    strategy = cosma_strategy(64, 64, 64, 16, 2000)
    assert str(strategy) == "pm2,pn2,pk2,pn2,sk4"
    assert (strategy.grid, strategy.panel) == ((2, 4, 2), 8)


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.tuples(*[st.sampled_from([16, 32, 64])] * 3),
    num=st.sampled_from([4, 8]),
    share=st.floats(0.0, 1.0),
)
def test_cosma_stays_within_the_memory_it_was_given(
    sizes: tuple[int, int, int], num: int, share: float
) -> None:
    m, n, k = sizes
    home = (m * n + m * k + k * n) // num
    memory = int(home * (1.2 + share))
    try:
        strategy = cosma_strategy(m, n, k, num, memory)
    except ScheduleError:
        assume(False)
    draw = np.random.default_rng(3)
    one, other = draw.normal(size=(m, k)), draw.normal(size=(k, n))
    ran = simulate(strategy.placed(), one, other)
    np.testing.assert_allclose(ran.value, one @ other, rtol=1e-12, atol=1e-12)
    assert ran.words_per_processor == strategy.words
    assert home + ran.most_peak_words == strategy.held <= memory


def test_less_memory_never_moves_fewer_words() -> None:
    words = [cosma_strategy(64, 64, 64, 16, memory).words for memory in (1300, 1600, 2000, 9000)]
    assert words == sorted(words, reverse=True)


def test_a_memory_that_holds_nothing_is_refused_with_what_would_do() -> None:
    with pytest.raises(ScheduleError) as caught:
        cosma_strategy(64, 64, 64, 8, 100)
    assert caught.value.what == "100 words do not hold the tensors and one panel of each"
    assert caught.value.where == "64 x 64 by 64 x 64 on 8 processors"
    least = int(caught.value.fix.split()[3])
    assert cosma_strategy(64, 64, 64, 8, least).held == least
    with pytest.raises(ScheduleError, match="do not hold"):
        cosma_strategy(64, 64, 64, 8, least - 1)
