"""Element-wise ops and reductions that run in the kernel of a matmul."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from autoshard.candidates.candidate import Candidate
from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.kernel_reads import FarReads
from autoshard.costing.kernel_writes import KernelWrites, work_class
from autoshard.costing.matmul_time import MatmulTime
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import PRODUCTS, Op, OpClass


@dataclass(frozen=True, slots=True)
class WithMatmul:
    """Ops that may run with a matmul: as how many bytes they count on all devices together.

    Args:
        fused: Element-wise ops, read and written by the matmul.
        alone: The same by themselves.
        launches: Kernels of these.
        summed: Reductions of what devices have to sum.
        moved: Bytes that element-wise ops read and write with the matmul, as they lie in HBM.
    """

    fused: float = 0.0
    alone: float = 0.0
    launches: int = 0
    summed: float = 0.0
    moved: float = 0.0


class MatmulEpilogue:
    """Prices of what is fused with matmuls."""

    def __init__(self, facts: ProgramFacts, writes: KernelWrites, matmuls: MatmulTime) -> None:
        self.writes, self.matmuls = writes, matmuls
        self.facts, self.graph, self.buffers = facts, facts.graph, facts.buffers
        self.costing = facts.costing

    def more_seconds(
        self,
        op: Op,
        candidates: Candidates,
        flops: FloatArray,
        num_bytes: FloatArray,
        seconds: FloatArray,
        far: FarReads | None,
    ) -> FloatArray:
        """float64[num_candidates]: what is off, or comes to it, for what is fused with a matmul.

        The kernel takes what a matmul takes that reads and writes what its element-wise ops do;
        what these cost by themselves is off. Where the vector unit is no bound, an update takes
        what memory takes at its whole bandwidth. What devices have to sum is read again after that,
        by reductions too.

        Source: matmuls of bfloat16 with nothing, `relu`, `gelu` and one to three more operands, of
            256 to 8,192 rows and columns and 512 to 8,192 summed, by libtpu 0.0.52 for a v5e and a
            v5p: `relu` and `gelu` take no longer than the matmul that writes as much.
        """
        costing, model = self.costing, self.costing.model
        with_it = self.with_matmul(op)
        dtype, pieces = costing.operand_dtype(self.graph, op), costing.parts.num_pieces
        shares = np.array([pieces(c.results[0]) for c in candidates])
        apart = [is_apart(c) for c in candidates]
        alone = with_it.alone / shares / costing.elementwise_speed
        fused = seconds
        if costing.passes is None:
            alone -= with_it.alone / shares / model.hardware.memory.bytes_per_second
        elif with_it.fused:
            whole, work = num_bytes + with_it.fused / shares, work_class(op).value
            together = np.asarray(model.compute_seconds(flops, whole, dtype, work))
            fused = seconds + together - model.compute_seconds(flops, num_bytes, dtype, work)
            fused = np.where(apart, seconds, fused)
        if far is not None:
            result, stored = op.results[0], self.buffers.is_stored[op.results[0]]
            own = self.graph.values[result].num_bytes / shares * stored
            is_fused = result in self.buffers.unless_summed
            made = np.where(apart, own, with_it.moved / shares + (0.0 if is_fused else own))
            plain = np.asarray(
                model.compute_seconds(flops, np.zeros_like(flops), dtype, work_class(op).value)
            )
            windowed = self.matmuls.windowed_seconds(op, candidates, far.num_bytes, made, plain)
            fused = np.where(far.is_far, np.maximum(fused, windowed), fused)
        started = np.maximum(fused - self.matmuls.start_seconds(op), 0.0)
        saved = np.minimum(alone, started) + with_it.launches * costing.launch_seconds
        summed = with_it.summed / shares / costing.elementwise_speed
        saved = np.where(apart, -summed, np.minimum(saved, fused))
        return np.asarray(fused - saved - seconds)

    def with_matmul(self, op: Op) -> WithMatmul:
        """The ops that may run with a matmul or a convolution; none beside other ops."""
        passes, buffers = self.costing.passes, self.buffers
        if op.op_class not in PRODUCTS:
            return WithMatmul()
        if passes is None and op.results[0] not in buffers.unless_summed:
            return WithMatmul()
        joined = () if passes is None else self.facts.run_with.get(op.index, ())
        fused = alone = summed = moved = 0.0
        launches = 0
        if joined and passes is not None:
            elements = prod(self.graph.values[op.results[0]].shape)
            summed = elements * self.graph.values[op.results[0]].bits / 8.0
            if any(self.graph.ops[i].op_class is OpClass.REDUCE for i in joined):
                summed += elements * self.costing.pass_bytes(passes.narrowed)
        for index in (*buffers.computed_with.get(op.index, ()), *joined):
            with_it = self.graph.ops[index]
            values = [v for v in with_it.results if buffers.is_stored[v]]
            if with_it.op_class is not OpClass.ELEMENTWISE or not values:
                continue
            read = self._in_hbm(with_it)
            moved += read + sum(self.graph.values[v].num_bytes for v in values)
            fused += read
            fused += sum(self.writes.whole_bytes(with_it, v, work_class(op)) for v in values)
            paid = [v for v in values if self.writes.is_paid(with_it, v)]
            if paid:
                alone += sum(read.num_bytes for read in buffers.reads[index])
                alone += sum(self.writes.whole_bytes(with_it, v, work_class(with_it)) for v in paid)
                launches += not self.writes.is_in_other_kernel(with_it)
        return WithMatmul(fused, alone, launches, summed, moved)

    def _in_hbm(self, op: Op) -> float:
        """Bytes that all devices together read from HBM for an op."""
        vmem, num_devices = self.facts.vmem, self.costing.parts.mesh.num_devices
        held = vmem.held_sources(self.graph, self.buffers, op)
        found = 0.0
        for value, read, sources in zip(
            op.operands, self.buffers.reads[op.index], held, strict=True
        ):
            in_vmem = sum(one for one in sources if one / num_devices <= vmem.capacity)
            carried = filter(self.writes.stays_in_loop, vmem.behind[value] if vmem.carried else ())
            in_vmem += sum(self.graph.values[one].num_bytes for one in carried)
            found += max(read.num_bytes - in_vmem, 0.0)
        return found


def is_apart(candidate: Candidate) -> bool:
    """True where what a matmul makes is summed before anything is computed of it.

    Not where one sum serves several runs: what these add up is not summed yet.
    """
    is_summed = candidate.runs_per_sum == 1 and (candidate.reduced or candidate.scattered)
    return bool(is_summed or candidate.streamed)
