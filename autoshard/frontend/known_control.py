"""Conditionals whose branch is known, and carries that a loop hands on as they are.

XLA takes both away behind the partitioner, with what they sent (openxla/xla,
`conditional_simplifier.cc`, `while_loop_simplifier.cc`). Here they go before, and no plan pays.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from autoshard.frontend.jaxpr_paths import (
    CALLS,
    Body,
    bodies,
    is_constrainable,
    rewrite_bodies,
    scan_params,
    used_variables,
)
from autoshard.frontend.known_numbers import known_number, number_made
from autoshard.frontend.spliced import spliced


def without_known_control(jaxpr: Jaxpr) -> Jaxpr:
    """The same with the equations of a branch in place of a conditional that always takes it.

    What a loop starts from is read in place of a carry that its body hands on as it is. The
    constraints that it hands it on through then stand behind the loop. A loop of one run starts
    from zeros where its body does not read the carry. Itself without any of them.
    """
    return _Settling().settled(jaxpr)


@dataclass(slots=True)
class _Settling:
    """Bodies rewritten so far, by key and identity of the old one, which is alive meanwhile."""

    once: dict[tuple[str, int], Body] = field(default_factory=dict)

    def settled(self, jaxpr: Jaxpr) -> Jaxpr:
        known: dict[Var, Any] = {}
        numbers: dict[Var, int] = {}
        eqns: list[JaxprEqn] = []
        for old in jaxpr.eqns:
            for eqn in self._in_place_of(old, known, numbers):
                eqns.append(eqn)
                if (number := number_made(eqn, numbers)) is not None:
                    numbers[eqn.outvars[0]] = number
        if len(eqns) == len(jaxpr.eqns) and all(map(operator.is_, eqns, jaxpr.eqns)):
            return jaxpr
        return jaxpr.replace(eqns=eqns, outvars=_read(jaxpr.outvars, known))

    def _in_place_of(
        self, eqn: JaxprEqn, known: dict[Var, Any], numbers: Mapping[Var, int]
    ) -> Sequence[JaxprEqn]:
        """The equations in place of one.

        Args:
            eqn: As it was.
            known: By variable, what is read in its place; results of `eqn` are added.
            numbers: Scalars that are known.
        """
        params = rewrite_bodies(eqn, lambda _, body: self.settled(body), self.once)
        invars = _read(eqn.invars, known)
        if params not in (None, eqn.params) or not all(map(operator.is_, invars, eqn.invars)):
            eqn = eqn.replace(invars=invars, params=params or eqn.params)
        name = eqn.primitive.name
        if name == "cond" and (index := known_number(eqn.invars[0], numbers)) is not None:
            return _branch_taken(eqn, index, known)
        if name in ("scan", "while"):
            *zeros, loop = _with_unread_zeros(eqn)
            return [*zeros, *_without_unchanged(loop, known)]
        return [eqn]


def _read(atoms: Iterable[Any], known: Mapping[Var, Any]) -> list[Any]:
    return [atom if isinstance(atom, Literal) else known.get(atom, atom) for atom in atoms]


def _branch_taken(eqn: JaxprEqn, index: int, known: dict[Var, Any]) -> Sequence[JaxprEqn]:
    """The equations of a branch, under names of their own."""
    branches = eqn.params["branches"]
    branch: Jaxpr = branches[min(max(index, 0), len(branches) - 1)].jaxpr
    if branch.constvars:
        return [eqn]
    names: dict[Var, Any] = dict(zip(branch.invars, eqn.invars[1:], strict=True))
    found = []
    for inner in branch.eqns:
        made = [Var(var.aval) if type(var) is Var else var for var in inner.outvars]
        found.append(inner.replace(invars=_read(inner.invars, names), outvars=made))
        names.update(zip(inner.outvars, made, strict=True))
    known.update(zip(eqn.outvars, _read(branch.outvars, names), strict=True))
    return found


@dataclass(frozen=True, slots=True)
class _Loop:
    """A `scan`, or a `while` whose condition reads constants and carries.

    Args:
        eqn: As it is.
        body: Its operands are constants, carries and, of a `scan`, slices of stacks.
        num_before: Operands of the equation before those of the body: what the condition reads.
        num_consts: Of the body.
        num_carries: Values that it carries.
        of_condition: By carry, whether the condition reads it.
    """

    eqn: JaxprEqn
    body: Jaxpr
    num_before: int
    num_consts: int
    num_carries: int
    of_condition: Sequence[bool]

    @staticmethod
    def of(eqn: JaxprEqn) -> _Loop:
        params = eqn.params
        if eqn.primitive.name == "scan":
            number = params["num_carry"]
            nothing = (False,) * number
            return _Loop(eqn, params["jaxpr"].jaxpr, 0, params["num_consts"], number, nothing)
        body, condition = params["body_jaxpr"].jaxpr, params["cond_jaxpr"].jaxpr
        num_before, read = params["cond_nconsts"], used_variables(condition)
        of_condition = [var in read for var in condition.invars[num_before:]]
        number = len(of_condition)
        return _Loop(eqn, body, num_before, params["body_nconsts"], number, of_condition)

    def unchanged(self) -> Mapping[int, Sequence[JaxprEqn]]:
        """By carry that the body alone reads and hands on, the constraints on the way.

        All of a loop that never runs.
        """
        if self.eqn.params.get("length") == 0:
            return dict.fromkeys(range(self.num_carries), ())
        carries = self.body.invars[self.num_consts :][: self.num_carries]
        copies = _copies(self.body, {var: _Copy(var) for var in carries})
        found = {}
        for place, (var, end) in enumerate(zip(carries, self.body.outvars, strict=False)):
            copy = None if isinstance(end, Literal) else copies.get(end)
            if copy is not None and copy.value is var and not self.of_condition[place]:
                found[place] = copy.constraints
        return found

    def reading(self, places: Set[int]) -> JaxprEqn:
        """The loop with constants in place of some of its carries."""
        first = self.num_before + self.num_consts
        invars = self._moved(self.eqn.invars, first, places)
        body = self.body.replace(
            invars=self._moved(self.body.invars, self.num_consts, places),
            outvars=_without(self.body.outvars, places),
        )
        num_consts, number = self.num_consts + len(places), self.num_carries - len(places)
        params = self.eqn.params
        if self.eqn.primitive.name == "scan":
            closed = ClosedJaxpr(body, params["jaxpr"].consts)
            params = scan_params(params, closed, num_consts, number)
        else:
            condition: ClosedJaxpr = params["cond_jaxpr"]
            read = _without(condition.jaxpr.invars, {self.num_before + at for at in places})
            params = params | {
                "body_jaxpr": ClosedJaxpr(body, params["body_jaxpr"].consts),
                "body_nconsts": num_consts,
                "cond_jaxpr": ClosedJaxpr(condition.jaxpr.replace(invars=read), condition.consts),
            }
        outvars = _without(self.eqn.outvars, places)
        return self.eqn.replace(invars=invars, outvars=outvars, params=params)

    def _moved(self, operands: Sequence[Any], first: int, places: Set[int]) -> list[Any]:
        """Operands with some of the carries, the first of which is given, before the others."""
        carries = operands[first : first + self.num_carries]
        moved = [carries[place] for place in sorted(places)]
        after = operands[first + self.num_carries :]
        return [*operands[:first], *moved, *_without(carries, places), *after]


def _with_unread_zeros(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
    """A loop of one run behind zeros, which stand for what it starts from and does not read."""
    loop = _Loop.of(eqn)
    if eqn.params.get("length") != 1 or loop.body.effects:
        return [eqn]
    read, first = used_variables(loop.body), loop.num_consts
    zeros, invars = [], list(eqn.invars)
    for place in range(first, first + loop.num_carries):
        atom = invars[place]
        is_read = isinstance(atom, Literal) or loop.body.invars[place] in read
        if is_read or not is_constrainable(atom.aval):
            continue
        start, fill = Var(atom.aval), partial(jnp.zeros, atom.aval.shape, atom.aval.dtype)
        zeros += spliced(fill, eqn, [], [start])
        invars[place] = start
    return [*zeros, eqn.replace(invars=invars) if zeros else eqn]


def _without(members: Sequence[Any], places: Set[int]) -> list[Any]:
    return [member for place, member in enumerate(members) if place not in places]


def _without_unchanged(eqn: JaxprEqn, known: dict[Var, Any]) -> Sequence[JaxprEqn]:
    """A loop that carries only what changes, and the constraints on the rest behind it."""
    loop = _Loop.of(eqn)
    if loop.body.effects or not (unchanged := loop.unchanged()):
        return [eqn]
    behind = []
    for place, constraints in unchanged.items():
        atom = eqn.invars[loop.num_before + loop.num_consts + place]
        for constraint in constraints:
            behind.append(constraint.replace(invars=[atom], outvars=[Var(atom.aval)]))
            (atom,) = behind[-1].outvars
        known[eqn.outvars[place]] = atom
    return [loop.reading(unchanged.keys()), *behind]


@dataclass(frozen=True, slots=True)
class _Copy:
    """A value as it is, behind constraints."""

    value: Var
    constraints: tuple[JaxprEqn, ...] = ()


def _copies(jaxpr: Jaxpr, given: Mapping[Var, _Copy]) -> dict[Var, _Copy]:
    """By variable of a body, what it is a copy of, among such as are given."""
    found = dict(given)
    for eqn in jaxpr.eqns:
        read = [None if isinstance(a, Literal) else found.get(a) for a in eqn.invars]
        name = eqn.primitive.name
        if name == "sharding_constraint" and read[0] is not None:
            found[eqn.outvars[0]] = replace(read[0], constraints=(*read[0].constraints, eqn))
        elif name == "select_n" and read[1] is not None and set(read[1:]) == {read[1]}:
            found[eqn.outvars[0]] = read[1]
        elif name in CALLS and any(read):
            found |= _copies_of_call(eqn, read)
    return found


def _copies_of_call(eqn: JaxprEqn, read: Sequence[_Copy | None]) -> Mapping[Var, _Copy]:
    """By result of a call, what it is a copy of."""
    inside = [body for _, body in bodies(eqn)]
    if len(inside) != 1 or len(inside[0].invars) != len(read):
        return {}
    pairs = zip(inside[0].invars, read, strict=True)
    copies = _copies(inside[0], {var: copy for var, copy in pairs if copy is not None})
    made = zip(eqn.outvars, inside[0].outvars, strict=True)
    return {var: copies[end] for var, end in made if not isinstance(end, Literal) and end in copies}
