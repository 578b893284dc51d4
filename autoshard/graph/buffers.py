"""Which values take a buffer of their own, and from when to when.

The compiler fuses cheap ops with others (`backends.fusion`) and renames a buffer instead of copying
it for a reshape. A fused value takes no memory, but keeps what it is computed from alive until its
own last reader. Times are op indices; an interval `[start, stop)` is half-open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from autoshard.backends import Backend
from autoshard.graph.buffer_owners import buffer_owners
from autoshard.graph.computed_again import computed_again
from autoshard.graph.dim_orders import Turned, find_turned
from autoshard.graph.fused_reads import Read, fused_reads
from autoshard.graph.joined_parts import joined_parts
from autoshard.graph.last_uses import last_uses, loop_of
from autoshard.graph.op_traits import is_elementwise, renames
from autoshard.graph.product_writes import (
    Written,
    computed_with_products,
    narrowed_by_products,
    products_by_written,
    update_waits,
    updates,
    updating_products,
    written_by_products,
)
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.graph.reused_operands import without_reused
from autoshard.graph.run_late import run_late
from autoshard.graph.scatters import scattered_into, zeros_filled_at
from autoshard.graph.softmax_kernels import written_weights
from autoshard.graph.stored_values import is_stored_constant, stored_values
from autoshard.graph.turned_rows import turned_rows


@dataclass(frozen=True, slots=True)
class Buffers:
    """Storage of every value.

    Args:
        is_stored: Per value, whether it has a buffer that is written and read.
        owner: Per value, the value whose buffer it shares (itself when it owns one).
        intervals: Per value, `(start, stop)` of the buffer it owns; `(0, 0)` when it owns none, or
            one in host memory.
        last_use: Per value, the time after which it is not read, through fused readers too.
        product_by_written: The product in whose place a value is written, by that value.
        unless_summed: Products computed together with all that reads them: they take their buffer
            only where devices have to sum what they make.
        computed_with: Element-wise ops that write what they make with a product, by its op index,
            unless devices have to sum what that makes.
        joined: By op that runs in the kernel of another one, that, unless devices have to sum what
            it makes.
        run_at: When products and scatters run that wait for others, by op index.
        filled_at: When the zeros are written that scatters add to, by op index, where that is
            before they run.
        updates: Element-wise ops of which come results only, where all of one state run at once.
        parts: Element-wise results that a product puts together for its operand, by the first of
            them: they are written by one kernel.
        turned_rows: By reshape, the value that is copied to another dimension order for it.
        again: Values that are written for gathers alone: all else computes them.
        update_waits: By op index of a product that computes an update unless devices have to sum
            what it makes, a later op that it waits for.
        reads: Per op and operand, what of whole tensors the op reads from buffers through it.
        written: By value on the way from a product, what is written in its place.
        turned: Dimension orders, where a compiler keeps those in which matmuls write.
        weights: By exponentials that the kernel of a softmax writes, the op that takes the maximum.
    """

    is_stored: tuple[bool, ...]
    owner: tuple[int, ...]
    intervals: tuple[tuple[int, int], ...] = ()
    last_use: tuple[int, ...] = ()
    reads: tuple[tuple[Read, ...], ...] = ()
    written: Mapping[int, int] = field(default_factory=dict)
    turned: Turned | None = None
    product_by_written: Mapping[int, int] = field(default_factory=dict)
    unless_summed: frozenset[int] = frozenset()
    computed_with: Mapping[int, Sequence[int]] = field(default_factory=dict)
    joined: Mapping[int, int] = field(default_factory=dict)
    run_at: Mapping[int, int] = field(default_factory=dict)
    filled_at: Mapping[int, int] = field(default_factory=dict)
    updates: frozenset[int] = frozenset()
    parts: Mapping[int, int] = field(default_factory=dict)
    turned_rows: Mapping[int, int] = field(default_factory=dict)
    again: frozenset[int] = frozenset()
    update_waits: Mapping[int, int] = field(default_factory=dict)
    weights: Mapping[int, int] = field(default_factory=dict)

    def is_fused(self, op: Op, value: int) -> bool:
        """True where an op computes a value with what reads it."""
        return op.kind is OpKind.COMPUTE and not self.is_stored[value]

    def time_of(self, op: int) -> int:
        """When an op is run: in program order, if it is no product that waits."""
        return self.run_at.get(op, op)

    def most_held_bytes(self, graph: Graph) -> int:
        """The most bytes that the buffers hold at one time, on all devices together.

        A share of it is about what a device holds at least, where everything is cut everywhere.
        """
        change = [0] * (len(graph.ops) + 1)
        for value, (start, stop) in zip(graph.values, self.intervals, strict=True):
            change[start] += value.num_bytes
            change[stop] -= value.num_bytes
        return max(accumulate(change))


def find_buffers(graph: Graph, backend: Backend) -> Buffers:
    """Decide storage and live ranges of all values of a program."""
    fusion = backend.fusion
    fuses = fusion.fuses_into_matmuls
    narrowed = narrowed_by_products(graph) if fusion.narrows_matmuls else {}
    written, with_softmax = (
        written_by_products(graph, fusion, backend.layout.num_lanes) if fuses else Written(narrowed)
    )
    product_by_written = products_by_written(graph, written)
    updated = updating_products(graph) if fuses else {}
    addends = scattered_into(graph) if fusion.scatters_into_addends else {}
    parts = joined_parts(graph) if fuses else {}
    weights = written_weights(graph, product_by_written, with_softmax, fusion) if fuses else {}
    stored = stored_values(graph, fusion, backend.layout, written, addends, set(weights))
    turned_copies = turned_rows(graph) if backend.layout.turn_cycles else {}
    for one in (*parts, *turned_copies.values()):
        stored[one] = True
    turned = find_turned(graph, stored) if backend.layout.keeps_matmul_layouts else None
    for one in turned.written if turned else ():
        stored[one] = True
    owner = buffer_owners(graph, stored, writes_turned=fuses)
    run_at = run_late(graph, backend.schedule.deferred_past_matmuls)
    again = computed_again(graph, stored)
    longest_row = max(*fusion.softmax_rows, *fusion.narrow_score_rows) if fuses else None
    reads = fused_reads(
        graph, stored, owner, product_by_written, longest_row, again, {*weights.values()}
    )
    found = Buffers(
        is_stored=tuple(stored),
        owner=tuple(owner),
        reads=reads.by_op,
        written=written,
        product_by_written=product_by_written,
        unless_summed=frozenset(updated),
        update_waits=update_waits(graph, updated),
        computed_with=computed_with_products(graph, written, updated),
        joined=reads.joined,
        updates=updates(graph) if fuses else frozenset(),
        parts=parts,
        turned_rows=turned_copies,
        again=again,
        turned=turned,
        weights=weights,
    )
    filled = zeros_filled_at(graph, run_at) if fusion.fills_zeros_early else {}
    return in_order(graph, backend, found, run_at, filled)


def in_order(
    graph: Graph,
    backend: Backend,
    buffers: Buffers,
    run_at: Mapping[int, int],
    filled: Mapping[int, int],
) -> Buffers:
    """The same buffers where ops run at other times.

    Args:
        graph: The program.
        backend: That compiles it.
        buffers: Of the program.
        run_at: By op index, when ops run that do not in program order.
        filled: Likewise, when the zeros are written that scatters add to.
    """
    stored, owner = buffers.is_stored, buffers.owner
    made = _made_at(graph, run_at, filled)
    product_by_written = buffers.product_by_written
    for value, product in product_by_written.items():
        made[value] = run_at.get(product, product)
    summing = {
        kernel for op, kernel in buffers.joined.items() if graph.ops[op].op_class is OpClass.REDUCE
    }
    with_sums = {v for v, product in product_by_written.items() if product in summing}
    with_sums.update(buffers.weights)
    first = _of_owners(min, owner, made)
    writing = {*product_by_written.values()}
    least_part = backend.fusion.min_concatenated_part
    used = last_uses(graph, stored, buffers.again, writing, run_at, least_part)
    last = _of_owners(max, owner, used)
    intervals = [
        _interval(graph, value, first[value], last[value])
        if owner[value] == value and stored[value] and value not in graph.on_host
        else (0, 0)
        for value in range(len(graph.values))
    ]
    intervals = without_reused(graph, backend, stored, owner, intervals, with_sums)
    if buffers.turned:
        _make_again(graph, buffers.turned, intervals, run_at)
    return replace(
        buffers,
        intervals=tuple(intervals),
        last_use=tuple(last),
        run_at=run_at,
        filled_at=filled,
    )


def read_stop(graph: Graph, buffers: Buffers, reader: Op) -> int:
    """When an op needs what it reads no more: once it is run, where it is fused with its readers.

    A carry is needed until the end of its loop, what is renamed until nothing reads the new name.
    """
    fused = (
        value
        for value in reader.results
        if not buffers.is_stored[value] or (renames(reader) and buffers.owner[value] != value)
    )
    run = buffers.time_of(reader.index) + 1
    loop = loop_of(graph, reader)
    if loop:
        run = max(run, *(buffers.time_of(index) + 1 for index in range(loop.start, loop.stop)))
    return max(run, *(buffers.last_use[value] for value in fused), 0)


def _made_at(graph: Graph, run_at: Mapping[int, int], filled_at: Mapping[int, int]) -> list[int]:
    """Per value, when its buffer is written; what renames a product that waits waits with it."""
    made: list[int] = []
    for value in graph.values:
        op = graph.maker(value.index)
        time = filled_at.get(op.index, run_at.get(op.index, op.index))
        waits = renames(op) and graph.maker(op.operands[0]).index in run_at
        made.append(max(time, made[op.operands[0]]) if waits else time)
    return made


def _of_owners(
    choose: Callable[[int, int], int], owner: Sequence[int], times: Sequence[int]
) -> list[int]:
    """The times, where that of an owner is the first or the last of all that live in its buffer."""
    found = list(times)
    for value, root in enumerate(owner):
        found[root] = choose(found[root], found[value])
    return found


def _interval(graph: Graph, value: int, first: int, last: int) -> tuple[int, int]:
    """From when to when a buffer is there."""
    op = graph.maker(value)
    if op.kind is OpKind.ARGUMENT or is_stored_constant(op):
        return 0, len(graph.ops)
    return first, max(last, first + 1)


def _make_again(
    graph: Graph, turned: Turned, intervals: list[tuple[int, int]], run_at: Mapping[int, int]
) -> None:
    """Hold what several products read, and lies in no order for them, for the last of them alone.

    It is written for each, the last time with what is computed from the same copy.
    """
    copies = [(turned.orders[value], *intervals[value]) for value in turned.written]
    for value in graph.values:
        start, stop = intervals[value.index]
        op = graph.maker(value.index)
        is_computed = is_elementwise(op)
        readers = graph.consumers[value.index]
        products = [index for index in readers if graph.ops[index].op_class is OpClass.MATMUL]
        if stop > start and is_computed and len(products) > 1 and turned.is_turned(value.index):
            last = max(run_at.get(product, product) for product in products)
            order = turned.orders[value.index]
            stops = [until for same, begun, until in copies if same == order and last < until]
            intervals[value.index] = (last, max(stop, *stops, last + 1))
