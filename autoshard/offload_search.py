"""The search for states to keep in host memory between steps, where a step does not fit else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.constraints import Offload
from autoshard.errors import ConstraintError
from autoshard.graph.program import Value
from autoshard.offload.choice import OffloadedStates, StreamedUpdate
from autoshard.offload.streamed import updates_of
from autoshard.planning.solution import NoPlanInTimeError, Solution
from autoshard.planning.traced_program import TracedProgram
from autoshard.sharding import Sharding
from cost_models.hardware import Host

_MOST_ROUNDS = 3
"""Sets of states that are planned, at most, the last of them all states. A choice."""
_PART_BYTES = 8 * 2**20
"""Of states that are on a device at once in an update, if they can be taken apart so far. A choice:
a part takes milliseconds on the link, and the loop microseconds."""
_LEAST_BYTES = 2**20
"""Of states of one update on a device: less is not worth a loop. A choice."""
_TILE = 128
"""Parts of the last two dimensions are multiples of it, as devices store tiles."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedStates:
    """A program with states in host memory, and its plan."""

    program: TracedProgram
    solution: Solution
    offloaded: OffloadedStates


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An update whose states could lie in host memory.

    Args:
        update: How it is taken apart.
        local_bytes: Of its states, on one device if they are there.
    """

    update: StreamedUpdate
    local_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class StateSearch:
    """The search for states to keep in host memory.

    Args:
        read: Traces the program again with the states of these updates there.
        plan: Plans a program within the budget.
        budget: Bytes that a device may hold; None for no limit.
        host: The memory of a host as a device sees it.
        asked: By flat argument, the term of the user that sends it there.
    """

    read: Callable[[tuple[StreamedUpdate, ...]], TracedProgram]
    plan: Callable[[TracedProgram], Solution]
    budget: int | None
    host: Host
    asked: Mapping[int, Offload] = field(default_factory=dict)

    def run(self, written: TracedProgram, least: Solution) -> PlannedStates | None:
        """The plan with as few bytes of states in host memory as it takes to fit.

        What is asked goes there, and states of as many bytes as are missing; where that does not
        suffice, as many more as are still missing, and at last all.

        Args:
            written: The program as it is written, over its microbatches.
            least: Its plan with the least peak, whatever it computes again, states on the device.

        Returns:
            None where no state can lie there; the leanest plan where none fits.

        Raises:
            ConstraintError: What is asked cannot lie there.
        """
        candidates = list(self._candidates(written, least))
        self._refuse_others(candidates, written.traced.in_names)
        best: PlannedStates | None = None
        before: list[_Candidate] = []
        missing = self._missing_bytes(least)
        for round_ in range(_MOST_ROUNDS):
            is_last = round_ == _MOST_ROUNDS - 1
            chosen = candidates if is_last else self._enough(candidates, missing)
            if not chosen or chosen == before:
                break
            before = chosen
            tried = self._planned(written, chosen, len(candidates), least.peak_bytes)
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

    def _refuse_others(self, candidates: Sequence[_Candidate], names: Sequence[str]) -> None:
        """Refuse what is asked of arguments of which none can lie in host memory.

        Raises:
            ConstraintError: A term asks that.
        """
        possible = {place for one in candidates for place in one.update.arguments}
        heard = {term for place, term in self.asked.items() if place in possible}
        for place, term in self.asked.items():
            if term not in heard:
                raise ConstraintError(
                    f"`{names[place]}` cannot lie in host memory between steps",
                    where=str(term),
                    fix="select states that are donated, that nothing but their own update reads,"
                    " element by element, and of 1 MiB a device or more",
                )

    def _enough(self, candidates: Sequence[_Candidate], num_bytes: int) -> list[_Candidate]:
        """Candidates that are asked, and few more bytes that suffice, the largest first."""
        asked = [
            one for one in candidates if not self.asked.keys().isdisjoint(one.update.arguments)
        ]
        num_bytes -= sum(one.local_bytes for one in asked)
        chosen: list[_Candidate] = []
        for one in sorted(candidates, key=lambda one: -one.local_bytes):
            if one not in asked and num_bytes > sum(other.local_bytes for other in chosen):
                chosen.append(one)
        spare = sum(one.local_bytes for one in chosen) - num_bytes
        for one in list(chosen):
            if one.local_bytes <= spare:
                chosen.remove(one)
                spare -= one.local_bytes
        return [one for one in candidates if one in asked or one in chosen]

    def _candidates(self, written: TracedProgram, least: Solution) -> Iterator[_Candidate]:
        left = self.host.capacity_bytes
        first, carried = least.graph.num_captured, {*written.wishes.alike}
        for states, results, shape in updates_of(written.traced.jaxpr, written.traced.donated):
            if not carried.issuperset((first + s, r) for s, r in zip(states, results, strict=True)):
                continue  # the next step is given another result
            local_bytes = _local_bytes(least, states)
            shardings = [_sharding(least, place) for place in states]
            cut = [any(one.dims[dim].axes for one in shardings) for dim in range(len(shape))]
            apart = _taken_apart(shape, cut, local_bytes)
            if apart is not None and _LEAST_BYTES <= local_bytes <= left:
                left -= local_bytes
                yield _Candidate(StreamedUpdate(states, results, *apart), local_bytes)

    def _planned(
        self,
        written: TracedProgram,
        chosen: Sequence[_Candidate],
        num_candidates: int,
        on_device_peak: int,
    ) -> PlannedStates | None:
        """The plan with these states in host memory; None where there was no time for one."""
        program = self.read(tuple(one.update for one in chosen))
        try:
            solution = self.plan(program)
        except NoPlanInTimeError:
            return None
        places = sorted(place for one in program.updates for place in one.arguments)
        local_bytes = _local_bytes(solution, places)
        offloaded = OffloadedStates(
            updates=program.updates,
            names=tuple(written.traced.in_names[place] for place in places),
            local_bytes=local_bytes,
            seconds=2 * local_bytes / self.host.bytes_per_second,
            num_candidates=num_candidates,
            on_device_peak_bytes=on_device_peak,
        )
        return PlannedStates(program, solution, offloaded)


def _value(solution: Solution, argument: int) -> Value:
    """A flat argument in the graph of a plan."""
    graph = solution.graph
    (value,) = graph.arguments[graph.num_captured + argument].results
    return graph.values[value]


def _sharding(solution: Solution, argument: int) -> Sharding:
    """Of a flat argument, in a plan."""
    layout = solution.decoded.layouts[_value(solution, argument).index]
    return solution.encoded.parts.to_sharding(layout)


def _local_bytes(solution: Solution, arguments: Iterable[int]) -> int:
    """One device's pieces of flat arguments, in a plan."""
    parts, layouts = solution.encoded.parts, solution.decoded.layouts
    values = [_value(solution, place) for place in arguments]
    return sum(value.num_bytes // parts.num_pieces(layouts[value.index]) for value in values)


def _taken_apart(
    shape: Sequence[int], cut: Sequence[bool], num_bytes: int
) -> tuple[int, int] | None:
    """The dimension and the number of parts, of a dimension that is whole on each device.

    Returns:
        None where no such dimension has parts of equal size.
    """
    found: tuple[int, int] | None = None
    for dim in (dim for dim in range(len(shape)) if not cut[dim]):
        for parts in range(2, shape[dim] + 1):
            size, is_uneven = shape[dim] // parts, shape[dim] % parts
            if is_uneven or (dim >= len(shape) - 2 and size % _TILE):
                continue
            if found is None or found[0] == dim:
                found = dim, parts
            if num_bytes <= parts * _PART_BYTES:
                return dim, parts
    return found
