"""Flax NNX objects in a pytree: modules, optimizers, Rngs and variables, held as their states.

`flax.nnx.split` takes the arrays out of all objects of a tree at once, so that a variable that two
of them share is there once; it stays where it is met first.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.tree_util import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    KeyPath,
    PyTreeDef,
    SequenceKey,
    keystr,
)

from autoshard.errors import InputError


@dataclass(frozen=True, slots=True, eq=False)
class NnxObjects:
    """The NNX objects of a pytree, apart from their arrays.

    Args:
        structure: Of the pytree; objects are leaves.
        places: Of the objects among its leaves.
        graph: `nnx.GraphDef` of the tuple of all objects; equal where all but arrays is.
        objects: As they were found.
    """

    structure: PyTreeDef
    places: tuple[int, ...]
    graph: Any
    objects: tuple[Any, ...]

    def merged(self, states: Any) -> Any:
        """The pytree with new objects, from one with states in their places."""
        return self._with_objects(states, _nnx().merge(self.graph, self._joined(states)))

    def update(self, states: Any) -> None:
        """Give the objects themselves the arrays of a pytree with states in their places."""
        _nnx().update(self.objects, self._joined(states))

    def leaves_after(self, tree: Any, function: str) -> list[Any]:
        """The leaves of a pytree's objects after a call, in the order of their states.

        Args:
            tree: What the function was called with, of this structure and graph.
            function: Its name, for errors.

        Raises:
            InputError: The function changed more of them than arrays.
        """
        graph, states = _nnx().split(self.objects_of(tree))
        if graph != self.graph:
            raise InputError(
                f"{function} adds, removes or sets attributes of its Flax NNX objects, of which"
                " only arrays can be updated in place",
                where=function,
                fix="take what it adds away again (nnx.pop(model, nnx.Intermediate)), or split and"
                " merge: pass nnx.state(model), nnx.merge(graph, state) in the function, and return"
                " what is needed of nnx.state(model)",
            )
        return list(jax.tree.leaves(states))

    def objects_of(self, tree: Any) -> tuple[Any, ...]:
        """The objects of another pytree of this structure."""
        leaves = self.structure.flatten_up_to(tree)
        return tuple(leaves[place] for place in self.places)

    def _joined(self, states: Any) -> Any:
        nnx = _nnx()
        found = enumerate(self.objects_of(states))
        return nnx.State({number: state for number, state in found if jax.tree.leaves(state)})

    def _with_objects(self, tree: Any, objects: tuple[Any, ...]) -> Any:
        leaves = self.structure.flatten_up_to(tree)
        for place, found in zip(self.places, objects, strict=True):
            leaves[place] = found
        return jax.tree.unflatten(self.structure, leaves)


def split_objects(tree: Any) -> tuple[Any, NnxObjects | None]:
    """A pytree with the states of NNX objects in their places, and the objects.

    States that the user split off are pytrees like any other.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return tree, None
    leaves, structure = jax.tree.flatten(tree, is_leaf=_ends_search)
    places = tuple(place for place, leaf in enumerate(leaves) if is_nnx_object(leaf))
    if not places:
        return tree, None
    objects = tuple(leaves[place] for place in places)
    graph, states = nnx.split(objects)
    found = NnxObjects(structure, places, graph, objects)
    each = tuple(states.get(number, nnx.State({})) for number in range(len(objects)))
    return found._with_objects(tree, each), found


def is_nnx_object(node: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and bool(getattr(nnx, "graphlib", nnx.graph).is_graph_node(node))


def is_nnx_state(node: Any) -> bool:
    """Whether the user split it off an object: a pytree, though of variables."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(node, nnx.State)


def leaves_beside_objects(tree: Any) -> Iterator[tuple[KeyPath, Any]]:
    """The leaves of a pytree but for those of NNX objects, with their paths."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=_ends_search):
        if is_nnx_state(leaf):
            for inner, value in jax.tree_util.tree_leaves_with_path(leaf):
                yield path + inner, value
        elif not is_nnx_object(leaf):
            yield path, leaf


def _ends_search(node: Any) -> bool:
    return is_nnx_object(node) or is_nnx_state(node)


def _nnx() -> Any:
    return sys.modules["flax.nnx"]


def readable_path(path: KeyPath, *, is_alone: bool = True) -> str:
    """`['params'].w1[0]`; a Flax variable's own `.value` says nothing and is left out.

    Args:
        path: Of a leaf.
        is_alone: The node that holds the leaf has no other: it may be such a variable.
    """
    return str(keystr(_beside_value(path) if is_alone else path))


def leaves_alone(paths: Iterable[KeyPath]) -> list[bool]:
    """Of the paths of a tree's leaves, whether the node that holds each has no other leaf."""
    paths = list(paths)
    num_leaves = Counter(path[:end] for path in paths for end in range(len(path)))
    return [num_leaves[path[:-1]] == 1 for path in paths]


def attribute_path(path: KeyPath) -> str:
    """A path in the state of an object as its user writes it: `.layers[0].kernel`."""
    names = map(_key, _beside_value(path))
    return "".join(
        f".{name}" if isinstance(name, str) and name.isidentifier() else f"[{name!r}]"
        for name in names
    )


def _beside_value(path: KeyPath) -> KeyPath:
    is_value = path and isinstance(path[-1], GetAttrKey) and path[-1].name == "value"
    return path[:-1] if is_value else path


def _key(key: Any) -> Any:
    if isinstance(key, SequenceKey):
        return key.idx
    if isinstance(key, (DictKey, FlattenedIndexKey)):
        return key.key
    return key.name if isinstance(key, GetAttrKey) else str(key)
