"""Results that a kernel writes over an operand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from math import prod

from autoshard.backends import Backend
from autoshard.graph.dataflow import trace_back
from autoshard.graph.op_traits import FUSIBLE, is_elementwise, is_fusible, keeps_order
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.graph.rule import factors_of


def without_reused(
    graph: Graph,
    backend: Backend,
    stored: Sequence[bool],
    owner: Sequence[int],
    intervals: Sequence[tuple[int, int]],
    with_sums: Set[int],
) -> list[tuple[int, int]]:
    """The intervals, where an operand ends when the result begins that is written over it.

    An element-wise kernel writes over an operand that it reads last, element by element, and that
    has as many bytes; where the backend says so, in another shape too.

    Args:
        graph: The program.
        backend: That compiles it.
        stored: Per value, whether it has a buffer.
        owner: Per value, the value whose buffer it shares.
        intervals: Per value, `(start, stop)` of the buffer it owns.
        with_sums: Values written by a kernel that makes sums of them too: one of several results is
            written over nothing, and nothing over it.

    Source: XLA's `FusionCanShareBufferHint`; temporaries of element-wise ops, reductions and
        scatters between two matmuls for a v5e, an H100 and a host CPU (libtpu 0.0.52, CUDA plugin
        and jaxlib 0.10.2).
    """
    found = list(intervals)
    apart = _in_donated(graph) | with_sums
    for op in graph.ops:
        result = op.results[0] if len(op.results) == 1 else -1
        if result < 0 or owner[result] != result or not stored[result] or result in apart:
            continue
        time = found[result][0]
        for value in _read_in_order(graph, backend, stored, op):
            operand = owner[value]
            start, stop = found[operand]
            maker = graph.maker(operand)
            is_own = maker.kind is not OpKind.ARGUMENT and maker.region == op.region
            is_whole = operand not in with_sums
            if backend.memory.reuses_reshaped:
                is_alike = graph.values[operand].num_bytes == graph.values[result].num_bytes
            else:
                is_alike = _written_as(graph, operand) == _written_as(graph, result)
            if is_own and is_whole and is_alike and start < time and stop == time + 1:
                found[operand] = (start, time)
                break
    return found


def _written_as(graph: Graph, value: int) -> tuple[tuple[int, ...], int]:
    """The shape in which a kernel writes a value, and bits of an element.

    A matmul writes all rows of an operand as one dimension, and so all columns; an element-wise
    kernel writes what its one reader reshapes it to.

    Source: XLA's `DotDecomposer` and the fusion of bitcasts (jaxlib 0.10.2, a host CPU).
    """
    op, found = graph.maker(value), graph.values[value]
    if op.op_class is OpClass.MATMUL and op.rule is not None and len(op.rule.operands) == 2:
        rows, columns = (factors_of(dims) for dims in op.rule.operands)
        dims = list(zip(found.shape, map(set, op.rule.results[0]), strict=True))
        batch = [size for size, factors in dims if factors & rows & columns]
        own = (
            [size for size, of in dims if of & side] for side in (rows - columns, columns - rows)
        )
        return (*batch, *map(prod, filter(None, own))), found.bits
    while op.op_class in FUSIBLE:
        readers = [graph.ops[index] for index in graph.consumers[value]]
        if len(readers) != 1 or readers[0].name != "reshape":
            break
        (value,) = readers[0].results
        op, found = graph.maker(value), graph.values[value]
    return found.shape, found.bits


def _in_donated(graph: Graph) -> Set[int]:
    """Results of the program that may take the buffers of donated arguments."""
    arguments = list(graph.arguments)
    donated = [graph.values[arguments[place].results[0]] for place in graph.donated]
    types = {(value.shape, value.dtype) for value in donated}
    results = (graph.values[op.operands[0]] for op in graph.results)
    return {value.index for value in results if (value.shape, value.dtype) in types}


def _read_in_order(graph: Graph, backend: Backend, stored: Sequence[bool], op: Op) -> Iterator[int]:
    """Stored values of which an op reads every element right before it writes one in its place."""
    if not is_elementwise(op):
        return

    def is_fused(maker: Op, value: int) -> bool:
        return not stored[value] and (is_elementwise(maker) or keeps_order(graph, maker))

    read = [v for v in trace_back(graph, op.operands, is_fused).frontier if stored[v]]
    if read and backend.fusion.normalizes_at_once:
        reduced = _reduced_with(graph, stored, op)
        read = [value for value in read if value not in reduced]
    yield from read


def _reduced_with(graph: Graph, stored: Sequence[bool], op: Op) -> Set[int]:
    """Operands of an op that it reads with the sums of their rows: one kernel does both."""

    def is_fused(maker: Op, value: int) -> bool:
        return is_fusible(maker) and not stored[value]

    def is_in_kernel(maker: Op, value: int) -> bool:
        return is_fused(maker, value) or _is_along_rows(maker)

    read = trace_back(graph, op.operands, is_fused).frontier
    sums = [maker for value in read if _is_along_rows(maker := graph.maker(value))]
    operands = [value for maker in sums for value in maker.operands]
    return {*trace_back(graph, operands, is_in_kernel).frontier}


def _is_along_rows(op: Op) -> bool:
    """True for a reduction over the last dimension."""
    if op.op_class is not OpClass.REDUCE or op.rule is None or not op.rule.operands[0]:
        return False
    return {*op.rule.operands[0][-1]} <= op.rule.reduction
