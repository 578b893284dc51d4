"""Rounds of compiling, learning and planning again, until nothing is left to win."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from autoshard.aot.compile_process import Underway, finished
from autoshard.build_plan import Solved
from autoshard.encoding.corrections import NO_CORRECTIONS, Corrections, corrected
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.errors import AutoshardError
from autoshard.lowering.estimate import peak_memory
from autoshard.lowering.lower import lower
from autoshard.planning.planner import plan_corrected
from autoshard.planning.searches import SolveOptions
from autoshard.planning.solution import NoPlanInTimeError, Solution
from autoshard.plans.plan import PlanData
from autoshard.plans.refinement import Refinement, TriedPlan
from autoshard.refine.alternatives import alternative
from autoshard.refine.attribution import Observation, observe
from autoshard.refine.choosing import best_of, least_missing
from autoshard.refine.compiled_plan import CYCLES, MEASURED, Compile, CompiledPlan
from autoshard.refine.contenders import Contender, Contenders
from autoshard.refine.learnt import Learnt, in_words, neighbours
from autoshard.report.quantities import format_bytes, format_percent, format_seconds
from autoshard.verification.verification import REFUSED
from solvers import evaluate

KNOWN_ERROR = 0.2
"""Of a predicted peak: plans that miss the budget by less are compiled all the same. The peaks of
93 % of 165 plans were within it (experiments/results/compiled.md, 2026-11-23)."""
FAR_SLOWER = 2.0
"""Times the best compiled step: plans by hand that are predicted to take more compile last. Step
times were predicted 17 to 39 % too low on programs that nobody fitted."""
HOPELESS = 4.0
"""Times the best compiled step: plans by hand that are predicted to take more, with what was learnt
by then, do not compile. The least that any of 136 plans compiled to was 0.31 of what the model
alone had predicted (experiments/results/refined.md, 2026-11-24)."""
WORTH_A_ROUND = 0.01
"""Of the step time: once no plan can win more by the corrected model, refining ends."""
MARGINS = (1.0, 0.3, 0.1)
"""Of the costs, what differs from compiled plans counts more, the most cautious first. A choice:
plans made at corrected prices alone compiled to 3 to 54 % more than those (experiments/results/
refined.md, 2026-11-24), so the next plan differs from what compiled only where that wins more."""
HANGING, LEAST_LIMIT = 10.0, 60.0
"""Times the longest compile so far, and seconds: a compile that takes more than both is ended. A
choice: of the plans of one program, the slowest compiled 6 times as long as the fastest."""
_MOST_FAULTS = 2
_NO_SOLUTION = "no solution"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefineOptions:
    """How long to refine, and for what.

    Args:
        target: As asked: `v5e:2x4`.
        rounds: Of planning and compiling; the first compiles the plan at hand and those by hand.
        minutes: After which no further compile begins; one that runs is ended then.
        start: Corrections from a file.
        tell: Told what is compiled, and since when, line by line.
        observe: Reads what a compiled plan shows.
    """

    target: str
    rounds: int = 4
    minutes: float = 15.0
    start: Corrections = NO_CORRECTIONS
    tell: Callable[[str], None] = lambda _: None
    observe: Callable[[Solution, CompiledPlan], Observation] = observe


@dataclass(frozen=True, slots=True, kw_only=True)
class Refined:
    """The best compiled plan.

    Args:
        data: Its record, with that of the refinement.
        solved: Of the same plan; None for a record that the user passed.
        corrections: Everything that was learnt.
    """

    data: PlanData
    solved: Solved | None
    corrections: Corrections


def refine_plan(
    contenders: Contenders, candidates: Mapping[str, Any], compiles: Compile, options: RefineOptions
) -> Refined:
    """Refine a plan.

    Args:
        contenders: Of the plan.
        candidates: Further plans to compile, by name.
        compiles: The compiler.
        options: How long.
    """
    rounds = _Rounds(contenders, candidates, compiles, options)
    rounds.run()
    return rounds.refined()


class _Outcome(NamedTuple):
    contender: Contender
    compiled: CompiledPlan
    row: TriedPlan


class _Underway(NamedTuple):
    contender: Contender
    round: int
    work: Underway[CompiledPlan]
    spent: float  # seconds to begin it


@dataclass(slots=True, eq=False)
class _Rounds:
    contenders: Contenders
    candidates: Mapping[str, Any]
    compiles: Compile
    options: RefineOptions
    outcomes: list[_Outcome] = field(default_factory=list)
    deferred: list[Contender] = field(default_factory=list)
    hopeless: dict[str, float] = field(default_factory=dict)  # times the best step, by name
    repeated: dict[str, Contender] = field(default_factory=dict)  # by name, the same program
    faults: tuple[str, ...] = ()
    ended: str = ""
    left: float | None = None
    underway: _Underway | None = None
    model_seconds: float | None = None  # for a second of a run; None where plans are compiled
    learnt: Learnt = field(init=False)
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self.learnt = Learnt(self.options.start, neighbours(self.contenders.solved.solution.graph))
        self.deadline = time.monotonic() + 60 * self.options.minutes

    @property
    def budget(self) -> int | None:
        return self.contenders.base.memory_budget

    @property
    def tried(self) -> tuple[TriedPlan, ...]:
        return tuple(
            replace(row, also=tuple(name for name, same in self.repeated.items() if same is one))
            for one, _, row in self.outcomes
        )

    def run(self) -> None:
        """All rounds; somebody who interrupts gets the best so far."""
        try:
            for contender, number in self._in_order():
                if not self._begin(contender, number):
                    break
            self._settle()
        except KeyboardInterrupt:
            self.ended = "interrupted: this is the best so far"
        finally:
            if self.underway is not None:
                self.underway.work.close()

    def _in_order(self) -> Iterator[tuple[Contender, int]]:
        """The plans to compile and their rounds, each made while the one before compiles."""
        yield from ((contender, 1) for contender in self._first())
        for number in range(2, self.options.rounds + 1):
            contender = self._next()
            if contender is None:
                break
            yield contender, number
        else:
            self.ended = f"all {self.options.rounds} rounds were used"
        yield from ((contender, 1) for contender in self._hopeful())

    # -- what is compiled -----------------------------------------------------------------------

    def _first(self) -> Iterator[Contender]:
        """The plan at hand, what the user passes, and the plans by hand as written.

        Plans by hand that the model thinks far slower than what compiled are left for the end.
        """
        solution = self.contenders.solved.solution
        if solution.is_feasible or self._is_nearly_within(solution):
            why = "the plan at hand" if solution.is_feasible else "missed the budget by the model"
            yield self.contenders.of_solution(solution, "optimized", why)
        yield from self.contenders.of_user(self.candidates)
        for contender in self.contenders.by_hand():
            seconds = self._best_seconds()
            if seconds is not None and contender.predicted_seconds > FAR_SLOWER * seconds:
                self.deferred.append(contender)
            else:
                yield contender
        pinned = next(self.contenders.by_hand_pinned(), None)
        if pinned is not None:
            yield pinned

    def _hopeful(self) -> Iterator[Contender]:
        """Plans by hand that were left for the end, without those that cannot be the best."""
        expected = sorted(
            ((self._expected(one), one) for one in self.deferred), key=lambda pair: pair[0]
        )
        for seconds, contender in expected:
            best = self._best_seconds()
            if best is not None and seconds > HOPELESS * best:
                self.hopeless[contender.name] = seconds / best
            else:
                yield contender

    def _expected(self, contender: Contender) -> float:
        """Seconds of a step by the model, with what was learnt since it was planned."""
        solution, corrections = self._in_base(contender), self.learnt.corrections()
        if solution is None or corrections.is_empty:
            return contender.predicted_seconds
        encoded = corrected(solution.encoded, corrections, solution.encoder.node_costs)
        return evaluate(encoded.problem, solution.choices).cost / PICOSECONDS

    def _best_seconds(self) -> float | None:
        """Of a step of the best plan; of one that was run, in seconds of the model."""
        best = best_of(self.tried)
        seconds = None if best is None else self.tried[best].compiled_seconds
        return None if seconds is None else self._priced(seconds)

    def _is_nearly_within(self, solution: Solution) -> bool:
        """Whether a plan misses the budget by no more than the model is known to err."""
        return self.budget is None or solution.peak_bytes <= self.budget * (1 + KNOWN_ERROR)

    def _next(self) -> Contender | None:
        """A plan at corrected costs that was not compiled yet; None where refining ends.

        The most cautious one that wins enough: the best where all that differs from the best
        compiled plan counts with a margin, which becomes smaller; then the best by the corrected
        model. While a plan compiles, the next is planned without it, and once more with it where
        all repeat.
        """
        while True:
            began, num_known = time.monotonic(), len(self.outcomes)
            boldest = self._planned(0.0)
            if boldest is None:
                return None
            seen: set[tuple[int, ...]] = set()
            for margin in MARGINS:
                found = self._planned(margin)
                if self.ended:
                    return None
                if found is None or found.choices in seen:
                    continue
                seen.add(found.choices)
                if self._wins_enough(found):
                    contender = self._contender(found, self._why(margin), began)
                    if self._is_new(contender):
                        return contender
            if boldest.choices not in seen or not self._wins_enough(boldest):
                contender = self._contender(boldest, self._why(0.0), began)
                if self._is_new(contender):
                    return contender
            self._settle()
            if len(self.outcomes) == num_known:
                return self._other(boldest, began)

    def _planned(self, margin: float) -> Solution | None:
        """The best plan at corrected costs and a margin of caution.

        None where there is none, or refining ends.
        """
        options, limit = self._options(), self._limit()
        if options is None:
            return None
        corrections = options.corrections
        if not margin:
            told = in_words(corrections) or "nothing new"
            self.options.tell(f"planning again with {told} corrected")
        try:
            found = plan_corrected(
                self._start(), corrections, limit, options, known=self._known(), margin=margin
            )
        except NoPlanInTimeError:
            if not margin:
                self.ended = "no other plan was found in time"
            return None
        if not margin:
            self._bound(found)
            if self._is_enough(found):
                return None
        elif not found.is_feasible:
            return None
        return found

    def _wins_enough(self, solution: Solution) -> bool:
        """True where a plan is predicted to be worth a round."""
        best = self._cost_of_best(solution)
        cost = solution.result.cost
        return best is None or (cost is not None and cost < (1 - WORTH_A_ROUND) * best)

    def _is_enough(self, solution: Solution) -> bool:
        """True where no plan is worth a round, and refining ends."""
        if self.left is not None and self.left < WORTH_A_ROUND and best_of(self.tried) is not None:
            self.ended = f"at most {format_percent(self.left)} is left to win"
        elif not solution.is_feasible and not self._is_nearly_within(solution):
            self.ended = "no other plan fits the memory budget by the corrected model"
        return bool(self.ended)

    def _options(self) -> SolveOptions | None:
        """For a solve in the time that is left; None where there is none."""
        left = self._seconds_left()
        if left <= 0:
            self._end_in_time()
            return None
        options = self.contenders.solved.setting.options
        seconds = min(options.time_limit_seconds, left)
        corrections = self.learnt.corrections()
        return replace(options, time_limit_seconds=seconds, corrections=corrections)

    def _known(self) -> list[tuple[int, ...]]:
        """Choices of the plans that compiled, in the problem of the plan at hand."""
        compiled = [one.contender for one in self.outcomes if one.compiled.is_compiled]
        found = filter(None, map(self._in_base, compiled))
        return list(dict.fromkeys(one.choices for one in found))

    def _other(self, last: Solution, began: float) -> Contender | None:
        """Where plans repeat: another one that costs hardly more and differs in big tensors."""
        options = self._options()
        if options is None:
            return None
        other = alternative(last, self._known(), options)
        if other is not None:
            why = "the plan repeats; this one costs hardly more and differs in big tensors"
            found = self._contender(other, why, began)
            if self._is_new(found):
                return found
        self.ended = "the plan repeats"
        return None

    def _contender(self, solution: Solution, why: str, began: float) -> Contender:
        seconds = time.monotonic() - began
        return self.contenders.of_solution(solution, "optimized", why, seconds)

    def _is_new(self, contender: Contender) -> bool:
        return self._same_program(contender) is None

    def _same_program(self, contender: Contender) -> Contender | None:
        """The contender begun before that is the same program; None where there is none."""
        begun = [one.contender for one in self.outcomes]
        if self.underway is not None:
            begun.append(self.underway.contender)
        return next((one for one in begun if one.shardings == contender.shardings), None)

    def _why(self, margin: float) -> str:
        limit = self._limit()
        told = list(self.faults[:_MOST_FAULTS])
        if margin:
            told.append(f"what differs from compiled plans counts {format_percent(margin)} more")
        if limit is not None and self.budget is not None and limit < self.budget:
            told.append(f"{format_bytes(self.budget - limit)} more kept free for the compiler")
        return "; ".join(told) or "prices of compiled ops and collectives"

    def _start(self) -> Solution:
        """The plan at hand's problem, with the choices of the fastest plan that is known there."""
        base = self.contenders.solved.solution
        for one in sorted(self.outcomes, key=lambda one: one.row.compiled_seconds or math.inf):
            solution = self._in_base(one.contender)
            if solution is not None and one.row.fits and one.row.compiled_seconds is not None:
                return replace(base, choices=solution.choices)
        return base

    def _in_base(self, contender: Contender) -> Solution | None:
        """A plan in the problem of the plan at hand; None where that has not all of its choices."""
        base, solution = self.contenders.solved.solution.encoded, contender.solution
        if solution is None or not base.has_choices_of(solution.encoded):
            return None
        return replace(solution, encoded=base)

    def _limit(self) -> int | None:
        """The budget without what compiled plans held beyond their corrected predictions.

        Where a plan that the model thought too large was compiled, as much more as it held less;
        where all plans held less than predicted, as much more as they did at least. Plans that the
        model thought far too large say nothing of those near the budget.
        """
        budget = self.budget
        if budget is None:
            return None
        compiled = [
            (one.compiled.peak_bytes, one.contender.solution)
            for one in self.outcomes
            if one.contender.solution is not None
            and one.compiled.peak_bytes is not None
            and self._is_nearly_within(one.contender.solution)
        ]
        over = [one for one in compiled if one[0] > budget or not one[1].is_feasible]
        if not over and all(one.peak_bytes < budget * (1 - KNOWN_ERROR) for _, one in compiled):
            return budget
        corrections = self.learnt.corrections()
        beyond = [peak - _corrected_peak(one, corrections) for peak, one in over or compiled]
        more = max(beyond) if over else max(min(max(beyond), 0), -int(KNOWN_ERROR * budget))
        return max(budget - more, 0)

    def _bound(self, solution: Solution) -> None:
        """What any plan can win over the best one by the corrected model."""
        cost = self._cost_of_best(solution)
        if cost and solution.is_feasible and self.model_seconds is None:  # a run prices no op
            self.left = max(1 - solution.result.lower_bound / cost, 0.0)

    def _cost_of_best(self, solution: Solution) -> float | None:
        """Cost of the best compiled plan at the prices of another one; None where none compiled."""
        best = best_of(self.tried)
        if best is None:
            return None
        known = self.outcomes[best].contender.solution
        if known is not None and known.encoded.has_choices_of(solution.encoded):
            return float(evaluate(solution.encoded.problem, known.choices).cost)
        return self._priced(self.tried[best].compiled_seconds or 0.0) * PICOSECONDS

    # -- compiling ------------------------------------------------------------------------------

    def _begin(self, contender: Contender, number: int) -> bool:
        """Begin to compile a contender, once the one before it is done; false where time is up."""
        self._settle()
        same = self._same_program(contender)
        if same is not None:
            self.repeated[contender.name] = same
            return True
        if self._seconds_left() <= 0:
            self._end_in_time()
            return False
        last = f"; the last took {self.tried[-1].compile_seconds:.0f} s" if self.tried else ""
        since = f"for {self.options.target} since {time.strftime('%H:%M:%S')}"
        self.options.tell(f"round {number}: {contender.name} compiles {since}{last}")
        began = time.monotonic()
        work = self.compiles(contender.data, self._compile_limit())
        self.underway = _Underway(contender, number, work, 0.0)
        try:
            next(work)
        except (StopIteration, AutoshardError) as end:
            self._settle(end)
        else:
            self.underway = self.underway._replace(spent=time.monotonic() - began)
        return True

    def _settle(self, end: StopIteration | AutoshardError | None = None) -> None:
        """Wait for the contender that is underway, and learn from it.

        Args:
            end: How its work ended, where it has.
        """
        if self.underway is None:
            return
        began = time.monotonic()
        contender, number, work, spent = self.underway
        try:
            if isinstance(end, AutoshardError):
                raise end
            compiled: CompiledPlan = finished(work) if end is None else end.value
        except AutoshardError as error:
            constraints = contender.data.constraints or {}
            compiled = CompiledPlan(status=REFUSED, constraints=constraints, reason=error.what)
        self.underway = None
        row = self._row(contender, compiled, number, spent + time.monotonic() - began)
        self.outcomes.append(_Outcome(contender, compiled, row))
        told = compiled.reason or compiled.status
        if row.compiled_seconds is not None:
            told = format_seconds(row.compiled_seconds)
        self.options.tell(f"round {number}: {contender.name}: {told}")
        solution = self._in_base(contender)
        if compiled.seconds is not None:
            if compiled.measure == MEASURED and self.model_seconds is None:
                self.model_seconds = contender.predicted_seconds / compiled.seconds
            compiled = replace(compiled, seconds=self._priced(compiled.seconds))
        if solution is not None and compiled.seconds is not None:
            seen = self.options.observe(solution, compiled)
            self.learnt.add(seen, compiled.seconds)
            self.faults = seen.faults

    def _priced(self, seconds: float) -> float:
        """Seconds of a step in those of the model: the first plan that was run takes its price."""
        return seconds * (1.0 if self.model_seconds is None else self.model_seconds)

    def _row(
        self, contender: Contender, compiled: CompiledPlan, number: int, seconds: float
    ) -> TriedPlan:
        budget, best = self.budget, best_of(self.tried)
        peak = compiled.peak_bytes
        before = None if best is None else self.tried[best].compiled_seconds
        return TriedPlan(
            round=number,
            name=contender.name,
            status=compiled.status,
            why="; ".join(filter(None, (contender.why, compiled.reason))),
            predicted_seconds=contender.predicted_seconds,
            compiled_seconds=compiled.seconds,
            spread_seconds=compiled.spread_seconds,
            predicted_bytes=contender.data.memory.peak_bytes,
            compiled_bytes=peak,
            fits=peak is not None and (budget is None or peak <= budget),
            num_constraints=len(compiled.constraints),
            best_before=before,
            compile_seconds=seconds,
            plan_seconds=contender.plan_seconds,
        )

    def _seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def _compile_limit(self) -> float:
        """Seconds for one compile, so that one that hangs leaves time for the others."""
        left = self._seconds_left()
        taken = [one.row.compile_seconds for one in self.outcomes if one.compiled.is_compiled]
        return min(left, max(HANGING * max(taken), LEAST_LIMIT)) if taken else left / 2

    def _end_in_time(self) -> None:
        self.ended = f"the {self.options.minutes:g} minutes were over"

    def _how_it_ended(self) -> str:
        """Why no further round followed, with the plans of the first that were not compiled."""
        known = {one.name for one in self.tried} | self.repeated.keys()
        told = [
            f"{name} (predicted {self.hopeless[name]:.1f} times the best step)"
            if name in self.hopeless
            else name
            for name in self.contenders.names_beside(self.candidates)
            if name not in known
        ]
        return f"{self.ended}; not compiled: {', '.join(told)}" if told else self.ended

    # -- the answer -----------------------------------------------------------------------------

    def refined(self) -> Refined:
        """The best compiled plan that fits; where none does, the one that misses by the least."""
        corrections = self.learnt.corrections()
        best, missing = best_of(self.tried), 0
        place = best
        if best is None and self.budget is not None:
            place, missing = least_missing(self.tried, self.budget)
        compiled_plans = [one.compiled for one in self.outcomes]
        record = Refinement(
            target=self.options.target,
            compiler=next((c.compiler for c in compiled_plans if c.compiler), ""),
            measure=next((c.measure for c in compiled_plans if c.is_compiled), CYCLES),
            memory_budget=self.budget,
            tried=self.tried,
            chosen=best,
            ended=self._how_it_ended(),
            left=self.left,
            missing_bytes=missing,
            corrected=in_words(corrections),
        )
        if place is None:
            data = replace(self.contenders.base, refinement=record)
            return Refined(data=data, solved=self.contenders.solved, corrections=corrections)
        contender, compiled, _ = self.outcomes[place]
        data = replace(contender.data, constraints=compiled.constraints, refinement=record)
        data = replace(data, baselines=self.contenders.base.baselines)
        if best is None:
            data = _unfit(data, missing)
        return Refined(data=data, solved=contender.solved, corrections=corrections)


def _corrected_peak(solution: Solution, corrections: Corrections) -> int:
    """Peak of a plan by the model, with the memory terms of corrections."""
    encoder = solution.encoder
    encoded = corrected(solution.encoded, corrections, encoder.node_costs)
    program = lower(encoder, encoded, solution.decoded, solution.choices)
    return peak_memory(program).peak_bytes


def _unfit(data: PlanData, missing: int) -> PlanData:
    """The plan that misses the budget by the least, as no plan to apply."""
    advice = (
        f"No plan was found that compiles within the memory budget; the best misses it by"
        f" {missing:,} bytes as compiled: raise memory_budget by that, use more devices, make the"
        " batch smaller, or run it over microbatches (accumulate=)."
    )
    return replace(data, solver=replace(data.solver, status=_NO_SOLUTION, advice=advice))
