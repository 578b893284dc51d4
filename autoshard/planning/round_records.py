"""What the rounds of a plan decided, as the plan keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from autoshard.graph.printing import Line, program_lines
from autoshard.graph.program import Graph, OpKind
from autoshard.layouts import Layout, MeshParts
from autoshard.planning.solution import DecidedRound, Solution
from autoshard.plans.plan import AskedSharding, PlannedRound, ProgramLine


def planned_rounds(
    solution: Solution,
) -> tuple[tuple[PlannedRound, ...], tuple[ProgramLine, ...]]:
    """The rounds of a solution and the program they tell of; none where there was only one."""
    graph, parts = solution.graph, solution.encoded.parts
    lines = tuple(program_lines(graph)) if solution.rounds else ()
    rounds = tuple(_planned_round(decided, graph, parts, lines) for decided in solution.rounds)
    listing = (
        ProgramLine(text="  " * line.depth + line.text, source=line.source) for line in lines
    )
    return rounds, tuple(listing)


def _planned_round(
    decided: DecidedRound, graph: Graph, parts: MeshParts, lines: Sequence[Line]
) -> PlannedRound:
    priority, usable = decided.round.priority, decided.round.usable
    assert priority is not None
    own = range(len(parts.axes))
    in_use = [part for part in own if usable is None or part in usable]
    found = decided.estimate
    to_sharding = cache(parts.to_sharding)
    return PlannedRound(
        priority=priority,
        asked=tuple(
            AskedSharding(where=pin.where, sharding=pin.sharding)
            for pin in decided.pins
            if priority in pin.priorities
        ),
        axes=tuple(
            ref.name if ref.size is None else f"{ref.name}:({ref.pre_size}){ref.size}"
            for ref in parts.refs(in_use)
        ),
        seconds=found.blocking_seconds,
        collective_bytes=found.collective_bytes,
        peak_bytes=found.memory.peak_bytes,
        shardings=tuple(tuple(map(to_sharding, _layouts(decided, graph, line))) for line in lines),
    )


def _layouts(decided: DecidedRound, graph: Graph, line: Line) -> tuple[Layout, ...]:
    """Of the values that a line makes, or of what a result of the function gives back."""
    if line.op is None:
        return ()
    op = graph.ops[line.op]
    layouts = decided.decoded.layouts
    if op.kind is OpKind.RESULT:
        candidate = decided.decoded.candidates.get(op.index)
        return (layouts[op.operands[0]] if candidate is None else candidate.operands[0],)
    return tuple(layouts[value] for value in op.results)
