"""Traits of ops that walks and fusion rules ask for, by op name and by op class."""

from __future__ import annotations

from autoshard.graph.program import Graph, Op, OpClass, OpKind

RENAMES = frozenset({"bitcast_convert", "optimization_barrier", "reshape", "transpose"})
"""Ops whose result takes the buffer of their operand."""

TRANSPARENT = RENAMES | {"convert"}
"""Ops that keep every element of their one operand, in another type, shape or dimension order."""

ROW_MAJOR = TRANSPARENT - {"transpose"}
"""Transparent ops that keep the order of elements too."""

ELEMENTWISE = frozenset({OpClass.ELEMENTWISE})

FUSIBLE = frozenset({OpClass.ELEMENTWISE, OpClass.COPY, OpClass.NOTHING})
"""Classes of ops that a reader of their result may recompute."""

READS_FUSED = FUSIBLE | {OpClass.REDUCE}
"""Classes of ops that compute their operands themselves, with every compiler."""


def renames(op: Op) -> bool:
    """True for an op whose result takes the buffer of its operand, constraints included."""
    return is_constraint(op) or op.name in RENAMES


def passes_through(op: Op) -> bool:
    """True for what a loop reads unchanged: its value in the body is that outside."""
    return op.kind is OpKind.JOIN and op.name == "while" and len(op.operands) == 1


def keeps_order(graph: Graph, op: Op) -> bool:
    """True for a renaming op whose elements come one after the other as in its operand.

    A transpose keeps their order where it moves dimensions of size 1 alone.
    """
    if op.name != "transpose":
        return renames(op)
    if op.rule is None:
        return False
    sides = ((op.operands[0], op.rule.operands[0]), (op.results[0], op.rule.results[0]))
    before, after = (
        [factors for factors, size in zip(dims, graph.values[value].shape, strict=True) if size > 1]
        for value, dims in sides
    )
    return before == after


def is_constraint(op: Op) -> bool:
    """True for an op that says how its operand is sharded, and computes nothing."""
    return op.kind is OpKind.CONSTRAINT


def splits_last(graph: Graph, rows: int, pieces: int) -> bool:
    """True where a tensor is another one with its last dimension in two, the last of them not 1."""
    one, other = graph.values[rows].shape, graph.values[pieces].shape
    is_split = len(other) == len(one) + 1 and one[:-1] == other[: len(one) - 1]
    return is_split and other[-1] > 1


def is_elementwise(op: Op) -> bool:
    """True for an op of the program that computes its result element by element."""
    return op.kind is OpKind.COMPUTE and op.op_class is OpClass.ELEMENTWISE


def is_matmul(op: Op) -> bool:
    """True for an op of the program that multiplies matrices."""
    return op.kind is OpKind.COMPUTE and op.op_class is OpClass.MATMUL


def is_fusible(op: Op) -> bool:
    """True for an op of the program that compilers compute with what reads it."""
    return op.kind is OpKind.COMPUTE and op.op_class in FUSIBLE


def is_widening(graph: Graph, value: int) -> bool:
    """True where a value is another one with wider elements."""
    op = graph.maker(value)
    return op.name == "convert" and graph.values[op.operands[0]].bits < graph.values[value].bits
