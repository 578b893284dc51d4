"""Running a sequence of collectives on real devices, each as JAX's own collective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.collectives import Collective, CollectiveKind
from autoshard.collectives.simulate import permutation_pairs
from autoshard.collectives.splitting import parts_at
from autoshard.layouts import MeshParts
from autoshard.sharding import Mesh, Sharding


def run_chain(
    whole: np.ndarray[Any, Any],
    before: Sharding,
    after: Sharding,
    steps: Sequence[Collective],
    mesh: Mesh,
) -> Any:
    """The array after the collectives, in the sharding that the last one leaves."""
    refs = [*before.axis_refs(), *after.axis_refs()]
    for step in steps:
        refs += [*step.before.axis_refs(), *step.after.axis_refs(), *step.axes]
    parts = parts_at(refs, mesh)
    names = tuple(f"p{part}" for part in range(len(parts.sizes)))
    devices = np.array(jax.devices()[: mesh.num_devices]).reshape(parts.sizes)
    jax_mesh = JaxMesh(devices, names)
    spec_in, spec_out = (_spec(sharding, parts) for sharding in (before, after))
    placed = jax.device_put(whole, NamedSharding(jax_mesh, spec_in))

    def body(piece: Any) -> Any:
        for step in steps:
            piece = _run(piece, step, parts, mesh)
        return piece

    mapped = jax.shard_map(
        body, mesh=jax_mesh, in_specs=spec_in, out_specs=spec_out, check_vma=False
    )
    return jax.jit(mapped)(placed)


def _names(axes: Sequence[Any], parts: MeshParts) -> tuple[str, ...]:
    return tuple(f"p{part}" for axis in axes for part in parts.parts_of(axis))


def _spec(sharding: Sharding, parts: MeshParts) -> P:
    return P(*(_names(dim.axes, parts) or None for dim in sharding.dims))


def _run(piece: Any, step: Collective, parts: MeshParts, mesh: Mesh) -> Any:
    if step.kind is CollectiveKind.PERMUTE:
        everything = tuple(f"p{part}" for part in range(len(parts.sizes)))
        return lax.ppermute(piece, everything, permutation_pairs(step, mesh))
    for dim, axes in enumerate(step.dims):
        names = _names(axes, parts)
        if not names:
            continue
        if step.kind is CollectiveKind.ALL_GATHER:
            piece = lax.all_gather(piece, names, axis=dim, tiled=True)
        elif step.kind is CollectiveKind.REDUCE_SCATTER:
            piece = lax.psum_scatter(piece, names, scatter_dimension=dim, tiled=True)
        else:
            size = piece.shape[dim] // parts.num_shards(int(name[1:]) for name in names)
            piece = lax.dynamic_slice_in_dim(piece, lax.axis_index(names) * size, size, dim)
    for move in step.moves:
        names = _names(move.axes, parts)
        piece = lax.all_to_all(piece, names, move.target, move.source, tiled=True)
    if step.kind is CollectiveKind.ALL_REDUCE:
        piece = lax.psum(piece, _names(step.reduced, parts))
    return piece
