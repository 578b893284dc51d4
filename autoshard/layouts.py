"""The planner's short form of a sharding: per dimension, the mesh parts that cut it.

A mesh axis is one part, or several where a tensor can only be cut by a piece of it (an axis of 8
and 4 key-value heads). Parts are numbered major to minor over the whole mesh; a layout is a tuple
of such numbers per dimension. Layouts know nothing of open dimensions or priorities: they are what
a tensor ends up as.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from math import prod

from autoshard.errors import ShardingError
from autoshard.sharding import AxisRef, DimSharding, Mesh, Sharding

Parts = tuple[int, ...]
Layout = tuple[Parts, ...]


@dataclass(frozen=True)
class MeshParts:
    """The parts a mesh is cut into for one plan.

    Args:
        mesh: The user's mesh.
        splits: Per axis name, the sizes of its parts, major to minor; their product is its size.
    """

    mesh: Mesh
    splits: tuple[tuple[str, tuple[int, ...]], ...]

    @staticmethod
    def of(mesh: Mesh, splits: dict[str, tuple[int, ...]] | None = None) -> MeshParts:
        """Whole axes, except for those in `splits`. Axes of size 1 have no part."""
        chosen = splits or {}
        return MeshParts(
            mesh,
            tuple(
                (axis.name, chosen.get(axis.name, (axis.size,)))
                for axis in mesh.axes
                if axis.size > 1
            ),
        )

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Axis name of every part."""
        return tuple(name for name, sizes in self.splits for _ in sizes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Devices along every part."""
        return tuple(size for _, sizes in self.splits for size in sizes)

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
        return prod(self.sizes[part] for part in parts)

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
        """The layout as a closed sharding."""
        return Sharding(tuple(DimSharding(self.refs(parts)) for parts in layout))

    def to_layout(self, sharding: Sharding) -> Layout:
        """The cut a sharding makes; openness and priorities are dropped."""
        return tuple(
            tuple(part for ref in dim.axes for part in self.parts_of(ref)) for dim in sharding.dims
        )

    def local_shape(self, layout: Layout, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of one device's piece; a dimension that does not divide is padded up."""
        return tuple(
            -(-size // self.num_shards(parts)) for size, parts in zip(shape, layout, strict=True)
        )


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
