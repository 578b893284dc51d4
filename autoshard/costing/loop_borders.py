"""What compilers do at the borders of loops that no op of the program says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoshard.backends import Backend
from autoshard.costing.read_bits import copies_for_loops
from autoshard.graph.program import Graph, Op, OpKind, Value


@dataclass(frozen=True, slots=True)
class LoopBorders:
    """Bytes that are read and written once before a loop, of whole tensors.

    Args:
        filled: By op of a carry that starts as something every device can make (zeros). A stack
            that each run writes its own row of, in order, is not filled: libtpu 0.0.42 leaves it as
            it is allocated, and fills those that are written from the end (gradients).
        converted: By op of an argument that a loop reads unchanged, in narrower elements: the
            compiler converts it whole before the loop, where it lies.
    """

    filled: Mapping[int, int]
    converted: Mapping[int, int]

    @classmethod
    def of(cls, graph: Graph, backend: Backend) -> LoopBorders:
        """What a backend does for a program."""
        converted = {
            graph.values[copy.value].op: _converted_bytes(graph.values[copy.value], copy.bits)
            for copy in copies_for_loops(graph, backend)
            if graph.maker(copy.value).kind is OpKind.ARGUMENT
        }
        filled = {
            op.index: graph.values[op.results[0]].num_bytes
            for op in graph.ops
            if _is_carry_of_free(graph, op) and not _is_written_in_order(graph, op)
        }
        return cls(filled, converted)


def _converted_bytes(value: Value, bits: int) -> int:
    return value.num_bytes * (value.bits + bits) // value.bits


def _is_carry_of_free(graph: Graph, op: Op) -> bool:
    """Whether an op is a carry that changes, and starts as something every device can make."""
    if op.kind is not OpKind.JOIN or op.name != "while" or len(op.operands) == 1:
        return False
    start = graph.values[op.operands[0]]
    return bool(start.shape) and graph.ops[start.op].kind is OpKind.FREE


def _is_written_in_order(graph: Graph, carry: Op) -> bool:
    """Whether each run of a body writes its row of a carry, the first one first."""
    update = graph.maker(carry.operands[1])
    if update.name != "dynamic_update_slice" or update.operands[0] != carry.results[0]:
        return False
    places = (graph.maker(index) for index in update.operands[2:])
    return any(place.kind is OpKind.JOIN for place in places)
