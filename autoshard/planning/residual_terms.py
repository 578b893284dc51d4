"""States that users allow forward ops: kept, computed again or offloaded, as they ask."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from autoshard.constraints import (
    Keep,
    NameSelector,
    Offload,
    Program,
    Recompute,
    ResidualTerm,
)
from autoshard.constraints.select import Chooser
from autoshard.errors import ConstraintError
from autoshard.planning.residual_problem import AGAIN, DROP, HOST, KEEP
from autoshard.remat.forward_op import ForwardOp

_STATES: Mapping[type[ResidualTerm], tuple[int, ...]] = {
    Keep: (KEEP,),
    Recompute: (AGAIN, DROP),
    Offload: (HOST,),
}
_DONE: Mapping[type[ResidualTerm], str] = {
    Keep: "kept",
    Recompute: "computed again",
    Offload: "offloaded",
}


def asked_states(
    ops: Sequence[ForwardOp], terms: Sequence[ResidualTerm], program: Program
) -> Mapping[int, tuple[int, ...]]:
    """By position of a forward op, the states that are left to choose; all of others.

    Args:
        ops: Of the program that keeps every residual.
        terms: What users ask.
        program: The same program, as selectors see it.

    Raises:
        ConstraintError: A term selects no residual, or one that cannot be computed again or
            offloaded, or two terms contradict one another.
    """
    found: dict[int, tuple[int, ...]] = {}
    said: dict[int, ResidualTerm] = {}
    chooser = Chooser(program)
    for term in terms:
        states = _STATES[type(term)]
        for position in _selected(ops, term, chooser):
            if found.setdefault(position, states) != states:
                raise ConstraintError(
                    f"{_text(ops[position])} cannot be both {_DONE[type(said[position])]} and"
                    f" {_DONE[type(term)]}",
                    where=f"{said[position]}; {term}",
                    fix="ask for one of them",
                )
            said[position] = term
    return found


def _selected(ops: Sequence[ForwardOp], term: ResidualTerm, chooser: Chooser) -> Iterator[int]:
    matching = _matching(ops, term, chooser)
    if not matching:
        labels = dict.fromkeys(
            one.what for op in ops for one in op.results if one.is_named and one.is_required
        )
        raise ConstraintError(
            f"`{term.select}` selects nothing that a backward pass reads or is computed from",
            where=str(term),
            fix="select what a layer makes by its line, as in model.py:42 dot_general, or by its"
            f" checkpoint_name: {', '.join(labels) or 'the program has none'}"
            + _argument_hint(term, chooser.program),
        )
    if isinstance(term, Recompute):
        for position in matching:
            if not ops[position].may_repeat:
                raise ConstraintError(
                    f"{_text(ops[position])} can only be kept",
                    where=str(term),
                    fix="leave it out: a loop carries it, it has effects, or other layers read it",
                )
        yield from matching
        return
    if isinstance(term, Offload):
        for position in matching:
            if ops[position].stack_length is None:
                raise ConstraintError(
                    f"{_text(ops[position])} cannot be offloaded",
                    where=str(term),
                    fix="select what a layer under scan makes: only its stacks are offloaded",
                )
    # A named value and that without its name are one: keeping the one that is read is enough.
    read = [position for position in matching if ops[position].is_required]
    yield from read or matching[-1:]


def _argument_hint(term: ResidualTerm, program: Program) -> str:
    """A hint to select arguments, where a single word begins their names."""
    is_meant = isinstance(term, Offload) and isinstance(term.selector, NameSelector)
    if is_meant and any(re.match(rf"{term.select}\b", name) for name in program.arguments):
        return f"; arguments are selected as `{term.select}**`"
    return ""


def _matching(ops: Sequence[ForwardOp], term: ResidualTerm, chooser: Chooser) -> list[int]:
    selector = term.selector
    if isinstance(selector, NameSelector):
        return [
            position
            for position, op in enumerate(ops)
            if any(one.is_named and one.what == selector.name for one in op.results)
        ]
    paths = {tensor.path for tensor in chooser.tensors(selector, str(term))}
    return [
        position for position, op in enumerate(ops) if any(one.path in paths for one in op.results)
    ]


def _text(op: ForwardOp) -> str:
    one = op.results[0]
    return f"{one.what} at {one.source}" if one.source else one.what
