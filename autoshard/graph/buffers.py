"""Which values take a buffer of their own, and from when to when.

The compiler fuses cheap ops with others (`fusing`) and renames a buffer instead of copying it for a
reshape. A fused value takes no memory, but keeps what it is computed from alive until its own last
reader. Times are op indices; an interval `[start, stop)` is half-open.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

from autoshard.graph.dim_orders import Turned, find_turned
from autoshard.graph.fused_reads import Read, fused_reads
from autoshard.graph.fusing import AS_ON_CPU, EVERY, Fusing
from autoshard.graph.joined_parts import joined_parts
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind
from autoshard.graph.run_late import after_the_next, is_into_zeros, needed_products, run_late

_FUSIBLE = frozenset({OpClass.ELEMENTWISE, OpClass.COPY, OpClass.NOTHING})
_READS_FUSED = frozenset({OpClass.ELEMENTWISE, OpClass.COPY, OpClass.NOTHING, OpClass.REDUCE})
_RENAMES = frozenset({"reshape", "bitcast_convert", "transpose", "optimization_barrier"})


@dataclass(frozen=True, slots=True)
class Buffers:
    """Storage of every value.

    Args:
        is_stored: Per value, whether it has a buffer that is written and read.
        owner: Per value, the value whose buffer it shares (itself when it owns one).
        intervals: Per value, `(start, stop)` of the buffer it owns; `(0, 0)` when it owns none.
        last_use: Per value, the time after which it is not read, through fused readers too.
        with_products: Values that are written in the place of a product.
        unless_summed: Products computed together with all that reads them: they take their buffer
            only where devices have to sum what they make.
        computed_with: Element-wise ops that write what they make with a product, by its op index,
            unless devices have to sum what that makes.
        summed_with: Likewise reductions of what a product makes.
        run_at: When products and scatters run that wait for others, by op index.
        filled_at: When the zeros are written that scatters add to, by op index, where that is
            before they run.
        updates: Element-wise ops of which come results only, where all of one state run at once.
        moved_at: By op index of products that no other needs, when that is there which is moved for
            them alone, and what they make: after the next product, which lets go of what it reads.
        parts: Element-wise results that a product puts together for its operand, by the first of
            them: they are written by one kernel.
        reads: Per op and operand, what of whole tensors the op reads from buffers through it.
        awaited: Products that others need, in program order, where what is moved or summed may be
            there while another runs; else none.
    """

    is_stored: tuple[bool, ...]
    owner: tuple[int, ...]
    intervals: tuple[tuple[int, int], ...]
    last_use: tuple[int, ...]
    reads: tuple[tuple[Read, ...], ...]
    with_products: frozenset[int] = frozenset()
    unless_summed: frozenset[int] = frozenset()
    computed_with: Mapping[int, Sequence[int]] = field(default_factory=dict)
    summed_with: Mapping[int, Sequence[int]] = field(default_factory=dict)
    run_at: Mapping[int, int] = field(default_factory=dict)
    filled_at: Mapping[int, int] = field(default_factory=dict)
    updates: frozenset[int] = frozenset()
    moved_at: Mapping[int, int] = field(default_factory=dict)
    parts: Mapping[int, int] = field(default_factory=dict)
    awaited: tuple[int, ...] = ()

    def moving_time(self, op: int, maker: int) -> int:
        """When that is there which is moved for an op alone, of what another one makes.

        At the earliest it is on its way while the product runs before which it is not needed.
        """
        time = self.time_of(op)
        if not self.awaited:
            return self.moved_at.get(op, time)
        place = bisect_left(self.awaited, time)
        before = self.awaited[place - 1] if place else 0
        return min(time, max(time - 1 if op in self.run_at else before, self.time_of(maker)))

    def summing_times(self, op: int, made: int) -> tuple[int, int]:
        """When the sums of a product made at some time are there until they are taken.

        Those of products that wait for others are taken in one call.
        """
        if not self.awaited:
            return made, made + 1
        time = self.time_of(op)
        return max(made, time), max(self.run_at.values()) + 1 if op in self.run_at else time + 2

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


def find_buffers(graph: Graph, fusing: Fusing = AS_ON_CPU) -> Buffers:
    """Decide storage and live ranges of all values of a program.

    Args:
        graph: The program.
        fusing: What the compiler computes together.
    """
    consumers = graph.consumers
    written = _written_by_products(graph, consumers) if fusing.with_products else {}
    addends = _scattered_into(graph, consumers) if fusing.into_addends else {}
    parts = joined_parts(graph) if fusing.with_products else {}
    stored = _stored(graph, consumers, fusing, written, addends)
    for one in parts:
        stored[one] = True
    turned = find_turned(graph, stored, consumers) if fusing.turns else None
    for one in turned.written if turned else ():
        stored[one] = True
    owner = _owners(graph, stored, consumers, addends)
    run_at = run_late(graph, consumers, fusing.waits_for_products)
    moved_at = after_the_next(graph) if fusing.frees_first else {}
    widened = _widened_for_gathers(graph, stored, consumers, written)
    by_parts = _read_by_parts(graph, fusing)
    last = _last_uses(graph, stored, consumers, run_at, widened, by_parts)
    end = len(graph.ops)
    intervals = []
    owner_last = list(last)
    filled_at = _filled_at(graph, run_at) if fusing.fills_early else {}
    owner_first = _made_at(graph, run_at, filled_at)
    for value in graph.values:
        root = owner[value.index]
        owner_last[root] = max(owner_last[root], last[value.index])
        owner_first[root] = min(owner_first[root], owner_first[value.index])
    for value in graph.values:
        op = graph.ops[value.op]
        if owner[value.index] != value.index or not stored[value.index]:
            intervals.append((0, 0))
        elif op.kind is OpKind.ARGUMENT or _is_stored_constant(op):
            intervals.append((0, end))
        else:
            start = max(owner_first[value.index], moved_at.get(value.op, 0))
            intervals.append((start, max(owner_last[value.index], start + 1)))
    if turned:
        _make_again(graph, consumers, turned, intervals)
    with_products = fusing.with_products
    updated = _updating_products(graph, consumers) if with_products else {}
    at_products = {written[op.results[0]]: op.index for op in graph.ops if _is_written(op, written)}
    reads = fused_reads(graph, stored, owner, at_products)
    return Buffers(
        is_stored=tuple(stored),
        owner=tuple(owner),
        intervals=tuple(intervals),
        last_use=tuple(owner_last),
        reads=reads.by_op,
        with_products=frozenset(written.values()),
        unless_summed=frozenset(updated),
        computed_with=_computed_with(graph, written, updated),
        summed_with=reads.sums,
        run_at=run_at,
        filled_at=filled_at,
        updates=_updates(graph, consumers) if with_products else frozenset(),
        moved_at=moved_at,
        parts=parts,
        awaited=needed_products(graph) if fusing.waits_for_products == EVERY else (),
    )


def _make_again(
    graph: Graph,
    consumers: Sequence[Sequence[int]],
    turned: Turned,
    intervals: list[tuple[int, int]],
) -> None:
    """Hold what several products read, and lies in no order for them, for the last of them alone.

    It is written for each, the last time with what is computed from the same copy.
    """
    copies = [(turned.orders[value], *intervals[value]) for value in turned.written]
    for value in graph.values:
        start, stop = intervals[value.index]
        op = graph.ops[value.op]
        is_computed = op.kind is OpKind.COMPUTE and op.op_class is OpClass.ELEMENTWISE
        readers = [i for i in consumers[value.index] if graph.ops[i].op_class is OpClass.MATMUL]
        if stop > start and is_computed and len(readers) > 1 and turned.is_turned(value.index):
            last = readers[-1]
            order = turned.orders[value.index]
            stops = [until for same, begun, until in copies if same == order and last < until]
            intervals[value.index] = (last, max(stop, *stops, last + 1))


def _filled_at(graph: Graph, run_at: Mapping[int, int]) -> dict[int, int]:
    """When the zeros are written that scatters add to, by op index.

    That is with the product before, and for all of one shape at once.
    """
    found: dict[int, int] = {}
    zeros: dict[tuple[tuple[int, ...], str], int] = {}
    product: int | None = None
    for op in graph.ops:
        if op.op_class in PRODUCTS and op.index not in run_at:
            product = op.index
        if op.region == 0 and product is not None and is_into_zeros(graph, op):
            value = graph.values[op.results[0]]
            found[op.index] = zeros.setdefault((value.shape, value.dtype), product)
    return found


def _made_at(graph: Graph, run_at: Mapping[int, int], filled_at: Mapping[int, int]) -> list[int]:
    """Per value, when its buffer is written; what renames a product that waits waits with it."""
    made: list[int] = []
    for value in graph.values:
        op = graph.ops[value.op]
        time = filled_at.get(op.index, run_at.get(op.index, op.index))
        is_renamed = op.kind is OpKind.CONSTRAINT or op.name in _RENAMES
        waits = is_renamed and graph.values[op.operands[0]].op in run_at
        made.append(max(time, made[op.operands[0]]) if waits else time)
    return made


def _stored(
    graph: Graph,
    consumers: list[list[int]],
    fusing: Fusing,
    written: Mapping[int, int],
    addends: Mapping[int, int],
) -> list[bool]:
    """Per value, whether it has a buffer."""
    computed, sources = _computed_by_products(graph) if fusing.from_one else (set(), set())
    kept = {*addends, *addends.values(), *sources}
    if fusing.writes_scattered:
        kept |= _scattered_sums(graph, consumers)
    in_place = {
        operand
        for total, addend in addends.items()
        for operand in graph.ops[graph.values[total].op].operands
        if operand != addend
    }
    stored: list[bool] = []
    made_of: list[int] = []  # per value, the widest elements of its shape it is computed from
    for value in graph.values:
        index = value.index
        is_stored = index not in in_place and (
            index in kept or _is_stored(graph, consumers, index, fusing, written, computed)
        )
        op = graph.ops[value.op]
        same = [v for v in op.operands if v < index and graph.values[v].shape == value.shape]
        widest = max((made_of[v] for v in same), default=0)
        if op.name == "divide":
            widest = max(widest, value.bits)
        if not is_stored and not fusing.from_wider and widest > value.bits:
            is_stored = any(graph.ops[reader].op_class in PRODUCTS for reader in consumers[index])
        stored.append(is_stored)
        own = 0 if op.kind is OpKind.ARGUMENT else value.bits  # an argument is narrowed in products
        made_of.append(own if is_stored else widest)
    return stored


def _is_stored(
    graph: Graph,
    consumers: list[list[int]],
    value: int,
    fusing: Fusing,
    written: Mapping[int, int],
    computed: Set[int],
) -> bool:
    op = graph.ops[graph.values[value].op]
    if op.kind is OpKind.FREE or _is_made_in_loop(graph, op):
        return False
    if not graph.values[value].shape:  # a sum is there once it is taken, however late it is read
        return op.kind is OpKind.COMPUTE and op.op_class not in _FUSIBLE
    readers = [graph.ops[index] for index in consumers[value]]
    if value in computed:
        readers = [reader for reader in readers if reader.op_class is not OpClass.MATMUL]
    if value in written:
        is_reduced_only = all(reader.op_class is OpClass.REDUCE for reader in readers)
        return written[value] == value and not (readers and is_reduced_only)
    if not _is_fusible(graph, op, fusing):
        return True
    if not all(_reads_fused(graph, value, reader, fusing) for reader in readers):
        return True
    is_kept = op.name in fusing.kept and graph.values[value].bits <= fusing.kept_bits
    return is_kept and len(readers) > 1 and value not in computed


def _computed_by_products(graph: Graph) -> tuple[Set[int], Set[int]]:
    """What matrix products compute themselves, and the tensors that they then read for it.

    That is what element-wise ops make of one other tensor, of no wider elements, and constants.
    """
    computed: set[int] = set()
    read: set[int] = set()
    sources: set[int] = set()
    for op in reversed(graph.ops):
        if op.kind is OpKind.COMPUTE and op.op_class is OpClass.MATMUL:
            read.update(op.operands)
        source = _only_source(graph, op)
        if source is not None and op.results[0] in read:
            computed.add(op.results[0])
            read.add(source)
            sources.add(source)
    return computed, sources - computed


def _only_source(graph: Graph, op: Op) -> int | None:
    """What an element-wise op makes its result of, if that is one tensor besides constants."""
    if op.kind is not OpKind.COMPUTE or op.op_class is not OpClass.ELEMENTWISE:
        return None
    makers = (graph.ops[graph.values[value].op] for value in op.operands)
    made_of = [v for v, o in zip(op.operands, makers, strict=True) if o.kind is not OpKind.FREE]
    if len(made_of) != 1 or len(op.results) != 1:
        return None
    source, result = graph.values[made_of[0]], graph.values[op.results[0]]
    is_read_as_well = source.shape == result.shape and source.bits <= result.bits
    return source.index if is_read_as_well else None


def _is_made_in_loop(graph: Graph, op: Op) -> bool:
    """Whether a loop makes in each run what it reads unchanged, as that is made of constants."""
    is_invariant = op.name == "while" and len(op.operands) == 1
    return is_invariant and graph.ops[graph.values[op.operands[0]].op].kind is OpKind.FREE


def _is_fusible(graph: Graph, op: Op, fusing: Fusing) -> bool:
    if op.kind is not OpKind.COMPUTE or _is_stored_constant(op):
        return False
    if op.op_class is OpClass.SCATTER:
        return fusing.one_hot_scatters and _is_one_hot(graph, op)
    return op.op_class in _FUSIBLE and op.name != "dynamic_update_slice"


def _reads_fused(graph: Graph, value: int, reader: Op, fusing: Fusing) -> bool:
    if reader.kind is not OpKind.COMPUTE:
        return False
    if reader.op_class in PRODUCTS:
        return fusing.with_products
    if reader.op_class is OpClass.SCATTER and fusing.with_scatters:
        return value != reader.operands[0]
    if reader.op_class is OpClass.GATHER:
        taken = prod(graph.values[reader.results[0]].shape)
        return fusing.with_gathers and taken < prod(graph.values[value].shape)
    return reader.op_class in _READS_FUSED


def _scattered_into(graph: Graph, consumers: list[list[int]]) -> dict[int, int]:
    """By sum of a scatter into zeros and something else, what that is; nothing else reads it.

    Where several are added one after the other, the first one is made so.
    """
    found: dict[int, int] = {}
    for op in graph.ops:
        if op.name != "add" or op.kind is not OpKind.COMPUTE or len(op.operands) != 2:
            continue
        for scattered, addend in (op.operands, op.operands[::-1]):
            maker = graph.ops[graph.values[scattered].op]
            if not is_into_zeros(graph, maker) or consumers[scattered] != [op.index]:
                continue
            is_made = graph.ops[graph.values[addend].op].kind is OpKind.COMPUTE
            if is_made and consumers[addend] == [op.index] and addend not in found:
                found[op.results[0]] = addend
    return found


def _scattered_sums(graph: Graph, consumers: list[list[int]]) -> Set[int]:
    """Sums of a scatter into zeros, that nothing else reads, and something else.

    Not of one that compares positions instead, and so is computed by what reads it.
    """
    found = set()
    for op in graph.ops:
        if op.name == "add" and op.kind is OpKind.COMPUTE:
            makers = (graph.ops[graph.values[v].op] for v in op.operands if len(consumers[v]) == 1)
            if any(is_into_zeros(graph, m) and not _is_one_hot(graph, m) for m in makers):
                found.add(op.results[0])
    return found


def _is_one_hot(graph: Graph, op: Op) -> bool:
    """Whether a scatter changes one element of each row along one dimension."""
    if op.name != "scatter" or len(op.operands) != 3:
        return False
    operand, _, updates = (graph.values[value].shape for value in op.operands)
    if len(operand) != len(updates):
        return False
    other = [size for whole, size in zip(operand, updates, strict=True) if whole != size]
    return other == [1]


def _written_by_products(graph: Graph, consumers: list[list[int]]) -> dict[int, int]:
    """What is written in the place of each product, and of each value on the way from it.

    A product goes on with the element-wise ops that alone read what is there so far, if all else
    that they need is there before; what adds two products up belongs to the later of them.
    """
    there = _available(graph)
    written: dict[int, int] = {}
    for product in reversed(graph.ops):
        if product.op_class not in PRODUCTS or len(product.results) != 1:
            continue
        way = [product.results[0]]
        while (made := _goes_on(graph, consumers, way[-1], product, there)) is not None:
            if made in written:
                break
            way.append(made)
        while len(way) > 1 and _is_widening(graph, way[-1]):  # what reads it does that
            way.pop()
        written.update(dict.fromkeys(way, way[-1]))
    return written


def _goes_on(
    graph: Graph, consumers: list[list[int]], value: int, product: Op, there: Sequence[int]
) -> int | None:
    """What the one element-wise reader of a value makes of it, if a product can do that at once."""
    if len(consumers[value]) != 1:
        return None
    reader = graph.ops[consumers[value][0]]
    is_elementwise = reader.kind is OpKind.COMPUTE and reader.op_class is OpClass.ELEMENTWISE
    if not is_elementwise or reader.region != product.region or len(reader.results) != 1:
        return None
    if graph.values[reader.results[0]].shape != graph.values[value].shape:
        return None
    others = [operand for operand in reader.operands if operand != value]
    return reader.results[0] if all(there[o] < product.index for o in others) else None


def _is_written(op: Op, written: Mapping[int, int]) -> bool:
    return op.op_class in PRODUCTS and len(op.results) == 1 and op.results[0] in written


def _computed_with(
    graph: Graph, written: Mapping[int, int], updated: Mapping[int, Sequence[int]]
) -> dict[int, tuple[int, ...]]:
    """By product, the element-wise ops whose results it writes."""
    found = {}
    for product in graph.ops:
        if product.op_class in PRODUCTS and len(product.results) == 1:
            made = product.results[0]
            last = graph.values[written.get(made, made)].op
            after = updated.get(made, (last,) if last != product.index else ())
            found[product.index] = tuple(after)
    return found


def _updating_products(graph: Graph, consumers: list[list[int]]) -> dict[int, list[int]]:
    """What is computed after products that are the gradient of a state, its update among it.

    One goes on with all the element-wise ops that follow it, if what they make are results of the
    program, and all else that they need is there before.
    """
    there = _available(graph)
    found = {}
    for op in graph.ops:
        if op.op_class is OpClass.MATMUL and len(op.results) == 1:
            made = op.results[0]
            after = _computed_after(graph, consumers, made)
            others = {o for index in after for o in graph.ops[index].operands}
            others -= {made, *(r for index in after for r in graph.ops[index].results)}
            if after and all(there[value] < op.index for value in others):
                found[made] = after
    return found


def _updates(graph: Graph, consumers: list[list[int]]) -> frozenset[int]:
    """Element-wise ops that lead to results of the program, and to nothing else."""
    found: set[int] = set()
    for op in reversed(graph.ops):
        if op.kind is OpKind.COMPUTE and op.op_class is OpClass.ELEMENTWISE and op.region == 0:
            readers = [graph.ops[index] for value in op.results for index in consumers[value]]
            if all(reader.kind is OpKind.RESULT or reader.index in found for reader in readers):
                found.add(op.index)
    return frozenset(found)


def _computed_after(graph: Graph, consumers: list[list[int]], made: int) -> list[int]:
    """All that is computed from a value, if it is element-wise and ends in results; else nothing.

    The value itself, turned or not, is no result.
    """
    num_elements = prod(graph.values[made].shape)
    found: dict[int, bool] = {}  # by op, whether it only turns the value
    todo = [(index, True) for index in consumers[made]]
    while todo:
        index, is_value = todo.pop()
        reader = graph.ops[index]
        if reader.kind is OpKind.RESULT and not is_value:
            continue
        is_turned = is_value and reader.name in _RENAMES
        is_fused = reader.op_class is OpClass.ELEMENTWISE or is_turned
        if reader.kind is not OpKind.COMPUTE or not is_fused:
            return []
        if prod(graph.values[reader.results[0]].shape) != num_elements:
            return []
        if index not in found:
            found[index] = is_turned
            todo += [(after, is_turned) for after in consumers[reader.results[0]]]
    return sorted(found)


def _is_widening(graph: Graph, value: int) -> bool:
    op = graph.ops[graph.values[value].op]
    return op.name == "convert" and graph.values[op.operands[0]].bits < graph.values[value].bits


def _available(graph: Graph) -> list[int]:
    """Per value, the last op that has to be run for it and is fused with nothing."""
    there = [0] * len(graph.values)
    for op in graph.ops:
        time = op.index
        if op.kind is OpKind.FREE or (op.kind is OpKind.COMPUTE and op.op_class in _FUSIBLE):
            time = max((there[value] for value in op.operands), default=0)
        for value in op.results:
            there[value] = time
    return there


def _is_stored_constant(op: Op) -> bool:
    """Whether it is a large table written into the program, which is there all the time."""
    return op.kind is OpKind.COMPUTE and op.name == "constant"


def _is_loop_back_value(value: int, reader: Op) -> bool:
    return reader.name == "while" and value in reader.operands[1:]


def _owners(
    graph: Graph, stored: list[bool], consumers: list[list[int]], addends: Mapping[int, int]
) -> list[int]:
    """Whose buffer each value lives in.

    Renamed values live in their operand's, what a loop body returns in that of its carry, what the
    branches of a conditional end in in that of its result. An update in place takes the buffer of
    what it updates, unless that is still read afterwards.
    """
    owner = list(range(len(graph.values)))
    for total, addend in addends.items():
        owner[total] = addend
    for op in graph.ops:
        if op.kind is OpKind.JOIN and op.name == "while" and len(op.operands) > 1:
            back = op.operands[1]
            if stored[back] and graph.ops[graph.values[back].op].kind is OpKind.COMPUTE:
                owner[back] = op.results[0]
        elif op.kind is OpKind.JOIN and op.name == "case":
            for value in op.operands:
                made = graph.ops[graph.values[value].op]
                if stored[value] and made.kind is OpKind.COMPUTE and made.region != op.region:
                    owner[value] = op.results[0]
    for op in graph.ops:
        renames = op.name in _RENAMES or op.kind is OpKind.CONSTRAINT
        is_invariant = op.name == "while" and len(op.operands) == 1
        if (renames or is_invariant) and len(op.results) == 1 and stored[op.operands[0]]:
            result = op.results[0]
            if owner[result] == result:
                owner[result] = owner[op.operands[0]]
        elif op.name == "dynamic_update_slice" and stored[op.operands[0]]:
            first = graph.ops[graph.values[op.operands[0]].op]
            is_last = not _is_read_after(graph, op, first, consumers[op.operands[0]])
            if first.kind is not OpKind.ARGUMENT and is_last:
                owner[op.results[0]] = owner[op.operands[0]]
    return [_root(owner, value) for value in range(len(owner))]


def _is_read_after(graph: Graph, op: Op, made_by: Op, readers: list[int]) -> bool:
    """Whether a value is read once an op is done with it; a carry, in the same run of the body."""
    stop = len(graph.ops)
    if made_by.kind is OpKind.JOIN and made_by.name == "while":
        loop_stop = carry_stop(graph, made_by)
        stop = loop_stop if op.index < loop_stop else stop  # after the loop it is the last carry
    return any(op.index < reader < stop for reader in readers)


def _root(owner: list[int], value: int) -> int:
    seen = set()
    while owner[value] != value and value not in seen:
        seen.add(value)
        value = owner[value]
    return value


def _read_by_parts(graph: Graph, fusing: Fusing) -> Set[tuple[int, int]]:
    """Joined tensors of which matrix products read the parts: by op index and value.

    They run along none of these, but make as many rows or columns as all parts have.
    """
    found: set[tuple[int, int]] = set()
    products = [op for op in graph.ops if op.op_class is OpClass.MATMUL and op.rule is not None]
    for op in products if fusing.least_part else []:
        assert op.rule is not None
        for value, dims in zip(op.operands, op.rule.operands, strict=True):
            maker = graph.ops[graph.values[value].op]
            joined = _joined_dim(graph, maker, fusing.least_part)
            if joined is not None and op.rule.reduction.isdisjoint(dims[joined]):
                found.add((op.index, value))
    return found


def _joined_dim(graph: Graph, op: Op, least: int) -> int | None:
    """Along which dimension an op puts tensors together, all of a multiple of so many elements."""
    if op.name != "concatenate" or op.kind is not OpKind.COMPUTE:
        return None
    whole = graph.values[op.results[0]].shape
    parts = [graph.values[value].shape for value in op.operands]
    for dim, size in enumerate(whole):
        if any(part[dim] != size for part in parts):
            return dim if all(part[dim] % least == 0 for part in parts) else None
    return None


def _last_uses(
    graph: Graph,
    stored: list[bool],
    consumers: list[list[int]],
    run_at: Mapping[int, int],
    widened: Mapping[int, int],
    by_parts: Set[tuple[int, int]],
) -> list[int]:
    last = [graph.values[v].op + 1 for v in range(len(graph.values))]
    end = len(graph.ops)
    for op in reversed(graph.ops):
        for value in op.results:
            for index in consumers[value]:
                used = _use_time(graph, value, graph.ops[index], end)
                for read in op.operands if (index, value) in by_parts else (value,):
                    last[read] = max(last[read], used, run_at.get(index, 0) + 1)
    # A fused value keeps its operands alive until its own last reader.
    for op in reversed(graph.ops):
        for result in op.results:
            if not stored[result] or result in widened:
                for value in op.operands:
                    last[value] = max(last[value], last[result])
            last[result] = widened.get(result, last[result])
    return last


def _widened_for_gathers(
    graph: Graph,
    stored: list[bool],
    consumers: list[list[int]],
    written: Mapping[int, int],
) -> dict[int, int]:
    """Until when widened results of products are there, by value, that gathers alone want written.

    All that is computed from them is computed from the narrower ones.
    """
    found: dict[int, int] = {}
    for value, is_stored in enumerate(stored):
        op = graph.ops[graph.values[value].op]
        if is_stored and op.name == "convert" and _is_widening(graph, value):
            readers = [graph.ops[index] for index in consumers[value]]
            gathers = [reader.index for reader in readers if reader.op_class is OpClass.GATHER]
            others = [reader for reader in readers if reader.op_class is not OpClass.GATHER]
            is_for_gathers = all(reader.op_class in _READS_FUSED for reader in others)
            if gathers and is_for_gathers and op.operands[0] in written:
                found[value] = max(gathers) + 1
    return found


def _use_time(graph: Graph, value: int, reader: Op, end: int) -> int:
    """When a read is over: a loop reads what comes from outside until its end."""
    if reader.kind is OpKind.RESULT:
        return end
    if _is_loop_back_value(value, reader):
        return graph.values[value].op + 1
    if reader.name == "while" and len(reader.operands) > 1:
        return reader.index  # the carry takes the buffer over
    home = graph.ops[graph.values[value].op].region
    time = reader.index + 1
    region = reader.region
    while region >= 0 and region != home:
        if graph.regions[region].kind == "loop":
            time = max(time, graph.regions[region].stop)
        region = graph.regions[region].parent
    return time


def read_stop(graph: Graph, buffers: Buffers, reader: Op) -> int:
    """When an op needs what it reads no more: once it is run, where it is fused with its readers.

    A carry is needed until the end of its loop.
    """
    fused = (value for value in reader.results if not buffers.is_stored[value])
    run = max(carry_stop(graph, reader), buffers.time_of(reader.index) + 1)
    return max(run, *(buffers.last_use[value] for value in fused), 0)


def carry_stop(graph: Graph, join: Op) -> int:
    """End of the loop whose carry `join` is; its own next time for other joins."""
    if join.name != "while":
        return join.index + 1
    for region in graph.regions:
        if region.kind == "loop" and region.parent == join.region and region.start > join.index:
            return region.stop
    return join.index + 1
