"""The search for states to keep in host memory between steps, where a step does not fit else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.errors import ConstraintError, PlanError
from autoshard.lowering.live_buffers import host_bytes
from autoshard.offload.asked import AskedState
from autoshard.offload.choice import OffloadedStates, StreamedUpdate
from autoshard.offload_candidates import (
    StateCandidate,
    StateCandidates,
    states_bytes,
)
from autoshard.planning.solution import NoPlanInTimeError, Solution
from autoshard.planning.traced_program import TracedProgram
from cost_models.hardware import Host

_MOST_ROUNDS = 3
"""Sets of states that are planned, at most, the last of them all there are. A choice."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedStates:
    """A program with states in host memory, and its plan."""

    program: TracedProgram
    solution: Solution
    offloaded: OffloadedStates


@dataclass(frozen=True, slots=True, eq=False)
class StateSearch:
    """The search for states to keep in host memory.

    Args:
        read: Traces the program again with the states of these updates there.
        plan: Plans a program within the budget.
        budget: Bytes that a device may hold; None for no limit.
        host: The memory of a host as a device sees it.
        asked: By flat argument, why it is to lie there.
    """

    read: Callable[[tuple[StreamedUpdate, ...]], TracedProgram]
    plan: Callable[[TracedProgram], Solution]
    budget: int | None
    host: Host
    asked: Mapping[int, AskedState] = field(default_factory=dict)

    def run(
        self, program: TracedProgram, least: Solution, found: StateCandidates
    ) -> PlannedStates | None:
        """The plan with as few bytes of states in host memory as it takes to fit.

        What is asked goes there, and states of as many bytes as are missing; where that does not
        suffice, as many more as are still missing, and at last all. Parameters follow where the
        bytes of all states are too few.

        Args:
            program: With its residuals as chosen, all states on the device.
            least: Its plan, the one with the least peak where none fits.
            found: What of it could lie in host memory.

        Returns:
            None where no state can lie there; the leanest plan where none fits.

        Raises:
            ConstraintError: What is asked cannot lie there.
        """
        names = program.traced.in_names
        self._refuse_others(found, names)
        best: PlannedStates | None = None
        before: list[StateCandidate] = []
        missing = self._missing_bytes(least)
        for round_ in range(_MOST_ROUNDS):
            is_last = round_ == _MOST_ROUNDS - 1
            chosen = self.chosen(found, sys.maxsize if is_last and missing > 0 else missing)
            if not chosen or chosen == before:
                break
            before = chosen
            tried = self._planned(names, chosen, len(found.with_parameters), least.peak_bytes)
            if tried is None:
                break
            if best is None or tried.solution.peak_bytes < best.solution.peak_bytes:
                best = tried
            if tried.solution.is_feasible:
                return tried
            sent = sum(one.local_bytes for one in chosen)
            missing = sent + self._missing_bytes(tried.solution)
        return best

    def _missing_bytes(self, solution: Solution) -> int:
        return 0 if self.budget is None else solution.peak_bytes - self.budget

    def _refuse_others(self, found: StateCandidates, names: Sequence[str]) -> None:
        """Refuse what is asked of arguments of which none can lie in host memory.

        Raises:
            ConstraintError: Somebody asks that.
        """
        heard = {one.demand for place, one in self.asked.items() if place not in found.refused}
        for place, one in self.asked.items():
            reason = found.refused.get(place)
            if reason is None or one.demand in {None, *heard}:
                continue
            raise ConstraintError(
                f"`{names[place]}` cannot lie in host memory between steps: {reason}",
                where=one.said,
                fix="leave it on the device",
            )

    def chosen(self, found: StateCandidates, num_bytes: int) -> list[StateCandidate]:
        """Candidates that are asked, and few more bytes that suffice, the largest first.

        Args:
            found: What could lie in host memory.
            num_bytes: Of states and parameters, how many are missing on the device.
        """
        states = self._enough(found.updates, num_bytes)
        num_bytes -= sum(one.local_bytes for one in states)
        known = {place for one in found.updates for place in one.update.arguments}
        asked = self.asked.keys() - known
        more = {
            one: [of for of in states if {*of.update.arguments} <= {*one.update.arguments}]
            for one in found.with_parameters
            if not known.issuperset(one.update.arguments)
        }
        for one in sorted(more, key=lambda one: -one.local_bytes):
            if num_bytes > 0 or not asked.isdisjoint(one.update.arguments):
                states = [of for of in states if of not in more[one]]
                states.append(one)
                num_bytes -= one.local_bytes - sum(of.local_bytes for of in more[one])
        return sorted(states, key=lambda one: one.update.arguments)

    def _enough(self, candidates: Sequence[StateCandidate], num_bytes: int) -> list[StateCandidate]:
        """Candidates that are asked, and few more bytes that suffice, the largest first."""
        asked = [
            one for one in candidates if not self.asked.keys().isdisjoint(one.update.arguments)
        ]
        num_bytes -= sum(one.local_bytes for one in asked)
        chosen: list[StateCandidate] = []
        for one in sorted(candidates, key=lambda one: -one.local_bytes):
            if one not in asked and num_bytes > sum(other.local_bytes for other in chosen):
                chosen.append(one)
        spare = sum(one.local_bytes for one in chosen) - num_bytes
        for one in list(chosen):
            if one.local_bytes <= spare:
                chosen.remove(one)
                spare -= one.local_bytes
        return [one for one in candidates if one in asked or one in chosen]

    def _planned(
        self,
        names: Sequence[str],
        chosen: Sequence[StateCandidate],
        num_candidates: int,
        on_device_peak: int,
    ) -> PlannedStates | None:
        """The plan with these states in host memory.

        Returns:
            None where there was no time for one, host memory has no room for them so sharded, or
            their updates wait for one another.
        """
        try:
            program = self.read(tuple(one.update for one in chosen))
            solution = self.plan(program)
        except (NoPlanInTimeError, PlanError):
            return None
        if host_bytes(solution.encoder, solution.decoded) > self.host.capacity_bytes:
            return None
        places = sorted(place for one in program.updates for place in one.arguments)
        local_bytes = states_bytes(solution, places)
        offloaded = OffloadedStates(
            updates=program.updates,
            names=tuple(names[place] for place in places),
            local_bytes=local_bytes,
            seconds=2 * local_bytes / self.host.bytes_per_second,
            num_candidates=num_candidates,
            on_device_peak_bytes=on_device_peak,
        )
        return PlannedStates(program, solution, offloaded)
