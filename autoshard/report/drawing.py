"""Shardings as the devices of a mesh hold them, for drawing."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from autoshard.sharding import AxisRef, Mesh, Sharding, device_to_shard

MOST_DEVICES = 1024
"""A larger mesh is drawn as far as its first so many devices."""

_LONGEST_ROW = 16  # of a mesh with one axis; a longer one is drawn in several
_SHORT_ROW = 4  # a row at most this long takes in another axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The devices of a mesh in rows, as they are drawn.

    Args:
        down: Axes whose places are the rows: `data=2`.
        across: Axes whose places are the columns.
        columns: Devices in a row.
        devices: Device ids, row by row.
        num_devices: On the whole mesh.
    """

    down: tuple[str, ...]
    across: tuple[str, ...]
    columns: int
    devices: tuple[int, ...]
    num_devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Which piece of a tensor each device of a grid holds.

    Args:
        pieces: Per dimension, how many pieces it is cut into.
        axes: Per dimension, the axes that cut it, as text; "" where none does.
        held: Per device of the grid, the number of its piece, counted with the last dimension
            fastest.
        sums: Axes along which each device holds a term of a sum still to be taken.
    """

    pieces: tuple[int, ...]
    axes: tuple[str, ...]
    held: tuple[int, ...]
    sums: tuple[str, ...]


def grid_of(mesh: Mesh) -> Grid:
    """Rows and columns of a mesh: the last axes go across, as long as a row stays short."""
    down, across = list(mesh.axes[:-1]), list(mesh.axes[-1:])
    while len(down) > 1 and down[-1].size * prod(a.size for a in across) <= _SHORT_ROW:
        across.insert(0, down.pop())
    columns = prod(axis.size for axis in across)
    return Grid(
        down=tuple(f"{axis.name}={axis.size}" for axis in down),
        across=tuple(f"{axis.name}={axis.size}" for axis in across),
        columns=columns if down else min(columns, _LONGEST_ROW),
        devices=mesh.device_order[:MOST_DEVICES],
        num_devices=mesh.num_devices,
    )


def draw(sharding: Sharding, mesh: Mesh) -> Drawing:
    """What the devices of a mesh's grid hold of a tensor.

    A sharding on a mesh of its own is drawn on the devices that the two meshes share; a device
    that holds nothing has -1.
    """
    own = sharding.inlined_mesh or mesh
    pieces = tuple(prod(axis.size_on(own) for axis in dim.axes) for dim in sharding.dims)
    piece_by_device = {
        device: _number(place, pieces) for device, place in device_to_shard(sharding, mesh).items()
    }
    return Drawing(
        pieces=pieces,
        axes=tuple(", ".join(map(_axis_text, dim.axes)) for dim in sharding.dims),
        held=tuple(piece_by_device.get(device, -1) for device in mesh.device_order[:MOST_DEVICES]),
        sums=tuple(map(_axis_text, sharding.unreduced)),
    )


def _number(place: tuple[int, ...], pieces: tuple[int, ...]) -> int:
    number = 0
    for index, count in zip(place, pieces, strict=True):
        number = number * count + index
    return number


def _axis_text(axis: AxisRef) -> str:
    return axis.name if axis.size is None else f"{axis.name}:({axis.pre_size}){axis.size}"
