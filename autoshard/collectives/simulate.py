"""Collectives carried out on NumPy arrays, one piece per device: what they do, by definition.

Nothing is shared with the search or with JAX: a piece is moved because its device is in a group,
and groups follow from places in the mesh.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from autoshard.collectives.splitting import parts_at
from autoshard.collectives.steps import Axes, Collective, CollectiveKind
from autoshard.sharding import Mesh, Sharding, digits, shard_slices

Array = npt.NDArray[Any]
Pieces = list[Array]
"""By rank of a device among the mesh's device ids, what it holds."""


def cut_whole(whole: Array, sharding: Sharding, mesh: Mesh) -> Pieces:
    """The piece of a tensor that every device holds.

    Args:
        whole: Each dimension divides evenly.
        sharding: Without unreduced axes.
        mesh: Its mesh.
    """
    slices = shard_slices(sharding, mesh, whole.shape)
    return [whole[slices[device]] for device in sorted(mesh.device_order)]


def carry_out(pieces: Pieces, steps: Iterable[Collective], mesh: Mesh) -> Pieces:
    """What devices hold after some collectives.

    Args:
        pieces: What they hold before.
        steps: In order.
        mesh: Of their shardings.
    """
    for step in steps:
        pieces = _ACTIONS[step.kind](pieces, step, mesh)
    return pieces


def _groups(axes: Axes, mesh: Mesh) -> list[list[int]]:
    """Devices, by rank, that differ along `axes` alone, in the order of their places there."""
    parts = parts_at(axes, mesh)
    chosen = {part for axis in axes for part in parts.parts_of(axis)}
    others = parts.refs([part for part in range(len(parts.sizes)) if part not in chosen])
    place, rest = digits(axes, mesh), digits(others, mesh)
    order = np.lexsort((place, rest))
    return [list(map(int, group)) for group in order.reshape(-1, int(place.max()) + 1)]


def _gather(pieces: Pieces, step: Collective, mesh: Mesh) -> Pieces:
    for dim, axes in enumerate(step.dims):
        if axes:
            made = list(pieces)
            for group in _groups(axes, mesh):
                whole = np.concatenate([pieces[device] for device in group], axis=dim)
                for device in group:
                    made[device] = whole
            pieces = made
    return pieces


def _slice(pieces: Pieces, step: Collective, mesh: Mesh) -> Pieces:
    for dim, axes in enumerate(step.dims):
        if axes:
            place = digits(axes, mesh)
            count = int(place.max()) + 1
            pieces = [
                np.split(piece, count, axis=dim)[place[device]]
                for device, piece in enumerate(pieces)
            ]
    return pieces


def _all_to_all(pieces: Pieces, step: Collective, mesh: Mesh) -> Pieces:
    for move in step.moves:
        made = list(pieces)
        for group in _groups(move.axes, mesh):
            shares = [np.split(pieces[device], len(group), axis=move.target) for device in group]
            for place, device in enumerate(group):
                made[device] = np.concatenate([share[place] for share in shares], axis=move.source)
        pieces = made
    return pieces


def _permute(pieces: Pieces, step: Collective, mesh: Mesh) -> Pieces:
    made = list(pieces)
    for sender, receiver in permutation_pairs(step, mesh):
        made[receiver] = pieces[sender]
    return made


def permutation_pairs(step: Collective, mesh: Mesh) -> list[tuple[int, int]]:
    """Who sends its piece to whom, by rank: of those that hold a piece the n-th to the n-th."""
    senders, receivers = (
        np.argsort(_piece_numbers(sharding, mesh), kind="stable")
        for sharding in (step.before, step.after)
    )
    return sorted((int(a), int(b)) for a, b in zip(senders, receivers, strict=True))


def _piece_numbers(sharding: Sharding, mesh: Mesh) -> npt.NDArray[np.int64]:
    return digits([axis for dim in sharding.dims for axis in dim.axes], mesh)


def _all_reduce(pieces: Pieces, step: Collective, mesh: Mesh) -> Pieces:
    return _summed(pieces, step.reduced, mesh)


def _summed(pieces: Pieces, axes: Axes, mesh: Mesh) -> Pieces:
    made = list(pieces)
    for group in _groups(axes, mesh):
        total = sum(pieces[device] for device in group)
        for device in group:
            made[device] = np.asarray(total)
    return made


def _reduce_scatter(pieces: Pieces, step: Collective, mesh: Mesh) -> Pieces:
    return _slice(_summed(pieces, step.axes, mesh), step, mesh)


_ACTIONS = {
    CollectiveKind.ALL_SLICE: _slice,
    CollectiveKind.ALL_GATHER: _gather,
    CollectiveKind.ALL_TO_ALL: _all_to_all,
    CollectiveKind.PERMUTE: _permute,
    CollectiveKind.ALL_REDUCE: _all_reduce,
    CollectiveKind.REDUCE_SCATTER: _reduce_scatter,
}
