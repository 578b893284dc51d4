"""Products and scatters that nothing but the end of the program needs, and when they are run.

A compiler that schedules from the end backwards runs the product of a weight gradient late: most
products of the backward pass wait for one another, and none waits for it. Until then it holds what
it reads, and what it makes takes nothing yet. So does the scatter of a gradient of looked-up rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence

from autoshard.graph.dataflow import trace_forward
from autoshard.graph.op_traits import TRANSPARENT
from autoshard.graph.program import PRODUCTS, Graph, Op, OpKind
from autoshard.graph.scatters import is_into_zeros


def run_late(graph: Graph, most: int) -> Mapping[int, int]:
    """When products, and scatters into zeros, run that no product needs.

    Args:
        graph: The program.
        most: All but one of the products that are left and needed run first, but no more than so
            many.

    Returns:
        By op index, the time at which it runs: those that wait for the same product one after the
        other. Ops of loop bodies are not among them.
    """
    if most == 0:
        return {}
    needed = _needed(graph)
    late = [op for op in graph.ops if op.op_class in PRODUCTS or is_into_zeros(graph, op)]
    ends = [op for op in late if op.region == 0 and not needed[op.results[0]]]
    others = _others(graph, needed)
    found: dict[int, int] = {}
    waiting: Counter[int] = Counter()  # by the product they wait for
    for op in ends:
        left = others[bisect_right(others, op.index) :]
        later = left[:most]
        readers = readers_of(graph, op.results[0])
        if later and readers:
            waiting[later[-1]] += 1
            found[op.index] = min(later[-1] + waiting[later[-1]], *readers)
    return found


def _others(graph: Graph, needed: Sequence[bool]) -> list[int]:
    """When the products run that others need, or that are in loops."""
    products = [op for op in graph.ops if op.op_class in PRODUCTS]
    return [op.index for op in products if op.region != 0 or needed[op.results[0]]]


def _needed(graph: Graph) -> list[bool]:
    """Per value, whether a product, a loop or a branch makes use of it."""
    needed = [False] * len(graph.values)
    for op in reversed(graph.ops):
        is_plain = op.region == 0 and op.kind in (OpKind.COMPUTE, OpKind.CONSTRAINT)
        leads_on = any(needed[value] for value in op.results)
        is_end = op.kind is OpKind.RESULT or (is_plain and op.op_class not in PRODUCTS)
        for value in op.operands:
            needed[value] |= leads_on or not is_end
    return needed


def is_for_updates(graph: Graph, updates: frozenset[int], value: int) -> bool:
    """True where only updates read a value, or what it is turned into."""
    readers = readers_of(graph, value)
    return bool(readers) and updates.issuperset(readers)


def readers_of(graph: Graph, value: int) -> list[int]:
    """Ops that read a value, or the result of transparent ops of it, in program order."""

    def passes(op: Op) -> bool:
        return op.name in TRANSPARENT or op.kind is OpKind.CONSTRAINT

    return [op.index for op in trace_forward(graph, value, passes)]
