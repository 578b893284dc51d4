"""A plan easier to review: few constraints, equal layers alike, one order of axes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.graph.program import OpKind
from autoshard.identity_cache import IdentityCache
from autoshard.layouts import Layout
from autoshard.planning.searches import Searches
from autoshard.planning.solution import Solution, as_answer, solution_of
from autoshard.report.alike import numbers_of
from solvers import Edge, Problem, evaluate, with_priced_memory

IntArray = npt.NDArray[np.int64]

USUAL = 0.01
_FIRST_PRICE, _MOST_SOLVES = 8.0, 5
"""The first over the price at which no plan gives up more than the share, and how many are tried.
Choices."""
_LEAST_ROOM = 0.25
"""Of the share: the room by which the first price goes at least. A plan that ends near its gap has
next to none, and a search at this price may still find a cheaper one; at the whole share most of
what is found gives up too much. A choice."""
_LEAST_RISE = 2.0
"""Of the price before: the next one where it rises. A choice."""
_CLOSE = 0.02
"""The gap at which each solve ends, over the share that may be given up. A choice: at 0.1, plans
between two known ones are missed (GPT-2 of width 768: 21 constraints, not 9)."""
_NEAR, _MANY_COLUMNS = 0.5, 4_000_000
"""The same, where presolve leaves more columns of the plan's own problem than that: searches as
close as the others take minutes there (405B Llama of 4 layers: 9 million, over 75 s; 32 layers of
an 8B Llama, 0.9 million, take one). A choice."""
_MOST_OF_FREE = 0.5
"""Of the memory that the plan leaves free, what a simpler one may take, if that is more than the
share of the limit. A choice."""
_MOST_BEFORE_LOWERING = 4.0
"""Shares of the limit that a part may hold more by the problem, to be lowered: the compiler holds
what the problem says within a few hundredths of the limit. A choice."""
_MOST_PARTS, _MOST_OF_PART = 3, 0.95
"""Parts of a plan that are tried, and how much of the last one the next may take. Choices."""
_DEARER = (1.0, 2.0, 4.0)
"""Prices of memory, in those that proved the bound: the first at which choices fit. A choice."""


@dataclass(frozen=True, slots=True)
class _Change:
    """Nodes that a simpler plan changes, with what that costs and adds to the penalties."""

    cost: int
    penalties: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Penalties:
    """How many things make a plan less simple, by choice.

    Args:
        nodes: int64[num_choices] per node.
        edges: int64[num_choices_u, num_choices_v] per edge.
    """

    nodes: tuple[IntArray, ...]
    edges: tuple[IntArray, ...]

    def as_costs(self, problem: Problem) -> Problem:
        """The nodes and edges of a problem at a cost of one for each of them."""
        ends = zip(problem.edges, self.edges, strict=True)
        return Problem(self.nodes, tuple(Edge(edge.u, edge.v, counts) for edge, counts in ends))

    def simplest_part(
        self,
        problem: Problem,
        choices: Sequence[int],
        simpler: Sequence[int],
        room: float,
        most_peak: float = math.inf,
    ) -> tuple[int, ...]:
        """As much of a simpler plan as gives up no more than there is room for; all where it can.

        Nodes that differ change together where an edge joins them; so do groups of them that give
        up and win the same, as copies of a layer do. Those that give up least for each penalty
        come first; those that hold more than `most_peak` with what came before are left out.
        """
        before, whole = evaluate(problem, choices), evaluate(problem, simpler)
        most_peak = max(most_peak, before.peak)
        if whole.cost - before.cost <= room and whole.peak <= most_peak:
            return tuple(simpler)
        taken = list(choices)
        changes = (one for one in self._changes(problem, choices, simpler) if one.penalties < 0)
        for change in sorted(changes, key=lambda one: -one.cost / one.penalties):
            changed = list(taken)
            for node in change.nodes:
                changed[node] = simpler[node]
            if change.cost <= room and evaluate(problem, changed).peak <= most_peak:
                room, taken = room - change.cost, changed
        return tuple(taken)

    def _changes(
        self, problem: Problem, choices: Sequence[int], simpler: Sequence[int]
    ) -> Iterator[_Change]:
        """Nodes that differ, in sets of groups that give up and win the same."""
        both = zip(choices, simpler, strict=True)
        differing = [node for node, (one, other) in enumerate(both) if one != other]
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
        alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for node in differing:
            alike[tuple(more[group(node)])].append(node)
        num_groups = Counter(map(tuple, more.values()))
        for key, nodes in alike.items():
            cost, penalties = (num_groups[key] * one for one in key)
            yield _Change(cost, penalties, tuple(nodes))

    def priced(self, problem: Problem, price: int) -> Problem:
        """The problem in which each of them costs so much more."""
        known: IdentityCache[IntArray] = IdentityCache()

        def plus(costs: IntArray, counts: IntArray) -> Any:
            return known.get(lambda: costs + price * counts, costs, counts)

        edges = zip(problem.edges, self.edges, strict=True)
        return replace(
            problem,
            node_costs=tuple(map(plus, problem.node_costs, self.nodes)),
            edges=tuple(Edge(edge.u, edge.v, plus(edge.costs, counts)) for edge, counts in edges),
        )


def simpler(solution: Solution, searches: Searches, simplicity: float | None) -> Solution:
    """A plan with fewer constraints, unlike layers and unusual orders of axes.

    Each of them is given a price, the same for all. Where the plan found then gives up no more than
    it may (a share of the step time, and as much of the memory limit or half of what is free of it)
    and has few of them left, the price rises to what they may cost. Of one that gives up more a
    part is taken, the one that gives up least for each. The next price is that at which it is as
    good as the best so far, so that what is found then lies between the two.

    Args:
        solution: The plan.
        searches: For the solves.
        simplicity: The share; None for 1 %, as far as the plan stays within the gap asked for.
    """
    if not solution.is_feasible or simplicity == 0 or searches.is_over:
        return solution
    trade = _Trade(solution, searches, simplicity, _penalties(solution))
    best, dearer = solution, None
    price = trade.first_price(best.choices) if trade.room > 0 else 0.0
    for _ in range(_MOST_SOLVES):
        if price < 1 or searches.is_over:
            break
        found = trade.at(int(price), best.choices)
        if found is None or found == dearer or not trade.saved(best.choices, found):
            break
        best = trade.part_of(best, found) or best
        if best.choices != found:
            dearer = found
        if dearer is not None:
            price = trade.price_between(best.choices, dearer)
            continue
        before, price = price, trade.first_price(best.choices)
        if price <= _LEAST_RISE * before:
            break
    return best


@dataclass(eq=False)
class _Trade:
    """Time and memory of a plan for simplicity.

    Args:
        solution: The plan.
        searches: For the solves.
        simplicity: The share that may be given up; None for the usual one.
        penalties: What makes a plan less simple.
        fitting_times: Of the prices of memory that proved the bound, those at which choices last
            fitted; the next search begins at half as many.
    """

    solution: Solution
    searches: Searches
    simplicity: float | None
    penalties: Penalties
    fitting_times: float = _DEARER[0]

    @property
    def problem(self) -> Problem:
        return self.solution.encoded.problem

    @property
    def fraction(self) -> float:
        """Of the step time, and of the memory limit, that may be given up."""
        return USUAL if self.simplicity is None else self.simplicity

    @cached_property
    def share(self) -> float:
        """The most that may be given up at all, in the problem's units."""
        return self.fraction * evaluate(self.problem, self.solution.choices).cost

    @property
    def slack(self) -> float:
        """By how much a search may miss the best, in the problem's units."""
        is_large = self.solution.result.reduced_columns > _MANY_COLUMNS
        return (_NEAR if is_large else _CLOSE) * self.share

    @cached_property
    def room(self) -> float:
        """The most that the simpler plan may cost more, in the problem's units."""
        if self.simplicity is not None:
            return self.share
        cost = evaluate(self.problem, self.solution.choices).cost
        gap = self.searches.options.relative_gap
        within_gap = self.solution.result.lower_bound / max(1.0 - gap, 1e-9)
        return min(self.share, within_gap - cost)

    @cached_property
    def _counted(self) -> Problem:
        return self.penalties.as_costs(self.problem)

    def count(self, choices: Sequence[int]) -> int:
        """The number of penalties in a plan."""
        return evaluate(self._counted, choices).cost

    def saved(self, choices: Sequence[int], simpler: Sequence[int]) -> int:
        """The number of penalties that simpler choices save; 0 if they save none."""
        return max(0, self.count(choices) - self.count(simpler))

    def first_price(self, choices: Sequence[int]) -> float:
        """The price of a penalty to begin with, from what may be given up."""
        number = self.count(choices)
        room = max(self.room, _LEAST_ROOM * self.share)
        return _FIRST_PRICE * room / number if number else 0.0

    def price_between(self, choices: Sequence[int], dearer: Sequence[int]) -> float:
        """The price at which simpler, dearer choices are as good.

        Returns:
            0 if they save no penalty, or are so near that a search may miss all that is between.
        """
        saved, more = self.saved(choices, dearer), self.more(dearer, choices)
        return more / saved if saved and more > self.slack else 0.0

    def more(self, choices: Sequence[int], than: Sequence[int]) -> int:
        """The cost of choices beyond that of others, in the problem's units."""
        return evaluate(self.problem, choices).cost - evaluate(self.problem, than).cost

    def at(self, price: int, start: tuple[int, ...]) -> tuple[int, ...] | None:
        """Good choices at a price of each penalty; None where a clock had a say in them.

        Memory has no limit, so that such choices are found at once: it costs what it costs in the
        proof of the plan's bound, if anything, or more where choices hold too much. A part is taken
        of those that hold too much at the highest price.
        """
        priced = self.penalties.priced(self.problem, price)
        prices, least = self.solution.result.memory_prices, self.fitting_times / 2.0
        gap = self.slack / evaluate(priced, self.solution.choices).cost
        found, multiples = None, _DEARER if prices else _DEARER[:1]
        for times in (times for times in multiples if times >= least):
            dearer = {time: times * one for time, one in prices.items()}
            paying = with_priced_memory(priced, dearer)
            result = self.searches.another(paying, start, relative_gap=gap, copies_alike=True)
            found = result.choices if result.status.is_proven else None
            if found is None or evaluate(self.problem, found).peak <= self.most_peak:
                self.fitting_times = times
                break
        return found

    def part_of(self, best: Solution, found: tuple[int, ...]) -> Solution | None:
        """The best plan so far with as much of a simpler one as it may; None for nothing of it."""
        problem, number = self.problem, self.count(best.choices)
        left = self.room - self.more(best.choices, self.solution.choices)
        for _ in range(_MOST_PARTS):
            part = self.penalties.simplest_part(problem, best.choices, found, left, self.most_peak)
            if self.count(part) >= number:
                break
            other = self.decided(part)
            over = self.given_up(other)
            if over <= 1.0:
                return other
            more = self.more(part, best.choices)
            if more <= 0:  # all that is left is free: no smaller part would be another
                break
            left = _MOST_OF_PART * more / over
        return None

    @cached_property
    def most_peak(self) -> float:
        """The most that a part may hold by the problem, to be lowered at all."""
        limit = self.problem.memory_limit
        if limit is None:
            return math.inf
        more = max(_MOST_BEFORE_LOWERING * self.fraction * limit, self.more_bytes)
        return min(limit, self.solution.alive_bytes + more)

    @property
    def more_bytes(self) -> float:
        """Bytes by which a simpler plan may hold more than the plan."""
        limit = self.solution.encoder.memory_limit
        if limit is None:
            return math.inf
        return max(self.fraction * limit, _MOST_OF_FREE * (limit - self.held(self.solution)))

    def held(self, one: Solution) -> int:
        """Bytes that a plan holds, by the problem as long as the plan itself is not lowered."""
        return one.peak_bytes if self.solution.is_lowered else one.alive_bytes

    def given_up(self, other: Solution) -> float:
        """Time or memory that a lowered plan gives up, over what it may.

        Where a bound on the time of the plan tells that this is little, the plan is not lowered.
        """
        if not self.solution.is_lowered:
            most = self._given_up(other, self.solution.least_seconds)
            if most <= 1.0:
                return most
            with self.searches.stages.time("account"):
                _ = self.solution.estimate
        return self._given_up(other, self.solution.step_seconds)

    def _given_up(self, other: Solution, seconds: float) -> float:
        """The same, of a plan that takes so many seconds."""
        limit, held = self.solution.encoder.memory_limit, self.held(self.solution)
        if limit is not None and other.peak_bytes > max(limit, held):
            return math.inf
        more_seconds = (other.step_seconds / seconds - 1.0) / self.fraction
        return max(more_seconds, (self.held(other) - held) / self.more_bytes)

    def decided(self, choices: tuple[int, ...]) -> Solution:
        """The plan of choices, lowered."""
        solution = self.solution
        gap = max(self.searches.options.relative_gap, self.simplicity or 0.0)
        with self.searches.stages.time("account"):
            answer = as_answer(solution, solution.result, choices, gap)
            return solution_of(solution.encoder, solution.encoded, answer)


def _penalties(solution: Solution) -> Penalties:
    problem, encoded = solution.encoded.problem, solution.encoded
    known: IdentityCache[IntArray] = IdentityCache()  # ops share candidates
    usual = dict(_likes(solution))

    def of_node(node: int, candidates: Sequence[Candidate]) -> IntArray:
        is_argument, layout = encoded.maker(node).kind is OpKind.ARGUMENT, usual.get(node)

        def counts() -> IntArray:
            found = [
                is_argument * (_is_unordered(one) + _num_further_dims(one))
                + (layout is not None and one.results[0] != layout)
                for one in candidates
            ]
            return np.array(found, np.int64)

        return known.get(counts, candidates, key=(is_argument, layout))

    reads = problem.node_costs[len(encoded.candidates) :]
    free = {size: np.zeros(size, np.int64) for size in set(map(len, reads))}
    of_ops = (of_node(node, candidates) for node, candidates in enumerate(encoded.candidates))
    return Penalties((*of_ops, *(free[len(costs)] for costs in reads)), _num_constraints(solution))


def _num_constraints(solution: Solution) -> tuple[IntArray, ...]:
    """Constraints that bring a value from the sharding an edge is given to the one that it gives.

    One for each step, two steps at most, and one that holds the value where it is made: propagation
    carries the sharding of the first step to it otherwise, except to an argument. Steps that
    computing hides count, and so do slices: propagation has to be told of both.

    Returns:
        int64[num_choices_u, num_choices_v] per edge.
    """
    encoded, tables = solution.encoded, solution.encoder.tables
    edges, graph, num_ops = encoded.problem.edges, encoded.graph, len(encoded.candidates)
    known: IdentityCache[IntArray] = IdentityCache()
    found: dict[int, IntArray] = {}

    def between(edge: Edge, value: int, taken: IntArray) -> IntArray:
        if edge.u >= num_ops:
            given = tables.of_read(encoded.reads[edge.u - num_ops])
        else:
            place = encoded.maker(edge.u).results.index(value)
            given = tables.indices(encoded.candidates[edge.u], True, place, value)
        table, is_made = tables.of(value), graph.maker(value).kind is not OpKind.ARGUMENT

        def counts() -> IntArray:
            steps = table.num_steps.take(given, 0).take(taken, 1)
            return steps + is_made * (steps > 0)

        return known.get(counts, table, given, taken, key=is_made)

    for (index, position), number in encoded.edge_by_read.items():
        value, edge = graph.ops[index].operands[position], edges[number]
        taken = tables.indices(encoded.candidates[edge.v], False, position, value)
        found[number] = between(edge, value, taken)
    for number in encoded.edge_by_shared_read.values():
        read = encoded.reads[edges[number].v - num_ops]
        found[number] = between(edges[number], read.value, tables.of_read(read))
    none = {shape: np.zeros(shape, np.int64) for shape in {edge.costs.shape for edge in edges}}
    return tuple(found.get(number, none[edge.costs.shape]) for number, edge in enumerate(edges))


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
