"""Places of devices as a user gives them, checked: whole slices, every place taken once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cost_models.errors import CostModelError
from cost_models.hardware import Hardware, Torus

IntArray = NDArray[np.int64]


def places_of(
    hardware: Hardware,
    torus: Torus,
    num_devices: int,
    places: Sequence[Sequence[int]] | IntArray,
) -> tuple[int, tuple[int, ...], IntArray]:
    """Number of slices, their shape in chips, and the places counted from 0.

    Args:
        hardware: The machine.
        torus: Its torus.
        num_devices: Of the mesh.
        places: [num_devices, num_dims] per device: its slice (may be left out where there is one),
            its place along each dimension of the slice, and its place on the chip where a chip has
            several devices.

    Raises:
        CostModelError: The places are not those of all devices of whole slices.
    """
    where = f'{num_devices} devices of hardware "{hardware.name}"'
    on_chip = torus.devices_per_chip > 1
    names = ["x", "y", "z"][: torus.num_dims] + ["place on the chip"] * on_chip
    found = np.asarray(places)
    widths = (len(names), len(names) + 1)
    if found.ndim != 2 or len(found) != num_devices or found.shape[1] not in widths:
        raise CostModelError(
            f"the places have shape {found.shape}; expected ({num_devices}, {widths[0]}), or one "
            "column more with the slice in front",
            where=where,
            fix=f"give each device of the mesh, in mesh order, its {', '.join(names)}",
        )
    if not np.issubdtype(found.dtype, np.integer):
        raise CostModelError(
            f"the places are of type {found.dtype}; expected whole numbers",
            where=where,
            fix="give coordinates as the devices have them",
        )
    found = found.astype(np.int64)
    if found.shape[1] == widths[1]:
        slices, ranks = np.unique(found[:, 0], return_inverse=True)
        inner = found[:, 1:]
    else:
        slices, ranks = np.zeros(1), np.zeros(num_devices, np.int64)
        inner = found
    inner = inner.copy()
    for rank in range(len(slices)):
        inner[ranks == rank] -= inner[ranks == rank].min(axis=0)
    sizes = tuple(int(size) for size in inner.max(axis=0) + 1)
    whole = np.column_stack([ranks, inner])
    if len(np.unique(whole, axis=0)) < num_devices or math.prod(sizes) * len(slices) != num_devices:
        raise CostModelError(
            f"{num_devices} devices do not fill {len(slices)} grid(s) of {sizes} once each",
            where=where,
            fix="give the places of all devices of whole slices, each once",
        )
    return len(slices), sizes[: torus.num_dims], whole if len(slices) > 1 else inner
