"""The updates of a program whose states could lie in host memory, and why others could not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoshard.graph.program import Value
from autoshard.listed import listed
from autoshard.offload.asked import AskedState
from autoshard.offload.choice import StreamedUpdate
from autoshard.offload.streamed import updates_of
from autoshard.planning.solution import Solution
from autoshard.planning.traced_program import TracedProgram

_PART_BYTES = 8 * 2**20
"""Of states that are on a device at once in an update, if they can be taken apart so far. A choice:
a part takes milliseconds on the link, and the loop microseconds."""
_LEAST_BYTES = 2**20
"""Of states of one update on a device: less is not worth a loop. A choice."""
_SCALAR_BYTES = 4096
"""An array below is a counter or a rate, whatever reads it. A choice."""
_TILE = 128
"""Parts of the last two dimensions are multiples of it, as devices store tiles."""

_MOST_NAMED = 3
"""Arguments that a note names."""

_NOT_CARRIED = "it is not donated, or no result of its type replaces it"
_READ = (
    "more reads it, or what replaces it, than its update, element by element, layers under scan"
    " and copies in another type"
)
_CUT = "it does not fall into equal parts of whole tiles, 128 rows or columns"
_TOO_SMALL = "its update holds less than 1 MiB of states per device, which is not worth a loop"
_NO_ROOM = "host memory is full"


@dataclass(frozen=True, slots=True)
class StateCandidate:
    """An update whose states could lie in host memory.

    Args:
        update: How it is taken apart.
        local_bytes: Of its states, on one device if they are there.
    """

    update: StreamedUpdate
    local_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class StateCandidates:
    """Candidates for host memory, and the arguments that are none.

    Args:
        updates: Of states that nothing else reads, in program order.
        with_parameters: Likewise of states and parameters that layers under scan read.
        refused: By flat argument that could not, why.
    """

    updates: Sequence[StateCandidate]
    with_parameters: Sequence[StateCandidate]
    refused: Mapping[int, str]

    @staticmethod
    def of(program: TracedProgram, solution: Solution, room: int) -> StateCandidates:
        """Those of a program, sharded as in a plan of it.

        Args:
            program: With its residuals as chosen: what it computes again may read more.
            solution: Its plan.
            room: Bytes of host memory that a device may still use.
        """
        carried, count = program.carried, len(program.traced.in_names)
        refused = {place: _READ if place in carried else _NOT_CARRIED for place in range(count)}
        small = (at for at in carried if states_bytes(solution, [at]) < _SCALAR_BYTES)
        refused.update(dict.fromkeys(small, _TOO_SMALL))

        def candidates(*, with_parameters: bool) -> Iterator[StateCandidate]:
            left, jaxpr = room, program.traced.jaxpr
            for update in updates_of(jaxpr, carried, with_parameters=with_parameters):
                found = _candidate(solution, *update, left)
                if isinstance(found, str):
                    refused.update({place: found for place in update[0] if place in refused})
                    continue
                left -= found.local_bytes
                for place in found.update.arguments:
                    refused.pop(place, None)
                yield found

        states = list(candidates(with_parameters=False))
        return StateCandidates(states, list(candidates(with_parameters=True)), refused)


def _candidate(
    solution: Solution,
    states: tuple[int, ...],
    results: tuple[int, ...],
    shape: Sequence[int],
    room: int,
) -> StateCandidate | str:
    """An update whose states could lie in host memory, or why they cannot."""
    local_bytes = states_bytes(solution, states)
    apart = taken_apart(shape, _pieces(solution, states, shape), local_bytes)
    if local_bytes < _LEAST_BYTES:
        return _TOO_SMALL
    if apart is None:
        return _CUT
    if local_bytes > room:
        return _NO_ROOM
    return StateCandidate(StreamedUpdate(states, results, *apart), local_bytes)


def _value(solution: Solution, argument: int) -> Value:
    """A flat argument in the graph of a plan."""
    graph = solution.graph
    (value,) = graph.arguments[graph.num_captured + argument].results
    return graph.values[value]


def _pieces(solution: Solution, states: Sequence[int], shape: Sequence[int]) -> list[int | None]:
    """By dimension, into how many equal pieces a plan cuts states; None where they differ."""
    parts, layouts = solution.encoded.parts, solution.decoded.layouts
    cuts = [layouts[_value(solution, place).index] for place in states]
    found: list[int | None] = []
    for dim, size in enumerate(shape):
        (count, *others) = {parts.num_shards(layout[dim]) for layout in cuts}
        found.append(None if others or size % count else count)
    return found


def states_bytes(solution: Solution, arguments: Iterable[int]) -> int:
    """One device's pieces of flat arguments, in a plan."""
    parts, layouts = solution.encoded.parts, solution.decoded.layouts
    values = [_value(solution, place) for place in arguments]
    return sum(value.num_bytes // parts.num_pieces(layouts[value.index]) for value in values)


def taken_apart(
    shape: Sequence[int], pieces: Sequence[int | None], num_bytes: int
) -> tuple[int, int, int] | None:
    """The dimension, the number of parts, and into how many pieces devices cut it.

    A dimension that is whole on each device comes first, as it takes no other view of the array.

    Args:
        shape: Of the states.
        pieces: By dimension, how many devices cut it into; None where it is not taken apart.
        num_bytes: Of the states of the update, on one device.

    Returns:
        None where no dimension has parts of equal size.
    """
    found: tuple[int, int, int] | None = None
    whole_first = sorted(range(len(shape)), key=lambda dim: pieces[dim] != 1)
    for dim in whole_first:
        count = pieces[dim]
        if count is None:
            continue
        for parts in range(2, shape[dim] // count + 1):
            size, rest = divmod(shape[dim] // count, parts)
            if rest or (dim >= len(shape) - 2 and size % _TILE):
                continue
            if found is None or found[0] == dim:
                found = dim, parts, count
            if num_bytes <= parts * _PART_BYTES:
                return dim, parts, count
    return found


def notes_on_asked(
    asked: Mapping[int, AskedState], refused: Mapping[int, str], names: Sequence[str]
) -> tuple[str, ...]:
    """Notes on arguments that stay on the device though somebody asks for host memory, by reason.

    Args:
        asked: By flat argument, why it is to lie in host memory.
        refused: By flat argument that cannot lie there, why.
        names: Of the flat arguments.
    """
    by_reason: dict[str, list[str]] = {}
    for place in sorted(asked.keys() & refused.keys()):
        by_reason.setdefault(refused[place], []).append(f"`{names[place]}`")
    return tuple(
        f"on the device, though host memory is asked for: {listed(found, _MOST_NAMED)}; {reason}"
        for reason, found in by_reason.items()
    )
