"""Stacks of which the products of a loop read a slice in each run."""

from __future__ import annotations

from autoshard.graph.buffers import Buffers
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind


def runs_that_slice(graph: Graph, buffers: Buffers) -> dict[int, float]:
    """By stack that is computed before a loop, how often products read a slice of it once made.

    What only orders or converts the elements of another is counted with that: it is one stack.

    Args:
        graph: The program.
        buffers: Its storage.
    """
    found: dict[int, float] = {}
    for op in graph.ops:
        if op.op_class in PRODUCTS and op.repeat > 1:
            for stack in _sliced(graph, buffers, op):
                for value in _same_stack(graph, stack):
                    times_made = graph.ops[graph.values[value].op].repeat
                    found[value] = found.get(value, 0.0) + op.repeat / times_made
    return found


def _sliced(graph: Graph, buffers: Buffers, product: Op) -> set[int]:
    """What lies before the loop of which a product computes slices itself."""
    found, todo, seen = set(), list(product.operands), set()
    while todo:
        value = todo.pop()
        maker = graph.ops[graph.values[value].op]
        if value in seen or maker.kind is not OpKind.COMPUTE or buffers.is_stored[value]:
            continue
        seen.add(value)
        if maker.name != "dynamic_slice":
            todo += maker.operands
            continue
        carry = graph.ops[graph.values[maker.operands[0]].op]
        if carry.kind is OpKind.JOIN and len(carry.operands) == 1:
            found.add(carry.operands[0])
    return found


def _same_stack(graph: Graph, stack: int) -> list[int]:
    """A stack and what it is ordered or converted from; nothing if that is an argument."""
    found = [stack]
    maker = graph.ops[graph.values[stack].op]
    while maker.kind is OpKind.COMPUTE and (
        maker.name == "convert" or maker.op_class is OpClass.COPY
    ):
        found.append(maker.operands[0])
        maker = graph.ops[graph.values[maker.operands[0]].op]
    return found if maker.kind is OpKind.COMPUTE else []
