"""Between tensor distributions and shardings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from autoshard.errors import ShardingError
from autoshard.loops import (
    Distribution,
    distribution_to_sharding,
    holdings,
    parse_distribution,
    sharding_to_distribution,
)
from autoshard.loops.holdings import grid_points
from autoshard.sharding import (
    Mesh,
    format_sharding,
    parse_mesh,
    parse_sharding,
    shard_slices,
)
from tests.loops.distributions import distributions

CUBE = parse_mesh('<["a"=2, "b"=2, "c"=2]>')


@pytest.mark.parametrize(
    ("text", "sharding"),
    [
        ("T xy -> xy* M", '<@mesh, [{"a"}, {"b"}]>'),
        ("T xy -> y*x M", '<@mesh, [{"c"}, {"a"}]>'),
        ("T xy -> xy*, **x M", '<@mesh, [{"a", "c"}, {"b"}]>'),
        ("T x -> *** M", "<@mesh, [{}]>"),
    ],
)
def test_a_distribution_and_a_sharding_say_the_same(text: str, sharding: str) -> None:
    value = parse_distribution(text)
    assert format_sharding(distribution_to_sharding(value, CUBE)) == sharding
    assert sharding_to_distribution(parse_sharding(sharding), CUBE) == value


@given(distributions(is_sayable=True))
def test_both_put_the_same_pieces_on_the_same_devices(value: Distribution) -> None:
    names = "abc"[: value.machine_rank]
    mesh = parse_mesh("<[" + ", ".join(f'"{name}"=2' for name in names) + "]>")
    shape, grid = (8,) * value.rank, (2,) * value.machine_rank
    sharding = distribution_to_sharding(value, mesh)
    slices = shard_slices(sharding, mesh, shape)
    held = holdings(value, shape, grid)
    for number, processor in enumerate(grid_points(grid)):
        box = held[processor]
        assert box is not None
        for dim, indices in enumerate(box):
            expected = np.arange(8)[slices[number][dim]]
            assert list(indices) == list(expected)


@given(distributions(is_sayable=True))
def test_a_sharding_comes_back_from_its_distribution(value: Distribution) -> None:
    names = "abc"[: value.machine_rank]
    mesh = parse_mesh("<[" + ", ".join(f'"{name}"=2' for name in names) + "]>")
    sharding = distribution_to_sharding(value, mesh)
    assert distribution_to_sharding(sharding_to_distribution(sharding, mesh), mesh) == sharding


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "T xy -> xy0 M",
            'a sharding cannot fix a coordinate: only devices at 0 of axis "c" would hold the'
            " tensor\n"
            "  where: T xy -> xy0 M\n"
            "  fix: write * to hold it everywhere, or spread it along that axis with spread_faces",
        ),
        (
            "T xy -> xy%* M",
            'a sharding cannot deal out dimension y in turns along axis "b": its pieces are runs of'
            " neighbours\n"
            "  where: T xy -> xy%* M\n"
            "  fix: write y without %, and reorder the dimension beforehand",
        ),
        (
            "T xy -> xy M",
            "the mesh has 3 axes and the distribution 2 entries\n"
            "  where: T xy -> xy M\n"
            "  fix: give one entry for each axis of the mesh; * where all hold the same",
        ),
    ],
)
def test_what_a_sharding_cannot_say_is_refused(text: str, message: str) -> None:
    with pytest.raises(ShardingError) as caught:
        distribution_to_sharding(parse_distribution(text), CUBE)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "mesh", "message"),
    [
        (
            '<@mesh, [{"a":(1)2}]>',
            parse_mesh('<["a"=4]>'),
            'a distribution cannot name "a":(1)2, which is part of an axis\n'
            '  where: <@mesh, [{"a":(1)2}]>\n'
            "  fix: refine the mesh so that the part is an axis of its own: refine_mesh does",
        ),
        (
            '<@mesh, [{}], unreduced={"a"}>',
            CUBE,
            'a distribution cannot say that sums along "a" are still to be taken\n'
            '  where: <@mesh, [{}], unreduced={"a"}>\n'
            "  fix: reduce the value first",
        ),
        (
            '<@mesh, [{"a", ?}]>',
            CUBE,
            "a distribution cannot leave dimension 0 open\n"
            '  where: <@mesh, [{"a", ?}]>\n'
            "  fix: close it: Sharding.closed does",
        ),
    ],
)
def test_what_a_distribution_cannot_say_is_refused(text: str, mesh: Mesh, message: str) -> None:
    with pytest.raises(ShardingError) as caught:
        sharding_to_distribution(parse_sharding(text), mesh)
    assert str(caught.value) == message
