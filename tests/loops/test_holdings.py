"""The maps of a distribution: points to colours, colours to processors."""

from __future__ import annotations

import math

import pytest
from hypothesis import given

from autoshard.errors import ShardingError
from autoshard.loops import (
    Distribution,
    check_distribution,
    colours_to_processors,
    holdings,
    parse_distribution,
    points_to_colours,
    spread_faces,
    verify_distribution,
)
from autoshard.loops.holdings import Coordinates
from tests.loops.distributions import distributions

# Tensor shape, machine, notation; for each: how many hold something, and what each of them holds.
EXAMPLES = [
    ("T x -> x M", (100,), (10,), 10, (10,)),
    ("T xy -> x M", (100, 100), (10,), 10, (10, 100)),
    ("T xy -> y M", (100, 100), (10,), 10, (100, 10)),
    ("T xy -> xy M", (100, 100), (10, 10), 100, (10, 10)),
    ("T xy -> xy0 M", (100, 100), (10, 10, 10), 100, (10, 10)),
    ("T xy -> xy* M", (100, 100), (10, 10, 10), 1000, (10, 10)),
    ("T xyz -> xy M", (100, 100, 100), (10, 10), 100, (10, 10, 100)),
    # And in three dimensions.
    ("T xyz -> xyz M", (4, 4, 4), (2, 2, 2), 8, (2, 2, 2)),
    ("T xyz -> zx* M", (4, 4, 8), (2, 2, 2), 8, (2, 4, 4)),
    ("T xyz -> 1*x M", (4, 4, 4), (2, 2, 2), 4, (2, 4, 4)),
    ("T xy -> xy*, **x M", (8, 4), (2, 2, 2), 8, (2, 2)),
    ("T -> *0 M", (), (2, 2), 2, ()),
]


@pytest.mark.parametrize(("text", "shape", "grid", "num", "held"), EXAMPLES)
def test_each_holder_holds_its_share(
    text: str, shape: Coordinates, grid: Coordinates, num: int, held: Coordinates
) -> None:
    boxes = [b for b in holdings(parse_distribution(text), shape, grid).values() if b is not None]
    assert len(boxes) == num
    assert {tuple(len(indices) for indices in box) for box in boxes} == {held}


def test_the_maps_of_a_copied_matrix_are_these() -> None:
    copied = parse_distribution("T xy -> xy* M")
    points = points_to_colours(copied, (4, 4), (2, 2, 2))
    assert points == {(x, y): (x // 2, y // 2) for x in range(4) for y in range(4)}
    assert colours_to_processors(copied, (2, 2, 2)) == {
        (0, 0): ((0, 0, 0), (0, 0, 1)),
        (0, 1): ((0, 1, 0), (0, 1, 1)),
        (1, 0): ((1, 0, 0), (1, 0, 1)),
        (1, 1): ((1, 1, 0), (1, 1, 1)),
    }


def test_a_fixed_coordinate_takes_one_processor_of_each_line() -> None:
    on_face = parse_distribution("T xy -> x1y M")
    assert colours_to_processors(on_face, (2, 2, 2))[1, 0] == ((1, 1, 0),)
    assert holdings(on_face, (4, 4), (2, 2, 2))[1, 0, 0] is None


@pytest.mark.parametrize(
    ("text", "coordinates"),
    [
        ("T x -> x M", [0, 0, 0, 0, 1, 1, 1, 1]),
        ("T x -> x% M", [0, 1, 0, 1, 0, 1, 0, 1]),
        ("T x -> x%[2] M", [0, 0, 1, 1, 0, 0, 1, 1]),
    ],
)
def test_blocked_cyclic_and_block_cyclic_deal_out_differently(
    text: str, coordinates: list[int]
) -> None:
    points = points_to_colours(parse_distribution(text), (8,), (2,))
    assert [points[x,][0] for x in range(8)] == coordinates


@given(distributions())
def test_the_two_maps_say_together_who_holds_what(value: Distribution) -> None:
    shape, grid = (8,) * value.rank, (2,) * value.machine_rank
    held = holdings(value, shape, grid)
    processors = colours_to_processors(value, grid)
    for point, colour in points_to_colours(value, shape, grid).items():
        holders = [
            processor
            for processor, box in held.items()
            if box is not None and all(p in b for p, b in zip(point, box, strict=True))
        ]
        assert tuple(holders) == processors[colour]


@given(distributions())
def test_colours_share_the_tensor_evenly(value: Distribution) -> None:
    shape, grid = (8,) * value.rank, (2,) * value.machine_rank
    colours = list(points_to_colours(value, shape, grid).values())
    counts = {colours.count(colour) for colour in colours_to_processors(value, grid)}
    assert counts == {math.prod(shape) // len(colours_to_processors(value, grid))}


def test_what_shape_and_machine_do_not_admit_is_named_all_at_once() -> None:
    found = verify_distribution(parse_distribution("T xy -> xy3 M"), (6, 7), (4, 2, 2))
    assert [str(error) for error in found] == [
        "coordinate 3 is fixed on machine dimension 2, which has size 2\n"
        "  where: T xy -> xy3 M\n"
        "  fix: use a coordinate from 0 to 1",
        "dimension x has size 6, which 4 does not divide\n"
        "  where: T xy -> xy3 M\n"
        "  fix: pad dimension x to 8, or cut it less",
        "dimension y has size 7, which 2 does not divide\n"
        "  where: T xy -> xy3 M\n"
        "  fix: pad dimension y to 8, or cut it less",
    ]


def test_ranks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShardingError) as caught:
        check_distribution(parse_distribution("T xy -> xy M"), (4, 4, 4), (2, 2))
    assert str(caught.value) == (
        "the tensor has 3 dimensions and the distribution names 2\n"
        "  where: T xy -> xy M\n"
        "  fix: give one letter for each dimension of the tensor"
    )
    with pytest.raises(ShardingError) as caught:
        colours_to_processors(parse_distribution("T xy -> xy M"), (2, 2, 2))
    assert str(caught.value) == (
        "the machine has 3 dimensions and the distribution 2 entries\n"
        "  where: T xy -> xy M\n"
        "  fix: give one entry for each dimension of the machine; * where all hold the same"
    )


def test_a_face_is_spread_behind_itself() -> None:
    face = parse_distribution("T xy -> xy0 M")
    spread = spread_faces(face, (8, 8), (2, 2, 2))
    assert spread == parse_distribution("T xy -> xy*, **x M")
    before = holdings(face, (8, 8), (2, 2, 2))
    after = holdings(spread, (8, 8), (2, 2, 2))
    behind = [point for z in (0, 1) for point in (after[1, 0, z] or ())[0]]
    assert sorted(behind) == list((before[1, 0, 0] or ())[0])


def test_a_face_that_cannot_be_spread_is_refused() -> None:
    with pytest.raises(ShardingError) as caught:
        spread_faces(parse_distribution("T xy -> xy0 M"), (2, 2), (2, 2, 2))
    assert str(caught.value) == (
        "no dimension of T[2, 2] can be cut 2 times more\n"
        "  where: dimension 2 of the machine, where one face holds the tensor\n"
        "  fix: pad one dimension so that its pieces are a multiple of 2"
    )
