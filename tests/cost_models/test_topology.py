"""Mesh axes on physical links."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models import (
    CATALOG,
    CostModelError,
    Hardware,
    get_hardware,
    group_dims,
    layout_mesh,
    place_mesh,
)

Parts = list[tuple[str, int, int, int]]


def laid_out(
    name: str,
    axis_sizes: tuple[int, ...],
    *,
    slice_shape: tuple[int, ...] | None = None,
    num_slices: int | None = None,
) -> list[Parts]:
    """Per axis the (kind, dim size, pre_size, size) of the parts it takes."""
    links = layout_mesh(
        get_hardware(name), axis_sizes, slice_shape=slice_shape, num_slices=num_slices
    )
    return [
        [(part.dim.kind, part.dim.size, part.pre_size, part.size) for part in link.parts]
        for link in links
    ]


@pytest.mark.parametrize(
    ("name", "axis_sizes", "parts"),
    [
        ("tpu-v4", (2, 2), [[("line", 2, 1, 2)], [("line", 2, 1, 2)]]),
        ("tpu-v5e", (4, 8), [[("line", 4, 1, 4)], [("line", 8, 1, 8)]]),
        ("tpu-v5e", (8, 4), [[("line", 8, 1, 8)], [("line", 4, 1, 4)]]),
        ("tpu-v5e", (2, 4), [[], [("line", 2, 1, 2), ("line", 4, 2, 2)]]),  # round a ring
        ("tpu-v5e", (8,), [[("line", 2, 1, 2), ("line", 4, 1, 4)]]),
        ("tpu-v5e", (16, 16), [[("ring", 16, 1, 16)], [("ring", 16, 1, 16)]]),
        ("tpu-v5p", (4, 16), [[("ring", 4, 1, 4)], [("ring", 4, 1, 4), ("ring", 4, 1, 4)]]),
        ("tpu-v5p", (16, 16), [[("ring", 16, 1, 16)], [("ring", 4, 1, 4), ("ring", 4, 1, 4)]]),
        ("tpu7x", (4, 2), [[("line", 2, 1, 2), ("line", 2, 1, 2)], [("line", 2, 1, 2)]]),
        ("h100", (8, 8), [[("network", 8, 1, 8)], [("switch", 8, 1, 8)]]),
        ("h100", (16, 4), [[("network", 8, 1, 8), ("switch", 8, 1, 2)], [("switch", 8, 2, 4)]]),
        ("h100", (2, 4), [[("switch", 8, 1, 2)], [("switch", 8, 2, 4)]]),
        ("h100", (6,), [[("switch", 6, 1, 6)]]),
        ("cpu-host", (2, 2, 2), [[("switch", 8, p, 2)] for p in (1, 2, 4)]),
        ("h100", (1, 1), [[], []]),
        ("h100", (), []),
    ],
)
def test_axes_take_whole_dimensions_where_they_can(
    name: str, axis_sizes: tuple[int, ...], parts: list[Parts]
) -> None:
    assert laid_out(name, axis_sizes) == parts


def test_the_innermost_axis_gets_the_link_between_the_dies_of_a_chip() -> None:
    outer, inner = layout_mesh(get_hardware("tpu7x"), (4, 2))
    assert inner.bandwidth_bytes_per_second == pytest.approx(540e9)
    assert outer.bandwidth_bytes_per_second < inner.bandwidth_bytes_per_second


def test_axes_that_fit_no_dimension_share_one() -> None:
    assert laid_out("tpu-v5e", (2, 2, 4)) == [
        [("line", 4, 1, 2)],
        [("line", 4, 2, 2)],
        [("line", 4, 1, 4)],
    ]


def test_slices_are_the_outermost_part_of_the_mesh() -> None:
    assert laid_out("tpu-v5e", (2, 4, 4), num_slices=2) == [
        [("network", 2, 1, 2)],
        [("line", 4, 1, 4)],
        [("line", 4, 1, 4)],
    ]


def test_a_mesh_larger_than_a_slice_takes_several_slices() -> None:
    assert laid_out("tpu-v5e", (2, 256)) == [
        [("network", 2, 1, 2)],
        [("ring", 16, 1, 16), ("ring", 16, 1, 16)],
    ]


def test_a_given_slice_shape_is_kept() -> None:
    assert laid_out("tpu-v5p", (16, 16), slice_shape=(4, 8, 8)) == [
        [("ring", 4, 1, 2), ("ring", 8, 1, 8)],
        [("ring", 4, 2, 2), ("ring", 8, 1, 8)],
    ]


def test_a_count_no_slice_has_is_laid_on_a_part_of_one() -> None:
    assert laid_out("tpu-v5e", (6,)) == [[("line", 2, 1, 2), ("line", 3, 1, 3)]]


def test_an_axis_that_crosses_nodes_unevenly_is_laid_on_the_network() -> None:
    first, second = layout_mesh(get_hardware("h100"), (3, 4))
    assert (first.kind, second.kind) == ("network", "network")


def kinds_and_wraps(name: str, axis_sizes: tuple[int, ...]) -> list[tuple[str, bool]]:
    return [(link.kind, link.wrap) for link in layout_mesh(get_hardware(name), axis_sizes)]


def test_kinds_say_what_an_axis_is() -> None:
    assert kinds_and_wraps("tpu-v5e", (4, 4)) == [("line", False), ("line", False)]
    assert kinds_and_wraps("tpu-v5e", (2, 4)) == [("scattered", True), ("ring", True)]
    assert kinds_and_wraps("tpu-v5e", (8,)) == [("ring", True)]
    assert kinds_and_wraps("tpu-v5p", (4, 4, 4)) == [("ring", True)] * 3
    assert kinds_and_wraps("h100", (2, 8)) == [("network", True), ("switch", True)]


@pytest.mark.parametrize(
    ("name", "axis_sizes", "gigabytes_per_second"),
    [
        ("tpu-v5e", (4, 4), (45, 45)),  # open lines: an end has one link
        ("tpu-v5e", (16, 16), (90, 90)),  # rings: two links
        ("tpu-v5p", (4, 16), (180, 360)),  # one ring, two rings at once
        ("h100", (2, 8), (45, 369)),  # InfiniBand, NVLink
    ],
)
def test_bandwidth_is_what_a_device_receives_over_all_its_links_of_the_axis(
    name: str, axis_sizes: tuple[int, ...], gigabytes_per_second: tuple[float, ...]
) -> None:
    links = layout_mesh(get_hardware(name), axis_sizes)
    found = [link.bandwidth_bytes_per_second / 1e9 for link in links]
    assert found == pytest.approx(list(gigabytes_per_second))


def test_a_single_device_has_no_latency_and_no_bound() -> None:
    (link,) = layout_mesh(get_hardware("h100"), (1,))
    assert (link.latency_seconds, link.bandwidth_bytes_per_second) == (0.0, math.inf)


def test_an_inner_part_of_a_ring_is_a_line_of_neighbours() -> None:
    (axis, _) = layout_mesh(get_hardware("tpu-v5e"), (16, 16))
    (group,) = group_dims([(axis, 4, 4)])
    assert (group.kind, group.size, group.steps) == ("line", 4, 3)
    assert group.gather_bytes_per_second == pytest.approx(45e9)


def test_an_outer_part_of_a_ring_shares_it_with_the_groups_between() -> None:
    (axis, _) = layout_mesh(get_hardware("tpu-v5e"), (16, 16))
    (group,) = group_dims([(axis, 1, 4)])
    assert (group.kind, group.size, group.steps) == ("ring", 4, 8)
    assert group.gather_bytes_per_second == pytest.approx(90e9 / 4)


def test_the_parts_of_an_axis_together_are_the_axis() -> None:
    for link in layout_mesh(get_hardware("tpu-v5p"), (16, 16)):
        assert group_dims([(link, 1, 2), (link, 2, 8)]) == link.group


def test_a_part_that_cuts_a_dimension_unevenly_gets_the_slowest_link() -> None:
    (axis,) = layout_mesh(get_hardware("tpu-v5e"), (6,))  # a 2x3 grid
    (group,) = group_dims([(axis, 1, 3)])
    assert (group.kind, group.size) == ("line", 3)
    assert group.gather_bytes_per_second == pytest.approx(45e9 / 2)


@pytest.mark.parametrize(
    ("name", "axis_sizes", "slice_shape", "num_slices", "what"),
    [
        ("h100", (0, 2), None, None, "mesh axis 0 has size 0; expected a whole number from 1 up"),
        ("h100", (2, -1), None, None, "mesh axis 1 has size -1; expected a whole number from 1 up"),
        (
            "h100",
            (8,),
            (2, 4),
            None,
            "a slice shape, a number of slices, places or traffic are given for a machine that",
        ),
        ("cpu-host", (2048,), None, None, "the mesh needs 2 nodes or slices, but the machine has"),
        ("tpu-v5e", (8,), None, 3, "3 slices do not divide 8 devices"),
        ("tpu-v5e", (8,), (2, 2, 2), None, "slice shape (2, 2, 2) is not one of 2 sizes from 1 up"),
        ("tpu-v5e", (8,), (4, 4), None, "1 slice has 16 devices: shape 4x4"),
        ("tpu-v5e", (15,), (3, 5), None, "there is no slice of shape 3x5"),
        ("tpu-v5e", (17,), None, 1, "no slice of this family holds 17 chips in a grid"),
    ],
)
def test_what_the_machine_cannot_be_is_refused(
    name: str,
    axis_sizes: tuple[int, ...],
    slice_shape: tuple[int, ...] | None,
    num_slices: int | None,
    what: str,
) -> None:
    with pytest.raises(CostModelError) as caught:
        laid_out(name, axis_sizes, slice_shape=slice_shape, num_slices=num_slices)
    assert caught.value.what.startswith(what)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("name", "axis_sizes", "what"),
    [
        ("tpu-v5e:4x4", (8,), "1 slice has 16 devices: shape 4x4"),
        ("2x tpu-v5e:4x4", (4, 4), "2 slices have 32 devices: shape 4x4"),
        ("2x tpu-v5e", (5,), "2 slices do not divide 5 devices"),
        ("4x h100", (8, 2), "the machine has 32 devices, the mesh 16"),
        ("h100:4", (8,), "the machine has 4 devices, the mesh 8"),
    ],
)
def test_a_mesh_fills_the_slices_that_were_named(
    name: str, axis_sizes: tuple[int, ...], what: str
) -> None:
    with pytest.raises(CostModelError) as caught:
        laid_out(name, axis_sizes)
    assert caught.value.what == what
    assert caught.value.fix


def test_nodes_may_have_fewer_devices_than_the_switch_could_hold() -> None:
    assert laid_out("2x h100:4", (2, 4)) == [[("network", 2, 1, 2)], [("switch", 4, 1, 4)]]


def test_a_rack_is_one_domain_where_boards_are_nine() -> None:
    assert laid_out("gb200", (72,)) == [[("switch", 72, 1, 72)]]
    assert laid_out("b200", (72,)) == [[("network", 9, 1, 9), ("switch", 8, 1, 8)]]


def test_a_layout_prints_what_each_axis_got() -> None:
    assert (
        str(place_mesh(get_hardware("2x tpu-v5e:4x4"), (8, 4))) == "(8, 4): network[2] y[4], x[4]"
    )
    assert str(place_mesh(get_hardware("h100"), (2, 4, 1))) == (
        "(2, 4, 1): switch[(1)2 of 8], switch[(2)4 of 8], one device"
    )


@given(
    hardware=st.sampled_from(CATALOG),
    exponents=st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(lambda e: sum(e) <= 8),
)
def test_the_parts_of_every_axis_multiply_to_its_size_and_fill_the_machine_once(
    hardware: Hardware, exponents: list[int]
) -> None:
    sizes = tuple(2**exponent for exponent in exponents)
    layout = place_mesh(hardware, sizes)
    links = layout.axes
    if layout.places is not None:  # round a ring
        assert len(np.unique(layout.places, axis=0)) == math.prod(sizes)
        return
    assert tuple(math.prod(part.size for part in link.parts) for link in links) == sizes
    used: dict[tuple[int, int], int] = {}
    for link in links:
        for part in link.parts:
            key = (part.dim.index, part.dim.size)
            assert part.pre_size == used.get(key, 1)  # outer axes take outer parts
            used[key] = part.pre_size * part.size
    assert all(size == filled for (_, size), filled in used.items())


@given(hardware=st.sampled_from(CATALOG), size=st.integers(1, 16))
def test_any_small_number_of_devices_has_a_place(hardware: Hardware, size: int) -> None:
    (link,) = layout_mesh(hardware, (size,))
    assert link.size == size
    assert math.prod(dim.size for dim in link.group) == size
    assert link.bandwidth_bytes_per_second > 0
