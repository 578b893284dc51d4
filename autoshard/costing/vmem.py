"""Temporaries in VMEM, as far as no choice decides it: those never unread for long.

What fits there under a plan is memory space assignment, in `lowering`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from autoshard.graph.buffer_owners import updates_argument
from autoshard.graph.buffer_reads import buffer_reads, buffers_behind
from autoshard.graph.buffers import Buffers
from autoshard.graph.dataflow import source_of
from autoshard.graph.op_traits import TRANSPARENT
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind

IntArray = npt.NDArray[np.int64]

MOST_MATMULS = 4
"""Matmuls between two reads of a buffer that stays in VMEM, at most.

Source: what libtpu 0.0.42 evicts and prefetches again on a v5e is unread for four to seven.
"""


@dataclass(frozen=True, slots=True)
class Vmem:
    """VMEM, which buffers take instead of HBM.

    Args:
        capacity: Bytes; 0 on most machines. A larger tensor is in HBM.
        matmuls: Before each op, and after the last, matmuls run so far.
        short_lived: Per value, whether its buffer may be in VMEM: the next read is always near.
        stays: Per value, whether VMEM holds it beside the others until it is first read, which is
            near; it may be copied to HBM then.
        accesses: Per value that is computed, when its buffer is written and read, in order.
        crowded: Of those, times and values: what VMEM does not hold until the next, beside others.
        holds_copies: Copies that collectives and look-ups make may be in VMEM too.
        updates: Ops that make new states: they read from HBM.
        loop_reads: Ops with which a loop reads unchanged what its matmuls read whole: prefetched
            before the loop, it stays for all runs.
        loop_capacity: By these, bytes for each beside the others of its loop.
        carried: By what a loop carries and updates in place, bytes for each beside the others.
        behind: As of `buffers_behind`.
    """

    capacity: int
    matmuls: tuple[float, ...]
    short_lived: tuple[bool, ...]
    stays: tuple[bool, ...] = ()
    accesses: tuple[tuple[int, ...], ...] = ()
    crowded: frozenset[tuple[int, int]] = frozenset()
    holds_copies: bool = True
    updates: frozenset[int] = frozenset()
    loop_reads: frozenset[int] = frozenset()
    loop_capacity: Mapping[int, float] = field(default_factory=dict)
    carried: Mapping[int, float] = field(default_factory=dict)
    behind: tuple[frozenset[int], ...] = ()

    @classmethod
    def of(
        cls,
        graph: Graph,
        buffers: Buffers,
        capacity: int,
        num_devices: int = 1,
        written_bits: Mapping[int, int] = MappingProxyType({}),
        *,
        any_maker: bool = True,
    ) -> Vmem:
        """Buffers of a program by their reads.

        Args:
            graph: The program.
            buffers: Of its values.
            capacity: Bytes of VMEM.
            num_devices: That cut the tensors of a kernel, where it counts what all of them take.
            written_bits: By value, bits of an element as written, where they are fewer.
            any_maker: Ops of any kind write there; else only element-wise ops that no matmul
                computes do.
        """
        if not capacity:
            nowhere = (False,) * len(graph.values)
            return cls(0, (), nowhere, nowhere, holds_copies=False)
        runs = (op.repeat if op.op_class in PRODUCTS else 0.0 for op in graph.ops)
        matmuls = tuple(accumulate(runs, initial=0.0))
        reads, ends = buffer_reads(graph, buffers)
        with_product = buffers.product_by_written
        short_lived, made_there = [False] * len(graph.values), set[int]()
        accesses: list[tuple[int, ...]] = [()] * len(graph.values)
        for value in graph.values:
            maker, times = graph.ops[value.op], reads[value.index]
            if maker.kind is OpKind.COMPUTE and not updates_argument(graph, maker):
                written = with_product.get(value.index, maker.index)
                accesses[value.index] = tuple(sorted({buffers.time_of(written), *times}))
            if maker.kind is not OpKind.COMPUTE or ends[value.index]:
                continue
            if any_maker or _is_apart(graph, maker, buffers):
                short_lived[value.index] = _is_near(matmuls, maker, {maker.index, *times})
                made_there.add(value.index)
        loop_reads = read_whole(graph)
        num_bytes = {
            value.index: value.num_bytes
            * written_bits.get(value.index, value.bits)
            // max(value.bits, 1)
            for value in graph.values
            if buffers.is_stored[value.index] and buffers.owner[value.index] == value.index
        }
        crowded = _crowded(graph, accesses, matmuls, num_bytes, capacity * num_devices)

        def stays(value: int) -> bool:
            begins, maker = accesses[value][:2], graph.maker(value)
            return len(begins) == 2 and _is_kept(matmuls, crowded, value, maker, *begins)

        return cls(
            capacity,
            matmuls,
            tuple(short_lived),
            tuple(v in made_there and stays(v) for v in range(len(graph.values))),
            tuple(accesses),
            crowded,
            any_maker,
            buffers.updates,
            loop_reads,
            _loop_capacity(graph, loop_reads, capacity),
            _carried_capacity(graph, buffers, capacity) if any_maker else {},
            buffers_behind(graph, buffers),
        )

    def may_hold_copy(self, reader: Op, times: Iterable[int]) -> bool:
        """True where a copy that is made for an op and read at these times may be in VMEM."""
        if reader.index in self.loop_reads:
            return True
        if not self.holds_copies or reader.kind is not OpKind.COMPUTE:
            return False
        return reader.index not in self.updates and _is_near(self.matmuls, reader, times)

    def held_sources(self, graph: Graph, buffers: Buffers, op: Op) -> tuple[tuple[int, ...], ...]:
        """Per operand, bytes of each buffer that an op reads through it and that is still in VMEM.

        Source: matmuls of one to three tensors in VMEM, computed with them or not, by libtpu 0.0.52
            for a v5e: they take as long as their arithmetic.
        """
        if not self.holds_copies:
            return ((),) * len(op.operands)
        time = buffers.time_of(op.index)
        found = []
        for value in op.operands:
            held = (
                graph.values[source].num_bytes
                for source in self.behind[value]
                if self._is_held(op, source, time)
            )
            found.append(tuple(sorted(held, reverse=True)))
        return tuple(found)

    def _is_held(self, op: Op, value: int, time: int) -> bool:
        """True where few matmuls ran since a value was made or read, when an op reads it."""
        before = [access for access in self.accesses[value] if access < time]
        return bool(before) and _is_kept(self.matmuls, self.crowded, value, op, before[-1], time)

    def loop_bytes(self, graph: Graph, op: Op) -> tuple[float, ...]:
        """Per operand of a matmul in a loop, bytes of VMEM in which it waits for all runs."""
        if op.op_class not in PRODUCTS or op.repeat <= 1:
            return (0.0,) * len(op.operands)
        return tuple(self.loop_capacity.get(_enters_by(graph, v), 0.0) for v in op.operands)

    def hbm_bytes(self, usage: IntArray, *, may_hold: bool) -> IntArray:
        """Of so many bytes on a device those in HBM, if VMEM may hold them."""
        return np.where(usage > self.capacity, usage, 0) if may_hold else usage


def read_whole(graph: Graph) -> frozenset[int]:
    """Ops with which values enter a loop that only its matmuls read, and no slice of them.

    In every run they read the same; converted, or with dimensions reordered.
    """
    hands_on = TRANSPARENT | {"while"}
    whole: set[int] = set()
    for op in reversed(graph.ops):
        if op.name in hands_on and len(op.operands) == 1 and len(op.results) == 1:
            readers = [graph.ops[index] for index in graph.consumers[op.results[0]]]
            if readers and all(r.op_class in PRODUCTS or r.index in whole for r in readers):
                whole.add(op.index)
    joins = (graph.ops[index] for index in whole)
    return frozenset(op.index for op in joins if op.kind is OpKind.JOIN and op.name == "while")


def prefetched(graph: Graph, buffers: Buffers, op: Op) -> tuple[bool, ...]:
    """Per operand of an op, whether an argument is prefetched for it, as for matmuls.

    A matmul reads that as it is or as it is computed with the matmul, also in a loop that leaves it
    unchanged: the argument is there long before.
    """

    def passes(maker: Op, made: int) -> bool:
        is_handed_on = maker.kind is not OpKind.COMPUTE or not buffers.is_stored[made]
        return len(maker.operands) == 1 and is_handed_on

    if op.op_class not in PRODUCTS:
        return (False,) * len(op.operands)
    sources = (source_of(graph, value, passes) for value in op.operands)
    return tuple(graph.maker(value).kind is OpKind.ARGUMENT for value in sources)


def _loop_capacity(graph: Graph, joins: Iterable[int], capacity: int) -> dict[int, float]:
    """By op with which a loop reads what waits for it: its part of VMEM, by its bytes.

    Where all are cut alike, either all fit or none.
    """
    loops = {index: (graph.ops[index].region, graph.ops[index].equation) for index in joins}
    num_bytes = {index: graph.values[graph.ops[index].results[0]].num_bytes for index in loops}
    in_all: dict[tuple[int, str], float] = {}
    for index, loop in loops.items():
        in_all[loop] = in_all.get(loop, 0.0) + num_bytes[index]
    return {i: capacity * num_bytes[i] / in_all[loop] for i, loop in loops.items() if num_bytes[i]}


def _carried_capacity(graph: Graph, buffers: Buffers, capacity: int) -> dict[int, float]:
    """By what a loop carries and updates in place: its part of VMEM, by its bytes."""
    owners = {owner for value, owner in enumerate(buffers.owner) if owner != value}
    makers = {graph.maker(owner).index: owner for owner in owners}
    joins = [index for index in makers if graph.ops[index].kind is OpKind.JOIN]
    parts = _loop_capacity(graph, joins, capacity)
    return {makers[index]: part for index, part in parts.items()}


def _enters_by(graph: Graph, value: int) -> int:
    """The op with which a value comes into the loop, as it is or converted or reordered there."""
    source = source_of(
        graph, value, lambda op, _: op.kind is OpKind.COMPUTE and len(op.operands) == 1
    )
    return graph.maker(source).index


def _is_apart(graph: Graph, maker: Op, buffers: Buffers) -> bool:
    """True for element-wise results that no matmul writes, wider or not."""
    is_with_product = any(value in buffers.product_by_written for value in maker.results)
    if maker.name == "convert":
        is_with_product |= graph.maker(maker.operands[0]).op_class in PRODUCTS
    is_elementwise = maker.op_class is OpClass.ELEMENTWISE or maker.name == "slice"
    return is_elementwise and not is_with_product


def _crowded(
    graph: Graph,
    accesses: Sequence[Sequence[int]],
    matmuls: Sequence[float],
    num_bytes: Mapping[int, int],
    capacity: int,
) -> frozenset[tuple[int, int]]:
    """Times and values: what VMEM does not hold until the next read, beside all others.

    The smaller ones stay, those of one size together.

    Source: gradients of four layers of 256 and 1,024 columns, in float32 and bfloat16, by libtpu
        0.0.52 for a v5e: of two tensors of 67 MB that a kernel reads and writes none is in VMEM.
    """
    segments = sorted(
        (earlier, later, value)
        for value in num_bytes
        for earlier, later in pairwise(accesses[value])
        if _is_near(matmuls, graph.ops[later], (earlier, later))
    )
    found: list[tuple[int, int]] = []
    ends: list[tuple[int, int, int]] = []
    held = Counter[int]()  # by value: an access ends one segment and begins another
    staying = defaultdict[int, set[tuple[int, int]]](set)  # by size
    taken = dict.fromkeys(sorted({num_bytes[value] for _, _, value in segments}), 0)
    for begin, alike in groupby(segments, itemgetter(0)):
        while ends and ends[0][0] < begin:
            _, start, value = heappop(ends)
            held[value] -= 1
            size = num_bytes[value]
            taken[size] -= 0 if held[value] else size
            staying[size].discard((start, value))
        for start, later, value in alike:
            heappush(ends, (later, start, value))
            size = num_bytes[value]
            taken[size] += 0 if held[value] else size
            staying[size].add((start, value))
            held[value] += 1
        for size, total in zip(taken, accumulate(taken.values()), strict=True):
            if total > capacity:
                found += staying.pop(size, ())
    return frozenset(found)


def _is_kept(
    matmuls: Sequence[float],
    crowded: Set[tuple[int, int]],
    value: int,
    op: Op,
    earlier: int,
    later: int,
) -> bool:
    """True where VMEM holds a value between two accesses: they are near, and others leave room."""
    return (earlier, value) not in crowded and _is_near(matmuls, op, (earlier, later))


def _is_near(matmuls: Sequence[float], op: Op, times: Iterable[int]) -> bool:
    """True where few matmuls run between accesses; in a loop, as often as its body has them."""
    most = MOST_MATMULS * op.repeat
    return all(
        matmuls[later] - matmuls[earlier + 1] <= most for earlier, later in pairwise(sorted(times))
    )
