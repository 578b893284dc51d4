"""What of a whole program the costs of an op depend on."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.backends import Backend
from autoshard.costing.joined_updates import LoopKernels
from autoshard.costing.loop_borders import LoopBorders
from autoshard.costing.narrow_rows import RowTiles
from autoshard.costing.on_chip import OnChip
from autoshard.costing.shared_calls import SharedCalls
from autoshard.costing.sliced_stacks import SlicedStacks
from autoshard.graph.buffers import Buffers
from autoshard.graph.program import Graph


@dataclass(frozen=True, slots=True, eq=False)
class GraphFacts:
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
class StorageFacts:
    """What costs depend on by the storage of a program.

    Args:
        graph: The program.
        buffers: Its storage.
        chip: Which temporaries lie on the chip.
        loops: What the kernels of loops write.
        stacks: How often loops read slices of stacks.
    """

    graph: Graph
    buffers: Buffers
    chip: OnChip
    loops: LoopKernels
    stacks: SlicedStacks

    @classmethod
    def of(cls, graph: Graph, buffers: Buffers, backend: Backend) -> StorageFacts:
        """Of a program; only what makes a difference to the compiler is looked for."""
        room, joins = backend.memory.vmem_bytes, backend.fusion.fuses_stack_updates
        return cls(
            graph,
            buffers,
            OnChip.of(graph, buffers, room, any_maker=backend.memory.matmul_results_in_vmem),
            LoopKernels.of(graph, buffers) if joins else LoopKernels(),
            SlicedStacks.of(graph, buffers) if room > 0 else SlicedStacks(),
        )
