"""The memory limit as prices per byte at the few rows that bind (Lagrangian relaxation).

Formula: for prices ``p[r] >= 0`` per byte held at row ``r``, every allowed answer ``x`` has ::

    cost(x)  >=  min_y (cost(y) + sum_r p[r] * held[r](y))  -  sum_r p[r] * limit

so the right side is a lower bound, and its minimiser nearly fits when the prices are right. Prices
come from a master problem over the answers seen so far (cutting planes in a trust region).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from solvers.linear_program import solve_linear_program
from solvers.local_search import LocalSearch
from solvers.memory_rows import RowUse, memory_terms, most_use, priced, rows_to_add
from solvers.price_oracles import NEAR, Oracle
from solvers.problem import FORBIDDEN, Edge, IntArray, Problem
from solvers.result import relative_gap as gap_between
from solvers.saturating import FORBIDDEN_FROM, is_allowed

Prices = Mapping[int, float]

MOST_SEEN = 300
"""Answers the master problem keeps."""

REPAIR_FROM = 1.25
"""Answers whose peak is at most this times the limit are repaired."""

MOST_MOVED = 2000
"""Nodes of the largest problem whose nodes are moved one by one."""

NEAR_PRICES = (1.1, 0.9)
"""Factors on the best prices at which further answers are looked for."""

LEAST_PRICE = 0.01
"""What the whole limit costs at each row to begin with, as a share of what answers cost."""

MOST_SCALES, NEAR_SCALES = 10, 1.25
"""How many scales of prices are looked at, and how near those of answers that fit and that do not
come."""

LARGEST_PAID = 2.0**55
"""What answers may pay for memory at most at the prices looked at."""

LITTLE_OF_GAP = 0.2
"""Bounds are raised no more once they can rise by this share of the gap that is allowed."""

_STALLED_ROUNDS = 8


@dataclass(slots=True)
class PriceSearch:
    """Looks for prices and, on the way, for answers that fit.

    Args:
        problem: With a memory limit; times are row numbers.
        num_rows: How many rows there are.
        oracle: Made from `problem`.
        relative_gap: Stop once the gap is at most this.
        deadline: `time.monotonic` value to stop at.
        prices: To start from.
        constant: Paid beyond `problem`; counts for the relative gap only.

    Attributes:
        lower_bound: Proven for all answers that fit.
        best_prices: Those that proved it.
        choices: Best answer that fits, or None.
        cost: Of `choices`.
    """

    problem: Problem
    num_rows: int
    oracle: Oracle
    relative_gap: float = 0.0
    deadline: float | None = None
    prices: dict[int, float] = field(default_factory=dict)
    constant: int = 0
    lower_bound: int = 0
    best_prices: dict[int, float] = field(default_factory=dict)
    choices: IntArray | None = None
    cost: int | None = None
    num_rounds: int = 0
    _rows: list[int] = field(default_factory=list)
    _seen_costs: list[int] = field(default_factory=list)
    _seen_held: list[IntArray] = field(default_factory=list)
    _seen_keys: dict[bytes, None] = field(default_factory=dict)
    _use: RowUse = field(init=False)
    _most_held: int = field(init=False)
    _local: LocalSearch | None = None

    def __post_init__(self) -> None:
        self._use = RowUse(self.problem, self.num_rows)
        self._rows = sorted(self.prices)
        self._most_held = most_use(self.problem)

    @property
    def limit(self) -> int:
        assert self.problem.memory_limit is not None
        return self.problem.memory_limit

    @property
    def local(self) -> LocalSearch:
        if self._local is None:
            self._local = LocalSearch(self.problem, self.num_rows)
        return self._local

    def run(self, most_rounds: int = 60) -> None:
        """Raises the bound round by round until the gap is closed or nothing moves any more."""
        reach = 0.5
        stalled = 0
        prices = dict(self.prices)
        if self.lower_bound and self._rows and self._seen_costs:  # known at these prices
            prices, _ = self._next_prices(reach)
        for _ in range(most_rounds):
            prices = self._in_range(prices)
            bound, found = self._at(prices)
            gained = bound - self.lower_bound
            needed = 1e-3 * max(1, (self.cost or 2 * abs(self.lower_bound)) - self.lower_bound)
            self._raise_bound(bound, prices)
            stalled = 0 if gained > needed else stalled + 1
            reach = min(4.0, reach * 1.5) if gained > 0 else max(1e-4, reach * 0.6)
            before = self.cost
            self._consider_all(found, is_repair_due=self.num_rounds % 4 == 1 or stalled > 1)
            if self.cost != before:
                stalled = 0
            if self.is_done():
                return
            added = self._add_rows(found)
            if (stalled >= _STALLED_ROUNDS and not added) or self.is_over():
                return
            prices, within_reach = self._next_prices(reach)
            if within_reach is not None and self._is_little(within_reach - self.lower_bound):
                return

    def bracket(self) -> None:
        """Scales the prices of all rows until answers fit, then between what fits and what not."""
        fails, fits, scale = 0.0, math.inf, 1.0
        least = LEAST_PRICE * (abs(self.lower_bound) + self.constant) / max(1, self.limit)
        base = {row: max(least, price) for row, price in self.best_prices.items()}
        for _ in range(MOST_SCALES):
            if self.is_over() or self.is_done() or fits < NEAR_SCALES * fails:
                return
            if self._look_at({row: scale * base.get(row, least) for row in self._rows}):
                fits = min(fits, scale)
            else:
                fails = max(fails, scale)
            if fits == math.inf:
                scale = 2 * fails
            else:
                scale = math.sqrt(fails * fits) if fails else fits / 2

    def look_around(self) -> None:
        """Looks for answers at prices a little higher and a little lower than the best ones."""
        for factor in NEAR_PRICES:
            if self.is_over() or self.is_done() or not self.best_prices:
                return
            self._look_at({row: factor * price for row, price in self.best_prices.items()})

    def _look_at(self, prices: dict[int, float]) -> bool:
        """Looks for answers at prices; returns whether one fits."""
        prices = self._in_range(prices)
        bound, found = self._at(prices)
        self._raise_bound(bound, prices)
        self._consider_all(found, is_repair_due=False)
        self._add_rows(found)
        return any(self._use.held(choices).max(initial=0) <= self.limit for choices in found)

    def _in_range(self, prices: dict[int, float]) -> dict[int, float]:
        """Lowers prices so that what answers pay for memory stays far below forbidden costs."""
        most = LARGEST_PAID / max(1, self._most_held * len(prices))
        return {row: min(price, most) for row, price in prices.items()}

    def _raise_bound(self, bound: int, prices: dict[int, float]) -> None:
        if bound > self.lower_bound or not self._seen_costs:
            self.lower_bound = max(self.lower_bound, bound)
            self.best_prices = dict(prices)

    def _is_little(self, gain: float) -> bool:
        share = max(NEAR, LITTLE_OF_GAP * self.relative_gap)
        return gain <= share * abs(self.lower_bound + self.constant)

    def is_done(self) -> bool:
        if self.cost is None:
            return False
        return (
            gap_between(self.cost + self.constant, self.lower_bound + self.constant)
            <= self.relative_gap
        )

    def is_over(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def offer(self, choices: Sequence[int] | IntArray) -> bool:
        """Keeps choices that are allowed, fit, and are cheaper; returns whether it did.

        Rows at which choices do not fit are priced from now on.
        """
        taken = np.array(choices, dtype=np.int64)
        cost = cost_of(self.problem, taken)
        held = self._use.held(taken)
        if cost is None:
            return False
        self._see(taken, cost, held)
        self._rows += rows_to_add(held, self.limit, self._rows, most=3)
        if held.max(initial=0) > self.limit or (self.cost is not None and cost >= self.cost):
            return False
        self.choices, self.cost = taken, cost
        return True

    def polish(self) -> None:
        """Improves the best answer by single moves."""
        if self.choices is not None and self.does_move:
            self.offer(self.local.improved(self.choices, deadline=self.deadline))

    @property
    def does_move(self) -> bool:
        """Whether moves of single nodes are quick enough here."""
        return self.problem.num_nodes <= MOST_MOVED

    def answers(self) -> list[IntArray]:
        """Those seen, fitting or not, the first ones first."""
        return [np.frombuffer(key, dtype=np.int64) for key in self._seen_keys]

    def price_of_limit(self) -> int:
        """The most that `best_prices` add to an answer that fits: 0 where nothing binds."""
        if not self.best_prices:
            return 0
        return math.ceil(_total(self.best_prices) * self.limit)

    def extra_costs(self) -> tuple[dict[int, IntArray], dict[int, IntArray]]:
        """What `best_prices` add, by node and by edge."""
        return priced(self.problem, self.best_prices, self.num_rows)

    def _at(self, prices: Prices) -> tuple[int, list[IntArray]]:
        self.num_rounds += 1
        of_limit = math.ceil(_total(prices) * self.limit)
        bound, found = self.oracle.at(*priced(self.problem, prices, self.num_rows))
        return bound - of_limit, found

    def _see(self, choices: IntArray, cost: int, held: IntArray) -> None:
        key = choices.tobytes()
        if key not in self._seen_keys:
            self._seen_keys[key] = None
            self._seen_costs.append(cost)
            self._seen_held.append(held)

    def _consider_all(self, found: list[IntArray], *, is_repair_due: bool) -> None:
        for choices in found:
            cost = cost_of(self.problem, choices)
            if cost is None:
                continue
            held = self._use.held(choices)
            is_new = choices.tobytes() not in self._seen_keys
            self._see(choices, cost, held)
            if not is_new:
                continue
            if not self.does_move:
                self.offer(choices)
                continue
            if self.choices is not None and cost < (self.cost or 0):
                blended = self.local.blended(self.choices, choices, deadline=self.deadline)
                self.offer(blended)
            peak = int(held.max(initial=0))
            is_near = peak <= REPAIR_FROM * self.limit or self.num_rounds == 1
            if not is_near or not (is_repair_due or peak <= self.limit):
                continue
            fitting = choices
            if peak > self.limit:
                fitting = self.local.repaired(choices, deadline=self.deadline)
                if self._use.held(fitting).max(initial=0) > self.limit:
                    continue
            self.offer(fitting)
            self.offer(self.local.improved(fitting, deadline=self.deadline))

    def _add_rows(self, found: list[IntArray]) -> bool:
        added = False
        for choices in found:
            rows = rows_to_add(self._use.held(choices), self.limit, self._rows, most=3)
            self._rows += rows
            added |= bool(rows)
        return added

    def _next_prices(self, reach: float) -> tuple[dict[int, float], float | None]:
        """Solves the master problem near the best prices; returns its prices and value.

        Formula: ``max z`` with ``z <= cost[k] + sum_r p[r] * (held[k][r] - limit)`` for all seen
        answers k and ``|p - best| <= reach * size`` per row.
        """
        rows = self._rows
        if not rows:
            return {}, None
        costs = self._seen_costs[-MOST_SEEN:]
        excess = np.array([held[rows] - self.limit for held in self._seen_held[-MOST_SEEN:]])
        scale = max(1.0, float(abs(self.lower_bound)), float(max(costs) - min(costs)))
        unit = max(1.0, float(np.abs(excess).max(initial=0)))
        best = np.array([self.best_prices.get(row, 0.0) for row in rows]) * unit / scale
        size = float(best.max(initial=0.0)) or unit / max(1, self.limit)
        objective = np.zeros(len(rows) + 1)
        objective[-1] = -1.0
        coefficients = np.column_stack((-excess / unit, np.ones(len(costs))))
        right = (np.array([float(cost - self.lower_bound) for cost in costs])) / scale
        bounds = [(max(0.0, float(b) - reach * size), float(b) + reach * size) for b in best]
        solved = solve_linear_program(
            objective, A_ub=coefficients, b_ub=right, bounds=[*bounds, (None, None)]
        )
        if solved is None:
            return {row: self.best_prices.get(row, 0.0) * 1.1 for row in rows}, None
        found = solved[:-1] * scale / unit
        prices = {row: float(p) for row, p in zip(rows, found, strict=True) if p > 0}
        return prices, self.lower_bound + float(solved[-1]) * scale


GOOD_PEAK_GAP = 1e-3
"""At which a smallest peak above the limit is near enough: it only tells how much is missing."""

PROVEN_PEAK_SHARE = 0.1
"""Of the time there is: how much to spend on peaks once it is proven that none fits."""


class PeakSearch:
    """Minimises the peak of a problem whose allowed costs are all 0.

    Formula: for weights ``w[r] >= 0`` that add up to 1, the peak of every answer is at least
    ``min_y sum_r w[r] * held[r](y)``. The weights come from the master problem ``max z`` with
    ``z <= sum_r w[r] * held[k][r]`` for all answers k seen.

    Args:
        problem: Times are row numbers; at most one edge a pair.
        num_rows: How many rows there are.
        oracle: Made from `problem`.
        deadline: `time.monotonic` value to stop at.

    Attributes:
        lower_bound: No answer has a smaller peak.
        peak: Smallest peak found at the rows.
        choices: Those that have it.
    """

    def __init__(
        self, problem: Problem, num_rows: int, oracle: Oracle, deadline: float | None
    ) -> None:
        self.problem = problem
        self.num_rows = num_rows
        self.deadline = deadline
        self.lower_bound = 0
        self.peak: int | None = None
        self.choices: IntArray | None = None
        self._oracle = oracle
        self._use = RowUse(problem, num_rows)
        self._seen: list[IntArray] = []
        largest = sum(int(term.usage.max(initial=0)) for term in memory_terms(problem))
        self._unit = 2.0 ** max(0, 44 - largest.bit_length())
        self._is_proven = False
        self._began = time.monotonic()

    def run(self, most_rounds: int) -> None:
        """Stops at a peak within the limit; where none is, soon after that is proven."""
        limit = self.problem.memory_limit or 0
        weights = np.full(self.num_rows, 1.0 / self.num_rows)
        for _ in range(most_rounds):
            prices = {row: float(w) * self._unit for row, w in enumerate(weights) if w > 1e-9}
            bound, found = self._oracle.at(*priced(self.problem, prices, self.num_rows))
            total = _total(prices)  # Rounding may leave it a little off the unit.
            self.lower_bound = max(self.lower_bound, math.ceil(bound / total))
            for choices in found:
                self._consider(choices)
            if self.choices is not None and self.peak is not None and self.peak > limit:
                goal = max(self.lower_bound, limit)
                lean = replace(self.problem, memory_limit=goal)
                local = LocalSearch(lean, self.num_rows)
                self._consider(local.repaired(self.choices, deadline=self.deadline))
            is_over = self.deadline is not None and time.monotonic() >= self.deadline
            self._hurry_once_proven(limit)
            goal = limit
            if self._is_proven:
                goal = math.floor(self.lower_bound / (1 - GOOD_PEAK_GAP))
            is_met = self.peak is not None and self.peak <= goal
            if is_met or is_over or not self._seen:
                return
            weights = self._next_weights(weights)

    def _hurry_once_proven(self, limit: int) -> None:
        if self._is_proven or self.lower_bound <= limit:
            return
        self._is_proven = True
        if self.deadline is not None:
            now = time.monotonic()
            until = max(now, self._began + PROVEN_PEAK_SHARE * (self.deadline - self._began))
            self.deadline = min(self.deadline, until)

    def _consider(self, choices: IntArray) -> None:
        if cost_of(self.problem, choices) is None:
            return
        held = self._use.held(choices)
        self._seen.append(held)
        peak = int(held.max(initial=0))
        if self.peak is None or peak < self.peak:
            self.peak, self.choices = peak, choices.copy()

    def _next_weights(self, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        held = np.array(self._seen[-MOST_SEEN:], dtype=np.float64)
        held /= max(1.0, float(held.max(initial=0.0)))
        num_seen, num_rows = held.shape
        objective = np.zeros(num_rows + 1)
        objective[-1] = -1.0
        solved = solve_linear_program(
            objective,
            A_ub=np.column_stack((-held, np.ones(num_seen))),
            b_ub=np.zeros(num_seen),
            A_eq=np.append(np.ones(num_rows), 0.0)[None, :],
            b_eq=np.ones(1),
            bounds=[*[(0.0, 1.0)] * num_rows, (None, None)],
        )
        if solved is None:
            return weights
        mixed = 0.5 * weights + 0.5 * np.maximum(solved[:-1], 0.0)
        return np.asarray(mixed / mixed.sum(), dtype=np.float64)


def _total(prices: Prices) -> Fraction:
    return sum((Fraction(price) for price in prices.values()), Fraction(0))


def cost_of(problem: Problem, choices: IntArray) -> int | None:
    """Adds up costs; None where a forbidden one is picked."""
    total = 0
    for costs, choice in zip(problem.node_costs, choices, strict=True):
        paid = int(costs[choice])
        if paid >= FORBIDDEN_FROM:
            return None
        total += paid
    for edge in problem.edges:
        paid = int(edge.costs[choices[edge.u], choices[edge.v]])
        if paid >= FORBIDDEN_FROM:
            return None
        total += paid
    return total


def with_costs_times(problem: Problem, factor: int) -> Problem:
    """The same problem with every allowed cost multiplied; shared tables stay shared."""
    if factor == 1:
        return problem
    tables: dict[int, IntArray] = {}

    def scaled(costs: IntArray) -> IntArray:
        if id(costs) not in tables:
            allowed = is_allowed(costs)
            tables[id(costs)] = np.where(allowed, np.where(allowed, costs, 0) * factor, FORBIDDEN)
        return tables[id(costs)]

    return replace(
        problem,
        node_costs=tuple(scaled(costs) for costs in problem.node_costs),
        edges=tuple(Edge(edge.u, edge.v, scaled(edge.costs)) for edge in problem.edges),
    )


def largest_total(problem: Problem) -> int:
    """No allowed answer costs more."""
    largest: dict[int, int] = {}
    total = 0
    for costs in (*problem.node_costs, *(edge.costs for edge in problem.edges)):
        if id(costs) not in largest:
            largest[id(costs)] = int(costs[is_allowed(costs)].max(initial=0))
        total += largest[id(costs)]
    return total


def resolution_factor(problem: Problem) -> int:
    """The power of two by which costs may grow so that rounding prices down loses nothing much."""
    spare = 2**44 // max(1, largest_total(problem))
    return 1 << max(0, spare.bit_length() - 1)
