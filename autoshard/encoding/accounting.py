"""What a decided plan does and takes: time by op, collectives, memory over the program.

Every figure is computed once, here, from the layouts of the plan, and not taken from the solver.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np

from autoshard.candidates.streamed import messages_of
from autoshard.costing.costing import Costing
from autoshard.costing.moved_sums import Summed
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.heap import heap_bytes
from autoshard.encoding.held_tensors import Holdings
from autoshard.encoding.new_states import NewStates
from autoshard.encoding.pointer_tables import table_bytes
from autoshard.encoding.roomy_chip import RoomyChip
from autoshard.encoding.shared_reads import reads_of
from autoshard.encoding.tiles import tiled_arguments
from autoshard.encoding.way_to_reader import SharedStep, sent_bits, way_to_reader
from autoshard.graph.collective import PredictedCollective
from autoshard.graph.program import Op, Value
from autoshard.layouts import Layout, Parts
from autoshard.plans.plan import HeldTensor, LiveTensor, MemoryUse, PlannedOp
from autoshard.reshard import Step, StepKind

_NUM_LIVE = 40


# By copy of a value: the sums that its readers before made of it, by op.
_SummedCopies: TypeAlias = defaultdict[tuple[int, Layout, int], dict[int, Summed]]


@dataclass(frozen=True, slots=True)
class Account:
    """Time, collectives and memory of one plan."""

    ops: tuple[PlannedOp, ...]
    collectives: tuple[PredictedCollective, ...]
    compute_seconds: float
    communication_seconds: float
    memory: MemoryUse


def account_for(
    encoder: Encoder, encoded: Encoded, decoded: Decoded, choices: tuple[int, ...]
) -> Account:
    """Add up a plan."""
    ops = []
    collectives: list[PredictedCollective] = []
    unseen = dict(sent_bits(encoded, decoded))
    summed: _SummedCopies = defaultdict(dict)
    states = NewStates.of(encoder, decoded)
    compute = communication = 0.0
    for op in encoded.graph.ops:
        if op.index not in decoded.candidates:
            continue
        own, spent, made = _op_account(encoder, encoded, decoded, op, unseen, summed)
        own += states.more_seconds(op)
        compute += own
        communication += spent
        collectives += made
        if own + spent > 0:
            ops.append(_planned_op(encoded, decoded, op, own, spent))
    memory = memory_use(encoder, encoded, decoded, choices)
    return Account(tuple(ops), tuple(collectives), compute, communication, memory)


def _planned_op(
    encoded: Encoded, decoded: Decoded, op: Op, compute: float, communication: float
) -> PlannedOp:
    candidate = decoded.candidates[op.index]
    value = encoded.graph.values[(op.results or op.operands)[0]]
    layout = decoded.layouts[value.index] if op.results else candidate.operands[0]
    return PlannedOp(
        index=op.index,
        name=op.name,
        source=op.source,
        result=value.type_text,
        sharding=encoded.parts.to_sharding(layout),
        cut=candidate.cut,
        repeat=op.repeat,
        compute_seconds=compute,
        communication_seconds=communication,
    )


def _op_account(
    encoder: Encoder,
    encoded: Encoded,
    decoded: Decoded,
    op: Op,
    unseen: dict[SharedStep, int],
    summed: _SummedCopies,
) -> tuple[float, float, list[PredictedCollective]]:
    costing, graph = encoder.costing, encoded.graph
    computing, sent = encoder.node_costs.seconds_of(op, decoded.candidates[op.index])
    collectives = [
        *_halos(costing, encoded, decoded, op),
        *_reductions(costing, encoded, decoded, op),
        *_in_steps(costing, encoded, decoded, op),
        *_written(costing, encoded, decoded, op),
    ]
    own, spent = computing * op.repeat, sent * op.repeat
    for position, value in enumerate(op.operands):
        repeat = reads_of(op, position)
        order = encoder.read_costs.orders.seconds(op, value)
        narrowed = encoder.read_costs.narrowing_seconds(op, position)
        copy = decoded.shared.get((op.index, position))
        is_sent = False
        taken: list[Step] = []
        way = way_to_reader(encoded, decoded, op, position)
        if any(step.kind is not StepKind.SLICE for step in way):
            end = way[-1].after
            before = summed[value, end, op.region]
            own += encoder.read_costs.summing_seconds(op, position, end, before) * repeat
        if not way and order is not None:
            place = encoder.tables.of(value).index[decoded.layouts[value]]
            own += float(order[place, place]) * repeat
        for step in way:
            is_first = step.kind is not StepKind.SLICE and (not is_sent or step.before == copy)
            is_sent = is_sent or is_first
            key = (value, step, op.region)  # serves every reader in a body, none outside it
            bits = unseen.pop(key, None)
            if bits is None:
                continue
            taken.append(step)
            table = encoded.table(value, bits)
            if narrowed is not None and is_first:
                own += float(narrowed[table.index[step.before]]) * repeat
            spent += table.step_seconds(step) * repeat
            if step.kind is not StepKind.SLICE:
                found = graph.values[value]
                collectives += _moved(costing, encoded, step, found, bits, op, repeat)
        if order is not None and taken:  # copied once, at the end of the way
            index = encoder.tables.of(value).index
            own += float(order[index[taken[0].before], index[taken[-1].after]]) * repeat
    return own, spent, collectives


def _predicted(
    costing: Costing,
    encoded: Encoded,
    op: Op,
    *,
    kind: str,
    parts: Parts,
    bytes_per_device: int,
    count: float,
    narrowed: float = 1.0,
    is_windowed: bool = False,
) -> Iterator[PredictedCollective]:
    """The collectives that one becomes.

    Args:
        costing: Knows the machine.
        encoded: The program.
        op: That it serves.
        kind: As of `PredictedCollective`.
        parts: The mesh parts it works over.
        bytes_per_device: Of the larger side, as wide as elements lie.
        count: How often it runs.
        narrowed: The width that elements are sent in where the compiler narrows them, over that.
        is_windowed: As of `PredictedCollective`.
    """
    for one in costing.transfers(kind, parts, bytes_per_device):
        sent = bytes_per_device * (narrowed if one.is_narrowed else 1.0)
        yield PredictedCollective(
            kind=one.kind,
            axes=tuple(_axis_text(encoded, p.name, p.pre_size, p.size) for p in one.axes),
            group_size=prod(part.size for part in one.axes),
            bytes_per_device=int(sent) // one.pieces,
            count=count,
            op=_op_text(op),
            is_windowed=is_windowed,
        )


def _moved(
    costing: Costing, encoded: Encoded, step: Step, value: Value, bits: int, op: Op, repeat: float
) -> Iterator[PredictedCollective]:
    larger = step.after if step.kind is StepKind.ALL_GATHER else step.before
    pieces = encoded.parts.num_pieces(larger)
    return _predicted(
        costing,
        encoded,
        op,
        kind=step.kind.value,
        parts=step.parts,
        bytes_per_device=value.num_bytes // pieces,
        count=repeat,
        narrowed=bits / value.bits,
    )


def _axis_text(encoded: Encoded, name: str, pre_size: int, size: int) -> str:
    return name if size == encoded.parts.mesh.sizes[name] else f"{name}:({pre_size}){size}"


def _op_text(op: Op) -> str:
    return f"{op.name} at {op.source}" if op.source else op.name


def _reductions(
    costing: Costing, encoded: Encoded, decoded: Decoded, op: Op
) -> Iterator[PredictedCollective]:
    candidate = decoded.candidates[op.index]
    if candidate.streamed is not None or candidate.is_sum_joined:
        return
    if not (candidate.reduced or candidate.scattered):
        return
    made = encoded.graph.values[op.results[0]]
    sums = costing.sums_of(encoded.graph, op, candidate)
    is_windowed = costing.is_windowed(op, candidate, made)
    for value in op.results:
        for one in sums:
            yield from _predicted(
                costing,
                encoded,
                op,
                kind=one.kind,
                parts=one.parts,
                bytes_per_device=encoded.graph.values[value].num_bytes // one.pieces,
                count=op.repeat / candidate.runs_per_sum,
                is_windowed=is_windowed,
            )


def _halos(
    costing: Costing, encoded: Encoded, decoded: Decoded, op: Op
) -> Iterator[PredictedCollective]:
    """What neighbours exchange for a convolution."""
    for halo in costing.halos(encoded.graph, op, decoded.candidates[op.index]):
        image = encoded.graph.values[op.operands[0]]
        yield from _predicted(
            costing,
            encoded,
            op,
            kind="collective-permute",
            parts=halo.parts,
            bytes_per_device=halo.num_elements * image.bits // 8,
            count=op.repeat,
            narrowed=encoded.read_bits.to(op, 0) / image.bits,
        )


def _in_steps(
    costing: Costing, encoded: Encoded, decoded: Decoded, op: Op
) -> Iterator[PredictedCollective]:
    """What a product in steps gathers and sums."""
    candidate = decoded.candidates[op.index]
    if candidate.streamed is None or op.rule is None:
        return
    for found in messages_of(encoded.parts, op.rule, candidate):
        bits = costing.step_bits(encoded.graph, op, found.place)
        yield from _predicted(
            costing,
            encoded,
            op,
            kind=found.message.kind,
            parts=found.parts,
            bytes_per_device=found.num_elements(encoded.parts) * bits // 8,
            count=op.repeat * found.message.count,
        )


def _written(
    costing: Costing, encoded: Encoded, decoded: Decoded, op: Op
) -> Iterator[PredictedCollective]:
    """What the user wrote in a `shard_map` body."""
    if op.collective is None:
        return
    axes, size = costing.written_axes(op.collective)
    candidate = decoded.candidates[op.index]
    mesh = encoded.parts.mesh
    yield PredictedCollective(
        kind=op.collective.kind,
        axes=tuple(_axis_text(encoded, a.name, a.pre_size, a.size_on(mesh)) for a in axes),
        group_size=size,
        bytes_per_device=costing.written_bytes(encoded.graph, op, candidate),
        count=op.repeat,
        op=_op_text(op),
    )


def memory_use(
    encoder: Encoder, encoded: Encoded, decoded: Decoded, choices: tuple[int, ...]
) -> MemoryUse:
    """Bytes held over the program, from the memory terms under the given choices.

    Where the backend lays temporaries out as they are made, gaps between them add to the peak.
    Those that have room on the chip take no device memory.
    """
    graph = encoded.graph
    chip = RoomyChip.for_plan(encoder.room, encoded, decoded, choices)
    holdings = Holdings.of(encoded, decoded, choices, encoder.room, chip)
    steps = np.zeros(len(graph.ops) + 2, dtype=np.int64)
    arguments, temporaries = holdings.arguments, holdings.temporaries
    for start, stop, amount in (*arguments, *temporaries):
        steps[start] += amount
        steps[stop] -= amount
    argument_bytes = sum(amount for _, _, amount in arguments)
    held = np.cumsum(steps)
    peak_op = min(int(np.argmax(held)), len(graph.ops) - 1)
    changes = np.flatnonzero(np.diff(held, prepend=0))
    peak = int(held.max())
    backend = encoder.costing.backend
    if backend.memory.allocates_in_schedule_order:
        tiled = tiled_arguments(encoded, decoded, backend.layout)
        argument_bytes = sum(tiled)
        peak = (
            argument_bytes
            + table_bytes(encoder.graph, backend.memory, tiled)
            + heap_bytes(temporaries)
        )
    return MemoryUse(
        argument_bytes=argument_bytes,
        peak_bytes=peak,
        peak_op=peak_op,
        peak_where=_op_text(graph.ops[peak_op]),
        live_at_peak=tuple(map(_live, holdings.at(peak_op, _NUM_LIVE))),
        timeline=tuple((int(i), int(held[i])) for i in changes if i < len(graph.ops)),
        held=holdings.largest(peak),
    )


def _live(held: HeldTensor) -> LiveTensor:
    return LiveTensor(
        name=held.name,
        source=held.source,
        type_text=held.type_text,
        sharding=held.sharding,
        local_bytes=held.local_bytes,
    )
