"""Arrays as they lie, on another mesh: Explicit axes taken as Auto, devices in the plan's order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src.core import trace_state_clean  # private; checked on jax 0.10.2
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from autoshard.apply.named_shardings import JaxMesh
from autoshard.frontend.meshes import as_auto, mesh_context
from autoshard.frontend.trace import abstract_leaf
from autoshard.sharding import HOST_MEMORY, Sharding


def to_auto_axes(tree: Any, mesh: JaxMesh) -> Any:
    """Arrays on a mesh with Explicit axes, as lying on it with Auto axes; nothing is copied.

    Nor is anything where a mesh has the devices of the plan's in another order: the array is said
    to lie in the plan's order as it does.
    """
    leaves, structure = jax.tree.flatten(tree)
    for i, leaf in enumerate(leaves):
        if _is_placed(leaf) and mesh.has_another_order(leaf.sharding.mesh):
            leaves[i] = _in_plan_order(leaf, mesh)
    found = [i for i, leaf in enumerate(leaves) if _has_explicit_axes(leaf)]
    if not found:
        return jax.tree.unflatten(structure, leaves)
    shardings = [leaves[i].sharding for i in found]
    targets = [NamedSharding(as_auto(s.mesh), s.spec, memory_kind=s.memory_kind) for s in shardings]
    with mesh_context(mesh.abstract):
        moved = jax.device_put([leaves[i] for i in found], targets)
    for i, leaf in zip(found, moved, strict=True):
        leaves[i] = leaf
    return jax.tree.unflatten(structure, leaves)


def _in_plan_order(array: jax.Array, mesh: JaxMesh) -> jax.Array:
    assert isinstance(array.sharding, NamedSharding)
    sharding = mesh.named_sharding(mesh.read(array.sharding, array.ndim, "an argument"))
    pieces = [shard.data for shard in array.addressable_shards]
    found: jax.Array = jax.make_array_from_single_device_arrays(array.shape, sharding, pieces)
    return found


def placed_as(
    leaves: Sequence[Any], shardings: Sequence[NamedSharding | None], *, committed: bool
) -> list[Any]:
    """Returns the leaves, moved to these shardings as far as `jax.jit` does not do so.

    It places NumPy arrays, uncommitted ones and tracers, but brings none to host memory.

    Args:
        leaves: Of the arguments.
        shardings: By leaf; None leaves it where it is.
        committed: Move arrays that are committed to other devices or pieces of them too.
    """
    found = list(leaves)
    moved = [
        place
        for place, (leaf, sharding) in enumerate(zip(leaves, shardings, strict=True))
        if sharding is not None and _moves(leaf, sharding, committed=committed)
    ]
    if moved:
        arrays = jax.device_put([found[i] for i in moved], [shardings[i] for i in moved])
        for place, array in zip(moved, arrays, strict=True):
            found[place] = array
    return found


def _moves(leaf: Any, sharding: NamedSharding, *, committed: bool) -> bool:
    if isinstance(leaf, (jax.core.Tracer, jax.ShapeDtypeStruct)):
        return False
    if isinstance(leaf, jax.Array) and leaf.committed:
        return committed and lies_elsewhere(leaf, sharding)
    return bool(sharding.memory_kind == HOST_MEMORY)


def lies_elsewhere(leaf: Any, place: NamedSharding) -> bool:
    """True for an array that was placed, in another way or memory than wanted."""
    if not (isinstance(leaf, jax.Array) and leaf.committed):
        return False
    is_other_memory = leaf.sharding.memory_kind != place.memory_kind
    return bool(is_other_memory or not leaf.sharding.is_equivalent_to(place, leaf.ndim))


def to_given_axes(tree: Any, mesh: JaxMesh) -> Any:
    """Arrays with the axis types of a plan's mesh, or of the same mesh as `jax.set_mesh` has it.

    Without this, JAX refuses to compute with them there. Arrays on another mesh, such as one split
    for a sub-axis, stay as they are.
    """
    target = _target(mesh) if trace_state_clean() else None
    if target is None:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    found = [
        i
        for i, leaf in enumerate(leaves)
        if _is_placed(leaf) and leaf.sharding.mesh.shape == target.shape
    ]
    shardings = [leaves[i].sharding for i in found]
    targets = [NamedSharding(target, s.spec, memory_kind=s.memory_kind) for s in shardings]
    moved = jax.device_put([leaves[i] for i in found], targets)
    for i, leaf in zip(found, moved, strict=True):
        leaves[i] = leaf
    return jax.tree.unflatten(structure, leaves)


def _target(mesh: JaxMesh) -> jax.sharding.Mesh | None:
    """The mesh with Explicit axes that results belong on, if there is one."""
    around = jax.sharding.get_mesh()
    is_set = isinstance(around, jax.sharding.Mesh) and around.shape == mesh.auto.shape
    chosen = around if is_set else mesh.given
    if isinstance(chosen, AbstractMesh) or not chosen.abstract_mesh.explicit_axes:
        return None
    return chosen


def explicit_mesh_of(leaves: Sequence[Any]) -> AbstractMesh | None:
    """The mesh with Explicit axes that arrays have in their types, else that JAX computes under."""
    meshes = [jax.typeof(leaf).sharding.mesh for leaf in leaves if isinstance(leaf, jax.Array)]
    around = jax.sharding.get_abstract_mesh()
    return next((mesh for mesh in (*meshes, around) if mesh.explicit_axes), None)


def run_under_auto_axes(
    run: Callable[..., Sequence[Any]],
    leaves: Sequence[Any],
    mesh: AbstractMesh,
    results: Sequence[Any],
    shardings: Sequence[Sharding | None],
) -> Sequence[Any]:
    """Call a function for Auto axes on arrays with Explicit ones in their types.

    Args:
        run: Of flat arrays.
        leaves: What it takes.
        mesh: Of the types.
        results: Types of what it returns.
        shardings: Of results, for their types; where there are none, results are replicated.
    """
    given = shardings or (None,) * len(results)
    types = tuple(
        NamedSharding(mesh, _explicit_spec(sharding, mesh, len(result.shape)))
        for sharding, result in zip(given, results, strict=True)
    )
    found: Sequence[Any] = jax.sharding.auto_axes(run, out_sharding=types)(*leaves)
    return found


def _explicit_spec(sharding: Sharding | None, mesh: AbstractMesh, rank: int) -> PartitionSpec:
    """The part of a sharding that types can carry: whole Explicit axes, up to the first other."""
    if sharding is None or sharding.inlined_mesh is not None:
        return PartitionSpec(*(None,) * rank)
    entries = []
    for dim in sharding.dims:
        whole = itertools.takewhile(
            lambda ref: ref.is_whole and ref.name in mesh.explicit_axes, dim.axes
        )
        entries.append(tuple(ref.name for ref in whole) or None)
    return PartitionSpec(*entries)


def _is_placed(leaf: Any) -> bool:
    return (
        isinstance(leaf, jax.Array)
        and not isinstance(leaf, jax.core.Tracer)
        and isinstance(leaf.sharding, NamedSharding)
    )


def _has_explicit_axes(leaf: Any) -> bool:
    return _is_placed(leaf) and bool(leaf.sharding.mesh.abstract_mesh.explicit_axes)


def without_explicit_axes(leaf: Any) -> Any:
    return abstract_leaf(leaf) if _has_explicit_axes(leaf) else leaf
