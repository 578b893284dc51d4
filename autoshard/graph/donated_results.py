"""Values that end in the buffers of donated arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from autoshard.graph.buffers import Buffers
from autoshard.graph.program import Graph


class DonatedResults(NamedTuple):
    """Owners of buffers.

    Args:
        reused: Made in the buffer of a donated argument.
        beside: Made by a loop while it, or what comes after, reads the donated argument; copied to
            its buffer in the end.
    """

    reused: frozenset[int]
    beside: frozenset[int]


def donated_results(
    graph: Graph, buffers: Buffers, alike: Iterable[tuple[int, int]]
) -> DonatedResults:
    """Those of a program.

    Args:
        graph: The program.
        buffers: Of its values.
        alike: Arguments and the results that replace them, by position.
    """
    places = {op.results[0] for op in graph.arguments}
    reused, beside = set(), set()
    for argument, result in alike:
        owner = buffers.owner[graph.results[result].operands[0]]
        if argument not in graph.donated or owner in places:
            continue
        reused.add(owner)
        read_until = buffers.last_use[graph.arguments[argument].results[0]]
        if graph.maker(owner).name == "while" and read_until > buffers.intervals[owner][0] + 1:
            beside.add(owner)
    return DonatedResults(frozenset(reused - beside), frozenset(beside))
