"""Which sums over devices a compiler takes in one call: gradients of one body, of one type."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from autoshard.graph.op_traits import FUSIBLE
from autoshard.graph.partial_sums import LoopSum
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind

_SUMMING = PRODUCTS | {OpClass.REDUCE, OpClass.SCATTER}


@dataclass(frozen=True)
class CombinedSums:
    """How many sums one call takes, by op; that of its own result is counted with them.

    Args:
        in_body: Where the sum is taken in the region of the op.
        after_loop: Where it leaves the loop that adds it up.
        groups: Per region and type, ops whose sums may be one call, in program order.
    """

    in_body: Mapping[int, int]
    after_loop: Mapping[int, int]
    groups: tuple[tuple[int, ...], ...]

    @cached_property
    def group_of(self) -> Mapping[int, tuple[int, ...]]:
        """By op, those whose sums may be one call with its own."""
        return {index: group for group in self.groups for index in group}


def combined_sums(graph: Graph, late: Sequence[LoopSum] = ()) -> CombinedSums:
    """By op, how many sums one call can take, that of its result included.

    Ops whose sum other sums or products wait for are left out, and so are single numbers, which may
    well be the only ones summed.

    What nothing waits for but element-wise ops and the end of the region (the gradients of weights)
    is summed when all of it is there. XLA does so for host CPUs, for an H100 (which lays the
    gradients end to end) and for TPUs: of the body of a backward scan of GPT two all-reduces are
    left, one of twelve `bfloat16` gradients and one of four of `float32` (jaxlib 0.10.2,
    libtpu 0.0.42). What leaves its loop is summed with those of the region around that, and not
    with what stays: of two LSTMs one all-reduce is left after the backward scans, with the gradient
    of the output layer in it, and one of each bias in every run where those are cut in the loop.
    """
    readers = graph.consumers
    waits = [False] * len(graph.values)
    for op in reversed(graph.ops):
        for value in op.results:
            waits[value] = any(
                _makes_wait(graph, graph.ops[reader], op, waits) for reader in readers[value]
            )
    groups = {
        op.index: (op.region, graph.values[op.results[0]].dtype)
        for op in graph.ops
        if op.kind is OpKind.COMPUTE
        and op.op_class in _SUMMING
        and not _passes_on(graph, op)
        and graph.values[op.results[0]].shape
        and not waits[op.results[0]]
    }
    leaving = {
        one.op: (_region_around(graph, one), graph.values[one.carried].dtype)
        for one in late
        if not _makes_wait_outside(graph, one, readers, waits)
    }
    late_ops = {one.op for one in late}
    staying = Counter(group for index, group in groups.items() if index not in late_ops)
    in_body = {index: staying[group] + (index in late_ops) for index, group in groups.items()}
    together = staying + Counter(leaving.values())
    in_body |= {i: together[group] for i, group in groups.items() if i not in late_ops}
    members: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for index, group in groups.items():
        if index not in late_ops:
            members[group].append(index)
    after_loop = {index: together[group] for index, group in leaving.items()}
    return CombinedSums(in_body, after_loop, tuple(map(tuple, members.values())))


def _region_around(graph: Graph, one: LoopSum) -> int:
    """The region around the loop that adds a sum up."""
    return graph.regions[graph.ops[one.add].region].parent


def _makes_wait_outside(
    graph: Graph, one: LoopSum, readers: Sequence[Sequence[int]], waits: Sequence[bool]
) -> bool:
    """True where a sum, a product or another region waits for what a loop has added up."""
    carry = graph.maker(one.carried)
    after = (graph.ops[reader] for reader in readers[one.carried] if reader != one.add)
    return any(_makes_wait(graph, reader, carry, waits) for reader in after)


def _makes_wait(graph: Graph, reader: Op, maker: Op, waits: Sequence[bool]) -> bool:
    """True where a sum, a product or another region needs what is made before its own has ended."""
    if reader.kind is OpKind.RESULT or (reader.kind is OpKind.JOIN and reader.index < maker.index):
        return False
    if reader.kind is OpKind.CONSTRAINT:
        return waits[reader.results[0]]
    if not _passes_on(graph, reader) or reader.region != maker.region:
        return True
    return any(waits[value] for value in reader.results)


def _passes_on(graph: Graph, op: Op) -> bool:
    """True where an op sums nothing: element by element, or over dimensions of size one."""
    if op.kind is not OpKind.COMPUTE:
        return False
    if op.op_class is OpClass.REDUCE:
        shapes = (graph.values[value].shape for value in (op.operands[0], op.results[0]))
        return len({prod(shape) for shape in shapes}) == 1
    return op.op_class in FUSIBLE
