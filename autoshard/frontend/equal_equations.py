"""Equations that compute what one before them computed: compilers run them once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from autoshard.frontend.jaxpr_paths import Body, rewrite_bodies

_KEPT_APART = frozenset({"checkpoint", "optimization_barrier", "remat", "remat2"})
"""Primitives that are there so that nothing is merged."""


def without_equal_equations(jaxpr: Jaxpr, once: dict[tuple[str, int], Body] | None = None) -> Jaxpr:
    """The same with one equation in the place of equal ones; its results are read for all of them.

    XLA merges equal instructions before it partitions: without this a plan would pay for each, and
    shard each. Equations are equal if their primitives, parameters and operands are; those with
    effects stay. Bodies are looked through by themselves.

    Args:
        jaxpr: A program, or a body.
        once: Bodies done so far, by key and identity.
    """
    known: dict[Hashable, JaxprEqn] = {}
    first: dict[Var, Var] = {}
    done: dict[tuple[str, int], Body] = {} if once is None else once
    eqns: list[JaxprEqn] = []

    def read(atoms: Iterable[Any]) -> list[Any]:
        return [atom if isinstance(atom, Literal) else first.get(atom, atom) for atom in atoms]

    for eqn in jaxpr.eqns:
        operands = read(eqn.invars)
        params = rewrite_bodies(eqn, lambda _, body: without_equal_equations(body, done), done)
        new = eqn.replace(invars=operands, params=params or eqn.params)
        same = new if _stays(eqn) else known.setdefault(_key(new), new)
        if same is not new and _makes_all(same, new):
            first.update(zip(new.outvars, same.outvars, strict=True))
        else:
            eqns.append(new)
    if len(eqns) == len(jaxpr.eqns) and all(
        new.params == old.params for new, old in zip(eqns, jaxpr.eqns, strict=True)
    ):
        return jaxpr
    return jaxpr.replace(eqns=eqns, outvars=read(jaxpr.outvars))


def _stays(eqn: JaxprEqn) -> bool:
    return bool(eqn.effects) or eqn.primitive.name in _KEPT_APART


def _makes_all(same: JaxprEqn, eqn: JaxprEqn) -> bool:
    """True where an equation keeps every result that an equal one keeps.

    A dropped result is of a class derived from `Var`.
    """
    return all(
        type(mine) is Var or type(other) is not Var
        for mine, other in zip(same.outvars, eqn.outvars, strict=True)
    )


def _key(eqn: JaxprEqn) -> Hashable:
    """Equal for equal equations; parameters that cannot be compared are equal to themselves."""
    operands = tuple(map(_operand, eqn.invars))
    params = tuple((name, _comparable(value)) for name, value in sorted(eqn.params.items()))
    types = tuple(var.aval for var in eqn.outvars)
    return eqn.primitive, operands, params, types, _comparable(eqn.ctx)


def _operand(atom: Var | Literal) -> Hashable:
    if not isinstance(atom, Literal):
        name: Hashable = atom
        return name
    value = np.asarray(atom.val)
    return atom.aval, value.tobytes() if value.size == 1 else id(atom)


def _comparable(value: Any) -> Hashable:
    """A parameter with its type, as `1`, `1.0` and `True` are equal; by identity if it must be."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value
