"""Solve, lower, estimate, and correct what the relaxation missed, until both agree.

The problem prices what computing hides of a collective, and which operands of matmuls are in VMEM,
before anything is chosen. Once a plan is lowered, its schedule tells what it really hides, and
memory space assignment what is there. Each round puts the difference on the choices that caused it,
and solves again from the plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from autoshard.encoding.hidden_communication import exposed_seconds, hidden_sums
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.encoding.shared_reads import reads_of
from autoshard.graph.program import Op
from autoshard.planning.room_for_gaps import with_room_for_gaps
from autoshard.planning.searches import Searches
from autoshard.planning.solution import Solution, as_answer, solution_of
from solvers import FORBIDDEN, Problem

IntArray = npt.NDArray[np.int64]

AGREEMENT = 0.005
"""Difference of the estimate from the objective, over that, within which both agree."""
MOST_ROUNDS = 2
"""Solves beside the first. A choice: planning takes no more time than it may."""


@dataclass(slots=True)
class Differences:
    """Seconds by which schedules of plans differ from the prices of the choices that caused it.

    Attributes:
        of_sums: By node and choice.
        of_kernels: Of matmuls, likewise.
        of_edges: Of moves, by edge and the choices of both its ends.
    """

    of_sums: dict[tuple[int, int], float] = field(default_factory=dict)
    of_kernels: dict[tuple[int, int], float] = field(default_factory=dict)
    of_edges: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def measure(self, solution: Solution) -> None:
        """Add what one plan shows; of choices that were measured before, the later counts."""
        graph = solution.graph
        spent: defaultdict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
        uses = solution.estimate.collectives
        for one, use in zip(solution.local_program.collectives, uses, strict=True):
            both = spent[one.op, one.value]
            both[0] += use.seconds
            both[1] += use.exposed_seconds
        self._measure_kernels(solution)
        for (index, value), (seconds, exposed) in spent.items():
            if value < 0:
                self._measure_sums(solution, graph.ops[index], seconds, exposed)
            else:
                self._measure_move(solution, graph.ops[index], value, seconds, exposed)

    def _measure_sums(self, solution: Solution, op: Op, seconds: float, exposed: float) -> None:
        candidate = solution.decoded.candidates[op.index]
        if candidate.streamed is not None:  # its messages run beside its own arithmetic alone
            return
        encoded, prices = solution.encoded, solution.encoder.node_costs
        slack = encoded.hidden.sums.get(op.index, 0.0)
        off = float(hidden_sums(prices.reductions, op, (candidate,), slack)[0]) * op.repeat
        node = encoded.node_by_op[op.index]
        self.of_sums[node, solution.choices[node]] = exposed - (seconds - off)

    def _measure_kernels(self, solution: Solution) -> None:
        """Where operands of matmuls are in VMEM, or not, other than the prices assume."""
        encoded, prices = solution.encoded, solution.encoder.node_costs
        for kernel in solution.local_program.kernels:
            op, node = solution.graph.ops[kernel.op], encoded.node_by_op.get(kernel.op)
            if node is None:
                continue
            chosen = solution.choices[node]
            if kernel.unpriced_seconds:
                one_waits, candidates = kernel.unpriced_seconds < 0, encoded.candidates[node]
                alike = prices.more_where_alike(op, candidates, chosen, one_waits)
                self.of_kernels.update(((node, one), more * op.repeat) for one, more in alike)
            else:
                self.of_kernels.pop((node, chosen), None)

    @property
    def of_nodes(self) -> Mapping[tuple[int, int], float]:
        """By node and choice, both of kernels and of sums."""
        found = dict(self.of_kernels)
        for key, seconds in self.of_sums.items():
            found[key] = found.get(key, 0.0) + seconds
        return found

    def _measure_move(
        self, solution: Solution, op: Op, value: int, seconds: float, exposed: float
    ) -> None:
        encoded, choices = solution.encoded, solution.choices
        read = (op.index, op.operands.index(value))
        edge = encoded.edge_by_read.get(read)
        shared = encoded.edge_by_shared_read.get(read)
        if shared is not None and solution.decoded.shared[read] != solution.decoded.layouts[value]:
            edge = shared
        if edge is None:
            return
        runs = reads_of(op, read[1])
        slack = encoded.hidden.reads.get(read, 0.0)
        priced = float(exposed_seconds(np.asarray(seconds / runs), slack)) * runs if runs else 0.0
        ends = encoded.problem.edges[edge]
        self.of_edges[edge, choices[ends.u], choices[ends.v]] = exposed - priced

    def on(self, problem: Problem) -> Problem:
        """A problem with the differences in its costs."""
        nodes, edges = list(problem.node_costs), list(problem.edges)
        for (node, choice), seconds in self.of_nodes.items():
            nodes[node] = _with_more(nodes[node], (choice,), seconds)
        for (edge, row, column), seconds in self.of_edges.items():
            costs = _with_more(edges[edge].costs, (row, column), seconds)
            edges[edge] = replace(edges[edge], costs=costs)
        return replace(problem, node_costs=tuple(nodes), edges=tuple(edges))

    def lowered(self, before: Problem, after: Problem) -> int:
        """Picoseconds by which any choices cost less at most after a correction: 0 or below."""
        nodes = (
            min(0, int(after.node_costs[node][choice] - before.node_costs[node][choice]))
            for node, choice in self.of_nodes
        )
        edges = (
            min(0, int((after.edges[edge].costs - before.edges[edge].costs)[row, column]))
            for edge, row, column in self.of_edges
        )
        return sum(nodes) + sum(edges)


def _with_more(costs: IntArray, place: tuple[int, ...], seconds: float) -> IntArray:
    found = costs.copy()
    if found[place] < FORBIDDEN:
        found[place] = max(0, found[place] + round(seconds * PICOSECONDS))
    return found


def tightened(solution: Solution, searches: Searches) -> Solution:
    """The plan of least estimated time of a few rounds; what remains is its `model_gap`.

    No solve follows where what is known proves the plan for the corrected prices too: where these
    are lower, no other plan gains more than the one whose choices they are of.

    Args:
        solution: A plan; one that is not proven, or does not fit, is returned as it is.
        searches: For the solves.
    """
    best, now, found = solution, solution, Differences()
    gap = searches.options.relative_gap
    for _ in range(MOST_ROUNDS):
        is_proven = now.result.status.is_proven  # time that is short is better spent elsewhere
        is_agreed = now.model_gap <= max(AGREEMENT, gap)
        if is_agreed or not is_proven or searches.is_over or not now.encoder.costing.overlaps:
            break
        found.measure(now)
        plain = solution.encoded.uncorrected
        encoded = replace(
            solution.encoded,
            problem=found.on(solution.encoded.problem),
            uncorrected=None if plain is None else found.on(plain),
        )
        known = _still_proven(now, replace(now, encoded=encoded), found, gap)
        if known is not None:
            return known
        result = searches.another(encoded.problem, now.choices)
        if result.choices is None:
            break
        with searches.stages.time("account"):
            other = solution_of(solution.encoder, encoded, result)
        is_same = other.choices == now.choices
        now = with_room_for_gaps(other, searches)
        is_faster = now.is_feasible and now.step_seconds < best.step_seconds
        if is_faster or (is_same and now.result.status.is_proven):
            best = now
        if is_same or not is_faster:
            break
    return best


def _still_proven(
    before: Solution, after: Solution, found: Differences, gap: float
) -> Solution | None:
    """A plan in its corrected problem, if its bound there is as near as a solve has to bring it.

    Args:
        before: The plan in the problem as it was solved.
        after: The same choices in the corrected one.
        found: All corrections.
        gap: How near is near enough.
    """
    lowered = found.lowered(before.encoded.problem, after.encoded.problem)
    bounds = before.result.lower_bound, before.result.bound_without_limit
    bound, without_limit = (max(0, one + lowered) for one in bounds)
    result = replace(before.result, lower_bound=bound, bound_without_limit=without_limit)
    answer = as_answer(replace(after, result=result), result, after.choices, gap)
    return replace(after, result=answer) if answer.status.is_proven else None
