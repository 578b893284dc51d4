"""The exact lane: branch and cut where the model is small enough, bounds and pruning before it."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass

from solvers.engines.bounds import Bounds
from solvers.engines.contained import CONTAINED_FROM
from solvers.engines.mathopt_highs import MathOptHighs
from solvers.engines.protocol import Answer, Engine, Request
from solvers.engines.toulbar2 import Toulbar2
from solvers.evaluate import evaluate
from solvers.incumbent import Incumbent
from solvers.memory_rows import num_rows_of
from solvers.own_process import OwnProcess
from solvers.presolve import reduce_fully, tie_repeats
from solvers.problem import FORBIDDEN, Problem
from solvers.result import NEGLIGIBLE_GAP
from solvers.result import relative_gap as gap_between
from solvers.within_memory import WithinMemory

WHOLE_COLUMNS = 10_000
"""Columns of the largest model handed to branch and cut as it is."""

NETWORK_NODES, FIRST_SHARE = 1000, 0.2
"""Where toulbar2 is installed it goes on with problems of at most so many nodes, after this share
of the time."""

WORTH_TYING = 0.5
"""Repeated parts are tied where that leaves at most this share of the columns."""

TYING_SHARE, GOOD_HINT = 0.1, 0.002
"""Share of the time left, and gap, at which the tied problem is solved well enough for a hint."""

Hints = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ExactLane:
    """Hands a problem to HiGHS, or first to bounds and pruning where it is too large.

    Args:
        hints: Choices to start from.
        process: Already started; None to start one when it is needed.
    """

    hints: Hints = ()
    process: OwnProcess | None = None

    def engine(self, problem: Problem) -> Engine:
        """Returns what the lane runs."""
        if problem.num_columns <= WHOLE_COLUMNS:
            return MathOptHighs()
        return Bounds(is_limit_tight=True)

    def describe(self, problem: Problem) -> str:
        """Says what the lane will do, and why."""
        columns = problem.num_columns
        if columns <= WHOLE_COLUMNS:
            return f"{columns} columns go to HiGHS as they are"
        return f"{columns} columns are bounded and pruned for HiGHS"

    def __call__(self, problem: Problem, incumbent: Incumbent) -> None:
        """Runs until the incumbent is over or nothing is left to do."""
        offer_tied(problem, incumbent)
        engine = self.engine(problem)
        is_apart = problem.num_columns >= CONTAINED_FROM
        left = incumbent.seconds_left()
        later = is_apart and problem.num_nodes <= NETWORK_NODES and has_toulbar2()
        seconds = FIRST_SHARE * left if later and left is not None else None
        first = run_engine(engine, self.hints, self.process, is_apart=is_apart, seconds=seconds)
        first(problem, incumbent)
        if later and not incumbent.is_over():
            incumbent.note(f"{problem.num_nodes} nodes joined widely: toulbar2 goes on")
            run_engine(Toulbar2(), self.hints, is_apart=True)(problem, incumbent)


def has_toulbar2() -> bool:
    """Whether the optional library is installed."""
    return importlib.util.find_spec("pytoulbar2") is not None


def offer_tied(problem: Problem, incumbent: Incumbent) -> None:
    """Solves a problem with its repeated parts tied, where that is much smaller: a hint."""
    if problem.num_columns < CONTAINED_FROM:
        return
    tied = tie_repeats(problem)
    columns = tied.problem.num_columns
    if columns > WORTH_TYING * problem.num_columns:
        return
    reduced = reduce_fully(tied.problem, is_over=incumbent.is_over)
    if reduced.is_infeasible or incumbent.is_over():
        return
    seconds = incumbent.seconds_left()
    until = None if seconds is None else time.monotonic() + TYING_SHARE * seconds
    request = Request(
        deadline=until,
        seed=incumbent.seed,
        relative_gap=max(incumbent.relative_gap, GOOD_HINT),
        constant=reduced.constant,
        stop=incumbent.is_over,
    )
    answer = Bounds(has_finish=False, is_limit_tight=True).solve(reduced.problem, request)
    if answer.choices is None:
        return
    choices = tied.untie(reduced.restore(answer.choices))
    found = evaluate(problem, choices)
    incumbent.note(
        f"repeated parts tied: {problem.num_columns} columns became {columns}, cost {found.cost}"
    )
    if found.is_allowed:
        incumbent.offer(choices, found.cost, source="repeats tied")


def run_engine(
    engine: Engine,
    hints: Hints,
    process: OwnProcess | None = None,
    *,
    is_apart: bool | None = None,
    seconds: float | None = None,
) -> Callable[[Problem, Incumbent], None]:
    """Makes a lane of an engine.

    Args:
        engine: What runs.
        hints: Choices to start from; they need not be allowed.
        process: Already started; None to start one if it is needed.
        is_apart: Whether to run in a process of its own; None for libraries and large problems.
        seconds: How long it may run there, if less than the incumbent has left.
    """

    def lane(problem: Problem, incumbent: Incumbent) -> None:
        answer: Answer | None
        is_large = not engine.is_polling and problem.num_columns >= CONTAINED_FROM
        if not (is_large if is_apart is None else is_apart):
            answer = engine.solve(problem, Request.of(incumbent, hints))
        elif process is not None:
            answer = process.solve(engine, problem, incumbent, hints, seconds)
        else:
            with OwnProcess() as own:
                answer = own.solve(engine, problem, incumbent, hints, seconds)
        if answer is not None:
            settle(problem, incumbent, answer)

    return lane


def settle(problem: Problem, incumbent: Incumbent, answer: Answer) -> None:
    """Offers an answer to the incumbent, its cost recomputed."""
    for line in answer.log:
        incumbent.note(line)
    if answer.choices is not None:
        found = evaluate(problem, answer.choices)
        if found.is_allowed:
            incumbent.offer(answer.choices, found.cost, source="exact lane")
    if answer.least_peak_choices is not None:
        peak = evaluate(problem, answer.least_peak_choices).peak
        incumbent.offer_least_peak(answer.least_peak_choices, peak)
    incumbent.offer_peak_bound(answer.least_peak_bound)
    if answer.is_infeasible:
        incumbent.prove_infeasible(answer.clashing_rows)
        return
    incumbent.offer_bound(answer.lower_bound, source="exact lane")
    if gap_between(incumbent.best()[0], incumbent.bound()) <= NEGLIGIBLE_GAP:
        incumbent.stop()  # what is left is below what a floating-point engine tells apart


def find_least_peak(problem: Problem, incumbent: Incumbent) -> None:
    """Looks for the smallest peak, which is what a user without an answer wants to know."""
    request = Request(deadline=incumbent.deadline, seed=incumbent.seed)
    search = WithinMemory(problem, num_rows_of(problem), request, None)
    search.find_least_peak()
    found = search.answer.least_peak_choices
    if found is not None:
        told = evaluate(problem, found)
        if told.cost < FORBIDDEN:
            incumbent.offer_least_peak(found, told.peak)
    incumbent.offer_peak_bound(search.answer.least_peak_bound)
