"""Sums over devices that a compiler takes in one call: gradients of one type, and their norms."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite, prod

from autoshard.graph.op_traits import FUSIBLE
from autoshard.graph.partial_sums import LoopSum
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind

_SUMMING = PRODUCTS | {OpClass.REDUCE, OpClass.SCATTER}
_Group = tuple[int, str, float, bool]
"""Region and type of sums, how many reductions come one after another behind them, tensors or not.

Numbers are apart: they may well be all that is summed (a loss beside gradients of whole batches).
"""


@dataclass(frozen=True)
class CombinedSums:
    """How many sums one call takes, by op; that of its own result is counted with them.

    Args:
        in_body: Where the sum is taken in the region of the op.
        after_loop: Where it leaves the loop that adds it up.
        groups: Ops whose sums may be one call, in program order.
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

    Ops whose sum a product or another region waits for are left out. What nothing waits for but
    element-wise ops and the end of the region (the gradients of weights) is summed when all of it
    is there; so is what as many reductions wait for, one after another (gradients that are clipped
    by their norm), and so are these (their squares, a number of each weight).

    XLA does so for host CPUs, for an H100 (which lays the gradients end to end) and for TPUs: of
    the body of a backward scan of GPT two all-reduces are left, one of twelve `bfloat16` gradients
    and one of four of `float32` (jaxlib 0.10.2, libtpu 0.0.42); of gradients clipped by their norm
    over shards one of the gradients and one of all norms (libtpu 0.0.52). What leaves its loop is
    summed with those of the region around that, and not with what stays: of two LSTMs one
    all-reduce is left after the backward scans, with the gradient of the output layer in it, and
    one of each bias in every run where those are cut in the loop.
    """
    readers = graph.consumers
    behind = [0.0] * len(graph.values)
    for op in reversed(graph.ops):
        for value in op.results:
            made = (_behind(graph, graph.ops[reader], op, behind) for reader in readers[value])
            behind[value] = max(made, default=0.0)
    groups: dict[int, _Group] = {
        op.index: _group(graph, op.region, op.results[0], behind[op.results[0]])
        for op in graph.ops
        if op.kind is OpKind.COMPUTE
        and op.op_class in _SUMMING
        and not _passes_on(graph, op)
        and isfinite(behind[op.results[0]])
    }
    leaving: dict[int, _Group] = {}
    for one in late:
        outside = _behind_loop(graph, one, readers, behind)
        if isfinite(outside):
            leaving[one.op] = _group(graph, _region_around(graph, one), one.carried, outside)
    late_ops = {one.op for one in late}
    staying = Counter(group for index, group in groups.items() if index not in late_ops)
    in_body = {index: staying[group] + (index in late_ops) for index, group in groups.items()}
    together = staying + Counter(leaving.values())
    in_body |= {i: together[group] for i, group in groups.items() if i not in late_ops}
    members: defaultdict[_Group, list[int]] = defaultdict(list)
    for index, group in groups.items():
        if index not in late_ops:
            members[group].append(index)
    after_loop = {index: together[group] for index, group in leaving.items()}
    return CombinedSums(in_body, after_loop, tuple(map(tuple, members.values())))


def _group(graph: Graph, region: int, value: int, behind: float) -> _Group:
    """The group of a sum that is taken in a region."""
    made = graph.values[value]
    return region, made.dtype, behind, bool(made.shape)


def _region_around(graph: Graph, one: LoopSum) -> int:
    """The region around the loop that adds a sum up."""
    return graph.regions[graph.ops[one.add].region].parent


def _behind_loop(
    graph: Graph, one: LoopSum, readers: Sequence[Sequence[int]], behind: Sequence[float]
) -> float:
    """As `_behind`, of what a loop has added up."""
    carry = graph.maker(one.carried)
    after = (graph.ops[reader] for reader in readers[one.carried] if reader != one.add)
    return max((_behind(graph, reader, carry, behind) for reader in after), default=0.0)


def _behind(graph: Graph, reader: Op, maker: Op, behind: Sequence[float]) -> float:
    """Reductions that wait for what is made, one after another, before its region has ended.

    Infinite where a product, a scatter or another region waits.
    """
    if reader.kind is OpKind.RESULT or (reader.kind is OpKind.JOIN and reader.index < maker.index):
        return 0.0
    if reader.kind is OpKind.CONSTRAINT:
        return behind[reader.results[0]]
    if reader.region != maker.region:
        return inf
    found = max((behind[value] for value in reader.results), default=0.0)
    if _passes_on(graph, reader):
        return found
    is_reduction = reader.kind is OpKind.COMPUTE and reader.op_class is OpClass.REDUCE
    return found + 1.0 if is_reduction else inf


def _passes_on(graph: Graph, op: Op) -> bool:
    """True where an op sums nothing: element by element, or over dimensions of size one."""
    if op.kind is OpKind.FREE:  # of a number, as many as there are elements
        return True
    if op.kind is not OpKind.COMPUTE:
        return False
    if op.op_class is OpClass.REDUCE:
        shapes = (graph.values[value].shape for value in (op.operands[0], op.results[0]))
        return len({prod(shape) for shape in shapes}) == 1
    return op.op_class in FUSIBLE
