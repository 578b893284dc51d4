"""The collectives of a schedule, counted without running it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from autoshard.errors import ScheduleError
from autoshard.loops import (
    Message,
    Placed,
    all_gather_matmul,
    cannon,
    cosma,
    johnson,
    matmul_reduce_scatter,
    messages,
    placed,
    pumma,
    schedule,
    solomonik,
    summa,
    unroll,
)

LIBRARY = [
    summa(16, 16, 16, (2, 4)),
    summa(16, 32, 16, (2, 4), panel=8),
    summa(16, 32, 16, (4, 4), panel=2, is_contiguous=True),
    pumma(16, 32, 16, (2, 4)),
    pumma(16, 32, 16, (4, 4)),
    cannon(16, 32, 64, (4, 4)),
    johnson(16, 32, 16, (2, 4, 2)),
    solomonik(16, 32, 16, (4, 4, 2)),
    cosma(16, 32, 16, (2, 2, 2), panel=4),
    all_gather_matmul(16, 16, 32, 4, both_ways=True),
    matmul_reduce_scatter(16, 16, 32, 4, both_ways=True),
]


def test_summa_in_panels_gathers_one_panel_of_each_operand_in_every_step() -> None:
    assert messages(summa(16, 16, 16, (2, 2), panel=4)) == (
        Message("B", "all-gather", (1,), 16, Fraction(16), 4, True),
        Message("C", "all-gather", (0,), 16, Fraction(16), 4, True),
    )


def test_cannon_sends_a_block_of_each_operand_to_a_neighbour_in_every_step() -> None:
    found = messages(cannon(8, 8, 8, (4, 4)))
    passed = [message for message in found if message.count == 3]
    assert passed == [
        Message("B", "collective-permute", (1,), 4, Fraction(4), 3, True),
        Message("C", "collective-permute", (0,), 4, Fraction(4), 3, True),
    ]


def test_what_is_summed_over_the_grid_is_scattered_or_reduced() -> None:
    (*_, last) = messages(johnson(8, 8, 8, (2, 2, 2)).spread())
    assert last == Message("A", "reduce-scatter", (2,), 16, Fraction(8), 1, False)
    nest = schedule("a() += B(i) * C(i)", i=8).distribute(("i",), ("io",), ("ii",), (4,))
    made = placed(
        nest.communicate(("a", "B", "C"), "io"), a="a -> * M", B="B i -> i M", C="C i -> i M"
    )
    assert messages(made) == (Message("a", "all-reduce", (0,), 1, Fraction(3, 2), 1, False),)


@pytest.mark.parametrize("made", LIBRARY, ids=lambda made: f"{made.grid}")
def test_messages_bring_as_many_words_as_the_unrolled_steps_move(made: Placed) -> None:
    made = made.spread()
    words = sum(message.received * message.count for message in messages(made))
    assert float(words) == unroll(made).words_per_processor()


def test_a_tensor_on_a_face_has_to_be_spread_first() -> None:
    with pytest.raises(ScheduleError) as caught:
        messages(johnson(8, 8, 8, (2, 2, 2)))
    assert str(caught.value) == (
        "B lives on a face of the grid, and an array has a piece on every device\n"
        "  where: B ik -> i0k M\n"
        "  fix: spread it behind the face: spread_faces does"
    )
