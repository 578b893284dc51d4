"""Mesh axes and the parts left after splitting them: references and their algebra."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from autoshard.errors import ShardingError
from autoshard.sharding.mesh import Mesh


@dataclass(frozen=True, slots=True)
class AxisRef:
    """A mesh axis, or one part of it after splitting it.

    An axis of size `n` reshaped to `[pre_size, size, n / (pre_size * size)]` has its middle part
    as a sub-axis. Printed `"x"` for the whole axis and `"x":(pre_size)size` for a sub-axis.

    Comparisons between two references need no mesh because a whole axis is always written
    without sizes: `"x":(1)8` is a proper part of `"x"`. `verify_sharding` holds that, and
    `canonicalize` repairs it.

    Args:
        name: The axis of the mesh.
        pre_size: Product of the sizes of everything more major within the axis.
        size: Size of this part; None is the whole axis.

    Raises:
        ShardingError: A size is below 1, or there is a pre-size without a size.
    """

    name: str
    pre_size: int = 1
    size: int | None = None

    def __post_init__(self) -> None:
        if self.size is None:
            if self.pre_size != 1:
                raise ShardingError(
                    f"pre-size {self.pre_size} is given without a size",
                    where=f'axis "{self.name}"',
                    fix=f'give the size too, as in "{self.name}":({self.pre_size})2',
                )
        elif self.pre_size < 1:
            raise ShardingError(
                f"sub-axis pre-size is {self.pre_size}, which is below 1",
                where=str(self),
                fix="the pre-size is the product of the more major sizes; the first part has 1",
            )
        elif self.size < 1:
            raise ShardingError(
                f"sub-axis size is {self.size}, which is below 1",
                where=str(self),
                fix="a sub-axis has size 2 or more; leave it out when it has 1",
            )

    @property
    def is_whole(self) -> bool:
        return self.size is None

    @property
    def next_pre_size(self) -> int | None:
        """Pre-size of what follows this sub-axis; None for a whole axis, which nothing follows."""
        return None if self.size is None else self.pre_size * self.size

    def size_on(self, mesh: Mesh) -> int:
        """Number of devices along this axis or sub-axis.

        Raises:
            ShardingError: The mesh has no such axis.
        """
        return mesh.axis_size(self.name) if self.size is None else self.size

    def contains(self, other: AxisRef) -> bool:
        """Whether this can be split so that one of its parts is `other`, or is `other`."""
        if self.name != other.name:
            return False
        if self.size is None:
            return True
        if other.size is None:
            return False
        return (
            other.pre_size % self.pre_size == 0
            and (self.pre_size * self.size) % (other.pre_size * other.size) == 0
        )

    def is_prefix_of(self, other: AxisRef) -> bool:
        """Whether `other` is this, or can be split in two with this as the major part."""
        return other.contains(self) and self.pre_size == other.pre_size

    def overlaps(self, other: AxisRef) -> bool:
        """Whether some part belongs to both."""
        if self.name != other.name:
            return False
        if self.size is None or other.size is None:
            return True
        return max(self.pre_size, other.pre_size) < min(
            self.pre_size * self.size, other.pre_size * other.size
        )

    def coexists_with(self, other: AxisRef) -> bool:
        """Whether one splitting of the axis can hold both, overlapping or not.

        Sub-axes `"x":(1)2` and `"x":(3)2` of an axis of size 6 do not coexist: the first needs
        a cut after 2, the second after 3, and neither divides the other.
        """
        if self.name != other.name or self.size is None or other.size is None:
            return True
        cuts = sorted(
            {self.pre_size, self.pre_size * self.size, other.pre_size, other.pre_size * other.size}
        )
        return all(after % before == 0 for before, after in itertools.pairwise(cuts))

    def prefix_without_overlap(self, other: AxisRef) -> AxisRef | None:
        """The largest major part of this that `other` does not touch.

        Returns:
            This, if the two do not overlap; None, if they overlap from the first part on.
        """
        if not self.overlaps(other):
            return self
        if other.pre_size <= self.pre_size or other.pre_size % self.pre_size:
            return None
        return AxisRef(self.name, self.pre_size, other.pre_size // self.pre_size)

    def can_merge(self, minor: AxisRef) -> bool:
        """Whether `minor` is the sub-axis that begins where this one ends."""
        return (
            self.name == minor.name
            and self.size is not None
            and minor.size is not None
            and self.pre_size * self.size == minor.pre_size
        )

    def merge(self, minor: AxisRef, mesh: Mesh) -> AxisRef:
        """This and the sub-axis right after it, as one.

        Raises:
            ShardingError: `minor` does not begin where this one ends, or the mesh lacks the axis.
        """
        if not self.can_merge(minor) or self.size is None or minor.size is None:
            raise ShardingError(
                f"{minor} does not begin where {self} ends",
                fix="merge only neighbouring sub-axes of one axis, the major one first",
            )
        return AxisRef(self.name, self.pre_size, self.size * minor.size).canonical(mesh)

    def canonical(self, mesh: Mesh) -> AxisRef:
        """This, written as the whole axis if it is that.

        Raises:
            ShardingError: The mesh has no such axis.
        """
        is_all = self.pre_size == 1 and self.size == mesh.axis_size(self.name)
        return AxisRef(self.name) if is_all else self

    def difference(self, other: AxisRef, mesh: Mesh) -> tuple[AxisRef, ...]:
        """What is left of this without `other`, major to minor: none, one or two parts.

        Raises:
            ShardingError: The mesh has no such axis, or the two cannot be cut from one splitting.
        """
        if not self.overlaps(other):
            return (self,)
        if not self.coexists_with(other):
            raise ShardingError(
                f"{self} and {other} cannot be parts of one splitting of the axis",
                where=str(mesh),
                fix="use sub-axes whose pre-sizes divide one another",
            )
        end = self.pre_size * self.size_on(mesh)
        other_end = other.pre_size * other.size_on(mesh)
        parts = []
        if other.pre_size > self.pre_size:
            parts.append(AxisRef(self.name, self.pre_size, other.pre_size // self.pre_size))
        if other_end < end:
            parts.append(AxisRef(self.name, other_end, end // other_end))
        return tuple(parts)

    def coordinate(self, axis_coordinate: int, mesh: Mesh) -> int:
        """Place along this part of a device that is at `axis_coordinate` on the whole axis.

        Raises:
            ShardingError: The mesh has no such axis, or this does not divide it.
        """
        if self.size is None:
            return axis_coordinate
        return axis_coordinate // self._post_size(mesh) % self.size

    def _post_size(self, mesh: Mesh) -> int:
        axis_size = mesh.axis_size(self.name)
        end = axis_size if self.size is None else self.pre_size * self.size
        if axis_size % end:
            raise ShardingError(
                f"{self} ends at {end}, which does not divide the axis size {axis_size}",
                where=str(mesh),
                fix="choose a pre-size and a size whose product divides the axis size",
            )
        return axis_size // end

    def __str__(self) -> str:
        if self.size is None:
            return f'"{self.name}"'
        return f'"{self.name}":({self.pre_size}){self.size}'
