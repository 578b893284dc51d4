"""Orders in which the dimensions of tensors lie, and the copies made where two of them meet.

A product's result lies as it is made, and what is computed from it element by element lies so too,
transposed or not. Where that meets something made later in another order, a kernel cannot read both
row by row: the compiler first writes the later one in the order of the earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.graph.program import Graph, Op, OpClass, OpKind

Order = tuple[int, ...]
"""Dimensions from the major one to the minor."""


@dataclass(frozen=True, slots=True)
class Turned:
    """What a compiler writes because of the order of dimensions.

    Args:
        orders: Per value; None where it lies in none that matters.
        written: By value that is not stored otherwise, and is written in the order of another.
    """

    orders: tuple[Order | None, ...]
    written: frozenset[int]

    def is_turned(self, value: int) -> bool:
        """True where a value lies in another order than that of its dimensions."""
        order = self.orders[value]
        return order is not None and order != tuple(range(len(order)))


def find_turned(graph: Graph, stored: Sequence[bool]) -> Turned:
    """Follow the order of dimensions from products through all that is computed."""
    orders: list[Order | None] = [None] * len(graph.values)
    sources: list[int] = [0] * len(graph.values)  # the op that an order comes from
    written: set[int] = set()
    for op in graph.ops:
        if len(op.results) != 1:
            continue
        (made,) = op.results
        if op.op_class is OpClass.ELEMENTWISE and op.kind is OpKind.COMPUTE:
            read = _in_order(graph, orders, op)
            if not read:
                continue
            first = min(read, key=lambda value: (sources[value], value))
            orders[made], sources[made] = orders[first], sources[first]
            for value in read:
                if orders[value] != orders[first]:
                    written |= _turn(graph, orders, stored, value, first)
        elif op.name == "transpose" and orders[op.operands[0]] is not None:
            orders[made] = _transposed(graph, orders, op)
            sources[made] = sources[op.operands[0]]
        elif op.kind is OpKind.ARGUMENT or (op.kind is OpKind.COMPUTE and stored[made]):
            orders[made], sources[made] = tuple(range(len(graph.values[made].shape))), op.index
    return Turned(tuple(orders), frozenset(written))


def _in_order(graph: Graph, orders: Sequence[Order | None], op: Op) -> list[int]:
    """Operands of an element-wise op that lie in an order of its result's dimensions."""
    shape = graph.values[op.results[0]].shape
    same = (value for value in op.operands if graph.values[value].shape == shape)
    return [value for value in same if len(shape) > 1 and orders[value] is not None]


def _turn(
    graph: Graph,
    orders: list[Order | None],
    stored: Sequence[bool],
    value: int,
    first: int,
) -> set[int]:
    """Write what is first computed on the way to a value in the order of another; names that."""
    way = []
    while not stored[value] and orders[value] != orders[first]:
        op = graph.maker(value)
        read = _in_order(graph, orders, op) if op.op_class is OpClass.ELEMENTWISE else []
        if not read:
            break
        way.append(value)
        value = read[0]
    for later in way:
        orders[later] = orders[first]
    return set(way[-1:])


def _transposed(graph: Graph, orders: Sequence[Order | None], op: Op) -> Order:
    """How the dimensions lie of what is transposed; a product may make two groups the other way."""
    (value,), (made,) = op.operands, op.results
    assert op.rule is not None
    place = {factors: dim for dim, factors in enumerate(op.rule.results[0])}
    order = orders[value]
    assert order is not None
    turned = tuple(place[op.rule.operands[0][dim]] for dim in order)
    maker = graph.maker(value)
    if maker.op_class is OpClass.MATMUL and len(graph.consumers[value]) == 1:
        batch, left, right = _groups(maker)
        swapped = (*batch, *right, *left)
        if tuple(place[op.rule.operands[0][dim]] for dim in swapped) == tuple(range(len(order))):
            return tuple(range(len(graph.values[made].shape)))
    return turned


def _groups(product: Op) -> tuple[list[int], list[int], list[int]]:
    """Dimensions of a product's result: of both operands, of the first, and of the second."""
    assert product.rule is not None
    first, second = (
        {factor for dim in operand for factor in dim} for operand in product.rule.operands[:2]
    )
    groups: tuple[list[int], list[int], list[int]] = ([], [], [])
    for dim, factors in enumerate(product.rule.results[0]):
        in_first, in_second = bool(first & set(factors)), bool(second & set(factors))
        groups[0 if in_first and in_second else 1 if in_first else 2].append(dim)
    return groups
