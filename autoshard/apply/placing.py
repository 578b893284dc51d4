"""Making arrays where a plan wants them, whole on no device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from autoshard.apply.axis_types import to_auto_axes, to_given_axes
from autoshard.apply.named_shardings import (
    AnyJaxMesh,
    JaxMesh,
    as_jax_mesh,
    flat_named_shardings,
)
from autoshard.apply.wrapping import WrappedFunction
from autoshard.errors import InputError
from autoshard.frontend.meshes import mesh_context
from autoshard.frontend.signature import FlatTree, flatten_call, flatten_named
from autoshard.frontend.trace import abstract_leaf
from autoshard.frontend.user_shardings import read_shardings
from autoshard.sharding import Sharding


def shard(tree: Any, shardings: Any, mesh: AnyJaxMesh) -> Any:
    """Put every array of a tree where a plan wants it; arrays without a sharding are replicated.

    Arrays in host memory (NumPy) go to the devices piece by piece, so that none holds one whole.

    Args:
        tree: For example a training state.
        shardings: A pytree prefix of autoshard `Sharding`, `NamedSharding`, `PartitionSpec`, None.
        mesh: Of devices.

    Raises:
        InputError: The prefix does not match the tree.
        ShardingError: A sharding does not fit its array.
    """
    mesh = as_jax_mesh(mesh)
    flat = flatten_named([("tree", tree)], tree)
    read = _read_shardings(shardings, flat, mesh)
    names = [f"`{name}`" for name in flat.names]
    ranks = [len(abstract_leaf(leaf).shape) for leaf in flat.leaves]
    placed = [
        named if named is not None else mesh.named_sharding(Sharding.replicated_everywhere(rank))
        for named, rank in zip(flat_named_shardings(read, mesh, names), ranks, strict=True)
    ]
    with mesh_context(mesh.abstract):
        leaves = jax.device_put(list(flat.leaves), placed)
    return flat.rebuild(to_given_axes(leaves, mesh))


def check_like(tree: Any, planned: Any, where: str) -> None:
    """Refuse a tree with other arrays than an argument that was planned.

    Args:
        tree: Of arrays.
        planned: Of their planned types.
        where: The plan, for errors.

    Raises:
        InputError: An array is missing, is one too many, or has another shape; names the first.
    """
    found, wanted = (_shapes(flatten_named([("tree", one)], one)) for one in (tree, planned))
    for name, shape in wanted.items():
        if found.get(name, shape) != shape:
            raise InputError(
                f"`{name}` has shape {found[name]}, and the plan is for shape {shape}",
                where=where,
                fix="pass the arrays of the argument that was planned, or plan for these",
            )
    if odd := [name for name in (*wanted, *found) if (name in wanted) != (name in found)]:
        what = "is not in the tree" if odd[0] in wanted else "is not in the argument planned"
        raise InputError(
            f"`{odd[0]}` {what}",
            where=where,
            fix="pass a tree like the argument, and its number: plan.shard(tree, argument=1)",
        )


def _shapes(flat: FlatTree) -> dict[str, tuple[int, ...]]:
    leaves = map(abstract_leaf, flat.leaves)
    return {name: leaf.shape for name, leaf in zip(flat.names, leaves, strict=True)}


def init(fn: Callable[..., Any], shardings: Any, mesh: AnyJaxMesh) -> Callable[..., Any]:
    """A function that makes its result, a training state for example, already sharded.

    No device ever holds an array whole that the plan cuts: the function runs as one program whose
    results have these shardings.

    Args:
        fn: Makes the arrays, for example from a key.
        shardings: A pytree prefix of autoshard `Sharding`, `NamedSharding`, `PartitionSpec`, None,
            for what `fn` returns.
        mesh: Of devices.

    Raises:
        InputError: On a call, when the prefix does not match what the function returns.
        ShardingError: On a call, when a sharding does not fit its array.
        ExportError: On a call, when the function does not trace.
    """
    wrapped = WrappedFunction(fn, {}, as_jax_mesh(mesh), None, ())

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        call = flatten_call(fn, args, kwargs)
        leaves_in = to_auto_axes(call.arguments.leaves, wrapped.mesh)
        prepared = wrapped.prepare(call)
        read = _read_shardings(shardings, prepared.results, wrapped.mesh)
        named = flat_named_shardings(
            read, wrapped.mesh, [f"`{name}`" for name in prepared.results.names]
        )
        with mesh_context(wrapped.mesh.abstract):
            leaves = jax.jit(prepared.run, out_shardings=named)(*leaves_in)
        return call.finish(prepared.results.rebuild(to_given_axes(leaves, wrapped.mesh)))

    return run


def _read_shardings(prefix: Any, flat: FlatTree, mesh: JaxMesh) -> tuple[Sharding | None, ...]:
    shapes = [leaf.shape for leaf in map(abstract_leaf, flat.leaves)]
    return read_shardings(prefix, flat.dynamic_tree, mesh.order, flat.names, shapes, "shardings")


def without_static(
    argument: int, num_arrays: int, static_argnums: Sequence[int], where: str
) -> int:
    """The place of a positional argument among those that are arrays.

    Args:
        argument: Counted with the static ones, as users do; from the end where negative.
        num_arrays: How many there are that are arrays.
        static_argnums: Those that are not.
        where: The plan, for errors.

    Raises:
        InputError: There is no such argument, or it is static.
    """
    num_args = num_arrays + len(static_argnums)
    static = {number % num_args for number in static_argnums}
    position = argument + num_args if argument < 0 else argument
    if position in static or not 0 <= position < num_args:
        raise InputError(
            f"argument {argument} has no sharding: of {num_args} positional arguments,"
            f" {sorted(static) or 'none'} are static",
            where=where,
            fix="count positional arguments from 0, static ones included",
        )
    return position - sum(1 for number in static if number < position)
