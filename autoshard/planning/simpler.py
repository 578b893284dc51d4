"""A plan easier to review: few changes of sharding, equal layers alike, one order of axes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.encoding.identity_cache import IdentityCache
from autoshard.graph.program import OpKind
from autoshard.layouts import Layout, refines
from autoshard.lowering.reshard_steps import reshard_steps
from autoshard.planning.searches import Searches
from autoshard.planning.solution import Solution, as_answer, solution_of
from autoshard.report.alike import numbers_of
from solvers import FORBIDDEN, Edge, Problem, Status, evaluate

USUAL = 0.01
_FIRST_PRICE, _MOST_SOLVES = 8.0, 3
"""The first over the price at which no plan gives up more than it may, and how many are tried."""
_MOST_STEP = 0.5
"""Of the price before, at most. A choice."""
_MOST_PARTS, _MOST_OF_PART = 3, 0.95
"""Parts of a plan that are tried, and of what the part before could have given up. Choices."""
_PROVEN = frozenset({Status.OPTIMAL, Status.WITHIN_GAP})


@dataclass(frozen=True, slots=True, eq=False)
class Penalties:
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

    def simplest_part(
        self, problem: Problem, choices: Sequence[int], simpler: Sequence[int], room: float
    ) -> tuple[int, ...]:
        """As much of a simpler plan as gives up no more than there is room for; all where it can.

        Nodes that differ change together where an edge joins them; so do groups of them that give
        up and win the same, as copies of a layer do. Those that give up least for each penalty
        come first.
        """
        if evaluate(problem, simpler).cost - evaluate(problem, choices).cost <= room:
            return tuple(simpler)
        differing = [
            node
            for node, pair in enumerate(zip(choices, simpler, strict=True))
            if pair[0] != pair[1]
        ]
        joined = {node: node for node in differing}

        def group(node: int) -> int:
            while joined[node] != node:
                joined[node] = node = joined[joined[node]]
            return node

        for edge in problem.edges:
            if edge.u in joined and edge.v in joined:
                joined[group(edge.u)] = group(edge.v)
        more: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])  # cost, penalties
        for node in differing:
            for number, table in enumerate((problem.node_costs[node], self.nodes[node])):
                more[group(node)][number] += int(table[simpler[node]] - table[choices[node]])
        for edge, counts in zip(problem.edges, self.edges, strict=True):
            changed = next((end for end in (edge.u, edge.v) if end in joined), None)
            if changed is not None:
                before, after = ((plan[edge.u], plan[edge.v]) for plan in (choices, simpler))
                for number, table in enumerate((edge.costs, counts)):
                    more[group(changed)][number] += int(table[after] - table[before])
        alike = Counter(map(tuple, more.values()))
        taken = set()
        for cost, penalties in sorted(
            (one for one in alike if one[1] < 0), key=lambda one: -one[0] / one[1]
        ):
            if alike[cost, penalties] * cost <= room:
                room -= alike[cost, penalties] * cost
                taken.add((cost, penalties))
        return tuple(
            simpler[node] if node in joined and tuple(more[group(node)]) in taken else choice
            for node, choice in enumerate(choices)
        )

    def priced(self, problem: Problem, price: int) -> Problem:
        """The problem in which each of them costs so much more."""
        known: IdentityCache[npt.NDArray[np.int64]] = IdentityCache()

        def plus(costs: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Any:
            return known.get(lambda: costs + price * counts, costs, counts)

        edges = zip(problem.edges, self.edges, strict=True)
        return replace(
            problem,
            node_costs=tuple(map(plus, problem.node_costs, self.nodes)),
            edges=tuple(Edge(edge.u, edge.v, plus(edge.costs, counts)) for edge, counts in edges),
        )


def simpler(solution: Solution, searches: Searches, simplicity: float | None) -> Solution:
    """A plan with fewer changes of sharding, unlike layers and unusual orders of axes.

    Each of them is given a price, the same for all. Of a plan that gives up more than it may (a
    share of the step time, and as much of the memory limit) a part is taken, the one that gives up
    least for each. Where that is too much as lowered, a lower price follows: that at which the plan
    is as good as the first one, so that what is found then lies between the two.

    Args:
        solution: The plan.
        searches: For the solves.
        simplicity: The share; None for 1 %, as far as the plan stays within the gap asked for.
    """
    if not solution.is_feasible or simplicity == 0:
        return solution
    problem, choices = solution.encoded.problem, solution.choices
    penalties = _penalties(solution)
    number, cost = penalties.count(problem, choices), evaluate(problem, choices).cost
    room = _room(solution, searches, simplicity, cost)
    if not number or room <= 0:
        return solution
    price = _FIRST_PRICE * room / number
    for _ in range(_MOST_SOLVES):
        if price < 1 or searches.is_over:
            break
        priced = penalties.priced(problem, int(price))
        gap = room / (2 * cost)  # of such plans: what was proven for the first one holds
        result = searches.another(priced, choices, relative_gap=gap, copies_alike=True)
        found = result.choices
        is_proven = result.status in _PROVEN  # else a clock had a say in it
        if found is None or not is_proven or penalties.count(problem, found) >= number:
            break
        given_up, left = evaluate(problem, found).cost - cost, room
        for _ in range(_MOST_PARTS):
            part = penalties.simplest_part(problem, choices, found, left)
            if penalties.count(problem, part) >= number or not evaluate(problem, part).is_allowed:
                break
            other = _decided(solution, searches, part, simplicity)
            over = _given_up(other, solution, simplicity)
            if over <= 1.0:
                return other if num_reshards(other) <= num_reshards(solution) else solution
            left = _MOST_OF_PART * left / over
        between = given_up / (number - penalties.count(problem, found))
        price = min(between, _MOST_STEP * price)
    return solution


def _decided(
    solution: Solution, searches: Searches, choices: tuple[int, ...], simplicity: float | None
) -> Solution:
    gap = max(searches.options.relative_gap, simplicity or 0.0)
    with searches.stages.time("account"):
        answer = as_answer(solution, solution.result, choices, gap)
        return solution_of(solution.encoder, solution.encoded, answer)


def _room(solution: Solution, searches: Searches, simplicity: float | None, cost: int) -> float:
    """What the simpler plan may cost more, in the problem's units."""
    if simplicity is not None:
        return simplicity * cost
    within_gap = solution.result.lower_bound / max(1.0 - searches.options.relative_gap, 1e-9)
    return min(USUAL * cost, within_gap - cost)


def _given_up(other: Solution, solution: Solution, simplicity: float | None) -> float:
    """Time or memory that the lowered plan gives up, over what it may."""
    share = USUAL if simplicity is None else simplicity
    limit = solution.encoder.memory_limit
    seconds = (other.step_seconds / solution.step_seconds - 1.0) / share
    if limit is None:
        return seconds
    if other.peak_bytes > max(limit, solution.peak_bytes):
        return math.inf
    return max(seconds, (other.peak_bytes - solution.peak_bytes) / (share * limit))


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


def _penalties(solution: Solution) -> Penalties:
    problem, encoded = solution.encoded.problem, solution.encoded
    known: IdentityCache[npt.NDArray[np.int64]] = IdentityCache()  # ops share candidates
    usual = dict(_likes(solution))

    def of_node(node: int, candidates: Sequence[Candidate]) -> npt.NDArray[np.int64]:
        is_argument, layout = encoded.maker(node).kind is OpKind.ARGUMENT, usual.get(node)

        def counts() -> npt.NDArray[np.int64]:
            found = [
                _is_unordered(one)
                + is_argument * _num_further_dims(one)
                + (layout is not None and one.results[0] != layout)
                for one in candidates
            ]
            return np.array(found, np.int64)

        return known.get(counts, candidates, key=(is_argument, layout))

    reads = problem.node_costs[len(encoded.candidates) :]
    free = {len(costs): np.zeros(len(costs), np.int64) for costs in reads}
    moves: dict[int, npt.NDArray[np.int64]] = {}
    for edge in problem.edges:
        if id(edge.costs) not in moves:
            is_move = (edge.costs > 0) & (edge.costs < FORBIDDEN)
            moves[id(edge.costs)] = is_move.astype(np.int64)
    of_ops = (of_node(node, candidates) for node, candidates in enumerate(encoded.candidates))
    return Penalties(
        (*of_ops, *(free[len(costs)] for costs in reads)),
        tuple(moves[id(edge.costs)] for edge in problem.edges),
    )


def _is_unordered(candidate: Candidate) -> bool:
    """A result has mesh axes of one dimension in another order than the mesh."""
    return any(list(dim) != sorted(dim) for layout in candidate.results for dim in layout)


def _num_further_dims(candidate: Candidate) -> int:
    """Dimensions of a result that are sharded beside a first one: each is a step of its gather."""
    return sum(max(0, sum(map(bool, layout)) - 1) for layout in candidate.results)


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
