"""Common subexpression elimination (CSE) of a jaxpr, as XLA does before it partitions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from autoshard.frontend.jaxpr_paths import Body, bodies, rewrite_bodies

_KEPT_APART = frozenset(
    {
        # Against CSE.
        "checkpoint",
        "optimization_barrier",
        "remat",
        "remat2",
        # Kernels may have effects that no jaxpr tells.
        "pallas_call",
        # Other numbers at each run.
        "rng_uniform",
    }
)
"""Primitives of which every equation runs, however equal."""


def without_equal_equations(jaxpr: Jaxpr) -> Jaxpr:
    """The same with one equation in the place of equal ones; its results are read for all of them.

    XLA merges equal instructions before it partitions: without this a plan would pay for each, and
    shard each. Equations are equal if their primitives, parameters and operands are. Those that
    have effects or are kept apart stay, and so do those around them. The equations of a body are
    merged with one another only.
    """
    return _Merging().merged(jaxpr)


class _Merging:
    """Bodies seen so far, by identity: those of the program, which are alive meanwhile."""

    def __init__(self) -> None:
        self._merged: dict[tuple[str, int], Body] = {}
        self._kept: dict[int, bool] = {}

    def merged(self, jaxpr: Jaxpr) -> Jaxpr:
        """A program, or a body, without equal equations; itself if it has none."""
        known: dict[Hashable, JaxprEqn] = {}
        first: dict[Var, Var] = {}
        eqns: list[JaxprEqn] = []

        def read(atoms: Iterable[Any]) -> list[Any]:
            return [atom if isinstance(atom, Literal) else first.get(atom, atom) for atom in atoms]

        for eqn in jaxpr.eqns:
            operands = read(eqn.invars)
            params = rewrite_bodies(eqn, lambda _, body: self.merged(body), self._merged)
            new = eqn.replace(invars=operands, params=params or eqn.params)
            same = new if self._is_kept(eqn) else known.setdefault(_key(new), new)
            if same is not new and _makes_all(same, new):
                first.update(zip(new.outvars, same.outvars, strict=True))
            else:
                eqns.append(new)
        if len(eqns) == len(jaxpr.eqns) and all(
            new.params == old.params for new, old in zip(eqns, jaxpr.eqns, strict=True)
        ):
            return jaxpr
        return jaxpr.replace(eqns=eqns, outvars=read(jaxpr.outvars))

    def _is_kept(self, eqn: JaxprEqn) -> bool:
        is_kept = bool(eqn.effects) or eqn.primitive.name in _KEPT_APART
        return is_kept or any(self._keeps(body) for _, body in bodies(eqn))

    def _keeps(self, body: Jaxpr) -> bool:
        """True where a body holds an equation that is kept."""
        if id(body) not in self._kept:
            self._kept[id(body)] = any(map(self._is_kept, body.eqns))
        return self._kept[id(body)]


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
    params = tuple((name, comparable(value)) for name, value in sorted(eqn.params.items()))
    types = tuple(var.aval for var in eqn.outvars)
    return eqn.primitive, operands, params, types, comparable(eqn.ctx)


def _operand(atom: Var | Literal) -> Hashable:
    if not isinstance(atom, Literal):
        name: Hashable = atom
        return name
    return literal_key(atom)


def literal_key(atom: Literal) -> Hashable:
    """Equal for equal literals; an array is equal to itself."""
    value = np.asarray(atom.val)
    return atom.aval, value.tobytes() if value.size == 1 else id(atom)


def comparable(value: Any) -> Hashable:
    """A parameter with its type, as `1`, `1.0` and `True` are equal; by identity if it must be."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value
