"""Tables of pointers to what ops with several results make: no tensors, and no choice of an op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoshard.backend_habits import num_pointer_tables, pointer_table_bytes
from autoshard.costing.costing import Costing
from autoshard.graph.program import PRODUCTS, Graph


def table_bytes(graph: Graph, costing: Costing, arguments: Sequence[int]) -> int:
    """Bytes of the tables of a program.

    Args:
        graph: The program.
        costing: Of the machine.
        arguments: Bytes that a device holds of each argument.
    """
    num_products = sum(op.op_class in PRODUCTS for op in graph.ops)
    return pointer_table_bytes(costing.model.hardware, arguments, num_products)


def least_table_bytes(graph: Graph, costing: Costing, arguments: Iterable[Sequence[int]]) -> int:
    """Bytes of them that no choice of layouts is without.

    Args:
        graph: The program.
        costing: Of the machine.
        arguments: Of each argument, what a device may hold of it.
    """
    machine = costing.model.hardware
    fewest = [min(held, key=lambda held: num_pointer_tables(machine, held)) for held in arguments]
    return table_bytes(graph, costing, fewest)
