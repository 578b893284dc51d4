"""What tensors take on a machine: temporaries of its backend, and what is too little to count."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import permutations

from autoshard.backends import Backend
from autoshard.costing.all_reduce_combiner import CombinedSums
from autoshard.costing.costing import Costing
from autoshard.costing.program_facts import ProgramFacts
from autoshard.costing.tile_padding import TilePadding
from autoshard.costing.tiles import tiled_in
from autoshard.costing.vmem import Vmem
from autoshard.encoding.padded_indices import PaddedIndices
from autoshard.encoding.padded_rows import scattered_at_any_time
from autoshard.graph.buffers import Buffers
from autoshard.graph.images import image_channels
from autoshard.graph.program import Graph, Op, Value
from autoshard.graph.row_lookups import row_values
from autoshard.graph.stacks import written_stacks
from autoshard.layouts import Layout

NEGLIGIBLE_SHARE = 1e-4  # buffers below this share of the budget are not worth a memory term
NEGLIGIBLE_SHARE_HELD = 1e-2  # nor below this one of the arguments, all of them cut evenly


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """How tensors lie in the memory of a device.

    Args:
        reused: Values that are made in the buffer of a donated argument.
        beside: Values that a loop makes while it reads the donated argument whose buffer they are
            copied to in the end.
        results: Ops of results by the buffers that they have for themselves throughout, where
            temporaries take none of their memory.
        repeated: Ops of results whose value another result has a buffer with.
        vmem: What is in VMEM.
        indices: Of rows, where they come from other slices.
        negligible_bytes: What less than that is held of a whole value is not counted.
        calls: Sums that are taken in one call.
        tiles: That values lie in.
        is_scarce: Whether memory is: then gaps count as they may be.
        channels: By value in the layout of images, the dimension of its channels.
        rows: Values that lie row by row.
        stacks: Values that lie slice by slice.
        tables: As of `looked_up_tables`, where rows lie in lanes.
        written_bits: By value, bits of an element as written, where they are fewer.
        at_any_time: A scatter that the compiler may run at any time, as far as is known, if there
            is one and memory is scarce.
    """

    graph: Graph
    buffers: Buffers
    costing: Costing
    reused: frozenset[int]
    beside: frozenset[int]
    results: Mapping[int, Op]
    repeated: frozenset[int]
    vmem: Vmem
    indices: PaddedIndices
    negligible_bytes: float
    calls: CombinedSums
    tiles: TilePadding
    is_scarce: bool = False
    at_any_time: int | None = None
    channels: Mapping[int, int] = field(default_factory=dict)
    rows: frozenset[int] = frozenset()
    stacks: frozenset[int] = frozenset()
    tables: Mapping[int, int] = field(default_factory=dict)
    written_bits: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        facts: ProgramFacts,
        memory_limit: int | None,
        *,
        is_scarce: bool = False,
    ) -> DeviceRoom:
        """For a program on a mesh, within a limit in bytes or none."""
        graph, buffers, costing = facts.graph, facts.buffers, facts.costing
        vmem = facts.vmem
        is_tiled = costing.backend.layout.is_tiled
        channels = image_channels(graph) if is_tiled else {}
        reused, beside = facts.donated_results
        results, repeated = _result_buffers(graph, buffers, reused | beside)
        return cls(
            graph,
            buffers,
            costing,
            reused,
            beside,
            results if costing.backend.memory.results_apart else {},
            repeated,
            _for_certain(vmem) if is_scarce else vmem,
            PaddedIndices.of(graph, costing),
            _negligible_bytes(graph, costing.parts.mesh.num_devices, memory_limit),
            facts.calls,
            facts.tiles,
            is_scarce,
            scattered_at_any_time(graph, buffers)
            if is_scarce and costing.backend.memory.allocates_in_schedule_order
            else None,
            channels,
            row_values(graph, buffers.updates) if is_tiled else frozenset(),
            written_stacks(graph) if is_tiled else frozenset(),
            facts.tables if is_tiled else {},
            facts.written_bits,
        )

    @property
    def backend(self) -> Backend:
        """The compiler model."""
        return self.costing.backend

    @property
    def overhead(self) -> float:
        """What temporaries take on this backend, over their own bytes."""
        return self.backend.memory.fragmentation(is_tight=self.is_scarce)

    def held_bytes(self, value: Value, layout: Layout, bits: int | None = None) -> int:
        """Bytes that a device holds of a value; in whole tiles, where the backend has them.

        Args:
            value: The whole.
            layout: How it is cut.
            bits: Of an element, where they are not as many as the value's own.
        """
        parts = self.costing.parts
        if self.backend.layout.is_tiled:
            orders = self._orders(value, layout)
            return tiled_in(parts, self.backend.layout, value, layout, bits, orders)
        num_bytes = value.num_bytes
        if bits is not None and bits != value.bits:
            num_bytes = num_bytes * bits // value.bits
        return num_bytes // parts.num_pieces(layout)

    def _orders(self, value: Value, layout: Layout) -> tuple[tuple[int, int], ...] | None:
        """Dimensions that tiles of a value may lie along, where these are not any two.

        Those of images are the batch and the channels, unless the batch is so small that rows of
        pixels are moved into it. Rows of which a device holds one element each lie in any order.
        Slices of a stack that a loop writes lie one after the other, each as it would by itself;
        so do the matrices of a batched matmul.

        Source: of stacks, layouts that libtpu 0.0.52 gives for a v5e and a v5p to what the gradient
            of a loop keeps of 128 to 1,024 runs: slices of one to four dimensions of 2 to 512. Of
            matrices, scores of attention over 49 and 197 tokens.
        """
        if value.index in self.rows and len(value.shape) > 1:
            is_row = self.costing.parts.local_shape(layout, value.shape)[-1] > 1
            return ((len(value.shape) - 2, len(value.shape) - 1),) if is_row else None
        if value.index in self.channels:
            batch = self.costing.parts.local_shape(layout, value.shape)[0]
            channels = self.channels[value.index]
            is_kept = batch >= self.backend.layout.min_conv_batch
            return ((0, channels), (channels, 0)) if is_kept else None
        if value.index in self.stacks and len(value.shape) > 1:
            return tuple(permutations(range(1, len(value.shape)), 2)) or ((0, 1),)
        order = self.tiles.shared_order(value.index, layout)
        if order is None and value.index in self.tiles.lanes:
            free = self.tiles.lanes[value.index]
            rows = free if len(free) > 1 else range(len(value.shape))
            return tuple((row, lane) for lane in free for row in rows if row != lane)
        return None if order is None else (order,)

    def local_bytes(self, value: Value, layout: Layout, bits: int | None = None) -> int:
        """Bytes that a device holds of a value that is a temporary; as of `held_bytes`."""
        return int(self.held_bytes(value, layout, bits) * self.overhead)

    def earliest(self, op: int, time: int) -> int:
        """From when on what an op takes counts, which runs at some time in program order.

        What one takes that may run at any time lies beside all that is held: no gap may take it.
        """
        return 0 if op == self.at_any_time else time


def _for_certain(vmem: Vmem) -> Vmem:
    """Without what waits there for the runs of a loop: what is read after the loop stays outside.

    So do copies in the order that products of the loop want.
    """
    return replace(vmem, loop_reads=frozenset())


def _negligible_bytes(graph: Graph, num_devices: int, memory_limit: int | None) -> float:
    arguments = sum(graph.values[op.results[0]].num_bytes for op in graph.arguments)
    held = arguments / num_devices
    if memory_limit is None:
        return held * NEGLIGIBLE_SHARE
    return min(memory_limit * NEGLIGIBLE_SHARE, held * NEGLIGIBLE_SHARE_HELD)


def _result_buffers(
    graph: Graph, buffers: Buffers, donated: Set[int]
) -> tuple[Mapping[int, Op], frozenset[int]]:
    """Ops of results by their buffers, those of arguments left out; ops of further results in them.

    Args:
        graph: The program.
        buffers: Of its values.
        donated: Buffers that become those of donated arguments.
    """
    arguments = {op.results[0] for op in graph.arguments}
    first: dict[int, Op] = {}
    repeated = set()
    for op in graph.results:
        owner = buffers.owner[op.operands[0]]
        if owner not in arguments and buffers.is_stored[owner]:
            if owner in first:
                repeated.add(op.index)
            first.setdefault(owner, op)
    own = {owner: op for owner, op in first.items() if owner not in donated | graph.on_host}
    return own, frozenset(repeated)
