"""The memory limit at a few times only: where it binds; more are added where answers pass it.

With few rows a problem reduces nearly as far as without a limit. Bounds hold for the whole problem,
answers are looked at all rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from solvers.engines.bounds import finisher
from solvers.engines.protocol import Request
from solvers.evaluate import evaluate
from solvers.incumbent import Incumbent
from solvers.local_search import LocalSearch
from solvers.memory_rows import RowUse, at_times, compress_memory, num_rows_of, rows_to_add
from solvers.presolve import Reduced, reduce_fully
from solvers.problem import Problem
from solvers.within_memory import WithinMemory

MOST_ROUNDS = 8
"""Rows are added so often at most."""

ROWS_A_LOOK = 64

FINISHING_SHARE = 0.1
"""Of the time left: how long branch and cut may take. A choice, not measured: its answer need not
fit at the other rows, and each of up to `MOST_ROUNDS` rounds takes such a share."""

Choices = tuple[int, ...]


def solve_at_few_rows(problem: Problem, incumbent: Incumbent, hints: Sequence[Choices]) -> None:
    """Offers answers and bounds until the gap is met, no row is left to add, or time is up.

    Args:
        problem: With a memory limit.
        incumbent: Of this problem.
        hints: Answers that need not fit, the cheapest without the limit among them.
    """
    _FewRows(problem, incumbent, hints).run()


class _FewRows:
    def __init__(self, problem: Problem, incumbent: Incumbent, hints: Sequence[Choices]) -> None:
        self.problem = problem
        self.incumbent = incumbent
        self.hints = list(hints)
        self.compressed, self.times = compress_memory(problem)
        self.use = RowUse(self.compressed, len(self.times))
        self.rows: list[int] = []
        self.prices: dict[int, float] = {}  # by row of `compressed`

    def run(self) -> None:
        self.look_at_hints()
        for _ in range(MOST_ROUNDS):
            before = list(self.rows)
            answers = self.solve()
            for found in answers:
                self.look(found)
            if answers and self.incumbent.best()[0] is None:
                self.repair(answers[-1])
            if self.rows == before or self.incumbent.is_over():
                return

    def look_at_hints(self) -> None:
        """Offers hints that fit; adds the rows of the cheapest one that does not.

        The others may hold far more than any good answer: their rows would never bind.
        """
        told = [evaluate(self.problem, hint) for hint in self.hints]
        for hint, found in zip(self.hints, told, strict=True):
            if found.is_allowed:
                self.look(hint)
        passing = [k for k, found in enumerate(told) if not found.is_allowed]
        if passing:
            self.look(self.hints[min(passing, key=lambda k: told[k].cost)])

    def look(self, choices: Choices) -> None:
        """Offers choices that fit at all rows; adds rows at which they do not."""
        held = self.use.held(choices)
        limit = self.problem.memory_limit or 0
        if held.max(initial=0) <= limit:
            found = evaluate(self.problem, choices)
            if found.is_allowed:
                self.incumbent.offer(choices, found.cost, source="few rows")
            return
        self.incumbent.offer_least_peak(choices, int(held.max()))
        self.rows = sorted({*self.rows, *rows_to_add(held, limit, self.rows, most=ROWS_A_LOOK)})

    def repair(self, choices: Choices) -> None:
        """Moves nodes one by one until an answer fits at the other rows too, if it comes to that.

        Only where none fits yet: rows to come bring cheaper ones.
        """
        local = LocalSearch(self.compressed, len(self.times))
        repaired = local.repaired(choices, deadline=self.incumbent.deadline)
        self.look(tuple(repaired.tolist()))

    def solve(self) -> list[Choices]:
        """Solves with the limit at the rows there are; returns answers, the best one last."""
        few = at_times(self.compressed, self.rows)
        reduced = reduce_fully(few, is_over=self.incumbent.is_over)
        if reduced.is_infeasible or self.incumbent.is_over():
            return []
        self.incumbent.note(
            f"few rows: with the limit at {len(self.rows)} rows, {reduced.problem.num_nodes} nodes "
            f"and {reduced.problem.num_columns} columns are left"
        )
        return self.price(reduced)

    def price(self, reduced: Reduced) -> list[Choices]:
        rows = [self.rows[row] for row in reduced.row_times]
        request = Request.of(self.incumbent).for_part(
            reduced.constant,
            hints=tuple(reduced.reduce(hint) for hint in self.hints),
            lower_bound=max(0, self.incumbent.bound() - reduced.constant),
        )
        within = WithinMemory(
            reduced.problem,
            num_rows_of(reduced.problem),
            request,
            finisher,
            finishing_share=FINISHING_SHARE,
            looks_for_least_peak=False,
            prices={i: self.prices[row] for i, row in enumerate(rows) if row in self.prices},
        )
        answer = within.run()
        self.prices = {rows[i]: price for i, price in within.prices.items()}
        self.incumbent.offer_prices({self.times[row]: p for row, p in self.prices.items()})
        for line in answer.log:
            self.incumbent.note(line)
        self.incumbent.offer_bound(answer.lower_bound + reduced.constant, source="few rows")
        found = [reduced.restore(choices) for choices in answer.tried]
        if answer.choices is not None:
            found.append(reduced.restore(answer.choices))
            self.hints.append(found[-1])
        return found
