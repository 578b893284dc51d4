"""Data placement and computation schedules as small languages, without JAX.

Where a tensor lives is a distribution, `T xy -> xy0 M`; what is computed is a statement in index
notation, `A(i,j) += B(i,k) * C(k,j)`; how is a schedule, a loop nest reshaped by `distribute`,
`divide`, `split`, `reorder`, `communicate` and `rotate`. The known distributed matrix products are
points in these languages.
"""

from __future__ import annotations

from autoshard.loops.cosma_strategy import CosmaStrategy, Split, cosma_strategy
from autoshard.loops.distribution import (
    BROADCAST,
    Broadcast,
    Distribution,
    Fixed,
    Named,
    spread_faces,
)
from autoshard.loops.distribution_drawing import draw_maps, draw_maps_svg
from autoshard.loops.distribution_sharding import (
    distribution_to_sharding,
    sharding_to_distribution,
)
from autoshard.loops.distribution_text import format_distribution, parse_distribution
from autoshard.loops.holdings import (
    check_distribution,
    colours_to_processors,
    holdings,
    points_to_colours,
    verify_distribution,
)
from autoshard.loops.library import (
    all_gather_matmul,
    cannon,
    cosma,
    johnson,
    matmul_reduce_scatter,
    pumma,
    solomonik,
    summa,
)
from autoshard.loops.messages import Message, messages
from autoshard.loops.placed import Placed, placed
from autoshard.loops.printing import format_foralls, format_pseudo_code
from autoshard.loops.schedule import Loop, Schedule, schedule
from autoshard.loops.simulate import Simulated, simulate
from autoshard.loops.statement import (
    Access,
    Statement,
    dot_general_statement,
    parse_statement,
)
from autoshard.loops.step_drawing import draw_steps
from autoshard.loops.streaming import pass_round, stream
from autoshard.loops.unroll import Unrolled, unroll

__all__ = [
    "BROADCAST",
    "Access",
    "Broadcast",
    "CosmaStrategy",
    "Distribution",
    "Fixed",
    "Loop",
    "Message",
    "Named",
    "Placed",
    "Schedule",
    "Simulated",
    "Split",
    "Statement",
    "Unrolled",
    "all_gather_matmul",
    "cannon",
    "check_distribution",
    "colours_to_processors",
    "cosma",
    "cosma_strategy",
    "distribution_to_sharding",
    "dot_general_statement",
    "draw_maps",
    "draw_maps_svg",
    "draw_steps",
    "format_distribution",
    "format_foralls",
    "format_pseudo_code",
    "holdings",
    "johnson",
    "matmul_reduce_scatter",
    "messages",
    "parse_distribution",
    "parse_statement",
    "pass_round",
    "placed",
    "points_to_colours",
    "pumma",
    "schedule",
    "sharding_to_distribution",
    "simulate",
    "solomonik",
    "spread_faces",
    "stream",
    "summa",
    "unroll",
    "verify_distribution",
]
