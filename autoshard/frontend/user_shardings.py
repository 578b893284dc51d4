"""Shardings as JAX users write them, read into ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import PyTreeDef

from autoshard.errors import InputError, ShardingError
from autoshard.frontend.device_orders import DeviceOrder
from autoshard.frontend.spec_entries import spec_entries
from autoshard.graph.program import DEVICE_MEMORY
from autoshard.sharding import (
    HOST_MEMORY,
    AxisRef,
    DimSharding,
    Mesh,
    Sharding,
)
from autoshard.wishes.other_meshes import misfit, on_mesh


def read_sharding(
    given: Any, order: DeviceOrder, shape: Sequence[int], where: str
) -> Sharding | None:
    """One user sharding for one array; None where the user leaves it free.

    Dimensions beyond the spec are closed, as in JAX; `PartitionSpec.UNCONSTRAINED` ones are open.

    Args:
        given: `None`, a `PartitionSpec`, a `NamedSharding` or an autoshard `Sharding`.
        order: The plan's mesh and devices. What is on another mesh over them carries it.
        shape: Of the array.
        where: Names the array in errors.

    Raises:
        ShardingError: An unknown or repeated axis, too many dimensions, or a dimension its axes do
            not divide.
        InputError: Another kind of object, or a sharding on other devices.
    """
    if given is None:
        return None
    if isinstance(given, Sharding):
        found = given
    elif isinstance(given, PartitionSpec):
        found = spec_to_sharding(given, len(shape), where)
    elif isinstance(given, NamedSharding):
        found = read_named_sharding(given, order, len(shape), where)
    else:
        raise InputError(
            f"expected None, a PartitionSpec, a NamedSharding or an autoshard Sharding, found"
            f" {type(given).__name__}",
            where=where,
            fix=f"write PartitionSpec({given!r})"
            if isinstance(given, str)
            else "write it as a PartitionSpec over the axes of the mesh",
        )
    on_mesh(found, order.mesh, where)
    _check_fits(found, order.mesh, shape, where)
    return found


def spec_to_sharding(spec: PartitionSpec, rank: int, where: str = "") -> Sharding:
    """A `PartitionSpec` for an array of this rank.

    Raises:
        ShardingError: The spec has more entries than the array has dimensions, or says over which
            axes a gradient is reduced.
    """
    entries = spec_entries(spec)
    if spec.reduced:
        raise ShardingError(
            f"{spec} has reduced axes, which say nothing of where a tensor lies",
            where=where,
            fix="leave them out",
        )
    if len(entries) > rank:
        raise ShardingError(
            f"{spec} has {len(entries)} {'entry' if len(entries) == 1 else 'entries'} for {rank}"
            f" dimension{'' if rank == 1 else 's'}",
            where=where,
            fix="write one entry per dimension; None or a missing entry leaves it unsharded",
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


def read_named_sharding(
    given: NamedSharding, order: DeviceOrder, rank: int, where: str = ""
) -> Sharding:
    """A `NamedSharding` as ours; it carries its mesh where that is not the plan's.

    Raises:
        InputError: It is on other devices, or in a memory that plans do not know.
        ShardingError: The spec has more entries than the array has dimensions.
    """
    own = order.mesh_of(given, where)
    if given.memory_kind not in (None, DEVICE_MEMORY, HOST_MEMORY):
        raise InputError(
            f"plans know the memories {DEVICE_MEMORY!r} and {HOST_MEMORY!r}, not"
            f" {given.memory_kind!r}",
            where=where,
            fix=f"write memory_kind={HOST_MEMORY!r}, or leave it out",
        )
    memory_kind = HOST_MEMORY if given.memory_kind == HOST_MEMORY else ""
    spelled = replace(spec_to_sharding(given.spec, rank, where), memory_kind=memory_kind)
    return spelled if own == Mesh(order.mesh.axes) else replace(spelled, inlined_mesh=own)


def _check_fits(sharding: Sharding, mesh: Mesh, shape: Sequence[int], where: str) -> None:
    found = misfit(sharding, mesh, shape)
    if found is not None:
        what, fix = found
        raise ShardingError(what, where=where, fix=fix)


def read_shardings(
    prefix: Any,
    tree: PyTreeDef,
    order: DeviceOrder,
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
            f"{option} does not match what it is for: {_mismatch(prefix, full)}",
            where=option,
            fix="give one sharding for everything, or a tree with the same outer structure; a"
            " sharding is a PartitionSpec, as in P('data', None), or None",
        ) from error
    return tuple(
        read_sharding(one.sharding, order, shape, f"{option} of `{name}`")
        for one, shape, name in zip(given, shapes, names, strict=True)
    )


def _mismatch(prefix: Any, full: Any) -> str:
    """In what a prefix differs from the tree that it does not match."""
    text = next((leaf for leaf in jax.tree.leaves(prefix) if isinstance(leaf, str)), None)
    if text is not None:
        return f"it has the text {text!r} in place of a sharding"
    inside = [(prefix, full)]
    while inside:
        ours, theirs = inside.pop()
        if type(ours) is tuple and type(theirs) is tuple:
            if len(ours) != len(theirs):
                return f"it has {len(ours)} of {len(theirs)} entries"
            inside.extend(zip(ours, theirs, strict=True))
        if type(ours) is dict and type(theirs) is dict:
            if ours.keys() != theirs.keys():
                added, left_out = ours.keys() - theirs.keys(), theirs.keys() - ours.keys()
                return " and ".join(
                    f"{word} {', '.join(sorted(map(repr, keys)))}"
                    for word, keys in (("it has", added), ("it lacks", left_out))
                    if keys
                )
            inside.extend((ours[key], theirs[key]) for key in ours)
    return "its tree has other keys, types or lengths"


@dataclass(frozen=True, slots=True)
class _Given:
    sharding: Any


def _is_sharding(node: Any) -> bool:
    return node is None or isinstance(node, (PartitionSpec, jax.sharding.Sharding, Sharding))
