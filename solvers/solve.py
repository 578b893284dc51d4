"""The one entry point: reduce, pick a backend, solve, restore, and recheck on the original."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from solvers.backends.protocol import Answer, Backend, Request
from solvers.catalog import AUTO, backend_by_name, pick_solver
from solvers.errors import BackendError
from solvers.evaluate import evaluate
from solvers.presolve import Reduced, reduce_fully
from solvers.problem import FORBIDDEN, Problem, require_problem
from solvers.result import Progress, Result, Status
from solvers.result import relative_gap as gap_between


def solve(
    problem: Problem,
    *,
    backend: str = AUTO,
    time_limit_seconds: float | None = None,
    seed: int = 0,
    relative_gap: float = 0.0,
    hint: Sequence[int] | None = None,
    hints: Sequence[Sequence[int]] = (),
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Finds the cheapest choices that fit the memory limit, and proves how good they are.

    With "auto" the problem is first solved without its memory limit, which reduces far better; only
    where that answer does not fit, the limit comes in.

    Args:
        problem: What to solve.
        backend: "auto" or the name of a backend in `solvers.catalog.CATALOG`.
        time_limit_seconds: Wall time; None for no limit. Reductions are not interrupted.
        seed: Equal seeds give equal answers as long as the time limit does not cut.
        relative_gap: Stop once ``(cost - lower_bound) / cost`` is at most this.
        hint: Choices to start from; they need not be allowed.
        hints: More of them.
        progress: Called now and then while solving.

    Raises:
        ProblemError: `verify_problem` finds faults, or a hint does not match the problem.
        BackendError: The backend is unknown, cannot run, or refuses the problem.
    """
    require_problem(problem)
    all_hints = (*(() if hint is None else (hint,)), *hints)
    for given in all_hints:
        evaluate(problem, given)  # Raises where it does not match.
    run = _Run(
        problem=problem,
        deadline=None if time_limit_seconds is None else time.monotonic() + time_limit_seconds,
        seed=seed,
        relative_gap=relative_gap,
        progress=progress,
    )
    for given in all_hints:
        run.offer(given)
    if backend == AUTO:
        run.solve_auto()
    else:
        run.solve_with(backend_by_name(backend), use_memory=True)
    return run.result()


@dataclass(frozen=True, slots=True, eq=False)
class Grounded:
    """A reduced problem that pays its constant at a node of its own: relative gaps stay right.

    Args:
        problem: The reduced problem, with the node last where the constant is positive.
        constant: What the original costs beyond it: zero unless negative.
        reduced: The way back.
    """

    problem: Problem
    constant: int
    reduced: Reduced

    @classmethod
    def of(cls, reduced: Reduced) -> Grounded:
        """Adds the node where it is needed."""
        if not 0 < reduced.constant < FORBIDDEN // 8:
            return cls(reduced.problem, reduced.constant, reduced)
        ground = np.array([reduced.constant], dtype=np.int64)
        costs = (*reduced.problem.node_costs, ground)
        return cls(replace(reduced.problem, node_costs=costs), 0, reduced)

    def restore(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of this problem into choices of the original."""
        return self.reduced.restore(choices[: self.reduced.problem.num_nodes])

    def reduce(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of the original into near ones of this problem."""
        ground = (0,) * (self.problem.num_nodes - self.reduced.problem.num_nodes)
        return (*self.reduced.reduce(choices), *ground)


@dataclass(slots=True)
class _Run:
    problem: Problem
    deadline: float | None
    seed: int
    relative_gap: float
    progress: Callable[[Progress], None] | None
    began: float = field(default_factory=time.monotonic)
    choices: tuple[int, ...] | None = None
    cost: int | None = None
    lower_bound: int = 0
    is_infeasible: bool = False
    leanest: tuple[int, ...] | None = None
    least_peak: int | None = None
    least_peak_bound: int = 0
    hints: list[tuple[int, ...]] = field(default_factory=list)
    backend: str = "presolve"
    reduced_nodes: int = 0
    reduced_columns: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def solve_auto(self) -> None:
        """Solves without the limit, and again with it where the answer does not fit."""
        if self.problem.memory_limit is not None:
            fits = self.solve_with(None, use_memory=False)
            if fits or self.is_infeasible:
                return
            self.log.append("the cheapest choices do not fit: the memory limit comes in")
        self.solve_with(None, use_memory=True)

    def solve_with(self, backend: Backend | None, *, use_memory: bool) -> bool:
        """Reduces, solves and restores; returns whether the backend's answer is allowed."""
        suffix = "" if use_memory else " without memory"
        with self.stage(f"presolve{suffix}"):
            reduced = reduce_fully(self.problem, use_memory=use_memory)
        self.reduced_nodes = reduced.problem.num_nodes
        self.reduced_columns = reduced.problem.num_columns
        self.log.append(
            f"presolve{suffix}: {self.problem.num_nodes} nodes, {self.problem.num_columns} columns "
            f"became {self.reduced_nodes} nodes, {self.reduced_columns} columns, "
            f"{len(reduced.row_times)} memory rows"
        )
        if reduced.is_infeasible:
            self.is_infeasible = True
            self.log.append("forbidden costs leave no choices")
            return False
        with self.stage(f"solve{suffix}"):
            if backend is None:
                pick = pick_solver(reduced.problem)
                backend = pick.backend
                self.log.append(f"picked {backend.name}: {pick.why}")
            self.backend = backend.name
            grounded = Grounded.of(reduced)
            answer = backend.solve(grounded.problem, self._request(grounded))
        self.log += answer.log
        return self._take(grounded, answer, use_memory)

    def _request(self, grounded: Grounded) -> Request:
        def report(stage: str, cost: int | None, lower_bound: int) -> None:
            total = None if cost is None else cost + grounded.constant
            self.report(stage, total, lower_bound + grounded.constant)

        return Request(
            deadline=self.deadline,
            seed=self.seed,
            relative_gap=self.relative_gap,
            hints=tuple(grounded.reduce(hint) for hint in self.hints),
            lower_bound=max(0, self.lower_bound - grounded.constant),
            report=report,
        )

    def _take(self, grounded: Grounded, answer: Answer, use_memory: bool) -> bool:
        self.lower_bound = max(self.lower_bound, answer.lower_bound + grounded.constant)
        is_allowed = False
        if answer.choices is not None:
            restored = grounded.restore(answer.choices)
            is_allowed = self.offer(restored)
        if answer.least_peak_choices is not None:
            self.offer(grounded.restore(answer.least_peak_choices))
        self.least_peak_bound = max(self.least_peak_bound, answer.least_peak_bound)
        self.is_infeasible |= answer.is_infeasible
        self.report("memory" if use_memory else "without memory", self.cost, self.lower_bound)
        return is_allowed

    def offer(self, choices: Sequence[int]) -> bool:
        """Lets the referee judge choices; keeps the cheapest that are allowed, and the leanest."""
        taken = tuple(int(choice) for choice in choices)
        found = evaluate(self.problem, taken)
        self.hints.insert(0, taken)
        if found.is_allowed and (self.cost is None or found.cost < self.cost):
            self.choices, self.cost = taken, found.cost
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
        if self.progress is not None:
            seconds = time.monotonic() - self.began
            self.progress(Progress(seconds, stage, cost, max(lower_bound, self.lower_bound)))

    def result(self) -> Result:
        lower_bound = self.lower_bound
        found = None
        least = None
        if self.choices is not None and self.cost is not None:
            lower_bound = min(lower_bound, self.cost)
            found = evaluate(self.problem, self.choices)
            if found.cost != self.cost or not found.is_allowed:
                raise BackendError(
                    f"the answer costs {found.cost}, {self.cost} was claimed",
                    where=f"backend {self.backend}",
                    fix="report this problem: a reduction lost track of a cost",
                )
        elif self.leanest is not None and self.problem.memory_limit is not None:
            least = evaluate(self.problem, self.leanest)
        return Result(
            status=self._status(lower_bound),
            choices=self.choices,
            cost=self.cost,
            lower_bound=lower_bound,
            peak=None if found is None else found.peak,
            peak_time=None if found is None else found.peak_time,
            backend=self.backend,
            seconds_by_stage=self.seconds,
            reduced_nodes=self.reduced_nodes,
            reduced_columns=self.reduced_columns,
            log=tuple(self.log),
            least_peak=None if least is None else least.peak,
            least_peak_time=None if least is None else least.peak_time,
            least_peak_choices=None if least is None else self.leanest,
            least_peak_bound=self.least_peak_bound,
        )

    def _status(self, lower_bound: int) -> Status:
        if self.cost is None:
            return Status.INFEASIBLE if self.is_infeasible else Status.NO_SOLUTION
        if self.cost <= lower_bound:
            return Status.OPTIMAL
        if gap_between(self.cost, lower_bound) <= self.relative_gap:
            return Status.WITHIN_GAP
        return Status.FEASIBLE
