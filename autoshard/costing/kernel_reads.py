"""Bytes that a device reads for an op, through its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.program_facts import ProgramFacts
from autoshard.costing.vmem import prefetched
from autoshard.graph.op_traits import READS_FUSED
from autoshard.graph.program import PRODUCTS, Op, OpClass
from autoshard.layouts import Layout
from cost_models import memory_efficiency

_OF_ONE = 1.5
"""Elements read for each of a matmul's operand, at most, where that is computed of one tensor.

A choice between one tensor, with vectors along its rows and columns, and two.
"""


@dataclass(frozen=True, slots=True)
class OperandRead:
    """Reads of a device through an operand of an op: `float64[num_candidates]` each.

    Args:
        num_bytes: As they lie in memory.
        counted: As how many bytes from HBM it counts.
        waiting_bytes: Those in which it may wait in VMEM for a matmul; infinite where it is
            computed from several tensors.
    """

    num_bytes: FloatArray
    counted: FloatArray
    waiting_bytes: FloatArray


@dataclass(frozen=True, slots=True)
class FarReads:
    """Reads of a matmul through its operands, and where neither is in VMEM.

    Args:
        num_bytes: Through each operand: `float64[num_candidates]`.
        is_far: `bool[num_candidates]`.
    """

    num_bytes: tuple[FloatArray, FloatArray]
    is_far: npt.NDArray[np.bool_]


class KernelReads:
    """Reads of ops, in tiles, of what lies in HBM and of what is found in VMEM."""

    def __init__(self, facts: ProgramFacts) -> None:
        self.facts, self.vmem, self.graph = facts, facts.vmem, facts.graph
        self.buffers, self.costing = facts.buffers, facts.costing
        self._softmaxes = {*facts.buffers.weights.values()}

    def through_operands(self, op: Op, candidates: Candidates) -> list[OperandRead]:
        """Reads of a device through each operand, of narrow rows whole tiles.

        A reduction works through all tiles of what it reduces, computed with it or not. What was
        prefetched into VMEM counts as far as it takes time to bring it; what a matmul finds there,
        as it was just used or waits for all runs of a loop, counts not at all.
        """
        arrays, buffers, vmem = self.costing.arrays(candidates), self.buffers, self.vmem
        found = []
        reads = self.num_bytes(op)
        is_prefetched = prefetched(self.graph, self.buffers, op)
        prefetched_share = memory_efficiency(self.costing.model.hardware, op.op_class.value)
        waits = vmem.loop_bytes(self.graph, op)
        held, left = vmem.held_sources(self.graph, self.buffers, op), np.array(vmem.capacity)
        saved = self.saved_in_vmem(op)
        for position, (read, pieces) in enumerate(zip(reads, arrays.operand_shards, strict=True)):
            value = op.operands[position]
            local = read / pieces
            is_whole = buffers.is_stored[value] or op.op_class is OpClass.REDUCE
            is_whole |= value in self.facts.tiles.moved or value in self.facts.tiles.lanes
            if read and is_whole and op.name not in ("slice", "dynamic_slice"):
                layouts = [c.operands[position] for c in candidates]
                local = self.in_tiles(op, value, layouts, local, pieces)
            counts: float | FloatArray = 1.0
            if read and is_prefetched[position]:
                whole = self.graph.values[value].num_bytes / pieces
                counts = np.where(whole <= vmem.capacity, prefetched_share, 1.0)
            num_bytes = local
            for source in held[position] if read and saved else ():
                fits = np.where(source / pieces <= left, source / pieces, 0.0)
                left, local = left - fits, np.maximum(local - saved * fits, 0.0)
            if read and waits[position]:
                counts = np.where(local <= waits[position], 0.0, counts)
            operand, elements = self.graph.values[value], buffers.reads[op.index][position].elements
            is_of_one = elements <= _OF_ONE * prod(operand.shape)
            smallest = np.minimum(num_bytes, operand.num_bytes / pieces)  # converted where moved
            waiting = smallest if is_of_one else np.full_like(smallest, np.inf)
            found.append(OperandRead(num_bytes, counts * local, waiting))
        return found

    def from_hbm(
        self, op: Op, reads: Sequence[OperandRead], one_waits: bool | None
    ) -> FarReads | None:
        """Reads of a matmul from HBM, where neither operand is in VMEM; None where one always is.

        Operands that take less than a quarter of it always do: it has room for those of the kernels
        before and after.
        """
        if op.name != "dot_general" or not self.costing.backend.layout.hbm_window:
            return None
        lhs, rhs = reads
        num_bytes = np.minimum(lhs.waiting_bytes, rhs.waiting_bytes)
        is_far = num_bytes > self.vmem.capacity
        if one_waits is not None:
            is_far = num_bytes > (np.inf if one_waits else self.vmem.capacity / 4)
        return FarReads((lhs.num_bytes, rhs.num_bytes), is_far) if is_far.any() else None

    def in_tiles(
        self, op: Op, value: int, layouts: list[Layout], local: FloatArray, pieces: FloatArray
    ) -> FloatArray:
        """float64[num_layouts]: bytes of a value on a device, of narrow rows whole tiles.

        Reads of a moved part, and of what a matmul's result is read for, grow in the ratio of its
        tiles to its bytes.
        """
        if op.op_class in (OpClass.GATHER, OpClass.SCATTER, OpClass.SORT):
            return local
        tiles, whole = self.facts.tiles, self.graph.values[value].num_bytes / pieces
        found = tiles.local_bytes(value, layouts)
        if found is None:
            return local
        if value in tiles.moved or (value in tiles.lanes and not self.buffers.is_stored[value]):
            return local * np.maximum(found / whole, 1.0)
        return np.where(found > whole, np.maximum(local, found), local)

    def saved_in_vmem(self, op: Op) -> float:
        """Share of the time of a read that is saved where the bytes are in VMEM."""
        if op.op_class in PRODUCTS:
            return 1.0
        passes = self.costing.passes
        if passes is None or op.op_class not in READS_FUSED:
            return 0.0
        return max(1.0 - self.costing.elementwise_speed / passes.read_bytes, 0.0)

    def num_bytes(self, op: Op) -> tuple[float, ...]:
        """Bytes that an op reads through each operand, in elements as they are written."""
        reads = zip(self.buffers.reads[op.index], op.operands, strict=True)
        return tuple(read.num_bytes * self.facts.read_share(value) for read, value in reads)

    def passed_bytes(self, op: Op, candidates: Candidates) -> FloatArray | float:
        """float64[num_candidates]: as how many bytes elements count that a reduction takes up.

        Beside being read, once for all reductions of a kernel; nothing beside a matmul, or where
        the kernel writes what it takes up.
        """
        passes, buffers = self.costing.passes, self.buffers
        if passes is None or op.index in buffers.joined or op.index in self._softmaxes:
            return 0.0
        is_plain = buffers.is_stored[op.operands[0]] and op.index not in self.facts.run_with
        rate = passes.plain_reduced if is_plain else passes.narrowed
        value = self.graph.values[op.operands[0]]
        pieces = self.costing.arrays(candidates).operand_shards[0]
        layouts = [c.operands[0] for c in candidates]
        tiles = self.in_tiles(op, value.index, layouts, value.num_bytes / pieces, pieces)
        return tiles * 8.0 / value.bits * self.costing.pass_bytes(rate)
