"""Instructions of optimized HLO as collectives: plain ones, and those that fusions carry."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoshard.hlo.replica_groups import crossed_axes, is_ring_shift, parse_groups
from autoshard.hlo.slice_transfers import transfer_groups, transfer_kind
from autoshard.hlo.text import HloModule, Instruction
from autoshard.sharding import AxisRef, Mesh, axes_crossed, spanned_axes
from autoshard.verification.collective_comparison import (
    ASYNC,
    FUSED,
    PLAIN,
    WINDOWED,
    CompiledCollective,
)

_KINDS = {
    "all-gather": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "all-reduce": "all-reduce",
    "all-to-all": "all-to-all",
    "ragged-all-to-all": "all-to-all",
    "collective-permute": "collective-permute",
    "collective-broadcast": "collective-broadcast",
}
KIND_BY_OPCODE = {**_KINDS, **{f"{opcode}-start": kind for opcode, kind in _KINDS.items()}}
ASYNC_DONE = frozenset({"async-update", "async-done", *(f"{opcode}-done" for opcode in _KINDS)})
"""What waits for a start; the first two name the computation that their start has already run."""

_ASYNC_START_MARK, _ASYNC_DONE_MARK = "AsyncCollectiveStart", "AsyncCollectiveDone"
WINDOWED_LOOP = re.compile(r"windowed_dot_general")
_SCATTERED = re.compile(r"all-reduce-scatter")
"""In the name of a fusion that sums and keeps a piece: how the TPU runs a reduce-scatter."""

Thread = tuple[str, int]
"""The opcode and the channel of a collective that several fusions run."""


@dataclass(frozen=True, slots=True)
class Place:
    """How often something runs, and inside of what.

    Args:
        trip_count: Of the loops around it.
        is_known: Whether they all tell.
        count: The same, in a branch divided by the number of branches.
        form: How the collectives in it run.
    """

    trip_count: int = 1
    is_known: bool = True
    count: float = 1.0
    form: str = PLAIN


@dataclass(frozen=True, slots=True)
class CarriedCollective:
    """A collective in a fusion.

    The TPU compiler runs one beside products by way of several fusions: one starts it, others carry
    it on while they compute, the last one ends it. In each of them it stands whole, on one channel,
    also in the bodies of loops that run meanwhile. Others of its channel are of another kind.

    Args:
        collective: As often as the fusion runs.
        thread: What all of its fusions have alike; None where it has no channel.
        starts: Whether this fusion starts it and does not wait for it.
        ends: Whether this one waits for it.
    """

    collective: CompiledCollective
    thread: Thread | None
    starts: bool
    ends: bool


def carried_collectives(
    module: HloModule,
    mesh: Mesh | None,
    fusion: Instruction,
    place: Place = Place(),
) -> tuple[CarriedCollective, ...]:
    """The collectives in what a fusion calls."""
    return tuple(
        found
        for _, name in fusion.called()
        for found in _carried(module, mesh, name, place, frozenset())
    )


def _carried(
    module: HloModule,
    mesh: Mesh | None,
    computation: str,
    place: Place,
    marks: frozenset[str],
) -> Iterator[CarriedCollective]:
    instructions = module.computations.get(computation, {})
    marks |= {
        instruction.string("custom_call_target")
        for instruction in instructions.values()
        if instruction.opcode == "custom-call"
    }
    starts, ends = _ASYNC_START_MARK in marks, _ASYNC_DONE_MARK in marks
    form = place.form
    if form == PLAIN:
        form = ASYNC if starts or ends else FUSED
    for instruction in instructions.values():
        found = own_collective(module, mesh, computation, instruction, replace(place, form=form))
        if found is not None:
            if found.kind == "all-reduce" and _SCATTERED.search(computation):
                found = replace(found, kind="reduce-scatter")
            channel = instruction.number("channel_id")
            thread = None if channel is None else (instruction.opcode, channel)
            yield CarriedCollective(found, thread, starts, ends)
        elif instruction.opcode == "fusion":
            for _, name in instruction.called():
                yield from _carried(module, mesh, name, place, marks)


def collectives_called(
    module: HloModule, mesh: Mesh | None, instruction: Instruction, place: Place
) -> Iterator[CompiledCollective]:
    """The collectives in the computations that an instruction calls, and in what these call."""
    for _, name in instruction.called():
        for found in module.computations.get(name, {}).values():
            own = own_collective(module, mesh, name, found, place)
            if own is not None:
                yield own
            else:
                yield from collectives_called(module, mesh, found, place)


def collective_kind(instruction: Instruction) -> str | None:
    """What an instruction is as a collective; None if it is none."""
    return KIND_BY_OPCODE.get(instruction.opcode) or transfer_kind(instruction)


def is_async_start(instruction: Instruction) -> bool:
    """Whether the program goes on while this runs."""
    return instruction.opcode.endswith("-start")


def own_collective(
    module: HloModule,
    mesh: Mesh | None,
    computation: str,
    instruction: Instruction,
    place: Place = Place(),
) -> CompiledCollective | None:
    """An instruction as a collective; None if it is none, or moves nothing."""
    kind = collective_kind(instruction)
    if kind is None:
        return None
    instructions = module.computations[computation]
    is_between_slices = instruction.opcode == "send"
    if is_between_slices:
        groups = transfer_groups(module, instruction)
    else:
        groups = parse_groups(instruction.attributes, module.num_devices)
    size, num_groups = max(map(len, groups), default=1), len(groups)
    if size == 1:
        return None
    operands = instruction.operands[:1] if is_between_slices else instruction.operands
    num_bytes = sum(instructions[name].num_bytes for name in operands)
    if kind == "all-gather":
        num_bytes *= size
    axes: tuple[AxisRef, ...] | None = None
    if mesh is not None and kind == "collective-permute":
        axes = (
            axes_crossed(groups, mesh)
            if is_between_slices
            else crossed_axes(instruction.attributes, mesh)
        )
        size = math.prod(axis.size_on(mesh) for axis in axes)
        num_groups = module.num_devices // size
    elif mesh is not None:
        axes = spanned_axes(groups, mesh)
    form = place.form
    if kind == "collective-permute" and _is_windowed_step(instruction):
        form = WINDOWED
    elif form == PLAIN and is_async_start(instruction):
        form = ASYNC
    return CompiledCollective(
        kind=kind,
        axes=_names(axes),
        group_size=size,
        num_groups=num_groups,
        bytes_per_device=num_bytes,
        trip_count=place.trip_count,
        is_trip_count_known=place.is_known,
        count=place.count,
        op_name=instruction.string("op_name"),
        source=module.source(instruction),
        form=form,
    )


def _is_windowed_step(instruction: Instruction) -> bool:
    """Whether a permutation is one step of a windowed einsum whose loop was unrolled.

    It stands for the product itself, and shifts pieces around a ring.
    """
    made_for = instruction.string("op_name").rpartition("/")[2]
    return made_for.startswith("dot_general") and is_ring_shift(instruction.attributes)


def _names(axes: tuple[AxisRef, ...] | None) -> tuple[str, ...] | None:
    return None if axes is None else tuple(map(_axis_name, axes))


def _axis_name(axis: AxisRef) -> str:
    return axis.name if axis.size is None else f"{axis.name}:({axis.pre_size}){axis.size}"
