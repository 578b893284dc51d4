"""Rules from regular expressions over names to shardings, as t5x, EasyLM and others take them.

A rule applies to what its expression is found in; the first that is found counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from autoshard.errors import PlanError
from autoshard.report.alike import numbers_of

Spec: TypeAlias = tuple[str | tuple[str, ...] | None, ...]
"""Entries of a `PartitionSpec`, uncut dimensions at its end left out."""

REST = ".*"
_ANY_NUMBER = "[0-9]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSpec:
    """A tensor by the segments of its path, and how it is sharded.

    Args:
        segments: `("params", "h", "0", "attn", "kernel")`.
        spec: What the plan wants.
    """

    segments: tuple[str, ...]
    spec: Spec

    @property
    def path(self) -> str:
        return "/".join(self.segments)


def partition_rules(tensors: Sequence[NamedSpec]) -> tuple[tuple[str, Spec], ...]:
    """Rules that give every tensor its sharding, as few and as short as are found.

    Each is the shortest end of a path that no tensor of another sharding has, with any number in
    the place of one where that holds too. What is not cut is left to the last rule, `.*`.

    Args:
        tensors: All that the rules are to speak of.

    Raises:
        PlanError: Two tensors of one path have different shardings.
    """
    rules: dict[str, Spec] = {}
    for tensor in tensors:
        if not tensor.spec or any(re.search(rule, tensor.path) for rule in rules):
            continue
        pattern = next((p for p in _patterns(tensor.segments) if _is_true(p, tensor, tensors)), "")
        if not pattern:
            raise PlanError(
                f"two tensors are called {tensor.path}, and the plan shards them differently",
                where="partition rules",
                fix="use plan.partition_specs(), which keeps them apart",
            )
        rules[pattern] = tensor.spec
    return (*_without_covered(rules, tensors), (REST, ()))


def _patterns(segments: tuple[str, ...]) -> Iterator[str]:
    """Expressions for the ends of a path, from the shortest on; any number before the number."""
    ends = [(r"(^|/)", segments[-count:]) for count in range(1, len(segments) + 1)]
    for start, end in (*ends, ("^", segments)):
        for escape in (_any_number, re.escape):
            yield f"{start}{'/'.join(map(escape, end))}$"


def _any_number(segment: str) -> str:
    words, _ = numbers_of(segment)
    return _ANY_NUMBER.join(map(re.escape, words))


def _is_true(pattern: str, tensor: NamedSpec, tensors: Sequence[NamedSpec]) -> bool:
    """What a pattern is found in has the sharding of a tensor."""
    return all(
        other.spec == tensor.spec for other in tensors if re.search(pattern, other.path) is not None
    )


def _without_covered(
    rules: Mapping[str, Spec], tensors: Sequence[NamedSpec]
) -> Iterator[tuple[str, Spec]]:
    """The rules but those whose tensors later and wider rules also have."""
    covers = {
        rule: {tensor.path for tensor in tensors if re.search(rule, tensor.path)} for rule in rules
    }
    left = dict(covers)
    for rule in rules:
        others = set().union(*(paths for other, paths in left.items() if other != rule))
        if covers[rule] <= others:
            del left[rule]
            continue
        yield rule, rules[rule]
