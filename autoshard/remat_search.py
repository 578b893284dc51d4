"""The search for what to keep where a step does not fit: residuals and shardings as one problem."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoshard.constraints import ResidualTerm
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Encoded
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.errors import ConstraintError
from autoshard.frontend.program_facts import read_program
from autoshard.planning.residual_nodes import with_residual_nodes
from autoshard.planning.residual_problem import HOST, KEEP, ResidualProblem
from autoshard.planning.residual_program import LeanProgram
from autoshard.planning.residual_terms import asked_states
from autoshard.planning.searches import Searches
from autoshard.planning.solution import NoPlanInTimeError, Solution
from autoshard.planning.traced_program import TracedProgram
from autoshard.remat.choice import ON_HOST, Residual, ResidualChoice, TriedResiduals
from autoshard.remat.forward_op import ForwardOp
from autoshard.remat.forward_ops import forward_ops, same_equations, value_paths
from autoshard.remat.joint_program import JointProgram
from solvers import Result

MOST_SETS = 3
"""Sets of residuals that are planned, at most, once one but the leanest fits. A choice: each takes
as long as a plan."""
_MOST_UNFIT = 5
"""The same while none does."""
_MOST_JOINT_COLUMNS = 10**9
"""Of the joint problem in all shardings: 8 GB, if no two of its tables were equal. A choice; that
of 126 layers of a 405B Llama on 256 devices has 1.9e9."""
_MOST_SOLVES = 2 * MOST_SETS
"""Of the joint problem, at most: one may find a set that was planned."""
JOINT_GAP = 0.02
"""The gap to which the joint problem is solved. A choice: plans of rewritten programs lie as far
from its answer."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedResiduals:
    """A program with chosen residuals, and its plan."""

    program: TracedProgram
    solution: Solution
    choice: ResidualChoice


@dataclass(frozen=True, slots=True, eq=False)
class _Tried:
    """A set of residuals, with choices of the joint problem, and its plan, if one was found."""

    kept: tuple[str, ...]
    choices: tuple[int, ...] | None
    program: TracedProgram
    solution: Solution | None

    @property
    def fits(self) -> bool:
        return self.solution is not None and self.solution.is_feasible

    @property
    def rank(self) -> tuple[bool, float]:
        """Plans that fit come first, the fastest of them; then the leanest."""
        if self.solution is None:
            return True, float("inf")
        found = self.solution
        return not self.fits, found.step_seconds if self.fits else found.peak_bytes


@dataclass(eq=False)
class RematSearch:
    """The search for what to keep.

    Args:
        read: Traces the program again and rewrites it to keep the residuals of these names.
        encode: The choice problem of a program within the budget.
        plan: Plans a program within the budget.
        simplify: Makes a plan simpler: the chosen one alone, as that is a search of its own.
        searches: For the joint problem.
        budget: Bytes that a device may hold; None for no limit.
        terms: What users ask of residuals.
    """

    read: Callable[[tuple[str, ...]], TracedProgram]
    encode: Callable[[TracedProgram], tuple[Encoder, Encoded]]
    plan: Callable[[TracedProgram], Solution]
    simplify: Callable[[Solution], Solution]
    searches: Searches
    budget: int | None
    terms: tuple[ResidualTerm, ...] = ()
    _tried: list[_Tried] = field(default_factory=list)

    def run(self, written: TracedProgram, as_written_bytes: int | None) -> PlannedResiduals | None:
        """The fastest plan found that fits; the one with the least peak where none does.

        The program that computes again all that can be is planned first. Then the one that keeps
        every residual is encoded with a node for each, and solved: with the shardings of that plan,
        and from there with all free. The program is rewritten to keep what was chosen, and planned:
        only that plan knows what the rewriting makes of fusion and of moved operands. As far as it
        does not fit, or only with a slower plan than the first, the joint problem gets a lower
        limit; where it leaves more room than the gap asked for, a higher one.

        Args:
            written: The program as it is written.
            as_written_bytes: The least peak found for it, or a bound above the budget; None where
                there was no time for either.

        Returns:
            None where the program has no residuals, or none of the sets was planned in time.
        """
        joint = JointProgram.of(written.traced.jaxpr)
        if not joint.has_residuals:
            if self.terms:
                raise ConstraintError(
                    "the program has no backward pass that reads residuals",
                    where=str(self.terms[0]),
                    fix="leave it out, or plan the whole training step",
                )
            return None
        everything = joint.written(joint.everything)
        ops = forward_ops(everything)
        whole = self.read(joint.everything)
        traced = whole.traced
        selectable = read_program(traced.jaxpr, traced.in_names, traced.out_names)
        asked = asked_states(ops, self.terms, selectable)
        least = _leanest(ops, asked)
        lean = self._planned(least)
        if lean.solution is None:
            return None
        leanest = joint.written(least)
        lean_program = LeanProgram(
            lean.solution,
            same_equations(everything.closed.jaxpr, leanest.closed.jaxpr),
            value_paths(leanest),
        )
        problem = with_residual_nodes(*self.encode(whole), ops, lean_program, asked)
        by_policies = tuple((*least, *saved) for saved in joint.saved_by_policies)
        shardings, bound = self._walk(problem, by_policies)
        tried = [
            replace(one, choices=problem.keeping(shardings, one.kept))
            if one.choices is None
            else one
            for one in self._tried
        ]
        place = min(range(len(tried)), key=lambda place: tried[place].rank)
        best = tried[place]
        assert best.solution is not None
        solution = self.simplify(best.solution)
        best = tried[place] = replace(best, solution=solution)
        assert best.choices is not None
        paths = value_paths(joint.written(best.kept)).forward
        lengths = {one.name: op.stack_length or 1 for op in ops for one in op.results}
        residuals = tuple(
            replace(one, local_bytes=_local_bytes(one, paths, lengths, solution))
            for one in problem.residuals(best.choices)
        )
        choice = ResidualChoice(
            kept=best.kept,
            residuals=residuals,
            saved_bytes=sum(
                one.local_bytes for one in residuals if one.is_offloaded or not one.is_kept
            ),
            recomputed_seconds=problem.recomputed_seconds(best.choices),
            bound_seconds=bound if bound is None or bound <= solution.step_seconds else None,
            as_written_peak_bytes=as_written_bytes,
            tried=tuple(_told(problem, one, best) for one in tried),
        )
        return PlannedResiduals(best.program, solution, choice)

    def _walk(
        self, problem: ResidualProblem, by_policies: Sequence[tuple[str, ...]]
    ) -> tuple[tuple[int, ...], float | None]:
        """Plan the sets of a few limits.

        Args:
            problem: The joint problem.
            by_policies: Sets that users would ask for by hand. Of an answer that one of them is
                cheaper than, in its shardings, only these are taken.

        Returns:
            Choices of the joint problem with the shardings of the lean plan, as far as they are
            allowed, and seconds that nothing within the budget is below.
        """
        limit = problem.problem.memory_limit
        start = None if self.searches.is_over else self._solved(problem, limit, as_lean=True)
        answers = () if start is None else (start.choices, start.least_peak_choices)
        hints = [answer for answer in answers if answer is not None]
        shardings = hints[0] if hints else (0,) * problem.problem.num_nodes
        hints += [problem.keeping(shardings, one.kept) for one in self._tried]
        hints.append(problem.cheapest(problem.within(limit), shardings, by_policies)[0])
        bound: float | None = None
        fits, fails, num_failed = 0, None, 0  # limits between which the next one lies
        promised, worth = None, self.searches.options.relative_gap
        is_large = problem.problem.num_columns > _MOST_JOINT_COLUMNS
        for _ in range(_MOST_SOLVES):
            if self.searches.is_over or self._has_enough():
                break
            limited = problem.within(limit)
            found, start = start if is_large else None, None  # the first limit's is known
            found = found or self._solved(problem, limit, *hints, as_lean=is_large)
            if bound is None and not is_large:
                bound = found.lower_bound / PICOSECONDS
            choices = found.choices or found.least_peak_choices
            if choices is None:
                break
            choices, price = problem.cheapest(limited, choices, by_policies)
            if price.is_allowed and promised and price.cost > (1.0 - worth) * promised:
                break
            kept = problem.kept(choices)
            known = next((one for one in self._tried if one.kept == kept), None)
            tried = known or self._planned(kept, choices)
            if tried.solution is None or not price.is_allowed:
                break
            if limit is None or self.budget is None or (known is not None and tried.fits):
                break
            left = self.budget - tried.solution.peak_bytes
            pays = tried.fits and tried.rank <= self._tried[0].rank
            if pays and left <= worth * self.budget:
                break
            if pays:
                fits, limit, promised = limit, limit + left, price.cost
            else:
                fails, num_failed = problem.device_bytes(choices), num_failed + 1
                limit = fails + min(num_failed * -abs(left), -1)
            if fails is not None and not fits < limit < fails:
                limit = (fits + fails) // 2
            hints = [choices]
        return shardings, bound

    def _solved(
        self,
        problem: ResidualProblem,
        limit: int | None,
        *hints: tuple[int, ...],
        as_lean: bool,
    ) -> Result:
        """An answer to the joint problem within a limit.

        Args:
            problem: The joint problem.
            limit: Bytes that a device may hold.
            *hints: Choices to start from.
            as_lean: Only in the shardings of the lean plan, without hints.
        """
        gap = max(JOINT_GAP, self.searches.options.relative_gap)
        if not as_lean:
            limited = problem.within(limit)
            return self.searches.another(limited, *hints, relative_gap=gap, alike_must_fit=True)
        lean = problem.as_lean(limit)
        found = self.searches.another(lean.problem, relative_gap=gap, alike_must_fit=True)
        choices, leanest = (
            None if one is None else lean.restore(one)
            for one in (found.choices, found.least_peak_choices)
        )
        return replace(found, choices=choices, least_peak_choices=leanest)

    def _has_enough(self) -> bool:
        """True once as many sets are planned as are where one fits beside the leanest, or none."""
        finds = any(one.fits for one in self._tried[1:])
        return len(self._tried) >= (MOST_SETS if finds else _MOST_UNFIT)

    def _planned(self, kept: tuple[str, ...], choices: tuple[int, ...] | None = None) -> _Tried:
        """Plan the program that keeps these residuals."""
        program = self.read(kept)
        try:
            solution = self.plan(program)
        except NoPlanInTimeError:
            solution = None
        tried = _Tried(kept, choices, program, solution)
        self._tried.append(tried)
        return tried


def _leanest(ops: Sequence[ForwardOp], asked: Mapping[int, Collection[int]]) -> tuple[str, ...]:
    """Names of what is kept where all is computed again that frees memory.

    Args:
        ops: The forward ops of the program.
        asked: By forward op, the states that users leave to choose.
    """

    def stays(position: int, op: ForwardOp) -> bool:
        if position in asked:
            return asked[position] in ((KEEP,), (HOST,))
        return op.is_read_next or not op.may_repeat

    return tuple(
        one.name + ON_HOST * (asked.get(position) == (HOST,))
        for position, op in enumerate(ops)
        if stays(position, op)
        for one in op.results
    )


def _local_bytes(
    one: Residual, paths: Mapping[str, str], lengths: Mapping[str, int], solution: Solution
) -> int:
    """Bytes that a residual takes in a plan; those of the joint problem where it has none of it.

    Args:
        one: The residual.
        paths: Of forward values in the planned program, by name.
        lengths: Of the stacks they are kept in, likewise.
        solution: The plan.
    """
    value = solution.graph.value_by_path.get(paths.get(one.name, ""))
    if value is None or not one.is_kept:
        return one.local_bytes
    found = solution.graph.values[value], solution.decoded.layouts[value]
    return solution.encoder.room.local_bytes(*found) * lengths[one.name]


def _told(problem: ResidualProblem, one: _Tried, best: _Tried) -> TriedResiduals:
    solution = one.solution
    assert one.choices is not None
    residuals = problem.residuals(one.choices)
    on_device = [one for one in residuals if one.is_kept and not one.is_offloaded]
    return TriedResiduals(
        is_chosen=one is best,
        num_kept=len(on_device),
        kept_bytes=sum(residual.local_bytes for residual in on_device),
        offloaded_bytes=sum(one.local_bytes for one in residuals if one.is_offloaded),
        recomputed_seconds=problem.recomputed_seconds(one.choices),
        seconds=solution.step_seconds if one.fits and solution is not None else None,
        peak_bytes=None if solution is None else solution.peak_bytes,
    )
