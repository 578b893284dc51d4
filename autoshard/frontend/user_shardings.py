"""Shardings as JAX users write them, read into ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import PyTreeDef

from autoshard.errors import InputError, ShardingError
from autoshard.sharding import (
    AxisRef,
    DimSharding,
    Mesh,
    Sharding,
    canonicalize,
    format_sharding,
)


def read_sharding(given: Any, mesh: Mesh, shape: Sequence[int], where: str) -> Sharding | None:
    """One user sharding for one array; None where the user leaves it free.

    Dimensions beyond the spec are closed, as in JAX; `PartitionSpec.UNCONSTRAINED` ones are open.

    Args:
        given: `None`, a `PartitionSpec`, a `NamedSharding` or an autoshard `Sharding`.
        mesh: The mesh its axes must be on.
        shape: Of the array.
        where: Names the array in errors.

    Raises:
        ShardingError: An unknown or repeated axis, too many dimensions, or a dimension its axes do
            not divide.
        InputError: Another kind of object, or a sharding on another mesh.
    """
    if given is None:
        return None
    if isinstance(given, Sharding):
        found = given
    elif isinstance(given, PartitionSpec):
        found = spec_to_sharding(given, len(shape), where)
    elif isinstance(given, NamedSharding):
        found = read_named_sharding(given, mesh, len(shape), where)
    else:
        raise InputError(
            f"expected None, a PartitionSpec, a NamedSharding or an autoshard Sharding, found"
            f" {type(given).__name__}",
            where=where,
            fix="write it as a PartitionSpec over the axes of the mesh",
        )
    _check_fits(found, mesh, shape, where)
    return found


def spec_to_sharding(spec: PartitionSpec, rank: int, where: str = "") -> Sharding:
    """A `PartitionSpec` for an array of this rank.

    Raises:
        ShardingError: The spec has more entries than the array has dimensions.
    """
    entries = tuple(spec)
    if len(entries) > rank:
        raise ShardingError(
            f"{spec} has {len(entries)} entries for {rank} dimension{'' if rank == 1 else 's'}",
            where=where,
            fix="write one entry per dimension; None or a missing entry leaves it uncut",
        )
    entries += (None,) * (rank - len(entries))
    return Sharding(
        tuple(_read_entry(entry) for entry in entries),
        unreduced=tuple(AxisRef(str(name)) for name in sorted(spec.unreduced)),
    )


def _read_entry(entry: Any) -> DimSharding:
    if entry is None:
        return DimSharding()
    if entry is PartitionSpec.UNCONSTRAINED:
        return DimSharding(is_open=True)
    names = entry if isinstance(entry, tuple) else (entry,)
    return DimSharding(tuple(AxisRef(str(name)) for name in names))


def read_named_sharding(given: NamedSharding, mesh: Mesh, rank: int, where: str = "") -> Sharding:
    """A `NamedSharding` on this mesh, or on one whose axes are parts of its axes, as ours.

    Raises:
        InputError: It is on another mesh.
        ShardingError: The spec has more entries than the array has dimensions.
    """
    parts = _parts_of(mesh, [(str(name), size) for name, size in given.mesh.shape.items()])
    if parts is None:
        shown = ", ".join(f"{name}={size}" for name, size in given.mesh.shape.items())
        raise InputError(
            f"the sharding is on mesh ({shown}), the plan is for {mesh}",
            where=where,
            fix="use one mesh for both, or split its axes in place",
        )
    spelled = spec_to_sharding(given.spec, rank, where)
    return canonicalize(
        Sharding(
            tuple(
                DimSharding(tuple(parts[ref.name] for ref in dim.axes), dim.is_open)
                for dim in spelled.dims
            ),
            unreduced=tuple(parts[ref.name] for ref in spelled.unreduced),
        ),
        mesh,
    )


def _parts_of(mesh: Mesh, axes: Sequence[tuple[str, int]]) -> dict[str, AxisRef] | None:
    """Each axis of a finer mesh as the axis or sub-axis of `mesh` it is; None where it is none."""
    left = list(axes)
    parts: dict[str, AxisRef] = {}
    for axis in mesh.axes:
        if left and left[0] == (axis.name, axis.size):
            parts[left.pop(0)[0]] = AxisRef(axis.name)
            continue
        done = 1
        while left and done < axis.size and axis.size % (done * left[0][1]) == 0:
            name, size = left.pop(0)
            parts[name] = AxisRef(axis.name, done, size)
            done *= size
        if done != axis.size:
            return None
    return None if left else parts


def _check_fits(sharding: Sharding, mesh: Mesh, shape: Sequence[int], where: str) -> None:
    if sharding.rank != len(shape):
        raise ShardingError(
            f"{format_sharding(sharding)} has {sharding.rank} dimensions, the array has"
            f" {len(shape)}",
            where=where,
            fix="write one entry per dimension",
        )
    seen: list[AxisRef] = []
    for ref in sharding.axis_refs():
        if ref.name not in mesh.sizes:
            names = ", ".join(f'"{name}"' for name in mesh.axis_names)
            raise ShardingError(
                f'the mesh has no axis "{ref.name}"; its axes are: {names}',
                where=where,
                fix="use one of its axes, or add this one to the mesh",
            )
        if any(ref.overlaps(other) for other in seen):
            raise ShardingError(
                f"axis {ref} is used twice",
                where=where,
                fix="an axis cuts one dimension of an array at most",
            )
        seen.append(ref)
    for position, (dim, size) in enumerate(zip(sharding.dims, shape, strict=True)):
        num_shards = math.prod(ref.size_on(mesh) for ref in dim.axes)
        if size % num_shards:
            axes = ", ".join(str(ref) for ref in dim.axes)
            padded = -(-size // num_shards) * num_shards
            raise ShardingError(
                f"dimension {position} has size {size}, which the {num_shards} shards of {axes} do"
                " not divide",
                where=where,
                fix=f"pad dimension {position} to {padded}, or shard another one",
            )


def read_shardings(
    prefix: Any,
    tree: PyTreeDef,
    mesh: Mesh,
    names: Sequence[str],
    shapes: Sequence[Sequence[int]],
    option: str,
) -> tuple[Sharding | None, ...]:
    """A pytree prefix of user shardings, spread over every array of `tree`.

    Raises:
        InputError: The prefix does not match the tree.
        ShardingError: One of the shardings does not fit its array.
    """
    if prefix is None:
        return (None,) * len(names)
    # `None` is a sharding in the prefix and no leaf in the tree: boxes keep the two apart.
    boxed = jax.tree.map(_Given, prefix, is_leaf=_is_sharding)
    full = jax.tree.unflatten(tree, range(tree.num_leaves))
    try:
        given: list[_Given] = jax.tree.leaves(jax.tree.broadcast(boxed, full))
    except ValueError as error:
        raise InputError(
            f"{option} does not match what it is for: {error}",
            where=option,
            fix="give one sharding for everything, or a tree with the same outer structure",
        ) from error
    return tuple(
        read_sharding(one.sharding, mesh, shape, f"{option} of `{name}`")
        for one, shape, name in zip(given, shapes, names, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Given:
    sharding: Any


def _is_sharding(node: Any) -> bool:
    return node is None or isinstance(node, (PartitionSpec, jax.sharding.Sharding, Sharding))
