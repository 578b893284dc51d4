"""The exact lane: branch and cut where the model is small enough, bounds and pruning before it."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass

from solvers.backends.bounds import Bounds
from solvers.backends.contained import CONTAINED_FROM
from solvers.backends.mathopt_highs import MathOptHighs
from solvers.backends.protocol import Answer, Backend, Request
from solvers.backends.toulbar2 import Toulbar2
from solvers.evaluate import evaluate
from solvers.exchange import Exchange
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

    def backend(self, problem: Problem) -> Backend:
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

    def __call__(self, problem: Problem, exchange: Exchange) -> None:
        """Runs until the exchange is over or nothing is left to do."""
        offer_tied(problem, exchange)
        backend = self.backend(problem)
        is_apart = problem.num_columns >= CONTAINED_FROM
        left = exchange.seconds_left()
        later = is_apart and problem.num_nodes <= NETWORK_NODES and has_toulbar2()
        seconds = FIRST_SHARE * left if later and left is not None else None
        first = run_backend(backend, self.hints, self.process, is_apart=is_apart, seconds=seconds)
        first(problem, exchange)
        if later and not exchange.is_over():
            exchange.note(f"{problem.num_nodes} nodes joined widely: toulbar2 goes on")
            run_backend(Toulbar2(), self.hints, is_apart=True)(problem, exchange)


def has_toulbar2() -> bool:
    """Whether the optional library is installed."""
    return importlib.util.find_spec("pytoulbar2") is not None


def offer_tied(problem: Problem, exchange: Exchange) -> None:
    """Solves a problem with its repeated parts tied, where that is much smaller: a hint."""
    if problem.num_columns < CONTAINED_FROM:
        return
    tied = tie_repeats(problem)
    columns = tied.problem.num_columns
    if columns > WORTH_TYING * problem.num_columns:
        return
    reduced = reduce_fully(tied.problem, is_over=exchange.is_over)
    if reduced.is_infeasible or exchange.is_over():
        return
    seconds = exchange.seconds_left()
    until = None if seconds is None else time.monotonic() + TYING_SHARE * seconds
    request = Request(
        deadline=until,
        seed=exchange.seed,
        relative_gap=max(exchange.relative_gap, GOOD_HINT),
        constant=reduced.constant,
        stop=exchange.is_over,
    )
    answer = Bounds(has_finish=False, is_limit_tight=True).solve(reduced.problem, request)
    if answer.choices is None:
        return
    choices = tied.untie(reduced.restore(answer.choices))
    found = evaluate(problem, choices)
    exchange.note(
        f"repeated parts tied: {problem.num_columns} columns became {columns}, cost {found.cost}"
    )
    if found.is_allowed:
        exchange.offer(choices, found.cost, source="repeats tied")


def run_backend(
    backend: Backend,
    hints: Hints,
    process: OwnProcess | None = None,
    *,
    is_apart: bool | None = None,
    seconds: float | None = None,
) -> Callable[[Problem, Exchange], None]:
    """Makes a lane of a backend.

    Args:
        backend: What runs.
        hints: Choices to start from; they need not be allowed.
        process: Already started; None to start one if it is needed.
        is_apart: Whether to run in a process of its own; None for libraries and large problems.
        seconds: How long it may run there, if less than the exchange has left.
    """

    def lane(problem: Problem, exchange: Exchange) -> None:
        answer: Answer | None
        is_large = not backend.is_polling and problem.num_columns >= CONTAINED_FROM
        if not (is_large if is_apart is None else is_apart):
            answer = backend.solve(problem, Request.of(exchange, hints))
        elif process is not None:
            answer = process.solve(backend, problem, exchange, hints, seconds)
        else:
            with OwnProcess() as own:
                answer = own.solve(backend, problem, exchange, hints, seconds)
        if answer is not None:
            settle(problem, exchange, answer)

    return lane


def settle(problem: Problem, exchange: Exchange, answer: Answer) -> None:
    """Offers an answer to the exchange, its cost recomputed."""
    for line in answer.log:
        exchange.note(line)
    if answer.choices is not None:
        found = evaluate(problem, answer.choices)
        if found.is_allowed:
            exchange.offer(answer.choices, found.cost, source="exact lane")
    if answer.least_peak_choices is not None:
        peak = evaluate(problem, answer.least_peak_choices).peak
        exchange.offer_least_peak(answer.least_peak_choices, peak)
    exchange.offer_peak_bound(answer.least_peak_bound)
    if answer.is_infeasible:
        exchange.prove_infeasible(answer.clashing_rows)
        return
    exchange.offer_bound(answer.lower_bound, source="exact lane")
    if gap_between(exchange.best()[0], exchange.bound()) <= NEGLIGIBLE_GAP:
        exchange.stop()  # what is left is below what a floating-point engine tells apart


def find_least_peak(problem: Problem, exchange: Exchange) -> None:
    """Looks for the smallest peak, which is what a user without an answer wants to know."""
    request = Request(deadline=exchange.deadline, seed=exchange.seed)
    search = WithinMemory(problem, num_rows_of(problem), request, None)
    search.find_least_peak()
    found = search.answer.least_peak_choices
    if found is not None:
        told = evaluate(problem, found)
        if told.cost < FORBIDDEN:
            exchange.offer_least_peak(found, told.peak)
    exchange.offer_peak_bound(search.answer.least_peak_bound)
