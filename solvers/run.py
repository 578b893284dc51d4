"""One solve in progress, in the terms of the original problem: what is known, and who says so."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from solvers.errors import EngineError
from solvers.evaluate import evaluate
from solvers.grounded import Grounded
from solvers.incumbent import Incumbent
from solvers.memory_rows import violated_times
from solvers.problem import FORBIDDEN, Problem
from solvers.result import Progress, Result, Status, proven_status
from solvers.result import relative_gap as gap_between

_REFEREE_SECONDS_PER_ENTRY = 4e-6


MOST_HINTS = 8
"""Answers kept to start from, the last ones first; the cheapest that is allowed is one of them."""


@dataclass(slots=True)
class Run:
    """What a solve has found so far; nothing gets in that the referee did not recompute.

    Args:
        problem: The original.
        deadline: `time.monotonic` value to stop at; None for no limit.
        seed: For whatever is random.
        relative_gap: What is asked for.
        progress: Told of every improvement, in the calling thread.
        stop: Set by whoever wants the best so far.
        seeks_leanest: Look for the leanest answer where the memory limit binds.
    """

    problem: Problem
    deadline: float | None
    seed: int
    relative_gap: float
    progress: Callable[[Progress], None] | None
    stop: threading.Event
    seeks_leanest: bool = False
    began: float = field(default_factory=time.monotonic)
    choices: tuple[int, ...] | None = None
    cost: int | None = None
    lower_bound: int = 0
    bound_without_limit: int = 0
    is_infeasible: bool = False
    is_interrupted: bool = False
    leanest: tuple[int, ...] | None = None
    has_sought_leanest: bool = False
    least_peak: int | None = None
    least_peak_bound: int = 0
    clashing_times: tuple[int, ...] = ()
    hints: list[tuple[int, ...]] = field(default_factory=list)
    prices: dict[int, float] = field(default_factory=dict)
    engine: str = "presolve"
    reduced_nodes: int = 0
    reduced_columns: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    _told: tuple[int | None, int] | None = None

    def is_over(self) -> bool:
        """Whether to return what there is: out of time, or asked to."""
        if self.stop.is_set():
            return True
        return self.deadline is not None and time.monotonic() >= self.deadline

    def share_of_limit(self, share: float, most: float = math.inf) -> float:
        """Seconds: a share of the time limit, at most `most`; `most` where there is no limit."""
        return most if self.deadline is None else min(share * (self.deadline - self.began), most)

    def grace_seconds(self) -> float:
        """Seconds that lanes have to return in before the deadline is missed."""
        return self.share_of_limit(0.005, 0.5)

    def is_done(self) -> bool:
        """Whether the asked gap is proven."""
        return self.is_infeasible or gap_between(self.cost, self.lower_bound) <= self.relative_gap

    def knows_cheapest(self) -> bool:
        """True where an answer, which need not fit, costs no more than the gap above the bound."""
        costs = (evaluate(self.problem, hint).cost for hint in self.hints)
        return any(gap_between(cost, self.lower_bound) <= self.relative_gap for cost in costs)

    def incumbent_for(self, grounded: Grounded) -> Incumbent:
        """Makes an incumbent for a reduced problem that knows what this run knows."""
        incumbent = Incumbent(
            deadline=None if self.deadline is None else self.deadline - self._referee_seconds(),
            seed=self.seed,
            relative_gap=self.relative_gap,
            lower_bound=max(0, self.lower_bound - grounded.constant),
        )
        for hint in self.hints:
            reduced = grounded.reduce(hint)
            found = evaluate(grounded.problem, reduced)
            if found.is_allowed:
                incumbent.offer(reduced, found.cost, source="hint")
        return incumbent

    def _referee_seconds(self) -> float:
        """About what it takes to restore and recheck an answer, a tenth of the time at most."""
        problem = self.problem
        entries = problem.num_nodes + len(problem.edges) + len(problem.node_memory)
        limit = 0.0 if self.deadline is None else self.deadline - self.began
        return min(0.1 * max(0.0, limit), 0.02 + _REFEREE_SECONDS_PER_ENTRY * entries)

    def take(self, grounded: Grounded, incumbent: Incumbent) -> bool:
        """Takes over what lanes found, after the referee looked; returns whether it is allowed."""
        self.log += incumbent.log()
        cost, choices = incumbent.best()
        is_allowed = False
        if choices is not None and cost is not None:
            restored = grounded.restore(choices)
            is_allowed = self.offer(restored)
            if is_allowed:
                self._require_cost(restored, cost + grounded.constant)
        bound = incumbent.bound() + grounded.constant
        self.lower_bound = max(self.lower_bound, bound)
        _, leanest = incumbent.least_peak()
        if leanest is not None:
            self.offer(grounded.restore(leanest))
        peak_bound = incumbent.peak_bound()
        if grounded.reduced.has_dropped_unfitting and self.problem.memory_limit is not None:
            peak_bound = min(peak_bound, self.problem.memory_limit + 1)
        self.least_peak_bound = max(self.least_peak_bound, peak_bound)
        if incumbent.is_infeasible():
            self.is_infeasible = True
            rows = incumbent.clashing_rows()
            found_times = tuple(sorted(map(grounded.time_of_row, rows)))
            self.clashing_times = found_times or self.clashing_times
        return is_allowed

    def _require_cost(self, choices: tuple[int, ...], claimed: int) -> None:
        found = evaluate(self.problem, choices)
        if found.cost != claimed:
            raise EngineError(
                f"the answer costs {found.cost}, {claimed} was claimed",
                where=f"engine {self.engine}",
                fix="report this problem: a reduction lost track of a cost",
            )

    def offer(self, choices: Sequence[int]) -> bool:
        """Lets the referee judge choices; keeps the cheapest that are allowed, and the leanest."""
        taken = tuple(int(choice) for choice in choices)
        found = evaluate(self.problem, taken)
        if found.is_allowed and (self.cost is None or found.cost < self.cost):
            self.choices, self.cost = taken, found.cost
        self.hints = [taken, *(hint for hint in self.hints if hint != taken)][:MOST_HINTS]
        if self.choices is not None and self.choices not in self.hints:
            self.hints[-1] = self.choices
        if found.cost < FORBIDDEN and (self.least_peak is None or found.peak < self.least_peak):
            self.leanest, self.least_peak = taken, found.peak
        return found.is_allowed

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the wall time of a block to a stage, and reports its start."""
        self.report(name, self.cost, self.lower_bound)
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start

    def report(self, stage: str, cost: int | None, lower_bound: int) -> None:
        """Tells the watcher, in the original's terms."""
        if self.progress is None:
            return
        bound = max(lower_bound, self.lower_bound)
        if cost is not None:
            bound = min(bound, cost)
        seconds = time.monotonic() - self.began
        self.progress(Progress(seconds, stage, cost, bound, self.choices))

    def watch(
        self, stage: str, constant: int, incumbents: Sequence[Incumbent], *, does_fit: bool = True
    ) -> None:
        """Reports the best of some incumbents if it changed; costs only of what fits the limit.

        Args:
            stage: What is being done.
            constant: What the original costs beyond the incumbents' problem.
            incumbents: Of one problem.
            does_fit: Whether their answers fit the limit.
        """
        found = [incumbent.best()[0] for incumbent in incumbents] if does_fit else []
        costs = [cost for cost in found if cost is not None]
        known = [] if self.cost is None else [self.cost]
        cost = min([*known, *(cost + constant for cost in costs)], default=None)
        bound = max(incumbent.bound() for incumbent in incumbents) + constant
        if (cost, bound) != self._told:
            self._told = (cost, bound)
            self.report(stage, cost, bound)

    def result(self) -> Result:
        """Sums up; the referee judges the choices once more."""
        lower_bound = self.lower_bound
        found = None
        least = None
        clashing = self.clashing_times
        if self.choices is not None and self.cost is not None:
            lower_bound = min(lower_bound, self.cost)
            self._require_cost(self.choices, self.cost)
            found = evaluate(self.problem, self.choices)
            clashing = ()
        elif self.leanest is not None and self.problem.memory_limit is not None:
            least = evaluate(self.problem, self.leanest)
            clashing = clashing or violated_times(self.problem, self.leanest)
        return Result(
            status=self._status(lower_bound),
            choices=self.choices,
            cost=self.cost,
            lower_bound=lower_bound,
            peak=None if found is None else found.peak,
            peak_time=None if found is None else found.peak_time,
            engine=self.engine,
            seconds_by_stage=self.seconds,
            reduced_nodes=self.reduced_nodes,
            reduced_columns=self.reduced_columns,
            log=tuple(self.log),
            least_peak=None if least is None else least.peak,
            least_peak_time=None if least is None else least.peak_time,
            least_peak_choices=None if least is None else self.leanest,
            least_peak_bound=self.least_peak_bound,
            clashing_times=clashing,
            is_interrupted=self.is_interrupted,
            leanest=self.leanest if self.has_sought_leanest else None,
            memory_prices=self.prices,
            bound_without_limit=self.bound_without_limit,
        )

    def _status(self, lower_bound: int) -> Status:
        if self.cost is None:
            return Status.INFEASIBLE if self.is_infeasible else Status.NO_SOLUTION
        return proven_status(self.cost, lower_bound, self.relative_gap)
