"""A bound on the step time of a decided plan that takes no schedule."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.shared_reads import reads_of
from autoshard.graph.program import Op
from autoshard.lowering.optimizer_outputs import OptimizerOutputs
from autoshard.lowering.reshard_steps import ReshardSteps, SharedStep
from autoshard.reshard import StepKind


def least_seconds(encoder: Encoder, encoded: Encoded, decoded: Decoded) -> float:
    """Seconds that kernels and blocking collectives of a plan take one after another.

    No schedule takes less. Slices and what reads convert are left out, and so are collectives of
    ops that have others than sums.

    Args:
        encoder: Of the problem.
        encoded: The problem.
        decoded: The plan.
    """
    return sum(_of_ops(encoder, decoded)) + sum(_of_reshards(encoder, encoded, decoded))


def _of_ops(encoder: Encoder, decoded: Decoded) -> Iterator[float]:
    """Per op, in one step."""
    outputs = OptimizerOutputs.of(encoder, decoded)
    for index, candidate in decoded.candidates.items():
        op = encoder.graph.ops[index]
        computed, sent = encoder.node_costs.seconds_of(op, candidate)
        seconds = max(0.0, computed + outputs.more_seconds(op))
        if sent and _only_blocks(encoder, decoded, op):
            seconds += sent
        yield seconds * op.repeat


def _only_blocks(encoder: Encoder, decoded: Decoded, op: Op) -> bool:
    """True of an op whose collectives are sums that nothing runs beside."""
    candidate, costing = decoded.candidates[op.index], encoder.costing
    if op.windows or op.collective or candidate.streamed is not None:
        return False
    sums = costing.sums_of(encoder.graph, op, candidate)
    return not any(costing.backend.schedule.is_async(one.kind) for one in sums)


def _of_reshards(encoder: Encoder, encoded: Encoded, decoded: Decoded) -> Iterator[float]:
    """Per blocking step of a reshard, in one step of the program."""
    steps = ReshardSteps(encoded, decoded)
    reads: dict[SharedStep, float] = {}
    for op, position, step in steps.all():
        key, often = steps.shared(op, position, step), reads_of(op, position)
        reads[key] = min(reads.get(key, often), often)
    bits = steps.sent_bits()
    for key, often in reads.items():
        value, step, _ = key
        is_async = encoder.costing.backend.schedule.is_async(step.kind.value)
        if step.kind is not StepKind.SLICE and not is_async:
            yield often * encoded.table(value, bits[key]).step_seconds(step)
