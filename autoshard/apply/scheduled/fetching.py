"""Bringing an operand from home to where a turn needs it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from autoshard.apply.scheduled.digit_array import DigitArray, digit_sizes
from autoshard.loops.bringing import Bringing, Lane
from autoshard.loops.holdings import Coordinates

Loops: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fetching:
    """A way of bringing an operand, as collectives over mesh axes.

    Args:
        plan: What is gathered, sliced, handed over or passed on.
        axis_names: The mesh axis of each grid dimension.
    """

    plan: Bringing
    axis_names: tuple[str, ...]

    def fetch(self, block: jax.Array, at: Loops) -> DigitArray:
        """What the turn `at` needs, from the device's piece at home.

        Args:
            block: The local piece.
            at: Values of the loops over the grid (traced), of the time loops around (plain numbers
                if pieces are handed over), and of the lane.
        """
        local = tuple(digit for digit in self.plan.digits if digit.grid_dim is None)
        piece = DigitArray(block.reshape(digit_sizes(local)), local)
        return self._deliver(piece, at) if self.plan.is_delivered else self._gather(piece, at)

    def pass_on(self, tile: DigitArray, lane: Lane) -> DigitArray:
        """The next turn's piece, from the device that used it in this turn."""
        moved = permuted(tile.data, self.plan.passing(lane), self.plan.placed.grid, self.axis_names)
        return DigitArray(moved, tile.digits)

    def _gather(self, piece: DigitArray, at: Loops) -> DigitArray:
        plan, schedule = self.plan, self.plan.placed.schedule
        crossed = {loop.variable for loop in schedule.grid_loops if loop.grid_dim in plan.gathered}
        late = [d for d in plan.sliced if crossed & set(schedule.loops_of(d.leaf))]
        for digit in plan.sliced:
            if digit not in late:
                piece = piece.fix(digit, digit.value(schedule, at))
        for grid_dim in reversed(plan.gathered):
            digits = tuple(d for d in plan.digits if d.grid_dim == grid_dim)
            piece = piece.gather(digits, self.axis_names[grid_dim], plan.digits)
        for digit in late:
            piece = piece.fix(digit, digit.value(schedule, at))
        return piece

    def _deliver(self, piece: DigitArray, at: Loops) -> DigitArray:
        plan = self.plan
        wants = plan.wants(at)
        slots = _Slots(self, piece, len(next(iter(wants.values()))))
        for slot in range(slots.num):
            own = {p: keys[slot] for p, keys in wants.items() if p in plan.holders(keys[slot])}
            slots.keep(slot, {p: inside for p, (_, inside) in own.items()})
        for handovers in plan.rounds(wants):
            slots.run(
                {
                    h.source: (0, h.key[1])
                    if h.is_from_home
                    else (wants[h.source].index(h.key), None)
                    for h in handovers
                },
                {h.target: wants[h.target].index(h.key) for h in handovers},
                [(h.source, h.target) for h in handovers],
            )
        inside = tuple(d for d in plan.free if d.grid_dim is None)
        now = (*plan.free_at_home, *inside)
        data = jnp.stack(slots.filled).reshape(digit_sizes(now))
        return DigitArray(data.transpose([now.index(digit) for digit in plan.free]), plan.free)


class _Slots:
    """The places for the pieces a device wants, while they come in."""

    def __init__(self, fetching: Fetching, piece: DigitArray, num: int) -> None:
        self.fetching, self.piece, self.num = fetching, piece, num
        self.sliced, self.grid = fetching.plan.sliced, fetching.plan.placed.grid
        self.index = lax.axis_index(fetching.axis_names)
        empty = self._slice_of(self._table({}))
        self.filled = [jnp.zeros_like(empty)] * num

    def _slice_of(self, table: np.ndarray) -> jax.Array:
        """The slice of the piece at home that `table`, int[num_devices, digits], names."""
        piece = self.piece
        for column, digit in enumerate(self.sliced):
            values = table[:, column]
            is_same = (values == values[0]).all()
            value = int(values[0]) if is_same else jnp.asarray(values)[self.index]
            piece = piece.fix(digit, value)
        return piece.data

    def _table(self, of: Mapping[Coordinates, tuple[int, ...]]) -> np.ndarray:
        rows = np.zeros((math.prod(self.grid), len(self.sliced)), dtype=int)
        if of:
            rows[:] = next(iter(of.values()))
        for processor, values in of.items():
            rows[_number(processor, self.grid)] = values
        return rows

    def _mask(self, processors: Mapping[Coordinates, Any]) -> Any:
        """Whether this device is one of them; a plain truth where all or none are."""
        mask = np.zeros(math.prod(self.grid), dtype=bool)
        for processor in processors:
            mask[_number(processor, self.grid)] = True
        if mask.all() or not mask.any():
            return bool(mask.all())
        return jnp.asarray(mask)[self.index]

    def _put(self, slot: int, mask: Any, data: jax.Array) -> None:
        if mask is True:
            self.filled[slot] = data
        elif mask is not False:
            self.filled[slot] = jnp.where(mask, data, self.filled[slot])

    def keep(self, slot: int, inside: Mapping[Coordinates, tuple[int, ...]]) -> None:
        """Fill a slot from home on these processors."""
        if inside:
            self._put(slot, self._mask(inside), self._slice_of(self._table(inside)))

    def run(
        self,
        sends: Mapping[Coordinates, tuple[int, tuple[int, ...] | None]],
        receives: Mapping[Coordinates, int],
        pairs: list[tuple[Coordinates, Coordinates]],
    ) -> None:
        """One round: what each sends (a slice at home, or a slot), and which slot each fills."""
        from_home = {p: inside for p, (_, inside) in sends.items() if inside is not None}
        payload = self._slice_of(self._table(from_home))
        for slot in range(self.num):
            mine = {p: slot for p, (at, inside) in sends.items() if inside is None and at == slot}
            mask = self._mask(mine)
            if mask is True:
                payload = self.filled[slot]
            elif mask is not False:
                payload = jnp.where(mask, self.filled[slot], payload)
        got = permuted(payload, pairs, self.grid, self.fetching.axis_names)
        for slot in range(self.num):
            mine = {p: slot for p, at in receives.items() if at == slot}
            self._put(slot, self._mask(mine), got)


def permuted(
    data: jax.Array,
    pairs: Iterable[tuple[Coordinates, Coordinates]],
    grid: tuple[int, ...],
    axis_names: tuple[str, ...],
) -> jax.Array:
    """What each device gets when data goes from the first of each pair to the second.

    JAX numbers the devices of a permutation in the order of the mesh, however its axes are named.
    """
    in_mesh = jax.sharding.get_abstract_mesh().axis_names
    order = sorted(range(len(grid)), key=lambda dim: in_mesh.index(axis_names[dim]))
    sizes = tuple(grid[dim] for dim in order)

    def number(processor: Coordinates) -> int:
        return _number(tuple(processor[dim] for dim in order), sizes)

    numbers = [(number(source), number(target)) for source, target in pairs]
    moved: jax.Array = lax.ppermute(data, tuple(axis_names[dim] for dim in order), numbers)
    return moved


def _number(processor: Coordinates, grid: tuple[int, ...]) -> int:
    """The number of a processor, the last dimension fastest."""
    number = 0
    for coordinate, size in zip(processor, grid, strict=True):
        number = number * size + coordinate
    return number
