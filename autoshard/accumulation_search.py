"""The search for a number of microbatches: the fewest parts of a batch with which a step fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from autoshard.accumulation.choice import Accumulation, Microbatches, TriedCount
from autoshard.build_plan import Solved
from autoshard.errors import InputError
from autoshard.planned_call import example_dims
from autoshard.planning.stages import Stages
from autoshard.planning.traced_program import TracedProgram


@dataclass(frozen=True, slots=True)
class BatchOfProgram:
    """Where a program has its examples.

    Args:
        size: Of them.
        dims: Per flat argument, the dimension they are along; None where there is none.
    """

    size: int
    dims: tuple[int | None, ...]

    @staticmethod
    def of(program: TracedProgram) -> BatchOfProgram:
        """The batch of a program.

        Raises:
            InputError: Nothing tells where its examples are.
        """
        found = tuple(min(dims, default=None) for dims in example_dims(program, guess=True))
        avals = program.traced.in_avals
        sizes = [aval.shape[d] for aval, d in zip(avals, found, strict=False) if d is not None]
        if not sizes or any(size % min(sizes) for size in sizes):
            raise InputError(
                "nothing in the program tells which dimension of its arguments examples are along,"
                " and so it cannot run over microbatches",
                where="accumulate=",
                fix="donate the state that a step gives back (donate_argnums=0), which tells"
                " parameters from examples; or plan without accumulate=",
            )
        return BatchOfProgram(min(sizes), found)

    def split(self, count: int) -> Microbatches:
        """So many microbatches.

        Raises:
            InputError: They would not be of one size.
        """
        if self.size % count:
            raise InputError(
                f"{count} microbatches do not divide a batch of {self.size} examples",
                where=f"accumulate={count}",
                fix="give a number that divides it, accumulate=None, or a batch of another size",
            )
        return Microbatches(count=count, dims=self.dims)


@dataclass(frozen=True, slots=True, eq=False)
class AccumulationSearch:
    """The search for a number of microbatches.

    Args:
        solve: Plans the program over microbatches; what it computes again is chosen too, or not.
        batch: Of the program.
        stages: No other number is tried once they are over.
    """

    solve: Callable[[Microbatches | None, bool], Solved]
    batch: BatchOfProgram
    stages: Stages

    def given(self, count: int) -> Solved:
        """The plan with so many microbatches.

        Raises:
            InputError: There is no such number of equal parts, or examples do not stay apart.
        """
        parts = self.batch.split(count)
        return replace(self.solve(parts, True), accumulation=self._record(parts, ()))

    def auto(self) -> Solved:
        """The fastest plan found that fits; the one with the least peak where none does.

        The batch as a whole comes first, and is all there is where it fits as it is written. Else
        2, 4, 8 and more microbatches are tried until the program fits as it is written, and half of
        these with other residuals.
        """
        whole = self.solve(None, True)
        found: dict[int, tuple[Microbatches | None, Solved]] = {1: (None, whole)}
        if whole.solution.is_feasible and whole.residuals is None:
            return whole
        try:
            self.stages.settled(lambda: self._double(found))
        except InputError as error:
            note = f"accumulate: {error.what}" + (f" ({error.where})" if error.where else "")
            return replace(whole, notes=(*whole.notes, note))
        last = max(found)
        again = last // 2 if found[last][1].solution.is_feasible else last
        if again > 1 and not self.stages.is_over:
            parts = self.batch.split(again)
            found[again] = parts, self.solve(parts, True)
        count = min(found, key=lambda one: _rank(found[one][1]))
        chosen, solved = found[count]
        if not solved.solution.is_feasible and self.stages.is_over:
            note = f"accumulate: time was over after {last} microbatches; raise time_limit_seconds"
            solved = replace(solved, notes=(*solved.notes, note))
        tried = tuple(_tried(one, found[one][1]) for one in sorted(found))
        return replace(solved, accumulation=None if chosen is None else self._record(chosen, tried))

    def _double(self, found: dict[int, tuple[Microbatches | None, Solved]]) -> None:
        """Plan with 2, 4, 8 and more microbatches, as long as planning lasts and none fits."""
        count = 2
        while self.batch.size % count == 0 and not self.stages.is_over:
            parts = self.batch.split(count)
            found[count] = parts, self.solve(parts, False)
            if found[count][1].solution.is_feasible:
                break
            count *= 2

    def _record(self, parts: Microbatches, tried: tuple[TriedCount, ...]) -> Accumulation:
        return Accumulation(microbatches=parts, batch_size=self.batch.size, tried=tried)


def _rank(solved: Solved) -> tuple[bool, float]:
    solution = solved.solution
    return not solution.is_feasible, (
        solution.step_seconds if solution.is_feasible else solution.peak_bytes
    )


def _tried(count: int, solved: Solved) -> TriedCount:
    solution = solved.solution
    return TriedCount(
        count=count,
        seconds=solution.step_seconds if solution.is_feasible else None,
        peak_bytes=solution.peak_bytes,
    )
