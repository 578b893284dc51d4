"""Look-ups of whole rows, and scatters of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass

from autoshard.graph.dataflow import spread, trace_back, unconstrained
from autoshard.graph.op_traits import is_constraint, is_elementwise
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind
from autoshard.graph.scatters import scattered_into


def takes_rows(graph: Graph, op: Op) -> bool:
    """True where a gather or scatter leaves the last dimension of what it takes as it is.

    A row of one element is an element: such tables are vectors to the compiler. Windows that
    indices move are slices.
    """
    is_lookup = op.op_class in (OpClass.GATHER, OpClass.SCATTER) and not op.moved_windows
    if not is_lookup or op.kind is not OpKind.COMPUTE or op.rule is None or len(op.results) != 1:
        return False
    table, taken = op.rule.operands[0], op.rule.results[0]
    value = op.results[0]
    if op.op_class is OpClass.SCATTER:  # its result is as the table is, whatever is added
        taken, value = op.rule.operands[-1], op.operands[-1]
    shapes = [graph.values[one].shape for one in (op.operands[0], value)]
    if min(map(len, shapes)) < 2 or shapes[0][-1] != shapes[1][-1] or shapes[0][-1] == 1:
        return False
    return bool(table[-1]) and table[-1] == taken[-1]


def row_values(graph: Graph, updates: Set[int]) -> frozenset[int]:
    """Values that lie row by row: looked up or scattered, or element by element beside these.

    What lies element by element beside the result of a matmul is in tiles that pad least: look-ups
    copy it.

    Source: layouts that libtpu 0.0.52 gives a graph attention step for a v5e, whose edges have
        rows of 32 elements.
    """
    looked_up: set[int] = set()
    for op in graph.ops:
        if takes_rows(graph, op):
            looked_up.update(op.results)
            looked_up.update(op.operands[2:] if op.op_class is OpClass.SCATTER else ())
    made = (op for op in graph.ops if op.kind is OpKind.COMPUTE and op.op_class in PRODUCTS)
    rows = looked_up | _beside(graph, looked_up, updates)
    rows -= _beside(graph, {value for op in made for value in op.results}, updates)
    return frozenset(v for v in rows if graph.maker(v).kind is not OpKind.ARGUMENT)


def _beside(graph: Graph, values: Set[int], updates: Set[int]) -> Set[int]:
    """All that element-wise ops read or make beside the values or beside other such."""

    def passes(op: Op) -> bool:
        return op.op_class is OpClass.ELEMENTWISE and op.index not in updates

    def reaches(_: Op, value: int, other: int) -> bool:
        return graph.values[other].shape == graph.values[value].shape

    return spread(graph, sorted(values), passes, reaches).keys()


def looked_up_tables(graph: Graph) -> dict[int, int]:
    """The first look-up of rows in each argument."""
    found: dict[int, int] = {}
    for op in graph.ops:
        if op.op_class is OpClass.GATHER and takes_rows(graph, op):
            table = unconstrained(graph, op.operands[0])
            if graph.maker(table).kind is OpKind.ARGUMENT:
                found.setdefault(table, op.index)
    return found


@dataclass(frozen=True, slots=True)
class RowUpdate:
    """An update that computes in the rows of its gradient: states are copied there and back.

    Args:
        scatter: The op that makes the gradient.
        ops: Of the update, computed from the gradient; not a sum that the scatter makes.
        states: Arguments that it reads.
        made: New states.
    """

    scatter: int
    ops: frozenset[int]
    states: tuple[int, ...]
    made: tuple[int, ...]


def row_updates(graph: Graph, updates: Set[int]) -> Iterator[RowUpdate]:
    """Updates of several states in rows (momentum, Adagrad, Lion).

    Where one state is made (SGD), or three and more of which some are computed from others (Adam),
    the gradient is copied instead.

    Source: 28 updates of a table of 200,000 rows of 64 columns, libtpu 0.0.52 for a v5e; 8 of them
        for a v5p. Two that no optimizer makes are otherwise: chains, and two states of a third.
    """
    into = scattered_into(graph)
    ends = {unconstrained(graph, op.operands[0]) for op in graph.results}
    for op in graph.ops:
        if op.op_class is not OpClass.SCATTER or not takes_rows(graph, op):
            continue
        within = _within_update(graph, op.results[0], updates)
        made = [v for index in sorted(within) for v in graph.ops[index].results if v in ends]
        joins = sum(_num_read(graph, value, made) for value in made)
        if len(made) > 1 and (len(made) == 2 or joins < 2):
            states = _states(graph, op.results[0], within, into)
            apart = frozenset(i for i in within if graph.ops[i].results[0] not in into)
            yield RowUpdate(op.index, apart, states, tuple(made))


def _num_read(graph: Graph, state: int, states: Collection[int]) -> int:
    """Number of other new states that one is computed from."""
    operands = graph.maker(state).operands
    met = trace_back(graph, operands, lambda op, v: v not in states and is_elementwise(op))
    return len({*met.frontier}.intersection(states))


def _states(
    graph: Graph, gradient: int, within: Set[int], into: Mapping[int, int]
) -> tuple[int, ...]:
    """Arguments of the gradient's shape that an update reads, in order.

    What the gradient is scattered into is there already.
    """
    ops = [graph.ops[index] for index in within]
    operands = [v for op in ops for v in op.operands if v != into.get(op.results[0])]

    def passes(op: Op, _: int) -> bool:
        return op.index not in within and (is_elementwise(op) or is_constraint(op))

    met = trace_back(graph, operands, passes)
    shape = graph.values[gradient].shape
    found = {v for v in met.frontier if graph.maker(v).kind is OpKind.ARGUMENT}
    return tuple(v for v in sorted(found) if graph.values[v].shape == shape)


def _within_update(graph: Graph, gradient: int, updates: Set[int]) -> frozenset[int]:
    """Element-wise ops of an update that are computed from a gradient."""
    found: set[int] = set()
    todo = [gradient]
    while todo:
        for index in graph.consumers[todo.pop()]:
            op = graph.ops[index]
            if index not in found and (is_constraint(op) or index in updates):
                todo += op.results
                if index in updates:
                    found.add(index)
    return frozenset(found)
