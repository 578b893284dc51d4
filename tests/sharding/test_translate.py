"""Shardings of one mesh said in the axes of another mesh over the same devices."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import ShardingError
from autoshard.sharding import (
    AxisRef,
    DimSharding,
    Mesh,
    MeshAxis,
    Sharding,
    axes_cutting,
    check_sharding,
    digits,
    format_sharding,
    is_equivalent,
    parse_mesh,
    parse_mesh_sizes,
    parse_sharding,
    refine_mesh,
    refine_sharding,
    relative_mesh,
    translate_sharding,
)
from experiments.shardy_oracle.random_shardings import sound_sharding

NUM_DEVICES = 24


@pytest.mark.parametrize(
    ("mesh", "onto", "sharding", "expected"),
    [
        # The example of the documents: one order, other axes.
        ('<["x"=2, "y"=2, "z"=2]>', '<["a"=4, "b"=2]>', '[{"z"}]', '[{"b"}]'),
        ('<["x"=2, "y"=2, "z"=2]>', '<["a"=4, "b"=2]>', '[{"y"}]', '[{"a":(2)2}]'),
        ('<["x"=2, "y"=2, "z"=2]>', '<["a"=4, "b"=2]>', '[{"x", "y"}]', '[{"a"}]'),
        ('<["x"=2, "y"=2, "z"=2]>', '<["a"=4, "b"=2]>', '[{"y", "x"}]', '[{"a":(2)2, "a":(1)2}]'),
        # A coarser mesh, and one that is neither finer nor coarser.
        ('<["devices"=8]>', '<["x"=4, "y"=2]>', '[{"devices"}]', '[{"x", "y"}]'),
        ('<["devices"=8]>', '<["x"=4, "y"=2]>', '[{"devices":(1)4}]', '[{"x"}]'),
        ('<["devices"=12]>', '<["x"=3, "y"=4]>', '[{"devices":(1)6}]', '[{"x", "y":(1)2}]'),
        ('<["x"=4, "y"=6]>', '<["x"=6, "y"=4]>', '[{"y"}]', None),
        # A name stands for another axis on the other mesh.
        ('<["x"=2, "y"=4]>', '<["y"=2, "x"=4]>', '[{"x"}]', '[{"y"}]'),
        ('<["x"=4, "y"=2]>', '<["x"=2, "y"=4]>', '[{"x"}]', '[{"x", "y":(1)2}]'),
        # Device orders: transposed, reversed along an axis, and one that follows no axes.
        (
            '<["y"=2, "x"=4], device_ids=[0, 2, 4, 6, 1, 3, 5, 7]>',
            '<["a"=4, "b"=2]>',
            '[{"x"}]',
            '[{"a"}]',
        ),
        (
            '<["d"=8], device_ids=[0, 2, 4, 6, 1, 3, 5, 7]>',
            '<["a"=4, "b"=2]>',
            '[{"d"}]',
            '[{"b", "a"}]',
        ),
        (
            '<["a"=4, "b"=2], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>',
            '<["a"=4, "b"=2]>',
            '[{"b"}]',
            None,
        ),
        (
            '<["p"=4, "q"=2], device_ids=[0, 1, 2, 3, 4, 5, 7, 6]>',
            '<["a"=4, "b"=2]>',
            '[{"p"}]',
            '[{"a"}]',
        ),
        (
            '<["p"=4, "q"=2], device_ids=[0, 1, 2, 3, 4, 5, 7, 6]>',
            '<["a"=4, "b"=2]>',
            '[{"q"}]',
            None,
        ),
        # Another number of devices.
        ('<["x"=4]>', '<["x"=8]>', '[{"x"}]', None),
        # Ids may be any, as long as both meshes have them.
        (
            '<["x"=2, "y"=2], device_ids=[12, 10, 13, 11]>',
            '<["a"=2, "b"=2], device_ids=[12, 13, 10, 11]>',
            '[{"x"}]',
            '[{"b"}]',
        ),
    ],
)
def test_worked_examples(mesh: str, onto: str, sharding: str, expected: str | None) -> None:
    given_sharding = parse_sharding(f"<@mesh, {sharding}>")
    found = translate_sharding(given_sharding, parse_mesh(mesh), parse_mesh(onto))
    assert (found and format_sharding(found)) == (expected and f"<@mesh, {expected}>")


def test_open_dimensions_priorities_and_copies_are_kept() -> None:
    found = translate_sharding(
        parse_sharding('<@m, [{"z", ?}p3, {?}p1], replicated={"x", "y"}>'),
        parse_mesh_sizes("x=2,y=2,z=2"),
        parse_mesh_sizes("a=4,b=2"),
        mesh_name="plan",
    )
    assert found is not None
    assert format_sharding(found) == '<@plan, [{"b", ?}p3, {?}p1], replicated={"a"}>'


def test_copies_that_no_axes_say_close_every_dimension() -> None:
    found = translate_sharding(
        parse_sharding('<@m, [{"p", ?}, {?}], replicated={"q"}>'),
        parse_mesh('<["p"=4, "q"=2], device_ids=[0, 1, 2, 3, 4, 5, 7, 6]>'),
        parse_mesh_sizes("a=4,b=2"),
    )
    assert found is not None
    assert format_sharding(found) == '<@mesh, [{"a"}, {}]>'


def test_an_axis_that_the_mesh_lacks_is_named() -> None:
    with pytest.raises(ShardingError) as caught:
        translate_sharding(
            parse_sharding('<@m, [{"z"}]>'), parse_mesh_sizes("x=8"), parse_mesh_sizes("a=4,b=2")
        )
    assert str(caught.value) == (
        'the mesh has no axis "z"; its axes are: "x"\n'
        "  where: mesh (x=8)\n"
        "  fix: use one of its axes, or add this one to the mesh"
    )


def test_digits_count_along_axes_by_device_id() -> None:
    mesh = parse_mesh('<["x"=2, "y"=2], device_ids=[3, 1, 2, 0]>')
    assert digits((AxisRef("x"),), mesh).tolist() == [1, 0, 1, 0]
    assert digits((AxisRef("y"), AxisRef("x")), mesh).tolist() == [3, 2, 1, 0]
    assert digits((), mesh).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("pieces", "mesh", "expected"),
    [
        ((4, 2), "a=4,b=2", '[{"a"}, {"b"}]'),
        ((2, 4), "a=4,b=2", '[{"a":(1)2}, {"a":(2)2, "b"}]'),
        ((2, 4), "d=8", '[{"d":(1)2}, {"d":(2)4}]'),
        ((8, 1), "a=4,b=2", '[{"a", "b"}, {}]'),
        ((3, 4), "d=12", '[{"d":(1)3}, {"d":(3)4}]'),
        ((16,), "a=4,b=2", None),
        ((3,), "a=4,b=2", None),
    ],
)
def test_axes_for_a_number_of_pieces(
    pieces: tuple[int, ...], mesh: str, expected: str | None
) -> None:
    found = axes_cutting(pieces, parse_mesh_sizes(mesh))
    shown = found and format_sharding(Sharding(tuple(map(DimSharding, found))))
    assert shown == (expected and f"<@mesh, {expected}>")


def test_a_mesh_relative_to_another_numbers_devices_by_their_place_there() -> None:
    found = relative_mesh([MeshAxis("p", 4)], devices=[12, 10, 13, 11], order=[10, 11, 12, 13])
    assert found == Mesh((MeshAxis("p", 4),), (2, 0, 3, 1))
    assert relative_mesh([MeshAxis("p", 2)], [7, 5], [7, 5]).device_ids is None


@st.composite
def factorings(draw: st.DrawFn, number: int) -> list[int]:
    """Sizes above 1 whose product is `number`."""
    sizes: list[int] = []
    while number > 1:
        size = draw(st.sampled_from([d for d in range(number, 1, -1) if number % d == 0]))
        sizes.append(size)
        number //= size
    return sizes


@st.composite
def meshes(draw: st.DrawFn, prefix: str) -> Mesh:
    sizes = draw(factorings(NUM_DEVICES))
    axes = tuple(MeshAxis(f"{prefix}{i}", size) for i, size in enumerate(sizes))
    grid = np.arange(NUM_DEVICES).reshape(draw(factorings(NUM_DEVICES)))
    kind = draw(st.sampled_from(["same", "transposed", "swapped", "any"]))
    ids = grid.ravel().tolist()
    if kind == "transposed":
        ids = grid.transpose(draw(st.permutations(range(grid.ndim)))).ravel().tolist()
    elif kind == "swapped":
        ids[-2:] = reversed(ids[-2:])
    elif kind == "any":
        ids = list(draw(st.permutations(ids)))
    return Mesh(axes, tuple(ids))


@st.composite
def placed(draw: st.DrawFn) -> tuple[Sharding, Mesh, Mesh]:
    """A sharding, its mesh, and another mesh over the same devices."""
    mesh, onto = draw(meshes("x")), draw(meshes("y"))
    names = list(draw(st.permutations(mesh.axis_names)))
    dims: list[list[AxisRef]] = [[] for _ in range(draw(st.integers(1, 3)))]
    for name in names:
        dim = draw(st.integers(-1, len(dims) - 1))
        if dim >= 0:
            dims[dim].append(AxisRef(name))
    return Sharding(tuple(DimSharding(tuple(dim)) for dim in dims)), mesh, onto


@given(case=placed())
def test_what_is_found_puts_the_same_pieces_on_the_same_devices(
    case: tuple[Sharding, Mesh, Mesh],
) -> None:
    sharding, mesh, onto = case
    found = translate_sharding(sharding, mesh, onto)
    if found is not None:
        check_sharding(found, onto)
        assert is_equivalent(sharding, mesh, found, onto)


@given(case=placed())
def test_what_the_other_mesh_said_first_is_found_again(case: tuple[Sharding, Mesh, Mesh]) -> None:
    sharding, mesh, onto = case
    there = translate_sharding(sharding, mesh, onto)
    if there is not None:
        back = translate_sharding(there, onto, mesh)
        assert back is not None
        assert is_equivalent(sharding, mesh, back, mesh)


@given(seed=st.integers(0, 2**32), onto=meshes("y"), data=st.data())
def test_axes_split_renamed_and_put_in_another_order_are_always_found(
    seed: int, onto: Mesh, data: st.DataObject
) -> None:
    wanted = replace(sound_sharding(onto, 2, random.Random(seed)), replicated=(), unreduced=())
    refined, names = refine_mesh(onto, wanted.axis_refs())
    spelled = refine_sharding(wanted, names)
    order = data.draw(st.permutations(range(len(refined.axes))))
    grid = np.array(refined.device_order).reshape([axis.size for axis in refined.axes])
    mesh = Mesh(
        tuple(refined.axes[i] for i in order), tuple(grid.transpose(order).ravel().tolist())
    )
    found = translate_sharding(spelled, mesh, onto)
    assert found is not None
    assert is_equivalent(found, onto, wanted, onto)
    assert [dim.is_open for dim in found.dims] == [dim.is_open for dim in wanted.dims]


@given(sizes=factorings(NUM_DEVICES), data=st.data())
def test_two_meshes_in_one_order_say_each_others_whole_tensor_cuts(
    sizes: list[int], data: st.DataObject
) -> None:
    mesh = Mesh(tuple(MeshAxis(f"x{i}", size) for i, size in enumerate(sizes)))
    onto = Mesh((MeshAxis("d", NUM_DEVICES),))
    cut = data.draw(st.integers(0, len(sizes)))
    dims = (mesh.axis_names[:cut], mesh.axis_names[cut:])
    sharding = Sharding(tuple(DimSharding(tuple(map(AxisRef, names))) for names in dims))
    found = translate_sharding(sharding, mesh, onto)
    assert found is not None
    first = math.prod(sizes[:cut])
    expected = (AxisRef("d", 1, first), AxisRef("d", first, NUM_DEVICES // first))
    assert [dim.axes for dim in found.dims] == [
        () if ref.size == 1 else (ref.canonical(onto),) for ref in expected
    ]
