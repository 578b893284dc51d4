"""Meshes at given places, laid out by search, and groups that lie in no regular pattern."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models import (
    AlphaBetaModel,
    AxisPart,
    CostModelError,
    GroupDim,
    LinkDim,
    get_hardware,
    group_dims,
    place_mesh,
)
from cost_models.links import AxisLink, DimPart, LinkKind, group_dim
from cost_models.routes import scattered_group

V5E = get_hardware("tpu-v5e")


def dims_of(*sizes: tuple[LinkKind, int]) -> tuple[LinkDim, ...]:
    return tuple(LinkDim(i, kind, size, 1e9, 1e-6) for i, (kind, size) in enumerate(sizes))


def all_places(dims: tuple[LinkDim, ...]) -> np.ndarray:
    return np.array(list(itertools.product(*(range(dim.size) for dim in dims))))


@pytest.mark.parametrize("mesh", [(16,), (4, 4), (2, 8), (2, 2, 4), (8, 2)])
def test_given_the_places_of_jaxs_order_the_axes_are_those_of_jaxs_order(
    mesh: tuple[int, ...],
) -> None:
    ours = place_mesh(V5E, mesh)
    given_back = place_mesh(V5E, mesh, places=ours.device_places())
    assert [link.group for link in given_back.axes] == [link.group for link in ours.axes]


def test_places_may_say_that_the_axes_change_places() -> None:
    turned = np.array([(y, x) for x in range(4) for y in range(8)])
    layout = place_mesh(V5E, (4, 8), places=turned)
    assert str(layout) == "(4, 8): y[4], x[8]"


def test_a_slice_in_front_of_the_places_is_the_network() -> None:
    places = [(s, x, y) for x in range(4) for s in range(2) for y in range(4)]
    layout = place_mesh(V5E, (4, 2, 4), places=places)
    assert str(layout) == "(4, 2, 4): x[4], network[2], y[4]"


def test_coordinates_need_not_start_at_zero() -> None:
    places = [(x, y) for x in range(4, 8) for y in range(12, 16)]
    assert str(place_mesh(V5E, (4, 4), places=places)) == "(4, 4): x[4], y[4]"


def test_a_snake_through_the_slice_is_the_slice() -> None:
    snake = [(x, y if x % 2 == 0 else 3 - y) for x in range(4) for y in range(4)]
    layout = place_mesh(V5E, (16,), places=snake)
    assert str(layout) == "(16,): x[4] y[4]"


def test_neighbours_across_a_diagonal_are_scattered() -> None:
    layout = place_mesh(V5E, (2, 2), places=[(0, 0), (0, 1), (1, 1), (1, 0)])
    assert [str(link) for link in layout.axes] == ["scattered", "y[2]"]
    (found,) = layout.axes[0].group
    assert found.size == 2
    assert found.latency_seconds == pytest.approx(2e-6)
    # Each of the four directed ways round the square carries one device's shard.
    assert found.gather_bytes_per_second == pytest.approx(45e9)


@pytest.mark.parametrize(
    ("places", "what"),
    [
        ([(0, 0)] * 3, "the places have shape (3, 2); expected (4, 2), or one column more"),
        ([(0,)] * 4, "the places have shape (4, 1); expected (4, 2), or one column more"),
        ([(0.5, 0)] * 4, "the places are of type float64; expected whole numbers"),
        ([(0, 0), (0, 1), (1, 0), (1, 0)], "4 devices do not fill 1 grid(s) of (2, 2) once each"),
        ([(0, 0), (0, 1), (1, 0), (2, 1)], "4 devices do not fill 1 grid(s) of (3, 2) once each"),
    ],
)
def test_places_that_are_no_grid_of_devices_are_refused(places: list[object], what: str) -> None:
    with pytest.raises(CostModelError) as caught:
        place_mesh(V5E, (4,), places=places)  # type: ignore[arg-type]
    assert caught.value.what.startswith(what)
    assert caught.value.fix


def test_places_go_with_nothing_else() -> None:
    with pytest.raises(CostModelError, match="places are given together with a slice shape"):
        place_mesh(V5E, (4,), slice_shape=(2, 2), places=[(0, 0), (0, 1), (1, 0), (1, 1)])


# --- search ------------------------------------------------------------------------------------


def test_search_gives_the_busy_axis_the_fast_links() -> None:
    shape = (8, 16)  # x is open, y closes into a ring
    first = place_mesh(V5E, (16, 8), slice_shape=shape, traffic=(1.0, 0.0))
    assert first.axes[0].bandwidth_bytes_per_second >= 90e9
    sliced = place_mesh(V5E, (2, 2, 16), slice_shape=(4, 8), num_slices=2, traffic=(9.0, 0.0, 1.0))
    assert str(sliced.axes[1]) == "network[2]"


@given(
    axes=st.sampled_from([(4, 4), (2, 8), (2, 2, 4), (16,)]),
    slices=st.sampled_from([1, 2]),
    amounts=st.lists(st.floats(0, 10), min_size=3, max_size=3),
)
def test_search_is_never_worse_than_jaxs_order(
    axes: tuple[int, ...], slices: int, amounts: list[float]
) -> None:
    mesh = (slices * axes[0], *axes[1:])
    traffic = tuple(amounts[: len(mesh)])

    def gather_seconds(layout_traffic: tuple[float, ...] | None) -> float:
        layout = place_mesh(
            V5E, mesh, slice_shape=(4, 4), num_slices=slices, traffic=layout_traffic
        )
        return sum(
            amount * (1 - 1 / link.size) / link.bandwidth_bytes_per_second
            for amount, link in zip(traffic, layout.axes, strict=True)
        )

    assert gather_seconds(traffic) <= gather_seconds(None) * (1 + 1e-9)


@given(
    mesh=st.sampled_from([(4, 16), (2, 2, 16), (8, 8), (64,), (4, 4, 4)]),
    amounts=st.lists(st.floats(0, 10), min_size=3, max_size=3),
)
def test_a_layout_found_by_search_has_every_device_once_where_its_axes_say(
    mesh: tuple[int, ...], amounts: list[float]
) -> None:
    layout = place_mesh(V5E, mesh, slice_shape=(8, 8), traffic=tuple(amounts[: len(mesh)]))
    places = layout.device_places()
    assert len(np.unique(places, axis=0)) == 64
    back = place_mesh(V5E, mesh, places=places)
    assert [link.group for link in back.axes] == [link.group for link in layout.axes]


@pytest.mark.parametrize("traffic", [(1.0,), (1.0, -1.0), (1.0, math.nan)])
def test_traffic_is_an_amount_for_each_axis(traffic: tuple[float, ...]) -> None:
    with pytest.raises(CostModelError) as caught:
        place_mesh(V5E, (4, 4), traffic=traffic)
    assert "is not an amount from 0 up for each of the 2 mesh axes" in caught.value.what


def test_the_model_takes_traffic_by_name() -> None:
    shape = (8, 16)
    model = AlphaBetaModel(V5E, {"x": 16, "y": 8}, slice_shape=shape, traffic={"x": 1e9})
    seconds = model.all_gather_seconds(1e9, (AxisPart("x", 1, 16),))
    assert seconds < 1e9 / 80e9
    with pytest.raises(CostModelError) as caught:
        AlphaBetaModel(V5E, {"x": 16, "y": 8}, slice_shape=shape, traffic={"z": 1e9})
    assert caught.value.what == "traffic is given for axes that the mesh has not: z"


# --- routing -----------------------------------------------------------------------------------


def grid_group(dim: LinkDim, size: int, pre_size: int) -> tuple[GroupDim, np.ndarray, np.ndarray]:
    """A regular group on one dimension: by formula, and the members to route."""
    places = all_places((dim,))
    members = np.arange(dim.size).reshape(pre_size, size, -1).transpose(0, 2, 1)
    return group_dim(dim, size, pre_size), places, members.reshape(-1, size)


@given(
    kind=st.sampled_from(("ring", "line", "switch", "network")),
    sizes=st.tuples(st.integers(1, 3), st.integers(2, 7), st.integers(1, 3)),
)
def test_routing_finds_the_all_to_all_of_the_formula(
    kind: LinkKind, sizes: tuple[int, int, int]
) -> None:
    pre_size, size, _ = sizes
    if kind == "ring" and math.prod(sizes) <= 2:
        return
    (dim,) = dims_of((kind, math.prod(sizes)))
    formula, places, members = grid_group(dim, size, pre_size)
    routed = scattered_group((dim,), places, members)
    assert routed.exchange_seconds_per_byte == pytest.approx(formula.exchange_seconds_per_byte)


@pytest.mark.parametrize("kind", ["ring", "switch", "network"])
@pytest.mark.parametrize("size", [3, 4, 8])
def test_routing_finds_the_all_gather_of_a_whole_ring_or_switch(kind: LinkKind, size: int) -> None:
    (dim,) = dims_of((kind, size))
    formula, places, members = grid_group(dim, size, 1)
    routed = scattered_group((dim,), places, members)
    assert routed.gather_bytes_per_second == pytest.approx(formula.gather_bytes_per_second)


@given(seed=st.integers(0, 1000), size=st.sampled_from([2, 4, 8, 16]))
def test_no_routing_beats_the_links_of_a_device(seed: int, size: int) -> None:
    dims = dims_of(("ring", 4), ("line", 4))
    members = np.random.default_rng(seed).permutation(16).reshape(-1, size)
    routed = scattered_group(dims, all_places(dims), members)
    assert routed.gather_bytes_per_second <= 4e9
    assert routed.exchange_seconds_per_byte >= (1 - 1 / size) / 4e9 * (1 - 1e-9)
    assert routed.permute_seconds_per_byte >= 1 / 4e9


@given(data=st.data())
def test_parts_of_axes_cost_the_same_by_places_and_by_dimensions(data: st.DataObject) -> None:
    mesh = data.draw(st.sampled_from([(8, 8), (4, 16), (64,), (2, 4, 8)]))
    layout = place_mesh(V5E, mesh, slice_shape=(8, 8))
    assert layout.places is None
    placed = place_mesh(V5E, mesh, places=layout.device_places())
    parts = []
    for axis, size in enumerate(mesh):
        low, high = sorted(data.draw(st.tuples(*[st.integers(0, size.bit_length() - 1)] * 2)))
        parts.append((axis, 2**low, 2 ** (high - low)))
    by_dims = layout.group(tuple(parts))
    by_places = placed.group(tuple(parts))
    if all(dim.kind != "scattered" for dim in by_places):
        assert by_places == by_dims


def test_an_axis_without_places_of_its_own_is_refused() -> None:
    with pytest.raises(CostModelError, match="an axis crosses nodes unevenly"):
        place_mesh(get_hardware("h100"), (3, 4)).device_places()


def test_an_axis_part_is_printed_with_what_lies_outside() -> None:
    dim = LinkDim(0, "line", 8, 1e9, 1e-6, name="x")
    link = AxisLink(2, (DimPart(dim, 2, 2),))
    assert str(link) == "x[(2)2 of 8]"
    assert group_dims([(link, 1, 2)])[0].size == 2
