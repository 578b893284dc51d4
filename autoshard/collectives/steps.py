"""One collective of Shardy's dialect as a value, and the law that ties its two shardings.

| kind | what it does to a sharding |
|---|---|
| all-slice | axes are added at the minor end of dimensions |
| all-gather | axes are taken off the minor end of dimensions |
| all-to-all | axes go from the minor end of a dimension to that of another |
| collective-permute | dimensions keep their number of pieces, on other devices |
| all-reduce | unreduced axes are summed away |
| reduce-scatter | unreduced axes are summed away and added at the minor end of dimensions |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from autoshard.collectives.splitting import parts_at
from autoshard.errors import ShardingError
from autoshard.layouts import Layout, MeshParts, Parts
from autoshard.sharding import AxisRef, Mesh, Sharding

Axes = tuple[AxisRef, ...]


class CollectiveKind(Enum):
    """Which collective; the value is what XLA calls it."""

    ALL_SLICE = "all-slice"
    ALL_GATHER = "all-gather"
    ALL_TO_ALL = "all-to-all"
    PERMUTE = "collective-permute"
    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"


@dataclass(frozen=True, slots=True)
class AxisMove:
    """What an all-to-all moves: axes, and the dimensions they leave and go to."""

    axes: Axes
    source: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective.

    Args:
        kind: Which one.
        before: Sharding of the operand, axes to be summed as unreduced ones.
        after: Sharding of the result.
        dims: All-slice, all-gather, reduce-scatter: the axes per dimension, major to minor.
        moves: All-to-all: sorted by source dimension; no dimension is in two moves.
        reduced: All-reduce: the axes summed over, in mesh order.
    """

    kind: CollectiveKind
    before: Sharding
    after: Sharding
    dims: tuple[Axes, ...] = ()
    moves: tuple[AxisMove, ...] = ()
    reduced: Axes = ()

    @property
    def axes(self) -> Axes:
        """Axes the devices of one group differ in; none for a permutation, which has no groups."""
        return (
            *(axis for dim in self.dims for axis in dim),
            *(axis for move in self.moves for axis in move.axes),
            *self.reduced,
        )

    def __str__(self) -> str:
        return f"{self.kind.value} {self.parameters()}".rstrip()

    def parameters(self) -> str:
        """What Shardy prints between the op's name and its operand."""
        if self.moves:
            moves = (f"{braced(m.axes)}: {m.source}->{m.target}" for m in self.moves)
            return f"[{', '.join(moves)}]"
        if self.dims:
            return f"[{', '.join(map(braced, self.dims))}]"
        return braced(self.reduced) if self.reduced else ""


def check_collective(step: Collective, mesh: Mesh) -> list[str]:
    """What is wrong with a collective: how its result's sharding differs from what follows.

    Args:
        step: What is claimed; open dimensions and priorities do not matter.
        mesh: The mesh of its shardings.

    Returns:
        Sentences; none for a sound collective.
    """
    if step.kind is CollectiveKind.PERMUTE:
        return list(_check_permute(step, mesh))
    refs = (*step.before.axis_refs(), *step.after.axis_refs(), *step.axes)
    try:
        parts = parts_at(refs, mesh)
    except ShardingError as error:
        return [error.what]
    return list(_CHECKS[step.kind](step, parts))


def _check_slice(step: Collective, parts: MeshParts) -> Iterator[str]:
    pairs = zip(_layout(step.before, parts), step.dims, strict=True)
    yield from _differences(step, parts, [(*dim, *_parts(added, parts)) for dim, added in pairs])


def _check_gather(step: Collective, parts: MeshParts) -> Iterator[str]:
    expected = []
    for number, (dim, axes) in enumerate(zip(_layout(step.before, parts), step.dims, strict=True)):
        taken = _parts(axes, parts)
        if dim[len(dim) - len(taken) :] != taken:
            yield f"{braced(axes)} is not the minor end of dimension {number} of the operand"
            return
        expected.append(dim[: len(dim) - len(taken)])
    yield from _differences(step, parts, expected)


def _check_all_to_all(step: Collective, parts: MeshParts) -> Iterator[str]:
    touched = [dim for move in step.moves for dim in (move.source, move.target)]
    if len(set(touched)) != len(touched):
        yield "a dimension is in two of its moves"
        return
    expected = list(_layout(step.before, parts))
    for move in step.moves:
        moved, dim = _parts(move.axes, parts), expected[move.source]
        if dim[len(dim) - len(moved) :] != moved:
            yield (
                f"{braced(move.axes)} is not the minor end of dimension {move.source} of the"
                " operand"
            )
            return
        expected[move.source] = dim[: len(dim) - len(moved)]
        expected[move.target] = (*expected[move.target], *moved)
    yield from _differences(step, parts, expected)


def _check_permute(step: Collective, mesh: Mesh) -> Iterator[str]:
    for number, (old, new) in enumerate(zip(step.before.dims, step.after.dims, strict=True)):
        counts = [math.prod(axis.size_on(mesh) for axis in dim.axes) for dim in (old, new)]
        if counts[0] != counts[1]:
            yield (
                f"dimension {number} falls into {counts[1]} pieces after it and into {counts[0]}"
                " before"
            )
    if set(step.before.unreduced) != set(step.after.unreduced):
        yield "it changes what is left to sum"


def _check_all_reduce(step: Collective, parts: MeshParts) -> Iterator[str]:
    yield from _differences(step, parts, _layout(step.before, parts))


_CHECKS = {
    CollectiveKind.ALL_SLICE: _check_slice,
    CollectiveKind.ALL_GATHER: _check_gather,
    CollectiveKind.ALL_TO_ALL: _check_all_to_all,
    CollectiveKind.ALL_REDUCE: _check_all_reduce,
    CollectiveKind.REDUCE_SCATTER: _check_slice,
}


def _differences(
    step: Collective, parts: MeshParts, expected: Layout | list[Parts]
) -> Iterator[str]:
    after = _layout(step.after, parts)
    for number, (follows, claimed) in enumerate(zip(expected, after, strict=True)):
        if follows != claimed:
            yield (
                f"dimension {number} of the result is cut by {braced(parts.refs(claimed))}, and"
                f" {braced(parts.refs(follows))} follows from its operand"
            )
    summed = _parts(step.reduced, parts)
    if step.kind is CollectiveKind.REDUCE_SCATTER:
        summed = tuple(part for dim in step.dims for part in _parts(dim, parts))
    before = _parts(step.before.unreduced, parts)
    follows = tuple(sorted(part for part in before if part not in summed))
    claimed = tuple(sorted(_parts(step.after.unreduced, parts)))
    if missing := [part for part in summed if part not in before]:
        yield f"{braced(parts.refs(missing))} is not left to sum in its operand"
    if follows != claimed:
        yield (
            f"{braced(parts.refs(claimed))} is left to sum in the result, and"
            f" {braced(parts.refs(follows))} follows from its operand"
        )


def _layout(sharding: Sharding, parts: MeshParts) -> Layout:
    return tuple(_parts(dim.axes, parts) for dim in sharding.dims)


def _parts(axes: Axes, parts: MeshParts) -> Parts:
    return tuple(part for axis in axes for part in parts.parts_of(axis))


def braced(axes: Iterable[AxisRef]) -> str:
    """`{"x", "y":(1)2}`."""
    return "{" + ", ".join(map(str, axes)) + "}"
