"""The fewest constraints from which propagation reproduces a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from autoshard.identity_cache import IdentityCache
from autoshard.sharding import AxisRef, DimSharding, Sharding

Propagate: TypeAlias = Callable[
    [Sequence[Sharding | None], Sequence[Sharding | None], Mapping[str, Sharding]],
    Mapping[str, Sharding],
]
"""From shardings of arguments and results, and constraints by path, to a sharding by path."""

Tell: TypeAlias = Callable[[str], None]
"""Told how far a search is: `40 of at most 373 propagations, 21 constraints`."""

_PARTS = (2, 3, 5)
"""In so many parts many constraints are left out first, a part at a time. A choice."""
_ALONE, _TOGETHER = 24, 3
"""So few constraints are left out one by one, more so many at once at the end. A choice: one by one
takes as long as all before, and drops 2 of 110 (five training steps, 2026-11-27); of 15 to 20 the
parts drop no more, and take 5 to 7 of 31 propagations (four training steps, 2026-12-01)."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A value that no constraint brings to its planned sharding.

    Args:
        path: The value.
        planned: What the plan wants.
        propagated: What it gets.
    """

    path: str
    planned: Sharding
    propagated: Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimalSet:
    """Constraints that reproduce a plan, and how sure it is that none is superfluous.

    Args:
        constraints: By path; the required ones first, the others in program order.
        misses: Values that end up otherwise than planned, in program order.
        untried: How many constraints that were not required may be superfluous, because the limit
            of work was reached before they were left out to see; 0 if the set is minimal.
        num_propagations: How often propagation ran.
    """

    constraints: Mapping[str, Sharding]
    misses: tuple[Miss, ...]
    untried: int
    num_propagations: int

    @property
    def is_minimal(self) -> bool:
        """Leaving out any constraint that was not required changed some planned value.

        Each was left out once, from these constraints and those dropped after it; a constraint and
        its copies in equal layers together, and of many constraints a few together.
        """
        return self.untried == 0


def minimal_constraints(
    propagate: Propagate,
    planned: Mapping[str, Sharding],
    order: Sequence[str],
    in_shardings: Sequence[Sharding | None],
    out_shardings: Sequence[Sharding | None],
    required: Mapping[str, Sharding],
    *,
    max_propagations: float = math.inf,
    copies_of: Callable[[str], Hashable] = str,
    few: MinimalSet | None = None,
    is_over: Callable[[], bool] = lambda: False,
    tell: Tell | None = None,
) -> MinimalSet:
    """Choose constraints until every value comes out as planned, then drop all that can go.

    Values are constrained in program order where they first come out wrong, several at a time; then
    constraints are left out in groups, then one by one: each one left was needed when it was tried.
    A value that comes out wrong although it is constrained is a miss, and no longer asked for.

    Two shardings are equal here when they cut every dimension by the same axes of one mesh; whether
    a dimension is open does not matter, nor do values that `propagate` does not report.

    Args:
        propagate: Called with constraints by path; pure.
        planned: The sharding wanted, by path of a value.
        order: Paths in program order; those that are not planned are passed over.
        in_shardings: Of the program's arguments; always given.
        out_shardings: Of its results; likewise.
        required: Constraints that are always there, such as those on single uses.
        max_propagations: After so many what is left is constrained outright and nothing more is
            dropped. Work counts and no clock: one program has one set.
        copies_of: A key that copies of one value in equal layers share: all of them are constrained
            or none. Without `few`, copies that nothing misses are left out at the end.
        few: The set for the same program with few of its equal layers, in which values have the
            same paths. It is taken for all layers; what then comes out wrong is constrained too.
        is_over: True once somebody or a clock ended the search, as the limit of propagations does.
        tell: Told how far the search is.

    Returns:
        The set, closed shardings as planned.
    """
    ordered = {path: planned[path] for path in dict.fromkeys(order) if path in planned}
    search = _Search(
        propagate, ordered, in_shardings, out_shardings, required, max_propagations, is_over, tell
    )
    search.gather(copies_of)
    if few is None:
        chosen, untried = search.shrink(search.grow(()))
        return search.result(search.apart(chosen), untried)
    start = list(dict.fromkeys(search.first(path) for path in few.constraints if path in planned))
    chosen = search.grow(start)
    return search.result(chosen, few.untried + len(chosen) - len(start), few.num_propagations)


@dataclass(slots=True)
class _Search:
    propagate: Propagate
    planned: Mapping[str, Sharding]
    in_shardings: Sequence[Sharding | None]
    out_shardings: Sequence[Sharding | None]
    required: Mapping[str, Sharding]
    max_propagations: float
    is_over: Callable[[], bool]
    tell: Tell | None
    num_propagations: int = 0
    first_of: dict[str, str] = field(default_factory=dict)
    missed: set[str] = field(default_factory=set)
    _last: tuple[frozenset[str], Mapping[str, Sharding]] | None = None
    _differing: dict[frozenset[str], Mapping[str, Sharding]] = field(default_factory=dict)
    _alike: IdentityCache[bool] = field(default_factory=IdentityCache)

    def gather(self, copies_of: Callable[[str], Hashable]) -> None:
        """Constrain copies together from now on."""
        first: dict[Hashable, str] = {}
        for path in self.planned:
            self.first_of[path] = first.setdefault(copies_of(path), path)

    def result(self, chosen: Sequence[str], untried: int, num_before: int = 0) -> MinimalSet:
        """The set, and what it does not bring about; propagations before this search count."""
        return MinimalSet(
            constraints={**self.required, **self._constraints(chosen)},
            misses=tuple(
                Miss(path, self.planned[path], found)
                for path, found in self.differing(chosen).items()
            ),
            untried=untried,
            num_propagations=num_before + self.num_propagations,
        )

    def first(self, path: str) -> str:
        """The value that stands for its copies."""
        return self.first_of.get(path, path)

    def _constraints(self, chosen: Iterable[str]) -> dict[str, Sharding]:
        """Those of the values chosen and of their copies, in program order."""
        known = frozenset(chosen)
        return {p: wanted for p, wanted in self.planned.items() if self.first(p) in known}

    @property
    def _most(self) -> int:
        """Propagations that the limit admits, and the last one, which sees what came out."""
        return max(math.ceil(self.max_propagations), self.num_propagations)

    @property
    def is_exhausted(self) -> bool:
        return self.num_propagations >= self.max_propagations or self.is_over()

    def run(self, chosen: Iterable[str]) -> Mapping[str, Sharding]:
        constraints = self._constraints(chosen)
        key = frozenset(constraints)
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        self.num_propagations += 1
        if self.tell is not None:
            most = "" if math.isinf(self.max_propagations) else f" of at most {self._most}"
            self.tell(f"propagation {self.num_propagations}{most}, {len(key)} constraints")
        constraints = {**self.required, **constraints}
        found = self.propagate(self.in_shardings, self.out_shardings, constraints)
        self._last = (key, found)
        return found

    def differing(self, chosen: Iterable[str]) -> Mapping[str, Sharding]:
        """Planned values that come out otherwise, in program order, each with what it gets.

        The same constraints are propagated once.
        """
        key = frozenset(self._constraints(chosen))
        if key not in self._differing:
            found = self.run(chosen)
            self._differing[key] = {
                path: one
                for path, wanted in self.planned.items()
                if (one := found.get(path)) is not None
                and not self._alike.get(partial(cut_alike, one, wanted), one, wanted)
            }
        return self._differing[key]

    def wrong(self, chosen: Iterable[str]) -> list[str]:
        """Those of the differing values that are still asked for."""
        return [path for path in self.differing(chosen) if path not in self.missed]

    def grow(self, start: Iterable[str]) -> list[str]:
        """Constraints from which every planned value comes out right, except for misses."""
        chosen = set(start)
        batch_size = 1
        while True:
            wrong = self.wrong(chosen)
            self.missed.update(path for path in wrong if self.first(path) in chosen)
            rest = [path for path in wrong if self.first(path) not in chosen]
            if not rest:
                return [path for path in self.planned if path in chosen]
            if self.is_exhausted:
                chosen.update(map(self.first, rest))
                continue
            heads = map(self.first, self._heads(set(rest), self.run(chosen)))
            chosen.update(list(dict.fromkeys(heads))[:batch_size])
            batch_size *= 2

    def _heads(self, wrong: set[str], found: Mapping[str, Sharding]) -> list[str]:
        """The first value of every stretch of the program in which all values are wrong."""
        heads = []
        was_wrong = False
        for path in self.planned:
            if path not in found:
                continue
            is_wrong = path in wrong
            if is_wrong and not was_wrong:
                heads.append(path)
            was_wrong = is_wrong
        return heads

    def shrink(self, chosen: list[str]) -> tuple[list[str], int]:
        """Drop what can go; how many of the constraints left were not left out to see."""
        for number in _PARTS if len(chosen) > _ALONE else ():
            chosen, _ = self._without_needless(chosen, number)
        number = len(chosen) if len(chosen) <= _ALONE else -(-len(chosen) // _TOGETHER)
        return self._without_needless(chosen, number)

    def apart(self, chosen: list[str]) -> list[str]:
        """Each of the copies as a constraint of its own, without those that nothing missed."""
        paths = list(self._constraints(chosen))
        if len(paths) == len(chosen):
            return chosen
        self.gather(str)
        return self._without_needless(paths, 1)[0]

    def _without_needless(self, chosen: list[str], number: int) -> tuple[list[str], int]:
        """Leave out a part of the constraints, then the next; drop those that nothing missed.

        A part takes every so-manieth, so that its constraints are far from one another. What is
        needed among more constraints is taken to be needed among fewer.

        Returns:
            The constraints left, and how many of them were not left out before the limit of work.
        """
        tried = list(reversed(chosen))  # later values more often follow from earlier ones
        parts = [tried[first::number] for first in range(min(number, len(tried)))]
        for place, part in enumerate(parts):
            needless = set(part)
            for _ in range(2):  # all of them; then those that came out right
                if self.is_exhausted:
                    return chosen, sum(map(len, parts[place:]))
                without = [path for path in chosen if path not in needless]
                wrong = set(map(self.first, self.wrong(without)))
                if not wrong:
                    chosen = without
                if not wrong or needless <= wrong:
                    break
                needless -= wrong
        return chosen, 0


def cut_alike(one: Sharding, other: Sharding) -> bool:
    """True for two shardings that cut every dimension by the same axes of one mesh."""
    if one.inlined_mesh != other.inlined_mesh:
        return False
    return tuple(map(_joined, one.dims)) == tuple(map(_joined, other.dims))


def _joined(dim: DimSharding) -> tuple[AxisRef, ...]:
    """The axes of a dimension with neighbouring parts of one axis written as one."""
    joined: list[AxisRef] = []
    for axis in dim.axes:
        if joined and joined[-1].can_merge(axis):
            last = joined.pop()
            assert last.size is not None
            assert axis.size is not None
            axis = AxisRef(axis.name, last.pre_size, last.size * axis.size)
        joined.append(axis)
    return tuple(joined)
