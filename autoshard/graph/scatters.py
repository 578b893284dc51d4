"""Scatters of gradients: into zeros, into what is added to them, and into one place of each row."""

from __future__ import annotations

from collections.abc import Mapping, Set
from math import prod

from autoshard.graph.program import PRODUCTS, Graph, Op, OpKind


def is_into_zeros(graph: Graph, op: Op) -> bool:
    """True where an op scatters into what every device makes itself."""
    return op.name == "scatter" and graph.maker(op.operands[0]).kind is OpKind.FREE


def is_one_hot(graph: Graph, op: Op) -> bool:
    """True where a scatter changes one element of each row along one dimension."""
    if op.name != "scatter" or len(op.operands) != 3 or op.moved_windows:
        return False
    operand, _, updates = (graph.values[value].shape for value in op.operands)
    if len(operand) != len(updates):
        return False
    other = [size for whole, size in zip(operand, updates, strict=True) if whole != size]
    return other == [1]


def adds_elements(graph: Graph, op: Op) -> bool:
    """True where single elements are scattered, and added to something else than zeros."""
    if op.name != "scatter" or op.kind is not OpKind.COMPUTE or len(op.operands) != 3:
        return False
    _, indices, updates = (graph.values[value].shape for value in op.operands)
    if is_one_hot(graph, op) or prod(indices[:-1]) != prod(updates):
        return False
    readers = [graph.ops[index] for index in graph.consumers[op.results[0]]]
    return not is_into_zeros(graph, op) or [reader.name for reader in readers] == ["add"]


def scattered_into(graph: Graph) -> dict[int, int]:
    """By sum of a scatter into zeros and something else, what that is; nothing else reads it.

    Where several are added one after the other, the first one is made so.
    """
    readers = graph.consumers
    found: dict[int, int] = {}
    for op in graph.ops:
        if op.name != "add" or op.kind is not OpKind.COMPUTE or len(op.operands) != 2:
            continue
        for scattered, addend in (op.operands, op.operands[::-1]):
            if not is_into_zeros(graph, graph.maker(scattered)) or readers[scattered] != [op.index]:
                continue
            is_made = graph.maker(addend).kind is OpKind.COMPUTE
            if is_made and readers[addend] == [op.index] and addend not in found:
                found[op.results[0]] = addend
    return found


def scattered_sums(graph: Graph) -> Set[int]:
    """Sums of a scatter into zeros, that nothing else reads, and something else.

    Not of one that compares positions instead, and so is computed by what reads it.
    """
    found = set()
    for op in graph.ops:
        if op.name == "add" and op.kind is OpKind.COMPUTE:
            makers = (graph.maker(v) for v in op.operands if len(graph.consumers[v]) == 1)
            if any(is_into_zeros(graph, made) and not is_one_hot(graph, made) for made in makers):
                found.add(op.results[0])
    return found


def starts_as_zeros(graph: Graph, op: Op) -> bool:
    """True for a carry of a loop of the program that starts as what every device makes itself."""
    is_carry = op.kind is OpKind.JOIN and op.name == "while" and len(op.operands) > 1
    if not is_carry or op.region or not graph.values[op.results[0]].shape:
        return False
    return graph.maker(op.operands[0]).kind is OpKind.FREE


def zeros_filled_at(graph: Graph, run_at: Mapping[int, int]) -> dict[int, int]:
    """When the zeros are written that scatters add to and loops begin with, by op index.

    Those of a scatter with the product before, and all of one shape at once.

    Source: XLA makes one of equal constants and fuses its copies. Stacks of six scans and their
        backward passes, compiled for an H100 (CUDA plugin 0.10.2).
    """
    found: dict[int, int] = {}
    zeros: dict[tuple[tuple[int, ...], str], int] = {}
    product: int | None = None
    for op in graph.ops:
        if op.op_class in PRODUCTS and op.index not in run_at:
            product = op.index
        if op.region == 0 and product is not None and is_into_zeros(graph, op):
            time = product
        elif starts_as_zeros(graph, op):
            time = op.index
        else:
            continue
        value = graph.values[op.results[0]]
        found[op.index] = zeros.setdefault((value.shape, value.dtype), time)
    return found
