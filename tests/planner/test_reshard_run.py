"""Steps of chains, each run as the one collective it claims to be, on 8 CPU devices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from autoshard.layouts import Layout, MeshParts
from autoshard.reshard import Step, StepKind
from tests.planner.graphs import parts_of
from tests.planner.test_reshard import coordinates, table_of

SHAPE = (8, 16)
MESHES = {
    "x=2,y=4": parts_of("x=2,y=4"),
    "x=2,y=2,z=2": parts_of("x=2,y=2,z=2"),
    "x=8 in parts": parts_of("x=8", x=(2, 4)),
}


def axis(part: int) -> str:
    return f"part{part}"


def spec(layout: Layout) -> PartitionSpec:
    return PartitionSpec(*(tuple(axis(part) for part in dim) for dim in layout))


def collective(parts: MeshParts, step: Step) -> Callable[[jax.Array], jax.Array]:
    """What one device does in a step, given its piece."""
    names = tuple(axis(part) for part in step.parts)
    changed = [d for d in range(2) if step.before[d] != step.after[d]]
    if step.kind is StepKind.ALL_GATHER:
        return partial(lax.all_gather, axis_name=names, axis=changed[0], tiled=True)
    if step.kind is StepKind.ALL_TO_ALL:
        source = next(d for d in changed if len(step.before[d]) > len(step.after[d]))
        target = 1 - source
        return partial(
            lax.all_to_all, axis_name=names, split_axis=target, concat_axis=source, tiled=True
        )
    if step.kind is StepKind.SLICE:

        def cut(piece: jax.Array) -> jax.Array:
            for dim in changed:
                new = step.after[dim][len(step.before[dim]) :]
                size = piece.shape[dim] // parts.num_shards(new)
                start = lax.axis_index(tuple(axis(part) for part in new)) * size
                piece = lax.dynamic_slice_in_dim(piece, start, size, dim)
            return piece

        return cut
    everyone = tuple(axis(part) for part in range(len(parts.sizes)))
    return partial(lax.ppermute, axis_name=everyone, perm=routes(parts, step))


def routes(parts: MeshParts, step: Step) -> list[tuple[int, int]]:
    """Who sends its piece to whom in a permutation: the nearest holder of what is wanted."""
    num_devices = int(np.prod(parts.sizes))

    def piece(device: int, layout: Layout) -> tuple[tuple[int, ...], ...]:
        at = coordinates(parts, device)
        return tuple(
            (int(np.ravel_multi_index([at[p] for p in dim], [parts.sizes[p] for p in dim])),)
            if dim
            else (0,)
            for dim in layout
        )

    left = list(range(num_devices))
    found = []
    for target in range(num_devices):
        wanted = piece(target, step.after)
        source = next(d for d in left if piece(d, step.before) == wanted)
        left.remove(source)
        found.append((source, target))
    return found


@pytest.mark.parametrize("name", MESHES)
def test_chains_bring_the_right_data_to_every_device(name: str) -> None:
    parts = MESHES[name]
    table = table_of(parts, SHAPE)
    mesh = jax.make_mesh(
        parts.sizes,
        tuple(axis(part) for part in range(len(parts.sizes))),
        axis_types=(AxisType.Auto,) * len(parts.sizes),
    )
    whole = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    steps = {
        step for start, end in product(table.layouts, repeat=2) for step in table.chain(start, end)
    }
    assert {StepKind.SLICE, StepKind.ALL_GATHER, StepKind.ALL_TO_ALL} <= {s.kind for s in steps}
    kinds: dict[StepKind, list[Step]] = {}
    for step in sorted(steps, key=lambda s: (s.before, s.after)):
        kinds.setdefault(step.kind, []).append(step)
    chosen = [step for found in kinds.values() for step in found[:: max(1, len(found) // 8)]]

    def run_all(arrays: list[Any]) -> list[Any]:
        return [
            jax.shard_map(
                collective(parts, step),
                mesh=mesh,
                in_specs=spec(step.before),
                out_specs=spec(step.after),
                check_vma=False,
            )(array)
            for step, array in zip(chosen, arrays, strict=True)
        ]

    placed = [jax.device_put(whole, NamedSharding(mesh, spec(s.before))) for s in chosen]
    for step, moved in zip(chosen, jax.jit(run_all)(placed), strict=True):
        assert moved.sharding.is_equivalent_to(NamedSharding(mesh, spec(step.after)), 2)
        for shard in moved.addressable_shards:
            np.testing.assert_array_equal(shard.data, whole[shard.index], err_msg=str(step))
