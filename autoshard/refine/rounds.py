"""Rounds of compiling, learning and planning again, until nothing is left to win."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from autoshard.aot.compile_process import Underway, finished
from autoshard.build_plan import Solved
from autoshard.encoding.corrections import NO_CORRECTIONS, Corrections
from autoshard.errors import AutoshardError
from autoshard.planning.solution import Solution
from autoshard.plans.plan import PlanData
from autoshard.plans.refinement import Refinement
from autoshard.refine.attribution import Observation, observe
from autoshard.refine.choosing import best_of, least_missing
from autoshard.refine.compiled_plan import CYCLES, Compile, CompiledPlan
from autoshard.refine.contenders import Contender, Contenders
from autoshard.refine.corrections_file import SavedCorrections
from autoshard.refine.learnt import Learnt, in_words, neighbours
from autoshard.refine.outcomes import Outcomes
from autoshard.refine.replanning import REPEATS, NoFurtherRoundError, Proposal, Replanner
from autoshard.report.quantities import format_seconds
from autoshard.verification.verification import REFUSED, TIMED_OUT

FAR_SLOWER = 2.0
"""Times the best compiled step: plans by hand that are predicted to take more compile last. Step
times were predicted 17 to 39 % too low on programs that nobody fitted."""
HOPELESS = 4.0
"""Times the best compiled step: plans by hand that are predicted to take more, with what was learnt
by then, do not compile. The least that any of 136 plans compiled to was 0.31 of what the model
alone had predicted (experiments/results/refined.md, 2026-11-24)."""
HANGING, LEAST_LIMIT = 10.0, 60.0
"""Times the longest compile so far, and seconds: a compile that takes more than both is ended. A
choice: of the plans of one program, the slowest compiled 6 times as long as the fastest."""
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

    def learnt(self, data: PlanData) -> SavedCorrections:
        """The corrections that refining a plan found, for a file."""
        assert self.data.refinement is not None
        return SavedCorrections(
            function=data.function,
            program=data.planned_program,
            hardware=data.hardware,
            compiler=self.data.refinement.compiler,
            corrections=self.corrections,
        )


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
    deferred: list[Contender] = field(default_factory=list)
    hopeless: dict[str, float] = field(default_factory=dict)  # times the best step, by name
    round: int = 1  # the last that began
    ended: str = ""
    underway: _Underway | None = None
    outcomes: Outcomes = field(init=False)
    replanner: Replanner = field(init=False)
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        solved = self.contenders.solved
        learnt = Learnt(self.options.start, neighbours(solved.solution.graph))
        budget = self.contenders.base.memory_budget
        self.outcomes = Outcomes(base=solved.solution, budget=budget, learnt=learnt)
        self.replanner = Replanner(
            self.outcomes, solved.setting.options, self._seconds_left, self.options.tell
        )
        self.deadline = time.monotonic() + 60 * self.options.minutes

    def run(self) -> None:
        """All rounds; somebody who interrupts gets the best so far."""
        try:
            self._compile_in_order()
        except KeyboardInterrupt:
            self.ended = "interrupted: this is the best so far"
        finally:
            if self.underway is not None:
                self.underway.work.close()

    def _compile_in_order(self) -> None:
        try:
            for contender, number in self._in_order():
                self._begin(contender, number)
        except NoFurtherRoundError as end:  # time is up
            self.ended = str(end)
        self._settle()

    def _in_order(self) -> Iterator[tuple[Contender, int]]:
        """The plans to compile and their rounds, each made while the one before compiles.

        Rounds that are left once nothing is to be won follow the plans by hand that compile last:
        those may show what makes another plan worth a round.
        """
        yield from ((contender, 1) for contender in self._first())
        yield from self._further()
        num_known = len(self.outcomes.every)
        yield from ((contender, 1) for contender in self._hopeful())
        self._settle()
        if len(self.outcomes.every) > num_known:
            yield from self._further()

    def _further(self) -> Iterator[tuple[Contender, int]]:
        """Plans at corrected costs, until nothing is to be won or the rounds are used."""
        while self.round < self.options.rounds:
            try:
                contender = self._next()
            except NoFurtherRoundError as end:
                self.ended = str(end)
                return
            self.round += 1
            yield contender, self.round
        self.ended = f"all {self.options.rounds} rounds were used"

    # -- what is compiled -----------------------------------------------------------------------

    def _first(self) -> Iterator[Contender]:
        """The plan at hand, what the user passes, and the plans by hand as written.

        Plans by hand that the model thinks far slower than what compiled are left for the end.
        """
        solution = self.contenders.solved.solution
        if solution.is_feasible or self.outcomes.is_nearly_within(solution):
            why = "the plan at hand" if solution.is_feasible else "missed the budget by the model"
            yield self.contenders.of_solution(solution, "optimized", why)
        yield from self.contenders.of_user(self.candidates)
        for contender in self.contenders.by_hand():
            seconds = self.outcomes.best_seconds()
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
            ((self.outcomes.expected_seconds(one), one) for one in self.deferred),
            key=lambda pair: pair[0],
        )
        for seconds, contender in expected:
            best = self.outcomes.best_seconds()
            if best is not None and seconds > HOPELESS * best:
                self.hopeless[contender.name] = seconds / best
            else:
                yield contender

    def _next(self) -> Contender:
        """A plan at corrected costs that was not compiled yet.

        While a plan compiles, the next is planned without it, and once more with it where all
        repeat or nothing is to be won.

        Raises:
            NoFurtherRoundError: There is none.
        """
        while True:
            began, num_known = time.monotonic(), len(self.outcomes.every)
            contender, ended = self._proposed(began)
            if contender is not None:
                return contender
            self._settle()
            if len(self.outcomes.every) > num_known:
                continue
            if ended is not None:
                raise ended
            return self._other(began)

    def _proposed(self, began: float) -> tuple[Contender | None, NoFurtherRoundError | None]:
        """The first proposal that is new, or why there is no further one."""
        try:
            for proposal in self.replanner.proposals():
                contender = self._contender(proposal, began)
                if self._same_program(contender) is None:
                    return contender, None
        except NoFurtherRoundError as end:
            return None, end
        return None, None

    def _other(self, began: float) -> Contender:
        contender = self._contender(self.replanner.other(), began)
        if self._same_program(contender) is not None:
            raise NoFurtherRoundError(REPEATS)
        return contender

    def _contender(self, proposal: Proposal, began: float) -> Contender:
        seconds = time.monotonic() - began
        return self.contenders.of_solution(
            proposal.solution, "optimized", proposal.why, plan_seconds=seconds
        )

    def _same_program(self, contender: Contender) -> Contender | None:
        """The contender begun before that is the same program; None where there is none."""
        begun = [one.contender for one in self.outcomes.every]
        if self.underway is not None:
            begun.append(self.underway.contender)
        return next((one for one in begun if one.shardings == contender.shardings), None)

    # -- compiling ------------------------------------------------------------------------------

    def _begin(self, contender: Contender, number: int) -> None:
        """Begin to compile a contender, once the one before it is done.

        Raises:
            NoFurtherRoundError: Time is up.
        """
        self._settle()
        same = self._same_program(contender)
        if same is not None:
            self.outcomes.repeated[contender.name] = same
            return
        self._seconds_left()
        tried = self.outcomes.tried
        last = f"; the last took {tried[-1].compile_seconds:.0f} s" if tried else ""
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
        row = self.outcomes.add(contender, compiled, number, spent + time.monotonic() - began)
        told = compiled.reason or compiled.status
        if row.compiled_seconds is not None:
            told = format_seconds(row.compiled_seconds)
        self.options.tell(f"round {number}: {contender.name}: {told}")
        self._learn(contender, compiled)

    def _learn(self, contender: Contender, compiled: CompiledPlan) -> None:
        solution = self.outcomes.in_base(contender)
        if solution is not None and compiled.seconds is not None:
            seconds = self.outcomes.priced(compiled.seconds)
            seen = self.options.observe(solution, replace(compiled, seconds=seconds))
            self.outcomes.learn(seen, seconds)

    def _seconds_left(self) -> float:
        """Seconds until the minutes are over.

        Raises:
            NoFurtherRoundError: They are.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise NoFurtherRoundError(f"the {self.options.minutes:g} minutes were over")
        return left

    def _compile_limit(self) -> float:
        """Seconds for one compile, so that one that hangs leaves time for the others.

        The first may take half of what is left. Once one ran out of time and none compiled, the
        next may take all: less would hardly do.
        """
        left, every = self._seconds_left(), self.outcomes.every
        taken = [one.row.compile_seconds for one in every if one.compiled.is_compiled]
        if taken:
            return min(left, max(HANGING * max(taken), LEAST_LIMIT))
        return left if any(one.compiled.status == TIMED_OUT for one in every) else left / 2

    def _how_it_ended(self) -> str:
        """Why no further round followed, with the plans of the first that were not compiled."""
        known = {one.name for one in self.outcomes.tried} | self.outcomes.repeated.keys()
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
        corrections = self.outcomes.learnt.corrections()
        tried, budget = self.outcomes.tried, self.outcomes.budget
        best, missing = best_of(tried), 0
        place = best
        if best is None and budget is not None:
            place, missing = least_missing(tried, budget)
        compiled_plans = [one.compiled for one in self.outcomes.every]
        record = Refinement(
            target=self.options.target,
            compiler=next((c.compiler for c in compiled_plans if c.compiler), ""),
            measure=next((c.measure for c in compiled_plans if c.is_compiled), CYCLES),
            memory_budget=budget,
            tried=tried,
            chosen=best,
            ended=self._how_it_ended(),
            left=self.replanner.left,
            missing_bytes=missing,
            corrected=in_words(corrections),
        )
        if place is None:
            data = replace(self.contenders.base, refinement=record)
            return Refined(data=data, solved=self.contenders.solved, corrections=corrections)
        contender, compiled, _ = self.outcomes.every[place]
        data = replace(contender.data, constraints=compiled.constraints, refinement=record)
        data = replace(data, baselines=self.contenders.base.baselines)
        if best is None:
            data = _unfit(data, missing)
        return Refined(data=data, solved=contender.solved, corrections=corrections)


def _unfit(data: PlanData, missing: int) -> PlanData:
    """The plan that misses the budget by the least, as no plan to apply."""
    advice = (
        f"No plan was found that compiles within the memory budget; the best misses it by"
        f" {missing:,} bytes as compiled: raise memory_budget by that, use more devices, make the"
        " batch smaller, or run it over microbatches (accumulate=)."
    )
    return replace(data, solver=replace(data.solver, status=_NO_SOLUTION, advice=advice))
