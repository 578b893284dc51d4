"""Updates of states in host memory, written as loops that bring part after part to the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from autoshard.errors import PlanError
from autoshard.frontend.inline_calls import inline_calls
from autoshard.offload.blocks import Block, in_order, read_by, traced_block
from autoshard.offload.choice import StreamedUpdate
from autoshard.offload.early_reads import cast, slicing
from autoshard.offload.parts import Parts
from autoshard.offload.state_updates import CAST, StateUpdate, state_updates
from autoshard.remat.host_memory import moved, on_host

_HOST, _DEVICE = jax.memory.Space.Host, jax.memory.Space.Device


def with_streamed_states(closed: ClosedJaxpr, wanted: Sequence[StreamedUpdate]) -> ClosedJaxpr:
    """A traced program with the states of these updates in host memory.

    The loop of an update stands where all it reads is there: so gradients are freed as early as
    they were. A state that is given on the device goes to the host first.

    Raises:
        PlanError: The program updates its states otherwise.
    """
    if not wanted:
        return closed
    jaxpr = closed.jaxpr
    eqns, results = inline_calls(jaxpr)
    flat = [one.eqn for one in eqns]
    new_of: dict[Var, Var] = {}  # by new state on the device, the same in host memory
    there: dict[Var, Var] = {}  # by state that is read before its update, likewise
    instead: dict[int, Block] = {}  # by position, of copies that are made of parts
    inside: set[int] = set()
    loops: list[Block] = []
    for loop in _loops(jaxpr, flat, results, wanted):
        update = loop.update
        inside.update(update.positions)
        new_of.update({new: Var(on_host(new.aval)) for new in update.states.values()})
        read = {var for at in update.early for var in read_by(flat[at]) & update.states.keys()}
        there.update({var: Var(on_host(var.aval)) for var in read})
        instead.update(loop.copies(there))
        loops.append(loop.block(new_of))
    blocks: list[Block] = [([moved(var, same, flat[0])], {var}) for var, same in there.items()]
    for at, eqn in enumerate(flat):
        if at not in inside:
            changed = slicing(eqn, there)
            blocks.append(instead.get(at) or ([changed], read_by(changed)))
    ordered = list(in_order(blocks, loops, {*jaxpr.constvars, *jaxpr.invars}))
    outvars = [new_of.get(one, one) if isinstance(one, Var) else one for one in results]
    return ClosedJaxpr(jaxpr.replace(eqns=ordered, outvars=outvars), closed.consts)


def _loops(
    jaxpr: Jaxpr, flat: Sequence[JaxprEqn], results: Sequence[Any], wanted: Sequence[StreamedUpdate]
) -> Iterator[_Loop]:
    """The loops of updates.

    Raises:
        PlanError: The program has no such update.
    """
    replaced = {
        jaxpr.invars[old]: results[new]
        for one in wanted
        for old, new in zip(one.arguments, one.results, strict=True)
    }
    by_states = {
        frozenset(one.states): one
        for with_parameters in (True, False)  # states alone are updated as those were found
        for one in state_updates(flat, replaced, results, with_parameters=with_parameters)
    }
    for one in wanted:
        update = by_states.get(frozenset(jaxpr.invars[place] for place in one.arguments))
        if update is None:
            places = ", ".join(map(str, one.arguments))
            raise PlanError(
                f"the program does not update its arguments {places} as when it was planned",
                where="states in host memory",
                fix="plan again for this program",
            )
        yield _Loop(flat, update, one)


def updates_of(
    closed: ClosedJaxpr, carried: Mapping[int, int], *, with_parameters: bool = False
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Updates of states that are given up and replaced: which arguments, which results, what shape.

    Args:
        closed: As it was traced.
        carried: By argument that the caller gives up, the result that the next step is given.
        with_parameters: Arrays that layers under scan run over, or that are cast, are states too.
    """
    jaxpr = closed.jaxpr
    flat, results = inline_calls(jaxpr)
    place_of = {jaxpr.invars[place]: place for place in carried}
    new_of = {var: results[carried[place]] for var, place in place_of.items() if var.aval.shape}
    eqns = [one.eqn for one in flat]
    for update in state_updates(eqns, new_of, results, with_parameters=with_parameters):
        arguments = tuple(sorted(place_of[one] for one in update.states))
        yield arguments, tuple(carried[place] for place in arguments), update.shape


@dataclass(frozen=True, slots=True)
class _Loop:
    """The loop of one update.

    Args:
        eqns: Of the program, in order.
        update: Equations of it.
        said: How it is taken apart.
    """

    eqns: Sequence[JaxprEqn]
    update: StateUpdate
    said: StreamedUpdate

    @property
    def parts(self) -> Parts:
        """Of its states."""
        return Parts(self.update.shape, self.said.dim, self.said.parts, self.said.pieces)

    def block(self, new_of: Mapping[Var, Var]) -> Block:
        """Its equations, with these variables for new states, and what they read."""
        update = self.update
        news = [new_of[one] for one in update.states.values()]
        eqns, waits = traced_block(
            self._run,
            (*update.states, *update.inputs),
            (*news, *update.outputs),
            [self.eqns[at] for at in update.positions],
        )
        return eqns, waits.union(*(self.eqns[at].outvars for at in update.early))

    def copies(self, there: Mapping[Var, Var]) -> Iterator[tuple[int, Block]]:
        """Copies of its states in other types, with their positions.

        Args:
            there: By state, the same in host memory.
        """
        for at in self.update.early:
            eqn = self.eqns[at]
            if eqn.primitive.name == CAST:
                yield at, cast(eqn, there[eqn.invars[0]], self.parts)

    def _run(self, *given: Any) -> list[Any]:
        update, parts = self.update, self.parts
        there = [jax.device_put(one, _HOST) for one in given[: len(update.states)]]
        viewed = map(parts.viewed, (*there, *given[len(there) :]))
        value_of = dict(zip((*update.states, *update.inputs), viewed, strict=True))
        argument_of = {new: old for old, new in update.replaced.items()}
        states = [value_of[one] for one in update.states]
        others = [
            value_of[argument_of[one]]
            if one in argument_of
            else jax.lax.full(parts.view, 0, one.aval.dtype)
            for one in update.outputs
        ]
        carried_place = {argument_of.get(one): at for at, one in enumerate(update.outputs)}

        def run(index: Any, carried: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
            states, others = carried
            inputs = [
                others[carried_place[var]] if var in carried_place else value_of[var]
                for var in update.inputs
            ]
            on_device = [jax.device_put(parts.read(one, index), _DEVICE) for one in states]
            results = self._computed(*on_device, *(parts.read(one, index) for one in inputs))
            news = [jax.device_put(one, _HOST) for one in results[: len(states)]]
            return (
                [parts.written(*one, index) for one in zip(states, news, strict=True)],
                [
                    parts.written(*one, index)
                    for one in zip(others, results[len(states) :], strict=True)
                ],
            )

        states, others = jax.lax.fori_loop(0, parts.count, run, (states, others))
        return [parts.restored(one) for one in (*states, *others)]

    def _computed(self, *slices: Any) -> list[Any]:
        """New states of one part, and the other outputs, from states and inputs."""
        update, part = self.update, self.parts.shape
        var_of: dict[Var, Var] = {}

        def resized(atom: Any) -> Any:
            if isinstance(atom, Literal):
                return atom
            if atom not in var_of:
                aval = atom.aval
                var_of[atom] = Var(aval.update(shape=part) if aval.shape else aval)
            return var_of[atom]

        body = [
            eqn.replace(
                invars=[resized(atom) for atom in eqn.invars],
                outvars=[resized(var) for var in eqn.outvars],
                params={
                    **eqn.params,
                    **({"shape": part} if "shape" in eqn.params else {}),
                },
            )
            for eqn in (self.eqns[at] for at in update.positions)
        ]
        given = [resized(var) for var in (*update.states, *update.inputs)]
        made = [resized(var) for var in (*update.states.values(), *update.outputs)]
        empty = jax.make_jaxpr(lambda: ())().jaxpr
        jaxpr = Jaxpr([], given, made, body, debug_info=empty.debug_info.with_unknown_names())
        results: list[Any] = jaxpr_as_fun(ClosedJaxpr(jaxpr, ()))(*slices)
        return results
