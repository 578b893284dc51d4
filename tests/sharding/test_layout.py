from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import ShardingError
from autoshard.sharding import (
    AxisRef,
    Mesh,
    MeshAxis,
    Sharding,
    device_to_shard,
    is_equivalent,
    local_shape,
    num_shards,
    padding,
    parse_axis_ref,
    parse_dim_sharding,
    parse_mesh,
    parse_mesh_sizes,
    parse_sharding,
    refine_mesh,
    refine_sharding,
    shard_slices,
    unused_axes,
    verify_sharding,
)
from experiments.shardy_oracle.random_shardings import sound_sharding

XYZ = parse_mesh_sizes("x=2,y=4,z=2")


def test_shards_of_a_dimension_are_the_product_of_its_axes() -> None:
    assert num_shards(parse_dim_sharding('{"x", "y":(2)2}'), XYZ) == 4
    assert num_shards(parse_dim_sharding("{?}"), XYZ) == 1


@pytest.mark.parametrize(
    ("mesh", "text", "shape", "local", "pad"),
    [
        ("x=2,y=4,z=2", '[{"x"}, {"z", "y"}]', (4, 8), (2, 1), (0, 0)),
        ("x=2,y=4,z=2", '[{"x"}, {?}], replicated={"y"}', (4, 8), (2, 8), (0, 0)),
        ("x=2,y=8,z=2", '[{"x"}, {"y":(2)2}]', (4, 8), (2, 4), (0, 0)),
        ("x=8,y=2,z=3", '[{"x"}, {"y"}, {"z"}]', (7, 3, 8), (1, 2, 3), (1, 1, 1)),
        ("x=24", '[{"x":(6)4}]', (6,), (2,), (2,)),
        ("x=4,y=4", '[{"x", "y"}]', (5,), (1,), (11,)),
        ("x=4", '[{"x"}]', (0,), (0,), (0,)),
    ],
)
def test_a_piece_is_the_dimension_over_its_shards_rounded_up(
    mesh: str, text: str, shape: tuple[int, ...], local: tuple[int, ...], pad: tuple[int, ...]
) -> None:
    sharding = parse_sharding(text)
    assert local_shape(sharding, parse_mesh_sizes(mesh), shape) == local
    assert padding(sharding, parse_mesh_sizes(mesh), shape) == pad


def test_one_device_holds_the_whole_tensor() -> None:
    one = Mesh((), (5,))
    assert local_shape(parse_sharding("[]"), one, (8, 3)) == (8, 3)
    assert padding(parse_sharding("[]"), one, (8, 3)) == (0, 0)
    assert device_to_shard(parse_sharding("[]"), one) == {5: ()}
    assert shard_slices(parse_sharding("[]"), one, (8, 3)) == {5: (slice(0, 8), slice(0, 3))}


def test_a_shape_of_another_rank_is_refused() -> None:
    with pytest.raises(ShardingError) as caught:
        local_shape(parse_sharding('[{"x"}]'), XYZ, (4, 8))
    assert str(caught.value) == (
        "the sharding has rank 1 and the tensor has rank 2\n"
        '  where: <@mesh, [{"x"}]> for shape [4, 8]\n'
        "  fix: give the sharding one {...} for each dimension"
    )


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ('[{"x"}, {"y"}]', [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ('[{"y"}, {"x"}]', [(0, 0), (1, 0), (0, 1), (1, 1)]),
        ('[{"x", "y"}, {}]', [(0, 0), (1, 0), (2, 0), (3, 0)]),
        ('[{"y", "x"}, {}]', [(0, 0), (2, 0), (1, 0), (3, 0)]),
        ('[{}, {"x"}]', [(0, 0), (0, 0), (0, 1), (0, 1)]),
    ],
)
def test_each_device_holds_the_piece_its_coordinates_spell(
    text: str, pieces: list[tuple[int, int]]
) -> None:
    mesh = parse_mesh_sizes("x=2,y=2")
    assert device_to_shard(parse_sharding(text), mesh) == dict(enumerate(pieces))


def test_device_ids_move_pieces_to_other_devices() -> None:
    mesh = parse_mesh('<["x"=2, "y"=2], device_ids=[3, 1, 2, 0]>')
    pieces = device_to_shard(parse_sharding('[{"x"}, {"y"}]'), mesh)
    assert list(pieces.items()) == [(0, (1, 1)), (1, (0, 1)), (2, (1, 0)), (3, (0, 0))]


def test_slices_leave_the_padding_out() -> None:
    slices = shard_slices(parse_sharding('[{"x"}]'), parse_mesh_sizes("x=4"), (5,))
    assert slices == {0: (slice(0, 2),), 1: (slice(2, 4),), 2: (slice(4, 5),), 3: (slice(5, 5),)}


@pytest.mark.parametrize(
    ("left_mesh", "left", "right_mesh", "right", "equivalent"),
    [
        (
            '<["devices"=8]>',
            '[{"devices":(1)4}, {"devices":(4)2}]',
            '<["x"=4, "y"=2]>',
            '[{"x"}, {"y"}]',
            True,
        ),
        ('<["devices"=8]>', '[{"devices":(1)4}]', '<["x"=4, "y"=2]>', '[{"x"}]', True),
        ('<["devices"=8]>', '[{"devices":(2)4}]', '<["x"=4, "y"=2]>', '[{"x"}]', False),
        ('<["a"=4, "b"=2]>', '[{"b"}]', '<["x"=2, "y"=2, "z"=2]>', '[{"z"}]', True),
        ('<["a"=4, "b"=2]>', '[{"a"}]', '<["x"=2, "y"=2, "z"=2]>', '[{"x", "y"}]', True),
        ('<["a"=4, "b"=2]>', '[{"a"}]', '<["x"=2, "y"=2, "z"=2]>', '[{"y", "x"}]', False),
        (
            '<["x"=2, "y"=2]>',
            '[{"x"}]',
            '<["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>',
            '[{"y"}]',
            True,
        ),
        (
            '<["x"=2, "y"=2]>',
            '[{"x"}]',
            '<["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>',
            '[{"x"}]',
            False,
        ),
        ('<["x"=2, "y"=2]>', '[{"x", ?}p2], replicated={"y"}', '<["x"=2, "y"=2]>', '[{"x"}]', True),
        ('<["x"=2, "y"=2]>', '[{"x"}], unreduced={"y"}', '<["x"=2, "y"=2]>', '[{"x"}]', False),
        (
            '<["x"=2, "y"=2]>',
            '[{}], unreduced={"x"}',
            '<["x"=2, "y"=2]>',
            '[{}], unreduced={"y"}',
            False,
        ),
        (
            '<["x"=2, "y"=2]>',
            '[{}], unreduced={"x"}',
            '<["d"=4]>',
            '[{}], unreduced={"d":(1)2}',
            True,
        ),
        ('<["x"=2, "o"=1]>', '[{"x"}], unreduced={"o"}', '<["x"=2, "o"=1]>', '[{"x", "o"}]', True),
        ('<["x"=2]>', "[{}]", '<["x"=4]>', "[{}]", False),
        ('<["x"=2]>', "[{}]", '<["x"=2]>', "[{}, {}]", False),
        ("<[], device_ids=[1]>", "[]", "<[], device_ids=[1]>", "[]", True),
        ("<[], device_ids=[1]>", "[]", "<[], device_ids=[0]>", "[]", False),
    ],
)
def test_shardings_are_equivalent_when_each_device_holds_the_same(
    left_mesh: str, left: str, right_mesh: str, right: str, equivalent: bool
) -> None:
    first = (parse_sharding(left), parse_mesh(left_mesh))
    second = (parse_sharding(right), parse_mesh(right_mesh))
    assert is_equivalent(*first, *second) is equivalent
    assert is_equivalent(*second, *first) is equivalent


def test_refining_names_a_sub_axis_and_keeps_the_devices() -> None:
    mesh = parse_mesh('<["x"=2, "y"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>')
    refined, names = refine_mesh(mesh, [AxisRef("y", 1, 2)])
    assert refined == Mesh(
        (MeshAxis("x", 2), MeshAxis("y_0", 2), MeshAxis("y_1", 2)), mesh.device_ids
    )
    assert names == {
        AxisRef("x"): ("x",),
        AxisRef("y"): ("y_0", "y_1"),
        AxisRef("y", 1, 2): ("y_0",),
    }


def test_refined_names_do_not_clash_with_those_there_are() -> None:
    mesh = parse_mesh_sizes("y=4,y_0=4,y__1=2")
    refined, names = refine_mesh(mesh, [AxisRef("y", 2, 2), AxisRef("y_0", 1, 2)])
    assert refined.axis_names == ("y___0", "y___1", "y_0_0", "y_0_1", "y__1")
    assert names[AxisRef("y", 2, 2)] == ("y___1",)


def test_refining_cuts_at_every_end() -> None:
    refined, names = refine_mesh(parse_mesh_sizes("y=8"), map(parse_axis_ref, ['"y":(2)2', '"y"']))
    assert refined.sizes == {"y_0": 2, "y_1": 2, "y_2": 2}
    assert names == {AxisRef("y"): ("y_0", "y_1", "y_2"), AxisRef("y", 2, 2): ("y_1",)}


def test_a_mesh_nobody_cuts_is_its_own_refinement() -> None:
    assert refine_mesh(XYZ, [AxisRef("x"), AxisRef("y", 1, 4)])[0] == XYZ


@pytest.mark.parametrize(
    ("axes", "what"),
    [
        (['"c":(1)4'], '"c":(1)4 ends at 4, which does not divide the axis size 6'),
        (
            ['"c":(1)2', '"c":(3)2'],
            'no splitting of an axis of size 6 holds all of "c":(1)2, "c":(3)2',
        ),
        (['"q"'], 'the mesh has no axis "q"; its axes are: "c"'),
    ],
)
def test_what_no_refinement_can_name_is_refused(axes: list[str], what: str) -> None:
    with pytest.raises(ShardingError) as caught:
        refine_mesh(parse_mesh_sizes("c=6"), map(parse_axis_ref, axes))
    assert caught.value.what == what


def test_an_axis_that_was_not_given_to_refine_mesh_has_no_name() -> None:
    _, names = refine_mesh(XYZ, [])
    with pytest.raises(ShardingError, match='"y":\\(1\\)2 has no axes in the refined mesh'):
        refine_sharding(parse_sharding('[{"y":(1)2}]'), names)


def test_unused_axes_are_what_is_left_of_the_mesh() -> None:
    used = map(parse_axis_ref, ['"y":(2)2', '"x"'])
    assert unused_axes(used, XYZ) == (AxisRef("y", 1, 2), AxisRef("z"))


MESHES = [
    parse_mesh_sizes("x=4,y=6,z=1"),
    Mesh((MeshAxis("y", 8), MeshAxis("x", 2)), tuple(reversed(range(16)))),
]


@given(st.randoms(use_true_random=False), st.sampled_from(MESHES), st.integers(0, 3))
def test_a_refined_sharding_is_the_same_layout_without_sub_axes(
    draw: random.Random, mesh: Mesh, rank: int
) -> None:
    sharding = sound_sharding(mesh, rank, draw)
    refined_mesh, names = refine_mesh(mesh, sharding.axis_refs())
    refined = refine_sharding(sharding, names, mesh_name="refined")
    assert all(axis.is_whole for axis in refined.axis_refs())
    assert verify_sharding(refined, refined_mesh) == []
    assert is_equivalent(sharding, mesh, refined, refined_mesh)


@given(st.randoms(use_true_random=False), st.sampled_from(MESHES), st.data())
def test_the_pieces_cover_the_tensor_evenly(
    draw: random.Random, mesh: Mesh, data: st.DataObject
) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 30), max_size=3)))
    sharding: Sharding = sound_sharding(mesh, len(shape), draw)
    pieces = device_to_shard(sharding, mesh)
    shards = math.prod(num_shards(dim, mesh) for dim in sharding.dims)
    assert len(set(pieces.values())) == shards
    copies = {piece: list(pieces.values()).count(piece) for piece in pieces.values()}
    assert set(copies.values()) == {mesh.num_devices // shards}
    slices = {
        tuple((part.start, part.stop) for part in held)
        for held in shard_slices(sharding, mesh, shape).values()
    }
    volume = sum(math.prod(stop - start for start, stop in held) for held in slices)
    assert volume == math.prod(shape)
