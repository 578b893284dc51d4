"""Constraints whose result nobody uses: they shard the value itself, before dead code goes."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from autoshard.frontend.jaxpr_paths import is_constrainable, rewrite_bodies, used_variables


def honour_dangling(jaxpr: Jaxpr) -> Jaxpr:
    """A program in which every reader of such a value reads it through the constraint.

    `jax.lax.with_sharding_constraint(x, s)` whose result is dropped is dead code to JAX. Here it
    moves right behind `x`, in whatever body it stands, and everybody reads what it makes. What JAX
    itself has removed before, such as from the body of a differentiated `jax.checkpoint`, is gone.
    """
    changed = list(map(_with_bodies, jaxpr.eqns))
    is_same = all(map(operator.is_, changed, jaxpr.eqns))
    dangling = list(dangling_constraints(jaxpr))
    if is_same and not dangling:
        return jaxpr
    behind: dict[Var, list[JaxprEqn]] = {}
    for index in dangling:
        behind.setdefault(changed[index].invars[0], []).append(changed[index])
    current: dict[Var, Var] = {}
    eqns: list[JaxprEqn] = []

    def constrain(var: Var) -> None:
        for eqn in behind.get(var, ()):
            made = Var(var.aval)
            eqns.append(eqn.replace(invars=[current.get(var, var)], outvars=[made]))
            current[var] = made

    for var in (*jaxpr.constvars, *jaxpr.invars):
        constrain(var)
    moved = set(dangling)
    for index, eqn in enumerate(changed):
        if index in moved:
            continue
        eqns.append(
            eqn.replace(
                invars=[a if isinstance(a, Literal) else current.get(a, a) for a in eqn.invars]
            )
        )
        for var in eqn.outvars:
            constrain(var)
    outvars = [a if isinstance(a, Literal) else current.get(a, a) for a in jaxpr.outvars]
    return jaxpr.replace(eqns=eqns, outvars=outvars)


def dangling_constraints(jaxpr: Jaxpr) -> Iterator[int]:
    """Positions of the equations of this body that only constrain, and that nobody reads."""
    used = used_variables(jaxpr)
    for index, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name == "sharding_constraint" and eqn.outvars[0] not in used:
            operand = eqn.invars[0]
            if not isinstance(operand, Literal) and is_constrainable(operand.aval):
                yield index


def _with_bodies(eqn: JaxprEqn) -> JaxprEqn:
    """An equation with its bodies as programs; itself if they stay."""
    rewritten = rewrite_bodies(eqn, lambda _, body: honour_dangling(body))
    if rewritten is None or all(_is_same(rewritten[key], eqn.params[key]) for key in rewritten):
        return eqn
    return eqn.replace(params=rewritten)


def _is_same(new: Any, old: Any) -> bool:
    if isinstance(new, (tuple, list)):
        return all(map(operator.is_, new, old))
    return new is old
