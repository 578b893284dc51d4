"""Arrays as they lie, on another mesh: Explicit axes taken as Auto, devices in the plan's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding

from autoshard.apply.named_shardings import JaxMesh
from autoshard.frontend.meshes import as_auto, mesh_context
from autoshard.frontend.trace import abstract_leaf


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
    targets = [
        NamedSharding(as_auto(leaves[i].sharding.mesh), leaves[i].sharding.spec) for i in found
    ]
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


def placed_as(leaves: Sequence[Any], shardings: Sequence[NamedSharding | None]) -> list[Any]:
    """Returns the leaves, those committed to other devices or pieces of them moved to these.

    Arrays in host memory, uncommitted ones and tracers stay as they are: `jax.jit` places them.

    Args:
        leaves: Of the arguments.
        shardings: By leaf; None leaves it where it is.
    """
    found = list(leaves)
    moved = [
        place
        for place, (leaf, sharding) in enumerate(zip(leaves, shardings, strict=True))
        if sharding is not None and _lies_elsewhere(leaf, sharding)
    ]
    if moved:
        arrays = jax.device_put([found[i] for i in moved], [shardings[i] for i in moved])
        for place, array in zip(moved, arrays, strict=True):
            found[place] = array
    return found


def _lies_elsewhere(leaf: Any, sharding: NamedSharding) -> bool:
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer) or not leaf.committed:
        return False
    return not leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


def to_context_axes(tree: Any) -> Any:
    """Arrays with the Explicit axes of the mesh set by `jax.set_mesh`, if it has some.

    Without this, JAX refuses to compute with them there. Arrays on another mesh, such as one split
    for a sub-axis, stay as they are.
    """
    context = jax.sharding.get_abstract_mesh()
    if not context.explicit_axes or isinstance(concrete := jax.sharding.get_mesh(), AbstractMesh):
        return tree
    leaves, structure = jax.tree.flatten(tree)
    found = [
        i
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, jax.Array)
        and not isinstance(leaf, jax.core.Tracer)
        and isinstance(leaf.sharding, NamedSharding)
        and leaf.sharding.mesh.shape == concrete.shape
        and leaf.sharding.mesh != concrete
    ]
    targets = [NamedSharding(concrete, leaves[i].sharding.spec) for i in found]
    moved = jax.device_put([leaves[i] for i in found], targets)
    for i, leaf in zip(found, moved, strict=True):
        leaves[i] = leaf
    return jax.tree.unflatten(structure, leaves)


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
