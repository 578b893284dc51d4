"""Ops that the compiler does not partition: on each device's examples, or whole on every one."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.graph.program import Op
from autoshard.loops.on_examples import OnExamples
from autoshard.planning.solution import Solution


def ops_on_examples(solution: Solution) -> dict[str, OnExamples]:
    """By equation path, how the ops that the compiler does not partition are sharded.

    One that runs whole is among them: propagation would cut it along what it computes.
    """
    parts, found = solution.encoded.parts, {}
    for op in _unpartitioned(solution):
        candidate = solution.decoded.candidates[op.index]
        operand, *others = candidate.operands
        if not others and op.equation in solution.graph.batched:
            found[op.equation] = OnExamples(
                operand=parts.to_sharding(operand),
                results=tuple(map(parts.to_sharding, candidate.results)),
            )
    return found


def unpartitioned_notes(solution: Solution) -> tuple[str, ...]:
    """A note for each line at which every device runs such an op whole."""
    places: dict[str, None] = {}
    for op in _unpartitioned(solution):
        if not any(solution.decoded.candidates[op.index].operands[0]):
            where = f" at {op.source}" if op.source else ""
            places[f"{op.name}{where} runs whole on every device: its operand is replicated"] = None
    return tuple(places)


def _unpartitioned(solution: Solution) -> Iterator[Op]:
    names = solution.encoder.costing.backend.collectives.unpartitioned_ops
    if solution.encoded.parts.mesh.num_devices == 1:
        return
    for op in solution.graph.ops:
        if op.name in names and op.index in solution.decoded.candidates and op.operands:
            yield op
