"""How many pieces candidates cut operands and results into, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.layouts import Layout, MeshParts

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class CandidateArrays:
    """Pieces by candidate: float64[num_candidates] each.

    Args:
        cut: That the op's work is cut into.
        operand_shards: That each operand is cut into, as the op reads it.
        result_shards: That each result is cut into, as the op writes it.
    """

    cut: FloatArray
    operand_shards: tuple[FloatArray, ...]
    result_shards: tuple[FloatArray, ...]


def candidate_arrays(parts: MeshParts, candidates: tuple[Candidate, ...]) -> CandidateArrays:
    """Those of all candidates of an op."""

    def shards(layouts: Sequence[Layout]) -> FloatArray:
        return np.array(
            [prod(parts.sizes[p] for dim in layout for p in dim) for layout in layouts],
            dtype=np.float64,
        )

    first = candidates[0]
    return CandidateArrays(
        np.array([c.cut for c in candidates], dtype=np.float64),
        tuple(shards([c.operands[i] for c in candidates]) for i in range(len(first.operands))),
        tuple(shards(written_layouts(candidates, i)) for i in range(len(first.results))),
    )


def written_layouts(candidates: Sequence[Candidate], position: int = 0) -> list[Layout]:
    """By candidate, the layout of a result as the op itself writes it.

    Of the first one that is partial sums, before any are scattered.
    """
    return [c.partial if position == 0 and c.scattered else c.results[position] for c in candidates]
