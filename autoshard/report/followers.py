"""Tensors told with another one: an optimizer's moments, and results sharded like arguments."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from autoshard.plans.plan import PlannedTensor

_KEY = re.compile(r"\[[^\]]*\]|\.\w+|\w+")
_ATTRIBUTE = re.compile(r"\.[a-z_]\w*")
_MOST_COPIES = 8
"""Parameters, averages of them, moments: a smaller share of the tensors is a part of a model."""

Keys = tuple[str, ...]


def moments_of(tensors: Sequence[PlannedTensor]) -> dict[int, list[tuple[str, int]]]:
    """The moments of each parameter that are of its type and sharding, by position.

    A tree in which all leaves are equal is a copy of a shorter one: where the two end in the same
    keys (`model.up`, `opt.mu.up`), and only an argument or its field is before them in the shorter
    one; or where they are trees of all parameters (`state.params`, `state.opt[0].mu`). Moments are
    named by the last key, an attribute, before those that both end in.
    """
    trees: defaultdict[Keys, dict[Keys, int]] = defaultdict(dict)
    for position, tensor in enumerate(tensors):
        keys = _keys(tensor)
        for length in range(1, len(keys) + 1):
            trees[keys[:length]][keys[length:]] = position
    equal: defaultdict[frozenset[tuple[Keys, tuple[int, ...]]], list[Keys]] = defaultdict(list)
    for root, leaves in trees.items():
        shapes = ((keys, tensors[position].shape) for keys, position in leaves.items())
        equal[frozenset(shapes)].append(root)
    found: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
    copied: set[int] = set()
    for shaped, roots in sorted(equal.items(), key=lambda one: -len(one[0])):  # the largest first
        is_whole = () not in trees[roots[0]] and len(shaped) * _MOST_COPIES >= len(tensors)
        for root, home in _homes(roots, is_whole=is_whole):
            if not copied.isdisjoint((*trees[root].values(), *trees[home].values())):
                continue
            for keys, position in trees[home].items():
                copy = trees[root][keys]
                copied.add(copy)
                if _is_like(tensors[copy], tensors[position]):
                    found[position].append((_name_beside(root, home), copy))
    return found


def _homes(roots: Sequence[Keys], *, is_whole: bool) -> Iterator[tuple[Keys, Keys]]:
    """Trees that are copies, each with the tree that it is a copy of."""
    by_end: dict[Keys, Keys] = {}
    for root in sorted(roots, key=len):
        for length in (1, 2):
            if root[length:]:
                by_end.setdefault(root[length:], root)
    shortest = min(roots, key=len)
    for root in roots:
        ends = (root[start:] for start in range(1, len(root)))
        end, home = next(
            ((end, by_end[end]) for end in ends if by_end.get(end, root) != root), ((), shortest)
        )
        beside = home[: len(home) - len(end)]
        is_apart = root[: len(beside)] != beside and len(root) > len(home)
        named_by = root[: len(root) - len(end)][-1]
        if is_apart and (end or is_whole) and _ATTRIBUTE.fullmatch(named_by):
            yield root, home


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
    return _alike(one) == _alike(other)


def _alike(one: PlannedTensor) -> tuple[object, ...]:
    return one.shape, one.dtype, one.sharding, one.is_on_host
