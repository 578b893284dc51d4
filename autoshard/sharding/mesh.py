"""Meshes: a line of devices seen as a grid with named axes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

from autoshard.errors import InputError, ShardingError
from autoshard.sharding.source import readable, source_with_caret


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One named direction of a mesh; prints as `"x"=4`.

    Raises:
        ShardingError: The name is not text, or the size is not a whole number of at least 1.
    """

    name: str
    size: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ShardingError(
                f"a mesh axis name is text, not {type(self.name).__name__}",
                where=f"mesh axis {self.name!r}",
                fix='name it with a string, as in MeshAxis("x", 4)',
            )
        if isinstance(self.size, bool) or not isinstance(self.size, int):
            raise ShardingError(
                f"a mesh axis size is an int, not {type(self.size).__name__}",
                where=f'mesh axis "{self.name}"',
                fix=f'give it a whole number, as in MeshAxis("{self.name}", 4)',
            )
        if self.size < 1:
            raise ShardingError(
                f"a mesh axis has size {self.size}, which is below 1",
                where=f'mesh axis "{self.name}"',
                fix="give every axis the number of devices along it, at least 1",
            )


@dataclass(frozen=True)
class Mesh:
    """A grid of devices.

    Devices are numbered row-major over the axes, so the last axis varies fastest. `device_ids`
    says which device sits at each of these places; the identity order is stored as `None`, so two
    meshes are equal exactly when they are the same grid of the same devices.

    Three special shapes: no axes and no device ids is the empty mesh; no axes and one device id is
    a maximal mesh, which places a value whole on that one device.

    Args:
        axes: Major to minor.
        device_ids: int[num_devices], or None for `0, 1, ..., num_devices - 1`.
    """

    axes: tuple[MeshAxis, ...] = ()
    device_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(self.axes))
        if self.device_ids is not None:
            device_ids = tuple(self.device_ids)
            is_whole = bool(self.axes) and len(device_ids) == self.num_devices
            is_iota = is_whole and device_ids == tuple(range(self.num_devices))
            object.__setattr__(
                self, "device_ids", None if is_iota or not device_ids else device_ids
            )

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Axis sizes by name, major to minor."""
        return {axis.name: axis.size for axis in self.axes}

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    @cached_property
    def num_devices(self) -> int:
        """Devices in the grid: the product of the sizes, 1 for empty and maximal meshes."""
        return math.prod(axis.size for axis in self.axes)

    @property
    def is_maximal(self) -> bool:
        return not self.axes and self.device_ids is not None and len(self.device_ids) == 1

    @property
    def is_empty(self) -> bool:
        return not self.axes and self.device_ids is None

    @property
    def device_order(self) -> tuple[int, ...]:
        """int[num_devices]: the device at each row-major place of the grid."""
        return tuple(range(self.num_devices)) if self.device_ids is None else self.device_ids

    def axis_size(self, name: str) -> int:
        """Size of the axis called `name`.

        Raises:
            ShardingError: The mesh has no such axis.
        """
        try:
            return self.sizes[name]
        except KeyError:
            names = ", ".join(f'"{known}"' for known in self.axis_names) or "none"
            raise ShardingError(
                f'the mesh has no axis "{name}"; its axes are: {names}',
                where=str(self),
                fix="use one of its axes, or add this one to the mesh",
            ) from None

    def axis_index(self, name: str) -> int:
        """Place of the axis called `name`, counted from the most major.

        Raises:
            ShardingError: The mesh has no such axis.
        """
        self.axis_size(name)
        return self.axis_names.index(name)

    def __str__(self) -> str:
        axes = ", ".join(f"{axis.name}={axis.size}" for axis in self.axes)
        if self.device_ids is None:
            return f"mesh ({axes})"
        return f"mesh ({axes}; device_ids={list(self.device_ids)})"


_MOST_DIGITS = 30
_MESH_TERM = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*([+-]?[0-9]+)\s*")


def parse_mesh_sizes(text: str) -> Mesh:
    """Read the short form of a mesh used on command lines.

    Grammar: `mesh ::= term ("," term)*`, `term ::= name "=" size`; major axis first. Blanks
    around names, sizes and signs are allowed.

    Args:
        text: For example `data=2,model=4`.

    Raises:
        InputError: A term is not `name=size`, a name comes twice, or a size is below 1.
    """
    axes: list[MeshAxis] = []
    seen: set[str] = set()
    start = 0
    for term in text.split(","):
        match = _MESH_TERM.fullmatch(term)
        where = source_with_caret(text, start + len(term) - len(term.lstrip()))
        start += len(term) + 1
        if match is None or len(match[2]) > _MOST_DIGITS:
            found = f"`{readable(term.strip())}`" if term.strip() else "nothing"
            raise InputError(
                f"expected name=size in a mesh, found {found}",
                where=where,
                fix="write the axes as name=size with commas between, as in data=2,model=4",
            )
        name, size = match[1], int(match[2])
        if size < 1:
            raise InputError(
                f'mesh axis "{name}" has size {size}, which is below 1',
                where=where,
                fix="give every axis the number of devices along it, at least 1",
            )
        if name in seen:
            raise InputError(
                f'mesh axis "{name}" is named twice',
                where=where,
                fix="give every axis its own name",
            )
        seen.add(name)
        axes.append(MeshAxis(name, size))
    return Mesh(tuple(axes))
