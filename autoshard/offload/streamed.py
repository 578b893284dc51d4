"""Updates of states in host memory, written as loops that bring part after part to the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from autoshard.errors import PlanError
from autoshard.frontend.jaxpr_paths import rewrite_bodies
from autoshard.frontend.meshes import mesh_context
from autoshard.offload.choice import StreamedUpdate
from autoshard.offload.state_updates import StateUpdate, state_updates
from autoshard.remat.host_memory import on_host
from autoshard.remat.inline_calls import inline_calls

Places = tuple[int, ...]

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
    replaced = {
        jaxpr.invars[old]: results[new]
        for one in wanted
        for old, new in zip(one.arguments, one.results, strict=True)
    }
    by_states = {frozenset(one.states): one for one in state_updates(flat, replaced, results)}
    inside: set[int] = set()
    loops: list[_Block] = []
    new_of: dict[Var, Var] = {}
    for one in wanted:
        update = by_states.get(frozenset(jaxpr.invars[place] for place in one.arguments))
        if update is None:
            places = ", ".join(map(str, one.arguments))
            raise PlanError(
                f"the program does not update its arguments {places} as when it was planned",
                where="states in host memory",
                fix="plan again for this program",
            )
        inside.update(update.positions)
        new_of.update({new: Var(on_host(new.aval)) for new in update.states.values()})
        loops.append(_Loop(flat, update, one).block(new_of))
    rest: list[_Block] = [([eqn], _read(eqn)) for at, eqn in enumerate(flat) if at not in inside]
    ordered = list(_in_order(rest, loops, {*jaxpr.constvars, *jaxpr.invars}))
    outvars = [new_of.get(one, one) if isinstance(one, Var) else one for one in results]
    return ClosedJaxpr(jaxpr.replace(eqns=ordered, outvars=outvars), closed.consts)


def updates_of(
    closed: ClosedJaxpr, carried: Mapping[int, int]
) -> Iterator[tuple[Places, Places, tuple[int, ...]]]:
    """Updates of states that are given up and replaced: which arguments, which results, what shape.

    Args:
        closed: As it was traced.
        carried: By argument that the caller gives up, the result that the next step is given.
    """
    jaxpr = closed.jaxpr
    flat, results = inline_calls(jaxpr)
    place_of = {jaxpr.invars[place]: place for place in carried}
    new_of = {var: results[carried[place]] for var, place in place_of.items() if var.aval.shape}
    for update in state_updates([one.eqn for one in flat], new_of, results):
        arguments = tuple(sorted(place_of[one] for one in update.states))
        yield arguments, tuple(carried[place] for place in arguments), update.shape


_Block = tuple[list[JaxprEqn], set[Var]]
"""Equations that stand together, and what they wait for."""


def _in_order(
    blocks: Iterable[_Block], loops: Iterable[_Block], there: set[Var]
) -> Iterator[JaxprEqn]:
    """Equations in their order, and loops as soon as all is there that they read."""
    missing: list[tuple[set[Var], list[JaxprEqn]]] = []
    waiting: dict[Var, list[int]] = {}

    def ready(block: _Block) -> list[JaxprEqn]:
        """The equations of a block where it need not wait."""
        eqns, read = block
        lacking = read - there
        for var in lacking:
            waiting.setdefault(var, []).append(len(missing))
        missing.append((lacking, eqns))
        return [] if lacking else eqns

    def emitted(eqns: list[JaxprEqn]) -> Iterator[JaxprEqn]:
        """Equations, and what waited for their results."""
        todo = [eqns]
        for block in todo:  # grows as it goes
            yield from block
            for var in (var for eqn in block for var in eqn.outvars):
                there.add(var)
                for number in waiting.pop(var, ()):
                    lacking, others = missing[number]
                    lacking.discard(var)
                    if not lacking:
                        todo.append(others)

    for block in (*loops, *blocks):
        yield from emitted(ready(block))
    assert not waiting, "an update reads what is made of it"


def _read(eqn: JaxprEqn) -> set[Var]:
    return {atom for atom in eqn.invars if isinstance(atom, Var)}


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
    def part(self) -> tuple[int, ...]:
        """The shape of what is on the device in one run."""
        dim, shape = self.said.dim, self.update.shape
        return (*shape[:dim], shape[dim] // self.said.parts, *shape[dim + 1 :])

    def block(self, new_of: Mapping[Var, Var]) -> _Block:
        """Its equations, with these variables for new states, and what they read."""
        update = self.update
        given = (*update.states, *update.inputs)
        mesh = given[0].aval.sharding.mesh
        with mesh_context(None if mesh.empty else mesh):
            traced = jax.make_jaxpr(self._run)(*(var.aval for var in given))
        news = [new_of[one] for one in update.states.values()]
        atom_of: dict[Var, Any] = dict(zip(traced.jaxpr.invars, given, strict=True))
        atom_of.update(zip(traced.jaxpr.outvars, (*news, *update.outputs), strict=True))
        renamed = [
            eqn.replace(
                invars=[a if isinstance(a, Literal) else atom_of.get(a, a) for a in eqn.invars],
                outvars=[atom_of.get(var, var) for var in eqn.outvars],
            )
            for eqn in traced.jaxpr.eqns
        ]
        return _with_lines_of(renamed, [self.eqns[at] for at in update.positions]), {*given}

    def _run(self, *given: Any) -> list[Any]:
        update = self.update
        value_of = dict(zip((*update.states, *update.inputs), given, strict=True))
        argument_of = {new: old for old, new in update.replaced.items()}
        states = [jax.device_put(value_of[one], _HOST) for one in update.states]
        others = [
            value_of[argument_of[one]]
            if one in argument_of
            else jax.lax.full(one.aval.shape, 0, one.aval.dtype)
            for one in update.outputs
        ]
        carried_place = {argument_of.get(one): at for at, one in enumerate(update.outputs)}

        def run(index: Any, carried: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
            states, others = carried
            start = self._start(index)
            inputs = [
                others[carried_place[var]] if var in carried_place else value_of[var]
                for var in update.inputs
            ]
            on_device = [jax.device_put(self._slice(one, start), _DEVICE) for one in states]
            results = self._computed(*on_device, *(self._slice(one, start) for one in inputs))
            news = [jax.device_put(one, _HOST) for one in results[: len(states)]]
            return (
                [self._written(*one, start) for one in zip(states, news, strict=True)],
                [
                    self._written(*one, start)
                    for one in zip(others, results[len(states) :], strict=True)
                ],
            )

        states, others = jax.lax.fori_loop(0, self.said.parts, run, (states, others))
        return [*states, *others]

    def _slice(self, array: Any, start: Sequence[Any]) -> Any:
        if not array.shape:
            return array
        return jax.lax.dynamic_slice(array, start, self.part, allow_negative_indices=False)

    def _written(self, array: Any, part: Any, start: Sequence[Any]) -> Any:
        return jax.lax.dynamic_update_slice(array, part, start, allow_negative_indices=False)

    def _start(self, index: Any) -> list[Any]:
        """Of a part, by dimension."""
        size = self.part[self.said.dim]
        return [index * size if at == self.said.dim else 0 for at in range(len(self.part))]

    def _computed(self, *slices: Any) -> list[Any]:
        """New states of one part, and the other outputs, from states and inputs."""
        update = self.update
        var_of: dict[Var, Var] = {}

        def resized(atom: Any) -> Any:
            if isinstance(atom, Literal):
                return atom
            if atom not in var_of:
                aval = atom.aval
                var_of[atom] = Var(aval.update(shape=self.part) if aval.shape else aval)
            return var_of[atom]

        body = [
            eqn.replace(
                invars=[resized(atom) for atom in eqn.invars],
                outvars=[resized(var) for var in eqn.outvars],
                params={**eqn.params, **({"shape": self.part} if "shape" in eqn.params else {})},
            )
            for eqn in (self.eqns[at] for at in update.positions)
        ]
        given = [resized(var) for var in (*update.states, *update.inputs)]
        made = [resized(var) for var in (*update.states.values(), *update.outputs)]
        empty = jax.make_jaxpr(lambda: ())().jaxpr
        jaxpr = Jaxpr([], given, made, body, debug_info=empty.debug_info.with_unknown_names())
        results: list[Any] = jaxpr_as_fun(ClosedJaxpr(jaxpr, ()))(*slices)
        return results


def _with_lines_of(eqns: Sequence[JaxprEqn], replaced: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """Equations, and those in their bodies, with source lines of the equations they replace.

    What was taken over has its own; all else, which brings parts to and fro, that of the last.
    """
    own = {id(eqn.source_info.traceback) for eqn in replaced}

    def sourced(eqn: JaxprEqn) -> JaxprEqn:
        params = rewrite_bodies(eqn, lambda _, body: body.replace(eqns=[*map(sourced, body.eqns)]))
        changed = eqn if params is None else eqn.replace(params=params)
        is_own = id(eqn.source_info.traceback) in own
        return changed if is_own else changed.replace(source_info=replaced[-1].source_info)

    return [sourced(eqn) for eqn in eqns]
