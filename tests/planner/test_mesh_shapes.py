"""The meshes that so many devices can make, and which of them a machine tells apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.costing.costing import cost_model_for
from autoshard.errors import InputError
from autoshard.layouts import MeshParts
from autoshard.mesh_search.shapes import (
    check_axis_names,
    check_devices,
    distinct_meshes,
    links_of,
    mesh_shapes,
    possible_meshes,
)
from autoshard.sharding import Mesh, MeshAxis, parse_mesh_sizes
from cost_models import CATALOG, get_hardware

NAMES = ("data", "model", "inner")
MACHINES = ("cpu-host", "h100", "tpu-v4", "tpu-v5e", "tpu-v5p")


def texts(meshes: Sequence[Mesh]) -> list[str]:
    return [",".join(str(axis.size) for axis in mesh.axes) for mesh in meshes]


def links(mesh: Mesh, hardware: str) -> object:
    return links_of(cost_model_for(get_hardware(hardware), MeshParts.of(mesh)), mesh)


def test_shapes_come_with_few_and_even_axes_first() -> None:
    assert mesh_shapes(8, 3) == ((8,), (2, 4), (4, 2), (2, 2, 2))
    assert mesh_shapes(16, 2) == ((16,), (4, 4), (2, 8), (8, 2))
    assert mesh_shapes(7, 3) == ((7,),)


def test_one_device_is_a_mesh_of_one_axis() -> None:
    assert mesh_shapes(1, 3) == ((1,),)


@given(num_devices=st.integers(2, 96), most_axes=st.integers(1, 4))
def test_shapes_are_all_ordered_factorizations(num_devices: int, most_axes: int) -> None:
    divisors = [size for size in range(2, num_devices + 1) if num_devices % size == 0]
    expected = {
        sizes
        for count in range(1, most_axes + 1)
        for sizes in product(divisors, repeat=count)
        if prod(sizes) == num_devices
    }
    found = mesh_shapes(num_devices, most_axes)
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_axes_take_the_first_names_from_the_outermost_on() -> None:
    meshes, refused = possible_meshes(8, NAMES, get_hardware("tpu-v5e"))
    assert [mesh.axis_names for mesh in meshes] == [NAMES[:1], NAMES[:2], NAMES[:2], NAMES]
    assert refused == ()


def test_behind_one_switch_the_order_of_axes_does_not_matter() -> None:
    machine = get_hardware("h100")
    meshes, _ = possible_meshes(8, NAMES, machine)
    distinct, alike = distinct_meshes(meshes, machine)
    assert texts(distinct) == ["8", "2,4", "2,2,2"]
    assert [(texts([one.mesh]), one.outcome, one.reason) for one in alike] == [
        (["4,2"], "alike", "its links are those of data=2, model=4")
    ]


def test_across_nodes_the_order_of_axes_matters() -> None:
    """Two nodes of 8: an outer axis of 2 is the network alone, an outer axis of 8 crosses it."""
    machine = get_hardware("h100")
    meshes, _ = possible_meshes(16, NAMES[:2], machine)
    distinct, _ = distinct_meshes(meshes, machine)
    assert texts(distinct) == ["16", "4,4", "2,8", "8,2"]


def test_across_slices_the_order_of_axes_matters() -> None:
    machine = get_hardware("tpu-v5e")
    meshes, _ = possible_meshes(512, NAMES[:2], machine)  # two slices of 256
    distinct, _ = distinct_meshes(meshes, machine)
    assert {"2,256", "256,2"} <= set(texts(distinct))


@given(
    sizes=st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=3),
    hardware=st.sampled_from(MACHINES),
)
def test_links_do_not_depend_on_names(sizes: list[int], hardware: str) -> None:
    one = Mesh(tuple(map(MeshAxis, NAMES, sizes)))
    other = Mesh(tuple(map(MeshAxis, ("u", "v", "w"), sizes)))
    assert links(one, hardware) == links(other, hardware)


@pytest.mark.parametrize("hardware", [machine.name for machine in CATALOG])
def test_meshes_of_other_sizes_have_other_links(hardware: str) -> None:
    found = [links(parse_mesh_sizes(text), hardware) for text in ("a=4", "a=2,b=2", "a=8")]
    assert len({str(one) for one in found}) == 3


def test_a_machine_without_a_network_cannot_have_two_nodes() -> None:
    machine = replace(get_hardware("h100"), network=None)
    with pytest.raises(InputError) as caught:
        possible_meshes(16, NAMES, machine)
    assert str(caught.value) == (
        "no mesh of 16 devices can be laid on the machine: the mesh needs 2 nodes or slices, but"
        " the machine has no network\n"
        '  where: hardware "h100"\n'
        "  fix: use a smaller mesh, or describe the machine's `network`"
    )


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (
            0,
            "the number of devices is 0, which is below 1\n  where: devices=0\n"
            "  fix: give the number of devices to plan for, from 1 to 1,000,000",
        ),
        (
            "8",
            "expected a number of devices, found str\n  where: devices='8'\n"
            "  fix: give a whole number, as in devices=64; it need not be that of this machine",
        ),
        (
            True,
            "expected a number of devices, found bool\n  where: devices=True\n"
            "  fix: give a whole number, as in devices=64; it need not be that of this machine",
        ),
    ],
)
def test_what_is_no_number_of_devices_is_refused(devices: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        check_devices(devices)
    assert str(caught.value) == message


@pytest.mark.parametrize("names", ["data", (), ("data", "data"), ("data", ""), ("data", 3), 3])
def test_what_names_no_axes_is_refused(names: object) -> None:
    with pytest.raises(InputError) as caught:
        check_axis_names(names)
    assert str(caught.value) == (
        f"expected different names for mesh axes, one at least\n  where: axis_names={names!r}\n"
        '  fix: name the axes from the outermost on, as in axis_names=("data", "model"); a mesh has'
        " as many axes as there are names, or fewer"
    )
