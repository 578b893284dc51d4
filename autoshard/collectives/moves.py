"""What one collective can do to a layout: the edges of the graph that `search` searches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations

from autoshard.collectives.atoms import Atoms
from autoshard.collectives.steps import CollectiveKind
from autoshard.layouts import Layout, Parts


@dataclass(frozen=True, slots=True)
class State:
    """A layout, and the parts still to be summed over."""

    layout: Layout
    pending: frozenset[int]


@dataclass(frozen=True, slots=True)
class Move:
    """One step of the search: kind, parts of its groups, parts by place, and where it leads."""

    kind: CollectiveKind
    chosen: Parts
    detail: tuple[tuple[int, int, Parts], ...]  # (source, target, parts)
    after: State


@dataclass(slots=True)
class Moves:
    """The moves of one search.

    Args:
        parts: The mesh in what moves as one.
        kept: Parts that stay unsummed all the way.
        towards: Where steps lead to, if not everywhere.
        shape: Of the tensor.
    """

    parts: Atoms
    kept: frozenset[int]
    towards: Layout | None
    shape: tuple[int, ...]
    _permuted: set[tuple[tuple[int, ...], frozenset[int]]] = field(default_factory=set)

    def of(self, state: State) -> Iterator[Move]:
        """Every move from a state; permutations only from the first state with its counts."""
        if state.pending:  # a partial sum is added up before anything else is done with it
            yield from self._sums(state)
            return
        yield from self._gathers(state)
        yield from self._all_to_alls(state)
        yield from self._slices(state)
        counts = tuple(map(self.parts.num_shards, state.layout))
        if (counts, state.pending) not in self._permuted:
            # A permutation costs the same from all layouts of these counts: the first is enough.
            self._permuted.add((counts, state.pending))
            yield from self._permutes(state, counts)

    def _divides(self, dim: int, parts: Parts) -> bool:
        return self.shape[dim] % self.parts.num_shards(parts) == 0

    def _may_cut(self, dim: int, part: int) -> bool:
        return self.towards is None or part in self.towards[dim]

    def _gathers(self, state: State) -> Iterator[Move]:
        for dim, cut in enumerate(state.layout):
            for length in range(1, len(cut) + 1):
                moved = cut[-length:]
                after = with_cut(state.layout, dim, cut[: len(cut) - length])
                yield Move(
                    CollectiveKind.ALL_GATHER,
                    moved,
                    ((dim, dim, moved),),
                    State(after, state.pending),
                )

    def _slices(self, state: State) -> Iterator[Move]:
        used = {*state.pending, *self.kept, *chain.from_iterable(state.layout)}
        for part in range(len(self.parts.sizes)):
            if part in used:
                continue
            for dim, cut in enumerate(state.layout):
                if self._may_cut(dim, part) and self._divides(dim, (*cut, part)):
                    after = with_cut(state.layout, dim, (*cut, part))
                    yield Move(
                        CollectiveKind.ALL_SLICE,
                        (part,),
                        ((dim, dim, (part,)),),
                        State(after, state.pending),
                    )

    def _all_to_alls(self, state: State) -> Iterator[Move]:
        single = []
        for source, cut in enumerate(state.layout):
            for length in range(1, len(cut) + 1):
                moved = cut[-length:]
                for target, other in enumerate(state.layout):
                    if target == source or not self._may_cut(target, moved[0]):
                        continue
                    if self._divides(target, (*other, *moved)):
                        single.append((source, target, moved))
        for detail in chain(((one,) for one in single), combinations(single, 2)):
            touched = [dim for source, target, _ in detail for dim in (source, target)]
            if len(set(touched)) < len(touched):
                continue
            after = state.layout
            for source, target, moved in detail:
                after = with_cut(after, source, after[source][: -len(moved)])
                after = with_cut(after, target, (*after[target], *moved))
            chosen = tuple(part for _, _, moved in detail for part in moved)
            yield Move(
                CollectiveKind.ALL_TO_ALL,
                chosen,
                tuple(sorted(detail)),
                State(after, state.pending),
            )

    def _sums(self, state: State) -> Iterator[Move]:
        pending = sorted(state.pending)
        for number in range(1, len(pending) + 1):
            for chosen in combinations(pending, number):
                left = state.pending - set(chosen)
                yield Move(
                    CollectiveKind.ALL_REDUCE, chosen, ((0, 0, chosen),), State(state.layout, left)
                )
        for part in pending:
            for dim, cut in enumerate(state.layout):
                if self._may_cut(dim, part) and self._divides(dim, (*cut, part)):
                    after = with_cut(state.layout, dim, (*cut, part))
                    yield Move(
                        CollectiveKind.REDUCE_SCATTER,
                        (part,),
                        ((dim, dim, (part,)),),
                        State(after, state.pending - {part}),
                    )

    def _permutes(self, state: State, counts: tuple[int, ...]) -> Iterator[Move]:
        free = frozenset(range(len(self.parts.sizes))) - state.pending - self.kept
        if self.towards is None:
            layouts = self._layouts_with(counts, free)
        else:
            layouts = self._layout_towards(counts, free, self.towards)
        for layout in layouts:
            if layout == state.layout:
                continue
            pairs = zip(state.layout, layout, strict=True)
            chosen = sorted({p for old, new in pairs if old != new for p in (*old, *new)})
            yield Move(CollectiveKind.PERMUTE, tuple(chosen), (), State(layout, state.pending))

    def _layouts_with(self, counts: Sequence[int], free: frozenset[int]) -> Iterator[Layout]:
        """Every layout that cuts dimensions into so many pieces each."""
        if not counts:
            yield ()
            return
        for cut in self._cuts(counts[0], free):
            for rest in self._layouts_with(counts[1:], free - set(cut)):
                yield (cut, *rest)

    def _cuts(self, count: int, free: frozenset[int]) -> Iterator[Parts]:
        if count == 1:
            yield ()
            return
        for part in sorted(free):
            if count % self.parts.sizes[part] == 0:
                for rest in self._cuts(count // self.parts.sizes[part], free - {part}):
                    yield (part, *rest)

    def _layout_towards(
        self, counts: Sequence[int], free: frozenset[int], wanted: Layout
    ) -> Iterator[Layout]:
        """The layout with these counts that begins as the wanted one does, if there is one."""
        found = []
        left = set(free)
        for count, goal in zip(counts, wanted, strict=True):
            cut = []
            for part in goal:
                if part in left and count % self.parts.sizes[part] == 0:
                    cut.append(part)
                    left.remove(part)
                    count //= self.parts.sizes[part]
            found.append((cut, count))
        for cut, count in found:
            rest = next(self._cuts(count, frozenset(left)), None)
            if rest is None:
                return
            cut.extend(rest)
            left -= set(rest)
        yield tuple(tuple(cut) for cut, _ in found)


def with_cut(layout: Layout, dim: int, cut: Parts) -> Layout:
    """A layout with one dimension cut otherwise."""
    return (*layout[:dim], cut, *layout[dim + 1 :])
