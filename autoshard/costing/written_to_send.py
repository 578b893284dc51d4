"""What is written only to be sent: else it is computed with the ops that read it."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.graph.buffers import Buffers
from autoshard.graph.program import Graph, Op, OpClass, OpKind

_HANDS_ON = frozenset({OpClass.COPY, OpClass.NOTHING})


@dataclass(frozen=True, slots=True)
class WrittenToSend:
    """A kernel before a collective.

    Args:
        num_bytes: That it reads and writes, of whole tensors.
        is_conversion: Whether it does no more than to convert an argument of the program.
        argument: Of which that is, sliced and turned as it may be.
    """

    num_bytes: float
    is_conversion: bool
    argument: Op | None


def written_to_send(graph: Graph, buffers: Buffers, value: int, bits: int) -> WrittenToSend | None:
    """What it takes to have a value in memory before it is sent; None if it is there.

    An argument that is sent in narrower elements is narrowed before. An element-wise result that is
    computed with its readers cannot be so before a collective: libtpu 0.0.42 writes it.

    Args:
        graph: The program.
        buffers: Its storage.
        value: That is sent.
        bits: Of an element as it is sent.
    """
    found = graph.values[value]
    maker = _computing(graph, buffers, value)
    written = found.num_bytes * bits / found.bits
    argument = _argument_behind(graph, value)
    if bits < found.bits and argument is not None:
        return WrittenToSend(found.num_bytes + written, True, argument)
    if maker is None:
        return None
    is_conversion = maker.name == "convert" and argument is not None
    read = sum(one.num_bytes for one in buffers.reads[maker.index])
    return WrittenToSend(read + written, is_conversion, argument)


def _computing(graph: Graph, buffers: Buffers, value: int) -> Op | None:
    """The element-wise op that makes a value, sliced and turned as it may be; None if stored."""
    while not buffers.is_stored[value]:
        maker = graph.ops[graph.values[value].op]
        if maker.kind is OpKind.COMPUTE and maker.op_class is OpClass.ELEMENTWISE:
            return maker
        if maker.kind is not OpKind.COMPUTE or maker.op_class not in _HANDS_ON:
            return None
        if not maker.operands:
            return None
        value = maker.operands[0]
    return None


def _argument_behind(graph: Graph, value: int) -> Op | None:
    """The argument that a value is, converted, sliced, turned or handed to a loop unchanged."""
    maker = graph.ops[graph.values[value].op]
    while maker.kind is not OpKind.ARGUMENT:
        is_invariant = maker.kind is OpKind.JOIN and len(maker.operands) == 1
        is_handed_on = maker.op_class in _HANDS_ON or maker.name == "convert"
        if not is_invariant and not (maker.kind is OpKind.COMPUTE and is_handed_on):
            return None
        if not maker.operands:
            return None
        maker = graph.ops[graph.values[maker.operands[0]].op]
    return maker
