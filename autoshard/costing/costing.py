"""The only door to `cost_models`: seconds of candidates and of reshard steps.

The planner speaks of mesh parts and layouts, cost models of axes and bytes; this file translates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autoshard.backend_habits import (
    converts_before_moving,
    joins_updates,
    keeps_products_on_chip,
    least_images,
    loops_over_scattered_sums,
    most_converted_fast,
    most_gathered_by_sum,
    multiplied_bits,
    on_chip_bytes,
    rearranges_exchanges,
    row_lanes,
    sums_after_loops,
    widened_bits,
    windows_scattered_sum,
)
from autoshard.candidates.candidate import Candidate
from autoshard.candidates.streamed import StreamMessage, messages_of, panel_elements
from autoshard.costing.few_images import copied_elements
from autoshard.costing.halos import Halo, halos_of
from autoshard.costing.joined_updates import joined_updates
from autoshard.costing.local_products import local_products
from autoshard.costing.loop_borders import LoopBorders
from autoshard.costing.narrow_rows import RowTiles
from autoshard.costing.narrowed_to_send import NarrowedToSend, narrowed_to_send
from autoshard.costing.on_chip import OnChip
from autoshard.costing.read_on_chip import brought_before
from autoshard.costing.shared_calls import SharedCalls, shared_calls
from autoshard.costing.sliced_stacks import runs_that_slice
from autoshard.costing.sums import Sum, made_order, sums_of
from autoshard.costing.transfers import Transfer, transfers_of
from autoshard.graph.buffers import Buffers
from autoshard.graph.collective import WrittenCollective
from autoshard.graph.custom_cost import CustomCost
from autoshard.graph.loop_sums import loop_sums
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind, Value
from autoshard.graph.row_lookups import takes_rows
from autoshard.layouts import Layout, MeshParts, Parts
from autoshard.reshard import StepKind
from autoshard.sharding import AxisRef, axes_crossed, spanned_axes
from cost_models import (
    AlphaBetaModel,
    AxisPart,
    ElementPasses,
    Hardware,
    matmul_tile_efficiency,
    memory_efficiency,
)

if TYPE_CHECKING:
    from cost_models import CostModel

FloatArray = npt.NDArray[np.float64]
_SumsKey = tuple[float, tuple[tuple[str, Parts], ...]]  # runs that a sum serves; kinds and parts

_DTYPE_NAMES = {
    "f64": "float64",
    "f32": "float32",
    "tf32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "i8": "int8",
    "ui8": "int8",
    "i4": "int8",
    "ui4": "int8",
    "complex<f32>": "float32",
    "complex<f64>": "float64",
}


def model_dtype(dtype: str) -> str:
    """StableHLO's name of an element type as cost models name its family."""
    if dtype.startswith(("f8", "f4")):
        return "float8"
    return _DTYPE_NAMES.get(dtype, "float32")


def cost_model_for(hardware: Hardware, parts: MeshParts) -> CostModel:
    """The standard cost model of a machine under a mesh."""
    return AlphaBetaModel(hardware, [(axis.name, axis.size) for axis in parts.mesh.axes])


@dataclass(slots=True)
class Costing:
    """Seconds of everything a plan may do on one machine.

    Args:
        model: Prices single kernels and collectives.
        parts: The mesh parts of this plan.
        overlaps: Whether the objective takes off what of collectives runs beside computing.
        states_off: The share of new states that updates write to device memory and not to the chip.
    """

    model: CostModel
    parts: MeshParts
    overlaps: bool = False
    states_off: float = 0.0
    _axes: dict[Parts, tuple[AxisPart, ...]] = field(default_factory=dict)
    _group_sizes: dict[Parts, tuple[int, ...]] = field(default_factory=dict)
    _slices: dict[Parts, int] = field(default_factory=dict)
    _written: dict[WrittenCollective, tuple[tuple[AxisRef, ...], int]] = field(default_factory=dict)
    _facts: _GraphFacts | None = None
    _chip: tuple[Graph, Buffers, OnChip] | None = None
    _joined: tuple[Graph, Buffers, frozenset[int]] | None = None
    _sliced: tuple[Graph, Buffers, dict[int, float]] | None = None
    _shards: dict[int, tuple[tuple[Candidate, ...], _CandidateArrays]] = field(default_factory=dict)

    def axis_parts(self, chosen: Parts) -> tuple[AxisPart, ...]:
        """Mesh parts as the cost model names them, in mesh order.

        Parts of another mesh are priced as all those of this one that their devices differ in.
        """
        found = self._axes.get(chosen)
        if found is None:
            sizes = self.parts.mesh.sizes
            found = tuple(
                AxisPart(ref.name, ref.pre_size, ref.size or sizes[ref.name])
                for ref in self.parts.refs(self.parts.spanned(chosen))
            )
            self._axes[chosen] = found
        return found

    def step_seconds(self, kind: StepKind, parts: Parts, num_bytes: FloatArray) -> FloatArray:
        """Seconds of reshard steps of one kind over one set of parts.

        Args:
            kind: What the step does.
            parts: The parts it works over.
            num_bytes: float64[n]: bytes per device of the larger side.
        """
        axes = self.axis_parts(parts)
        if kind is StepKind.SLICE:
            return self.copy_seconds(2.0 * num_bytes)
        if kind is StepKind.ALL_GATHER:
            return self._gather_seconds(num_bytes, parts)
        if kind is StepKind.ALL_TO_ALL:
            sent = np.asarray(self.model.all_to_all_seconds(num_bytes, axes))
            return sent + self._rearranging_seconds(num_bytes)
        return np.asarray(self.model.permute_seconds(num_bytes, axes))

    def _gather_seconds(self, num_bytes: FloatArray, parts: Parts) -> FloatArray:
        """Seconds of all-gathers, of those too that are run as sums."""
        axes = self.axis_parts(parts)
        gathered = np.asarray(self.model.all_gather_seconds(num_bytes, axes))
        size = self.parts.num_shards(parts)
        summed = most_gathered_by_sum(self.model.hardware, size, self._slice_size)
        if not summed or self._num_slices(parts) > 1:
            return gathered
        by_sum = self.model.all_reduce_seconds(num_bytes, axes)
        return np.where(num_bytes <= summed, by_sum, gathered)

    def transfers(self, kind: str, parts: Parts, num_bytes: int) -> tuple[Transfer, ...]:
        """The collectives that a planned one becomes.

        Args:
            kind: As of `PredictedCollective`.
            parts: The mesh parts that it works over.
            num_bytes: Per device of the larger side, as wide as elements lie.
        """
        axes = self.axis_parts(parts)
        return tuple(transfers_of(self.model, self._slice_size, kind, axes, num_bytes))

    @property
    def _slice_size(self) -> int:
        """Devices of a slice or node, or of all where there is one."""
        every = tuple(range(len(self.parts.axes)))
        return self.parts.mesh.num_devices // self._num_slices(every)

    def _num_slices(self, parts: Parts) -> int:
        """Slices or nodes that a group spans."""
        found = self._slices.get(parts)
        if found is None:
            found = self._slices[parts] = self.model.slices_spanned(self.axis_parts(parts))
        return found

    def _rearranging_seconds(self, num_bytes: FloatArray) -> FloatArray:
        """Seconds in which the pieces of all-to-alls are copied into order; 0 if measured in it."""
        machine = self.model.hardware
        measured = machine.measured
        if measured is not None and measured.collective("all-to-all") is not None:
            return np.zeros_like(num_bytes)
        if not rearranges_exchanges(machine.backend):
            return np.zeros_like(num_bytes)
        return self.copy_seconds(2.0 * num_bytes)

    def copy_seconds(self, num_bytes: FloatArray) -> FloatArray:
        """Seconds that copies take which read and write so many bytes together.

        Args:
            num_bytes: float64[n].
        """
        no_flops = np.zeros_like(num_bytes)
        return np.asarray(
            self.model.compute_seconds(no_flops, num_bytes, "float32", OpClass.COPY.value)
        )

    def narrowed_to_send(
        self, graph: Graph, buffers: Buffers, value: int, bits: int
    ) -> NarrowedToSend | None:
        """What of a value is narrowed only to be sent, with so many bits of an element.

        None too for what is narrowed before a loop anyway, and where no op narrows before it sends.
        """
        if not converts_before_moving(self.model.hardware.backend):
            return None
        found = narrowed_to_send(graph, buffers, value, bits)
        if found is None or self.border_bytes(graph, found.argument)[1]:
            return None
        return found

    def narrowing_seconds(self, found: NarrowedToSend, layouts: Sequence[Layout]) -> FloatArray:
        """float64[num_layouts]: seconds in which pieces are narrowed that are then sent.

        Args:
            found: What it takes to narrow the whole tensor.
            layouts: In which the pieces lie.
        """
        pieces = np.array([self.parts.num_pieces(one) for one in layouts], dtype=np.float64)
        return self.conversion_seconds(found.num_bytes / pieces)

    def conversion_seconds(self, num_bytes: FloatArray) -> FloatArray:
        """Seconds of conversions that read and write so many bytes together.

        Args:
            num_bytes: float64[n].
        """
        most = most_converted_fast(self.model.hardware)
        counted = np.where(num_bytes <= most, num_bytes / 2, num_bytes)
        none = np.zeros_like(counted)
        return np.asarray(self.model.compute_seconds(none, counted, "float32", "convert"))

    def candidate_seconds(
        self, graph: Graph, buffers: Buffers, op: Op, candidates: tuple[Candidate, ...]
    ) -> FloatArray:
        """float64[num_candidates]: seconds one run of the op takes, its reductions included."""
        arrays = self._arrays(candidates)
        if op.kind is not OpKind.COMPUTE:
            spent = self._border_seconds(graph, op, arrays)
            if op.kind is OpKind.ARGUMENT and op.index not in graph.donated:
                spent += self._arrival_seconds(graph, op, arrays)
            return spent
        spent = self.reduction_seconds(graph, op, candidates)
        if op.collective is not None:
            return spent + self.written_seconds(graph, op, candidates)
        spent += self._work_seconds(graph, buffers, op, candidates)
        waited = self.waiting_seconds(graph, buffers, op.results[0]) if op.results else 0.0
        if waited:
            spent += [waited if c.reduced or c.scattered else 0.0 for c in candidates]
        if any(candidate.streamed is not None for candidate in candidates):
            flops = self._padded_flops(op, candidates)
            for index, candidate in enumerate(candidates):
                if candidate.streamed is not None:
                    spent[index] = sum(self._steps_seconds(graph, op, candidate, flops[index]))
        return spent

    def streamed_seconds(self, graph: Graph, op: Op, candidate: Candidate) -> tuple[float, float]:
        """Seconds that one run of a product in steps computes and communicates.

        Every step reads its panels, and reads and writes the sums that it adds to. What of a piece
        on its way is hidden behind the product of another one is in `overlap.hidden`.
        """
        flops = self._padded_flops(op, (candidate,))[0]
        return self._steps_seconds(graph, op, candidate, flops)

    def _steps_seconds(
        self, graph: Graph, op: Op, candidate: Candidate, flops: float
    ) -> tuple[float, float]:
        """The same, where the floating-point operations of a device are known."""
        assert op.rule is not None
        assert candidate.streamed is not None
        values = [graph.values[value] for value in (*op.results, *op.operands)]
        steps = candidate.streamed.num_steps
        panels = panel_elements(self.parts, op.rule, candidate)
        num_bytes = sum(
            elements * self.sent_bits(value) / 8
            for elements, value in zip(panels, values[1:], strict=True)
        )
        num_bytes += 2.0 * self.step_sums_bytes(graph, op, candidate)
        one = self.model.compute_seconds(
            np.array([flops / steps]),
            np.asarray(num_bytes),
            self._operand_dtype(graph, op),
            op.op_class.value,
        )
        sent = sum(
            self.message_seconds(found, self.sent_bits(values[found.place])) * found.message.count
            for found in messages_of(self.parts, op.rule, candidate)
        )
        return float(one[0]) * steps, sent

    def passing_seconds(self, graph: Graph, op: Op, candidate: Candidate) -> float:
        """Seconds in which the pieces of one step of a product are passed on; 0 for panels."""
        if candidate.streamed is None or op.rule is None:
            return 0.0
        values = [graph.values[value] for value in (*op.results, *op.operands)]
        return sum(
            self.message_seconds(found, self.sent_bits(values[found.place]))
            for found in messages_of(self.parts, op.rule, candidate)
            if found.is_shift
        )

    def sent_bits(self, value: Value) -> int:
        """Bits of an element that a product in steps sends: as wide as it is multiplied."""
        return widened_bits(self.model.hardware.backend, value.dtype, value.bits)

    def message_seconds(self, found: StreamMessage, bits: int) -> float:
        """Seconds of one run of a collective of a product in steps.

        Of pieces that go both ways there are two, and each takes half of both together.
        """
        num_bytes = np.asarray(found.num_elements(self.parts) * bits / 8)
        axes = self.axis_parts(found.parts)
        if found.is_shift:
            if not found.both_ways:
                return float(self.model.shift_seconds(num_bytes, axes))
            return float(self.model.shift_seconds(2.0 * num_bytes, axes, both_ways=True)) / 2
        seconds = {
            "all-gather": self.model.all_gather_seconds,
            "all-reduce": self.model.all_reduce_seconds,
            "reduce-scatter": self.model.reduce_scatter_seconds,
        }.get(found.message.kind, self.model.permute_seconds)
        return float(seconds(num_bytes, axes))

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
        Where the backend multiplies wider elements than lie at home, it widens what is there first.
        """
        streamed = candidate.streamed
        if streamed is None or op.rule is None:
            return 0
        held = self._sums_held(graph, op, candidate)
        panels = panel_elements(self.parts, op.rule, candidate)
        for position, elements in enumerate(panels):
            value = graph.values[op.operands[position]]
            wide = self.sent_bits(value)
            if (streamed.over,) in op.rule.operands[position]:
                is_home = candidate.operands[position] == streamed.needs[position]
                held += (1 if is_home and not streamed.rings else 2) * elements * wide // 8
            if wide > value.bits:
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

    def written_seconds(
        self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]
    ) -> FloatArray:
        """float64[num_candidates]: seconds one run of a collective that the user wrote takes.

        A broadcast passes every link once, as a permutation does.
        """
        if op.collective is None:
            return np.zeros(len(candidates))
        kind = op.collective.kind
        num_bytes = np.array([self.written_bytes(graph, op, c) for c in candidates], dtype=float)
        seconds = {
            "all-gather": self.model.all_gather_seconds,
            "all-reduce": self.model.all_reduce_seconds,
            "all-to-all": self.model.all_to_all_seconds,
            "reduce-scatter": self.model.reduce_scatter_seconds,
        }.get(kind, self.model.permute_seconds)
        refs, _ = self.written_axes(op.collective)
        axes = tuple(AxisPart(ref.name, ref.pre_size, ref.size_on(self.parts.mesh)) for ref in refs)
        return np.asarray(seconds(num_bytes, axes))

    def written_bytes(self, graph: Graph, op: Op, candidate: Candidate) -> int:
        """Bytes per device of the larger side of a collective that the user wrote."""
        is_gather = op.collective is not None and op.collective.kind == "all-gather"
        values, layouts = (
            (op.results, candidate.results) if is_gather else (op.operands, candidate.operands)
        )
        return sum(
            graph.values[value].num_bytes // self.parts.num_pieces(layout)
            for value, layout in zip(values, layouts, strict=True)
        )

    def written_axes(self, collective: WrittenCollective) -> tuple[tuple[AxisRef, ...], int]:
        """The mesh axes a collective works over, and the devices in one of its groups.

        Groups that follow no axes are taken to work over all axes that they cross.
        """
        found = self._written.get(collective)
        if found is None:
            mesh, groups = self.parts.mesh, collective.groups
            spanned = None
            if collective.kind != "collective-permute":
                spanned = spanned_axes(groups, mesh)
            if spanned is None:
                pairs = [(group[0], place) for group in groups for place in group]
                spanned = axes_crossed(pairs, mesh)
            size = max(map(len, groups))
            if collective.kind == "collective-permute":
                size = prod(ref.size_on(mesh) for ref in spanned)
            found = self._written[collective] = (spanned, size)
        return found

    def _arrival_seconds(self, graph: Graph, op: Op, arrays: _CandidateArrays) -> FloatArray:
        """Seconds to put an argument that is new in every step (a batch) into device memory.

        Small, but without it nothing would speak against giving every device the whole batch.
        """
        num_bytes = graph.values[op.results[0]].num_bytes / arrays.result_shards[0]
        return np.asarray(num_bytes / self.model.hardware.memory.bytes_per_second)

    def _border_seconds(self, graph: Graph, op: Op, arrays: _CandidateArrays) -> FloatArray:
        """float64[num_candidates]: seconds before a loop that fill a carry or convert an argument.

        Neither is an op of the program; see `LoopBorders`.
        """
        filled, converted = self.border_bytes(graph, op)
        if not filled and not converted:
            return np.zeros(len(arrays.cut))
        dtype = model_dtype(graph.values[op.results[0]].dtype)
        num_bytes = (filled or converted) / arrays.result_shards[0]
        if not filled:
            return self.conversion_seconds(num_bytes)
        return np.asarray(
            self.model.compute_seconds(np.zeros_like(num_bytes), num_bytes, dtype, "fill")
        )

    def border_bytes(self, graph: Graph, op: Op) -> tuple[int, int]:
        """Bytes that are filled for a carry, and read and written to convert an argument."""
        borders = self._facts_of(graph).borders
        return borders.filled.get(op.index, 0), borders.converted.get(op.index, 0)

    def sums_in_call(self, graph: Graph, op: Op) -> tuple[int, int]:
        """How many sums one call takes that an all-reduce of the op's result is in.

        In the region of the op, and after the loop that adds its results up.
        """
        calls = self._facts_of(graph).calls
        return calls.in_body.get(op.index, 1), calls.after_loop.get(op.index, 1)

    def _work_seconds(
        self, graph: Graph, buffers: Buffers, op: Op, candidates: tuple[Candidate, ...]
    ) -> FloatArray:
        arrays = self._arrays(candidates)
        num_bytes = self._bytes_read(graph, buffers, op, candidates)
        writes = False
        for position, value in enumerate(op.results):
            if buffers.is_stored[value] and buffers.owner[value] == value:
                writes = True
                pieces = arrays.result_shards[position]
                written = graph.values[value].num_bytes / pieces
                layouts = [_written(c, position) for c in candidates]
                tiles = self._in_tiles(graph, op, value, layouts, written, pieces)
                num_bytes += self._bytes_written(graph, buffers, op, value, tiles)
        flops = self._padded_flops(op, candidates)
        op_class = op.op_class
        if op.name == "dynamic_update_slice":
            update = graph.values[op.operands[1]].num_bytes / arrays.operand_shards[1]
            num_bytes = 2.0 * update
            op_class = OpClass.ELEMENTWISE  # what it writes is computed with it
        elif op.op_class in (OpClass.ELEMENTWISE, OpClass.COPY) and not writes:
            return self._fused_seconds(graph, op, candidates, flops)
        dtype = self._operand_dtype(graph, op)
        if op.declared is not None:
            return self._declared_seconds(graph, op, op.declared, arrays, dtype)
        seconds = np.asarray(self.model.compute_seconds(flops, num_bytes, dtype, op_class.value))
        if self.is_in_other_kernel(graph, buffers, op):
            seconds = np.maximum(seconds - self.model.hardware.compute.kernel_launch_seconds, 0.0)
        if op.op_class is OpClass.MATMUL:
            seconds += self._apart_seconds(graph, buffers, op, candidates, seconds)
        if op.op_class is OpClass.CONVOLUTION:
            return seconds + self._image_seconds(graph, op, candidates)
        return seconds + self._table_seconds(graph, op, candidates)

    def _image_seconds(self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]) -> FloatArray:
        """float64[num_candidates]: seconds in which few images are cut into more, and back."""
        copied = self._images_copied(graph, op, candidates)
        image = graph.values[op.operands[0]]
        bits = multiplied_bits(self.model.hardware.backend, image.dtype, image.bits)
        return np.where(copied > 0, self.copy_seconds(2.0 * copied * bits / 8), 0.0)

    def cuts_images(self, graph: Graph, op: Op, candidate: Candidate) -> bool:
        """Whether a convolution has so few images on a device that each is cut into more."""
        return bool(self._images_copied(graph, op, (candidate,)).any())

    def _images_copied(self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]) -> FloatArray:
        backend = self.model.hardware.backend
        least, lanes = least_images(backend), row_lanes(backend)
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
        launch = self.model.hardware.compute.kernel_launch_seconds
        is_apart = [bool(c.reduced or c.scattered or c.streamed) for c in candidates]
        pieces = np.array([self.parts.num_pieces(c.results[0]) for c in candidates])
        alone = whole / pieces / speed
        if self._passes is None:
            alone -= whole / pieces / self.model.hardware.memory.bytes_per_second
        beside = np.minimum(alone, np.maximum(seconds - launch, 0.0))
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
        layouts = [_written(c, 0) for c in candidates]
        num_bytes = self._in_tiles(graph, op, value, layouts, none, pieces)
        dtype = self._operand_dtype(graph, op)
        written = self.model.compute_seconds(none, num_bytes, dtype, OpClass.ELEMENTWISE.value)
        return np.maximum(seconds, written)

    def _is_shared_in_rows(self, graph: Graph, op: Op) -> bool:
        """Whether several ops read what an op makes in rows."""
        is_in_rows = op.results[0] in self._facts_of(graph).tiles.in_rows
        return is_in_rows and len(graph.consumers[op.results[0]]) > 1

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
        brought, machine = brought_before(graph, buffers, op), self.model.hardware
        brought_share = memory_efficiency(machine, op.op_class.value)
        counted, chip = self._counted(op, buffers), self.on_chip(graph, buffers)
        waits = chip.read_in_loop(graph, op)
        for position, (read, pieces) in enumerate(zip(reads, arrays.operand_shards, strict=True)):
            value = op.operands[position]
            if op.name == "gather" and position == 0:  # as many elements as it makes
                pieces = arrays.result_shards[0]
            local = read / pieces
            is_whole = buffers.is_stored[value] or op.op_class is OpClass.REDUCE
            if read and is_whole and op.name not in ("slice", "dynamic_slice"):
                layouts = [c.operands[position] for c in candidates]
                local = self._in_tiles(graph, op, value, layouts, local, pieces)
            if read and brought[position]:
                whole = graph.values[value].num_bytes / pieces
                local = np.where(whole <= on_chip_bytes(machine), brought_share * local, local)
            if read and waits[position]:
                local = np.where(local <= chip.room, 0.0, local)
            num_bytes += counted[position] * local
        if op.op_class is OpClass.REDUCE and self._passes is not None:
            elements = sum(read.elements for read in buffers.reads[op.index])
            passed = self._reduced_bytes(elements, 1 if elements else 0)
            return np.maximum(num_bytes, passed / arrays.operand_shards[0])
        return num_bytes

    def _counted(self, op: Op, buffers: Buffers) -> tuple[float, ...]:
        """Per operand, as how many bytes one counts that is read, by the elements that pass."""
        if self._passes is None or op.op_class is not OpClass.ELEMENTWISE:
            return (1.0,) * len(op.operands)
        one = self._pass_bytes(self._passes.accessed)
        reads = buffers.reads[op.index]
        return tuple(one * read.elements / max(1, read.num_bytes) for read in reads)

    def _reduced_bytes(self, elements: int, times: int) -> float:
        """As how many bytes elements count that are read once and summed so many times."""
        assert self._passes is not None
        accessed, reduced = self._passes.accessed, self._passes.reduced
        return elements * (self._pass_bytes(accessed) + times * self._pass_bytes(reduced))

    @property
    def _passes(self) -> ElementPasses | None:
        """What the vector unit takes at most; None where memory is always slower."""
        return self.model.hardware.compute.passes

    def _pass_bytes(self, elements_per_second: float) -> float:
        """Bytes that memory takes, read by element-wise ops, while one element passes."""
        return self._elementwise_speed / elements_per_second

    @property
    def _elementwise_speed(self) -> float:
        """Bytes per second that element-wise ops read and write of device memory."""
        machine = self.model.hardware
        share = memory_efficiency(machine, OpClass.ELEMENTWISE.value)
        return share * machine.memory.bytes_per_second

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
        passed = self._pass_bytes(self._passes.accessed) * 8.0 / graph.values[value].bits * local
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

    def chip_places(self, graph: Graph, buffers: Buffers, op: Op) -> tuple[bool, ...]:
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
        known = self._chip
        if known is None or known[0] is not graph or known[1] is not buffers:
            machine = self.model.hardware
            room = on_chip_bytes(machine)
            found = OnChip.of(graph, buffers, room, any_maker=keeps_products_on_chip(machine))
            known = self._chip = (graph, buffers, found)
        return known[2]

    def _in_tiles(
        self,
        graph: Graph,
        op: Op,
        value: int,
        layouts: Sequence[Layout],
        local: FloatArray,
        pieces: FloatArray,
    ) -> FloatArray:
        """float64[num_layouts]: bytes of a value on a device, of narrow rows whole tiles."""
        if op.op_class in (OpClass.GATHER, OpClass.SCATTER, OpClass.SORT):
            return local
        found = self._facts_of(graph).tiles.local_bytes(value, layouts)
        if found is None:
            return local
        is_padded = found > graph.values[value].num_bytes / pieces
        return np.where(is_padded, np.maximum(local, found), local)

    def rows_of(self, graph: Graph, op: Op) -> tuple[object, ...]:
        """What the price of an op depends on by rows and tiles, and no other fact of it tells."""
        tiles = self._facts_of(graph).tiles
        shared = bool(op.results) and self._is_shared_in_rows(graph, op)
        return (shared, *(tiles.kind(value) for value in (*op.operands, *op.results)))

    def is_in_other_kernel(self, graph: Graph, buffers: Buffers, op: Op) -> bool:
        """Whether an op is launched with another: an update of a state with one that needs it.

        Or a sum over what a product writes, which has nothing to read, or a row of a stack with
        one that is computed from the same.
        """
        if op.name == "dynamic_update_slice":
            return op.index in self._joined_updates(graph, buffers)
        if op.index in buffers.updates:
            readers = (graph.ops[i] for value in op.results for i in graph.consumers[value])
            return any(reader.kind is OpKind.COMPUTE for reader in readers)
        is_sum = op.op_class is OpClass.REDUCE and bool(graph.values[op.results[0]].shape)
        return is_sum and not any(read.num_bytes for read in buffers.reads[op.index])

    def _joined_updates(self, graph: Graph, buffers: Buffers) -> frozenset[int]:
        """Of one program at a time."""
        known = self._joined
        if known is None or known[0] is not graph or known[1] is not buffers:
            joins = joins_updates(self.model.hardware.backend)
            found = joined_updates(graph, buffers) if joins else frozenset()
            known = self._joined = (graph, buffers, found)
        return known[2]

    def waiting_seconds(self, graph: Graph, buffers: Buffers, value: int) -> float:
        """Seconds that products of loops wait for slices of a stack that a collective made.

        That is each time it is made. It lies in device memory then, and on the chip if an
        element-wise op made it.
        """
        known = self._sliced
        if known is None or known[0] is not graph or known[1] is not buffers:
            machine = self.model.hardware
            waits = bool(on_chip_bytes(machine)) and not keeps_products_on_chip(machine)
            found = runs_that_slice(graph, buffers) if waits else {}
            known = self._sliced = (graph, buffers, found)
        return known[2].get(value, 0.0) * self.model.hardware.compute.kernel_launch_seconds

    def _table_seconds(self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]) -> FloatArray:
        """float64[num_candidates]: seconds in which a table is copied into padded rows, or back."""
        if not takes_rows(graph, op):
            return np.zeros(len(candidates))
        value, layouts = op.operands[0], [c.operands[0] for c in candidates]
        if op.op_class is OpClass.SCATTER:
            value, layouts = op.results[0], [_written(c, 0) for c in candidates]
        return self.row_copy_seconds(graph, value, layouts)

    def is_in_rows(self, graph: Graph, value: int) -> bool:
        """Whether the last dimension of a value fills the lanes of tiles, however short it is."""
        return value in self._facts_of(graph).tiles.in_rows

    def row_copy_seconds(self, graph: Graph, value: int, layouts: Sequence[Layout]) -> FloatArray:
        """float64[num_layouts]: seconds in which pieces are copied into rows or back, if padded."""
        padded = self._facts_of(graph).tiles.row_bytes(value, layouts)
        if padded is None:
            return np.zeros(len(layouts))
        local = np.array(
            [graph.values[value].num_bytes / self.parts.num_pieces(one) for one in layouts]
        )
        return np.where(padded > local, self.copy_seconds(padded + local), 0.0)

    def _read_bytes(self, graph: Graph, buffers: Buffers, op: Op) -> tuple[float, ...]:
        """Bytes that an op reads through each operand; a product as narrow as it multiplies."""
        reads = tuple(float(read.num_bytes) for read in buffers.reads[op.index])
        if op.op_class not in PRODUCTS or op.is_exact:
            return reads
        backend = self.model.hardware.backend
        values = [graph.values[value] for value in op.operands]
        return tuple(
            read * multiplied_bits(backend, value.dtype, value.bits) / value.bits
            for read, value in zip(reads, values, strict=True)
        )

    def _declared_seconds(
        self, graph: Graph, op: Op, declared: CustomCost, arrays: _CandidateArrays, dtype: str
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

    def reduction_seconds(
        self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]
    ) -> FloatArray:
        """float64[num_candidates]: seconds of the op's reductions for each of its runs.

        Those of convolutions include what neighbours exchange for them.
        """
        is_cut = [candidate.is_cut_later for candidate in candidates]
        if any(is_cut):
            scattered = tuple(replace(one, is_cut_later=False) for one in candidates)
            more = self.whole_sum_seconds(graph, op, scattered)
            return self.reduction_seconds(graph, op, scattered) + np.where(is_cut, more, 0.0)
        seconds = self._halo_seconds(graph, op, candidates)
        total = float(sum(graph.values[v].num_bytes for v in op.results))
        made = graph.values[op.results[0]] if op.results else None
        order = self.made_order(graph, op) if made is not None else ()
        in_body, after_loop = self.sums_in_call(graph, op)
        groups: dict[_SumsKey, list[tuple[int, tuple[int, ...]]]] = {}
        for index, candidate in enumerate(candidates):
            if made is None or candidate.streamed is not None or candidate.is_sum_joined:
                continue
            if candidate.reduced or candidate.scattered:
                sums = self._sums_of(op, candidate, made, order)
                key = candidate.runs_per_sum, tuple((one.kind, one.parts) for one in sums)
                groups.setdefault(key, []).append((index, tuple(one.pieces for one in sums)))
        for (runs, kinds), found in groups.items():
            spent = np.zeros(len(found))
            joined = after_loop if runs > 1 else in_body
            for place, (kind, parts) in enumerate(kinds):
                num_bytes = np.array([total / pieces[place] for _, pieces in found])
                spent += self._sum_seconds(kind, num_bytes, self.axis_parts(parts), joined)
            seconds[[index for index, _ in found]] += spent / runs
        return seconds

    def whole_sum_seconds(
        self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]
    ) -> FloatArray:
        """float64[num_candidates]: what sums that are scattered would take more if taken whole."""
        made, order = graph.values[op.results[0]], self.made_order(graph, op)
        groups: dict[Parts, list[tuple[int, float]]] = {}
        for index, candidate in enumerate(candidates):
            if not candidate.scattered or candidate.streamed is not None:
                continue
            one, *others = self._sums_of(op, candidate, made, order)
            if one.kind == "reduce-scatter" and not others:
                found = groups.setdefault(one.parts, [])
                found.append((index, made.num_bytes / one.pieces))
        more = np.zeros(len(candidates))
        in_body, _ = self.sums_in_call(graph, op)
        for parts, members in groups.items():
            indices = [index for index, _ in members]
            num_bytes = np.array([amount for _, amount in members])
            axes = self.axis_parts(parts)
            whole = self._sum_seconds("all-reduce", num_bytes, axes, in_body)
            scattered = self._sum_seconds("reduce-scatter", num_bytes, axes, in_body)
            more[indices] = np.maximum(whole - scattered, 0.0)
        return more

    def _halo_seconds(self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]) -> FloatArray:
        seconds = np.zeros(len(candidates))
        if op.op_class is not OpClass.CONVOLUTION:
            return seconds
        bits = graph.values[op.operands[0]].bits
        for index, candidate in enumerate(candidates):
            for halo in self.halos(graph, op, candidate):
                num_bytes = np.asarray(halo.num_elements * bits / 8)
                axes = self.axis_parts(halo.parts)
                seconds[index] += float(self.model.permute_seconds(num_bytes, axes))
        return seconds

    def halos(self, graph: Graph, op: Op, candidate: Candidate) -> tuple[Halo, ...]:
        """What neighbours exchange for a convolution that sums over positions of an image."""
        if op.op_class is not OpClass.CONVOLUTION:
            return ()
        image, kernel = graph.values[op.operands[0]], graph.values[op.results[0]]
        return tuple(halos_of(self.parts, op, candidate, image.shape, kernel.shape))

    def sums_of(self, graph: Graph, op: Op, candidate: Candidate) -> tuple[Sum, ...]:
        """The collectives that sum what a candidate leaves partial of an op's (first) result."""
        made = graph.values[op.results[0]]
        return self._sums_of(op, candidate, made, self.made_order(graph, op))

    def _sums_of(
        self, op: Op, candidate: Candidate, made: Value, order: tuple[int, ...]
    ) -> tuple[Sum, ...]:
        return sums_of(
            self.model.hardware,
            self.parts,
            op.op_class,
            candidate,
            made.shape,
            made.bits,
            self._links(candidate.scattered) if candidate.scattered else (),
            order,
            is_in_slice=self._num_slices(candidate.scattered) == 1,
        )

    def made_order(self, graph: Graph, op: Op) -> tuple[int, ...]:
        """Dimensions of an op's (first) result as they are made, major to minor."""
        return made_order(graph, op, graph.consumers[op.results[0]])

    def _facts_of(self, graph: Graph) -> _GraphFacts:
        """Of one program at a time."""
        if self._facts is None or self._facts.graph is not graph:
            backend = self.model.hardware.backend
            late = loop_sums(graph) if sums_after_loops(backend) else ()
            self._facts = _GraphFacts(
                graph,
                LoopBorders.of(graph, backend),
                shared_calls(graph, graph.consumers, late),
                RowTiles.of(graph, self.parts, row_lanes(backend)),
            )
        return self._facts

    def is_windowed(self, op: Op, candidate: Candidate, made: Value) -> bool:
        """Whether the compiler may make a windowed einsum of a product and its scattered sum."""
        if not candidate.scattered or candidate.reduced or op.rule is None:
            return False
        machine = self.model.hardware
        if op.name != "dot_general" or not loops_over_scattered_sums(machine.backend):
            return False
        _, _, summed = local_products(self.parts, op.rule, (candidate,), op.name)
        links = self._links(candidate.scattered)
        return windows_scattered_sum(machine, links, float(summed[0]), made.bits)

    def _links(self, parts: Parts) -> tuple[int, ...]:
        """Devices of a group along each physical dimension that it spans."""
        if parts not in self._group_sizes:
            self._group_sizes[parts] = self.model.group_sizes(self.axis_parts(parts))
        return self._group_sizes[parts]

    def _sum_seconds(
        self, kind: str, num_bytes: FloatArray, axes: tuple[AxisPart, ...], joined: int
    ) -> FloatArray:
        """Seconds of sums; all-reduces that share a call share the time in which it starts."""
        if kind == "reduce-scatter":
            return np.asarray(self.model.reduce_scatter_seconds(num_bytes, axes))
        alone = np.asarray(self.model.all_reduce_seconds(num_bytes, axes))
        return alone - (1 - 1 / joined) * self.model.all_reduce_seconds(0.0, axes)

    def _arrays(self, candidates: tuple[Candidate, ...]) -> _CandidateArrays:
        found = self._shards.get(id(candidates))
        if found is None or found[0] is not candidates:
            found = (candidates, _candidate_arrays(self.parts, candidates))
            self._shards[id(candidates)] = found
        return found[1]


@dataclass(frozen=True, slots=True, eq=False)
class _GraphFacts:
    """What of a program costs depend on beside the op priced.

    Args:
        graph: The program.
        borders: What is done before loops.
        calls: Which sums share a call.
        tiles: In what tiles values lie.
    """

    graph: Graph
    borders: LoopBorders
    calls: SharedCalls
    tiles: RowTiles


@dataclass(frozen=True, slots=True, eq=False)
class _CandidateArrays:
    cut: FloatArray
    operand_shards: tuple[FloatArray, ...]
    result_shards: tuple[FloatArray, ...]


def _candidate_arrays(parts: MeshParts, candidates: tuple[Candidate, ...]) -> _CandidateArrays:
    def shards(layouts: Sequence[Layout]) -> FloatArray:
        return np.array(
            [prod(parts.sizes[p] for dim in layout for p in dim) for layout in layouts],
            dtype=np.float64,
        )

    first = candidates[0]
    return _CandidateArrays(
        np.array([c.cut for c in candidates], dtype=np.float64),
        tuple(shards([c.operands[i] for c in candidates]) for i in range(len(first.operands))),
        tuple(shards([_written(c, i) for c in candidates]) for i in range(len(first.results))),
    )


def _written(candidate: Candidate, position: int) -> Layout:
    """Layout of a result as the op itself writes it: partial sums, before any is scattered."""
    is_partial = position == 0 and candidate.scattered
    return candidate.partial if is_partial else candidate.results[position]
