"""Plans written by hand, priced like ours, in the problem of ours.

What a hand plan means beyond arguments is what Shardy's propagation makes of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.candidates.op_candidates import read_pins
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Encoded
from autoshard.layouts import Layout
from autoshard.planning.hand_plans import hand_plans
from autoshard.planning.pricing import PricedLayouts, nearest_choices, price_layouts
from autoshard.planning.searches import LONG, SolveOptions
from autoshard.planning.solution import Solution, as_answer
from autoshard.planning.spread_layouts import Propagate, spread, spread_by_class
from autoshard.planning.stages import Stages
from autoshard.sharding import Sharding
from autoshard.wishes.ties import constrained_arguments
from solvers import evaluate

_GAP = 0.001
"""Of a hand plan, for what it leaves open: copies of a layer choose alike first then. A choice."""
_FLOOR_MARGIN = 1.25
"""Times our cost: a hand plan that costs more by the problem is not lowered to see whether it is
faster. Of 173 hand plans of 13 programs on four machines, none was faster as lowered by more than
1.16 times what the problem says, over our plan (2026-11-27)."""
_AT_ONCE = ("data parallel", "replicated")
"""Plans that dimension classes carry from arguments to all values about as propagation does."""
_LEAST_SECONDS = 5.0
"""For all hand plans of a program, however short the limit: without them there may be no plan."""


@dataclass(frozen=True, slots=True, eq=False)
class HandPrices:
    """Hand plans of a program, priced in its own planning problem.

    Args:
        priced: By name, those that some choice allows.
        refused: Names of those that no choice allows.
        late: Names of those that time was up for.
    """

    priced: Mapping[str, PricedLayouts]
    refused: tuple[str, ...] = ()
    late: tuple[str, ...] = ()

    @property
    def solutions(self) -> Mapping[str, Solution]:
        """All of them, lowered."""
        return {name: priced.solution for name, priced in self.priced.items()}


def price_hand_plans(
    solution: Solution,
    propagate: Propagate,
    options: SolveOptions,
    annotated: Sequence[Sharding | None] = (),
    stages: Stages | None = None,
) -> HandPrices:
    """Price the hand plans of a program.

    Args:
        solution: Our plan. Arguments whose sharding the user fixed, or that must be sharded like
            what the user fixed, keep theirs.
        propagate: Shardings of all values from those of arguments and results.
        options: For the small solves; together they keep to a part of its time limit.
        annotated: Shardings that arguments carry, captured arrays included.
        stages: Plans take half of the time that is left for planning together.
    """
    encoder, encoded = solution.encoder, solution.encoded
    clock = _Clock(options, stages or Stages())
    fixed = _fixed_ops(encoder, encoded)
    priced: dict[str, PricedLayouts] = {}
    refused: list[str] = []
    late: list[str] = []
    for name, arguments in _plans_for(encoder, encoded, annotated).items():
        if clock.is_short:
            late.append(name)
            continue
        own = _with_fixed(encoder, fixed, arguments, solution.decoded.layouts)
        layouts = spread(encoder, encoded, own, propagate)
        found = price_layouts(solution, layouts, clock.options(), relative_gap=_GAP)
        if found is not None:
            priced[name] = found
        else:
            (late if clock.is_over else refused).append(name)
    return HandPrices(priced, tuple(refused), tuple(late))


def solution_with(
    solution: Solution, arguments: Sequence[Layout], propagate: Propagate, options: SolveOptions
) -> Solution | None:
    """The plan that propagation makes of argument layouts; None where that contradicts requests.

    Args:
        solution: A plan of the same problem.
        arguments: By argument of the program, captured arrays included.
        propagate: Shardings of all values from those of arguments and results.
        options: For the small solve.
    """
    layouts = spread(solution.encoder, solution.encoded, arguments, propagate)
    found = price_layouts(solution, layouts, options)
    return None if found is None else found.solution


def best_by_hand(
    encoder: Encoder,
    encoded: Encoded,
    propagate: Propagate,
    options: SolveOptions,
    stages: Stages | None = None,
) -> tuple[str, tuple[int, ...]] | None:
    """Name and choices of the cheapest hand plan that a problem allows, its memory limit included.

    Once time is over, of those seen so far, if there is one; the replicated plan comes last.

    Args:
        encoder: The problem's.
        encoded: The problem. Arguments whose sharding the user fixed are left free.
        propagate: Shardings of all values from those of arguments and results.
        options: For the small solves; together they keep to a part of its time limit.
        stages: As for `price_hand_plans`.
    """
    clock = _Clock(options, stages or Stages())
    free, fixed = (None,) * len(encoder.graph.values), _fixed_ops(encoder, encoded)
    best: tuple[int, str, tuple[int, ...]] | None = None
    plans = _plans_for(encoder, encoded)
    for name, at_once in _tried(plans, clock):
        if clock.is_short and best is not None and not at_once:
            break
        own = _with_fixed(encoder, fixed, plans[name], free)
        layouts = (
            spread_by_class(encoder, encoded.parts, own)
            if at_once
            else spread(encoder, encoded, own, propagate)
        )
        choices = nearest_choices(encoded, layouts, clock.options(), relative_gap=_GAP).choices
        if choices is None:
            continue
        found = evaluate(encoded.problem, choices)
        if found.is_allowed and (best is None or found.cost < best[0]):
            best = (found.cost, name, choices)
    return None if best is None else best[1:]


def _tried(plans: Collection[str], clock: _Clock) -> list[tuple[str, bool]]:
    """Hand plans in order, each with whether nothing is propagated: no time is left for that."""
    at_once = [(name, True) for name in _AT_ONCE if clock.is_short]
    return at_once + [(name, False) for name in sorted(plans, key=lambda one: one == "replicated")]


def with_floor(
    solution: Solution, prices: HandPrices, budget: int | None, relative_gap: float
) -> Solution:
    """A plan, or the fastest hand plan that fits where that is faster: within the gap it may be."""
    if not solution.is_feasible or solution.rounds:
        return solution
    problem, best = solution.encoded.problem, solution
    most = _FLOOR_MARGIN * evaluate(problem, solution.choices).cost
    for name, by_hand in prices.priced.items():
        choices = by_hand.result.choices
        assert choices is not None
        found = evaluate(problem, choices)
        if not found.is_allowed or found.cost > most:
            continue
        if by_hand.least_seconds >= best.step_seconds:
            continue
        priced = by_hand.solution
        fits = budget is None or priced.peak_bytes <= budget
        if fits and priced.step_seconds < best.step_seconds:
            best = replace(priced, encoded=solution.encoded, hand_plan=name)
    if best is solution:
        return solution
    answer = as_answer(solution, solution.result, best.choices, relative_gap)
    return replace(best, result=answer)


class _Clock:
    """Processor time that plans written by hand may take together: a part of a search's limit.

    Half of the time that is left for planning is for what follows.
    """

    def __init__(self, options: SolveOptions, stages: Stages) -> None:
        self._options, self._stages = options, stages
        left = stages.seconds_left
        self._kept = left / 2 if math.isfinite(left) else 0.0
        seconds = LONG * min(options.time_limit_seconds, left)
        self._ends = time.process_time() + max(seconds, _LEAST_SECONDS)

    @property
    def is_over(self) -> bool:
        return self._seconds_left <= 0 or time.process_time() >= self._ends

    @property
    def is_short(self) -> bool:
        """True where it is over before shardings are propagated."""
        return self.is_over or self._seconds_left < self._stages.propagation_seconds

    @property
    def _seconds_left(self) -> float:
        return 0.0 if self._stages.is_over else self._stages.seconds_left - self._kept

    def options(self) -> SolveOptions:
        """For the next solve."""
        left = max(self._ends - time.process_time(), _LEAST_SECONDS)
        return replace(self._options, engine="auto", time_limit_seconds=left)


def _plans_for(
    encoder: Encoder, encoded: Encoded, annotated: Sequence[Sharding | None] = ()
) -> dict[str, tuple[Layout, ...]]:
    return hand_plans(encoder.graph, encoded.parts, encoder.wishes.alike, annotated)


def _with_fixed(
    encoder: Encoder,
    fixed: set[int],
    arguments: Sequence[Layout],
    layouts: Sequence[Layout | None],
) -> list[Layout | None]:
    """Layouts of arguments; those whose ops the user fixed as they are in `layouts`."""
    return [
        layouts[op.results[0]] if op.index in fixed else layout
        for layout, op in zip(arguments, encoder.graph.arguments, strict=True)
    ]


def _fixed_ops(encoder: Encoder, encoded: Encoded) -> set[int]:
    """Ops whose tensors the user fixed, and those that must end like one of them."""
    graph, wishes = encoder.graph, encoder.wishes
    alike = [
        *({graph.arguments[a].index, graph.results[r].index} for a, r in wishes.alike),
        *({op for op, _ in wish.members} for wish in wishes.groups),
        *({graph.values[value].op for value in group} for group in graph.groups),
        *(
            {argument.index, asked.index}
            for argument, asked in constrained_arguments(graph, wishes)
        ),
    ]
    fixed = set(read_pins(graph, encoded.parts, wishes))
    while any(not fixed.isdisjoint(ops) and not ops <= fixed for ops in alike):
        fixed.update(*(ops for ops in alike if not fixed.isdisjoint(ops)))
    return fixed
