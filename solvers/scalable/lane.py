"""The scalable lane: prices and a bound first, then walks and restarts until time is up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from solvers.compile_ahead import BOUND, PRICED_BOUND, REGIONS, WALK, compiler
from solvers.evaluate import evaluate
from solvers.incumbent import Incumbent
from solvers.kernels import IS_KEPT, FloatArray
from solvers.memory_rows import num_rows_of
from solvers.problem import IntArray, Problem
from solvers.saturating import FORBIDDEN_FROM
from solvers.scalable.annealer import Annealer, Schedule
from solvers.scalable.branching import Branching
from solvers.scalable.clock import Clock, Effort
from solvers.scalable.layout import lay_out
from solvers.scalable.price_rule import PriceRule
from solvers.scalable.priced_ascent import PricedAscent
from solvers.scalable.priced_optimum import PricedOptimum
from solvers.scalable.restarts import Restarts
from solvers.scalable.tightened import Tightened, tighten
from solvers.scalable.tree_moves import Walk, cost_of_walk
from solvers.scalable.trials import (
    REPAIRS,
    RESTARTS,
    SCHEDULES,
    SCHEDULES_FROM_MESSAGES,
    Trial,
    worth_more,
)

SOURCE = "scalable lane"

ROUND_SHARES = (0.3, 0.4, 0.95)
"""Of the time left, for the rounds of trials: all, the best third, the best one; then again."""

_BOUND_SHARE = 0.05  # of the time, before the walks
_REPAIR_SHARE = 0.01  # of the time, for one repair
_FIRST_OPTIMUM_SHARE = 0.04  # of the time, to see whether optima at given prices are found
_LEAST_OPTIMUM_SECONDS = 2.0
_OPTIMUM_SHARE = 0.15  # of the time, for optima at given prices once one was found
_LATER_BOUND_SHARE = 0.08  # of a trial's time, after it

_SWEEPS_BEFORE_READING = 5
_SWEEPS_BEFORE_BRANCHING = 60
_STALLED_SWEEPS = 150
_STALLED_GAIN = 2e-5
_MOVES_PER_NODE = 400  # of a trial, where there is no deadline
_SWEEPS_WITHOUT_DEADLINE = 400
_ROUNDS_WITHOUT_DEADLINE = 3


def run_scalable(problem: Problem, incumbent: Incumbent) -> None:
    """Searches until the incumbent is over, offering answers and bounds as they come.

    Without a deadline it returns after a set number of moves.

    Args:
        problem: Presolved: at most one edge a pair, times are row numbers.
        incumbent: Where everything found goes; all of it is checked in integers first.
    """
    if not problem.num_nodes or incumbent.is_over():
        return
    tightened = tighten(problem, incumbent.is_over)
    if tightened.is_infeasible:
        incumbent.prove_infeasible()
        incumbent.note(f"{SOURCE}: the least of all usages does not fit")
        return
    if tightened.steps:
        incumbent.note(
            f"{SOURCE}: without choices that cannot fit, {problem.num_columns} columns became "
            f"{tightened.problem.num_columns}"
        )
    if not tightened.problem.num_nodes:
        _settle(problem, tightened, incumbent)
        return
    _Lane(problem, tightened, incumbent).run()


def _settle(problem: Problem, tightened: Tightened, incumbent: Incumbent) -> None:
    choices = tightened.restore(())
    found = evaluate(problem, choices)
    if found.is_allowed:
        incumbent.offer(choices, found.cost, source=SOURCE)
    incumbent.offer_bound(tightened.constant, source=SOURCE)


class _Lane:
    def __init__(self, original: Problem, tightened: Tightened, incumbent: Incumbent) -> None:
        self.original = original
        self.tightened = tightened
        self.problem = tightened.problem
        self.incumbent = incumbent
        self.total_seconds = incumbent.seconds_left() if incumbent.deadline is not None else None
        self.layout = lay_out(self.problem, num_rows_of(self.problem))
        self.annealer = Annealer(self.layout, incumbent.seed, incumbent.is_over)
        self.choices: IntArray | None = None
        self.cost = math.inf
        self._stall_bound: int | None = None
        self._stall_sweep = 0
        self.is_stalled = False
        self._awaited: set[str] = set()
        self._restarts: Restarts | None = None
        self._optimum: PricedOptimum | None = None
        self._branching: Branching | None = None

    def await_compiled(self, *stages: str) -> None:
        """Waits, until the incumbent is over, for loops to be compiled."""
        for stage in stages:
            line = compiler().wait_for(stage, self.incumbent.is_over)
            if line is not None and stage not in self._awaited:
                self.note(line)
            self._awaited.add(stage)

    def run(self) -> None:
        """Bounds, then trials; the bound goes on in between."""
        if not IS_KEPT:
            self.note("no folder to keep compiled loops in (NUMBA_CACHE_DIR): compiled each time")
        self.await_compiled(WALK)
        if self.incumbent.is_over():
            return
        expected, rough = self.rough_choices()
        if self.incumbent.is_over():
            return
        self.await_compiled(PRICED_BOUND)
        if self.incumbent.is_over():
            return
        self.expected = expected
        self.ascent = PricedAscent(self.layout, expected)
        self.rule = PriceRule(self.ascent, expected)
        self.decoded = [rough, rough]
        self.raise_bound(self.effort(_BOUND_SHARE, _SWEEPS_WITHOUT_DEADLINE), does_repair=True)
        self.note(f"bound {self.incumbent.bound()} after {self.rule.num_sweeps} sweeps")
        attempts = 0
        self.take_from_others()
        while self.choices is None and not self.incumbent.is_over():
            if self.total_seconds is None and attempts == _ROUNDS_WITHOUT_DEADLINE:
                return
            self.repair_all()
            attempts += 1
        self.try_all()

    def note(self, line: str) -> None:
        self.incumbent.note(f"{SOURCE}: {line}")

    def effort(self, share: float, moves: int) -> Effort:
        seconds = None if self.total_seconds is None else share * self.total_seconds
        return Effort(seconds=seconds, moves=moves)

    def rough_choices(self) -> tuple[float, IntArray]:
        """Descends without a limit: about what answers cost, and somewhere to start."""
        first = np.array([int(costs.argmin()) for costs in self.problem.node_costs])
        free = self.annealer.unlimited()
        walk = free.start(first)
        graph = self.layout.graph
        for _ in range(10):
            free.move(walk, graph.costs, graph.tables, self.problem.num_nodes, 0.0, 10)
        self.offer(walk.choices)
        return max(2.0, float(walk.costs[0])), walk.choices

    def offer(self, choices: IntArray) -> bool:
        """Lets the referee judge choices; returns whether they are allowed."""
        restored = self.tightened.restore(choices.tolist())
        found = evaluate(self.original, restored)
        if found.is_allowed:
            self.incumbent.offer(restored, found.cost, source=SOURCE)
            self.keep(choices)
        elif found.cost < FORBIDDEN_FROM:
            self.incumbent.offer_least_peak(restored, found.peak)
        return found.is_allowed

    def keep(self, choices: IntArray) -> None:
        cost = cost_of_walk(self.layout.graph, choices)
        if cost < self.cost:
            self.cost, self.choices = cost, choices.copy()

    def take_from_others(self) -> None:
        """Goes on from what another lane found, where that is cheaper."""
        cost, choices = self.incumbent.best()
        if cost is None or choices is None or cost - self.tightened.constant >= self.cost:
            return
        reduced = np.array(self.tightened.reduce(choices), dtype=np.int64)
        if self.annealer.start(reduced).costs[1] < FORBIDDEN_FROM:
            self.keep(reduced)

    def raise_bound(self, effort: Effort, *, does_repair: bool = False) -> None:
        """Sweeps with prices that follow; branches once that gains nothing any more."""
        if self.is_stalled and self.choices is not None:
            self.branch(effort)
            return
        clock = Clock(effort, self.incumbent.is_over)
        repaired = 0.0
        while not clock.is_over() and not self.is_stalled:
            self.decoded = self.rule.sweep()
            clock.count(1)
            for choices in self.decoded:
                self.consider(choices)
            if self.rule.num_sweeps % 16 == 0:
                self.offer_bound()
                self.watch_progress()
            if does_repair and self.choices is None and clock.passed() > repaired + 0.2:
                self.repair(self.decoded[1], REPAIRS[0])
                repaired = clock.passed()
        self.offer_bound()

    def branch(self, effort: Effort) -> None:
        """Goes on with the search tree, on an ascent of its own."""
        if self._branching is None:
            ascent = PricedAscent(self.layout, self.expected)
            ascent.set_prices(self.rule.best_prices)
            for _ in range(_SWEEPS_BEFORE_BRANCHING):
                ascent.sweep()
                if self.incumbent.is_over():
                    return
            self._branching = Branching(
                self.layout,
                ascent,
                self.rule,
                self.consider,
                lambda: self.cost,
                self.incumbent.is_over,
            )
        line = self._branching.run(effort)
        bound = self._branching.bound + self.tightened.constant
        self.incumbent.offer_bound(bound, source=SOURCE)
        if line is not None:
            self.note(f"bound {bound}: {line}")

    def consider(self, choices: IntArray) -> None:
        """Offers choices where, by quick sums, they fit and are cheaper."""
        if self.annealer.start(choices).costs[1] < self.cost:
            self.offer(choices)

    def offer_bound(self) -> None:
        self.incumbent.offer_bound(self.ascent.bound + self.tightened.constant, source=SOURCE)

    def watch_progress(self) -> None:
        """Stops sweeping once a good many sweeps gained next to nothing."""
        if self.rule.num_sweeps < self._stall_sweep + _STALLED_SWEEPS:
            return
        bound = self.ascent.bound
        before = self._stall_bound
        if before is not None and bound - before <= _STALLED_GAIN * abs(bound):
            self.is_stalled = True
            self.note(f"bound {bound} no longer rises after {self.rule.num_sweeps} sweeps")
        self._stall_bound, self._stall_sweep = bound, self.rule.num_sweeps

    def energies(self, share: float) -> tuple[FloatArray, FloatArray]:
        self.rule.settle(self.rule.best_prices)
        return self.ascent.energies(share)

    def temperature(self, factor: float) -> float:
        cost = self.cost if math.isfinite(self.cost) else 2.0 * max(1, self.ascent.bound)
        return factor * max(1.0, cost) / self.problem.num_nodes

    def repair_all(self) -> None:
        """Tries every repair from every direction's answer until one fits."""
        for schedule in REPAIRS:
            for choices in self.decoded:
                self.repair(choices, schedule)
                self.take_from_others()
                if self.choices is not None or self.incumbent.is_over():
                    return
        self.raise_bound(self.effort(_REPAIR_SHARE, 50))

    def repair(self, choices: IntArray, schedule: Schedule) -> None:
        """Walks from choices that do not fit, never to higher peaks."""
        walk = self.annealer.start(choices)
        energies = self.energies(schedule.price_share)
        effort = self.effort(_REPAIR_SHARE, 20 * self.problem.num_nodes)
        if schedule.hot:
            hot, cold = self.temperature(schedule.hot), self.temperature(schedule.cold)
            self.annealer.anneal(walk, energies, hot, cold, effort)
        else:
            self.annealer.descend(walk, *energies, effort)
        self.finish(walk)

    def finish(self, walk: Walk) -> None:
        """Offers what a walk ended with."""
        if not math.isfinite(walk.costs[1]):
            self.offer(walk.choices)
        elif walk.costs[1] < self.cost:
            self.offer(walk.best)

    def trials(self) -> list[Trial]:
        def walking(schedule: Schedule) -> Callable[[Effort, IntArray], float]:
            return lambda effort, start: self.walk(schedule, effort, start)

        def reading(schedule: Schedule) -> Callable[[Effort, IntArray], float]:
            return lambda effort, _: self.walk(schedule, effort, self.read_off())

        cool = SCHEDULES_FROM_MESSAGES
        walks = [Trial(f"walk from {s}", walking(s)) for s in SCHEDULES]
        return [
            Trial("optima at given prices", self.find_optimum),
            *walks,
            *(Trial(f"walk from the messages, from {s}", reading(s)) for s in cool),
            Trial(RESTARTS, self.restart),  # compiled last
        ]

    def try_all(self) -> None:
        """Tries everything for a short time, and what did best again for longer."""
        trials = self.trials()
        rounds = 0
        while not self.incumbent.is_over() and self.choices is not None:
            share = ROUND_SHARES[min(rounds, len(ROUND_SHARES) - 1)]
            if self.total_seconds is not None:
                share *= (self.incumbent.seconds_left() or 0.0) / self.total_seconds
            self.take_from_others()
            start = self.choices
            for trial in trials:
                self.try_one(trial, share / len(trials), 2**rounds, start)
                if self.incumbent.is_over():
                    return
            trials.sort(key=lambda trial: trial.cost)
            best = trials[0]
            self.note(f"best of {len(trials)} trials: {best.name}, cost {best.cost:.0f}")
            rounds += 1
            trials = worth_more(trials)
            if self.total_seconds is None and rounds == _ROUNDS_WITHOUT_DEADLINE:
                return

    def try_one(self, trial: Trial, share: float, longer: int, start: IntArray) -> None:
        moves = _MOVES_PER_NODE * self.problem.num_nodes * longer
        trial.cost = trial.run(self.effort(share * (1 - _LATER_BOUND_SHARE), moves), start)
        self.raise_bound(self.effort(share * _LATER_BOUND_SHARE, 50))

    def walk(self, schedule: Schedule, effort: Effort, start: IntArray) -> float:
        """Anneals from a start; returns the least cost passed."""
        walk = self.annealer.start(start)
        walk.costs[1] = np.inf
        hot, cold = self.temperature(schedule.hot), self.temperature(schedule.cold)
        self.annealer.anneal(walk, self.energies(schedule.price_share), hot, cold, effort)
        self.finish(walk)
        return float(walk.costs[1])

    def read_off(self) -> IntArray:
        """Reads choices off the messages at the best prices; they need not fit."""
        self.rule.settle(self.rule.best_prices)
        found = self.ascent.sweep()
        for _ in range(_SWEEPS_BEFORE_READING):
            found = self.ascent.sweep()
        return min(found, key=lambda choices: cost_of_walk(self.layout.graph, choices))

    def find_optimum(self, effort: Effort, _: IntArray) -> float:
        """Solves without memory terms at given prices, and goes down from there."""
        self.await_compiled(BOUND)
        if self.problem.memory_limit is None or self.incumbent.is_over():
            return math.inf
        if self._optimum is None:
            self._optimum = PricedOptimum(
                self.problem,
                self.descend_from,
                lambda bound: self.incumbent.offer_bound(
                    bound + self.tightened.constant, source=SOURCE
                ),
                self.incumbent.is_over,
            )
            first = self.effort(_FIRST_OPTIMUM_SHARE, effort.moves)
            if first.seconds is not None:
                most = _OPTIMUM_SHARE * (self.total_seconds or 0.0)
                longer = max(first.seconds, min(_LEAST_OPTIMUM_SECONDS, most))
                first = replace(first, seconds=longer)
            effort = first
        before = self.cost
        prices = self.rule.best_prices
        count = self._optimum.run(prices, effort)
        if self._optimum.is_closed and not self._optimum.is_settled:
            count += self._optimum.run(prices, self.effort(_OPTIMUM_SHARE, effort.moves))
        self.note(f"optima at {count} sets of prices")
        return self.cost if self.cost < before else math.inf

    def descend_from(self, choices: IntArray) -> None:
        """Takes choices, and brings their cost down without noise where they fit."""
        walk = self.annealer.start(choices)
        if math.isfinite(walk.costs[1]):
            graph = self.layout.graph
            for _ in range(10):
                self.annealer.move(walk, graph.costs, graph.tables, self.problem.num_nodes)
        self.finish(walk)

    def restart(self, effort: Effort, _: IntArray) -> float:
        """Restarts from the messages; returns the least cost met."""
        self.await_compiled(REGIONS)
        if self.incumbent.is_over():
            return math.inf
        if self._restarts is None:
            self._restarts = Restarts(
                self.layout, self.ascent, self.rule, self.incumbent.seed, self.incumbent.is_over
            )
        return self._restarts.run(effort, self.finish).cost
