"""The door to `cost_models`: seconds of candidates and of reshard steps.

The planner speaks of mesh parts and layouts, cost models of axes and bytes; this file and the two
that it builds on, of moves and of work, translate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.candidates.streamed import StreamMessage, messages_of, panel_elements
from autoshard.costing.candidate_arrays import CandidateArrays
from autoshard.costing.halos import Halo, halos_of
from autoshard.costing.local_products import local_products
from autoshard.costing.model_dtype import model_dtype
from autoshard.costing.narrowed_to_send import NarrowedToSend, narrowed_to_send
from autoshard.costing.sums import Sum, sums_of
from autoshard.costing.work_costs import WorkCosts
from autoshard.graph.buffers import Buffers
from autoshard.graph.program import Graph, Op, OpClass, OpKind, Value
from autoshard.layouts import Layout, MeshParts, Parts
from cost_models import AlphaBetaModel, AxisPart, Hardware

if TYPE_CHECKING:
    from cost_models import CostModel

FloatArray = npt.NDArray[np.float64]
_SumsKey = tuple[float, tuple[tuple[str, Parts], ...]]  # runs that a sum serves; kinds and parts


def cost_model_for(hardware: Hardware, parts: MeshParts) -> CostModel:
    """The standard cost model of a machine under a mesh."""
    return AlphaBetaModel(hardware, [(axis.name, axis.size) for axis in parts.mesh.axes])


@dataclass(slots=True)
class Costing(WorkCosts):
    """Seconds of everything a plan may do on one machine.

    Args as of `MoveCosts`.
    """

    def narrowed_to_send(
        self, graph: Graph, buffers: Buffers, value: int, bits: int
    ) -> NarrowedToSend | None:
        """What of a value is narrowed only to be sent, with so many bits of an element.

        None too for what is narrowed before a loop anyway, and where no op narrows before it sends.
        """
        if not self.backend.collectives.convert_motion:
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

    def candidate_seconds(
        self, graph: Graph, buffers: Buffers, op: Op, candidates: tuple[Candidate, ...]
    ) -> FloatArray:
        """float64[num_candidates]: seconds one run of the op takes, its reductions included."""
        arrays = self._arrays(candidates)
        if op.kind is not OpKind.COMPUTE:
            spent = self._border_seconds(graph, op, arrays)
            spent += self.waiting_as_stacked_seconds(graph, buffers, op)
            if op.kind is OpKind.ARGUMENT and op.index not in graph.donated:
                spent += self._arrival_seconds(graph, op, arrays)
            return spent
        spent = self.reduction_seconds(graph, op, candidates)
        if op.collective is not None:
            return spent + self.written_seconds(graph, op, candidates)
        spent += self._work_seconds(graph, buffers, op, candidates)
        spent += self.slicing_seconds(graph, buffers, op, candidates)
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
        on its way is hidden behind the product of another is in `encoding.hidden_communication`.
        """
        flops = self._padded_flops(op, (candidate,))[0]
        return self._steps_seconds(graph, op, candidate, flops)

    def _steps_seconds(
        self, graph: Graph, op: Op, candidate: Candidate, flops: float
    ) -> tuple[float, float]:
        """The same, where the floating-point operations of a device are known."""
        assert op.rule is not None
        assert candidate.streamed is not None
        steps = candidate.streamed.num_steps
        panels = panel_elements(self.parts, op.rule, candidate)
        num_bytes = sum(
            elements * self.step_bits(graph, op, place) / 8
            for place, elements in enumerate(panels, start=1)
        )
        num_bytes += 2.0 * self.step_sums_bytes(graph, op, candidate)
        one = self.model.compute_seconds(
            np.array([flops / steps]),
            np.asarray(num_bytes),
            self._operand_dtype(graph, op),
            op.op_class.value,
        )
        sent = sum(
            self.message_seconds(found, self.step_bits(graph, op, found.place))
            * found.message.count
            for found in messages_of(self.parts, op.rule, candidate)
        )
        return float(one[0]) * steps, sent

    def passing_seconds(self, graph: Graph, op: Op, candidate: Candidate) -> float:
        """Seconds in which the pieces of one step of a product are passed on; 0 for panels."""
        if candidate.streamed is None or op.rule is None:
            return 0.0
        return sum(
            self.message_seconds(found, self.step_bits(graph, op, found.place))
            for found in messages_of(self.parts, op.rule, candidate)
            if found.is_shift
        )

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
        num_bytes = np.asarray(found.num_elements(self.parts) * bits / 8)
        axes = self.axis_parts(found.parts)
        if found.is_shift:
            if not found.both_ways:
                return float(self.model.shift_seconds(num_bytes, axes))
            return float(self.model.shift_seconds(2.0 * num_bytes, axes, both_ways=True)) / 2
        return float(self.collective_seconds(found.message.kind, axes, num_bytes))

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

    def written_seconds(
        self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]
    ) -> FloatArray:
        """float64[num_candidates]: seconds one run of a collective that the user wrote takes."""
        if op.collective is None:
            return np.zeros(len(candidates))
        num_bytes = np.array([self.written_bytes(graph, op, c) for c in candidates], dtype=float)
        refs, _ = self.written_axes(op.collective)
        axes = tuple(AxisPart(ref.name, ref.pre_size, ref.size_on(self.parts.mesh)) for ref in refs)
        return self.collective_seconds(op.collective.kind, axes, num_bytes)

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

    def _arrival_seconds(self, graph: Graph, op: Op, arrays: CandidateArrays) -> FloatArray:
        """Seconds to put an argument that is new in every step (a batch) into device memory.

        Small, but without it nothing would speak against giving every device the whole batch.
        """
        num_bytes = graph.values[op.results[0]].num_bytes / arrays.result_shards[0]
        return np.asarray(num_bytes / self.model.hardware.memory.bytes_per_second)

    def _border_seconds(self, graph: Graph, op: Op, arrays: CandidateArrays) -> FloatArray:
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
            self.backend,
            self.parts,
            op.op_class,
            candidate,
            made.shape,
            made.bits,
            self._links(candidate.scattered) if candidate.scattered else (),
            order,
            is_in_slice=self.num_slices(candidate.scattered) == 1,
        )

    def is_windowed(self, op: Op, candidate: Candidate, made: Value) -> bool:
        """Whether the compiler may make a windowed einsum of a product and its scattered sum."""
        if not candidate.scattered or candidate.reduced or op.rule is None:
            return False
        collectives = self.backend.collectives
        if op.name != "dot_general" or not collectives.windows_reduce_scatters:
            return False
        _, _, summed = local_products(self.parts, op.rule, (candidate,), op.name)
        links = self._links(candidate.scattered)
        return collectives.windows(links, float(summed[0]), made.bits)
