"""Sums over pieces of rows (groups of a GroupNorm), which take TPUs several kernels."""

from __future__ import annotations

from math import prod

from autoshard.graph.dataflow import trace_back, trace_forward
from autoshard.graph.op_traits import TRANSPARENT, is_elementwise
from autoshard.graph.program import Graph, Op, OpClass, OpKind


def kernels_of_piece_sums(graph: Graph, num_lanes: int) -> dict[int, int]:
    """By reduction over other dimensions and pieces of rows, kernels beside that of the reduction.

    The reduction leaves rows. One kernel cuts these into pieces, unless they are whole tiles, and
    another sums each up. If that is broadcast to rows again, one more computes what is made of it;
    the broadcast and the way back to rows are kernels too, unless pieces are whole tiles.

    Source: group normalizations of 8 and 32 groups over 128 to 1,024 channels, and over time, by
        libtpu 0.0.52 for v4, v5e, v5p and v6e.

    Args:
        graph: The program.
        num_lanes: Elements of a row of a tile; 1 where memory has no tiles.
    """
    if num_lanes == 1:
        return {}
    found: dict[int, int] = {}
    for op in graph.ops:
        if op.kind is OpKind.COMPUTE and op.op_class is OpClass.REDUCE and _is_of_pieces(graph, op):
            is_whole = graph.values[op.operands[0]].shape[-1] % num_lanes == 0
            is_back = _is_broadcast(graph, op.results[0])
            found[op.index] = 1 + is_back if is_whole else 2 + 3 * is_back
    return found


def _is_of_pieces(graph: Graph, op: Op) -> bool:
    """True where it sums the last dimension, not the one before it, and another one."""
    shape = graph.values[op.operands[0]].shape
    if op.rule is None or op.windows or len(shape) < 3 or shape[-2] == 1:
        return False
    kept = {factor for dim in op.rule.results[0] for factor in dim}
    dims = op.rule.operands[0]
    is_kept = [bool(kept.intersection(dim)) for dim in dims]
    if is_kept[-1] or not is_kept[-2] or all(is_kept[:-2]):
        return False
    made = trace_back(graph, op.operands[:1], lambda maker, _: is_elementwise(maker))
    return any(_cuts_rows(graph, graph.maker(value)) for value in made.frontier)


def _cuts_rows(graph: Graph, op: Op) -> bool:
    """True for a reshape that makes the last two dimensions of the last one."""
    if op.name != "reshape":
        return False
    rows, pieces = (graph.values[value].shape for value in (op.operands[0], op.results[0]))
    return min(pieces[-2:], default=0) > 1 and rows[-1:] == (prod(pieces[-2:]),)


def _is_broadcast(graph: Graph, value: int) -> bool:
    """True where what is computed of a value is broadcast."""
    size = prod(graph.values[value].shape)
    ends = trace_forward(graph, value, lambda op: is_elementwise(op) or op.name in TRANSPARENT)
    return any(
        end.name == "broadcast_in_dim" and prod(graph.values[end.results[0]].shape) > size
        for end in ends
    )
