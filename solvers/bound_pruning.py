"""Solving by bounds: raise a bound, find answers, drop every choice the two rule out, repeat."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.dual_ascent import DualAscent
from solvers.elimination import eliminate, order_elimination
from solvers.engines.protocol import Engine, Request
from solvers.evaluate import evaluate
from solvers.incumbent import Incumbent
from solvers.presolve import STRUCTURAL_RULES, Reduced, reduce_fully
from solvers.problem import IntArray, Problem
from solvers.pruning import forbid_pairs, prune_choices, prune_choices_and_pairs
from solvers.restricted import Restricted
from solvers.result import relative_gap as gap_between
from solvers.saturating import FORBIDDEN_FROM

FIRST_SWEEPS = 4
"""Sweeps before the first decoding; each later round makes half as many again."""

MOST_SWEEPS_A_ROUND = 40

IDLE_FOREST_MOVES = 8
"""Random forests in a row that may fail to improve the best answer of a round."""

STALLED_BELOW = (0.02, 0.002)
"""A round that closes less than this share of the gap counts as stalled: at first, and again where
pruning did not help."""

QUICK_WORK = 2e8
"""Additions an elimination may take to be done at once rather than after more bounding."""

PATIENT_WORK = 2e9
"""Additions an elimination may take once bounds have stalled."""

STILL_SHRINKING = 0.9
"""The reduced problem is bounded anew while it has at most this share of the pairs."""

LARGEST_FINISH = 2_000_000
"""Columns of the largest problem that is handed to the finishing engine."""

STEPS_UP = (1 / 64, 1 / 16, 1 / 4)
"""Once bounds have stalled: how far up from the bound to the best answer to look for one first."""

SHARES_KEPT = (1 / 8, 1 / 4, 1 / 2)
"""Before that: answers are looked for among the cheapest choices, by their bounds."""

_MORE_SWEEPS = 16
_MOST_MORE_SWEEPS = 128
_HARDLY_RISING = 1e-5  # of the bound, in so many sweeps


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedAnswer:
    """What `solve_by_bounds` found; with equal cost and bound it is proven best.

    Args:
        choices: The best found, without a forbidden cost; None where none was found.
        cost: Of `choices`, as `evaluate` adds it up.
        lower_bound: No allowed choices cost less.
        is_infeasible: Proven that forbidden costs leave no answer.
        log: One line a step.
    """

    choices: tuple[int, ...] | None
    cost: int | None
    lower_bound: int
    is_infeasible: bool
    log: tuple[str, ...]

    @property
    def gap(self) -> float:
        """How far `cost` may be above the best, as a fraction of it."""
        return gap_between(self.cost, self.lower_bound)


def solve_by_bounds(
    problem: Problem,
    *,
    relative_gap: float = 0.0,
    constant: int = 0,
    deadline: float | None = None,
    seed: int = 0,
    hints: Sequence[Sequence[int]] = (),
    finisher: Engine | None = None,
    incumbent: Incumbent | None = None,
) -> BoundedAnswer:
    """Solves a problem without its memory limit, to a proof where bounds and elimination give one.

    The bound holds with the memory limit as well. The choices may not fit: look at the peak
    `evaluate` finds, and use `DualAscent.set_extra_costs` where it is above the limit.

    Args:
        problem: A problem `verify_problem` finds no fault with; best one without further reductions
            (`reduce_fully`), since eliminated nodes make bounds tighter.
        relative_gap: Stop once ``(cost - bound) / cost`` is at most this.
        constant: Paid beyond the problem; counts for the relative gap only.
        deadline: `time.monotonic` value to stop at; None for no limit.
        seed: The answer depends on it, and, deadline aside, on nothing else that varies.
        hints: Choices to start from; they need not be allowed.
        finisher: Solves what is left when bounds stall; None returns the gap that is left.
        incumbent: Told of what is found on the way, where the problem has no memory limit.
    """
    costs_only = replace(problem, node_memory=(), edge_memory=(), memory_limit=None)
    starts = [tuple(int(choice) for choice in hint) for hint in hints]
    search = _Search(costs_only, relative_gap, constant, deadline, seed, starts, finisher)
    if problem.memory_limit is None:
        search.incumbent = incumbent
    for start in starts:
        search.offer(start)
    search.run()
    return search.answer()


def look_near_bound(
    problem: Problem, ascent: DualAscent, is_over: Callable[[], bool]
) -> BoundedAnswer:
    """Raises the bound as far as it rises, and looks for the answers a little above it.

    Args:
        problem: Without a memory limit.
        ascent: At the costs of `problem`; it need not have been made from it.
        is_over: Whether to return soon.
    """
    search = _Search(problem, 0.0, 0, None, 0, (), None)
    search.is_stopped = is_over
    search.look_at_cheapest(_Level(problem, 0, ()), ascent)
    return search.answer()


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """A problem on the way down: pruned and reduced from the one above.

    Args:
        problem: What is bounded at this level.
        constant: What the first problem costs beyond it.
        steps: How its choices become those of the first problem, last one first.
    """

    problem: Problem
    constant: int
    steps: tuple[Restricted | Reduced, ...]

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

    def below(self, restricted: Restricted, reduced: Reduced) -> _Level:
        return _Level(
            reduced.problem,
            self.constant + reduced.constant,
            (reduced, restricted, *self.steps),
        )


class _Search:
    """One run of `solve_by_bounds`: the best answer, the best bound, and the way down."""

    def __init__(
        self,
        problem: Problem,
        relative_gap: float,
        constant: int,
        deadline: float | None,
        seed: int,
        hints: Sequence[tuple[int, ...]],
        finisher: Engine | None,
        *,
        looks_up: bool = True,
    ) -> None:
        self.problem = problem
        self.hints = hints
        self.relative_gap = relative_gap
        self.constant = constant
        self.deadline = deadline
        self.generator = np.random.default_rng(seed)
        self.seed = seed
        self.finisher = finisher
        self.looks_up = looks_up
        self.is_stopped: Callable[[], bool] = lambda: False
        self.incumbent: Incumbent | None = None
        self.choices: tuple[int, ...] | None = None
        self.cost: int | None = None
        self.lower_bound = 0
        self.is_infeasible = False
        self.log: list[str] = []
        self.began = time.monotonic()

    def answer(self) -> BoundedAnswer:
        bound = self.lower_bound if self.cost is None else min(self.lower_bound, self.cost)
        return BoundedAnswer(
            choices=self.choices,
            cost=self.cost,
            lower_bound=bound,
            is_infeasible=self.is_infeasible,
            log=tuple(self.log),
        )

    def offer(self, choices: tuple[int, ...]) -> None:
        """Keeps choices of the first problem if they are allowed and cheaper than the best."""
        found = evaluate(self.problem, choices)
        if found.is_allowed and (self.cost is None or found.cost < self.cost):
            self.cost, self.choices = found.cost, choices
            if self.incumbent is not None:
                self.incumbent.offer(choices, found.cost, source="bounds")

    def learn(self) -> None:
        """Takes over what other lanes found."""
        if self.incumbent is not None:
            cost, known = self.incumbent.best()
            if known is not None and (self.cost is None or (cost or 0) < self.cost):
                self.offer(known)
            self.lower_bound = max(self.lower_bound, self.incumbent.bound())

    def is_done(self) -> bool:
        return self.gap() <= self.relative_gap

    def gap(self) -> float:
        cost = None if self.cost is None else self.cost + self.constant
        return gap_between(cost, self.lower_bound + self.constant)

    def is_at_end(self) -> bool:
        return self.is_done() or self.is_infeasible or self.is_over()

    def is_over(self) -> bool:
        if self.is_stopped() or (self.incumbent is not None and self.incumbent.is_stopped()):
            return True
        return self.deadline is not None and time.monotonic() >= self.deadline

    def note(self, line: str) -> None:
        if self.incumbent is not None:
            self.incumbent.offer_bound(self.lower_bound, source="bounds")
        self.log.append(f"{time.monotonic() - self.began:.2f} s, gap {self.gap():.2e}: {line}")

    def run(self) -> None:
        """Goes down level by level until the gap is closed, nothing shrinks, or time is up."""
        level: _Level | None = _Level(self.problem, 0, ())
        if not self.looks_up and self.eliminate_all(_Level(self.problem, 0, ()), QUICK_WORK):
            return
        while level is not None:
            level = self.go_down(level)

    def go_down(self, level: _Level) -> _Level | None:
        """Bounds and prunes a level; returns a clearly smaller one, or None at the end."""
        ascent = DualAscent(level.problem)
        smaller = level
        for stalled_below in STALLED_BELOW:
            self.raise_bound(level, ascent, stalled_below)
            if self.is_at_end():
                return None
            if stalled_below == STALLED_BELOW[0] and self.looks_up:
                self.look_at_cheapest(level, ascent)
                if self.is_at_end():
                    return None
            below = self.shrink(level, ascent)
            if below is None:
                return None
            smaller = below
            if _num_pairs(smaller.problem) <= STILL_SHRINKING * _num_pairs(level.problem):
                return smaller
        if self.eliminate_all(smaller, PATIENT_WORK):
            return None
        for share in STEPS_UP if self.looks_up else ():
            least = max(0, self.lower_bound - level.constant)
            self.look_below(
                level, ascent, least + math.ceil(share * (self.most(level, ascent) - least))
            )
            if self.is_at_end():
                return None
        self.finish(level, ascent)
        return None

    def raise_bound(self, level: _Level, ascent: DualAscent, stalled_below: float) -> None:
        """Sweeps and decodes in rounds until the gap is closed or a round hardly closes it."""
        count = FIRST_SWEEPS
        before = self.lower_bound
        starts = [*self.hints, *([] if self.choices is None else [self.choices])]
        descended = [ascent.descended(level.reduce(choices)) for choices in starts]
        best = min(descended, key=ascent.approximate_cost, default=None)
        for round_number in itertools.count(1):
            for _ in range(count):
                ascent.sweep()
                self.lower_bound = max(self.lower_bound, level.constant + ascent.bound)
                if self.is_done() or self.is_over():
                    break
            if ascent.is_infeasible:
                self.is_infeasible = self.cost is None
                return
            if not self.is_done():
                best = self.improve(level, ascent, best)
            if self.is_done() or self.is_over():
                break
            gap = (self.cost if self.cost is not None else ascent.largest_total) - self.lower_bound
            if round_number > 1 and self.lower_bound - before < stalled_below * gap:
                break
            before = self.lower_bound
            count = min(MOST_SWEEPS_A_ROUND, count + (count + 1) // 2)
        proven = ascent.recomputed_bound()
        assert proven >= ascent.bound
        self.lower_bound = max(self.lower_bound, level.constant + proven)
        self.note(
            f"bounded {level.problem.num_nodes} nodes, {_num_pairs(level.problem)} pairs in "
            f"{round_number} rounds"
        )

    def most(self, level: _Level, ascent: DualAscent) -> int:
        """What a level's answers worth keeping cost at most."""
        return ascent.largest_total if self.cost is None else self.cost - level.constant

    def improve(self, level: _Level, ascent: DualAscent, best: IntArray | None) -> IntArray:
        """Decodes answers, polishes the best, offers it, and returns it."""
        found = [ascent.descended(choices) for choices in ascent.candidates()]
        self.lower_bound = max(self.lower_bound, level.constant + ascent.bound)
        if best is not None:
            found.append(best)
        best = min(found, key=ascent.approximate_cost)
        cost = ascent.approximate_cost(best)
        num_idle = 0
        while level.constant + cost > self.lower_bound and num_idle < IDLE_FOREST_MOVES:
            best = ascent.moved_forest(best, self.generator)
            moved_cost = ascent.approximate_cost(best)
            num_idle = 0 if moved_cost < cost else num_idle + 1
            cost = moved_cost
            if self.is_over():
                break
        self.offer(level.restore(best))
        return best

    def shrink(self, level: _Level, ascent: DualAscent) -> _Level | None:
        """Prunes and reduces; solves what is left when elimination can. None: all is proven."""
        self.learn()
        most = self.most(level, ascent)
        restricted = prune_choices(level.problem, ascent, most)
        if restricted is None:
            self.prove_nothing_cheaper()
            return None
        reduced = reduce_fully(restricted.problem)
        if reduced.is_infeasible:
            self.prove_nothing_cheaper()
            return None
        below = level.below(restricted, reduced)
        self.note(
            f"pruned {sum(map(len, level.problem.node_costs))} choices to "
            f"{sum(map(len, restricted.problem.node_costs))}, "
            f"reduced to {below.problem.num_nodes} nodes, {_num_pairs(below.problem)} pairs"
        )
        return None if self.eliminate_all(below, QUICK_WORK) else below

    def prove_nothing_cheaper(self) -> None:
        """Closes the search: no answer is cheaper than the best one (or none is allowed)."""
        if self.cost is None:
            self.is_infeasible = True
        else:
            self.lower_bound = self.cost
        self.note("nothing cheaper is left")

    def eliminate_all(self, level: _Level, most_work: float) -> bool:
        """Solves a reduced level exactly within so many additions; returns whether it did."""
        tables = {(edge.u, edge.v): edge.costs for edge in level.problem.edges}
        order = order_elimination(
            [len(costs) for costs in level.problem.node_costs], tables, largest_work=most_work
        )
        if order.kept:
            return False
        done = eliminate(order, level.problem.node_costs, tables)
        if done.constant >= FORBIDDEN_FROM:
            self.prove_nothing_cheaper()
            return True
        choices = done.complete(np.zeros(level.problem.num_nodes, dtype=np.int64))
        self.offer(level.restore(choices))
        self.lower_bound = max(self.lower_bound, level.constant + done.constant)
        self.note("eliminated the rest")
        return True

    def look_at_cheapest(self, level: _Level, ascent: DualAscent) -> None:
        """Raises the bound as far as it rises, and looks for answers a little above it."""
        before = ascent.bound
        for _ in range(0, _MOST_MORE_SWEEPS, _MORE_SWEEPS):
            bound = ascent.sweep(_MORE_SWEEPS)
            if bound - before <= _HARDLY_RISING * (bound + self.constant) or self.is_over():
                break
            before = bound
        self.lower_bound = max(self.lower_bound, level.constant + ascent.bound)
        for share in SHARES_KEPT:
            reach = np.sort(ascent.reach)
            most = int(reach[math.ceil(share * len(reach)) - 1])
            if self.is_over() or most >= self.most(level, ascent):
                return
            if most <= ascent.bound:
                continue
            if self.look_below(level, ascent, most):
                return

    def look_below(self, level: _Level, ascent: DualAscent, most: int) -> bool:
        """Looks for answers that cost at most so much; returns whether there may be one.

        Choices and pairs that no such answer can have are left out and all others kept. So what is
        found within the step is the best there is, and where nothing is the bound goes up to it.
        """
        restricted = prune_choices_and_pairs(level.problem, ascent, most)
        reduced = None
        if restricted is not None:
            reduced = reduce_fully(restricted.problem, rules=STRUCTURAL_RULES, is_over=self.is_over)
        bound = most + 1
        if restricted is not None and reduced is not None and not reduced.is_infeasible:
            below = level.below(restricted, reduced)
            inner = self.inner(below)
            inner.run()
            self.log += inner.log
            if inner.choices is not None:
                self.offer(below.restore(inner.choices))
            if not inner.is_infeasible:
                bound = min(bound, below.constant - level.constant + inner.lower_bound)
        self.lower_bound = max(self.lower_bound, level.constant + bound)
        if self.cost is not None:
            self.lower_bound = min(self.lower_bound, self.cost)
        self.note(f"looked for answers up to {self.constant + level.constant + most}")
        return bound <= most

    def inner(self, below: _Level) -> _Search:
        """A search of what is left within a step."""
        constant = self.constant + below.constant
        inner = _Search(
            below.problem,
            self.relative_gap,
            constant,
            self.deadline,
            self.seed,
            (),
            None,
            looks_up=False,
        )
        inner.is_stopped = self.is_over
        return inner

    def finish(self, level: _Level, ascent: DualAscent) -> None:
        """Hands a level that bounds do not shrink to the engine."""
        most = self.most(level, ascent)
        left = forbid_pairs(level.problem, ascent, most)
        columns = sum(int((edge.costs < FORBIDDEN_FROM).sum()) for edge in left.edges)
        if self.finisher is None or columns > LARGEST_FINISH:
            self.note(f"stalled with {columns} pairs left")
            return
        hints = () if self.choices is None else (level.reduce(self.choices),)
        answer = self.finisher.solve(
            left,
            Request(
                deadline=self.deadline,
                seed=self.seed,
                relative_gap=self.relative_gap,
                constant=self.constant + level.constant,
                hints=hints,
                lower_bound=max(0, self.lower_bound - level.constant),
            ),
        )
        self.log += answer.log
        if answer.is_infeasible:
            self.prove_nothing_cheaper()
            return
        if answer.choices is not None:
            self.offer(level.restore(answer.choices))
        self.lower_bound = max(self.lower_bound, level.constant + answer.lower_bound)
        self.note(f"{self.finisher.name} finished {columns} pairs")


def _num_pairs(problem: Problem) -> int:
    return sum(edge.costs.size for edge in problem.edges)
