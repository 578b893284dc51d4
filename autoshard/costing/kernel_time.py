"""Seconds that single devices take for an op: its arithmetic, memory and kernels."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.costing.candidate_arrays import CandidateArrays, written_layouts
from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.joined_updates import LoopKernels
from autoshard.costing.look_ups import LOOK_UPS
from autoshard.costing.matmul_time import MatmulTime
from autoshard.costing.model_dtype import model_dtype
from autoshard.costing.program_facts import ProgramFacts
from autoshard.costing.vmem import prefetched
from autoshard.graph.buffer_owners import updates_copy
from autoshard.graph.custom_cost import CustomCost
from autoshard.graph.made_work import made_operations
from autoshard.graph.op_traits import READS_FUSED
from autoshard.graph.program import PRODUCTS, Op, OpClass, OpKind
from autoshard.layouts import Layout
from cost_models import memory_efficiency

_PARTS = frozenset({"concatenate", "dynamic_slice", "dynamic_update_slice", "pad", "slice"})
"""Ops that copy parts of tensors."""

_OF_ONE = 1.5
"""Elements read for each of a matmul's operand, at most, where that is computed of one tensor.

A choice between one tensor, with vectors along its rows and columns, and two.
"""


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


class KernelTime:
    """The kernels of ops: a roofline of arithmetic and memory, with what is fused into them.

    Matmuls in chunks count here with their arithmetic. Look-ups are a term of their own.
    """

    is_sent: ClassVar[bool] = False

    def __init__(self, facts: ProgramFacts) -> None:
        self.facts, self.vmem = facts, facts.vmem
        self.graph, self.buffers, self.costing = facts.graph, facts.buffers, facts.costing
        self.backend, self.matmuls = facts.costing.backend, MatmulTime(facts)
        joins = self.backend.fusion.fuses_stack_updates
        self.loops = LoopKernels.of(facts.graph, facts.buffers) if joins else LoopKernels()
        self.in_rows = {index for update in facts.row_updates for index in update.ops}
        self.joined: dict[int, list[int]] = {}
        for index, kernel in facts.buffers.joined.items():
            self.joined.setdefault(kernel, []).append(index)

    def key(self, op: Op) -> Hashable | None:
        is_look_up = op.name in LOOK_UPS and op.declared is None
        if op.kind is not OpKind.COMPUTE or op.collective is not None or is_look_up:
            return None
        tiles, buffers = self.facts.tiles, self.buffers
        return (
            buffers.reads[op.index],
            bool(op.results) and self._is_shared_in_rows(op),
            tuple(tiles.kind(value) for value in (*op.operands, *op.results)),
            self.is_in_other_kernel(op),
            self._is_carried_apart(op),
            self._vmem_key(op),
            self._with_matmul(op),
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
        held = vmem.held_sources(self.graph, self.buffers, op) if self._saved_in_vmem(op) else ()
        return (op.index in self.buffers.updates, *stays, *held)

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run."""
        found = self._kernel_seconds(op, candidates)
        for index, one in enumerate(candidates):
            if one.streamed is not None:
                found[index] = self.costing.streamed_seconds(self.graph, op, one)[0]
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
        reads = self._operand_reads(op, candidates)
        return np.minimum(*(one.waiting_bytes for one in reads))

    def _kernel_seconds(
        self, op: Op, candidates: Candidates, one_waits: bool | None = None
    ) -> FloatArray:
        costing, graph, buffers = self.costing, self.graph, self.buffers
        arrays = costing.arrays(candidates)
        reads = self._operand_reads(op, candidates)
        num_bytes = sum((read.counted for read in reads), np.zeros(len(candidates)))
        if op.op_class is OpClass.REDUCE:
            num_bytes += self._passed_bytes(op, candidates)
        writes = False
        for position, value in enumerate(op.results):
            if self._is_written(op, value):
                writes = True
                pieces = arrays.result_shards[position]
                written = graph.values[value].num_bytes / pieces
                layouts = written_layouts(candidates, position)
                tiles = self._in_tiles(op, value, layouts, written, pieces)
                if value in buffers.unless_summed:
                    tiles = np.where([_is_apart(c) for c in candidates], tiles, 0.0)
                num_bytes += self._bytes_written(op, value, tiles)
        if op.index in self.in_rows:
            num_bytes *= self.facts.tiles.row_share(op.results[0], written_layouts(candidates))
        flops = costing.padded_flops(op, candidates) + self._made(op) / arrays.cut
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
        work = _work_class(op).value
        seconds = np.asarray(model.compute_seconds(flops, num_bytes, dtype, work))
        if self.is_in_other_kernel(op):
            seconds = np.maximum(seconds - costing.launch_seconds, 0.0)
        if op.op_class is OpClass.CONVOLUTION:
            seconds = seconds + costing.vector_seconds(graph, op, candidates)
        if op.op_class is OpClass.MATMUL:
            far = self._from_hbm(op, reads, one_waits) if single is None else None
            more = self.matmuls.start_seconds(op) - costing.launch_seconds
            started = seconds + more + self.matmuls.ragged_seconds(op, arrays)
            seconds = np.where(seconds > 0.0, started, 0.0)
            seconds += self._epilogue_seconds(op, candidates, flops, num_bytes, seconds, far)
            seconds += costing.window_seconds(flops, dtype)
        return seconds

    def _epilogue_seconds(
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
        with_it = self._with_matmul(op)
        dtype, pieces = costing.operand_dtype(self.graph, op), costing.parts.num_pieces
        shares = np.array([pieces(c.results[0]) for c in candidates])
        is_apart = [_is_apart(c) for c in candidates]
        alone = with_it.alone / shares / costing.elementwise_speed
        fused = seconds
        if costing.passes is None:
            alone -= with_it.alone / shares / model.hardware.memory.bytes_per_second
        elif with_it.fused:
            whole, work = num_bytes + with_it.fused / shares, _work_class(op).value
            together = np.asarray(model.compute_seconds(flops, whole, dtype, work))
            fused = seconds + together - model.compute_seconds(flops, num_bytes, dtype, work)
            fused = np.where(is_apart, seconds, fused)
        if far is not None:
            result, stored = op.results[0], self.buffers.is_stored[op.results[0]]
            own = self.graph.values[result].num_bytes / shares * stored
            is_fused = result in self.buffers.unless_summed
            made = np.where(is_apart, own, with_it.moved / shares + (0.0 if is_fused else own))
            plain = np.asarray(
                model.compute_seconds(flops, np.zeros_like(flops), dtype, _work_class(op).value)
            )
            windowed = self.matmuls.windowed_seconds(op, candidates, far.num_bytes, made, plain)
            fused = np.where(far.is_far, np.maximum(fused, windowed), fused)
        started = np.maximum(fused - self.matmuls.start_seconds(op), 0.0)
        saved = np.minimum(alone, started) + with_it.launches * costing.launch_seconds
        summed = with_it.summed / shares / costing.elementwise_speed
        saved = np.where(is_apart, -summed, np.minimum(saved, fused))
        return np.asarray(fused - saved - seconds)

    def _from_hbm(
        self, op: Op, reads: Sequence[OperandRead], one_waits: bool | None
    ) -> FarReads | None:
        """Reads of a matmul from HBM, where neither operand is in VMEM; None where one always is.

        Operands that take less than a quarter of it always do: it has room for those of the kernels
        before and after.
        """
        if op.name != "dot_general" or not self.backend.layout.hbm_window:
            return None
        lhs, rhs = reads
        num_bytes = np.minimum(lhs.waiting_bytes, rhs.waiting_bytes)
        is_far = num_bytes > self.vmem.capacity
        if one_waits is not None:
            is_far = num_bytes > (np.inf if one_waits else self.vmem.capacity / 4)
        return FarReads((lhs.num_bytes, rhs.num_bytes), is_far) if is_far.any() else None

    def _with_matmul(self, op: Op) -> WithMatmul:
        """The ops that may run with a matmul; none beside other ops."""
        passes, buffers = self.costing.passes, self.buffers
        if op.op_class is not OpClass.MATMUL:
            return WithMatmul()
        if passes is None and op.results[0] not in buffers.unless_summed:
            return WithMatmul()
        joined = () if passes is None else self.joined.get(op.index, ())
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
            fused += sum(self._whole_written(with_it, v, _work_class(op)) for v in values)
            paid = [v for v in values if self._is_written(with_it, v)]
            if paid:
                alone += sum(read.num_bytes for read in buffers.reads[index])
                alone += sum(self._whole_written(with_it, v, _work_class(with_it)) for v in paid)
                launches += not self.is_in_other_kernel(with_it)
        return WithMatmul(fused, alone, launches, summed, moved)

    def _in_hbm(self, op: Op) -> float:
        """Bytes that all devices together read from HBM for an op."""
        vmem, num_devices = self.vmem, self.costing.parts.mesh.num_devices
        held = vmem.held_sources(self.graph, self.buffers, op)
        found = 0.0
        for value, read, sources in zip(
            op.operands, self.buffers.reads[op.index], held, strict=True
        ):
            in_vmem = sum(one for one in sources if one / num_devices <= vmem.capacity)
            carried = filter(self._stays_in_loop, vmem.behind[value] if vmem.carried else ())
            in_vmem += sum(self.graph.values[one].num_bytes for one in carried)
            found += max(read.num_bytes - in_vmem, 0.0)
        return found

    def _stays_in_loop(self, value: int) -> bool:
        """True for what a loop updates in place, in VMEM for all its runs."""
        num_bytes = self.graph.values[value].num_bytes / self.costing.parts.mesh.num_devices
        return num_bytes <= self.vmem.carried.get(self.buffers.owner[value], 0.0)

    def _whole_written(self, op: Op, value: int, work: OpClass) -> float:
        """As how many bytes it counts on all devices together to write a value."""
        num_devices = self.costing.parts.mesh.num_devices
        piece = np.array(self.graph.values[value].num_bytes / num_devices)
        return float(self._bytes_written(op, value, piece, work)) * num_devices

    def _fused_seconds(self, op: Op, candidates: Candidates, flops: FloatArray) -> FloatArray:
        """float64[num_candidates]: seconds of an op that is computed with those that read it.

        Narrow rows that several ops read are written after all, in whole tiles.
        """
        vector = self.costing.model.hardware.compute.vector
        seconds = flops / vector.of(model_dtype(self.graph.values[op.results[0]].dtype))
        if not self._is_shared_in_rows(op):
            return np.asarray(seconds)
        value, pieces = op.results[0], self.costing.arrays(candidates).result_shards[0]
        layouts = written_layouts(candidates)
        num_bytes = self._in_tiles(op, value, layouts, np.zeros_like(seconds), pieces)
        dtype = self.costing.operand_dtype(self.graph, op)
        return np.maximum(seconds, self.costing.kernel_seconds(num_bytes, dtype))

    def _is_shared_in_rows(self, op: Op) -> bool:
        """True where several ops read what an op makes in rows."""
        is_in_rows = op.results[0] in self.facts.tiles.in_rows
        return is_in_rows and len(self.graph.consumers[op.results[0]]) > 1

    def _in_tiles(
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

    def _operand_reads(self, op: Op, candidates: Candidates) -> list[OperandRead]:
        """Reads of a device through each operand, of narrow rows whole tiles.

        A reduction works through all tiles of what it reduces, computed with it or not. What was
        prefetched into VMEM counts as far as it takes time to bring it; what a matmul finds there,
        as it was just used or waits for all runs of a loop, counts not at all.
        """
        arrays, buffers, vmem = self.costing.arrays(candidates), self.buffers, self.vmem
        found = []
        reads = self._read_bytes(op)
        is_prefetched = prefetched(self.graph, self.buffers, op)
        prefetched_share = memory_efficiency(self.costing.model.hardware, op.op_class.value)
        waits = vmem.loop_bytes(self.graph, op)
        held, left = vmem.held_sources(self.graph, self.buffers, op), np.array(vmem.capacity)
        saved = self._saved_in_vmem(op)
        for position, (read, pieces) in enumerate(zip(reads, arrays.operand_shards, strict=True)):
            value = op.operands[position]
            local = read / pieces
            is_whole = buffers.is_stored[value] or op.op_class is OpClass.REDUCE
            is_whole |= value in self.facts.tiles.moved or value in self.facts.tiles.lanes
            if read and is_whole and op.name not in ("slice", "dynamic_slice"):
                layouts = [c.operands[position] for c in candidates]
                local = self._in_tiles(op, value, layouts, local, pieces)
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

    def _saved_in_vmem(self, op: Op) -> float:
        """Share of the time of a read that is saved where the bytes are in VMEM."""
        if op.op_class in PRODUCTS:
            return 1.0
        passes = self.costing.passes
        if passes is None or op.op_class not in READS_FUSED:
            return 0.0
        return max(1.0 - self.costing.elementwise_speed / passes.read_bytes, 0.0)

    def _read_bytes(self, op: Op) -> tuple[float, ...]:
        """Bytes that an op reads through each operand, in elements as they are written."""
        reads = zip(self.buffers.reads[op.index], op.operands, strict=True)
        return tuple(read.num_bytes * self.facts.read_share(value) for read, value in reads)

    def _passed_bytes(self, op: Op, candidates: Candidates) -> FloatArray | float:
        """float64[num_candidates]: as how many bytes elements count that a reduction takes up.

        Beside being read, once for all reductions of a kernel; nothing beside a matmul.
        """
        passes, buffers = self.costing.passes, self.buffers
        if passes is None or op.index in buffers.joined:
            return 0.0
        is_plain = buffers.is_stored[op.operands[0]] and op.index not in self.joined
        rate = passes.plain_reduced if is_plain else passes.narrowed
        value = self.graph.values[op.operands[0]]
        pieces = self.costing.arrays(candidates).operand_shards[0]
        layouts = [c.operands[0] for c in candidates]
        tiles = self._in_tiles(op, value.index, layouts, value.num_bytes / pieces, pieces)
        return tiles * 8.0 / value.bits * self.costing.pass_bytes(rate)

    def _bytes_written(
        self, op: Op, value: int, local: FloatArray, work: OpClass | None = None
    ) -> FloatArray:
        """float64[num_candidates]: as how many bytes a result counts that has so many.

        Narrow elements pass the vector unit before they are written; what stays in VMEM takes that.
        """
        vmem, passes, is_product = self.vmem, self.costing.passes, op.op_class in PRODUCTS
        work = work or _work_class(op)
        local = local * self.facts.read_share(value)
        in_memory = np.where(local > vmem.capacity, local, 0.0) if vmem.stays[value] else local
        if is_product and not vmem.holds_copies:
            in_memory = local
        if work is OpClass.MATMUL and not is_product and self._stays_in_loop(value):
            in_memory = np.zeros_like(local)
        if passes is None or work not in (OpClass.MATMUL, OpClass.ELEMENTWISE):
            return in_memory if is_product else local
        if op.index in self.buffers.updates and work is OpClass.ELEMENTWISE:
            in_memory = local if self.facts.always_spills else np.zeros_like(local)
        bits = self.facts.written_bits.get(value, self.graph.values[value].bits)
        return self.costing.stored_bytes(local, bits, in_memory, work)

    def _is_written(self, op: Op, value: int) -> bool:
        """True where an op pays for writing a value: not for what a product adds to a carry."""
        is_own = self.buffers.owner[value] == value
        return self.buffers.is_stored[value] and (is_own or self._is_carried_apart(op))

    def _is_carried_apart(self, op: Op) -> bool:
        """True where a kernel of its own writes what an op makes for the next run of a loop."""
        return any(value in self.loops.apart for value in op.results)

    def is_in_other_kernel(self, op: Op) -> bool:
        """True where an op is launched with another: an update of a state with one that needs it.

        Or what joins the kernel of another op, or a row of a stack with one that is computed from
        the same.
        """
        buffers = self.buffers
        if op.name == "dynamic_update_slice":
            return op.index in self.loops.joined
        if op.index in buffers.updates:
            readers = (self.graph.ops[i] for v in op.results for i in self.graph.consumers[v])
            return any(reader.kind is OpKind.COMPUTE for reader in readers)
        if any(buffers.parts.get(value, value) != value for value in op.results):
            return True
        return op.index in buffers.joined

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


def _work_class(op: Op) -> OpClass:
    """The op class whose memory bandwidth an op reaches.

    Copies of contiguous parts run as element-wise kernels.

    Source: slices, pads and concatenations of 5 dimensions by libtpu 0.0.52 for a v5e and a v5p; it
        writes gaps between elements in a kernel of its own.
    """
    return OpClass.ELEMENTWISE if op.name in _PARTS and not op.spread else op.op_class


def _is_apart(candidate: Candidate) -> bool:
    """True where what a matmul makes is summed before anything is computed of it."""
    return bool(candidate.reduced or candidate.scattered or candidate.streamed)
