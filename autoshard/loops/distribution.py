"""Tensor distributions: which dimension of a machine cuts which dimension of a tensor."""

from __future__ import annotations

import string
from dataclasses import dataclass, replace
from typing import TypeAlias

from autoshard.errors import ShardingError


@dataclass(frozen=True, slots=True)
class Named:
    """A machine dimension that cuts the tensor dimension of this name.

    Prints as `x` (blocked: one run of neighbours each), `x%` (cyclic: dealt out one by one) or
    `x%[4]` (block-cyclic: dealt out in runs of 4).

    Args:
        name: One letter, a dimension of the tensor.
        block: The length of the runs that are dealt out; None for blocked.

    Raises:
        ShardingError: The name is not one letter, or the block is below 1.
    """

    name: str
    block: int | None = None

    def __post_init__(self) -> None:
        _check_letter(self.name)
        if self.block is not None and self.block < 1:
            raise ShardingError(
                f"dimension {self.name} is dealt out in runs of {self.block}, which is below 1",
                fix=f"write {self.name}% for runs of one, {self.name}%[4] for runs of four",
            )


@dataclass(frozen=True, slots=True)
class Fixed:
    """A machine dimension on which only one coordinate holds the tensor; prints as `0`."""

    coordinate: int

    def __post_init__(self) -> None:
        if self.coordinate < 0:
            raise ShardingError(
                f"a fixed coordinate is {self.coordinate}, which is below 0",
                fix="coordinates count from 0",
            )


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A machine dimension along which every processor holds the same; prints as `*`."""


MachineDim: TypeAlias = Named | Fixed | Broadcast
BROADCAST = Broadcast()


@dataclass(frozen=True, slots=True)
class Cut:
    """One cut of a tensor dimension: the machine dimension and how it deals."""

    machine_dim: int
    block: int | None = None


@dataclass(frozen=True, slots=True)
class Distribution:
    """Where a tensor lies on a machine; prints as `T xy -> xy0 M`.

    One level has one entry for each dimension of the machine. A further level, written after a
    comma, cuts what the levels before it left as copies: in `T xy -> xy*, **x M` the third machine
    dimension cuts each piece of `x` once more. A machine dimension has a name in one level at most.

    Args:
        tensor: Its name.
        dims: One letter for each of its dimensions.
        levels: MachineDim[machine rank] for each level.
        machine: Its name.

    Raises:
        ShardingError: A letter is repeated or unknown to the tensor, levels differ in length, or
            a level names a machine dimension that an earlier one has used.
    """

    tensor: str
    dims: tuple[str, ...]
    levels: tuple[tuple[MachineDim, ...], ...]
    machine: str = "M"

    def __post_init__(self) -> None:
        for name in self.dims:
            _check_letter(name)
        if len(set(self.dims)) < len(self.dims):
            raise ShardingError(
                f"tensor {self.tensor} has two dimensions of one name: {''.join(self.dims)}",
                fix="give every dimension a letter of its own",
            )
        if not self.levels:
            raise ShardingError(
                f"the distribution of {self.tensor} has no level",
                fix="give one entry for each dimension of the machine, as in `T xy -> xy M`",
            )
        for index, _ in enumerate(self.levels):
            self._check_level(index)

    def _check_level(self, index: int) -> None:
        level = self.levels[index]
        if len(level) != self.machine_rank:
            raise ShardingError(
                f"level {index + 1} has {len(level)} entries and the first {self.machine_rank}",
                fix="each level has one entry for each dimension of the machine",
            )
        seen: set[str] = set()
        for place, entry in enumerate(level):
            if isinstance(entry, Named):
                problem = name_problem(entry.name, self.tensor, self.dims, seen)
                if problem is not None:
                    raise problem
                seen.add(entry.name)
            before = [earlier[place] for earlier in self.levels[:index]]
            if not isinstance(entry, Broadcast) and any(e != BROADCAST for e in before):
                raise ShardingError(
                    f"machine dimension {place} is used by two levels",
                    fix="write * for it in all levels but one",
                )

    @property
    def machine_rank(self) -> int:
        return len(self.levels[0])

    @property
    def rank(self) -> int:
        return len(self.dims)

    def cuts(self, dim: int) -> tuple[Cut, ...]:
        """The cuts of tensor dimension `dim`, major to minor."""
        return tuple(
            Cut(place, entry.block)
            for level in self.levels
            for place, entry in enumerate(level)
            if isinstance(entry, Named) and entry.name == self.dims[dim]
        )

    def entry(self, machine_dim: int) -> MachineDim:
        """What machine dimension `machine_dim` does with the tensor, whichever level says it."""
        entries = [level[machine_dim] for level in self.levels]
        return next((entry for entry in entries if entry != BROADCAST), BROADCAST)

    @property
    def fixed_dims(self) -> tuple[int, ...]:
        """Machine dimensions on which one coordinate holds the tensor."""
        places = range(self.machine_rank)
        return tuple(place for place in places if isinstance(self.entry(place), Fixed))

    @classmethod
    def by_cuts(
        cls,
        tensor: str,
        dims: tuple[str, ...],
        cuts: tuple[tuple[int, ...], ...],
        machine_rank: int,
    ) -> Distribution:
        """Blocked cuts: for each tensor dimension its machine dimensions, major to minor."""
        depth = max((len(places) for places in cuts), default=0)
        levels: list[tuple[MachineDim, ...]] = []
        for index in range(max(depth, 1)):
            level: list[MachineDim] = [BROADCAST] * machine_rank
            for name, places in zip(dims, cuts, strict=True):
                if index < len(places):
                    level[places[index]] = Named(name)
            levels.append(tuple(level))
        return cls(tensor, dims, tuple(levels))


def name_problem(
    name: str, tensor: str, dims: tuple[str, ...], seen: set[str]
) -> ShardingError | None:
    """Why the machine side of a level may not say `name` after the names `seen`; None if it may."""
    if name not in dims:
        known = ", ".join(dims) or "none"
        return ShardingError(
            f"tensor {tensor} has no dimension {name}; its dimensions are: {known}",
            fix="the machine side takes its names from the tensor side",
        )
    if name in seen:
        return ShardingError(
            f"dimension {name} is named twice",
            fix="cut it a second time in a level of its own, as in `T xy -> xy*, **x M`",
        )
    return None


def spread_faces(
    distribution: Distribution, shape: tuple[int, ...], grid: tuple[int, ...]
) -> Distribution:
    """The same tensor with every fixed coordinate replaced by a further cut along that dimension.

    An array of JAX has a piece of the same size on every device, so it cannot lie on one face of
    the machine only. Spread, each of the `n` processors behind a place of the face holds `1/n` of
    what that place would hold: a broadcast from the face becomes an all-gather, a sum on to the
    face a reduce-scatter, with the same number of words.

    Raises:
        ShardingError: No dimension of the tensor can be cut that often.
    """
    for place in distribution.fixed_dims:
        size = grid[place]
        dim = _dim_to_spread(distribution, shape, grid, size)
        if dim is None:
            raise ShardingError(
                f"no dimension of {distribution.tensor}{list(shape)} can be cut {size} times more",
                where=f"dimension {place} of the machine, where one face holds the tensor",
                fix=f"pad one dimension so that its pieces are a multiple of {size}",
            )
        levels = [
            tuple(BROADCAST if at == place else entry for at, entry in enumerate(level))
            for level in distribution.levels
        ]
        extra: list[MachineDim] = [BROADCAST] * distribution.machine_rank
        extra[place] = Named(distribution.dims[dim])
        distribution = replace(distribution, levels=(*levels, tuple(extra)))
    return distribution


def _dim_to_spread(
    distribution: Distribution, shape: tuple[int, ...], grid: tuple[int, ...], size: int
) -> int | None:
    for dim in range(distribution.rank):
        pieces = size
        for cut in distribution.cuts(dim):
            pieces *= grid[cut.machine_dim]
        if shape[dim] % pieces == 0:
            return dim
    return None


def _check_letter(name: str) -> None:
    if len(name) != 1 or name not in string.ascii_letters:
        raise ShardingError(
            f"a dimension is called {name!r}, which is not one letter",
            fix="name the dimensions of a tensor by single letters, as in `T xy -> xy M`",
        )
