"""Value numbering: equal numbers for what equal equations make of equal operands."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var


@dataclass(eq=False, slots=True)
class ValueNumbers:
    """Numbers of the values of one program.

    Equations with effects, and values that nothing was told of, have numbers of their own.
    """

    _numbers: dict[Var, int] = field(default_factory=dict)
    _interned: dict[Hashable, int] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)  # objects whose ids are in keys
    _next: int = 0

    def of(self, atom: Any) -> int:
        if isinstance(atom, Literal):
            return self.interned(("literal", self._literal(atom)))
        if atom not in self._numbers:
            self._numbers[atom] = self._fresh()
        return self._numbers[atom]

    def bind(self, var: Var, number: int) -> None:
        self._numbers[var] = number

    def interned(self, key: Hashable) -> int:
        """The number of what a key says."""
        found = self._interned.get(key)
        if found is None:
            found = self._interned[key] = self._fresh()
        return found

    def equation(self, eqn: JaxprEqn) -> None:
        """Number the results of an equation; those of its operands are there."""
        if eqn.effects:
            return
        operands = tuple(map(self.of, eqn.invars))
        if is_identity(eqn):
            self.bind(eqn.outvars[0], operands[0])
            return
        key = (eqn.primitive.name, self._params(eqn), operands)
        for position, var in enumerate(eqn.outvars):
            self.bind(var, self.interned((position, key)))

    def _fresh(self) -> int:
        self._next += 1
        return self._next

    def _params(self, eqn: JaxprEqn) -> Hashable:
        names = sorted(eqn.params.keys() - {"ctx_mesh"})
        return tuple((name, self._setting(eqn.params[name])) for name in names)

    def _setting(self, value: Any) -> Hashable:
        if isinstance(value, ClosedJaxpr):
            return (self._body(value.jaxpr), tuple(map(self._identity, value.consts)))
        if isinstance(value, Jaxpr):
            return self._body(value)
        if isinstance(value, (tuple, list)):
            return (type(value), tuple(map(self._setting, value)))
        if isinstance(value, dict):
            return tuple((self._setting(k), self._setting(v)) for k, v in value.items())
        try:
            hash(value)
        except TypeError:
            return self._identity(value)
        return (type(value), value)

    def _body(self, jaxpr: Jaxpr) -> Hashable:
        places: dict[Var, int] = {}

        def bind(variables: Iterable[Var]) -> Hashable:
            return tuple((places.setdefault(v, len(places)), str(v.aval)) for v in variables)

        def read(atom: Any) -> Hashable:
            return self._literal(atom) if isinstance(atom, Literal) else places[atom]

        inputs = bind((*jaxpr.constvars, *jaxpr.invars))
        eqns = []
        for eqn in jaxpr.eqns:
            operands = tuple(map(read, eqn.invars))
            eqns.append((eqn.primitive.name, self._params(eqn), operands, bind(eqn.outvars)))
        return (inputs, tuple(eqns), tuple(map(read, jaxpr.outvars)))

    def _literal(self, literal: Literal) -> Hashable:
        aval = str(literal.aval)
        if np.shape(literal.val):
            return (aval, self._identity(literal.val))
        return (aval, np.asarray(literal.val).tobytes())

    def _identity(self, value: Any) -> Hashable:
        self._kept.append(value)
        return ("object", id(value))


def is_identity(eqn: JaxprEqn) -> bool:
    """Whether an equation hands on its operand: a name, or a precision that it has anyway."""
    if eqn.primitive.name == "name":
        return True
    if eqn.primitive.name != "reduce_precision":
        return False
    info = jnp.finfo(eqn.outvars[0].aval.dtype)
    asked = (eqn.params["exponent_bits"], eqn.params["mantissa_bits"])
    return asked == (info.nexp, info.nmant)
