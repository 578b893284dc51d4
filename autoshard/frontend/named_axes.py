"""The mesh axes that a user's shardings name, before there is a mesh to read them on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec

from autoshard.constraints import Pin, Term, Uses, sharding_of
from autoshard.frontend.spec_entries import spec_entries
from autoshard.frontend.user_constraints import SpecOfAnyRank
from autoshard.sharding import Sharding


def named_axes(shardings: Mapping[str, Any], terms: Iterable[Term] = ()) -> dict[str, str]:
    """The axes named by shardings that have no mesh of their own, and where each is named first.

    Args:
        shardings: By option, a pytree of `PartitionSpec`, `NamedSharding`, `Sharding` or None.
        terms: Constraints.
    """
    found: dict[str, str] = {}
    for option, tree in shardings.items():
        for leaf in jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, PartitionSpec)):
            for name in _names_in(leaf):
                found.setdefault(name, option)
    for term in terms:
        if isinstance(term, (Pin, Uses)):
            for name in _names_in(sharding_of(term)):
                found.setdefault(name, str(term))
    return found


def _names_in(said: Any) -> Iterator[str]:
    if isinstance(said, SpecOfAnyRank):
        said = said.given
    if isinstance(said, PartitionSpec):
        for entry in spec_entries(said):
            names = entry if isinstance(entry, tuple) else (entry,)
            yield from (name for name in names if isinstance(name, str))
    elif isinstance(said, Sharding) and said.inlined_mesh is None:
        yield from (ref.name for ref in said.axis_refs())
