"""The search for what to keep where a step does not fit: residual sets, each of them planned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from autoshard.constraints.program import holder_of
from autoshard.planning.solution import NoPlanInTimeError, Solution
from autoshard.planning.traced_program import TracedProgram
from autoshard.remat.choice import ResidualChoice, TriedResiduals
from autoshard.remat.forward_costs import PricedProgram, StepPrices
from autoshard.remat.joint_program import JointProgram


@dataclass(frozen=True, slots=True, eq=False)
class PlannedResiduals:
    """A program with chosen residuals, and its plan."""

    program: TracedProgram
    solution: Solution
    choice: ResidualChoice


@dataclass(eq=False)
class RematSearch:
    """The search for what to keep.

    Args:
        read: Traces the program again and rewrites it to keep the residuals of these names.
        plan: Plans a program within a number of bytes a device, or without a limit.
        budget: Bytes that a device may hold.
        bytes_per_second: Of the memory of a device.
    """

    read: Callable[[tuple[str, ...]], TracedProgram]
    plan: Callable[[TracedProgram, int | None], Solution]
    budget: int
    bytes_per_second: float
    _found: dict[int, tuple[TracedProgram, Solution | None]] = field(default_factory=dict)

    def run(self, written: TracedProgram, as_written: Solution | None) -> PlannedResiduals | None:
        """The fastest plan found that fits; the one with the least peak where none does.

        The program is planned once with every residual kept and without a limit, which prices what
        its forward passes compute and keep. Minimum cuts at several prices of memory give a ladder
        of sets. The first that should fit is planned; then, by halves, the one that keeps most of
        those that fit; then those that keep less, as long as that is faster.

        Args:
            written: The program as it is written.
            as_written: Its plan with the least peak; None where none was found in time.

        Returns:
            None where the program has no residuals, or none of the sets was planned in time.
        """
        joint = JointProgram.of(written.traced.jaxpr)
        if not joint.has_residuals:
            return None
        everything = joint.written(joint.everything)
        whole = self.read(joint.everything)
        try:
            unlimited = self.plan(whole, None)
        except NoPlanInTimeError:
            return None
        priced = PricedProgram.of(everything, step_prices(unlimited, self.bytes_per_second))
        ladder = priced.costs.ladder
        saved = [_everything_bytes(priced) - one.num_bytes for one in ladder]
        over = unlimited.peak_bytes - self.budget
        should_fit = [position for position, bytes_ in enumerate(saved) if bytes_ >= over]
        self._walk(priced, should_fit[0] if should_fit else len(ladder) - 1)
        tried = {position: one for position, one in self._found.items() if one[1] is not None}
        if not tried:
            return None
        best = min(tried, key=self._rank)
        program, solution = tried[best]
        assert solution is not None
        choice = ResidualChoice(
            kept=priced.names(ladder[best]),
            residuals=priced.residuals(ladder[best]),
            saved_bytes=saved[best],
            recomputed_seconds=ladder[best].seconds,
            as_written_peak_bytes=None if as_written is None else as_written.peak_bytes,
            tried=self._told(priced, best),
        )
        return PlannedResiduals(program, solution, choice)

    def _walk(self, priced: PricedProgram, start: int) -> None:
        """Plan a set that should fit, then others as long as they are of use."""
        last = len(priced.costs.ladder) - 1
        too_much, position = -1, start
        if not self._fits(priced, start):
            too_much, position = start, last
            if not self._fits(priced, last):
                return
        while position - too_much > 1:
            middle = (too_much + position) // 2
            if self._fits(priced, middle):
                position = middle
            else:
                too_much = middle
        while position < last and self._fits(priced, position + 1):
            if self._rank(position + 1) >= self._rank(position):
                return
            position += 1

    def _fits(self, priced: PricedProgram, position: int) -> bool:
        """Whether the best plan found for a set of the ladder fits."""
        if position not in self._found:
            names = priced.names(priced.costs.ladder[position])
            program = self.read(names)
            try:
                self._found[position] = program, self.plan(program, self.budget)
            except NoPlanInTimeError:
                self._found[position] = program, None
        solution = self._found[position][1]
        return solution is not None and solution.is_feasible

    def _rank(self, position: int) -> tuple[bool, float]:
        solution = self._found[position][1]
        assert solution is not None
        fits = solution.is_feasible
        return not fits, solution.cost if fits else solution.peak_bytes

    def _told(self, priced: PricedProgram, best: int) -> tuple[TriedResiduals, ...]:
        told = []
        for position in sorted(self._found):
            one, solution = priced.costs.ladder[position], self._found[position][1]
            fits = solution is not None and solution.is_feasible
            told.append(
                TriedResiduals(
                    is_chosen=position == best,
                    num_kept=sum(not priced.costs.values[i].is_fused for i in one.kept),
                    kept_bytes=one.num_bytes,
                    recomputed_seconds=one.seconds,
                    seconds=solution.step_seconds if fits and solution is not None else None,
                    peak_bytes=None if solution is None else solution.peak_bytes,
                )
            )
        return tuple(told)


def _everything_bytes(priced: PricedProgram) -> int:
    """Bytes of all that backward passes read, kept."""
    values = priced.costs.values
    return sum(one.num_bytes for one in values if one.is_required)


def step_prices(solution: Solution, bytes_per_second: float) -> StepPrices:
    """What a planned step takes, by jaxpr path."""
    graph, program = solution.graph, solution.local_program
    runs = program.runs()
    seconds: defaultdict[str, float] = defaultdict(float)

    def add(op: int, spent: float) -> None:
        equation = graph.ops[op].equation
        while equation:
            seconds[equation] += spent
            equation = holder_of(equation)

    for kernel in program.kernels:
        add(kernel.op, kernel.seconds * runs[kernel.body])
    for one in program.collectives:
        add(one.op, one.seconds * one.count * runs[one.body])
    parts, stored = solution.encoded.parts, solution.encoder.buffers.is_stored
    return StepPrices(
        seconds=seconds,
        local_bytes={
            path: graph.values[value].num_bytes // parts.num_pieces(solution.decoded.layouts[value])
            for path, value in graph.value_by_path.items()
        },
        unstored=frozenset(p for p, value in graph.value_by_path.items() if not stored[value]),
        bytes_per_second=bytes_per_second,
    )
