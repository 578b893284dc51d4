"""The cheapest sequence of collectives from one sharding of a tensor to another.

A shortest path over all layouts the mesh's smallest parts can make of the tensor. Every step of
Shardy's own conversion of reshards is among the steps searched, so that none of its sequences is
cheaper.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile

from autoshard.collectives.atoms import Atoms
from autoshard.collectives.moves import Move, Moves, State, with_cut
from autoshard.collectives.pricing import CollectivePrices, ReceivedBytes
from autoshard.collectives.splitting import finest_parts, parts_at
from autoshard.collectives.steps import AxisMove, Collective, CollectiveKind, braced
from autoshard.errors import ShardingError
from autoshard.layouts import Layout, MeshParts, Parts
from autoshard.sharding import AxisRef, DimSharding, Mesh, Sharding, canonicalize, num_shards

_MAX_PARTS = 6
"""With more parts than this the mesh is cut only where the shardings are, what moves together is
one, and if there are still more, every step leads towards the goal."""

_MAX_PARTS_ROUGHLY = 3
"""Likewise of a rough price, which is asked for many times."""

_MAX_SETTLED = 6_000
"""After so many layouts every step leads towards the goal; after as many again the plain way is
taken: gather what is not as wanted, and cut."""


def find_collectives(
    before: Sharding,
    after: Sharding,
    mesh: Mesh,
    shape: Sequence[int],
    *,
    bits: int = 32,
    prices: CollectivePrices | None = None,
) -> tuple[Collective, ...]:
    """The cheapest collectives that bring a tensor from one sharding to another.

    Of equally cheap sequences the one with the fewest steps is taken. A dimension that its pieces
    do not divide is taken as padded to the next size that both its cuts divide.

    Args:
        before: Of the tensor as it is; open dimensions count as closed, and priorities as none.
            Unreduced axes are still to be summed.
        after: As it is wanted. Its unreduced axes, if any, are among those of `before`.
        mesh: The mesh of both.
        shape: int[rank], the whole tensor.
        bits: Of one element.
        prices: What counts; the bytes a device receives if not given.

    Returns:
        In order; none where both shardings are the same.

    Raises:
        ShardingError: Other ranks, or axes that `after` leaves unreduced and `before` does not.
    """
    return priced_collectives(before, after, mesh, shape, bits=bits, prices=prices)[1]


def priced_collectives(
    before: Sharding,
    after: Sharding,
    mesh: Mesh,
    shape: Sequence[int],
    *,
    bits: int = 32,
    prices: CollectivePrices | None = None,
    is_rough: bool = False,
) -> tuple[float, tuple[Collective, ...]]:
    """As `find_collectives`, with what they cost together before them.

    A rough price is that of a way on which every step leads towards the goal: found in a fraction
    of the time, and rarely more than the cheapest.
    """
    start, goal = (canonicalize(_plain(sharding), mesh) for sharding in (before, after))
    if not start.rank == goal.rank == len(shape):
        raise ShardingError(
            f"the shardings have ranks {start.rank} and {goal.rank}, the tensor has {len(shape)}",
            fix="give both one entry per dimension of the tensor",
        )
    key = prices or _RECEIVED_BYTES
    padded = _padded(start, goal, mesh, shape)
    return _cheapest(start, goal, mesh, padded, bits, key, is_rough)


_RECEIVED_BYTES = ReceivedBytes()


def _plain(sharding: Sharding) -> Sharding:
    return replace(sharding.closed(), replicated=())


def _padded(start: Sharding, goal: Sharding, mesh: Mesh, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape, rounded up to what both cuts divide."""
    padded = []
    for size, *dims in zip(shape, start.dims, goal.dims, strict=True):
        unit = math.lcm(*(num_shards(dim, mesh) for dim in dims))
        padded.append(-(-size // unit) * unit)
    return tuple(padded)


@lru_cache(maxsize=1 << 16)
def _cheapest(
    start: Sharding,
    goal: Sharding,
    mesh: Mesh,
    shape: tuple[int, ...],
    bits: int,
    prices: CollectivePrices,
    is_rough: bool,
) -> tuple[float, tuple[Collective, ...]]:
    refs = (*start.axis_refs(), *goal.axis_refs())
    try:
        ways = _ways_to_cut(tuple(refs), mesh)
    except ShardingError:
        return _by_way_of_common(start, goal, mesh, shape, bits, prices, is_rough)
    found = [_path(parts, start, goal, shape, bits, prices, is_rough) for parts in ways]
    key, steps = min(found, key=lambda way: way[0])
    return key[0], steps


@lru_cache(maxsize=1 << 14)
def _ways_to_cut(refs: tuple[AxisRef, ...], mesh: Mesh) -> tuple[MeshParts, ...]:
    """The mesh in its smallest parts, in one way or several; coarser where those are too many."""
    finest = tuple(finest_parts(refs, mesh))
    return finest if len(finest[0].sizes) <= _MAX_PARTS else (parts_at(refs, mesh),)


def _by_way_of_common(
    start: Sharding,
    goal: Sharding,
    mesh: Mesh,
    shape: tuple[int, ...],
    bits: int,
    prices: CollectivePrices,
    is_rough: bool,
) -> tuple[float, tuple[Collective, ...]]:
    """Two sub-axes of an axis of 6 may not fit one splitting: gather what the other cannot say."""
    middle = _without_clashes(goal, start)
    try:
        parts_at((*start.axis_refs(), *middle.axis_refs()), mesh)
    except ShardingError as error:  # cannot be: what is left of the goal fits
        raise AssertionError(str(error)) from error
    there, first = _cheapest(start, middle, mesh, shape, bits, prices, is_rough)
    on, second = _cheapest(middle, goal, mesh, shape, bits, prices, is_rough)
    return there + on, (*first, *second)


def _without_clashes(goal: Sharding, start: Sharding) -> Sharding:
    """The goal with every dimension cut short before axes that do not fit those of the start."""
    theirs = list(start.axis_refs())

    def fits(ref: AxisRef) -> bool:
        return all(ref.coexists_with(other) for other in theirs if other.name == ref.name)

    clashing = {ref.name for ref in goal.axis_refs() if not fits(ref)}
    dims = []
    for dim in goal.dims:
        kept: list[AxisRef] = []
        for ref in dim.axes:
            if ref.name in clashing:
                break
            kept.append(ref)
        dims.append(DimSharding(tuple(kept)))
    return replace(goal, dims=tuple(dims))


_Key = tuple[float, int, int]


def _path(
    parts: MeshParts,
    start: Sharding,
    goal: Sharding,
    shape: tuple[int, ...],
    bits: int,
    prices: CollectivePrices,
    is_rough: bool,
) -> tuple[_Key, tuple[Collective, ...]]:
    """Cost of the cheapest steps over some parts, and the steps."""
    layouts = parts.to_layout(start), parts.to_layout(goal)
    sums = tuple(
        tuple(p for ref in side.unreduced for p in parts.parts_of(ref)) for side in (start, goal)
    )
    atoms = Atoms.of(parts, (*layouts[0], *layouts[1], *sums), _MAX_PARTS)
    kept, begin = (frozenset(atoms.spell(side)) for side in (sums[1], sums[0]))
    if extra := kept - begin:
        raise ShardingError(
            f"axes {braced(atoms.refs(tuple(sorted(extra))))} are left to sum after the reshard and"
            " not before it",
            fix="reshard to a sharding whose unreduced axes the tensor has",
        )
    begins, ends = (tuple(map(atoms.spell, layout)) for layout in layouts)
    most = _MAX_PARTS_ROUGHLY if is_rough else _MAX_PARTS
    origin = State(begins, begin - kept)
    for towards in (None, ends) if len(atoms.sizes) <= most else (ends,):
        search = _search_from(origin, atoms, kept, towards, shape, bits, prices)
        if (found := search.path(ends, goal)) is not None:
            return found
    return search.plain_way(ends, goal)


@lru_cache(maxsize=1 << 13)
def _search_from(
    origin: State,
    parts: Atoms,
    kept: frozenset[int],
    towards: Layout | None,
    shape: tuple[int, ...],
    bits: int,
    prices: CollectivePrices,
) -> _Search:
    return _Search(parts, origin, kept, towards, shape, bits, prices)


@dataclass(slots=True)
class _Search:
    """The shortest paths from one layout of a tensor, found as far as somebody asked.

    Args:
        parts: The mesh in what moves as one.
        origin: Where paths begin.
        kept: Parts that stay unsummed all the way.
        towards: Where steps lead to, if not everywhere.
        shape: Of the tensor.
        bits: Of one element.
        prices: Of a step.
    """

    parts: Atoms
    origin: State
    kept: frozenset[int]
    towards: Layout | None
    shape: tuple[int, ...]
    bits: int
    prices: CollectivePrices
    _best: dict[State, _Key] = field(default_factory=dict)
    _came: dict[State, tuple[State, Move]] = field(default_factory=dict)
    _done: set[State] = field(default_factory=set)
    _queue: list[tuple[_Key, int, State]] = field(default_factory=list)
    _pushed: int = 0
    _moves: Moves = field(init=False)
    _local_bytes: dict[Layout, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._moves = Moves(self.parts, self.kept, self.towards, self.shape)
        self._best[self.origin] = (0.0, 0, 0)
        self._queue.append(((0.0, 0, 0), 0, self.origin))

    def path(self, layout: Layout, goal: Sharding) -> tuple[_Key, tuple[Collective, ...]] | None:
        """Cost, and the steps merged where one collective does what several moves say.

        None after too many layouts. Nothing that was asked before changes the answer.
        """
        target = State(layout, frozenset())
        while target not in self._done and self._queue and len(self._done) < _MAX_SETTLED:
            self._settle_next()
        if target not in self._done:
            return None
        return self._best[target], self._collectives(self._moves_to(target), goal)

    def plain_way(self, layout: Layout, goal: Sharding) -> tuple[_Key, tuple[Collective, ...]]:
        """Sum up, gather all that is not as wanted, cut."""
        target = State(layout, frozenset())
        state, key = self.origin, (0.0, 0, 0)
        moves = []
        while state != target:
            move = self._plain_move(state, target)
            is_slice = move.kind is CollectiveKind.ALL_SLICE
            key = (key[0] + self._cost(state, move), key[1] + (not is_slice), key[2] + 1)
            moves.append(move)
            state = move.after
        return key, self._collectives(moves, goal)

    def _plain_move(self, state: State, target: State) -> Move:
        if state.pending:
            everything = tuple(sorted(state.pending))
            after = State(state.layout, frozenset())
            return Move(CollectiveKind.ALL_REDUCE, everything, ((0, 0, everything),), after)
        for dim, (cut, goal) in enumerate(zip(state.layout, target.layout, strict=True)):
            if moved := cut[_common(cut, goal) :]:
                after = State(with_cut(state.layout, dim, cut[: -len(moved)]), state.pending)
                return Move(CollectiveKind.ALL_GATHER, moved, ((dim, dim, moved),), after)
        for dim, (cut, goal) in enumerate(zip(state.layout, target.layout, strict=True)):
            if added := goal[len(cut) :]:
                after = State(with_cut(state.layout, dim, goal), state.pending)
                return Move(CollectiveKind.ALL_SLICE, added, ((dim, dim, added),), after)
        raise AssertionError("the target is reached")

    def _settle_next(self) -> None:
        """Go on from the cheapest layout not gone on from yet."""
        key, _, state = heapq.heappop(self._queue)
        if state in self._done:
            return
        self._done.add(state)
        for move in self._moves.of(state):
            if move.after in self._done:
                continue
            is_slice = move.kind is CollectiveKind.ALL_SLICE
            found = (key[0] + self._cost(state, move), key[1] + (not is_slice), key[2] + 1)
            if move.after not in self._best or found < self._best[move.after]:
                self._best[move.after] = found
                self._came[move.after] = (state, move)
                self._pushed += 1
                heapq.heappush(self._queue, (found, self._pushed, move.after))

    def _cost(self, state: State, move: Move) -> float:
        before, after = self._bytes(state.layout), self._bytes(move.after.layout)
        chosen = self.parts.expand(move.chosen)
        return self.prices.cost(move.kind, self.parts.parts, chosen, before, after)

    def _bytes(self, layout: Layout) -> float:
        found = self._local_bytes.get(layout)
        if found is None:
            pieces = [self.parts.num_shards(dim) for dim in layout]
            local = math.prod(size // n for size, n in zip(self.shape, pieces, strict=True))
            found = self._local_bytes[layout] = local * self.bits / 8
        return found

    # -- the answer -----------------------------------------------------------------------------

    def _moves_to(self, end: State) -> list[Move]:
        moves: list[Move] = []
        while end != self.origin:
            end, move = self._came[end]
            moves.append(move)
        return moves[::-1]

    def _collectives(self, moves: Sequence[Move], goal: Sharding) -> tuple[Collective, ...]:
        state, found = self.origin, []
        for run in _runs(moves):
            after = run[-1].after
            found.append(self._collective(run, state, after, goal))
            state = after
        return tuple(found)

    def _collective(
        self, run: Sequence[Move], before: State, after: State, goal: Sharding
    ) -> Collective:
        kind = run[0].kind
        dims: tuple[tuple[AxisRef, ...], ...] = ()
        moves: tuple[AxisMove, ...] = ()
        if kind in _BY_DIMENSION:
            cuts: list[Parts] = [()] * len(self.shape)
            for move in run:
                for dim, _, own in move.detail:
                    is_gather = kind is CollectiveKind.ALL_GATHER
                    cuts[dim] = (*own, *cuts[dim]) if is_gather else (*cuts[dim], *own)
            dims = tuple(map(self.parts.refs, cuts))
        elif kind is CollectiveKind.ALL_TO_ALL:
            moves = tuple(AxisMove(self.parts.refs(own), s, t) for s, t, own in run[0].detail)
        reduced = run[0].chosen if kind is CollectiveKind.ALL_REDUCE else ()
        return Collective(
            kind=kind,
            before=self._sharding(before, goal),
            after=self._sharding(after, goal),
            dims=dims,
            moves=moves,
            reduced=self.parts.refs(reduced),
        )

    def _sharding(self, state: State, goal: Sharding) -> Sharding:
        return Sharding(
            tuple(DimSharding(self.parts.refs(dim)) for dim in state.layout),
            unreduced=self.parts.refs(tuple(sorted(state.pending | self.kept))),
            mesh_name=goal.mesh_name,
            inlined_mesh=goal.inlined_mesh,
        )


_BY_DIMENSION = frozenset(
    {CollectiveKind.ALL_SLICE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER}
)
"""Several of them in a row, on whatever dimensions, are one."""


def _runs(moves: Sequence[Move]) -> Iterator[list[Move]]:
    run: list[Move] = []
    for move in moves:
        if run and (move.kind is not run[0].kind or move.kind not in _BY_DIMENSION):
            yield run
            run = []
        run.append(move)
    if run:
        yield run


def _common(cut: Parts, goal: Parts) -> int:
    """How many parts two cuts have in common at the major end."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(cut, goal, strict=False)))
