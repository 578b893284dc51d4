"""Shardings go to JAX and come back the same; what JAX cannot say is refused."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autoshard.apply.named_shardings import JaxMesh, flat_named_shardings, sharding_to_spec
from autoshard.errors import InputError, ShardingError
from autoshard.sharding import (
    AxisRef,
    DimSharding,
    Sharding,
    canonicalize,
    format_sharding,
    parse_sharding,
    shard_slices,
)

AUTO = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((2, 4), ("x", "y"))
ABSTRACT = AbstractMesh((2, 4), ("x", "y"))
OPEN = PartitionSpec.UNCONSTRAINED


@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT, ABSTRACT], ids=["auto", "explicit", "abstract"])
@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ('<@mesh, [{"x"}, {}]>', PartitionSpec("x", None)),
        ('<@mesh, [{"y", "x"}, {?}]>', PartitionSpec(("y", "x"), OPEN)),
        ("<@mesh, []>", PartitionSpec()),
        ('<@mesh, [{}, {}], replicated={"x"}>', PartitionSpec(None, None)),
    ],
)
def test_whole_axes_keep_their_names(mesh: Any, text: str, spec: PartitionSpec) -> None:
    named = JaxMesh(mesh).named_sharding(parse_sharding(text))
    assert named.spec == spec
    assert dict(named.mesh.shape) == {"x": 2, "y": 4}
    assert set(named.mesh.axis_types) == {AxisType.Auto}


@pytest.mark.parametrize("mesh", [AUTO, ABSTRACT], ids=["auto", "abstract"])
def test_a_sub_axis_becomes_an_axis_of_a_finer_mesh(mesh: Any) -> None:
    jax_mesh = JaxMesh(mesh)
    named = jax_mesh.named_sharding(parse_sharding('<@mesh, [{"y":(2)2}, {"x"}]>'))
    assert named.spec == PartitionSpec("y_1", "x")
    assert dict(named.mesh.shape) == {"x": 2, "y_0": 2, "y_1": 2}
    again = jax_mesh.named_sharding(parse_sharding('<@mesh, [{"y":(1)2}]>'))
    assert again.mesh is named.mesh


PARTS = [AxisRef("x"), AxisRef("y"), AxisRef("y", 1, 2), AxisRef("y", 2, 2)]


@st.composite
def closed_shardings(draw: st.DrawFn) -> Sharding:
    axes = draw(st.permutations(PARTS))
    dims: list[list[AxisRef]] = [[] for _ in range(draw(st.integers(1, 3)))]
    used: list[AxisRef] = []
    for axis in axes:
        place = draw(st.integers(-1, len(dims) - 1))
        if place >= 0 and not any(axis.overlaps(other) for other in used):
            dims[place].append(axis)
            used.append(axis)
    sharding = Sharding(tuple(DimSharding(tuple(dim)) for dim in dims))
    return canonicalize(sharding, JaxMesh(ABSTRACT).base)


@given(closed_shardings())
def test_a_closed_sharding_comes_back_as_it_was(sharding: Sharding) -> None:
    jax_mesh = JaxMesh(AUTO)
    assert jax_mesh.read(jax_mesh.named_sharding(sharding), sharding.rank) == sharding


@given(closed_shardings())
def test_jax_and_we_put_the_same_piece_on_each_device(sharding: Sharding) -> None:
    jax_mesh = JaxMesh(AUTO)
    shape = (8,) * sharding.rank
    ours = shard_slices(sharding, jax_mesh.base, shape)
    theirs = jax_mesh.named_sharding(sharding).devices_indices_map(shape)
    for place, device in enumerate(AUTO.devices.flat):
        found = [piece.indices(8)[:2] for piece in theirs[device]]
        assert found == [(piece.start, piece.stop) for piece in ours[place]]


def test_arguments_that_are_left_open_get_no_sharding() -> None:
    shardings = [None, Sharding.fully_open(2), parse_sharding('<@mesh, [{"x"}]>')]
    found = flat_named_shardings(shardings, JaxMesh(AUTO), ["a", "b", "c"])
    assert found == (None, None, NamedSharding(AUTO, PartitionSpec("x")))


@pytest.mark.parametrize(
    ("text", "at_boundary", "message"),
    [
        (
            '<@mesh, [{"x", ?}]>',
            False,
            "dimension 0 is open and has axes, which JAX cannot say\n"
            '  where: value: <@mesh, [{"x", ?}]>\n'
            "  fix: close the dimension, or leave it open without axes",
        ),
        (
            '<@mesh, [{}, {?}], replicated={"x"}>',
            False,
            "dimension 1 is open beside replicated axes, which JAX cannot say\n"
            '  where: value: <@mesh, [{}, {?}], replicated={"x"}>\n'
            "  fix: close every dimension, or name no replicated axes",
        ),
        (
            '<@mesh, [{"y"}, {?}]>',
            True,
            "dimension 1 of an argument or result is open, which jax.jit refuses\n"
            '  where: value: <@mesh, [{"y"}, {?}]>\n'
            "  fix: close the dimension, or give no sharding at all",
        ),
        (
            '<@mesh, [{}], unreduced={"x"}>',
            False,
            "JAX takes unreduced axes on Explicit meshes only, and planning is for Auto ones\n"
            '  where: value: <@mesh, [{}], unreduced={"x"}>\n'
            "  fix: reduce the value, or leave the partial sum inside the program",
        ),
    ],
)
def test_what_jax_cannot_say_is_refused(text: str, at_boundary: bool, message: str) -> None:
    with pytest.raises(ShardingError) as caught:
        JaxMesh(AUTO).named_sharding(parse_sharding(text), at_boundary=at_boundary, where="value")
    assert str(caught.value) == message


def test_a_spec_alone_cannot_name_a_sub_axis() -> None:
    with pytest.raises(ShardingError) as caught:
        sharding_to_spec(parse_sharding('<@mesh, [{"y":(1)2}]>'))
    assert str(caught.value) == (
        'a PartitionSpec cannot name the sub-axis "y":(1)2\n'
        '  where: <@mesh, [{"y":(1)2}]>\n'
        "  fix: write it on a refined mesh: JaxMesh.named_sharding does"
    )


def test_a_sharding_on_a_mesh_of_other_devices_is_not_read() -> None:
    other = NamedSharding(AbstractMesh((2, 3), ("x", "z")), PartitionSpec("x"))
    with pytest.raises(InputError) as caught:
        JaxMesh(AUTO).read(other, 1, "value")
    assert str(caught.value) == (
        "the sharding is on mesh (x=2, z=3) of 6 devices, the plan is for mesh (x=2, y=4) of 8\n"
        "  where: value\n"
        "  fix: use meshes over the same devices"
    )


@pytest.mark.parametrize(
    ("sizes", "names", "expected"),
    [
        ((4, 2), ("x", "y"), '<@mesh, [{"x", "y":(1)2}]>'),
        ((8,), ("x",), '<@mesh, [{"x", "y"}]>'),
        ((2, 2, 2), ("y", "x", "z"), '<@mesh, [{"y":(1)2}]>'),
    ],
)
def test_a_sharding_on_another_mesh_is_read_as_one_on_this(
    sizes: tuple[int, ...], names: tuple[str, ...], expected: str
) -> None:
    other = NamedSharding(AbstractMesh(sizes, names), PartitionSpec("x"))
    assert format_sharding(JaxMesh(AUTO).read(other, 1, "value")) == expected


SWAPPED = '<mesh<["p"=2, "q"=4], device_ids=[0, 1, 2, 3, 4, 5, 7, 6]>, [{"q"}, {"p"}]>'


def test_a_sharding_on_another_mesh_is_written_in_the_order_of_this() -> None:
    written = JaxMesh(AUTO).named_sharding(parse_sharding(SWAPPED))
    theirs = np.array(jax.devices())[[0, 1, 2, 3, 4, 5, 7, 6]].reshape(2, 4)
    expected = NamedSharding(jax.sharding.Mesh(theirs, ("p", "q")), PartitionSpec("q", "p"))
    assert written.devices_indices_map((8, 8)) == expected.devices_indices_map((8, 8))
    assert list(written.mesh.devices.flat) == list(AUTO.devices.flat)


def test_a_sub_axis_of_another_mesh_is_written_on_a_refinement_of_it() -> None:
    text = SWAPPED.replace('"q"}', '"q":(2)2}')
    written = JaxMesh(AUTO).named_sharding(parse_sharding(text))
    assert dict(written.mesh.shape) == {"p": 2, "q_0": 2, "q_1": 2}
    assert written.spec == PartitionSpec("q_1", "p")


def test_meshes_with_the_devices_in_another_order_are_known() -> None:
    devices = np.array(jax.devices())
    mesh = JaxMesh(AUTO)
    assert mesh.has_another_order(jax.sharding.Mesh(devices[::-1], ("r",)))
    assert not mesh.has_another_order(jax.sharding.Mesh(devices, ("r",)))
    assert not mesh.has_another_order(jax.sharding.Mesh(devices[:4], ("r",)))
