"""Which mesh axes cannot cut a dimension of a tensor, and what forbids it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from autoshard.candidates.op_candidates import read_pins
from autoshard.explain.decided_tensor import DecidedTensor
from autoshard.explain.explanation import Refusal
from autoshard.graph.program import OpKind
from autoshard.layouts import Layout
from autoshard.planning.solution import Solution
from autoshard.sharding import format_sharding
from autoshard.wishes.pinned import Pin


def asked_pin(solution: Solution, tensor: DecidedTensor) -> Pin | None:
    """What the user asked of a tensor, whoever says it."""
    encoder = solution.encoder
    pins = read_pins(encoder.graph, encoder.costing.parts, encoder.wishes)
    return pins.get(tensor.op.index, {}).get(tensor.value.index)


def asked_text(pin: Pin, tensor: DecidedTensor) -> str:
    """What was asked and where, for a pin that no term of the user's constraints speaks of."""
    where = {
        OpKind.ARGUMENT: "given as the sharding of the argument",
        OpKind.RESULT: "given as the sharding of the result",
    }.get(tensor.op.kind, pin.where.removesuffix(f": {tensor.value.type_text}"))
    return f"{format_sharding(pin.sharding)}, {where}"


def clash_text(solution: Solution, other: DecidedTensor) -> str:
    """How a tensor forbids a sharding of another one that must be like it."""
    pin = asked_pin(solution, other)
    if pin is None:
        return f"{other.name} must be sharded alike and cannot be"
    asked = format_sharding(pin.sharding)
    return f"{other.name} must be sharded alike and is asked to be {asked}"


def refusals_of(
    solution: Solution,
    tensor: DecidedTensor,
    offered: Collection[Layout],
    clashes: Mapping[Layout, str],
    asked: Sequence[str],
) -> tuple[Refusal, ...]:
    """The mesh axes that cut a dimension in no plan, dimension by dimension.

    Args:
        solution: The problem and its answer.
        tensor: The tensor.
        offered: The layouts that the op deciding it was offered.
        clashes: Of those, the ones that another tensor forbids, with how it does.
        asked: What the user asked of it.
    """
    parts = solution.encoded.parts
    pin = asked_pin(solution, tensor)
    found: list[Refusal] = []
    for dimension in range(len(tensor.value.shape)):
        axes_by_reason: dict[str, list[str]] = {}
        for axis, own in parts.parts_by_axis.items():
            cutting = [layout for layout in offered if set(own) & set(layout[dimension])]
            if any(layout not in clashes for layout in cutting):
                continue
            if cutting:
                reason = clashes[cutting[0]]
            else:
                reason = _reason(solution, tensor, dimension, axis, pin, asked)
            axes_by_reason.setdefault(reason, []).append(axis)
        found += [
            Refusal(dimension=dimension, axes=tuple(axes), reason=reason)
            for reason, axes in axes_by_reason.items()
        ]
    return tuple(found)


def _reason(
    solution: Solution,
    tensor: DecidedTensor,
    dimension: int,
    axis: str,
    pin: Pin | None,
    asked: Sequence[str],
) -> str:
    """Why no candidate of the op cuts a dimension by an axis."""
    op, size = tensor.op, tensor.value.shape[dimension]
    axis_size = solution.encoded.parts.mesh.sizes[axis]
    if axis in solution.graph.manual_axes(op.region):
        return f"{axis} is manual in the shard_map around it"
    if op.kind in (OpKind.ENTER_MANUAL, OpKind.LEAVE_MANUAL):
        return "the specs of the shard_map say how it lies"
    if size == 1:
        return "it has size 1"
    if size % axis_size:
        return f"{size:,} is no multiple of {axis_size:,}"
    if pin is not None and not _leaves_room(solution, pin, dimension, axis):
        return f"asked for: {'; '.join(asked)}"
    unpartitioned = solution.encoder.costing.backend.collectives.unpartitioned_ops
    if op.name in unpartitioned and op.equation not in solution.graph.batched:
        return f"this machine's compiler runs {op.name} whole on every device"
    if _is_kept_whole(tensor, dimension):
        return f"{op.name} works along it and needs it whole"
    if op.index in solution.encoder.round.decided:
        return "a round of smaller priority decided otherwise"
    return f"no sharding of {op.name} that was offered does so"


def _leaves_room(solution: Solution, pin: Pin, dimension: int, axis: str) -> bool:
    """Whether a pin lets an axis cut a dimension."""
    own = set(solution.encoded.parts.parts_by_axis[axis])
    elsewhere = {part for other, dim in enumerate(pin.asked) if other != dimension for part in dim}
    return pin.is_open[dimension] and not own & (elsewhere | pin.banned)


def _is_kept_whole(tensor: DecidedTensor, dimension: int) -> bool:
    """Whether the op's rule leaves none of a dimension's factors to cut."""
    rule = tensor.op.rule
    if rule is None:
        return False
    dims = (rule.operands if tensor.is_result else rule.results)[tensor.place]
    whole = rule.need_replication
    if not tensor.op.windows:
        whole |= rule.permutation
    return set(dims[dimension]) <= whole
