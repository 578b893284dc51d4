"""Look-ups of whole rows, and scatters of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from autoshard.graph.dataflow import spread, unconstrained
from autoshard.graph.op_traits import is_constraint
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind


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


def updated_rows(
    graph: Graph, tables: Mapping[int, int], updates: Set[int]
) -> Iterator[tuple[int, int, int]]:
    """Tables of which the copy that a look-up makes is there until their rows are updated.

    An update whose gradient is combined with the table and with another state as they are (Adagrad)
    computes in the order of the scatter. Other ones (SGD, Adam) copy the gradient instead.

    Yields:
        The table's first look-up, the scatter of its gradient, and the last op of the update.
    """
    for op in graph.ops:
        if op.op_class is not OpClass.SCATTER or not takes_rows(graph, op):
            continue
        (made,) = op.results
        within = _within_update(graph, made, updates)
        read = {
            unconstrained(graph, value) for index in within for value in graph.ops[index].operands
        }
        states = [value for value in sorted(read) if _is_state(graph, value, made)]
        if len(states) > 1:
            yield from ((tables[one], op.index, max(within)) for one in states if one in tables)


def _is_state(graph: Graph, value: int, gradient: int) -> bool:
    is_argument = graph.maker(value).kind is OpKind.ARGUMENT
    return is_argument and graph.values[value].shape == graph.values[gradient].shape


def _within_update(graph: Graph, gradient: int, updates: Set[int]) -> Set[int]:
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
    return found
