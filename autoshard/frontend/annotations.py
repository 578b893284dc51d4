"""Shardings that arguments carry and nobody insists on: where they lie, and what Flax notes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import PyTreeDef

from autoshard.errors import AutoshardError
from autoshard.frontend.device_orders import DeviceOrder
from autoshard.frontend.spec_entries import spec_entries
from autoshard.frontend.user_shardings import read_sharding
from autoshard.sharding import Sharding

LogicalNames = tuple[str | None, ...]


def annotated_shardings(
    leaves: Sequence[Any], tree: PyTreeDef, order: DeviceOrder
) -> tuple[Sharding | None, ...]:
    """Per flat argument, the sharding that its user gave it, or None.

    That is where an array or a `ShapeDtypeStruct` lies, if on several pieces; else what Flax notes
    of it, if in axes of the mesh.

    Args:
        leaves: The flat arguments as they were passed.
        tree: Of the arguments.
        order: The plan's mesh and devices.
    """
    found = []
    for leaf, names in zip(leaves, names_from_metadata(tree), strict=True):
        given: Any = getattr(leaf, "sharding", None)
        if not isinstance(given, NamedSharding) or not any(spec_entries(given.spec)):
            given = None if names is None else PartitionSpec(*names)
        sharding = None
        with contextlib.suppress(AutoshardError):  # logical names, another mesh
            sharding = read_sharding(given, order, np.shape(leaf), "an argument")
        found.append(sharding)
    return tuple(found)


def names_from_metadata(tree: PyTreeDef) -> tuple[LogicalNames | None, ...]:
    """Per flat argument, the names that Flax keeps around it, or None.

    Linen keeps them in boxes (`nn.with_logical_partitioning`), NNX in its variables
    (`nnx.with_partitioning`), the optimizer's included.
    """
    count = tree.num_leaves
    places_in = jax.tree.unflatten(tree, range(count))
    found: list[LogicalNames | None] = [None] * count
    for node in jax.tree.leaves(places_in, is_leaf=lambda node: _kept_names(node) is not None):
        names, places = _kept_names(node), jax.tree.leaves(node)
        if names is not None and len(places) == 1:
            found[places[0]] = names
    return tuple(found)


def _kept_names(node: Any) -> LogicalNames | None:
    """What a box or variable calls the dimensions of its array."""
    kept = getattr(node, "names", None) if hasattr(node, "unbox") else None
    if hasattr(node, "get_metadata") and hasattr(node, "get_raw_value"):
        kept = node.get_metadata().get("out_sharding")
    if isinstance(kept, PartitionSpec):
        kept = spec_entries(kept)
    return tuple(kept) if isinstance(kept, (tuple, list)) else None
