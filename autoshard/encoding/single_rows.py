"""Products of loops that are cut until a device has one row of them: computed as none then."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from autoshard.backends import FusionPolicy
from autoshard.candidates.candidate import Candidate
from autoshard.costing.local_products import local_products
from autoshard.graph.program import Graph, Op
from autoshard.identity_cache import IdentityCache
from autoshard.layouts import MeshParts


@dataclass(frozen=True, slots=True)
class SingleRows:
    """Leaves out ways to cut a product of a loop that leave a device one row, column or term.

    A TPU computes these element by element, of operands that nothing narrows: weights that are
    gathered for all runs travel and lie as wide as they are. Where there is room for them one
    sequence a device is still better than what moves instead, so they are left out only where
    memory is scarce.

    Args:
        is_scarce: Whether memory is.
    """

    graph: Graph
    parts: MeshParts
    fusion: FusionPolicy
    is_scarce: bool
    _known: IdentityCache[tuple[Candidate, ...]] = field(default_factory=IdentityCache)

    def offered(self, op: Op, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """The candidates of an op that stay products; all, where none does or it is none."""
        is_product = op.name == "dot_general" and op.rule is not None and len(op.operands) == 2
        if not (self.is_scarce and self.fusion.strength_reduces_dots):
            return candidates
        if not is_product or not self.graph.is_in_loop(op.region):
            return candidates
        return self._known.get(lambda: self._products(op, candidates), candidates)

    def _products(self, op: Op, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        assert op.rule is not None
        least = np.min(local_products(self.parts, op.rule, candidates), axis=0)
        kept = tuple(c for c, size in zip(candidates, least, strict=True) if size > 1)
        return kept if 0 < len(kept) < len(candidates) else candidates
