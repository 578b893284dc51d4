"""All terms that the cost of an op is the sum of."""

from __future__ import annotations

from autoshard.costing.arrivals import Arrivals
from autoshard.costing.chunk_messages import ChunkMessages
from autoshard.costing.cost_term import OpTermKind
from autoshard.costing.image_copies import ImageCopies
from autoshard.costing.kernel_time import KernelTime
from autoshard.costing.look_ups import LookUps
from autoshard.costing.loop_borders import LoopBorders
from autoshard.costing.piece_sums import PieceSums
from autoshard.costing.reductions import Reductions
from autoshard.costing.row_copies import RowCopies
from autoshard.costing.stack_slices import StackSlices
from autoshard.costing.turned_copies import TurnedCopies
from autoshard.costing.written_collectives import WrittenCollectives

OP_TERMS: tuple[OpTermKind, ...] = (
    KernelTime,
    LookUps,
    RowCopies,
    ImageCopies,
    TurnedCopies,
    PieceSums,
    StackSlices,
    LoopBorders,
    Arrivals,
    Reductions,
    ChunkMessages,
    WrittenCollectives,
)
