"""The model's device order is JAX's own: compared with `mesh_utils` on devices made up for it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from jax.experimental import mesh_utils

from cost_models import get_hardware, place_mesh


@dataclass(frozen=True)
class FakeTpu:
    """What `mesh_utils` asks of a device."""

    device_kind: str
    coords: tuple[int, int, int]
    core_on_chip: int
    slice_index: int = 0
    platform: str = "tpu"


def slice_of(kind: str, shape: tuple[int, ...], cores: int, slice_index: int = 0) -> list[FakeTpu]:
    x, y, z = (*shape, 1)[:3]
    return [
        FakeTpu(kind, (a, b, c), core, slice_index)
        for c, b, a, core in itertools.product(range(z), range(y), range(x), range(cores))
    ]


def meshes_of(num_devices: int, most_axes: int) -> list[tuple[int, ...]]:
    sizes = [size for size in range(2, num_devices + 1) if num_devices % size == 0]
    return [
        mesh
        for count in range(1, most_axes + 1)
        for mesh in itertools.product(sizes, repeat=count)
        if math.prod(mesh) == num_devices
    ]


SLICES = [
    ("tpu-v4", "TPU v4", (2, 2, 1)),
    ("tpu-v4", "TPU v4", (2, 2, 4)),
    ("tpu-v4", "TPU v4", (4, 4, 4)),
    ("tpu-v5e", "TPU v5 lite", (2, 2)),
    ("tpu-v5e", "TPU v5 lite", (2, 4)),
    ("tpu-v5e", "TPU v5 lite", (4, 4)),
    ("tpu-v5e", "TPU v5 lite", (4, 8)),
    ("tpu-v5e", "TPU v5 lite", (16, 16)),
    ("tpu-v5p", "TPU v5", (2, 2, 2)),
    ("tpu-v5p", "TPU v5", (2, 4, 4)),
    ("tpu-v5p", "TPU v5", (4, 4, 8)),
    ("tpu-v6e", "TPU v6 lite", (2, 4)),
    ("tpu-v6e", "TPU v6 lite", (4, 4)),
    ("tpu7x", "TPU7x", (1, 1, 1)),
    ("tpu7x", "TPU7x", (2, 2, 1)),
    ("tpu7x", "TPU7x", (2, 2, 2)),
    ("tpu7x", "TPU7x", (2, 2, 4)),
    ("tpu7x", "TPU7x", (2, 4, 4)),
]


@pytest.mark.parametrize(("name", "kind", "shape"), SLICES, ids=str)
def test_devices_come_in_the_order_of_mesh_utils(
    name: str, kind: str, shape: tuple[int, ...]
) -> None:
    hardware = get_hardware(name)
    assert hardware.torus is not None
    cores = hardware.torus.devices_per_chip
    devices = slice_of(kind, shape, cores)
    for mesh in meshes_of(len(devices), 3):
        ours = place_mesh(hardware, mesh, slice_shape=shape).device_places()
        jax_order = mesh_utils.create_device_mesh(mesh, devices, allow_split_physical_axes=True)
        theirs = [
            [*device.coords[: len(shape)], *([device.core_on_chip] if cores > 1 else [])]
            for device in jax_order.ravel()
        ]
        np.testing.assert_array_equal(ours, theirs, err_msg=f"mesh {mesh}")


@pytest.mark.parametrize("inner", [(4, 4), (2, 8), (16, 1), (8, 2)])
def test_slices_come_in_the_order_of_a_hybrid_mesh(inner: tuple[int, int]) -> None:
    devices = [device for index in range(2) for device in slice_of("TPU v5 lite", (4, 4), 1, index)]
    jax_order = mesh_utils.create_hybrid_device_mesh(
        inner, (2, 1), devices, allow_split_physical_axes=True
    )
    theirs = [(device.slice_index, *device.coords[:2]) for device in jax_order.ravel()]
    layout = place_mesh(get_hardware("2x tpu-v5e:4x4"), (2 * inner[0], inner[1]))
    np.testing.assert_array_equal(layout.device_places(), theirs)
