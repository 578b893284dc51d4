"""What a program computes for nobody: compilers leave it out, and so it is not paid for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jax._src.interpreters.partial_eval import dce_jaxpr  # checked on jax 0.9.0 and 0.10.2
from jax.extend.core import Jaxpr

from autoshard.frontend.graph_builder import GraphBuilder, OpDraft
from autoshard.graph.program import OpClass, OpKind
from autoshard.graph.rule import identity_rule


def without_dead_equations(jaxpr: Jaxpr) -> Jaxpr:
    """The same with only what its results and its effects need; its arguments stay."""
    live, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return live


class Control(NamedTuple):
    """A value that a loop or a conditional reads: whether to go on, or the branch.

    Args:
        value: The condition or the index.
        regions: That it decides about.
        joins: The values that the JOIN ops of the loop or the conditional make.
    """

    value: int
    regions: tuple[int, ...]
    joins: tuple[int, ...]


def leave_out_dead_code(build: GraphBuilder, controls: Iterable[Control]) -> None:
    """Make ops free, without operands, whose results reach no result of the program, in place.

    Among them a value that a loop carries for its own next run alone, which JAX leaves in a
    `while`, and whole loops that an unrolled body runs for nobody. Custom calls stay, with the
    loops around them: they may have effects. Arrays without elements are constants to XLA, and
    need nothing. A copy of a value that nothing needs need not be sharded like the others.

    Args:
        build: The whole program.
        controls: Of its loops and conditionals.
    """
    alive = _Alive(build, controls)
    build.untie(alive.unread)
    for op in build.ops:
        if op in alive or op.kind is OpKind.FREE:
            continue
        if op.kind is OpKind.JOIN:  # hands on what it starts from
            op.operands, op.operand_repeats = op.operands[:1], op.operand_repeats[:1]
            op.rule = identity_rule(build.shape(op.results[0]), 1)
        else:
            op.name, op.kind, op.pinned = "dead_code", OpKind.FREE, ""
            op.operands, op.operand_repeats = (), ()
            op.rule, op.op_class, op.flops = None, OpClass.NOTHING, 0.0


class _Alive:
    """The ops that a program runs for its results and its effects.

    `unread` holds the values that neither a result nor an effect needs.
    """

    def __init__(self, build: GraphBuilder, controls: Iterable[Control]) -> None:
        self._build = build
        self._made_by = {value: op for op in build.ops for value in op.results}
        self._of_region: dict[int, int] = {}  # controls of bodies that no op needs so far
        self._of_join: dict[int, int] = {}
        for control in controls:
            self._of_region |= dict.fromkeys(control.regions, control.value)
            decided = (v for v in control.joins if len(build.maker(v).operands) > 1)
            self._of_join |= dict.fromkeys(decided, control.value)
        self._found: set[int] = set()
        self._add(op for op in build.ops if _stays(op))
        self.unread = {v for op in build.ops if op not in self for v in op.results}

    def __contains__(self, op: OpDraft) -> bool:
        return id(op) in self._found

    def _add(self, ops: Iterable[OpDraft]) -> None:
        """Add ops and all that they need."""
        todo = [*ops]
        while todo:
            op = todo.pop()
            if op not in self and not self._is_empty(op):
                self._found.add(id(op))
                needed = (*op.operands, *self._controls(op))
                todo += [self._made_by[value] for value in needed]

    def _is_empty(self, op: OpDraft) -> bool:
        """True where an op makes only arrays without elements."""
        is_work = op.kind is OpKind.COMPUTE and bool(op.results) and not _stays(op)
        return is_work and all(0 in self._build.shape(value) for value in op.results)

    def _controls(self, op: OpDraft) -> Iterator[int]:
        """Values that decide whether an op runs, or which of its operands it hands on."""
        if op.kind is OpKind.JOIN and op.results[0] in self._of_join:
            yield self._of_join[op.results[0]]
        for region in self._around(op):
            if region in self._of_region:
                yield self._of_region.pop(region)

    def _around(self, op: OpDraft) -> Iterator[int]:
        region = op.region
        while region >= 0:
            yield region
            region = self._build.regions[region].parent


def _stays(op: OpDraft) -> bool:
    is_border = op.kind in (OpKind.ARGUMENT, OpKind.RESULT)
    return is_border or (op.op_class is OpClass.CUSTOM and op.collective is None)
