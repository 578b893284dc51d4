"""A placed schedule as a function on JAX arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from autoshard.apply.scheduled.digit_array import DigitArray, digit_sizes
from autoshard.apply.scheduled.fetching import Fetching, Loops
from autoshard.apply.scheduled.summing import Summing
from autoshard.errors import ScheduleError
from autoshard.loops.bringing import Bringing, Lane
from autoshard.loops.distribution import Distribution
from autoshard.loops.placed import Placed
from autoshard.loops.sending import Sending

Tiles: TypeAlias = Mapping[tuple[str, Lane], DigitArray]
Totals: TypeAlias = dict[Lane, jax.Array]


def partition_spec(home: Distribution, axis_names: Sequence[str]) -> PartitionSpec:
    """Where a tensor lives, as `shard_map` takes it."""
    entries = []
    for dim in range(home.rank):
        names = tuple(axis_names[cut.machine_dim] for cut in home.cuts(dim))
        entries.append(None if not names else names[0] if len(names) == 1 else names)
    return PartitionSpec(*entries)


def lower(
    placed: Placed,
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
    axis_names: Sequence[str],
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    after: Sequence[PartitionSpec] = (),
) -> Callable[..., jax.Array]:
    """A function of the operands that runs the schedule on a mesh.

    It is one `shard_map`, so it works under `jit`, `grad` and `vmap`. Operands that lie otherwise
    than at home are moved there first, by the compiler.

    Args:
        placed: The schedule and the homes; tensors on faces are spread behind them.
        mesh: With Auto axes.
        axis_names: The mesh axis of each grid dimension.
        precision: Of each local product, as in `jnp.einsum`.
        preferred_element_type: Of the result, as in `jnp.einsum`.
        after: How further arrays lie that the function takes behind the operands: it starts to sum
            once these are there.

    Raises:
        ScheduleError: An operand is communicated nowhere, or the schedule brings a tensor in a way
            that has no form here.
        ShardingError: A tensor on a face cannot be spread.
    """
    placed = placed.spread()
    body = _Body(placed, tuple(axis_names), precision, preferred_element_type)
    statement = placed.schedule.statement
    in_specs = tuple(
        partition_spec(placed.home_of[access.tensor], axis_names) for access in statement.operands
    )
    out_spec = partition_spec(placed.home_of[statement.result.tensor], axis_names)
    function: Callable[..., jax.Array] = jax.shard_map(
        body.run,
        mesh=mesh,
        in_specs=(*in_specs, *after),
        out_specs=out_spec,
        axis_names=frozenset(axis_names),  # other axes may cut what is mapped over
    )
    return function


@dataclass(eq=False)
class _Body:
    """What one device does."""

    placed: Placed
    axis_names: tuple[str, ...]
    precision: Any
    preferred_element_type: Any
    fetchings: dict[str, Fetching] = field(init=False)
    summing: Summing = field(init=False)

    def __post_init__(self) -> None:
        schedule = self.placed.schedule
        for access in schedule.statement.accesses:
            if schedule.communicated_at(access.tensor) is None:
                raise ScheduleError(
                    f"nothing says where {access.tensor} is communicated",
                    where=str(schedule.statement),
                    fix=f"add communicate({access.tensor},"
                    f" {schedule.grid_loops[-1].variable}), or a loop further in",
                )
        self.fetchings = {
            access.tensor: Fetching(Bringing(self.placed, access.tensor), self.axis_names)
            for access in schedule.statement.operands
        }
        self.summing = Summing(Sending(self.placed), self.axis_names)

    def run(self, *blocks: jax.Array) -> jax.Array:
        statement = self.placed.schedule.statement
        # Else the sums may wait for a block in another dimension order than the loop reads it in.
        same = lax.optimization_barrier(blocks)
        varying = [_varying(block, self.axis_names) for block in same]
        tensors = [access.tensor for access in statement.operands]
        own = dict(zip(tensors, varying, strict=False))
        earlier = varying[len(tensors) :]
        at = {
            loop.variable: lax.axis_index(self.axis_names[loop.grid_dim or 0])
            for loop in self.placed.schedule.grid_loops
        }
        dtype = self.preferred_element_type or jnp.result_type(*blocks)
        turns = _Turns(self, own, _adding_type(dtype), dtype, earlier)
        totals = turns.body(0, at, {}, turns.zeros())
        home = {lane: total.astype(dtype) for lane, total in totals.items()}
        # Else what reads the result adds the last piece by itself, and both sums are held for it.
        made: jax.Array = lax.optimization_barrier(self.summing.bring_home(home))
        return made

    def is_rolled(self, depth: int) -> bool:
        """Whether the time loop at `depth` may run without its turns being told apart."""
        for fetching in self.fetchings.values():
            if fetching.plan.depth <= depth or not fetching.plan.is_delivered:
                continue
            if not (fetching.plan.is_passed_on and fetching.plan.depth == depth + 1):
                return False
        return True


@dataclass(frozen=True)
class _Turns:
    """The loops of one device over its blocks."""

    of: _Body
    blocks: Mapping[str, jax.Array]
    dtype: Any
    sent_dtype: Any
    earlier: Sequence[jax.Array] = ()

    def zero(self) -> jax.Array:
        return _zero_after((*self.blocks.values(), *self.earlier))

    def zeros(self) -> Totals:
        summing = self.of.summing
        sizes = digit_sizes(summing.plan.free)
        zero = jnp.broadcast_to(self.zero().astype(self.dtype), sizes)
        return {lane: _varying(zero, self.of.axis_names) for lane in summing.plan.lanes}

    def body(self, depth: int, at: Loops, tiles: Tiles, totals: Totals) -> Totals:
        """The inside of `depth` time loops, whose values are in `at`."""
        schedule = self.of.placed.schedule
        tiles = {**tiles, **self.bring(depth, at, is_passed_on=False)}
        if depth == schedule.deepest:
            return self.compute(at, tiles, totals)
        if self.of.summing.plan.depth == depth + 1:
            return self.travel(depth, at, tiles)
        loop = schedule.time_loops[depth]
        name, turns = loop.variable, loop.extent
        streams = self.after_blocks(self.bring(depth + 1, {**at, name: 0}, is_passed_on=True))

        def turn(index: Any, totals: Totals, streams: Tiles, now: _Turns = self) -> Totals:
            return now.body(depth + 1, {**at, name: index}, {**tiles, **streams}, totals)

        if not self.of.is_rolled(depth):
            done: list[Totals] = []
            for index in range(turns):
                now = self.after(done[-2]) if len(done) > 1 else self
                totals = turn(index, totals, streams, now)
                done.append(totals)
                if index + 1 < turns:
                    streams = self.pass_on(streams)
            return totals
        digits = {key: tile.digits for key, tile in streams.items()}

        def step(index: Any, carry: Any) -> Any:
            totals, data = carry
            streams = {key: DigitArray(data[key], digits[key]) for key in data}
            following = {key: tile.data for key, tile in self.pass_on(streams).items()}
            again = jax.checkpoint(lambda i, t, d: turn(i, t, _tiles(d, digits)))
            return again(index, totals, data), following

        # The last turn passes nothing on, and stands behind the loop if there are streams.
        in_loop = turns - 1 if streams else turns
        carry = (totals, {key: tile.data for key, tile in streams.items()})
        totals, data = lax.fori_loop(0, in_loop, step, carry)
        return turn(turns - 1, totals, _tiles(data, digits)) if streams else totals

    def after(self, totals: Totals) -> _Turns:
        """The same, reading its blocks only once `totals` are there.

        Without this the compiler may fetch for all turns at once, and hold it all; a turn may be
        fetched for while the one before it is computed, and no earlier.
        """
        blocks, _ = lax.optimization_barrier((dict(self.blocks), totals))
        return replace(self, blocks=blocks)

    def after_blocks(self, streams: Tiles) -> Tiles:
        """The first pieces, copied only once all operands are there; see `_zero_after`."""
        if not streams:
            return streams
        none = self.zero()
        return {
            key: replace(tile, data=jnp.where(none, jnp.zeros_like(tile.data), tile.data))
            for key, tile in streams.items()
        }

    def bring(self, depth: int, at: Loops, *, is_passed_on: bool) -> Tiles:
        """The operands whose place is here, those that are passed on or the others."""
        return {
            (name, lane): fetching.fetch(self.blocks[name], {**at, **dict(lane)})
            for name, fetching in self.of.fetchings.items()
            if fetching.plan.depth == depth and fetching.plan.is_passed_on == is_passed_on
            for lane in fetching.plan.lanes
        }

    def pass_on(self, streams: Tiles) -> Tiles:
        return {
            (name, lane): self.of.fetchings[name].pass_on(tile, lane)
            for (name, lane), tile in streams.items()
        }

    def travel(self, depth: int, at: Loops, tiles: Tiles) -> Totals:
        """A rotated loop in which the sums are passed on; turn 0, at home, comes last.

        It stands in the loop with the others: behind it, its terms would wait for no sums, and
        might be made, and held, from the start on.
        """
        loop = self.of.placed.schedule.time_loops[depth]
        summing = self.of.summing

        def term(index: Any) -> Totals:
            here = {**at, loop.variable: index}
            return self.body(depth + 1, here, tiles, self.zeros())

        def step(index: Any, totals: Totals) -> Totals:
            moved = {
                lane: summing.pass_on(total.astype(self.sent_dtype), lane)
                for lane, total in totals.items()
            }
            terms = term(index % loop.extent)
            return {lane: terms[lane] + moved[lane].astype(self.dtype) for lane in terms}

        if loop.extent == 1:
            return term(0)
        totals: Totals = lax.fori_loop(2, loop.extent + 1, step, term(1))
        return totals

    def compute(self, at: Loops, tiles: Tiles, totals: Totals) -> Totals:
        """One local product for each lane."""
        placed, summing = self.of.placed, self.of.summing
        statement = placed.schedule.statement
        names = tuple(access.tensor for access in statement.accesses)
        totals = dict(totals)
        for turn in placed.lanes(names, dict.fromkeys(at, 0)):
            here = {**at, **turn}
            values = [self.operand(access.tensor, here, tiles) for access in statement.operands]
            product = jnp.einsum(
                statement.einsum_text(),
                *values,
                precision=self.of.precision,
                preferred_element_type=self.dtype,
            )
            lane = tuple((name, turn[name]) for name, _ in summing.plan.lanes[0])
            totals[lane] = summing.add(totals[lane], product, here)
        return totals

    def operand(self, name: str, at: Loops, tiles: Tiles) -> jax.Array:
        """What one local product reads of an operand."""
        fetching = self.of.fetchings[name]
        schedule = self.of.placed.schedule
        tile = tiles[name, tuple((loop, at[loop]) for loop, _ in fetching.plan.lanes[0])]
        for digit in tile.digits:
            if digit.is_fixed(schedule, at.keys()):
                tile = tile.fix(digit, digit.value(schedule, at))
        return tile.merged(len(schedule.statement.access(name).indices))


def _tiles(data: Mapping[tuple[str, Lane], jax.Array], digits: Mapping[Any, Any]) -> Tiles:
    return {key: DigitArray(array, digits[key]) for key, array in data.items()}


def _adding_type(dtype: Any) -> Any:
    """Sums of 16-bit numbers are kept in 32 bits while they are added up."""
    is_short = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return jnp.dtype(jnp.float32) if is_short else jnp.dtype(dtype)


def _zero_after(blocks: Iterable[jax.Array]) -> jax.Array:
    """A zero that is there only once all blocks are.

    XLA for CPUs makes constants when the program starts: sums that begin as one are all held from
    then on, each until its product runs. It does not see that no number is below itself.
    """
    firsts = [block.ravel()[:1].real for block in blocks]
    none: jax.Array = jnp.concatenate([first < first for first in firsts]).any()
    return none


def _varying(array: jax.Array, axis_names: tuple[str, ...]) -> jax.Array:
    """The same array, taken to differ from device to device along every axis."""
    known = jax.typeof(array).manual_axis_type.varying
    same = tuple(name for name in axis_names if name not in known)
    return lax.pcast(array, same, to="varying") if same else array
