"""A local program as the plan tells it: time by op, collectives, memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.graph.collective import PredictedCollective
from autoshard.graph.program import Op
from autoshard.lowering.collectives import op_text
from autoshard.lowering.estimate import Estimate
from autoshard.lowering.held_tensors import HeldTensors
from autoshard.lowering.local_program import LocalProgram
from autoshard.plans.plan import MemoryUse, PlannedOp


@dataclass(frozen=True, slots=True)
class Account:
    """Time, collectives and memory of one plan."""

    ops: tuple[PlannedOp, ...]
    collectives: tuple[PredictedCollective, ...]
    compute_seconds: float
    communication_seconds: float
    memory: MemoryUse


def account_of(
    encoded: Encoded, decoded: Decoded, program: LocalProgram, estimated: Estimate
) -> Account:
    """The records of a plan.

    Args:
        encoded: The problem.
        decoded: The plan.
        program: Its local program.
        estimated: What that takes.
    """
    return Account(
        ops=tuple(_ops(encoded, decoded, program)),
        collectives=_collectives(program),
        compute_seconds=estimated.compute_seconds,
        communication_seconds=estimated.communication_seconds,
        memory=_memory(encoded, decoded, program, estimated),
    )


def _ops(encoded: Encoded, decoded: Decoded, program: LocalProgram) -> Iterator[PlannedOp]:
    runs = program.runs()
    compute: defaultdict[int, float] = defaultdict(float)
    communication: defaultdict[int, float] = defaultdict(float)
    for kernel in program.kernels:
        compute[kernel.op] += kernel.seconds * runs[kernel.body]
    for one in program.collectives:
        communication[one.op] += one.seconds * one.count * runs[one.body]
    for index in sorted({*compute, *communication}):
        if compute[index] + communication[index] > 0:
            op = encoded.graph.ops[index]
            yield _planned_op(encoded, decoded, op, compute[index], communication[index])


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


def _collectives(program: LocalProgram) -> tuple[PredictedCollective, ...]:
    """By op, its own before those of its operands.

    Runs of a message that pass beside a matmul and those that do not are one.
    """
    runs = program.runs()
    found: list[PredictedCollective] = []
    in_part: defaultdict[Hashable, list[int]] = defaultdict(list)
    for one in sorted(program.collectives, key=lambda one: (one.op, one.value >= 0)):
        key = (one.op, one.value, one.kind, one.axes, one.bytes_per_device, one.seconds)
        count = one.count * runs[one.body]
        if one.is_async:
            in_part[key].append(len(found))
        elif in_part[key]:
            place = in_part[key].pop(0)
            found[place] = replace(found[place], count=found[place].count + count)
            continue
        found.append(
            PredictedCollective(
                kind=one.kind,
                axes=one.axes or (),
                group_size=one.group_size,
                bytes_per_device=one.bytes_per_device,
                count=count,
                op=one.name,
            )
        )
    return tuple(found)


def _memory(
    encoded: Encoded, decoded: Decoded, program: LocalProgram, estimated: Estimate
) -> MemoryUse:
    memory = estimated.memory
    held = HeldTensors(encoded, decoded, program)
    order = program.memory.order
    peak_op = order[memory.peak_time] if order else memory.peak_time
    return MemoryUse(
        argument_bytes=memory.argument_bytes,
        peak_bytes=memory.peak_bytes,
        peak_op=peak_op,
        peak_where=op_text(encoded.graph.ops[peak_op]),
        live_at_peak=held.live_at(memory.peak_time),
        timeline=memory.timeline,
        held=held.largest(memory.peak_bytes),
        host_bytes=memory.host_bytes,
        order=order,
    )
