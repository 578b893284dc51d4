"""Shardings between the steps of a reshard, as far as the partitioner has to be told them."""

from __future__ import annotations

from collections.abc import Sequence, Set

from autoshard.apply.placed_values import placed_layout
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.graph.program import Op
from autoshard.layouts import Layout, refines
from autoshard.lowering.reshard_steps import reshard_steps
from autoshard.reshard import Step, StepKind, is_in_turn


def stops_before(encoded: Encoded, decoded: Decoded, op: Op, position: int) -> list[Layout]:
    """Layouts between what an operand is held to and what an op wants.

    Among them the pieces of a sum that is held whole before it is scattered, where these are moved:
    else the partitioner moves the whole sum, and cuts it after that.
    """
    value, wanted = op.operands[position], decoded.candidates[op.index].operands[position]
    steps = reshard_steps(encoded, decoded, op, position)
    pieces = decoded.layouts[value]
    if steps and pieces not in (placed_layout(encoded.graph, decoded, value), wanted):
        return [pieces, *(step.after for step in steps[:-1])]
    own = _num_taken_unasked(steps)
    passed = {step.after for step in steps[:own]}
    if own and _is_read_on_the_way(encoded, decoded, value, passed):
        own = 0
    return [step.after for step in steps[own:-1]]


def stops_between(encoded: Encoded, value: int, start: Layout, end: Layout) -> list[Layout]:
    """Layouts between the steps of a reshard that is more than cutting further."""
    if refines(end, start):
        return []
    maker = encoded.graph.maker(value)
    (read,) = maker.operands
    chain = encoded.table(read, encoded.read_bits.to(maker, 0)).chain(start, end)
    return [step.after for step in chain[:-1]]


def _num_taken_unasked(steps: Sequence[Step]) -> int:
    """The steps before the one that makes a value whole, where these are the partitioner's own.

    It gathers one dimension after another, the last one first, and does so once for all readers of
    the whole value; steps that are asked for one by one it repeats for each reader.
    """
    for number, step in enumerate(steps):
        pairs = zip(step.before, step.after, strict=True)
        is_dimension = all(before == after or not after for before, after in pairs)
        if step.kind is not StepKind.ALL_GATHER or not is_in_turn(step) or not is_dimension:
            return 0
        if not any(step.after):
            return number
    return 0


def _is_read_on_the_way(
    encoded: Encoded, decoded: Decoded, value: int, passed: Set[Layout]
) -> bool:
    """True where a reader takes one of the layouts that a value passes, or goes on from there."""
    graph = encoded.graph
    for reader in map(graph.ops.__getitem__, graph.consumers[value]):
        if reader.index not in decoded.candidates:
            continue
        for position, read in enumerate(reader.operands):
            if read == value:
                steps = reshard_steps(encoded, decoded, reader, position)
                left = steps[_num_taken_unasked(steps) :]
                if not passed.isdisjoint(step.after for step in left):
                    return True
    return False
