"""Seconds of copies of tables, gradients and states into padded rows, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import ClassVar

import numpy as np

from autoshard.costing.candidate_arrays import written_layouts
from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import Op, OpClass
from autoshard.graph.row_lookups import takes_rows


class RowCopies:
    """Relayouts between the tiles that pad least and those of which each row fills its lanes.

    A look-up copies its table into rows. A scatter's result is copied back, unless the update it is
    for computes in rows: that copies the states there, looked up ones apart, and new states back.
    """

    is_sent: ClassVar[bool] = False

    def __init__(self, facts: ProgramFacts) -> None:
        self.facts = facts
        self.num_copies = Counter(
            op.index
            for op in facts.graph.ops
            if facts.tiles.tiling.is_tiled
            and op.op_class in (OpClass.GATHER, OpClass.SCATTER)
            and takes_rows(facts.graph, op)
        )
        self.num_held: dict[int, int] = {}
        for update in facts.row_updates:
            states = [state for state in update.states if state not in facts.tables]
            self.num_copies[update.scatter] = 0
            last = max(update.ops)
            self.num_copies[last] = len(states) + len(update.made)
            self.num_held[last] = 1 + len(update.states)

    def key(self, op: Op) -> Hashable | None:
        if op.index not in self.num_copies:
            return None
        return self.num_copies[op.index], self.num_held.get(op.index)

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run."""
        value, layouts = op.results[0], written_layouts(candidates)
        if op.op_class is OpClass.GATHER:
            value, layouts = op.operands[0], [c.operands[0] for c in candidates]
        num_held = self.num_held.get(op.index)
        one = self.facts.row_copy_seconds(value, layouts, num_held or 1)
        seconds = self.num_copies[op.index] * one
        return seconds if num_held else np.asarray(seconds + self._reshape_seconds(op, candidates))

    def _reshape_seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of rows by several indices, which take and add one dimension.

        Unless whole tiles hold the rows of the last of these, a reshape is a copy.
        """
        value, layouts = op.results[0], written_layouts(candidates)
        if op.op_class is OpClass.SCATTER:
            value, layouts = op.operands[-1], [c.operands[-1] for c in candidates]
        costing, tiles = self.facts.costing, self.facts.tiles
        shape, sublanes = self.facts.graph.values[value].shape, tiles.tiling.num_sublanes
        local = [costing.parts.local_shape(layout, shape) for layout in layouts]
        split = [len(dims) > 2 and _is_split(dims[-2], sublanes) for dims in local]
        rows = tiles.bytes_by_row(value, layouts)
        padding = np.array([-(-dims[-2] // sublanes) * sublanes / dims[-2] for dims in local])
        both = 2.0 if op.op_class is OpClass.SCATTER else 1.0 + padding
        return np.where(split, costing.copy_seconds(both * rows), 0.0)


def _is_split(num_rows: int, sublanes: int) -> bool:
    """True where so many rows do not fill whole tiles; there are tiles of 1, 2 and 4."""
    return bool(num_rows % sublanes) and (num_rows > sublanes or bool(num_rows & (num_rows - 1)))
