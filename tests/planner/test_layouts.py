"""The planner's short form of a sharding."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import ShardingError
from autoshard.layouts import Layout, MeshParts, part_orders, refines
from autoshard.sharding import AxisRef, Mesh, parse_sharding, verify_sharding
from tests.planner.graphs import parts_of


def test_every_axis_is_one_part_unless_it_is_split() -> None:
    parts = parts_of("x=8,y=2", x=(4, 2))
    assert parts.axes == ("x", "x", "y")
    assert parts.sizes == (4, 2, 2)
    assert parts.pre_sizes == (1, 4, 1)
    assert parts.parts_by_axis == {"x": (0, 1), "y": (2,)}


def test_an_axis_of_size_1_has_no_part() -> None:
    assert parts_of("one=1,x=2").axes == ("x",)


@pytest.mark.parametrize(
    ("chosen", "refs"),
    [
        ((), ()),
        ((2,), (AxisRef("y"),)),
        ((0, 1), (AxisRef("x"),)),
        ((1, 0), (AxisRef("x", 4, 2), AxisRef("x", 1, 4))),
        ((0,), (AxisRef("x", 1, 4),)),
        ((1,), (AxisRef("x", 4, 2),)),
        ((0, 2, 1), (AxisRef("x", 1, 4), AxisRef("y"), AxisRef("x", 4, 2))),
        ((2, 0, 1), (AxisRef("y"), AxisRef("x"))),
    ],
)
def test_neighbouring_parts_of_one_axis_are_said_as_one_reference(
    chosen: tuple[int, ...], refs: tuple[AxisRef, ...]
) -> None:
    assert parts_of("x=8,y=2", x=(4, 2)).refs(chosen) == refs


def test_a_middle_run_of_three_parts_is_one_sub_axis() -> None:
    parts = parts_of("x=16", x=(2, 4, 2))
    assert parts.refs((1, 2)) == (AxisRef("x", 2, 8),)
    assert parts.refs((0, 1)) == (AxisRef("x", 1, 8),)
    assert parts.parts_of(AxisRef("x", 2, 8)) == (1, 2)


def test_a_reference_that_cuts_through_a_part_is_refused() -> None:
    with pytest.raises(ShardingError) as caught:
        parts_of("x=8", x=(4, 2)).parts_of(AxisRef("x", 1, 2))
    assert str(caught.value) == (
        'sub-axis "x":(1)2 cuts through a part of the axis\n'
        "  where: axis x planned in parts (0, 1)\n"
        "  fix: use one splitting of the axis throughout the program"
    )


def test_the_local_shape_of_an_uneven_dimension_is_rounded_up() -> None:
    assert parts_of("x=4").local_shape(((0,), ()), (30, 5)) == (8, 5)


@pytest.mark.parametrize(
    ("finer", "coarser", "expected"),
    [
        (((0, 1), ()), ((0,), ()), True),
        (((0,), (1,)), ((0,), ()), True),
        (((0,), ()), ((0,), ()), True),
        (((1, 0), ()), ((0,), ()), False),
        (((0,), ()), ((0, 1), ()), False),
    ],
)
def test_refining_only_adds_cuts_at_the_minor_end(
    finer: Layout, coarser: Layout, expected: bool
) -> None:
    assert refines(finer, coarser) is expected


def test_two_axes_cut_a_dimension_in_both_orders() -> None:
    assert part_orders(parts_of("x=2,y=4"), frozenset({0, 1})) == ((0, 1), (1, 0))


def test_of_three_axes_each_may_be_the_minor_one() -> None:
    orders = part_orders(parts_of("x=2,y=2,z=2"), frozenset({0, 1, 2}))
    assert orders == ((0, 1, 2), (1, 2, 0), (0, 2, 1))


def test_parts_of_one_axis_stay_together_in_their_order() -> None:
    orders = part_orders(parts_of("x=8,y=2", x=(4, 2)), frozenset({0, 1, 2}))
    assert orders == ((0, 1, 2), (2, 0, 1))


MESHES = [
    parts_of("x=2,y=4"),
    parts_of("x=8,y=2", x=(4, 2)),
    parts_of("x=16,y=3", x=(2, 4, 2)),
    parts_of("a=2,b=2,c=2,d=2"),
]


@st.composite
def meshes_and_layouts(draw: st.DrawFn) -> tuple[MeshParts, Layout]:
    parts = draw(st.sampled_from(MESHES))
    order = draw(st.permutations(range(len(parts.sizes))))
    rank = draw(st.integers(1, 3))
    dims: list[tuple[int, ...]] = [()] * rank
    for part in order:
        dim = draw(st.integers(-1, rank - 1))
        if dim >= 0:
            dims[dim] = (*dims[dim], part)
    return parts, tuple(dims)


@given(meshes_and_layouts())
def test_a_layout_comes_back_from_the_sharding_it_is_said_as(
    given_layout: tuple[MeshParts, Layout],
) -> None:
    parts, layout = given_layout
    assert parts.to_layout(parts.to_sharding(layout)) == layout


@given(meshes_and_layouts())
def test_a_layout_is_said_as_a_sharding_that_fits_the_mesh(
    given_layout: tuple[MeshParts, Layout],
) -> None:
    parts, layout = given_layout
    shape = tuple(parts.num_shards(dim) for dim in layout)
    assert list(verify_sharding(parts.to_sharding(layout), parts.mesh, shape)) == []


@given(meshes_and_layouts())
def test_all_devices_together_hold_the_whole_tensor(
    given_layout: tuple[MeshParts, Layout],
) -> None:
    parts, layout = given_layout
    shape = tuple(3 * parts.num_shards(dim) for dim in layout)
    pieces = parts.num_pieces(layout)
    assert prod(parts.local_shape(layout, shape)) * pieces == prod(shape)


def test_open_dimensions_and_priorities_are_dropped() -> None:
    sharding = parse_sharding('<@mesh, [{"x", ?}p1, {?}]>')
    assert parts_of("x=2").to_layout(sharding) == ((0,), ())


def test_a_mesh_without_axes_cuts_nothing() -> None:
    parts = MeshParts.of(Mesh())
    assert parts.sizes == ()
    assert parts.to_layout(parts.to_sharding(((), ()))) == ((), ())
