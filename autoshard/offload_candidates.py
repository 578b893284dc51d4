"""The updates of a program whose states could lie in host memory, and why others could not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoshard.graph.program import Value
from autoshard.offload.choice import StreamedUpdate
from autoshard.offload.streamed import updates_of
from autoshard.planning.solution import Solution
from autoshard.planning.traced_program import TracedProgram
from autoshard.sharding import Sharding

_PART_BYTES = 8 * 2**20
"""Of states that are on a device at once in an update, if they can be taken apart so far. A choice:
a part takes milliseconds on the link, and the loop microseconds."""
_LEAST_BYTES = 2**20
"""Of states of one update on a device: less is not worth a loop. A choice."""
_TILE = 128
"""Parts of the last two dimensions are multiples of it, as devices store tiles."""

_NOT_CARRIED = "it is not donated, or no result replaces it"
_READ = "something else than its update, element by element, reads it or what replaces it"
_CUT = "devices cut every dimension that parts of it could be of"
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
    """What could lie in host memory.

    Args:
        updates: In program order.
        refused: By flat argument that could not, why.
    """

    updates: Sequence[StateCandidate]
    refused: Mapping[int, str]

    @staticmethod
    def of(program: TracedProgram, solution: Solution, room: int) -> StateCandidates:
        """Those of a program as it is written, sharded as in a plan of it.

        Args:
            program: As it is written, over its microbatches.
            solution: The plan, whatever it computes again.
            room: Bytes of host memory that a device may still use.
        """
        carried, count = program.carried, len(program.traced.in_names)
        refused = {place: _READ if place in carried else _NOT_CARRIED for place in range(count)}
        found: list[StateCandidate] = []
        for states, results, shape in updates_of(program.traced.jaxpr, carried):
            local_bytes = states_bytes(solution, states)
            shardings = [_sharding(solution, place) for place in states]
            cut = [any(one.dims[dim].axes for one in shardings) for dim in range(len(shape))]
            apart = taken_apart(shape, cut, local_bytes)
            if local_bytes < _LEAST_BYTES:
                reason = _TOO_SMALL
            elif apart is None:
                reason = _CUT
            elif local_bytes > room:
                reason = _NO_ROOM
            else:
                room -= local_bytes
                update = StreamedUpdate(states, results, *apart)
                found.append(StateCandidate(update, local_bytes))
                continue
            refused.update(dict.fromkeys(states, reason))
        for one in found:
            for place in one.update.arguments:
                del refused[place]
        return StateCandidates(found, refused)


def _value(solution: Solution, argument: int) -> Value:
    """A flat argument in the graph of a plan."""
    graph = solution.graph
    (value,) = graph.arguments[graph.num_captured + argument].results
    return graph.values[value]


def _sharding(solution: Solution, argument: int) -> Sharding:
    """Of a flat argument, in a plan."""
    layout = solution.decoded.layouts[_value(solution, argument).index]
    return solution.encoded.parts.to_sharding(layout)


def states_bytes(solution: Solution, arguments: Iterable[int]) -> int:
    """One device's pieces of flat arguments, in a plan."""
    parts, layouts = solution.encoded.parts, solution.decoded.layouts
    values = [_value(solution, place) for place in arguments]
    return sum(value.num_bytes // parts.num_pieces(layouts[value.index]) for value in values)


def taken_apart(
    shape: Sequence[int], cut: Sequence[bool], num_bytes: int
) -> tuple[int, int] | None:
    """The dimension and the number of parts, of a dimension that is whole on each device.

    Args:
        shape: Of the states.
        cut: By dimension, whether devices cut it.
        num_bytes: Of the states of the update, on one device.

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
