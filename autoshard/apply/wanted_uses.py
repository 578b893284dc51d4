"""Reshards a plan wants at single uses, named by the paths `apply` constrains."""

from __future__ import annotations

from collections.abc import Mapping

from autoshard.encode import Decoded
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.layouts import MeshParts, refines
from autoshard.sharding import Sharding

# The others compute where their result is: the partitioner cuts their operands likewise unasked.
_DECIDES_BY_OPERANDS = frozenset(
    {
        OpClass.MATMUL,
        OpClass.CONVOLUTION,
        OpClass.REDUCE,
        OpClass.GATHER,
        OpClass.SCATTER,
        OpClass.SORT,
        OpClass.CUSTOM,
    }
)
_HAS_USES = frozenset({OpKind.COMPUTE, OpKind.JOIN, OpKind.ENTER_MANUAL})


def wanted_uses(
    graph: Graph,
    parts: MeshParts,
    decoded: Decoded,
    operand_paths: Mapping[str, tuple[str | None, ...]],
) -> dict[str, Sharding]:
    """Shardings of operands that differ from the value read, by use path (`"7.jaxpr/38<1"`).

    Left to itself the partitioner may compute first and gather the result, so every operand that
    has to be moved is named; one that only has to be cut further follows the result by itself,
    except where the op is free to sum over it. Only uses that a jaxpr equation makes directly have a path; what happens inside the lowering of
    one equation is left to the partitioner.
    """
    found: dict[str, Sharding] = {}
    for op in graph.ops:
        if op.index not in decoded.candidates or op.kind not in _HAS_USES:
            continue
        wanted = decoded.candidates[op.index].operands
        for position, value in enumerate(op.operands):
            if not graph.values[value].shape or decoded.layouts[value] == wanted[position]:
                continue
            if graph.ops[graph.values[value].op].kind is OpKind.FREE:
                continue
            is_slice = refines(wanted[position], decoded.layouts[value])
            if is_slice and op.op_class not in _DECIDES_BY_OPERANDS and op.kind is not OpKind.JOIN:
                continue
            place = _operand_place(graph, op, value, operand_paths)
            if place >= 0:
                found[f"{op.equation}<{place}"] = parts.to_sharding(wanted[position])
    return found


def _operand_place(
    graph: Graph, op: Op, value: int, operand_paths: Mapping[str, tuple[str | None, ...]]
) -> int:
    """Which operand of its equation a value read by an op is; -1 when it is none."""
    for place, path in enumerate(operand_paths.get(op.equation, ())):
        if path is not None and graph.value_by_path.get(path) == value:
            return place
    return -1
