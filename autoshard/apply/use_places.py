"""Operands of equations, and results of bodies, that an op's operands are in the user's program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoshard.graph.dataflow import before_lowering, source_of
from autoshard.graph.op_traits import passes_through
from autoshard.graph.program import Graph, Op, OpKind

_LOOP_BODIES = ("jaxpr", "body_jaxpr", "body")  # of a scan, of a while, of one in a module


def reader_of(op: Op, position: int, operand_paths: Mapping[str, tuple[str | None, ...]]) -> str:
    """The equation that reads an operand, or the results of the body that ends in it."""
    if op.kind is not OpKind.JOIN:
        return op.equation
    if op.name == "case":  # each branch ends in its own use
        return f"{op.equation}.branches[{position}]/out"
    if op.name == "while" and position > 0:  # what goes round again
        ends = (f"{op.equation}.{body}/out" for body in _LOOP_BODIES)
        return next((end for end in ends if end in operand_paths), op.equation)
    return op.equation


def place_before_lowering(
    graph: Graph,
    op: Op,
    position: int,
    reader: str,
    operand_paths: Mapping[str, tuple[str | None, ...]],
) -> int:
    """The operand of its equation that an op's operand is, or is made of; -1 when it is none."""
    earlier = _times_read_before(graph, op, position)
    places = (
        _operand_place(graph, reader, before, operand_paths, earlier)
        for before in before_lowering(graph, op, op.operands[position])
    )
    return next((place for place in places if place >= 0), -1)


def places_alike(
    graph: Graph,
    op: Op,
    place: int,
    reader: str,
    operand_paths: Mapping[str, tuple[str | None, ...]],
) -> Sequence[int]:
    """Places of an operand of its equation: of what a loop reads unchanged, under each name.

    Args:
        graph: The program.
        op: Reads it.
        place: One of them; -1 for none.
        reader: The equation.
        operand_paths: By equation.
    """
    value = op.operands[0]
    readers = (graph.ops[index] for index in graph.consumers[value])
    is_alone = sum(one.equation == op.equation for one in readers) == 1
    if place < 0 or not (passes_through(op) and is_alone):
        return [place] if place >= 0 else []
    names = (path and graph.value_by_path.get(path) for path in operand_paths[reader])
    return [at for at, name in enumerate(names) if at == place or name == value]


def _times_read_before(graph: Graph, op: Op, position: int) -> int:
    """Reads of an operand before that, by an equation or by a loop that carries several values.

    An equation may be lowered to an op for each of its operands (`stack`).
    """
    value, own = op.operands[position], _operand_rank(graph, op)
    if not _is_one_of_several(op):
        return 0
    others = [
        other
        for other in map(graph.ops.__getitem__, dict.fromkeys(graph.consumers[value]))
        if other.equation == op.equation and _is_one_of_several(other)
        if _operand_rank(graph, other) < own
    ]
    entering = position if op.kind is OpKind.JOIN else 0
    before = op.operands[:position] if op.kind is OpKind.COMPUTE else ()
    for one in others:
        is_carry = one.kind is OpKind.JOIN
        before += one.operands[entering : entering + 1] if is_carry else one.operands
    return before.count(value)


def _is_one_of_several(op: Op) -> bool:
    """True of an op that may read one operand of its equation, where others read the others."""
    return op.kind is OpKind.COMPUTE or op.name == "while"


def _operand_rank(graph: Graph, op: Op) -> tuple[int, int]:
    """Orders ops of one equation by its operands.

    A scan reads constants, carries and then stacks, and is lowered to a loop that carries them in
    another order. No path of its body leads to a whole stack.
    """
    path = graph.values[op.results[0]].path
    if op.kind is OpKind.JOIN and path.startswith(f"{op.equation}."):
        body, slash, name = path.rpartition("/")
        if body.count("/") == op.equation.count("/") and name.startswith("in."):
            return 0, int(name.removeprefix("in."))
        if not slash:
            return 1, int(path.rpartition(".")[2])
    return 2, op.index


def _operand_place(
    graph: Graph,
    reader: str,
    value: int,
    operand_paths: Mapping[str, tuple[str | None, ...]],
    num_earlier: int,
) -> int:
    """The operand of an equation, or result of a body, that a value is; -1 when it is none.

    Of an equation that reads it several times as its op does, the operand after so many of them.
    """
    places = [
        place
        for place, path in enumerate(operand_paths.get(reader, ()))
        if path is not None and _is_as(graph, graph.value_by_path.get(path), value)
    ]
    return places[min(num_earlier, len(places) - 1)] if places else -1


def _is_as(graph: Graph, inside: int | None, value: int) -> bool:
    """True of a value, and of what a loop passes through of it: hoisted ops read that outside."""
    if inside is None:
        return False
    return value == source_of(graph, inside, lambda op, at: at != value and passes_through(op))
