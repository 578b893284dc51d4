"""Solving when the memory limit binds: least peak, prices, pruning, and an exact finish."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from solvers.bound_pruning import solve_by_bounds
from solvers.elimination import order_elimination
from solvers.engines.protocol import Engine, Request
from solvers.evaluate import evaluate
from solvers.memory_pricing import (
    PeakSearch,
    PriceSearch,
    resolution_factor,
    with_costs_times,
)
from solvers.memory_rows import num_rows_of
from solvers.presolve import STRUCTURAL_RULES, Reduced, reduce_fully
from solvers.price_oracles import NEAR, AscentOracle, EliminationOracle, Oracle
from solvers.problem import FORBIDDEN, Edge, IntArray, Problem
from solvers.pruning import forbid_pairs, prune_choices
from solvers.recombination import recombine
from solvers.restricted import Restricted
from solvers.saturating import FORBIDDEN_FROM

QUICK_WORK = 3e7
"""Additions an elimination may take to be the oracle; above, bounds come from message passing."""

LARGEST_FINISH = 1_000_000
"""Columns of the largest problem handed to the finishing engine."""

STILL_SHRINKING = 0.8
"""Prices are looked for anew while the problem has at most this share of its columns."""

NEAR_OF_GAP = 0.1
"""Of the gap that is allowed: how near the bound at given prices an answer counts as the best."""

RECOMBINED_OF_GAP = 0.1
"""Of the gap that is allowed: how near the best of what answers took is looked for. A choice: what
it starts from decides how good the answer is in the end."""

_MOST_LEVELS = 6
_LEAST_PEAK_ROUNDS = 30


@dataclass(slots=True)
class MemoryAnswer:
    """What was found, in the terms of the problem given.

    Args:
        choices: Best that fit; None where none was found.
        cost: Of `choices`.
        lower_bound: No choices that fit cost less.
        is_infeasible: Proven that none fit.
        least_peak_choices: Those with the smallest peak seen, none of them forbidden.
        least_peak: Their peak.
        least_peak_bound: No choices have a smaller peak.
        tried: What costs least at the prices looked at; it need not fit.
        log: One line a step.
    """

    choices: tuple[int, ...] | None = None
    cost: int | None = None
    lower_bound: int = 0
    is_infeasible: bool = False
    least_peak_choices: tuple[int, ...] | None = None
    least_peak: int | None = None
    least_peak_bound: int = 0
    tried: list[tuple[int, ...]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """A problem on the way down.

    Args:
        problem: Pruned and reduced from the first one.
        constant: What the first one costs beyond it.
        rows: Row of the first problem for each row.
        steps: The way back, last step first.
    """

    problem: Problem
    constant: int
    rows: tuple[int, ...]
    steps: tuple[Reduced | Restricted, ...]

    def restore(self, choices: Sequence[int] | IntArray) -> tuple[int, ...]:
        restored = tuple(int(choice) for choice in choices)
        for step in self.steps:
            restored = step.restore(restored)
        return restored

    def reduce(self, choices: Sequence[int]) -> tuple[int, ...]:
        reduced = tuple(choices)
        for step in reversed(self.steps):
            reduced = step.reduce(reduced)
        return reduced


class WithinMemory:
    """One run on a problem whose times are row numbers (as `reduce_fully` returns it).

    Args:
        problem: With a memory limit.
        num_rows: How many rows there are.
        request: Deadline, seed, gap, hints, and the bound known without the limit.
        finisher: Solves what is left; None leaves the gap.
        is_elimination_only: Bounds come from elimination alone, nothing is handed to a finisher.
        finishing_share: Of the time left: how long the finisher may take, and only once there is
            an answer to prune by; None for all of it.
        looks_for_least_peak: Begin with an answer that fits, if there is one.
        prices: To start from, by row; the bound known was proven at these.
        recombines: Look for the best of what the answers seen took.
    """

    def __init__(
        self,
        problem: Problem,
        num_rows: int,
        request: Request,
        finisher: Callable[[tuple[int, ...]], Engine] | None,
        *,
        is_elimination_only: bool = False,
        finishing_share: float | None = None,
        looks_for_least_peak: bool = True,
        prices: Mapping[int, float] | None = None,
        recombines: bool = True,
    ) -> None:
        self.first = problem
        self.num_rows = num_rows
        self.request = request
        self.finisher = finisher
        self.is_elimination_only = is_elimination_only
        self.finishing_share = finishing_share
        self.looks_for_least_peak = looks_for_least_peak
        self.recombines = recombines
        self.answer = MemoryAnswer(lower_bound=request.lower_bound)
        self.prices = dict(prices or {})  # by row of the first problem

    @property
    def limit(self) -> int:
        assert self.first.memory_limit is not None
        return self.first.memory_limit

    def run(self) -> MemoryAnswer:
        """Finds the least peak, then the least cost within the limit."""
        for hint in self.request.hints:
            self.offer(tuple(int(choice) for choice in hint))
        if self.looks_for_least_peak:
            self.find_least_peak()
        if self.answer.is_infeasible or self.is_done():
            return self.answer
        level = _Level(self.first, 0, tuple(range(self.num_rows)), ())
        for _ in range(_MOST_LEVELS):
            self.learn()
            search = self.search_prices(level)
            if self.is_done() or self.answer.is_infeasible or self.request.is_over():
                break
            below = None if self.is_elimination_only else self.shrink(level, search)
            if below is None:
                break
            if below.problem.num_columns >= STILL_SHRINKING * level.problem.num_columns:
                self.finish(below)
                break
            level = below
        return self.answer

    def learn(self) -> None:
        """Takes over what other lanes found."""
        _, known = self.request.known()
        if known is not None:
            self.offer(known)
        if self.request.incumbent is not None:
            self.raise_bound(self.request.incumbent.bound())

    def note(self, line: str) -> None:
        gap = self.request.gap(self.answer.cost, self.answer.lower_bound)
        self.answer.log.append(f"within memory, gap {gap:.2e}: {line}")
        answer = self.answer
        self.request.tell("within memory", answer.choices, answer.cost, answer.lower_bound)

    def is_done(self) -> bool:
        gap = self.request.gap(self.answer.cost, self.answer.lower_bound)
        return gap <= self.request.relative_gap

    def offer(self, choices: tuple[int, ...]) -> None:
        """Keeps choices of the first problem: the cheapest that fit, and the leanest."""
        found = evaluate(self.first, choices)
        if found.cost >= FORBIDDEN_FROM:
            return
        answer = self.answer
        if answer.least_peak is None or found.peak < answer.least_peak:
            answer.least_peak, answer.least_peak_choices = found.peak, choices
        if found.is_allowed and (answer.cost is None or found.cost < answer.cost):
            answer.choices, answer.cost = choices, found.cost

    def raise_bound(self, bound: int) -> None:
        cost = self.answer.cost
        self.answer.lower_bound = max(
            self.answer.lower_bound, bound if cost is None else min(bound, cost)
        )

    def oracle(
        self, problem: Problem, known: Sequence[IntArray] = (), *, looks_near: bool = True
    ) -> Oracle | None:
        sizes = [len(costs) for costs in problem.node_costs]
        order = order_elimination(
            sizes, [(edge.u, edge.v) for edge in problem.edges], largest_work=QUICK_WORK
        )
        if not order.kept:
            return EliminationOracle(problem, order)
        if self.is_elimination_only:
            return None
        return AscentOracle(
            problem,
            known=known,
            near=max(NEAR, NEAR_OF_GAP * self.request.relative_gap),
            looks_near=looks_near,
            is_over=self.request.is_over,
        )

    def find_least_peak(self) -> None:
        """Minimises the peak: proves infeasibility, or gives something that fits to start from."""
        leanest = LeastPeak(
            self.first,
            self.num_rows,
            self.request.deadline,
            lambda problem: self.oracle(problem, looks_near=False),
        )
        leanest.run()
        if leanest.is_infeasible:
            self.answer.is_infeasible = True
        self.answer.least_peak_bound = leanest.lower_bound
        if leanest.choices is not None:
            self.offer(leanest.choices)
        if leanest.lower_bound > self.limit:
            self.answer.is_infeasible = True
        self.note(
            f"peaks are at least {leanest.lower_bound}, {self.answer.least_peak} found, "
            f"limit {self.limit}"
        )

    def search_prices(self, level: _Level) -> PriceSearch | None:
        """Looks for prices at a level; its answers and bound become the run's."""
        if level.problem.memory_limit is None or not level.problem.num_nodes:
            return None
        factor = resolution_factor(level.problem)
        scaled = with_costs_times(level.problem, factor)
        hints = [tuple(int(choice) for choice in hint) for hint in self.request.hints]
        starts = [
            np.array(level.reduce(known), dtype=np.int64)
            for known in (self.answer.choices, self.answer.least_peak_choices, *hints)
            if known is not None
        ]
        oracle = self.oracle(scaled, starts)
        if oracle is None:
            self.note("too wide to eliminate")
            return None
        index = {row: i for i, row in enumerate(level.rows)}
        search = PriceSearch(
            scaled,
            len(level.rows),
            oracle,
            relative_gap=self.request.relative_gap,
            deadline=self.request.deadline,
            prices={
                index[row]: price * factor for row, price in self.prices.items() if row in index
            },
            constant=(self.request.constant + level.constant) * factor,
            lower_bound=max(0, self.answer.lower_bound - level.constant) * factor,
        )
        search.best_prices = dict(search.prices)
        for start in starts:
            search.offer(start)
        search.polish()
        stages: list[Callable[[], None]] = [search.run]
        if self.request.relative_gap > 0 and isinstance(oracle, AscentOracle):
            stages = [search.bracket, search.run, search.look_around]
        for stage in stages:
            stage()
            self.take(level, search, factor)
            if self.is_done() or self.request.is_over():
                break
            if len(stages) > 1 and self.recombines:
                self.recombine(level, search)
            if self.is_done():
                break
        self.answer.tried += [level.restore(choices) for choices in search.answers()]
        self.prices = {level.rows[row]: price / factor for row, price in search.best_prices.items()}
        kind = "elimination" if isinstance(oracle, EliminationOracle) else "message passing"
        self.note(
            f"priced {len(search.best_prices)} rows in {search.num_rounds} rounds by {kind}, "
            f"{level.problem.num_nodes} nodes, {level.problem.num_columns} columns"
        )
        return search

    def take(self, level: _Level, search: PriceSearch, factor: int) -> None:
        """Takes over what a search found so far."""
        if search.choices is not None:
            self.offer(level.restore(search.choices))
        self.raise_bound(level.constant + -(-search.lower_bound // factor))

    def recombine(self, level: _Level, search: PriceSearch) -> None:
        """Looks for the best of what the answers seen took; they need not fit."""
        request = self.request.for_part(level.constant)
        found = recombine(level.problem, search.answers(), request, solve_at_prices)
        if found is not None:
            self.offer(level.restore(found))

    def shrink(self, level: _Level, search: PriceSearch | None) -> _Level | None:
        """Takes out choices the prices rule out, and reduces; None once nothing cheaper is left."""
        if search is None or self.answer.cost is None:
            return self._below(level, None)
        oracle = search.oracle if isinstance(search.oracle, AscentOracle) else None
        if oracle is None:
            oracle = AscentOracle(search.problem)
        oracle.ascent.set_extra_costs(*search.extra_costs())
        self._settle(oracle, search)
        factor = resolution_factor(level.problem)
        most = (self.answer.cost - level.constant) * factor + search.price_of_limit()
        restricted = prune_choices(level.problem, oracle.ascent, most)
        if restricted is None:
            self.raise_bound(self.answer.cost)
            return None
        return self._below(level, restricted)

    def _settle(self, oracle: AscentOracle, search: PriceSearch) -> None:
        before = oracle.ascent.sweep(8)
        for _ in range(20):
            bound = oracle.ascent.sweep(8)
            if bound - before < 1e-4 * abs(bound - search.lower_bound) + 1 or search.is_over():
                break
            before = bound

    def _below(self, level: _Level, restricted: Restricted | None) -> _Level | None:
        problem = level.problem if restricted is None else restricted.problem
        reduced = reduce_fully(problem)
        if reduced.is_infeasible:
            if self.answer.cost is None:
                self.answer.is_infeasible = True
            else:
                self.raise_bound(self.answer.cost)
            return None
        steps = level.steps if restricted is None else (restricted, *level.steps)
        return _Level(
            reduced.problem,
            level.constant + reduced.constant,
            tuple(level.rows[row] for row in reduced.row_times),
            (reduced, *steps),
        )

    def finish(self, level: _Level) -> None:
        """Hands a level to the finishing engine."""
        if self.finisher is None:
            return
        self.learn()
        if self.finishing_share is not None and self.answer.cost is None:
            return
        problem = level.problem
        if self.answer.cost is not None and problem.num_nodes:
            problem = self._without_dear_pairs(level)
        columns = sum(int((edge.costs < FORBIDDEN_FROM).sum()) for edge in problem.edges)
        if columns > LARGEST_FINISH:
            self.note(f"stalled with {columns} columns left")
            return
        index = {row: i for i, row in enumerate(level.rows)}
        rows = tuple(sorted(index[row] for row in self.prices if row in index))
        hints = () if self.answer.choices is None else (level.reduce(self.answer.choices),)
        engine = self.finisher(rows)
        request = self.request.for_part(
            level.constant,
            hints=hints,
            lower_bound=max(0, self.answer.lower_bound - level.constant),
        )
        seconds = request.seconds_left()
        if self.finishing_share is not None and seconds is not None:
            until = time.monotonic() + self.finishing_share * seconds
            request = replace(request, deadline=until)
        found = engine.solve(problem, request)
        self.answer.log += found.log
        if found.is_infeasible:
            if self.answer.cost is None:
                self.answer.is_infeasible = True
            else:
                self.raise_bound(self.answer.cost)
        if found.choices is not None:
            self.offer(level.restore(found.choices))
        self.raise_bound(level.constant + found.lower_bound)
        self.note(f"{engine.name} finished {columns} columns")

    def _without_dear_pairs(self, level: _Level) -> Problem:
        assert self.answer.cost is not None
        factor = resolution_factor(level.problem)
        index = {row: i for i, row in enumerate(level.rows)}
        prices = {index[row]: p * factor for row, p in self.prices.items() if row in index}
        scaled = with_costs_times(level.problem, factor)
        oracle = AscentOracle(scaled)
        search = PriceSearch(scaled, len(level.rows), oracle, best_prices=prices)
        oracle.ascent.set_extra_costs(*search.extra_costs())
        self._settle(oracle, search)
        most = (self.answer.cost - level.constant) * factor + search.price_of_limit()
        return forbid_pairs(level.problem, oracle.ascent, most)


def solve_at_prices(problem: Problem, request: Request) -> Sequence[int] | None:
    """The best choices that prices of memory find from known ones: work ends with its rounds.

    Args:
        problem: Reduced.
        request: With the gap of a whole search, of which `RECOMBINED_OF_GAP` is looked for here.

    Returns:
        Choices that fit; None where none were found.
    """
    request = replace(request, relative_gap=RECOMBINED_OF_GAP * request.relative_gap)
    if problem.memory_limit is None:
        return solve_by_bounds(
            problem,
            relative_gap=request.relative_gap,
            constant=request.constant,
            deadline=request.deadline,
            seed=request.seed,
            hints=request.hints,
        ).choices
    rows = num_rows_of(problem)
    within = WithinMemory(
        problem, rows, request, None, looks_for_least_peak=False, recombines=False
    )
    return within.run().choices


class LeastPeak:
    """Minimises the peak over all choices without a forbidden cost, after reductions."""

    def __init__(
        self,
        problem: Problem,
        num_rows: int,
        deadline: float | None,
        make_oracle: Callable[[Problem], Oracle | None],
    ) -> None:
        self.problem = problem
        self.num_rows = num_rows
        self.deadline = deadline
        self.make_oracle = make_oracle
        self.lower_bound = 0
        self.peak: int | None = None
        self.choices: tuple[int, ...] | None = None
        self.is_infeasible = False

    def run(self) -> None:
        """Reduces what is left without costs, and weighs its rows."""
        assert self.problem.memory_limit is not None
        reduced = reduce_fully(
            zero_costs(self.problem), rules=STRUCTURAL_RULES, drops_unfitting=False
        )
        if reduced.is_infeasible:
            self.is_infeasible = True
            return
        if reduced.problem.memory_limit is None:  # whatever is left to choose fits
            self._offer(reduced, np.zeros(reduced.problem.num_nodes, dtype=np.int64))
            return
        oracle = self.make_oracle(reduced.problem)
        if oracle is None:
            return
        search = PeakSearch(reduced.problem, len(reduced.row_times), oracle, self.deadline)
        search.run(_LEAST_PEAK_ROUNDS)
        if search.choices is not None:
            self._offer(reduced, search.choices)
        self.lower_bound = search.lower_bound

    def _offer(self, reduced: Reduced, choices: IntArray) -> None:
        self.choices = reduced.restore(choices.tolist())
        self.peak = evaluate(self.problem, self.choices).peak


def zero_costs(problem: Problem) -> Problem:
    """The same problem with every allowed cost 0: what is left is memory and what is forbidden."""
    tables: dict[int, IntArray] = {}

    def without(costs: IntArray) -> IntArray:
        if id(costs) not in tables:
            tables[id(costs)] = np.where(costs >= FORBIDDEN_FROM, FORBIDDEN, 0).astype(np.int64)
        return tables[id(costs)]

    return replace(
        problem,
        node_costs=tuple(without(costs) for costs in problem.node_costs),
        edges=tuple(Edge(edge.u, edge.v, without(edge.costs)) for edge in problem.edges),
    )
