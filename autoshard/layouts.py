"""The planner's short form of a sharding: per dimension, the mesh parts that cut it.

A mesh axis is one part, or several where a tensor can only be cut by a piece of it (an axis of 8
and 4 key-value heads). Parts are numbered major to minor over the whole mesh; a layout is a tuple
of such numbers per dimension. Layouts know nothing of open dimensions or priorities: they are what
a tensor ends up as.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from math import prod

import numpy as np
import numpy.typing as npt

from autoshard.errors import ShardingError
from autoshard.sharding import (
    AxisRef,
    DimSharding,
    Mesh,
    Sharding,
    axes_cutting,
    digits,
    format_sharding,
)

Parts = tuple[int, ...]
Layout = tuple[Parts, ...]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MeshParts:
    """The parts a mesh is cut into for one plan.

    Args:
        mesh: The user's mesh.
        splits: Per axis name, the sizes of its parts, major to minor; their product is its size.
        others: Parts of other meshes over the same devices that some tensors are pinned on, as
            their axes are none of this mesh. Their parts are numbered on after those of the mesh;
            a layout has parts of one mesh only, and no op is cut by those of another.
    """

    mesh: Mesh
    splits: tuple[tuple[str, tuple[int, ...]], ...]
    others: tuple[MeshParts, ...] = ()

    @staticmethod
    def of(
        mesh: Mesh,
        splits: dict[str, tuple[int, ...]] | None = None,
        others: Iterable[MeshParts] = (),
    ) -> MeshParts:
        """Whole axes, except for those in `splits`. Axes of size 1 have no part."""
        chosen = splits or {}
        return MeshParts(
            mesh,
            tuple(
                (axis.name, chosen.get(axis.name, (axis.size,)))
                for axis in mesh.axes
                if axis.size > 1
            ),
            tuple(others),
        )

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Axis name of every part of this mesh."""
        return tuple(name for name, sizes in self.splits for _ in sizes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Devices along every part, those of other meshes last."""
        own = tuple(size for _, sizes in self.splits for size in sizes)
        return own + tuple(size for other in self.others for size in other.sizes)

    @cached_property
    def pre_sizes(self) -> tuple[int, ...]:
        """Per part, the product of the sizes of the more major parts of its axis."""
        return tuple(
            prod(sizes[:position]) for _, sizes in self.splits for position in range(len(sizes))
        )

    @cached_property
    def parts_by_axis(self) -> dict[str, Parts]:
        """Parts of every axis, major to minor."""
        found: dict[str, Parts] = {}
        for part, axis in enumerate(self.axes):
            found[axis] = (*found.get(axis, ()), part)
        return found

    def num_shards(self, parts: Iterable[int]) -> int:
        """Pieces that a dimension cut by `parts` falls into."""
        return self._shards_by_parts[tuple(parts)]

    @cached_property
    def _shards_by_parts(self) -> _ShardsByParts:
        return _ShardsByParts(self.sizes)

    def num_pieces(self, layout: Layout) -> int:
        """Pieces that a tensor falls into."""
        found = self._pieces_by_layout.get(layout)
        if found is None:
            found = self.num_shards(part for dim in layout for part in dim)
            self._pieces_by_layout[layout] = found
        return found

    @cached_property
    def _pieces_by_layout(self) -> dict[Layout, int]:
        return {}

    def refs(self, parts: Sequence[int]) -> tuple[AxisRef, ...]:
        """The parts as axis references, neighbours of one axis merged, whole axes unsplit."""
        merged: list[list[int]] = []
        for part in parts:
            if merged and merged[-1][-1] == part - 1 and self.axes[part - 1] == self.axes[part]:
                merged[-1].append(part)
            else:
                merged.append([part])
        found = []
        for run in merged:
            axis = self.axes[run[0]]
            if len(run) == len(self.parts_by_axis[axis]):
                found.append(AxisRef(axis))
            else:
                found.append(AxisRef(axis, self.pre_sizes[run[0]], self.num_shards(run)))
        return tuple(found)

    def parts_of(self, ref: AxisRef) -> Parts:
        """The parts that make up an axis reference.

        Raises:
            ShardingError: The reference cuts through a part.
        """
        if ref.size is None:
            return self.parts_by_axis.get(ref.name, ())
        start, stop = ref.pre_size, ref.pre_size * ref.size
        chosen = tuple(
            part
            for part in self.parts_by_axis.get(ref.name, ())
            if start <= self.pre_sizes[part] and self.pre_sizes[part] * self.sizes[part] <= stop
        )
        if self.num_shards(chosen) != ref.size:
            raise ShardingError(
                f"sub-axis {ref} cuts through a part of the axis",
                where=f"axis {ref.name} planned in parts {self.parts_by_axis.get(ref.name)}",
                fix="use one splitting of the axis throughout the program",
            )
        return chosen

    def to_sharding(self, layout: Layout) -> Sharding:
        """The layout as a closed sharding, which carries its mesh where that is another one."""
        found = self._sharding_by_layout.get(layout)
        if found is None:
            found = self._sharding_by_layout[layout] = self._as_sharding(layout)
        return found

    @cached_property
    def _sharding_by_layout(self) -> dict[Layout, Sharding]:
        return {}

    def _as_sharding(self, layout: Layout) -> Sharding:
        first = next((part for dim in layout for part in dim), 0)
        home, start = self._home(first) if self.axes else (self, 0)
        dims = (home.refs(tuple(part - start for part in dim)) for dim in layout)
        return Sharding(
            tuple(map(DimSharding, dims)), inlined_mesh=None if home is self else home.mesh
        )

    def find_layout(self, sharding: Sharding) -> Layout | None:
        """The cut a sharding makes, as `to_layout` has it; None where it cannot be said here."""
        try:
            return self.to_layout(sharding)
        except ShardingError:
            return None

    def to_layout(self, sharding: Sharding) -> Layout:
        """The cut a sharding makes; openness and priorities are dropped.

        Raises:
            ShardingError: A sub-axis cuts through a part, or it is on a mesh that has no parts
                here.
        """
        if sharding.inlined_mesh is None:
            return tuple(
                tuple(part for ref in dim.axes for part in self.parts_of(ref))
                for dim in sharding.dims
            )
        for other, start in self._numbered_others():
            if other.mesh == sharding.inlined_mesh:
                own = other.to_layout(replace(sharding, inlined_mesh=None))
                return tuple(tuple(part + start for part in dim) for dim in own)
        raise ShardingError(
            f"no tensor is pinned on {sharding.inlined_mesh}",
            where=format_sharding(sharding),
            fix="pin one there to have its axes among the parts of this plan",
        )

    def is_own(self, layout: Layout) -> bool:
        """Whether a layout cuts by parts of this mesh only."""
        return all(part < len(self.axes) for dim in layout for part in dim)

    def _numbered_others(self) -> Iterator[tuple[MeshParts, int]]:
        """Other meshes, each with the number of its first part."""
        start = len(self.axes)
        for other in self.others:
            yield other, start
            start += len(other.axes)

    def twin(self, layout: Layout) -> Layout | None:
        """A layout on this mesh that cuts every dimension into as many pieces; None: there is none.

        Data gets from one to the other by one permutation of whole pieces.
        """
        if self.is_own(layout):
            return layout
        axes = axes_cutting([self.num_shards(dim) for dim in layout], self.mesh)
        if axes is None:
            return None
        try:
            return self.to_layout(Sharding(tuple(map(DimSharding, axes))))
        except ShardingError:
            return None

    def crossed(self, start: Layout, end: Layout) -> Parts:
        """The parts of this mesh along which pieces move from one layout to another.

        Both cut every dimension into as many pieces. Of devices that hold the same piece, each
        gives its own to the one at the same rank among those that want it.
        """
        senders = np.argsort(self._pieces(start), kind="stable")
        receivers = np.argsort(self._pieces(end), kind="stable")
        return self._differing(senders, receivers)

    def spanned(self, chosen: Iterable[int]) -> Parts:
        """The parts of this mesh along which devices differ that `chosen` parts join in a group."""
        parts = tuple(sorted(set(chosen)))
        if not parts or parts[-1] < len(self.axes):
            return parts
        home, start = self._home(parts[0])
        outside = [p for p in range(start, start + len(home.axes)) if p not in parts]
        keys = [self._digits(part) for part in (*parts, *outside)]  # the last one sorts first
        members = np.lexsort(keys)
        firsts = np.repeat(members[:: self.num_shards(parts)], self.num_shards(parts))
        return self._differing(members, firsts)

    def _differing(self, left: Places, right: Places) -> Parts:
        """Parts of this mesh along which some pair of places differs."""
        return tuple(
            part
            for part in range(len(self.axes))
            if (self._digits(part)[left] != self._digits(part)[right]).any()
        )

    def _home(self, part: int) -> tuple[MeshParts, int]:
        """The mesh that a part is of, and the number of its first part."""
        if part < len(self.axes):
            return self, 0
        return next(
            (other, start)
            for other, start in self._numbered_others()
            if start <= part < start + len(other.axes)
        )

    def _digits(self, part: int) -> Places:
        """int64[num_devices]: by place in the mesh's device order, the place along a part."""
        home, start = self._home(part)
        own = part - start
        ref = AxisRef(home.axes[own], home.pre_sizes[own], home.sizes[own])
        return digits((ref,), Mesh(self.mesh.axes) if home is self else home.mesh)

    def _pieces(self, layout: Layout) -> Places:
        """int64[num_devices]: by place, the number of the piece a device holds."""
        number = np.zeros(self.mesh.num_devices, dtype=np.int64)
        for dim in layout:
            for part in dim:
                number = number * self.sizes[part] + self._digits(part)
        return number

    def local_shape(self, layout: Layout, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of one device's piece; a dimension that does not divide is padded up."""
        shards = self._shards_by_parts
        pairs = zip(shape, layout, strict=True)
        return tuple([-(-size // shards[parts]) for size, parts in pairs])


class _ShardsByParts(dict[Parts, int]):
    """Pieces that a dimension falls into, by the parts that cut it.

    Args:
        sizes: Devices along every part.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self._sizes = sizes

    def __missing__(self, parts: Parts) -> int:
        found = self[parts] = prod(self._sizes[part] for part in parts)
        return found


def refines(finer: Layout, coarser: Layout) -> bool:
    """Whether cutting further, at the minor end of dimensions, leads from one to the other."""
    return all(a[: len(b)] == b for a, b in zip(finer, coarser, strict=True))


def part_orders(parts: MeshParts, chosen: frozenset[int]) -> tuple[Parts, ...]:
    """The orders in which a set of parts may cut one dimension.

    Up to two axes come in every order, more axes in mesh order with any one of them moved to the
    minor end (where it can be gathered or scattered). Parts of one axis stay in their order.
    """
    axes: list[Parts] = []
    for axis_parts in parts.parts_by_axis.values():
        used = tuple(part for part in axis_parts if part in chosen)
        if used:
            axes.append(used)
    if len(axes) <= 2:
        orders: Iterable[Sequence[Parts]] = permutations(axes)
    else:
        orders = [axes] + [[*axes[:i], *axes[i + 1 :], axes[i]] for i in range(len(axes) - 1)]
    return tuple(tuple(part for run in order for part in run) for order in orders)
