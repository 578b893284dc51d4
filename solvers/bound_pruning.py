"""Solving by bounds: raise a bound, find answers, drop every choice the two rule out, repeat."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from solvers.backends.protocol import Backend, Request
from solvers.dual_ascent import DualAscent
from solvers.elimination import eliminate, order_elimination
from solvers.evaluate import evaluate
from solvers.exchange import Exchange
from solvers.presolve import Reduced, reduce_fully
from solvers.problem import FORBIDDEN, Edge, IntArray, Problem
from solvers.restricted import Restricted, restrict
from solvers.result import relative_gap as gap_between
from solvers.saturating import FORBIDDEN_FROM

BoolArray = npt.NDArray[np.bool_]

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
"""Columns of the largest problem that is handed to the finishing backend."""

STEPS_UP = (1 / 64, 1 / 16, 1 / 4)
"""Once bounds have stalled: how far up from the bound to the best answer to look for one first."""


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


def prune_choices(problem: Problem, ascent: DualAscent, most: int) -> Restricted | None:
    """Takes out every choice of which `ascent` proves that no answer with it costs `most` or less.

    Every answer that costs `most` or less survives, so that an optimum does where `most` is the
    cost of an answer.

    Args:
        problem: What `ascent` was made from; may have memory terms.
        ascent: With extra costs, `most` counts them too.
        most: The cost of the best answer known.

    Returns:
        None where some node keeps no choice: nothing costs `most` or less.
    """
    keep = [reach <= most for reach in ascent.reach_by_node()]
    if not all(kept.any() for kept in keep):
        return None
    return restrict(problem, keep)


def forbid_pairs(problem: Problem, ascent: DualAscent, most: int) -> Problem:
    """Forbids every pair of which `ascent` proves that no answer with it costs `most` or less.

    Tables stop being shared between edges, so this pays only where columns count: before a model
    with a column for every allowed pair is built.
    """
    edges = []
    for e, edge in enumerate(problem.edges):
        is_out = ascent.pair_reach(e) > most
        costs = np.where(is_out, FORBIDDEN, edge.costs) if is_out.any() else edge.costs
        edges.append(Edge(edge.u, edge.v, costs))
    return replace(problem, edges=tuple(edges))


def solve_by_bounds(
    problem: Problem,
    *,
    relative_gap: float = 0.0,
    deadline: float | None = None,
    seed: int = 0,
    hints: Sequence[Sequence[int]] = (),
    finisher: Backend | None = None,
    exchange: Exchange | None = None,
) -> BoundedAnswer:
    """Solves a problem without its memory limit, to a proof where bounds and elimination give one.

    The bound holds with the memory limit as well. The choices may not fit: look at the peak
    `evaluate` finds, and use `DualAscent.set_extra_costs` where it is above the limit.

    Args:
        problem: A problem `verify_problem` finds no fault with; best one without further reductions
            (`reduce_fully`), since eliminated nodes make bounds tighter.
        relative_gap: Stop once ``(cost - bound) / cost`` is at most this.
        deadline: `time.monotonic` value to stop at; None for no limit.
        seed: The answer depends on it, and, deadline aside, on nothing else that varies.
        hints: Choices to start from; they need not be allowed.
        finisher: Solves what is left when bounds stall; None returns the gap that is left.
        exchange: Told of what is found on the way, where the problem has no memory limit.
    """
    costs_only = replace(problem, node_memory=(), edge_memory=(), memory_limit=None)
    starts = [tuple(int(choice) for choice in hint) for hint in hints]
    search = _Search(costs_only, relative_gap, deadline, seed, starts, finisher, STEPS_UP)
    if problem.memory_limit is None:
        search.exchange = exchange
    for start in starts:
        search.offer(start)
    search.run()
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
        deadline: float | None,
        seed: int,
        hints: Sequence[tuple[int, ...]],
        finisher: Backend | None,
        steps_up: Sequence[float] = (),
    ) -> None:
        self.problem = problem
        self.hints = hints
        self.relative_gap = relative_gap
        self.deadline = deadline
        self.generator = np.random.default_rng(seed)
        self.seed = seed
        self.finisher = finisher
        self.steps_up = steps_up
        self.is_stopped: Callable[[], bool] = lambda: False
        self.exchange: Exchange | None = None
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
            if self.exchange is not None:
                self.exchange.offer(choices, found.cost, source="bounds")

    def learn(self) -> None:
        """Takes over what other lanes found."""
        if self.exchange is not None:
            cost, known = self.exchange.best()
            if known is not None and (self.cost is None or (cost or 0) < self.cost):
                self.offer(known)
            self.lower_bound = max(self.lower_bound, self.exchange.bound())

    def is_done(self) -> bool:
        return gap_between(self.cost, self.lower_bound) <= self.relative_gap

    def is_over(self) -> bool:
        if self.is_stopped() or (self.exchange is not None and self.exchange.is_stopped()):
            return True
        return self.deadline is not None and time.monotonic() >= self.deadline

    def note(self, line: str) -> None:
        if self.exchange is not None:
            self.exchange.offer_bound(self.lower_bound, source="bounds")
        gap = gap_between(self.cost, self.lower_bound)
        self.log.append(f"{time.monotonic() - self.began:.2f} s, gap {gap:.2e}: {line}")

    def run(self) -> None:
        """Goes down level by level until the gap is closed, nothing shrinks, or time is up."""
        level: _Level | None = _Level(self.problem, 0, ())
        while level is not None:
            level = self.go_down(level)

    def go_down(self, level: _Level) -> _Level | None:
        """Bounds and prunes a level; returns a clearly smaller one, or None at the end."""
        ascent = DualAscent(level.problem)
        smaller = level
        for stalled_below in STALLED_BELOW:
            self.raise_bound(level, ascent, stalled_below)
            if self.is_done() or self.is_infeasible or self.is_over():
                return None
            below = self.shrink(level, ascent)
            if below is None:
                return None
            smaller = below
            if _num_pairs(smaller.problem) <= STILL_SHRINKING * _num_pairs(level.problem):
                return smaller
        if self.eliminate_all(smaller, PATIENT_WORK):
            return None
        for share in self.steps_up:
            self.look_below(level, ascent, share)
            if self.is_done() or self.is_over():
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
                if self.is_over():
                    break
            self.lower_bound = max(self.lower_bound, level.constant + ascent.bound)
            if ascent.is_infeasible:
                self.is_infeasible = self.cost is None
                return
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

    def look_below(self, level: _Level, ascent: DualAscent, share: float) -> None:
        """Looks for answers that cost at most a share of the way from the bound to the best one.

        Choices and pairs that no such answer can have are left out and all others kept. So what is
        found within the step is the best there is, and where nothing is the bound goes up to it.
        """
        least = max(0, self.lower_bound - level.constant)
        most = least + math.ceil(share * (self.most(level, ascent) - least))
        narrow = forbid_pairs(level.problem, ascent, most)
        restricted = prune_choices(narrow, ascent, most)
        reduced = None if restricted is None else reduce_fully(restricted.problem)
        bound = most + 1
        if restricted is not None and reduced is not None and not reduced.is_infeasible:
            below = level.below(restricted, reduced)
            inner = _Search(below.problem, self.relative_gap, self.deadline, self.seed, (), None)
            inner.is_stopped = self.is_over
            inner.run()
            self.log += inner.log
            if inner.choices is not None:
                self.offer(below.restore(inner.choices))
            if not inner.is_infeasible:
                bound = min(bound, below.constant - level.constant + inner.lower_bound)
        self.lower_bound = max(self.lower_bound, level.constant + bound)
        if self.cost is not None:
            self.lower_bound = min(self.lower_bound, self.cost)
        self.note(f"looked {share:.0%} of the way up from the bound")

    def finish(self, level: _Level, ascent: DualAscent) -> None:
        """Hands a level that bounds do not shrink to the backend."""
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
