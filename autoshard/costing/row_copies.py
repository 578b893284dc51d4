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
            if op.op_class in (OpClass.GATHER, OpClass.SCATTER) and takes_rows(facts.graph, op)
        )
        for update in facts.row_updates:
            states = [state for state in update.states if state not in facts.tables]
            del self.num_copies[update.scatter]
            self.num_copies[max(update.ops)] = len(states) + len(update.made)

    def key(self, op: Op) -> Hashable | None:
        return self.num_copies.get(op.index)

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run."""
        value, layouts = op.results[0], written_layouts(candidates)
        if op.op_class is OpClass.GATHER:
            value, layouts = op.operands[0], [c.operands[0] for c in candidates]
        is_state = op.op_class is OpClass.ELEMENTWISE
        one = self.facts.row_copy_seconds(value, layouts, is_state=is_state)
        return np.asarray(self.num_copies[op.index] * one)
