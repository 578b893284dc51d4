"""Tensors told with another one: an optimizer's moments, and results sharded like arguments."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from autoshard.plans.plan import PlannedTensor

_KEY = re.compile(r"\[[^\]]*\]|\.\w+|\w+")
_ATTRIBUTE = re.compile(r"\.[a-z_]\w*")

Keys = tuple[str, ...]


def moments_of(tensors: Sequence[PlannedTensor]) -> dict[int, list[tuple[str, int]]]:
    """The moments of each parameter that are of its type and sharding, by position.

    Trees of equal leaves are told from one another by their depth: `state.params` is above
    `state.opt[0].mu`, whose last key, an attribute, names the moments; in trees that are equal in
    parts (`model.up`, `opt.mu.up`) it is the last one before the keys that both end in.
    """
    trees: defaultdict[Keys, dict[Keys, int]] = defaultdict(dict)
    for position, tensor in enumerate(tensors):
        keys = _keys(tensor)
        for length in range(1, len(keys)):
            trees[keys[:length]][keys[length:]] = position
    equal: defaultdict[frozenset[tuple[Keys, tuple[int, ...]]], list[Keys]] = defaultdict(list)
    for root, leaves in trees.items():
        shapes = ((keys, tensors[position].shape) for keys, position in leaves.items())
        equal[frozenset(shapes)].append(root)
    found: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
    told: set[int] = set()
    for _, roots in sorted(equal.items(), key=lambda one: -len(one[0])):  # the largest trees first
        home = min(roots, key=len)
        copies = [r for r in roots if len(r) > len(home) and _ATTRIBUTE.fullmatch(r[-1])]
        apart = [r for r in copies if r[: len(home)] != home and told.isdisjoint(trees[r].values())]
        if not apart or not told.isdisjoint(trees[home].values()):
            continue
        for keys, position in trees[home].items():
            told.add(position)
            for root in apart:
                copy = trees[root][keys]
                told.add(copy)
                if _is_like(tensors[copy], tensors[position]):
                    found[position].append((_name_beside(root, home), copy))
    return found


def _name_beside(root: Keys, home: Keys) -> str:
    while len(root) > 1 and root[-1] == home[-1]:
        root, home = root[:-1], home[:-1] or home
    return root[-1].removeprefix(".")


def sharded_like_arguments(
    results: Sequence[PlannedTensor], arguments: Sequence[PlannedTensor]
) -> set[int]:
    """Results that are an argument by name, type and sharding: `result[0]['w']` is `state['w']`."""
    known = {_keys(tensor)[1:]: tensor for tensor in arguments}
    found = set()
    for position, result in enumerate(results):
        keys = _keys(result)
        like = (known.get(keys[length:]) for length in (1, 2) if keys[length:])
        if any(one is not None and _is_like(one, result) for one in like):
            found.add(position)
    return found


def _keys(tensor: PlannedTensor) -> Keys:
    return tuple(_KEY.findall(tensor.name))


def _is_like(one: PlannedTensor, other: PlannedTensor) -> bool:
    return (one.shape, one.dtype, one.sharding) == (other.shape, other.dtype, other.sharding)
