"""Facts of a whole program that costs of single ops and reads depend on; each is found once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoshard.candidates.candidate import Candidate
from autoshard.costing.all_reduce_combiner import CombinedSums, combined_sums
from autoshard.costing.candidate_arrays import written_layouts
from autoshard.costing.convert_motion import ReadBits, copies_for_loops
from autoshard.costing.costing import Costing, FloatArray
from autoshard.costing.sliced_stacks import SlicedStacks
from autoshard.costing.tile_padding import TilePadding
from autoshard.costing.vmem import Vmem
from autoshard.graph.buffers import Buffers
from autoshard.graph.donated_results import DonatedResults, donated_results
from autoshard.graph.op_traits import renames
from autoshard.graph.partial_sums import loop_sums
from autoshard.graph.program import Graph, Op, OpKind
from autoshard.graph.row_lookups import RowUpdate, looked_up_tables, row_updates
from autoshard.graph.stand_ins import stand_ins
from autoshard.layouts import Layout


@dataclass(eq=False)
class ProgramFacts:
    """A program on a machine.

    Args:
        alike: Arguments and the results that replace them, by position.
    """

    graph: Graph
    buffers: Buffers
    costing: Costing
    alike: Sequence[tuple[int, int]] = ()

    @cached_property
    def stand_ins(self) -> Sequence[int]:
        """By op, the one whose prices it has, where equal layers share them; see `stand_ins`.

        None stands for one whose sum shares its call with more or fewer others, that reads more or
        less through what is fused (of all layers before it, it may be), or whose reads and results
        are stored or in VMEM where its own are not.
        """
        calls, vmem = self.calls, self.vmem
        kept = (self.buffers.is_stored, vmem.short_lived, vmem.stays)
        where = np.array(kept, np.int64).T @ (1, 2, 4)
        numbers: dict[Hashable, int] = {}
        told = [
            numbers.setdefault((calls.in_body.get(index, 1), reads), len(numbers))
            for index, reads in enumerate(self.buffers.reads)
        ]
        return stand_ins(self.graph, np.array(told), where)

    @cached_property
    def read_bits(self) -> ReadBits:
        """The width of elements that are sent to each reader."""
        return ReadBits.of(self.graph, self.costing.backend)

    @cached_property
    def written_bits(self) -> Mapping[int, int]:
        """By value, bits of an element as written, of what is read in narrower ones alone."""
        return self.read_bits.written(self.buffers.product_by_written)

    def read_share(self, value: int) -> float:
        """Bits of an element of what is read for a value, as it lies there, over those it has.

        A view reads what it is a view of, and a loop the copy that is made for it.
        """
        graph, stored = self.graph, self.buffers.is_stored
        while True:
            maker, own = graph.maker(value), graph.values[value].bits
            is_join = maker.kind is OpKind.JOIN and len(maker.operands) == 1
            if is_join and self.read_bits.to(maker, 0) < own:
                return self.read_bits.to(maker, 0) / own
            if not is_join and (stored[value] or not renames(maker)):
                break
            value = maker.operands[0]
        return self.written_bits.get(value, own) / own if stored[value] and own else 1.0

    @cached_property
    def donated_results(self) -> DonatedResults:
        """Values that end in the buffers of donated arguments."""
        return donated_results(self.graph, self.buffers, self.alike)

    @cached_property
    def tiles(self) -> TilePadding:
        """The tiles that values lie in."""
        tiling, is_stored = self.costing.backend.layout, self.buffers.is_stored
        return TilePadding.of(self.graph, self.costing.parts, tiling, is_stored)

    @cached_property
    def run_with(self) -> Mapping[int, Sequence[int]]:
        """By op, those that run in its kernel, unless devices have to sum what it makes."""
        found: dict[int, list[int]] = {}
        for index, kernel in self.buffers.joined.items():
            found.setdefault(kernel, []).append(index)
        return found

    @cached_property
    def tables(self) -> Mapping[int, int]:
        """The first look-up of rows in each argument."""
        return looked_up_tables(self.graph)

    @cached_property
    def row_updates(self) -> tuple[RowUpdate, ...]:
        """Updates that compute in padded rows."""
        return (
            tuple(row_updates(self.graph, self.buffers.updates))
            if self.tiles.tiling.is_tiled
            else ()
        )

    @cached_property
    def calls(self) -> CombinedSums:
        """Sums that share a call."""
        moves = self.costing.backend.collectives.loop_all_reduce_motion
        return combined_sums(self.graph, loop_sums(self.graph) if moves else ())

    @cached_property
    def vmem(self) -> Vmem:
        """Temporaries in VMEM."""
        memory = self.costing.backend.memory
        any_maker, num_devices = memory.matmul_results_in_vmem, self.costing.parts.mesh.num_devices
        return Vmem.of(
            self.graph,
            self.buffers,
            memory.vmem_bytes,
            num_devices,
            self.written_bits,
            any_maker=any_maker,
        )

    @cached_property
    def converted_for_loops(self) -> Mapping[int, int]:
        """By op of an argument that is converted before a loop, bytes read and written."""
        values, found = self.graph.values, {}
        for copy in copies_for_loops(self.graph, self.costing.backend):
            value = values[copy.value]
            if self.graph.maker(copy.value).kind is OpKind.ARGUMENT:
                found[value.op] = value.num_bytes * (value.bits + copy.bits) // value.bits
        return found

    @cached_property
    def stacks(self) -> SlicedStacks:
        """Stacks that loops slice; none where there is no VMEM to wait for."""
        has_vmem = self.costing.backend.memory.vmem_bytes > 0
        return SlicedStacks.of(self.graph, self.buffers) if has_vmem else SlicedStacks()

    @cached_property
    def optimizer_outputs(self) -> tuple[int, ...]:
        """Values that updates write; none where VMEM makes no difference to what these take."""
        if self.costing.passes is None:
            return ()
        made = dict.fromkeys(op.operands[0] for op in self.graph.results)
        return tuple(v for v in made if self.graph.values[v].op in self.buffers.updates)

    @cached_property
    def always_spills(self) -> bool:
        """True where optimizer outputs exceed VMEM however they are cut: they are in HBM then."""
        whole = sum(self.graph.values[value].num_bytes for value in self.optimizer_outputs)
        return whole / self.costing.parts.mesh.num_devices > self.vmem.capacity

    def row_copy_seconds(
        self, value: int, layouts: Sequence[Layout], num_held: int = 1
    ) -> FloatArray:
        """float64[num_layouts]: seconds in which pieces are copied into rows or back, if padded.

        Args:
            value: That is copied.
            layouts: Of it.
            num_held: Tensors in rows at once; they lie in VMEM where all fit.
        """
        padded = self.tiles.row_bytes(value, layouts)
        if padded is None:
            return np.zeros(len(layouts))
        found, parts = self.graph.values[value], self.costing.parts
        local = np.array([found.num_bytes / parts.num_pieces(layout) for layout in layouts])
        held = (num_held * padded <= self.vmem.capacity) & self.vmem.holds_copies
        seconds = self.costing.row_copy_seconds(padded + local, found.bits, held)
        return np.where(padded > local, seconds, 0.0)

    def output_seconds(self, op: Op, candidates: tuple[Candidate, ...]) -> FloatArray:
        """float64[num_candidates]: in which an update writes what it makes to HBM."""
        local, parts = np.zeros(len(candidates)), self.costing.parts
        for place, value in enumerate(op.results):
            if self.buffers.is_stored[value] and self.buffers.owner[value] == value:
                pieces = [parts.num_pieces(one) for one in written_layouts(candidates, place)]
                local += self.graph.values[value].num_bytes / np.array(pieces)
        return local / self.costing.elementwise_speed
