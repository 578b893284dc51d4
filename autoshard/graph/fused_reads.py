"""What an op reads from memory: the stored values behind the operands that are computed with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import NamedTuple

from autoshard.graph.computed_again import computes_again
from autoshard.graph.joined_kernels import JoinedKernels
from autoshard.graph.op_traits import is_elementwise
from autoshard.graph.program import PRODUCTS, Graph, Op, OpKind, Value

_TAKES_A_PIECE = frozenset({"dynamic_slice", "gather", "slice"})
"""Ops that read of their first operand no more than they make."""


class Read(NamedTuple):
    """Whole tensors that an op reads from buffers through an operand."""

    num_bytes: int
    elements: int


@dataclass(frozen=True, slots=True)
class FusedReads:
    """What ops read from buffers.

    Args:
        by_op: Per op and operand.
        joined: By op, the one whose kernel it runs in.
    """

    by_op: tuple[tuple[Read, ...], ...]
    joined: Mapping[int, int]


def fused_reads(
    graph: Graph,
    stored: Sequence[bool],
    owner: Sequence[int],
    at_products: Mapping[int, int],
    longest_row: int | None,
    again: Collection[int],
    softmaxes: Set[int],
) -> FusedReads:
    """What each op reads through each of its operands, of whole tensors.

    Of an operand that is not stored these are what it is computed from; a buffer counts once for an
    op. What an element-wise op reads of a result of the program that another one makes is there:
    both run in one kernel (the moments and the weights of an optimizer). So is what another op that
    makes such a result has read (their gradient), and what the kernel has that an op joins.

    Args:
        graph: The program.
        stored: By value, whether it has a buffer.
        owner: By value, the one whose buffer it shares.
        at_products: Products, by what is written in their place.
        longest_row: Of which a matmul's kernel takes the maximum; None: kernels join no other.
        again: Stored values that gathers alone read; all else computes them.
        softmaxes: Maxima whose own kernel writes the exponentials too.
    """
    joined = None
    if longest_row is not None:
        joined = JoinedKernels(graph, at_products, softmaxes, longest_row)
    behind: dict[int, Mapping[int, int]] = {}
    results = {op.operands[0] for op in graph.results}
    in_kernel: set[int] = set()  # what ops that make results have read so far
    found = []
    for op in graph.ops:
        seen: dict[int, int] = {}
        reads = []
        sources_of = [
            _own(graph, value, owner)
            if stored[value] and not computes_again(op, value, again)
            else behind.get(value, {})
            for value in op.operands
        ]
        if sources_of and op.results:
            sources_of[0] = _piece(graph, op, sources_of[0])
        at_hand = joined.join(op, {*chain(*sources_of)}, stored) if joined else frozenset()
        for sources in sources_of:
            new = {
                source: num_bytes
                for source, num_bytes in sources.items()
                if source not in seen
                and source not in at_hand
                and not _is_at_hand(graph, op, source, results)
            }
            seen.update(new)
            if _makes_result(op, results):
                made = prod(graph.values[op.results[0]].shape)
                new = {s: read for s, read in new.items() if s not in in_kernel}
                in_kernel.update(s for s in new if prod(graph.values[s].shape) == made)
            elements = sum(_elements(graph.values[s], read) for s, read in new.items())
            reads.append(Read(sum(new.values()), elements))
        if op.op_class not in PRODUCTS:  # a product is not computed again by what follows it
            behind.update((value, seen) for value in op.results if not stored[value])
            behind.update((value, _joint(sources_of)) for value in op.results if value in again)
        found.append(tuple(reads))
    return FusedReads(tuple(found), joined.by_op if joined else {})


def _joint(sources_of: Iterable[Mapping[int, int]]) -> Mapping[int, int]:
    """All sources of several operands."""
    return {source: num_bytes for sources in sources_of for source, num_bytes in sources.items()}


def _elements(value: Value, num_bytes: int) -> int:
    """How many elements bytes are; a token has none."""
    return num_bytes * 8 // value.bits if value.bits else 0


def _own(graph: Graph, value: int, owner: Sequence[int]) -> Mapping[int, int]:
    """A stored value by itself; nothing, if every device makes it for each reader."""
    maker = graph.maker(value)
    is_invariant = maker.kind is OpKind.JOIN and len(maker.operands) == 1
    if is_invariant and graph.maker(maker.operands[0]).kind is OpKind.FREE:
        return {}
    return {owner[value]: graph.values[value].num_bytes}


def _piece(graph: Graph, op: Op, sources: Mapping[int, int]) -> Mapping[int, int]:
    """What of an op's first operand it reads."""
    if op.name == "dynamic_update_slice":
        return {}
    if op.name not in _TAKES_A_PIECE:
        return sources
    elements = prod(graph.values[op.results[0]].shape)
    return {
        source: min(num_bytes, elements * graph.values[source].bits // 8)
        for source, num_bytes in sources.items()
    }


def _is_at_hand(graph: Graph, op: Op, source: int, results: set[int]) -> bool:
    """True where what makes a value and what reads it run in one kernel."""
    if source not in results or not op.results:
        return False
    maker = graph.maker(source)
    is_by_element = is_elementwise(maker) and is_elementwise(op)
    return is_by_element and graph.values[op.results[0]].shape == graph.values[source].shape


def _makes_result(op: Op, results: set[int]) -> bool:
    """True where an element-wise op makes a result of the program."""
    return is_elementwise(op) and op.results[0] in results
