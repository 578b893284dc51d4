"""Arguments that are narrowed only to be sent: else the ops that read them narrow them."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.graph.buffers import Buffers
from autoshard.graph.dataflow import source_of
from autoshard.graph.program import Graph, Op, OpClass, OpKind

_HANDS_ON = frozenset({OpClass.COPY, OpClass.NOTHING})


@dataclass(frozen=True, slots=True)
class NarrowedToSend:
    """A conversion before a collective.

    Args:
        num_bytes: That it reads and writes, of whole tensors.
        argument: That it narrows, sliced and turned as it may be.
    """

    num_bytes: float
    argument: Op


def narrowed_to_send(
    graph: Graph, buffers: Buffers, value: int, bits: int
) -> NarrowedToSend | None:
    """What it takes to have an argument of the program narrower before it is sent.

    None for what is no narrower, and for other values. The program may narrow it, or the compiler.

    Args:
        graph: The program.
        buffers: Its storage.
        value: That is sent.
        bits: Of an element as it is sent.
    """
    found = graph.values[value]
    argument = _argument_behind(graph, buffers, value)
    if argument is None:
        return None
    there = graph.values[argument.results[0]].bits
    if bits >= there or not found.bits:
        return None
    return NarrowedToSend(found.num_bytes * (there + bits) / found.bits, argument)


def _argument_behind(graph: Graph, buffers: Buffers, value: int) -> Op | None:
    """The argument that a value is, converted, sliced, turned or handed to a loop unchanged."""

    def passes(op: Op, made: int) -> bool:
        is_invariant = op.kind is OpKind.JOIN and len(op.operands) == 1
        is_handed_on = op.op_class in _HANDS_ON or op.name == "convert"
        return is_invariant or (
            op.kind is OpKind.COMPUTE and is_handed_on and not buffers.is_stored[made]
        )

    source = graph.maker(source_of(graph, value, passes))
    return source if source.kind is OpKind.ARGUMENT else None
