"""A plan that is easier to review: few reshards, equal layers alike, one order of axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.graph.program import OpKind
from autoshard.layouts import Layout, refines
from autoshard.lowering.reshard_steps import reshard_steps
from autoshard.planning.searches import Searches
from autoshard.planning.solution import Solution, as_answer, solution_of
from autoshard.planning.stages import SEARCH
from autoshard.report.alike import numbers_of
from solvers import FORBIDDEN, Edge, Problem, evaluate

USUAL = 0.01
_SHARE = 0.1  # of the time limit, for the search, or as long as the first one took; a choice


@dataclass(frozen=True, slots=True, eq=False)
class _Penalties:
    """How many things make a plan less simple, by choice.

    Args:
        nodes: int64[num_choices] per node.
        edges: int64[num_choices_u, num_choices_v] per edge.
    """

    nodes: tuple[npt.NDArray[np.int64], ...]
    edges: tuple[npt.NDArray[np.int64], ...]

    def count(self, problem: Problem, choices: Sequence[int]) -> int:
        of_nodes = (counts[choice] for counts, choice in zip(self.nodes, choices, strict=True))
        of_edges = (
            counts[choices[edge.u], choices[edge.v]]
            for counts, edge in zip(self.edges, problem.edges, strict=True)
        )
        return int(sum(of_nodes) + sum(of_edges))

    def priced(self, problem: Problem, price: int) -> Problem:
        """The problem in which each of them costs so much more."""
        nodes = zip(problem.node_costs, self.nodes, strict=True)
        edges = zip(problem.edges, self.edges, strict=True)
        known: dict[int, npt.NDArray[np.int64]] = {}  # edges share arrays
        for edge, counts in zip(problem.edges, self.edges, strict=True):
            if id(edge.costs) not in known:
                known[id(edge.costs)] = edge.costs + price * counts
        return replace(
            problem,
            node_costs=tuple(costs + price * counts for costs, counts in nodes),
            edges=tuple(Edge(edge.u, edge.v, known[id(edge.costs)]) for edge, _ in edges),
        )


def simpler(solution: Solution, searches: Searches, simplicity: float | None) -> Solution:
    """A plan with fewer reshards, unlike layers and unusual orders of axes that costs little more.

    Each of them is given a price, the same for all: what may be given up over their number in the
    plan. A cheaper plan at these prices then gives up no more than that.

    Args:
        solution: The plan.
        searches: For one more solve.
        simplicity: How much of the step time may be given up; None for 1 %, as far as the plan
            stays within the gap asked for.
    """
    if not solution.is_feasible or searches.is_over or simplicity == 0:
        return solution
    problem, choices = solution.encoded.problem, solution.choices
    penalties = _penalties(solution)
    number = penalties.count(problem, choices)
    cost = evaluate(problem, choices).cost
    price = int(_room(solution, searches, simplicity, cost) // max(number, 1))
    if not number or price <= 0:
        return solution
    share = _SHARE
    if simplicity is None:
        spent = searches.stages.seconds.get(SEARCH, 0.0)
        share = min(share, spent / max(searches.options.time_limit_seconds, 1.0))
    result = searches.another(
        penalties.priced(problem, price), choices, share=share, relative_gap=price / (2 * cost)
    )
    found = result.choices
    if found is None or penalties.count(problem, found) >= number:
        return solution
    gap = max(searches.options.relative_gap, simplicity or 0.0)
    with searches.stages.time("account"):
        answer = as_answer(solution, solution.result, found, gap)
        other = solution_of(solution.encoder, solution.encoded, answer)
    return other if _is_worthwhile(other, solution, simplicity) else solution


def _room(solution: Solution, searches: Searches, simplicity: float | None, cost: int) -> float:
    """What the simpler plan may cost more, in the problem's units."""
    if simplicity is not None:
        return simplicity * cost
    within_gap = solution.result.lower_bound / max(1.0 - searches.options.relative_gap, 1e-9)
    return min(USUAL * cost, within_gap - cost)


def _is_worthwhile(other: Solution, solution: Solution, simplicity: float | None) -> bool:
    """The lowered plan, too, is simpler, gives up no more than was allowed, and fits as before."""
    if num_reshards(other) > num_reshards(solution):
        return False
    limit = solution.encoder.memory_limit
    fits = limit is None or other.peak_bytes <= max(limit, solution.peak_bytes)
    most = (1.0 + (USUAL if simplicity is None else simplicity)) * solution.step_seconds
    return fits and other.step_seconds <= most


def num_reshards(solution: Solution) -> int:
    """Steps of reshards in the program, those that the compiler makes one counted once.

    Slices are none: a value is cut further where it is.
    """
    graph, encoded, decoded = solution.graph, solution.encoded, solution.decoded
    found: dict[tuple[int, Layout, int], int] = {}
    for op in graph.ops:
        if op.index not in decoded.candidates:
            continue
        for position, wanted in enumerate(decoded.candidates[op.index].operands):
            value = op.operands[position]
            have = decoded.layouts[value]
            if graph.maker(value).kind is OpKind.FREE or refines(wanted, have):
                continue
            steps = len(reshard_steps(encoded, decoded, op, position))
            key = (value, wanted, op.region)
            found[key] = max(found.get(key, 1), steps)
    return sum(found.values())


def _penalties(solution: Solution) -> _Penalties:
    problem, encoded = solution.encoded.problem, solution.encoded
    unordered: dict[int, npt.NDArray[np.int64]] = {}  # ops share candidates
    for candidates in encoded.candidates:
        if id(candidates) not in unordered:
            counts = [_is_unordered(candidate) for candidate in candidates]
            unordered[id(candidates)] = np.array(counts, np.int64)
    nodes = [unordered[id(candidates)] for candidates in encoded.candidates]
    nodes += [np.zeros(len(costs), np.int64) for costs in problem.node_costs[len(nodes) :]]
    for node, usual in _likes(solution):
        unlike = [candidate.results[0] != usual for candidate in encoded.candidates[node]]
        nodes[node] = nodes[node] + np.array(unlike, np.int64)
    moves: dict[int, npt.NDArray[np.int64]] = {}
    for edge in problem.edges:
        if id(edge.costs) not in moves:
            is_move = (edge.costs > 0) & (edge.costs < FORBIDDEN)
            moves[id(edge.costs)] = is_move.astype(np.int64)
    return _Penalties(tuple(nodes), tuple(moves[id(edge.costs)] for edge in problem.edges))


def _is_unordered(candidate: Candidate) -> bool:
    """A result has mesh axes of one dimension in another order than the mesh."""
    return any(list(dim) != sorted(dim) for layout in candidate.results for dim in layout)


def _likes(solution: Solution) -> Iterator[tuple[int, Layout]]:
    """Nodes of arguments that differ from others in the numbers of their names alone.

    With each comes the layout that most of its likes have.
    """
    encoded, graph = solution.encoded, solution.graph
    groups: dict[tuple[object, ...], list[int]] = {}
    for op in graph.arguments:
        value = graph.values[op.results[0]]
        if op.index in encoded.node_by_op and value.shape:
            key = (numbers_of(value.name)[0], value.shape, value.dtype)
            groups.setdefault(key, []).append(op.index)
    for ops in groups.values():
        layouts = [solution.decoded.layouts[graph.ops[index].results[0]] for index in ops]
        ((usual, _),) = Counter(layouts).most_common(1)
        for index in ops if len(ops) > 1 else ():
            yield encoded.node_by_op[index], usual
