"""How each heavy matrix product runs under a plan, and the best other way, for the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.candidates.streamed import dot_schedule_of
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.graph.program import Op
from autoshard.planning.solution import Solution
from autoshard.plans.planned_product import PlannedProduct
from solvers import Edge

IntArray = npt.NDArray[np.int64]


def planned_products(solution: Solution) -> tuple[PlannedProduct, ...]:
    """Every product that was offered candidates in steps, in program order."""
    candidates = solution.encoded.candidates
    reads: dict[int, list[Edge]] = {
        node: [] for node, offered in enumerate(candidates) if offered[-1].streamed is not None
    }
    for edge in solution.encoded.problem.edges:
        if edge.v in reads:
            reads[edge.v].append(edge)
    if not reads:
        return ()
    memory = solution.account.memory
    starts, held = map(np.array, zip(*memory.timeline, strict=True))
    time_of = {op: time for time, op in enumerate(memory.order)}
    ops = solution.encoded.ops
    return tuple(
        _planned_product(
            _Ways(solution, node, edges, starts, held, time_of.get(ops[node], ops[node]))
        )
        for node, edges in reads.items()
    )


def _planned_product(ways: _Ways) -> PlannedProduct:
    solution, node, op = ways.solution, ways.node, ways.op
    encoded, graph = solution.encoded, solution.graph
    chosen = encoded.candidates[node][solution.choices[node]]
    other = ways.best_other()
    room = ways.room()
    assert op.rule is not None
    return PlannedProduct(
        equation=op.equation,
        name=op.name,
        source=op.source,
        result=graph.values[op.results[0]].type_text,
        schedule=None
        if chosen.streamed is None
        else dot_schedule_of(encoded.parts, op.rule, chosen),
        seconds=ways.seconds(solution.choices[node]),
        extra_bytes=ways.extra_bytes(solution.choices[node]),
        other_seconds=None if other is None else ways.seconds(other),
        other_bytes=None if other is None else ways.extra_bytes(other),
        other_fits=other is not None and (room is None or ways.extra_bytes(other) <= room),
    )


@dataclass(frozen=True, slots=True)
class _Ways:
    """The ways to run one product where all other ops run as planned.

    Args:
        solution: The plan.
        node: Of the product.
        edges: Into the node.
        starts: int64[pieces]: times from which on memory use stays the same.
        held: int64[pieces]: that use, in bytes.
        time: When the product runs.
    """

    solution: Solution
    node: int
    edges: Sequence[Edge]
    starts: IntArray
    held: IntArray
    time: int

    @property
    def op(self) -> Op:
        return self.solution.graph.ops[self.solution.encoded.ops[self.node]]

    @property
    def candidates(self) -> Sequence[Candidate]:
        return self.solution.encoded.candidates[self.node]

    def seconds(self, choice: int) -> float:
        """Of all runs, with what its operands cost to bring where it wants them."""
        problem, choices = self.solution.encoded.problem, self.solution.choices
        spent = int(problem.node_costs[self.node][choice])
        spent += sum(int(edge.costs[choices[edge.u], choice]) for edge in self.edges)
        return spent / PICOSECONDS

    def extra_bytes(self, choice: int) -> int:
        """What it holds beside its operands and its result: copies of operands, panels, sums."""
        encoder, graph = self.solution.encoder, self.solution.graph
        parts, candidate = self.solution.encoded.parts, self.candidates[choice]
        held = encoder.costing.streamed_bytes(graph, self.op, candidate)
        for position, value in enumerate(self.op.operands):
            have, want = self.solution.decoded.layouts[value], candidate.operands[position]
            if have != want:
                pieces = parts.num_pieces(want)
                held += graph.values[value].num_bytes // pieces
        if candidate.stands_partial:
            made = graph.values[self.op.results[0]].num_bytes
            for layout, sign in ((candidate.partial, 1), (candidate.results[0], -1)):
                held += sign * (made // parts.num_pieces(layout))
        return int(held * encoder.room.overhead)

    def room(self) -> int | None:
        """Bytes that are free for extra ones when the product runs; None: no limit."""
        limit = self.solution.encoder.memory_limit
        if limit is None:
            return None
        place = int(np.searchsorted(self.starts, self.time, side="right")) - 1
        own = self.extra_bytes(self.solution.choices[self.node])
        return limit - int(self.held[place]) + own

    def best_other(self) -> int | None:
        """The fastest candidate of the other kind that makes the same; one that fits, if any."""
        chosen = self.candidates[self.solution.choices[self.node]]
        others = [
            index
            for index, candidate in enumerate(self.candidates)
            if (candidate.streamed is None) != (chosen.streamed is None)
            and candidate.results == chosen.results
        ]
        if not others:
            return None
        room = self.room()
        fitting = [i for i in others if room is None or self.extra_bytes(i) <= room]
        return min(fitting or others, key=self.seconds)
