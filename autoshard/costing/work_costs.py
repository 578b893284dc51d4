"""Seconds of what ops compute, and of what they read and write for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.costing.candidate_arrays import CandidateArrays, written_layouts
from autoshard.costing.few_images import copied_elements
from autoshard.costing.local_products import local_products
from autoshard.costing.model_dtype import model_dtype
from autoshard.costing.moved_sums import Summed, moved_sums
from autoshard.costing.on_chip import OnChip
from autoshard.costing.program_facts import StorageFacts
from autoshard.costing.read_on_chip import brought_before
from autoshard.costing.row_costs import LOOK_UPS, RowCosts
from autoshard.costing.sums import made_order
from autoshard.costing.unstacked_rows import is_unstacked
from autoshard.graph.buffers import Buffers
from autoshard.graph.custom_cost import CustomCost
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind
from cost_models import matmul_tile_efficiency, memory_efficiency

FloatArray = npt.NDArray[np.float64]


@dataclass(slots=True)
class WorkCosts(RowCosts):
    """Seconds that single devices take for an op: its arithmetic, memory and kernels."""

    _stored: StorageFacts | None = None

    def _work_seconds(
        self, graph: Graph, buffers: Buffers, op: Op, candidates: tuple[Candidate, ...]
    ) -> FloatArray:
        if op.name in LOOK_UPS and op.declared is None:
            return self.look_up_seconds(graph, buffers, op, candidates)
        arrays = self._arrays(candidates)
        num_bytes = self._bytes_read(graph, buffers, op, candidates)
        writes, is_apart = False, self.is_carried_apart(graph, buffers, op)
        for position, value in enumerate(op.results):
            is_own = buffers.owner[value] == value
            if buffers.is_stored[value] and (is_own or is_apart):
                writes = True
                pieces = arrays.result_shards[position]
                written = graph.values[value].num_bytes / pieces
                layouts = written_layouts(candidates, position)
                tiles = self._in_tiles(graph, op, value, layouts, written, pieces)
                if value in buffers.unless_summed:
                    tiles = np.where([_is_apart(c) for c in candidates], tiles, 0.0)
                num_bytes += self._bytes_written(graph, buffers, op, value, tiles)
        flops = self._padded_flops(op, candidates)
        op_class = op.op_class
        if op.name == "dynamic_update_slice":
            update = graph.values[op.operands[1]].num_bytes / arrays.operand_shards[1]
            num_bytes = 2.0 * update
            op_class = OpClass.ELEMENTWISE  # what it writes is computed with it
        elif op.op_class in (OpClass.ELEMENTWISE, OpClass.COPY) and not writes:
            fused = self._fused_seconds(graph, op, candidates, flops)
            if self.unstacks(graph, buffers, op):
                return fused + self._unstacking_seconds(graph, op, candidates)
            return fused
        dtype = self._operand_dtype(graph, op)
        if op.declared is not None:
            return self._declared_seconds(graph, op, op.declared, arrays, dtype)
        seconds = np.asarray(self.model.compute_seconds(flops, num_bytes, dtype, op_class.value))
        if self.is_in_other_kernel(graph, buffers, op):
            seconds = np.maximum(seconds - self.model.hardware.compute.kernel_launch_seconds, 0.0)
        if op.op_class is OpClass.MATMUL:
            more = self._start_seconds(op) - self.model.hardware.compute.kernel_launch_seconds
            seconds = np.where(seconds > 0.0, seconds + more, 0.0)
            seconds += self._apart_seconds(graph, buffers, op, candidates, seconds)
        if op.op_class is OpClass.CONVOLUTION:
            return seconds + self._image_seconds(graph, op, candidates)
        return seconds

    def _start_seconds(self, op: Op) -> float:
        """Seconds until a product is under way.

        In loops of machines that keep products on the chip nothing has to come from memory first.
        """
        machine = self.model.hardware
        clock = machine.compute.clock_hertz
        fills = self.backend.layout.mxu_fill_cycles / clock if clock else 0.0
        if self.backend.memory.matmul_results_in_vmem:
            return fills if op.repeat > 1 else machine.compute.kernel_launch_seconds
        return machine.compute.kernel_launch_seconds + fills

    def _image_seconds(self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]) -> FloatArray:
        """float64[num_candidates]: seconds in which few images are cut into more, and back."""
        copied = self._images_copied(graph, op, candidates)
        image = graph.values[op.operands[0]]
        bits = self.backend.layout.operand_bits(image.dtype, image.bits)
        return np.where(copied > 0, self.copy_seconds(2.0 * copied * bits / 8), 0.0)

    def cuts_images(self, graph: Graph, op: Op, candidate: Candidate) -> bool:
        """Whether a convolution has so few images on a device that each is cut into more."""
        return bool(self._images_copied(graph, op, (candidate,)).any())

    def _images_copied(self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]) -> FloatArray:
        layout = self.backend.layout
        least, lanes = layout.min_conv_batch, layout.num_lanes
        return copied_elements(graph, self.parts, op, candidates, least, lanes)

    def _apart_seconds(
        self,
        graph: Graph,
        buffers: Buffers,
        op: Op,
        candidates: tuple[Candidate, ...],
        seconds: FloatArray,
    ) -> FloatArray:
        """float64[num_candidates]: what is off, or comes to it, for what may run with a product.

        Its element-wise ops run beside its arithmetic: what they cost by themselves is off, as far
        as that takes as long. Where the vector unit is no bound, an update takes what memory takes
        at its whole bandwidth. What devices have to sum is read again after that, by reductions
        too.
        """
        whole, launches, summed = self.with_product(graph, buffers, op)
        speed = self._elementwise_speed
        launch, start = self.model.hardware.compute.kernel_launch_seconds, self._start_seconds(op)
        is_apart = [_is_apart(c) for c in candidates]
        pieces = np.array([self.parts.num_pieces(c.results[0]) for c in candidates])
        alone = whole / pieces / speed
        if self._passes is None:
            alone -= whole / pieces / self.model.hardware.memory.bytes_per_second
        beside = np.minimum(alone, np.maximum(seconds - start, 0.0))
        saved = np.minimum(beside + launches * launch, seconds)
        return np.where(is_apart, summed / pieces / speed, -saved)

    def with_product(self, graph: Graph, buffers: Buffers, op: Op) -> tuple[float, int, float]:
        """What may run with a product: as how many bytes it counts on all devices together.

        Returns:
            For element-wise ops, the kernels of these, and for reductions.
        """
        whole, launches, summed = 0.0, 0, 0.0
        if op.op_class is not OpClass.MATMUL:
            return whole, launches, summed
        if self._passes is None and op.results[0] not in buffers.unless_summed:
            return whole, launches, summed
        sums = () if self._passes is None else buffers.summed_with.get(op.index, ())
        if sums:
            summed = self._reduced_bytes(prod(graph.values[op.results[0]].shape), len(sums))
        for index in buffers.computed_with.get(op.index, ()):
            with_it = graph.ops[index]
            values = [v for v in with_it.results if buffers.is_stored[v]]
            if with_it.op_class is not OpClass.ELEMENTWISE or not values:
                continue
            reads = zip(buffers.reads[index], self._counted(with_it, buffers), strict=True)
            whole += sum(read.num_bytes * counted for read, counted in reads)
            for value in values:
                piece = np.array(graph.values[value].num_bytes / self.parts.mesh.num_devices)
                written = self._bytes_written(graph, buffers, with_it, value, piece)
                whole += float(written) * self.parts.mesh.num_devices
            launches += not self.is_in_other_kernel(graph, buffers, with_it)
        return whole, launches, summed

    def _fused_seconds(
        self, graph: Graph, op: Op, candidates: tuple[Candidate, ...], flops: FloatArray
    ) -> FloatArray:
        """float64[num_candidates]: seconds of an op that is computed with those that read it.

        Narrow rows that several ops read are written after all, in whole tiles.
        """
        seconds = flops / self._vector_flops(graph, op)
        if not self._is_shared_in_rows(graph, op):
            return seconds
        value, pieces = op.results[0], self._arrays(candidates).result_shards[0]
        none = np.zeros_like(seconds)
        layouts = written_layouts(candidates)
        num_bytes = self._in_tiles(graph, op, value, layouts, none, pieces)
        dtype = self._operand_dtype(graph, op)
        written = self.model.compute_seconds(none, num_bytes, dtype, OpClass.ELEMENTWISE.value)
        return np.maximum(seconds, written)

    def unstacks(self, graph: Graph, buffers: Buffers, op: Op) -> bool:
        """Whether an op copies rows out of tiles that a product wrote to device memory.

        Products whose results stay on the chip make them in an order that needs no copy.
        """
        if not self.backend.layout.is_tiled or self.backend.memory.matmul_results_in_vmem:
            return False
        return is_unstacked(graph, buffers, op)

    def _unstacking_seconds(
        self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]
    ) -> FloatArray:
        """float64[num_candidates]: seconds of a row's share of the copy, one kernel for all."""
        stack, row = graph.values[op.operands[0]], graph.values[op.results[0]]
        layouts = [c.operands[0] for c in candidates]
        written = row.num_bytes / self._arrays(candidates).result_shards[0]
        tiles = self._facts_of(graph).tiles.row_bytes(stack.index, layouts)
        read = 0.0 if tiles is None else tiles / stack.shape[-2]
        launch = self.model.hardware.compute.kernel_launch_seconds
        alone = self.copy_seconds(read + written) - launch
        return np.asarray(alone + launch / stack.shape[-2])

    def _bytes_read(
        self, graph: Graph, buffers: Buffers, op: Op, candidates: tuple[Candidate, ...]
    ) -> FloatArray:
        """float64[num_candidates]: bytes that a device reads, of narrow rows whole tiles.

        A reduction works through all tiles of what it reduces, computed with it or not. What was
        brought onto the chip before counts as far as it takes time to bring it; what waits there
        for all runs of a loop counts not at all.
        """
        arrays = self._arrays(candidates)
        num_bytes = np.zeros(len(arrays.cut))
        reads = self._read_bytes(graph, buffers, op)
        brought = brought_before(graph, buffers, op)
        brought_share = memory_efficiency(self.model.hardware, op.op_class.value)
        counted, chip = self._counted(op, buffers), self.on_chip(graph, buffers)
        waits = chip.read_in_loop(graph, op)
        for position, (read, pieces) in enumerate(zip(reads, arrays.operand_shards, strict=True)):
            value = op.operands[position]
            local = read / pieces
            is_whole = buffers.is_stored[value] or op.op_class is OpClass.REDUCE
            if read and is_whole and op.name not in ("slice", "dynamic_slice"):
                layouts = [c.operands[position] for c in candidates]
                local = self._in_tiles(graph, op, value, layouts, local, pieces)
            counts: float | FloatArray = counted[position]
            if read and brought[position]:
                whole = graph.values[value].num_bytes / pieces
                counts = counts * np.where(whole <= chip.room, brought_share, 1.0)
            if read and waits[position]:
                counts = np.where(local <= waits[position], 0.0, counts)
            num_bytes += counts * local
        if op.op_class is OpClass.REDUCE and self._passes is not None:
            elements = sum(read.elements for read in buffers.reads[op.index])
            passed = self._reduced_bytes(elements, 1 if elements else 0)
            return np.maximum(num_bytes, passed / arrays.operand_shards[0])
        return num_bytes

    def _counted(self, op: Op, buffers: Buffers) -> tuple[float, ...]:
        """Per operand, as how many bytes one counts that is read, by the elements that pass."""
        if self._passes is None or op.op_class is not OpClass.ELEMENTWISE:
            return (1.0,) * len(op.operands)
        wide = self._pass_bytes(self._passes.accessed)
        narrow = self._pass_bytes(self._passes.narrow_read)
        counted = []
        for read in buffers.reads[op.index]:
            num_narrow = min(max(0.0, (4 * read.elements - read.num_bytes) / 2), read.elements)
            passed = wide * (read.elements - num_narrow) + narrow * num_narrow
            counted.append(passed / max(1, read.num_bytes))
        return tuple(counted)

    def _reduced_bytes(self, elements: int, times: int) -> float:
        """As how many bytes elements count that are read once and summed so many times."""
        assert self._passes is not None
        accessed, reduced = self._passes.accessed, self._passes.reduced
        return elements * (self._pass_bytes(accessed) + times * self._pass_bytes(reduced))

    def moved_sums(self, graph: Graph, buffers: Buffers) -> Mapping[tuple[int, int], Summed]:
        """As of `moved_sums`; none where it takes no time to sum what is read."""
        return {} if self._passes is None else moved_sums(graph, buffers)

    def summing_seconds(self, summed: Summed, pieces: npt.NDArray[np.int64]) -> FloatArray:
        """float64[n]: seconds in which a device reads and sums one of so many pieces."""
        whole = self._reduced_bytes(summed.elements, summed.times) / self._elementwise_speed
        return np.asarray(whole / pieces)

    def _bytes_written(
        self, graph: Graph, buffers: Buffers, op: Op, value: int, local: FloatArray
    ) -> FloatArray:
        """float64[num_candidates]: as how many bytes a result counts that has so many."""
        chip = self.on_chip(graph, buffers)
        in_memory = np.where(local > chip.room, local, 0.0) if chip.brief[value] else local
        if op.op_class in PRODUCTS:
            return in_memory if chip.moved else local
        if self._passes is None or op.op_class is not OpClass.ELEMENTWISE:
            return local
        bits, passes = graph.values[value].bits, self._passes
        rate = passes.accessed if bits >= 32 else passes.narrow_written
        passed = self._pass_bytes(rate) * 8.0 / bits * local
        if op.index in buffers.updates:
            return passed + self.states_off * local
        return passed + in_memory

    def new_states(self, graph: Graph, buffers: Buffers) -> list[int]:
        """Values that updates write; none where it does not matter where they lie."""
        if self._passes is None:
            return []
        made = dict.fromkeys(op.operands[0] for op in graph.results)
        return [value for value in made if graph.values[value].op in buffers.updates]

    def state_seconds(
        self, graph: Graph, buffers: Buffers, op: Op, candidates: tuple[Candidate, ...]
    ) -> FloatArray:
        """float64[num_candidates]: in which an update writes what it makes to device memory."""
        arrays = self._arrays(candidates)
        local = np.zeros(len(candidates))
        for value, pieces in zip(op.results, arrays.result_shards, strict=True):
            if buffers.is_stored[value] and buffers.owner[value] == value:
                local += graph.values[value].num_bytes / pieces
        return local / self._elementwise_speed

    def chip_places(self, graph: Graph, buffers: Buffers, op: Op) -> tuple[float, ...]:
        """What the price of an op depends on by what of its reads and results is on the chip."""
        chip = self.on_chip(graph, buffers)
        stays = (chip.brief[value] for value in op.results)
        if op.op_class in PRODUCTS:
            waits = chip.read_in_loop(graph, op)
            return (*brought_before(graph, buffers, op), *waits, *stays)
        if self._passes is None or op.op_class is not OpClass.ELEMENTWISE:
            return ()
        return (op.index in buffers.updates, *stays)

    def on_chip(self, graph: Graph, buffers: Buffers) -> OnChip:
        """Which temporaries lie on the chip; of one program at a time."""
        return self._stored_facts(graph, buffers).chip

    def _stored_facts(self, graph: Graph, buffers: Buffers) -> StorageFacts:
        """Of one program at a time."""
        known = self._stored
        if known is None or known.graph is not graph or known.buffers is not buffers:
            known = self._stored = StorageFacts.of(graph, buffers, self.backend)
        return known

    def is_carried_apart(self, graph: Graph, buffers: Buffers, op: Op) -> bool:
        """Whether a kernel of its own writes what an op makes for the next run of a loop."""
        return any(value in self._stored_facts(graph, buffers).loops.apart for value in op.results)

    def is_in_other_kernel(self, graph: Graph, buffers: Buffers, op: Op) -> bool:
        """Whether an op is launched with another: an update of a state with one that needs it.

        Or a sum over what a product writes, which has nothing to read, or a row of a stack with
        one that is computed from the same.
        """
        if op.name == "dynamic_update_slice":
            return op.index in self._stored_facts(graph, buffers).loops.joined
        if op.index in buffers.updates:
            readers = (graph.ops[i] for value in op.results for i in graph.consumers[value])
            return any(reader.kind is OpKind.COMPUTE for reader in readers)
        if any(buffers.parts.get(value, value) != value for value in op.results):
            return True
        is_sum = op.op_class is OpClass.REDUCE and bool(graph.values[op.results[0]].shape)
        return is_sum and not any(read.num_bytes for read in buffers.reads[op.index])

    def waiting_seconds(self, graph: Graph, buffers: Buffers, value: int) -> float:
        """Seconds that products of loops wait for slices of a stack that a collective made.

        That is each time it is made. On a v5p it lies in device memory then, and on the chip if an
        element-wise op made it; on a v5e it is sliced by a kernel of its own.
        """
        runs = self._stored_facts(graph, buffers).stacks.by_products.get(value, 0.0)
        return runs * self.model.hardware.compute.kernel_launch_seconds

    def waiting_as_stacked_seconds(self, graph: Graph, buffers: Buffers, op: Op) -> float:
        """Seconds that products of a loop wait for slices of what the loop before it stacked.

        So on a v5p, where that lies in device memory, and nothing runs beside which it is brought.
        """
        if self.on_chip(graph, buffers).moved:
            return 0.0
        runs = self._stored_facts(graph, buffers).stacks.as_stacked.get(op.index, 0.0)
        return runs * self.model.hardware.compute.kernel_launch_seconds

    def slicing_seconds(
        self, graph: Graph, buffers: Buffers, op: Op, candidates: tuple[Candidate, ...]
    ) -> FloatArray:
        """float64[num_candidates]: in which a loop slices a stack that was transposed for it.

        The rows of a slice are far apart, and a kernel of its own puts them together.
        """
        runs = self.slices_turned(graph, buffers, op)
        if not runs:
            return np.zeros(len(candidates))
        made = graph.values[op.results[0]]
        pieces = self._arrays(candidates).result_shards[0]
        return runs * self.copy_seconds(2.0 * made.num_bytes / max(made.shape[0], 1) / pieces)

    def rows_turned(self, graph: Graph, buffers: Buffers, op: Op) -> float:
        """How often a loop writes a row of what an op transposes, if nothing moves it before.

        The stack lies in the order of the transpose then, and a kernel of its own turns each row.
        """
        return self._stored_facts(graph, buffers).stacks.written_turned.get(op.index, 0.0)

    def slices_turned(self, graph: Graph, buffers: Buffers, op: Op) -> float:
        """How often a loop slices what an op transposed for it."""
        return (
            self._stored_facts(graph, buffers).stacks.turned.get(op.results[0], 0.0)
            if op.results
            else 0.0
        )

    def _read_bytes(self, graph: Graph, buffers: Buffers, op: Op) -> tuple[float, ...]:
        """Bytes that an op reads through each operand; a product as narrow as it multiplies."""
        reads = tuple(float(read.num_bytes) for read in buffers.reads[op.index])
        if op.op_class not in PRODUCTS or op.is_exact:
            return reads
        layout = self.backend.layout
        values = [graph.values[value] for value in op.operands]
        return tuple(
            read * layout.operand_bits(value.dtype, value.bits) / value.bits
            for read, value in zip(reads, values, strict=True)
        )

    def _declared_seconds(
        self, graph: Graph, op: Op, declared: CustomCost, arrays: CandidateArrays, dtype: str
    ) -> FloatArray:
        """float64[num_candidates]: seconds of a custom call whose cost is declared.

        Its arithmetic is cut as its rule says, its bytes as its operands and results are.
        """
        sides = ((op.operands, arrays.operand_shards), (op.results, arrays.result_shards))
        whole = float(sum(graph.values[v].num_bytes for values, _ in sides for v in values))
        local = np.zeros(len(arrays.cut))
        for values, shards in sides:
            for value, pieces in zip(values, shards, strict=True):
                local += graph.values[value].num_bytes / pieces
        if declared.num_bytes is not None and whole:
            local *= declared.num_bytes / whole
        on_matrices, on_vectors = (
            self.model.compute_seconds(work / arrays.cut, moved, dtype, op_class)
            for work, moved, op_class in (
                (declared.flops, np.zeros_like(local), OpClass.MATMUL.value),
                (declared.vector_flops, local, OpClass.CUSTOM.value),
            )
        )
        return np.maximum(on_matrices, on_vectors)

    def _padded_flops(self, op: Op, candidates: tuple[Candidate, ...]) -> FloatArray:
        """float64[num_candidates]: FLOP on one device; of a product, padding to tiles included.

        A convolution is taken as a product of images and features.
        """
        flops = op.flops / self._arrays(candidates).cut
        tile = self.model.hardware.compute.matmul_tile
        if op.op_class not in PRODUCTS or op.rule is None or tile == (1, 1, 1):
            return flops
        dims = local_products(self.parts, op.rule, candidates, op.name)
        may_turn = op.op_class is OpClass.MATMUL
        if may_turn:
            rows = np.minimum(dims[0], dims[1])
            least = np.maximum(rows, self.backend.layout.mxu_min_rows)
            flops *= least / rows
            dims = least, np.maximum(dims[0], dims[1]), dims[2]
        return np.asarray(flops / matmul_tile_efficiency(dims, tile, may_turn=may_turn))

    def _operand_dtype(self, graph: Graph, op: Op) -> str:
        """What an op computes in: of a product of two types the slower one."""
        if op.op_class not in PRODUCTS:
            return model_dtype(graph.values[(op.operands or op.results)[0]].dtype)
        peaks = self.model.hardware.compute.matmul
        families = [model_dtype(graph.values[value].dtype) for value in op.operands[:2]]
        return min(families, key=peaks.of)

    def _vector_flops(self, graph: Graph, op: Op) -> float:
        dtype = model_dtype(graph.values[op.results[0]].dtype)
        return float(self.model.hardware.compute.vector.of(dtype))

    def made_order(self, graph: Graph, op: Op) -> tuple[int, ...]:
        """Dimensions of an op's (first) result as they are made, major to minor."""
        return made_order(graph, op, graph.consumers[op.results[0]])


def _is_apart(candidate: Candidate) -> bool:
    """Whether what a product makes is summed before anything is computed of it."""
    return bool(candidate.reduced or candidate.scattered or candidate.streamed)
