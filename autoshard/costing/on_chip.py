"""Which temporaries lie in memory on the chip: those it has room for, never unread for long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from autoshard.graph.buffers import Buffers
from autoshard.graph.dataflow import source_of
from autoshard.graph.loop_reads import read_whole
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind

IntArray = npt.NDArray[np.int64]

MOST_PRODUCTS = 4
"""At most so many products run between two reads of what stays on the chip.

What libtpu 0.0.42 moved out and in again for a v5e was unread for four to seven at least.
"""


@dataclass(frozen=True, slots=True)
class OnChip:
    """Memory on the chip, which takes no device memory.

    Args:
        room: Bytes of it; a larger tensor is not in it. None on most machines.
        products: Before each op, and after the last, products run so far.
        brief: Per value, whether its buffer may be there: it is read again soon until it is read no
            more.
        reads: Per value, when its buffer is read, in order.
        moved: Whether copies that collectives and look-ups make are there too.
        updates: Ops that make new states: what they read lies beside those in device memory.
        loop_reads: Ops with which a loop reads unchanged what its products read all of: brought
            there before the loop, it stays for all runs.
        loop_room: Bytes that each of these has there beside the others of its loop.
    """

    room: int
    products: tuple[float, ...]
    brief: tuple[bool, ...]
    reads: tuple[tuple[int, ...], ...] = ()
    moved: bool = True
    updates: frozenset[int] = frozenset()
    loop_reads: frozenset[int] = frozenset()
    loop_room: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, buffers: Buffers, room: int, *, any_maker: bool = True) -> OnChip:
        """Look at when each buffer of a program is read.

        Args:
            graph: The program.
            buffers: Its storage.
            room: Bytes on the chip.
            any_maker: Whether what any op makes may be there, and not only what element-wise ops
                make apart from products.
        """
        if not room:
            return cls(0, (), (False,) * len(graph.values), moved=False)
        runs = (op.repeat if op.op_class in PRODUCTS else 0.0 for op in graph.ops)
        products = tuple(accumulate(runs, initial=0.0))
        reads, ends = _reads(graph, buffers)
        brief = [False] * len(graph.values)
        for value in graph.values:
            maker, times = graph.ops[value.op], reads[value.index]
            if maker.kind is not OpKind.COMPUTE or ends[value.index]:
                continue
            if any_maker or _is_apart(graph, maker, buffers):
                brief[value.index] = _is_brief(products, maker, {maker.index, *times})
        loop_reads = read_whole(graph)
        return cls(
            room,
            products,
            tuple(brief),
            tuple(tuple(sorted(times)) for times in reads),
            any_maker,
            buffers.updates,
            loop_reads,
            _loop_room(graph, loop_reads, room),
        )

    def is_brief(self, reader: Op, times: Iterable[int]) -> bool:
        """True where a copy made for an op, and read at these times, is never unread for long."""
        if reader.index in self.loop_reads:
            return True
        if not self.moved or reader.kind is not OpKind.COMPUTE or reader.index in self.updates:
            return False
        return _is_brief(self.products, reader, times)

    def stays(self, op: Op, later: int) -> bool:
        """True where what an op reads stays on the chip until it is read again."""
        return _is_brief(self.products, op, (op.index, later))

    def read_in_loop(self, graph: Graph, op: Op) -> tuple[float, ...]:
        """Per operand of a product in a loop, bytes of room in which it waits for all runs."""
        if op.op_class not in PRODUCTS or op.repeat <= 1:
            return (0.0,) * len(op.operands)
        return tuple(self.loop_room.get(_enters_by(graph, value), 0.0) for value in op.operands)

    def left(self, usage: IntArray, *, is_brief: bool) -> IntArray:
        """Bytes in device memory, of so many on a device."""
        return np.where(usage > self.room, usage, 0) if is_brief else usage


def _loop_room(graph: Graph, joins: Iterable[int], room: int) -> dict[int, float]:
    """By op with which a loop reads what waits for it: its part of the room, by its bytes.

    Where all are cut alike, either all have room or none.
    """
    num_bytes = {index: graph.values[graph.ops[index].results[0]].num_bytes for index in joins}
    in_all: dict[tuple[int, str], float] = {}
    for index, amount in num_bytes.items():
        loop = graph.ops[index].region, graph.ops[index].equation
        in_all[loop] = in_all.get(loop, 0.0) + amount
    return {
        index: room * amount / in_all[graph.ops[index].region, graph.ops[index].equation]
        for index, amount in num_bytes.items()
        if amount
    }


def _enters_by(graph: Graph, value: int) -> int:
    """The op with which a value comes into the loop, as it is or converted or reordered there."""
    source = source_of(
        graph, value, lambda op, _: op.kind is OpKind.COMPUTE and len(op.operands) == 1
    )
    return graph.maker(source).index


def _is_apart(graph: Graph, maker: Op, buffers: Buffers) -> bool:
    """True for element-wise results that no matmul writes, wider or not."""
    is_with_product = any(value in buffers.with_products for value in maker.results)
    is_with_product |= _is_converted_product(graph, maker)
    is_elementwise = maker.op_class is OpClass.ELEMENTWISE or maker.name == "slice"
    return is_elementwise and not is_with_product


def _is_converted_product(graph: Graph, maker: Op) -> bool:
    if maker.name != "convert":
        return False
    return graph.maker(maker.operands[0]).op_class in PRODUCTS


def _is_brief(products: tuple[float, ...], op: Op, times: Iterable[int]) -> bool:
    """Between two reads; in a loop, as often as one run of its body has them."""
    most = MOST_PRODUCTS * op.repeat
    return all(
        products[later] - products[earlier + 1] <= most
        for earlier, later in pairwise(sorted(times))
    )


def _reads(graph: Graph, buffers: Buffers) -> tuple[list[set[int]], list[bool]]:
    """Per value, when its buffer is read; and whether it ends as a result, or goes round a loop.

    What a fused op reads is read when the values that it is fused into are made. What updates read
    counts with what ends as a result.
    """
    reads: list[set[int]] = [set() for _ in graph.values]
    ends = [False] * len(graph.values)
    for op in reversed(graph.ops):
        is_passed_on = op.kind is OpKind.CONSTRAINT or not (
            op.kind is not OpKind.COMPUTE or any(buffers.is_stored[value] for value in op.results)
        )
        times = {time for value in op.results for time in reads[value]} if is_passed_on else set()
        is_last = op.index in buffers.updates or not (is_passed_on or op.kind is OpKind.COMPUTE)
        is_last |= is_passed_on and any(ends[value] for value in op.results)
        for value in op.operands:
            for place in {value, buffers.owner[value]}:
                reads[place] |= times or {op.index}
                ends[place] |= is_last
    return reads, ends
