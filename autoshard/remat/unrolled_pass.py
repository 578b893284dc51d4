"""A forward and a backward pass that stand side by side in one jaxpr."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn, Var

from autoshard.frontend.inline_calls import Inlined
from autoshard.remat.forward_order import ForwardOrder
from autoshard.remat.joint_graph import (
    JointGraph,
    Kept,
    constant_equations,
    copied,
    is_array,
    read,
    variables,
)
from autoshard.remat.segments import cut_into_segments
from autoshard.remat.value_numbers import ValueNumbers

_BACKWARD = "transpose("
"""In the name stacks of what `jax.grad` adds."""


@dataclass(frozen=True, eq=False)
class UnrolledPass:
    """A jaxpr as a forward pass and what depends on cotangents.

    Args:
        graph: Of both.
        places: By forward equation, its place in the program.
        reads: Equations that depend on cotangents, or stay for another reason, by their place.
        cotangents: Values that depend on cotangents.
    """

    graph: JointGraph
    places: tuple[int, ...]
    reads: tuple[tuple[int, JaxprEqn], ...]
    cotangents: Set[Var]

    def keeping(self, choice: Kept) -> tuple[list[JaxprEqn], dict[Var, Any]]:
        """The equations in order, with these values alone kept, and values by those they copy.

        What a segment computes again stands before the first equation that reads of it, behind a
        barrier on all that it starts from and on a cotangent: without it, compilers would make one
        of both computations, and keep what it makes.
        """
        kept = choice.values
        entries: list[tuple[tuple[int, int], JaxprEqn]] = [
            ((place, 0), eqn) for place, eqn in zip(self.places, self.graph.forward, strict=True)
        ]
        by_segment: dict[int, list[int]] = {}
        for position in self.graph.again(kept):
            by_segment.setdefault(self.graph.segments[position], []).append(position)
        atom_of: dict[Var, Any] = {}
        first_reader: dict[Var, int] = {}
        for number, (_, eqn) in enumerate(self.reads):
            for var in variables(eqn.invars):
                first_reader.setdefault(var, number)
        for positions in by_segment.values():
            block = [self.graph.forward[position] for position in positions]
            made = {var for eqn in block for var in eqn.outvars} - kept
            place, reader = self.reads[min(first_reader[v] for v in made if v in first_reader)]
            copies, names = self._copies(block, kept, reader)
            entries += [((place, 1), eqn) for eqn in copies]
            atom_of.update({var: names[var] for var in made})
        entries += [
            ((place, 2), eqn.replace(invars=[read(atom, atom_of) for atom in eqn.invars]))
            for place, eqn in self.reads
        ]
        return [eqn for _, eqn in sorted(entries, key=lambda entry: entry[0])], atom_of

    def _copies(
        self, block: Sequence[JaxprEqn], kept: Set[Var], reader: JaxprEqn
    ) -> tuple[list[JaxprEqn], dict[Var, Any]]:
        """A block of equations behind a barrier, and its values by those it copies.

        Constants pass no barrier: behind one they would lie in memory.
        """
        made = {var for eqn in block for var in eqn.outvars} - kept
        starts = [v for eqn in block for v in variables(eqn.invars) if v not in made]
        after = [self._narrowest(v) for v in variables(reader.invars) if v in self.cotangents][:1]
        maker, constants = self.graph.maker, self.graph.constants
        held = [
            v
            for v in dict.fromkeys((*starts, *after))
            if is_array(v) and maker.get(v) not in constants and v not in self._zeros
        ]
        atom_of: dict[Var, Any] = {var: Var(var.aval) for var in held}
        barrier = _barrier(held, [atom_of[var] for var in held], like=block[0])
        return [*barrier, *copied(block, atom_of)], atom_of

    def _narrowest(self, cotangent: Var) -> Var:
        """The value that a cotangent is broadcast from; compilers write what a barrier takes."""
        source = self._broadcast_from.get(cotangent)
        return cotangent if source is None else self._narrowest(source)

    @cached_property
    def _zeros(self) -> Set[Var]:
        """Constant arrays among cotangents, such as the zeros that gradients are added to."""
        eqns = [eqn for _, eqn in self.reads]
        made = (var for position in constant_equations(eqns) for var in eqns[position].outvars)
        return {var for var in made if getattr(var.aval, "shape", ())}

    @cached_property
    def _broadcast_from(self) -> dict[Var, Var]:
        return {
            eqn.outvars[0]: source
            for _, eqn in self.reads
            if eqn.primitive.name == "broadcast_in_dim"
            for source in variables(eqn.invars[:1])
            if source in self.cotangents
        }


def read_unrolled(
    flat: Sequence[Inlined], free: Set[Var], stacked: Set[int], numbers: ValueNumbers
) -> UnrolledPass:
    """A jaxpr as a forward and a backward pass.

    Args:
        flat: Its equations.
        free: Its inputs.
        stacked: Positions of forward scans whose reverse scans are known: they stay as they are.
        numbers: Of the values; their equations are numbered.
    """
    order = ForwardOrder()
    by_number: dict[int, Var] = {}
    alias: dict[Var, Any] = {}
    cotangents: set[Var] = set()
    stays: set[Var] = set()  # what else is no forward value
    reads: list[tuple[int, JaxprEqn]] = []
    for position, (eqn, is_recomputed) in enumerate(flat):
        given = eqn.replace(invars=[read(atom, alias) for atom in eqn.invars])
        operands = variables(given.invars)
        starts = not is_recomputed and _BACKWARD in str(eqn.source_info.name_stack)
        # What follows the first cotangent is no forward pass: an optimizer has much of it.
        is_late = bool(cotangents) and not is_recomputed
        if starts or any(var in cotangents for var in operands):
            cotangents.update(given.outvars)
        elif is_late or given.effects or any(var in stays for var in operands):
            stays.update(given.outvars)
        else:
            numbers.equation(given)
            known = [by_number.get(numbers.of(var)) for var in given.outvars]
            if is_recomputed and all(known):
                alias.update(zip(given.outvars, known, strict=True))
                continue
            for var in given.outvars:
                by_number.setdefault(numbers.of(var), var)
            if is_recomputed:
                order.add_early(given)
            else:
                order.add(given, position)
            continue
        reads.append((position, given))
    return UnrolledPass(
        _graph(order, free, stacked, [eqn for _, eqn in reads]),
        tuple(place for place, _ in order.in_order()),
        tuple(reads),
        frozenset(cotangents),
    )


def _graph(
    order: ForwardOrder, free: Set[Var], stacked: Set[int], reads: Sequence[JaxprEqn]
) -> JointGraph:
    placed = order.in_order()
    forward = tuple(eqn for _, eqn in placed)
    stays = {i for i, (place, eqn) in enumerate(placed) if place in stacked or eqn.effects}
    maker = {var: i for i, eqn in enumerate(forward) for var in eqn.outvars}
    fixed = {*constant_equations(forward), *(i for i, (p, _) in enumerate(placed) if p in stacked)}
    there = {*free, *(var for i in fixed for var in forward[i].outvars)}
    needed = dict.fromkeys(var for eqn in reads for var in variables(eqn.invars))
    # What the backward pass does not read is gone before anything is computed again.
    held = needed.keys() - there
    made = [sum(_bytes(v) for v in eqn.outvars if v in held) for eqn in forward]
    return JointGraph(
        forward=forward,
        carried=(),
        free=frozenset(there),
        required=tuple(v for v in needed if v in maker and v not in there),
        never_again=frozenset({*stays, *fixed}),
        segments=cut_into_segments(made, _alive(forward, there)),
        stack_length=None,
    )


def _alive(forward: Sequence[JaxprEqn], there: Set[Var]) -> list[int]:
    """By equation, bytes made before it that it or later ones read."""
    maker = {var: i for i, eqn in enumerate(forward) for var in eqn.outvars if var not in there}
    last = {var: i for i, eqn in enumerate(forward) for var in variables(eqn.invars)}
    change = [0] * (len(forward) + 1)
    for var, reader in last.items():
        if var in maker:
            change[maker[var] + 1] += _bytes(var)
            change[reader + 1] -= _bytes(var)
    alive, now = [], 0
    for position in range(len(forward)):
        now += change[position]
        alive.append(now)
    return alive


def _bytes(var: Var) -> int:
    itemsize = getattr(getattr(var.aval, "dtype", None), "itemsize", 0)
    return prod(getattr(var.aval, "shape", ())) * itemsize


def _barrier(operands: Sequence[Var], results: Sequence[Var], like: JaxprEqn) -> list[JaxprEqn]:
    if not operands:
        return []
    traced = jax.make_jaxpr(jax.lax.optimization_barrier)((np.zeros((), np.float32),))
    (template,) = traced.jaxpr.eqns
    return [
        template.replace(
            invars=list(operands),
            outvars=list(results),
            source_info=like.source_info,
            ctx=like.ctx,
        )
    ]
