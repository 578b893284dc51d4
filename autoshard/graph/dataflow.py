"""Walks over a graph: from a value back to what it is computed from, and on to its readers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from autoshard.graph.op_traits import is_constraint
from autoshard.graph.program import Graph, Op, OpClass, OpKind


class Trace(NamedTuple):
    """Values that a walk met, each once.

    Args:
        inner: Values that it went through.
        frontier: Values that it stopped at.
    """

    inner: tuple[int, ...]
    frontier: tuple[int, ...]


def trace_back(
    graph: Graph,
    values: Iterable[int],
    passes: Callable[[Op, int], bool],
    operands: Callable[[Op], Collection[int]] = lambda op: op.operands,
) -> Trace:
    """Walk from values to the operands of their defining ops.

    Args:
        graph: The program.
        values: To start from.
        passes: Called with a value's defining op and the value; the walk goes on where it is true.
        operands: The operands of an op that the walk goes on to.

    Returns:
        The values met, in the order of a depth-first walk.
    """
    inner: dict[int, None] = {}
    frontier: dict[int, None] = {}
    left = [*values]
    while left:
        value = left.pop()
        if value in inner or value in frontier:
            continue
        op = graph.maker(value)
        if passes(op, value):
            inner[value] = None
            left += operands(op)
        else:
            frontier[value] = None
    return Trace(tuple(inner), tuple(frontier))


def source_of(graph: Graph, value: int, passes: Callable[[Op, int], bool]) -> int:
    """The value at the end of a chain of first operands, while the defining ops pass."""
    op = graph.maker(value)
    while op.operands and passes(op, value):
        value = op.operands[0]
        op = graph.maker(value)
    return value


def unconstrained(graph: Graph, value: int) -> int:
    """The value that constraints are on."""
    return source_of(graph, value, lambda op, _: is_constraint(op))


def trace_forward(graph: Graph, value: int, passes: Callable[[Op], bool]) -> tuple[Op, ...]:
    """Ops that read a value, or a result of such an op that passes, in program order.

    The walk goes on from the results of an op that passes; that op is not returned itself.
    """
    ends: dict[int, Op] = {}
    seen = {value}
    left = [value]
    while left:
        for index in graph.consumers[left.pop()]:
            reader = graph.ops[index]
            if not passes(reader):
                ends[index] = reader
                continue
            new = [result for result in reader.results if result not in seen]
            seen.update(new)
            left += new
    return tuple(ends[index] for index in sorted(ends))


def spread(
    graph: Graph,
    values: Iterable[int],
    passes: Callable[[Op], bool],
    reaches: Callable[[Op, int, int], bool],
) -> dict[int, int]:
    """Values that a walk in both directions meets, by each the one that it started from.

    Args:
        graph: The program.
        values: To start from; they are met where the walk comes back to them.
        passes: The walk goes through ops for which it is true.
        reaches: Called with such an op, a value met there and another one; true where the walk goes
            on to that.
    """
    found: dict[int, int] = {}
    left = deque((value, value) for value in values)
    while left:
        value, start = left.popleft()
        ops = (graph.maker(value), *(graph.ops[index] for index in graph.consumers[value]))
        for op in filter(passes, ops):
            for other in (*op.operands, *op.results):
                if other not in found and reaches(op, value, other):
                    found[other] = start
                    left.append((other, start))
    return found


def before_lowering(graph: Graph, reader: Op, value: int) -> Iterator[int]:
    """An operand, and what element-wise ops inside the lowering of its reader make it of.

    So indices are clamped as a scatter is lowered: they have to be moved before that.
    """
    yield value
    maker = graph.maker(value)
    while maker.equation == reader.equation and maker.op_class is OpClass.ELEMENTWISE:
        shape = graph.values[value].shape
        made = [one for one in maker.operands if graph.maker(one).kind is not OpKind.FREE]
        if len(made) != 1 or graph.values[made[0]].shape != shape:
            return
        (value,) = made
        yield value
        maker = graph.maker(value)
