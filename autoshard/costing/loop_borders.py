"""Seconds before loops that no op of the program says."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import numpy as np

from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.model_dtype import model_dtype
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import Graph, Op, OpKind, Value


class LoopBorders:
    """Carries that are filled before a loop or copied behind it, arguments converted for one.

    A carry that starts as something every device can make (zeros) is filled. A stack that each run
    writes its own row of, in order, is not: libtpu 0.0.42 leaves it as it is allocated, and fills
    those that are written from the end (gradients). An argument that a loop reads unchanged, in
    narrower elements, is converted whole before the loop, where it lies. What a loop makes beside
    the donated argument that it replaces is copied there (caches under `scan`, by libtpu 0.0.52).

    Attributes:
        filled: By op of a carry, bytes of the whole, narrower elements as 32 bits: filling takes as
            long (zeros of bfloat16 and float32 by libtpu 0.0.52 for a v4, v5e, v5p and v6e).
        converted: By op of an argument, bytes that are read and written of the whole.
        copied: Ops of carries.
    """

    is_sent: ClassVar[bool] = False

    def __init__(self, facts: ProgramFacts) -> None:
        self.facts, graph = facts, facts.graph
        self.converted = facts.converted_for_loops
        self.copied = {graph.values[value].op for value in facts.donated_results.beside}
        self.filled = {
            op.index: self._filled_bytes(graph.values[op.results[0]])
            for op in graph.ops
            if _is_carry_of_free(graph, op) and not _is_written_in_order(graph, op)
        }

    def _filled_bytes(self, value: Value) -> int:
        is_by_element = self.facts.costing.passes is not None
        wider = max(32 // value.bits, 1) if is_by_element and value.bits else 1
        return value.num_bytes * wider

    def key(self, op: Op) -> Hashable | None:
        borders = self.filled.get(op.index, 0), self.converted.get(op.index, 0)
        found = (*borders, op.index in self.copied)
        return found if any(found) else None

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run of the loop."""
        costing = self.facts.costing
        pieces = costing.arrays(candidates).result_shards[0]
        if op.index in self.converted:
            return costing.conversion_seconds(self.converted[op.index] / pieces)
        value, seconds = self.facts.graph.values[op.results[0]], np.zeros(len(candidates))
        dtype = model_dtype(value.dtype)
        if op.index in self.filled:
            filled = self.filled[op.index] / pieces
            seconds = seconds + costing.kernel_seconds(filled, dtype, "fill")
        if op.index in self.copied:
            moved = costing.moved_bytes(value.num_bytes / pieces, value.bits)
            seconds = seconds + costing.kernel_seconds(moved, dtype)
        return seconds


def _is_carry_of_free(graph: Graph, op: Op) -> bool:
    """True where an op is a carry that changes, and starts as something every device can make."""
    if op.kind is not OpKind.JOIN or op.name != "while" or len(op.operands) == 1:
        return False
    start = graph.values[op.operands[0]]
    return bool(start.shape) and graph.ops[start.op].kind is OpKind.FREE


def _is_written_in_order(graph: Graph, carry: Op) -> bool:
    """True where each run of a body writes its row of a carry, the first one first."""
    update = graph.maker(carry.operands[1])
    if update.name != "dynamic_update_slice" or update.operands[0] != carry.results[0]:
        return False
    places = (graph.maker(index) for index in update.operands[2:])
    return any(place.kind is OpKind.JOIN for place in places)
