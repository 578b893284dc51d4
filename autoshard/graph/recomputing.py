"""Buffers that values outside memory are computed from; operands that matmuls compute, or read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from autoshard.backends import FusionPolicy, LayoutPolicy
from autoshard.graph.dataflow import trace_forward
from autoshard.graph.op_traits import RENAMES, is_elementwise
from autoshard.graph.program import PRODUCTS, Graph, Op, OpKind, Value

_KERNEL_BYTES = 3.5
"""Bytes an element that weigh as much as a kernel that stores an operand, beside what it moves.

Source: the longest chains of one to three tensors in bfloat16 and float32 that two and three
matmuls to 128 to 1,024 columns compute each, compiled by libtpu 0.0.52 for a v5e and a v5p: over
what `recomputed_ops` says of one, the others follow within two operations.
"""
_PROBED_BYTES = 2.0 + _KERNEL_BYTES + 0.5
"""The same of the program behind `recomputed_ops`: what storing moves more, a kernel, matmuls."""


@dataclass(frozen=True, slots=True)
class Computed:
    """Buffers and operations that a value is computed from where it is read.

    Args:
        sources: Bytes by buffer, of at most as many elements as the value has.
        ops: Vector operations an element by op; a conversion takes none.
    """

    sources: Mapping[int, int]
    ops: Mapping[int, float]

    @property
    def num_bytes(self) -> int:
        return sum(self.sources.values())


def computed_from(
    graph: Graph, value: Value, behind: Sequence[Computed], costs: Mapping[str, float]
) -> Computed:
    """Buffers and operations that a value is computed from.

    Args:
        graph: The program.
        value: The value.
        behind: The same of the operands of its op; a stored one is computed from itself.
        costs: Operations an element of ops that take more than one.
    """
    op = graph.maker(value.index)
    if op.kind is OpKind.FREE:
        return Computed({}, {})
    most = prod(value.shape)
    sources: dict[int, int] = {}
    ops: dict[int, float] = {}
    for operand in op.operands:
        if operand < value.index:
            for source, num_bytes in behind[operand].sources.items():
                read = min(num_bytes, most * graph.values[source].bits // 8)
                sources[source] = max(read, sources.get(source, 0))
            if prod(graph.values[operand].shape) == most:
                ops |= behind[operand].ops
    if is_elementwise(op) and op.name != "convert":
        is_by_constant = op.name == "divide" and graph.maker(op.operands[-1]).kind is OpKind.FREE
        ops[op.index] = 1.0 if is_by_constant else costs.get(op.name, 1.0)
    return Computed(sources, ops)


def is_cheaper_stored(
    graph: Graph, value: Value, made: Computed, fusion: FusionPolicy, layout: LayoutPolicy
) -> bool:
    """True for an element-wise operand that is stored, as several matmuls would compute it each.

    Computed, each of them reads all that it is made of; stored, a kernel writes it once and each
    reads it. Where that moves fewer bytes, it is stored; else the operations that are computed
    again weigh against the kernel and the bytes that are moved more. Elements wider than matmuls
    multiply are moved as those too.

    Source: the longest chains of one to three tensors in float32 and bfloat16 that two matmuls to
        64 columns compute, by libtpu 0.0.52: where no bytes are moved more 15 operations (v5e)
        and 4 (v5p); into float32 19 on a v5p, over 40 on a v5e.
    """
    if not is_elementwise(graph.maker(value.index)):
        return False
    readers = list(matmuls_reading(graph, value.index))
    if len(readers) < 2:
        return False
    num_elements = prod(value.shape)
    multiplied = layout.operand_bits(value.dtype, value.bits)
    bits = value.bits + (multiplied if multiplied < value.bits else 0)
    own = num_elements * bits // 8
    moved_more = (len(readers) + 1) * own - (len(readers) - 1) * made.num_bytes
    if moved_more < 0:
        return True
    others = sum(
        sum(graph.values[v].num_bytes for v in (*reader.operands, *reader.results))
        - value.num_bytes
        for reader in readers
    )
    num_bytes = (moved_more + others) / max(1, num_elements) + _KERNEL_BYTES
    most = round(fusion.recomputed_ops * num_bytes / _PROBED_BYTES)
    return sum(made.ops.values()) > most


def is_quantized(graph: Graph, value: Value, made: Computed, fusion: FusionPolicy) -> bool:
    """True for computed elements that are converted to few bits and read by a matmul.

    They are stored as they are converted: no matmul computes a quantization for each of its tiles.
    One that another quantization reads is computed with that.
    """

    def narrows(op: Op) -> bool:
        if op.name != "convert":
            return False
        before, after = (graph.values[v].bits for v in (op.operands[0], op.results[0]))
        return after <= fusion.quantized_bits and after < before

    def passes(reader: Op) -> bool:
        return not narrows(reader) and (is_elementwise(reader) or reader.name in RENAMES)

    if not made.ops or not narrows(graph.maker(value.index)):
        return False
    ends = trace_forward(graph, value.index, passes)
    return any(end.kind is OpKind.COMPUTE and end.op_class in PRODUCTS for end in ends)


def matmuls_reading(graph: Graph, value: int) -> Iterator[Op]:
    """Matmuls and convolutions that read a value, in another order of dimensions too."""
    for index in graph.consumers[value]:
        reader = graph.ops[index]
        if reader.kind is OpKind.COMPUTE and reader.op_class in PRODUCTS:
            yield reader
        elif reader.name in RENAMES:
            yield from matmuls_reading(graph, reader.results[0])
