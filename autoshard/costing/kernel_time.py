"""Seconds that single devices take for an op: its arithmetic, memory and kernels."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import numpy as np

from autoshard.costing.candidate_arrays import CandidateArrays, written_layouts
from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.kernel_reads import KernelReads
from autoshard.costing.kernel_writes import KernelWrites, work_class
from autoshard.costing.look_ups import LOOK_UPS
from autoshard.costing.matmul_epilogue import MatmulEpilogue, is_apart
from autoshard.costing.matmul_time import MatmulTime
from autoshard.costing.model_dtype import model_dtype
from autoshard.costing.program_facts import ProgramFacts
from autoshard.costing.vmem import prefetched
from autoshard.graph.buffer_owners import updates_copy
from autoshard.graph.custom_cost import CustomCost
from autoshard.graph.made_work import made_operations
from autoshard.graph.op_traits import READS_FUSED
from autoshard.graph.program import PRODUCTS, Op, OpClass, OpKind


class KernelTime:
    """The kernels of ops: a roofline of arithmetic and memory, with what is fused into them.

    Matmuls in chunks count here with their arithmetic. Look-ups are a term of their own.
    """

    is_sent: ClassVar[bool] = False

    def __init__(self, facts: ProgramFacts) -> None:
        self.facts, self.vmem = facts, facts.vmem
        self.graph, self.buffers, self.costing = facts.graph, facts.buffers, facts.costing
        self.matmuls, self.reads = MatmulTime(facts), KernelReads(facts)
        self.writes = KernelWrites(facts)
        self.epilogue = MatmulEpilogue(facts, self.writes, self.matmuls)
        self.in_rows = {index for update in facts.row_updates for index in update.ops}

    def key(self, op: Op) -> Hashable | None:
        is_look_up = op.name in LOOK_UPS and op.declared is None
        if op.kind is not OpKind.COMPUTE or op.collective is not None or is_look_up:
            return None
        tiles, buffers = self.facts.tiles, self.buffers
        return (
            buffers.reads[op.index],
            bool(op.results) and self._is_shared_in_rows(op),
            tuple(tiles.kind(value) for value in (*op.operands, *op.results)),
            self.writes.is_in_other_kernel(op),
            self.writes.is_carried_apart(op),
            self._vmem_key(op),
            self.epilogue.with_matmul(op),
            self._made(op),
            op.index in self.in_rows,
            updates_copy(self.graph, buffers.owner, op),
            tuple(map(self.facts.read_share, (*op.operands, *op.results))),
            tuple(
                (buffers.is_stored[v], v in buffers.unless_summed, buffers.owner[v] == v)
                for v in op.results
            ),
        )

    def _made(self, op: Op) -> float:
        """Operations of what an op of vector units makes of constants; of others it is beside."""
        return made_operations(self.graph, op) if op.op_class in READS_FUSED else 0.0

    def _vmem_key(self, op: Op) -> tuple[object, ...]:
        """What the price of an op depends on by what of its reads and results is in VMEM."""
        vmem = self.vmem
        stays = [vmem.stays[value] for value in op.results]
        passes = self.costing.passes
        if op.op_class in PRODUCTS:
            waits = vmem.loop_bytes(self.graph, op)
            held = vmem.held_sources(self.graph, self.buffers, op)
            return (*prefetched(self.graph, self.buffers, op), *held, *waits, *stays)
        if passes is None or op.op_class not in READS_FUSED:
            return ()
        held = (
            vmem.held_sources(self.graph, self.buffers, op) if self.reads.saved_in_vmem(op) else ()
        )
        return (op.index in self.buffers.updates, *stays, *held)

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run."""
        plain = [place for place, one in enumerate(candidates) if one.streamed is None]
        if len(plain) == len(candidates):
            return self._kernel_seconds(op, candidates)
        found = self.costing.chunk_seconds(self.graph, op, candidates).compute.copy()
        if plain:
            whole = tuple(candidates[place] for place in plain)
            found[plain] = self._kernel_seconds(op, whole)
        return found

    def more_seconds(self, op: Op, candidates: Candidates, one_waits: bool) -> FloatArray:
        """float64[num_candidates]: by which a run of a matmul takes longer than `seconds` has it.

        Args:
            op: A matmul.
            candidates: Of it.
            one_waits: An operand of it is in VMEM when it runs.
        """
        assumed, found = (
            self._kernel_seconds(op, candidates, known) for known in (None, one_waits)
        )
        return np.where([one.streamed is not None for one in candidates], 0.0, found - assumed)

    def waiting_bytes(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: bytes of the smallest operand that may wait for a matmul.

        Infinite where both are computed from several tensors.
        """
        reads = self.reads.through_operands(op, candidates)
        return np.minimum(*(one.waiting_bytes for one in reads))

    def _kernel_seconds(
        self, op: Op, candidates: Candidates, one_waits: bool | None = None
    ) -> FloatArray:
        costing, graph, buffers = self.costing, self.graph, self.buffers
        arrays = costing.arrays(candidates)
        reads = self.reads.through_operands(op, candidates)
        num_bytes = sum((read.counted for read in reads), np.zeros(len(candidates)))
        if op.op_class is OpClass.REDUCE:
            num_bytes += self.reads.passed_bytes(op, candidates)
        writes = False
        for position, value in enumerate(op.results):
            if self.writes.is_paid(op, value):
                writes = True
                pieces = arrays.result_shards[position]
                written = graph.values[value].num_bytes / pieces
                layouts = written_layouts(candidates, position)
                tiles = self.reads.in_tiles(op, value, layouts, written, pieces)
                if value in buffers.unless_summed:
                    tiles = np.where([is_apart(c) for c in candidates], tiles, 0.0)
                num_bytes += self.writes.num_bytes(op, value, tiles)
        if op.index in self.in_rows:
            num_bytes *= self.facts.tiles.row_share(op.results[0], written_layouts(candidates))
        flops = costing.padded_flops(graph, op, candidates) + self._made(op) / arrays.cut
        if op.name == "dynamic_update_slice":
            row, whole = graph.values[op.operands[1]], graph.values[op.results[0]]
            num_bytes = costing.moved_bytes(row.num_bytes / arrays.operand_shards[1], row.bits)
            if updates_copy(graph, buffers.owner, op):
                local = whole.num_bytes / arrays.result_shards[0]
                num_bytes = num_bytes + costing.moved_bytes(local, whole.bits)
        elif op.op_class in (OpClass.ELEMENTWISE, OpClass.COPY) and not writes:
            return self._fused_seconds(op, candidates, flops)
        dtype = costing.operand_dtype(graph, op)
        if op.declared is not None:
            return self._declared_seconds(op, op.declared, arrays, dtype)
        single = self.matmuls.singly_bytes(op, candidates)
        if single is not None:
            num_bytes, flops = num_bytes + single, np.where(single > 0.0, 0.0, flops)
        model = costing.model
        work = work_class(op).value
        seconds = np.asarray(model.compute_seconds(flops, num_bytes, dtype, work))
        if self.writes.is_in_other_kernel(op):
            seconds = np.maximum(seconds - costing.launch_seconds, 0.0)
        if op.op_class not in PRODUCTS:
            return seconds
        far = None
        if op.op_class is OpClass.MATMUL and single is None:
            far = self.reads.from_hbm(op, reads, one_waits)
        seconds = seconds + costing.vector_seconds(graph, op, candidates)
        more = self.matmuls.start_seconds(op) - costing.launch_seconds
        started = seconds + more + self.matmuls.ragged_seconds(op, candidates)
        seconds = np.where(seconds > 0.0, started, 0.0)
        seconds += self.epilogue.more_seconds(op, candidates, flops, num_bytes, seconds, far)
        seconds += costing.window_seconds(flops, dtype)
        return seconds

    def _fused_seconds(self, op: Op, candidates: Candidates, flops: FloatArray) -> FloatArray:
        """float64[num_candidates]: seconds of an op that is computed with those that read it.

        Rows of less than all lanes that several ops read are written after all, in whole tiles.
        """
        vector = self.costing.model.hardware.compute.vector
        seconds = flops / vector.of(model_dtype(self.graph.values[op.results[0]].dtype))
        if not self._is_shared_in_rows(op):
            return np.asarray(seconds)
        value, pieces = op.results[0], self.costing.arrays(candidates).result_shards[0]
        layouts = written_layouts(candidates)
        num_bytes = self.reads.in_tiles(op, value, layouts, np.zeros_like(seconds), pieces)
        num_bytes = np.where(self.facts.tiles.fills_lanes(value, layouts), 0.0, num_bytes)
        dtype = self.costing.operand_dtype(self.graph, op)
        return np.maximum(seconds, self.costing.kernel_seconds(num_bytes, dtype))

    def _is_shared_in_rows(self, op: Op) -> bool:
        """True where several ops read what an op makes in rows."""
        is_in_rows = op.results[0] in self.facts.tiles.in_rows
        return is_in_rows and len(self.graph.consumers[op.results[0]]) > 1

    def _declared_seconds(
        self, op: Op, declared: CustomCost, arrays: CandidateArrays, dtype: str
    ) -> FloatArray:
        """float64[num_candidates]: seconds of a custom call whose cost is declared.

        Its arithmetic is cut as its rule says, its bytes as its operands and results are.
        """
        sides = ((op.operands, arrays.operand_shards), (op.results, arrays.result_shards))
        sizes = [
            (self.graph.values[value].num_bytes, pieces)
            for values, shards in sides
            for value, pieces in zip(values, shards, strict=True)
        ]
        whole = float(sum(size for size, _ in sizes))
        local = np.zeros(len(arrays.cut)) + sum(size / pieces for size, pieces in sizes)
        if declared.num_bytes is not None and whole:
            local *= declared.num_bytes / whole
        on_matrices, on_vectors = (
            self.costing.model.compute_seconds(work / arrays.cut, moved, dtype, op_class)
            for work, moved, op_class in (
                (declared.flops, np.zeros_like(local), OpClass.MATMUL.value),
                (declared.vector_flops, local, OpClass.CUSTOM.value),
            )
        )
        return np.maximum(on_matrices, on_vectors)
