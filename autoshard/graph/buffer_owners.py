"""Whose buffer each value lives in."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.graph.dataflow import source_of
from autoshard.graph.host_transfers import stays
from autoshard.graph.last_uses import carry_stop
from autoshard.graph.op_traits import passes_through, renames
from autoshard.graph.program import PRODUCTS, Graph, Op, OpKind

_UPDATES = frozenset({"dynamic_update_slice", "scatter"})
"""Ops that change some elements of their first operand."""


def buffer_owners(graph: Graph, stored: Sequence[bool], *, writes_turned: bool) -> list[int]:
    """Per value, the one whose buffer it lives in; its own, if nothing else gives it one.

    Renamed values live in their operand's, what a loop body returns in that of its carry, what the
    branches of a conditional end in in that of its result. An update in place takes the buffer of
    what it updates, unless that is still read afterwards.

    Args:
        graph: The program.
        stored: Per value, whether it has a buffer.
        writes_turned: Products write in any order of dimensions: what is read of one turned and
            reshaped alone is what it writes.
    """
    owner = list(range(len(graph.values)))
    for op in graph.ops:
        if op.kind is OpKind.JOIN:
            for value in _ends(graph, op):
                if stored[value]:
                    owner[value] = op.results[0]
    for op in graph.ops:
        if not op.operands:
            continue
        if writes_turned and renames(op) and stored[op.results[0]]:
            made = _turned_product(graph, stored, op.operands[0])
            if made is not None:
                owner[op.results[0]] = made
        if not stored[op.operands[0]]:
            continue
        if _hands_on(graph, op):
            result = op.results[0]
            if owner[result] == result:
                owner[result] = owner[op.operands[0]]
        elif op.name in _UPDATES and _updates_in_place(graph, op):
            owner[op.results[0]] = owner[op.operands[0]]
    return [_root(owner, value) for value in range(len(owner))]


def _turned_product(graph: Graph, stored: Sequence[bool], value: int) -> int | None:
    """The stored result of a product that a value is, renamed and read for nothing else."""

    def is_alone(made: int) -> bool:
        return len(graph.consumers[made]) == 1

    made = source_of(
        graph, value, lambda op, one: renames(op) and not stored[one] and is_alone(one)
    )
    is_product = graph.maker(made).op_class in PRODUCTS
    return made if made != value and stored[made] and is_alone(made) and is_product else None


def updates_copy(graph: Graph, owner: Sequence[int], op: Op) -> bool:
    """True where an update is written into a copy: what it is of stays as it is.

    So a slice of a stacked cache is, of which a loop updates a row. A donated argument gives its
    buffer.

    Source: decoding with a cache under `scan`, by libtpu 0.0.52 for a v5p; scatters into donated
        caches, for a v5e.
    """
    if op.name not in _UPDATES or owner[op.results[0]] != op.results[0]:
        return False
    maker = _updated(graph, op)
    return maker.kind is not OpKind.FREE and maker.index not in graph.donated


def updates_argument(graph: Graph, op: Op) -> bool:
    """True for an update of an argument: it is made in HBM, where that is."""
    return op.name in _UPDATES and _updated(graph, op).kind is OpKind.ARGUMENT


def _updated(graph: Graph, op: Op) -> Op:
    """The op that makes what an update changes, renamed or not."""
    return graph.maker(source_of(graph, op.operands[0], lambda maker, _: renames(maker)))


def _ends(graph: Graph, join: Op) -> tuple[int, ...]:
    """What is computed in the body of a loop, or in branches, for a carry or result of them."""
    if join.name == "while":
        ends = join.operands[1:2]
        return tuple(v for v in ends if _ends_run(graph, join, graph.maker(v)))
    if join.name != "case":
        return ()
    makers = [(value, graph.maker(value)) for value in join.operands]
    return tuple(
        value
        for value, made in makers
        if made.kind is OpKind.COMPUTE and made.region != join.region
    )


def _ends_run(graph: Graph, join: Op, maker: Op) -> bool:
    """True for an op that makes what a carry is next, in its place.

    An inner loop does so that goes on with the carry, unless that is read after it began.
    """
    if maker.kind is not OpKind.JOIN or maker.name != "while":
        return maker.kind is OpKind.COMPUTE
    (carry,), stop = join.results, carry_stop(graph, join)
    start = source_of(graph, maker.operands[0], lambda op, _: renames(op))
    return start == carry and not _is_read(graph, carry, maker.index, stop)


def _hands_on(graph: Graph, op: Op) -> bool:
    """True where an op makes what it reads: renamed, or left by a loop, or in its memory."""
    makes_it = renames(op) or passes_through(op) or stays(graph, op)
    return makes_it and len(op.results) == 1


def _updates_in_place(graph: Graph, op: Op) -> bool:
    """True where nothing reads what an op updates once it is done; of a carry, in the same run."""
    maker = graph.maker(op.operands[0])
    if maker.kind is OpKind.ARGUMENT:
        return False
    stop = len(graph.ops)
    if maker.kind is OpKind.JOIN and maker.name == "while":
        loop_stop = carry_stop(graph, maker)
        stop = loop_stop if op.index < loop_stop else stop  # after the loop it is the last carry
    return not _is_read(graph, op.operands[0], op.index, stop)


def _is_read(graph: Graph, value: int, after: int, before: int) -> bool:
    """True where an op between two others reads a value."""
    return any(after < reader < before for reader in graph.consumers[value])


def _root(owner: Sequence[int], value: int) -> int:
    seen = set()
    while owner[value] != value and value not in seen:
        seen.add(value)
        value = owner[value]
    return value
