"""Shardings the user pinned, in mesh parts, and which layouts they admit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoshard.layouts import Layout, MeshParts
from autoshard.sharding import Sharding
from autoshard.wishes.other_meshes import check_pinned, on_mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A sharding asked for, in the planner's terms.

    Args:
        sharding: As asked for, on the plan's mesh.
        where: Names the tensor and who asked, for errors.
        asked: What it cuts for sure.
        is_open: Per dimension, whether more parts may follow.
        banned: Parts that must hold copies.
    """

    sharding: Sharding
    where: str
    asked: Layout
    is_open: tuple[bool, ...]
    banned: frozenset[int]

    @property
    def priorities(self) -> frozenset[int]:
        """Of the dimensions that ask for something: axes, or to be left alone until their round."""
        return frozenset(
            dim.round
            for dim in self.sharding.dims
            if dim.axes or (dim.is_open and dim.priority is not None)
        )

    def in_round(self, priority: int) -> Pin:
        """What it asks in the round of a priority.

        Dimensions that wait for a later round are held uncut, and their parts are kept for them.
        """
        waits = [dim.round > priority for dim in self.sharding.dims]
        kept = {
            part for dim, waiting in zip(self.asked, waits, strict=True) if waiting for part in dim
        }
        return replace(
            self,
            asked=tuple(() if w else dim for dim, w in zip(self.asked, waits, strict=True)),
            is_open=tuple(
                is_open and not w for is_open, w in zip(self.is_open, waits, strict=True)
            ),
            banned=self.banned | kept,
        )

    def admits(self, layout: Layout) -> bool:
        """Whether a tensor may end in `layout`."""
        if self.banned and self.banned.intersection(p for dim in layout for p in dim):
            return False
        return all(
            have[: len(want)] == want if is_open else have == want
            for have, want, is_open in zip(layout, self.asked, self.is_open, strict=True)
        )

    def extended(self, parts: MeshParts, layout: Layout, shape: Sequence[int]) -> Layout | None:
        """The asked layout with its open dimensions cut further as in `layout`; None: not even."""
        taken = {part for dim in self.asked for part in dim}
        found = tuple(
            (*want, *(part for part in have if part not in taken)) if is_open else want
            for have, want, is_open in zip(layout, self.asked, self.is_open, strict=True)
        )
        divides = all(
            size % parts.num_shards(dim) == 0 for dim, size in zip(found, shape, strict=True)
        )
        return found if divides and self.admits(found) else None


def read_pin(sharding: Sharding, parts: MeshParts, shape: Sequence[int], where: str) -> Pin:
    """A user's sharding of a tensor as a pin.

    Raises:
        ConstraintError: It is on other devices, names an axis the mesh lacks, uses one twice, has
            another number of dimensions than the tensor, or does not divide it.
    """
    sharding = on_mesh(sharding, parts.mesh, where)
    check_pinned(sharding, parts.mesh, shape, where)
    return Pin(
        sharding=sharding,
        where=where,
        asked=parts.to_layout(sharding),
        is_open=tuple(dim.is_open for dim in sharding.dims),
        banned=frozenset(p for ref in sharding.replicated for p in parts.parts_of(ref)),
    )
