"""A decided plan in the planner's own terms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from autoshard.candidates.rounds import ONLY_ROUND, Round
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Decoded, Encoded, decode
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.errors import ConstraintError, InputError
from autoshard.graph.program import Graph
from autoshard.lowering.account import Account, account_of
from autoshard.lowering.estimate import Estimate, estimate
from autoshard.lowering.least_seconds import least_seconds
from autoshard.lowering.local_program import LocalProgram
from autoshard.lowering.lower import lower
from autoshard.lowering.optimizer_outputs import OptimizerOutputs
from autoshard.wishes.pinned import Pin
from solvers import Result, Status, evaluate, proven_status


class NoPlanInTimeError(InputError):
    """Time was up before the solver had any choices."""


class TooLargeError(Exception):
    """No choices fit the budget, as a bound tells before any search, or a search found none.

    Args:
        least_bytes: That any choices hold at one time, or the leanest that were found.
    """

    def __init__(self, least_bytes: int) -> None:
        super().__init__(least_bytes)
        self.least_bytes = least_bytes


@dataclass(frozen=True, slots=True, eq=False)
class DecidedRound:
    """What one round decided.

    Args:
        round: What it was planned under.
        pins: Everything pinned, whatever its priority.
        decoded: The program after it.
        estimate: What that takes.
    """

    round: Round
    pins: tuple[Pin, ...]
    decoded: Decoded
    estimate: Estimate


@dataclass(frozen=True, eq=False)
class Lowered:
    """A decided plan as the program of one device, and what that takes; made on first use."""

    encoder: Encoder
    encoded: Encoded
    decoded: Decoded
    choices: tuple[int, ...]

    @cached_property
    def program(self) -> LocalProgram:
        return lower(self.encoder, self.encoded, self.decoded, self.choices)

    @cached_property
    def estimate(self) -> Estimate:
        return estimate(self.program)


@dataclass(frozen=True, eq=False)
class Solution:
    """A decided plan in the planner's own terms.

    Choices are the least-memory ones where no plan fits the budget.

    Args:
        lowered: The plan on one device.
        rounds: All rounds, the last one included; none where there was only one.
        hand_plan: Name of the plan written by hand that it is; "" for what a solver found.
    """

    graph: Graph
    encoder: Encoder
    encoded: Encoded
    result: Result
    choices: tuple[int, ...]
    decoded: Decoded
    lowered: Lowered
    rounds: tuple[DecidedRound, ...] = ()
    hand_plan: str = ""

    @property
    def is_feasible(self) -> bool:
        return self.result.status.has_choices

    @property
    def is_lowered(self) -> bool:
        """True once somebody asked what the plan takes on one device."""
        return "program" in vars(self.lowered)

    @property
    def local_program(self) -> LocalProgram:
        """Of one device."""
        return self.lowered.program

    @property
    def estimate(self) -> Estimate:
        """Seconds and memory of that program."""
        return self.lowered.estimate

    @cached_property
    def account(self) -> Account:
        """Time by op, collectives and memory, as the plan tells them."""
        return account_of(self.encoded, self.decoded, self.local_program, self.estimate)

    @property
    def peak_bytes(self) -> int:
        """Most bytes that a device holds, fragmentation included."""
        return self.estimate.memory.peak_bytes

    @cached_property
    def alive_bytes(self) -> int:
        """Most bytes that are alive at one time, as solvers count them."""
        return evaluate(self.encoded.problem, self.choices).peak

    @property
    def is_too_large_with_gaps(self) -> bool:
        """Whether no plan was found, and what this one holds at one time would fit."""
        limit = self.encoded.problem.memory_limit
        return not self.is_feasible and limit is not None and self.alive_bytes <= limit

    @cached_property
    def seconds_off_chip(self) -> float:
        """What new states without room on the chip take beside what the problem prices."""
        states = OptimizerOutputs.of(self.encoder, self.decoded)
        return sum(map(states.more_seconds, self.graph.ops))

    @property
    def cost(self) -> int:
        """Of one step in picoseconds, as plans are compared; only of a plan that fits."""
        assert self.result.cost is not None
        unpriced = self.seconds_off_chip + self.estimate.waiting_seconds
        return self.result.cost + round(unpriced * PICOSECONDS)

    @property
    def step_seconds(self) -> float:
        """Of one step, as it was priced: overlap counts where it was asked for."""
        found = self.estimate
        return found.seconds if self.encoder.costing.overlaps else found.blocking_seconds

    @cached_property
    def least_seconds(self) -> float:
        """A bound on the seconds of a step; the plan is not lowered for that."""
        return least_seconds(self.encoder, self.encoded, self.decoded)

    @property
    def overlapped_seconds(self) -> float | None:
        """Of one step with asynchronous collectives; None where the backend has none."""
        if not self.encoder.costing.backend.schedule.overlaps:
            return None
        return self.estimate.seconds

    @property
    def model_gap(self) -> float:
        """Difference of the estimate from the solver's objective for these choices, over that.

        Corrections are of the objective alone, and count in neither.
        """
        objective = (self.result.cost or 0) / PICOSECONDS - self.correction_seconds
        return abs(self.step_seconds / objective - 1.0) if objective > 0 else 0.0

    @cached_property
    def correction_seconds(self) -> float:
        """What corrections by compiled plans add to the price of this one."""
        plain = self.encoded.uncorrected
        if plain is None:
            return 0.0
        now, before = (evaluate(p, self.choices).cost for p in (self.encoded.problem, plain))
        return (now - before) / PICOSECONDS

    @cached_property
    def every_way(self) -> tuple[Encoder, Encoded]:
        """The problem with all candidates, not only those that extend what rounds decided."""
        if self.encoder.round is ONLY_ROUND:
            return self.encoder, self.encoded
        encoder = Encoder(
            self.graph,
            self.encoder.buffers,
            self.encoder.costing,
            self.encoder.wishes,
            self.encoder.memory_limit,
            is_scarce=self.encoder.is_scarce,
            corrections=self.encoder.corrections,
            op_terms=self.encoder.op_terms,
        )
        return encoder, encoder.encode()


def solution_of(
    encoder: Encoder, encoded: Encoded, result: Result, *, is_lowered: bool = True
) -> Solution:
    """The plan that a search found; the leanest one where none fits.

    Args:
        encoder: Of the problem.
        encoded: The problem.
        result: Of the search.
        is_lowered: The plan is lowered now, not on first use.

    Raises:
        NoPlanInTimeError: Time was up before any choices were found.
        ConstraintError: There are none.
    """
    choices = result.choices
    if choices is None:
        choices = result.least_peak_choices
    if choices is None and result.status is Status.NO_SOLUTION:
        raise NoPlanInTimeError(
            "the solver found no plan before its time was up",
            where=f"time limit, after {sum(result.seconds_by_stage.values()):.1f} s",
            fix="raise time_limit_seconds",
        )
    limit, beside_tables = encoder.memory_limit, encoded.problem.memory_limit or 0
    if choices is None and limit is not None and result.least_peak_bound > beside_tables:
        least = result.least_peak_bound + limit - beside_tables
        raise NoPlanInTimeError(
            f"no plan fits {limit} bytes: {least} are needed at least; time was "
            "up before the leanest plan was found",
            where=f"memory_budget and time limit, after {sum(result.seconds_by_stage.values()):.1f}"
            " s",
            fix="raise memory_budget, or time_limit_seconds to see what takes the memory",
        )
    if choices is None:
        raise ConstraintError(
            "the shardings asked for contradict one another: no plan meets all of them",
            where="in_shardings, out_shardings, sharding constraints and groups together",
            fix="free one of them (None or P.UNCONSTRAINED) and plan again",
        )
    taken, decoded = tuple(choices), decode(encoded, choices)
    lowered = Lowered(encoder, encoded, decoded, taken)
    if is_lowered:
        _ = lowered.estimate
    return Solution(encoder.graph, encoder, encoded, result, taken, decoded, lowered)


def as_answer(
    solution: Solution, result: Result, choices: tuple[int, ...], relative_gap: float
) -> Result:
    """Choices that were found for another limit or other costs, as an answer to the problem.

    Args:
        solution: A plan of the problem; what was proven for it holds.
        result: Of the other search.
        choices: Found by it.
        relative_gap: How near the best is near enough.
    """
    found = evaluate(solution.encoded.problem, choices)
    lower_bound = min(solution.result.lower_bound, found.cost)
    return replace(
        result,
        status=proven_status(found.cost, lower_bound, relative_gap),
        choices=choices,
        cost=found.cost,
        peak=found.peak,
        peak_time=found.peak_time,
        lower_bound=lower_bound,
        bound_without_limit=solution.result.bound_without_limit,
    )
