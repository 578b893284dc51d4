"""Tuple index tables of ops with several results: no tensors, and no choice of an op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoshard.backends import MemoryPolicy
from autoshard.graph.program import PRODUCTS, Graph


def table_bytes(graph: Graph, memory: MemoryPolicy, arguments: Sequence[int]) -> int:
    """Bytes of the tables of a program.

    Args:
        graph: The program.
        memory: Of the compiler.
        arguments: Bytes that a device holds of each argument.
    """
    num_products = sum(op.op_class in PRODUCTS for op in graph.ops)
    return memory.tuple_index_bytes(arguments, num_products)


def least_table_bytes(
    graph: Graph, memory: MemoryPolicy, arguments: Iterable[Sequence[int]]
) -> int:
    """Bytes of them that no choice of layouts is without.

    Args:
        graph: The program.
        memory: Of the compiler.
        arguments: Of each argument, what a device may hold of it.
    """
    fewest = [min(held, key=memory.num_tuple_index_tables) for held in arguments]
    return table_bytes(graph, memory, fewest)
