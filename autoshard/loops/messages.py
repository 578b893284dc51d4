"""The collectives of a schedule, counted without running it: for pricing one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from autoshard.loops.bringing import Bringing
from autoshard.loops.holdings import Coordinates
from autoshard.loops.placed import Placed
from autoshard.loops.sending import Sending


@dataclass(frozen=True, slots=True)
class Message:
    """One collective of a schedule.

    Args:
        tensor: What it moves.
        kind: `all-gather`, `reduce-scatter`, `all-reduce` or `collective-permute`.
        grid_dims: The grid dimensions it works over, in order.
        words: What one processor puts in.
        received: What a processor gets that it did not have, each time, on average.
        count: How often it runs.
        is_in_loop: Whether it runs beside the product of a turn, and may hide behind it.
    """

    tensor: str
    kind: str
    grid_dims: tuple[int, ...]
    words: int
    received: Fraction
    count: int
    is_in_loop: bool


def messages(placed: Placed) -> tuple[Message, ...]:
    """Every collective that `autoshard.schedules.lower` makes of a schedule.

    Tensors on a face have to be spread first: see `spread_faces`.

    Raises:
        ScheduleError: The schedule has no such form.
    """
    operands = placed.schedule.statement.operands
    found = itertools.chain.from_iterable(
        _of_operand(Bringing(placed, access.tensor)) for access in operands
    )
    return (*found, *_of_result(Sending(placed)))


def _turns(placed: Placed, depth: int) -> int:
    return math.prod(loop.extent for loop in placed.schedule.time_loops[:depth])


def _of_operand(bringing: Bringing) -> Iterator[Message]:
    placed, depth = bringing.placed, bringing.depth
    if not bringing.is_delivered:
        yield from _gathers(bringing)
        return
    piece = math.prod(d.size for d in bringing.free if d.grid_dim is None)
    loops = placed.schedule.time_loops[:depth]
    outer = loops[:-1] if bringing.is_passed_on else loops
    for lane in bringing.lanes:
        for values in itertools.product(*(range(loop.extent) for loop in outer)):
            at = {loop.variable: 0 for loop in loops}
            at |= dict(zip((loop.variable for loop in outer), values, strict=True))
            for handovers in bringing.rounds(bringing.wants({**at, **dict(lane)})):
                pairs = [(h.source, h.target) for h in handovers]
                beside = depth > 0 and not bringing.is_passed_on  # first pieces are waited for
                yield _permute(placed, bringing.tensor, pairs, piece, 1, beside)
        if bringing.is_passed_on:
            words = math.prod(d.size for d in bringing.free)
            count = _turns(placed, depth - 1) * (loops[-1].extent - 1)
            if count:
                pairs = list(bringing.passing(lane))
                yield _permute(placed, bringing.tensor, pairs, words, count, True)


def _gathers(bringing: Bringing) -> Iterator[Message]:
    """The last dimension first, each on what the ones before have made larger."""
    placed, schedule = bringing.placed, bringing.placed.schedule
    crossed = {loop.variable for loop in schedule.grid_loops if loop.grid_dim in bringing.gathered}
    late = {d for d in bringing.sliced if crossed & set(schedule.loops_of(d.leaf))}
    kept = set(bringing.free) | late
    words = math.prod(d.size for d in kept if d.grid_dim is None)
    count = _turns(placed, bringing.depth)
    for grid_dim in reversed(bringing.gathered):
        size = placed.grid[grid_dim]
        if size > 1:
            yield Message(
                bringing.tensor,
                "all-gather",
                (grid_dim,),
                words,
                Fraction(words * (size - 1)),
                count * len(bringing.lanes),
                bringing.depth > 0,
            )
        words *= size


def _permute(
    placed: Placed,
    tensor: str,
    pairs: list[tuple[Coordinates, Coordinates]],
    words: int,
    count: int,
    is_in_loop: bool,
) -> Message:
    moved = [(source, target) for source, target in pairs if source != target]
    crossed = sorted(
        {g for s, t in moved for g, (a, b) in enumerate(zip(s, t, strict=True)) if a != b}
    )
    received = Fraction(words * len(moved), placed.num_processors)
    return Message(tensor, "collective-permute", tuple(crossed), words, received, count, is_in_loop)


def _of_result(sending: Sending) -> Iterator[Message]:
    placed, tensor = sending.placed, sending.tensor
    words = math.prod(d.size for d in sending.free)
    if sending.depth > 0:
        count = _turns(placed, sending.depth) - _turns(placed, sending.depth - 1)
        for lane in sending.lanes if count else ():
            yield _permute(placed, tensor, list(sending.passing(lane)), words, count, True)
        words *= len(sending.lanes)
    for grid_dim in sending.scattered:
        size = placed.grid[grid_dim]
        if size > 1:
            part = Fraction(words * (size - 1), size)
            yield Message(tensor, "reduce-scatter", (grid_dim,), words, part, 1, False)
        words //= size
    over = tuple(g for g in sending.reduced if placed.grid[g] > 1)
    if over:
        size = math.prod(placed.grid[g] for g in over)
        part = Fraction(2 * words * (size - 1), size)
        yield Message(tensor, "all-reduce", over, words, part, 1, False)
    for digit, grid_dim in sending.gathered:
        part = Fraction(words * (digit.size - 1))
        yield Message(tensor, "all-gather", (grid_dim,), words, part, 1, False)
        words *= digit.size
