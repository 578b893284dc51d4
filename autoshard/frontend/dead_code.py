"""What a program computes for nobody: compilers leave it out, and so it is not paid for."""

from __future__ import annotations

from collections.abc import Iterable

from jax._src.interpreters.partial_eval import dce_jaxpr  # checked on jax 0.9.0 and 0.10.2
from jax.extend.core import Jaxpr

from autoshard.frontend.graph_builder import GraphBuilder
from autoshard.graph.program import OpClass, OpKind
from autoshard.graph.rule import identity_rule

_STAYS = frozenset({OpKind.ARGUMENT, OpKind.RESULT, OpKind.CONSTRAINT})


def without_dead_equations(jaxpr: Jaxpr) -> Jaxpr:
    """The same with only what its results and its effects need; its arguments stay."""
    live, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return live


def leave_out_dead_code(build: GraphBuilder, read: Iterable[int]) -> None:
    """Make ops free, without operands, whose results reach no result of the program, in place.

    Among them a value that a loop carries for its own next run alone, which JAX leaves in a
    `while`. Custom calls and collectives that the user wrote stay: they may have effects.

    Args:
        build: The whole program.
        read: Values read by what is no op: conditions of loops, and what chooses a branch.
    """
    ops, values = build.ops, build.values
    made_by = {value: op for op in ops for value in op.results}
    todo = [made_by[value] for value in read]
    todo += [
        op
        for op in ops
        if op.kind in _STAYS or op.op_class is OpClass.CUSTOM or op.collective is not None
    ]
    alive: set[int] = set()
    while todo:
        op = todo.pop()
        if id(op) not in alive:
            alive.add(id(op))
            todo += [made_by[value] for value in op.operands]
    for op in ops:
        if id(op) in alive or op.kind is OpKind.FREE:
            continue
        if op.kind is OpKind.JOIN:  # hands on what it starts from
            op.operands, op.operand_repeats = op.operands[:1], op.operand_repeats[:1]
            op.rule = identity_rule(values[op.results[0]].shape, 1)
        else:
            op.name, op.kind = "dead_code", OpKind.FREE
            op.operands, op.operand_repeats = (), ()
            op.rule, op.op_class, op.flops = None, OpClass.NOTHING, 0.0
