"""Seconds of what one op may do on one machine, whatever program it is in.

The planner speaks of mesh parts and layouts, cost models of axes and bytes; this file and that of
moves translate. What depends on the rest of the program is a term: `op_terms` lists them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.candidates.streamed import StreamMessage, messages_of, panel_elements
from autoshard.costing.candidate_arrays import CandidateArrays, candidate_arrays
from autoshard.costing.dilated_images import pixel_rows
from autoshard.costing.halos import Halo, halos_of, padded_elements
from autoshard.costing.local_products import (
    computed_zeros,
    grouped_share,
    local_features,
    local_products,
    padded_taps,
    product_factors,
)
from autoshard.costing.model_dtype import model_dtype
from autoshard.costing.move_costs import MoveCosts
from autoshard.costing.space_to_batch import copied_elements
from autoshard.costing.sums import Sum, made_order, sums_of
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, Value
from autoshard.identity_cache import IdentityCache
from autoshard.layouts import MeshParts, Parts
from cost_models import (
    AlphaBetaModel,
    ElementPasses,
    Hardware,
    matmul_tile_efficiency,
    memory_efficiency,
)

if TYPE_CHECKING:
    from cost_models import CostModel

FloatArray = npt.NDArray[np.float64]


def cost_model_for(hardware: Hardware, parts: MeshParts) -> CostModel:
    """The standard cost model of a machine under a mesh."""
    return AlphaBetaModel(hardware, [(axis.name, axis.size) for axis in parts.mesh.axes])


@dataclass(frozen=True, slots=True, eq=False)
class ChunkSeconds:
    """Seconds of one run of a matmul in chunks: float64[num_candidates] each.

    Args:
        compute: In which it computes.
        sent: In which it communicates.
        passing: In which the pieces of one step are passed on to neighbours.
    """

    compute: FloatArray
    sent: FloatArray
    passing: FloatArray


@dataclass(slots=True)
class Costing(MoveCosts):
    """Seconds of kernels and collectives on one machine.

    Args as of `MoveCosts`.
    """

    _shards: IdentityCache[CandidateArrays] = field(default_factory=IdentityCache)
    _chunks: IdentityCache[ChunkSeconds] = field(default_factory=IdentityCache)
    _messages: dict[tuple[str, Parts, bool, bool, float], float] = field(default_factory=dict)

    def arrays(self, candidates: tuple[Candidate, ...]) -> CandidateArrays:
        """Pieces that candidates cut operands and results into."""
        return self._shards.get(lambda: candidate_arrays(self.parts, candidates), candidates)

    @property
    def passes(self) -> ElementPasses | None:
        """Throughput of the vector unit; None where memory is always slower."""
        return self.model.hardware.compute.passes

    def pass_bytes(self, elements_per_second: float) -> float:
        """Bytes that memory takes, read by element-wise ops, while one element passes."""
        return self.elementwise_speed / elements_per_second

    @property
    def elementwise_speed(self) -> float:
        """Bytes per second that element-wise ops read and write of device memory."""
        return self.memory_speed(OpClass.ELEMENTWISE)

    def memory_speed(self, op_class: OpClass) -> float:
        """Bytes per second that ops of a class read and write of device memory."""
        machine = self.model.hardware
        share = memory_efficiency(machine, op_class.value)
        return share * machine.memory.bytes_per_second

    @property
    def launch_seconds(self) -> float:
        """Seconds that a kernel takes beside its work."""
        return self.model.hardware.compute.kernel_launch_seconds

    def stored_bytes(
        self,
        local: FloatArray,
        bits: int,
        in_memory: FloatArray | None = None,
        op_class: OpClass = OpClass.ELEMENTWISE,
    ) -> FloatArray:
        """float64[n]: as how many bytes it counts to write so many; elements pass the vector unit.

        Args:
            local: float64[n], bytes.
            bits: Of an element.
            in_memory: float64[n], bytes of these that are written to HBM; all where it is None.
            op_class: At whose memory speed they count.
        """
        passes, written = self.passes, local if in_memory is None else in_memory
        if passes is None or not bits:
            return written
        is_product, speed = op_class in PRODUCTS, self.memory_speed(op_class)
        moved = written + (local - written) / 4 * speed / passes.kept
        if bits < 32:
            to_memory = (is_product and passes.product_narrowed) or passes.narrowed
            to_vmem = (is_product and passes.product_kept) or passes.narrowed
            rates = np.where(written, to_memory, to_vmem)
            return np.asarray(moved + local * 8.0 / bits * speed / rates)
        slower = speed / passes.written if passes.written and not is_product else 0.0
        return np.asarray(moved + written * slower * 8.0 / bits)

    def moved_bytes(self, local: FloatArray, bits: int) -> FloatArray:
        """float64[n]: as how many bytes it counts to read and write so many, in order."""
        return local + self.stored_bytes(local, bits)

    def kernel_seconds(
        self, num_bytes: FloatArray, dtype: str, op_class: str = OpClass.ELEMENTWISE.value
    ) -> FloatArray:
        """Seconds of kernels that read and write so many bytes and compute next to nothing.

        Args:
            num_bytes: float64[n].
            dtype: As cost models name it.
            op_class: As cost models name it.
        """
        none = np.zeros_like(num_bytes)
        return np.asarray(self.model.compute_seconds(none, num_bytes, dtype, op_class))

    def padded_flops(self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]) -> FloatArray:
        """float64[num_candidates]: FLOP on one device; of a matmul, padding to tiles included.

        A convolution is taken as a matmul of images and features; none of a depthwise one that
        vector units compute, whose time `vector_seconds` has.
        """
        flops = op.flops / self.arrays(candidates).cut
        flops *= grouped_share(op, self.backend.layout.ragged_tile_rows)
        if self.depthwise_macs(op):
            return np.zeros_like(flops)
        tile = self.model.hardware.compute.matmul_tile
        if op.op_class not in PRODUCTS or op.rule is None or tile == (1, 1, 1):
            return flops
        taps = prod(window.size for window in op.windows)
        dims = local_products(self.parts, op.rule, candidates, taps)
        may_turn = op.op_class is OpClass.MATMUL
        if may_turn:
            rows = np.minimum(dims[0], dims[1])
            least = np.maximum(rows, self.backend.layout.mxu_min_rows)
            flops *= least / rows
            dims = least, np.maximum(dims[0], dims[1]), dims[2]
        flops *= pixel_rows(graph, self.parts, op, candidates, self.backend.layout)
        return np.asarray(flops / matmul_tile_efficiency(dims, tile, may_turn=may_turn))

    def depthwise_macs(self, op: Op) -> float:
        """Multiply-adds a cycle of a depthwise convolution on vector units; 0 of all else."""
        macs = self.backend.layout.depthwise_macs
        is_convolution = op.op_class is OpClass.CONVOLUTION and op.rule is not None
        if not macs or not is_convolution or not self.model.hardware.compute.clock_hertz:
            return 0.0
        assert op.rule is not None
        found = product_factors(op.rule)
        return macs[bool(found.summed)] if found.is_depthwise else 0.0

    def vector_seconds(self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]) -> FloatArray:
        """float64[num_candidates]: of a depthwise convolution's arithmetic; 0 of all else.

        Its features fill whole lanes, and padding is computed.
        """
        macs, clock = self.depthwise_macs(op), self.model.hardware.compute.clock_hertz
        if not macs or not clock:
            return np.zeros(len(candidates))
        assert op.rule is not None
        features = local_features(self.parts, op.rule, candidates)
        lanes = self.backend.layout.num_lanes
        padded = np.ceil(features / lanes) * lanes / features
        computed = computed_zeros(op) * padded_taps(graph, op) * op.flops / 2
        multiply_adds = computed / self.arrays(candidates).cut
        return np.asarray(multiply_adds * padded / (macs * clock))

    def window_seconds(self, flops: FloatArray, dtype: str) -> FloatArray:
        """Seconds of a matmul's first and last windows, which no arithmetic runs beside.

        Larger matmuls have larger windows and more of them: both grow with the root.
        """
        compute = self.model.hardware.compute
        cycles, clock = self.backend.layout.mxu_window_cycles, compute.clock_hertz
        if not cycles or not clock:
            return np.zeros_like(flops)
        return np.asarray(cycles * np.sqrt(flops / compute.matmul.of(dtype) / clock))

    def arithmetic_seconds(self, graph: Graph, op: Op, candidate: Candidate) -> float:
        """Seconds of a matmul's or convolution's arithmetic alone; 0 of other ops."""
        if op.op_class not in PRODUCTS:
            return 0.0
        (flops,), dtype = self.padded_flops(graph, op, (candidate,)), self.operand_dtype(graph, op)
        seconds = self.model.compute_seconds(float(flops), 0.0, dtype, op.op_class.value)
        (on_vectors,) = self.vector_seconds(graph, op, (candidate,))
        return float(max(seconds - self.launch_seconds, 0.0) + on_vectors)

    def operand_dtype(self, graph: Graph, op: Op) -> str:
        """The type that an op computes in: of a matmul of two types the slower one."""
        if op.op_class not in PRODUCTS:
            return model_dtype(graph.values[(op.operands or op.results)[0]].dtype)
        peaks = self.model.hardware.compute.matmul
        families = [model_dtype(graph.values[value].dtype) for value in op.operands[:2]]
        return min(families, key=peaks.of)

    def images_copied(self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]) -> FloatArray:
        """float64[num_candidates]: elements that a convolution copies to run space-to-batch."""
        layout = self.backend.layout
        least, lanes = layout.min_conv_batch, layout.num_lanes
        return copied_elements(graph, self.parts, op, candidates, least, lanes)

    def made_order(self, graph: Graph, op: Op) -> tuple[int, ...]:
        """Dimensions of an op's (first) result as they are made, major to minor."""
        return made_order(graph, op, graph.consumers[op.results[0]])

    def chunk_seconds(
        self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]
    ) -> ChunkSeconds:
        """Seconds of the candidates of a matmul that run in chunks; 0 of the others."""
        values = [graph.values[value] for value in (*op.operands, *op.results)]
        types = tuple((value.dtype, value.bits) for value in values)
        key = (op.rule, op.name, op.op_class, op.flops, op.is_exact, types)
        return self._chunks.get(
            lambda: self._chunk_seconds(graph, op, candidates), candidates, key=key
        )

    def _chunk_seconds(
        self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]
    ) -> ChunkSeconds:
        """As `chunk_seconds`.

        Every step reads its panels, and reads and writes the sums that it adds to. What of a piece
        on its way is hidden behind the product of another is in `encoding.hidden_communication`.
        """
        found = ChunkSeconds(*(np.zeros(len(candidates)) for _ in range(3)))
        places = [place for place, one in enumerate(candidates) if one.streamed is not None]
        if not places or op.rule is None:
            return found
        in_steps = tuple(candidates[place] for place in places)
        steps = np.array([one.streamed.num_steps for one in in_steps if one.streamed])
        bits = [self.step_bits(graph, op, place) for place in range(3)]
        num_bytes = 2.0 * np.array([self.step_sums_bytes(graph, op, one) for one in in_steps])
        panels = np.array([panel_elements(self.parts, op.rule, one) for one in in_steps])
        num_bytes += panels @ np.array(bits[1:]) / 8
        flops, dtype = self.padded_flops(graph, op, in_steps) / steps, self.operand_dtype(graph, op)
        one_step = self.model.compute_seconds(flops, num_bytes, dtype, op.op_class.value)
        if op.op_class is OpClass.MATMUL:
            one_step = one_step + self.window_seconds(flops, dtype)
        found.compute[places] = one_step * steps
        for place, candidate in zip(places, in_steps, strict=True):
            for message in messages_of(self.parts, op.rule, candidate):
                seconds = self.message_seconds(message, bits[message.place])
                found.sent[place] += seconds * message.message.count
                found.passing[place] += seconds * message.is_shift
        return found

    def step_bits(self, graph: Graph, op: Op, place: int) -> int:
        """Bits of an element that a product in steps sends: of an operand, as it is multiplied.

        Args:
            graph: The program.
            op: The product.
            place: 0 for the result, 1 and 2 for the operands.
        """
        value = graph.values[(*op.results, *op.operands)[place]]
        layout = self.backend.layout
        if place > 0 and not op.is_exact and self.backend.collectives.convert_motion:
            return layout.operand_bits(value.dtype, value.bits)
        return layout.intermediate_bits(value.dtype, value.bits)

    def message_seconds(self, found: StreamMessage, bits: int) -> float:
        """Seconds of one run of a collective of a product in steps.

        Of pieces that go both ways there are two, and each takes half of both together.
        """
        num_bytes, kind = found.num_elements(self.parts) * bits / 8, found.message.kind
        key = (kind, found.parts, found.is_shift, found.both_ways, num_bytes)
        seconds = self._messages.get(key)
        if seconds is None:
            axes, amount = self.axis_parts(found.parts), np.asarray(num_bytes)
            if not found.is_shift:
                seconds = float(self.collective_seconds(kind, axes, amount))
            elif found.both_ways:
                seconds = float(self.model.shift_seconds(2.0 * amount, axes, both_ways=True)) / 2
            else:
                seconds = float(self.model.shift_seconds(amount, axes))
            self._messages[key] = seconds
        return seconds

    def summed_bytes(self, graph: Graph, op: Op, candidate: Candidate) -> int:
        """Bytes of the sums that a device makes for a product in steps, 32 bits wide at least."""
        made = graph.values[op.results[0]]
        elements = prod(made.shape) // self.parts.num_pieces(
            candidate.partial or candidate.results[0]
        )
        return elements * max(32, made.bits) // 8

    def step_sums_bytes(self, graph: Graph, op: Op, candidate: Candidate) -> int:
        """Bytes of those that one step adds to: a piece, where steps run over the result."""
        assert op.rule is not None
        assert candidate.streamed is not None
        is_piece = (candidate.streamed.over,) in op.rule.results[0]
        pieces = candidate.streamed.num_steps if is_piece else 1
        return self.summed_bytes(graph, op, candidate) // pieces

    def streamed_bytes(self, graph: Graph, op: Op, candidate: Candidate) -> int:
        """Bytes that a product in steps holds beside its operands and its result.

        The product of one step before it is added; sums wider than the result; of each operand that
        steps run over a panel: of one that is gathered, or sliced while others go round, a second,
        in the order that the product wants it in; of one that is passed on the piece under way.
        Where the backend multiplies other elements than lie at home, it converts those first.
        """
        streamed = candidate.streamed
        if streamed is None or op.rule is None:
            return 0
        held = self._sums_held(graph, op, candidate)
        panels = panel_elements(self.parts, op.rule, candidate)
        for position, elements in enumerate(panels):
            value = graph.values[op.operands[position]]
            wide = self.step_bits(graph, op, position + 1)
            if (streamed.over,) in op.rule.operands[position]:
                is_home = candidate.operands[position] == streamed.needs[position]
                held += (1 if is_home and not streamed.rings else 2) * elements * wide // 8
            if wide != value.bits:
                whole = prod(value.shape) * wide // 8
                held += whole // self.parts.num_pieces(candidate.operands[position])
        return held

    def _sums_held(self, graph: Graph, op: Op, candidate: Candidate) -> int:
        """Bytes of sums beside the result: one step's product, and what else stands by.

        Sums on their way are there twice, and so are those that get their last piece behind the
        loop. Half a piece that goes the other way round has a product of its own.
        """
        streamed = candidate.streamed
        assert streamed is not None
        assert op.rule is not None
        bits = graph.values[op.results[0]].bits
        term = self.step_sums_bytes(graph, op, candidate)
        is_passed = 0 in streamed.moved
        sums = term if is_passed else self.summed_bytes(graph, op, candidate)
        held = term + max(0, 32 - bits) * sums // max(32, bits)
        if is_passed:
            held += sums
        if streamed.rings and not is_passed and (streamed.over,) in op.rule.results[0]:
            held += sums - term
        return held + (term if streamed.both_ways else 0)

    def written_bytes(self, graph: Graph, op: Op, candidate: Candidate) -> int:
        """Bytes per device of the larger side of a collective that the user wrote."""
        is_gather = op.collective is not None and op.collective.kind == "all-gather"
        values, layouts = (
            (op.results, candidate.results) if is_gather else (op.operands, candidate.operands)
        )
        return sum(
            int(self.sent_bytes(graph.values[value])) // self.parts.num_pieces(layout)
            for value, layout in zip(values, layouts, strict=True)
        )

    def sent_bytes(self, value: Value) -> float:
        """Bytes of a whole tensor as it is sent or reduced, as wide as intermediates."""
        wide = self.backend.layout.intermediate_bits(value.dtype, value.bits)
        return value.num_bytes * wide / max(value.bits, 1)

    def halos(self, graph: Graph, op: Op, candidate: Candidate) -> tuple[Halo, ...]:
        """Messages between neighbours for a convolution or pool that is sharded along space."""
        return tuple(halos_of(graph, self.parts, op, candidate)) if op.windows else ()

    def halo_bits(self, graph: Graph, op: Op) -> int:
        """Bits of an element that neighbours exchange: of a convolution, as it is multiplied."""
        if op.op_class is OpClass.CONVOLUTION:
            return self.step_bits(graph, op, 1)
        image = graph.values[op.operands[0]]
        return self.backend.layout.intermediate_bits(image.dtype, image.bits)

    def padded_bytes(self, graph: Graph, op: Op, candidate: Candidate) -> int:
        """Bytes of a device's piece of an image with its halos, which is a copy; 0 without any."""
        if not op.windows:
            return 0
        return padded_elements(graph, self.parts, op, candidate) * self.halo_bits(graph, op) // 8

    def sums_of(self, graph: Graph, op: Op, candidate: Candidate) -> tuple[Sum, ...]:
        """The collectives that sum what a candidate leaves partial of an op's (first) result."""
        made = graph.values[op.results[0]]
        return sums_of(
            self.model.hardware,
            self.backend,
            self.parts,
            op.op_class,
            candidate,
            made.shape,
            made.bits,
            self.links(candidate.scattered) if candidate.scattered else (),
            self.made_order(graph, op),
            is_in_slice=self.num_slices(candidate.scattered) == 1,
        )
