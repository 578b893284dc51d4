"""Matmuls of a vector for each member of a batch, written as the sums that XLA makes of them.

A TPU multiplies and sums them on vector units, and XLA writes them so before Shardy propagates,
which takes other ways through a matmul than through element-wise ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from autoshard.frontend.jaxpr_paths import CALLS, bodies
from autoshard.frontend.rewritable_equations import is_free_matmul
from autoshard.frontend.spliced import spliced, with_replaced

_RESHAPES = frozenset({"custom_call", "expand_dims", "reshape", "squeeze"})
_DEPTH = 6


def without_batched_vectors(jaxpr: Jaxpr) -> Jaxpr:
    """The same, such a `dot_general` as a sum of products; itself if none is.

    Only where a reshape is among the last six ops before an operand: the layout of what comes from
    one is given, and a matrix unit would need another. One whose result has a sharding in its type
    stays, and so do those of manual regions.

    Source: `ShouldStrengthReduceDotToReduce` of XLA's algebraic simplifier; attention of one query
        a head and dispatch by one-hot vectors, by libtpu 0.0.52 for a v5e.
    """
    scopes = _Scopes.of(jaxpr)
    return with_replaced(jaxpr, scopes.sums)


@dataclass(frozen=True, slots=True)
class _Scopes:
    """Where each variable of a program and of its bodies comes from.

    Args:
        maker: The equation that makes it.
        inner: Of what a call makes, the result of its body.
        outer: Of an argument of a call's body, what the call is given.
        sliced: What a loop cuts out of a stack, one dimension less.
    """

    maker: dict[Var, JaxprEqn] = field(default_factory=dict)
    inner: dict[Var, Any] = field(default_factory=dict)
    outer: dict[Var, Any] = field(default_factory=dict)
    sliced: set[Var] = field(default_factory=set)

    @staticmethod
    def of(jaxpr: Jaxpr) -> _Scopes:
        found = _Scopes()
        found._add(jaxpr)
        return found

    def _add(self, jaxpr: Jaxpr) -> None:
        for eqn in jaxpr.eqns:
            self.maker.update(dict.fromkeys(eqn.outvars, eqn))
            for _, body in bodies(eqn):
                if eqn.primitive.name == "scan":
                    first = eqn.params["num_consts"] + eqn.params["num_carry"]
                    self.sliced.update(body.invars[first:])
                elif eqn.primitive.name in CALLS:
                    self.inner.update(zip(eqn.outvars, body.outvars, strict=True))
                    self.outer.update(zip(body.invars, eqn.invars, strict=True))
                self._add(body)

    def sums(self, body: Jaxpr) -> Mapping[int, list[JaxprEqn]]:
        """By the place of such a matmul in a body, the equations in its place."""
        return {
            place: spliced(lambda x, y, eqn=eqn: _sum(eqn, x, y), eqn, eqn.invars, eqn.outvars)
            for place, eqn in enumerate(body.eqns)
            if _is_batched_vector(eqn) and any(map(self._is_reshaped, eqn.invars))
        }

    def _is_reshaped(self, operand: Any) -> bool:
        if 1 in operand.aval.shape:
            return True  # the compiler leaves the dimension out
        behind = [operand]
        for _ in range(_DEPTH):
            found = {var for atom in behind if (var := self._source(atom)) is not None}
            makers = [self.maker[var] for var in found if var in self.maker]
            if found & self.sliced or any(map(_reshapes, makers)):
                return True
            behind = [atom for eqn in makers if not _has_bodies(eqn) for atom in eqn.invars]
        return False

    def _source(self, atom: Any) -> Var | None:
        """A variable through the borders of calls, which the compiler inlines; no constant."""
        while not isinstance(atom, Literal):
            through = self.inner if atom in self.inner else self.outer
            if atom not in through:
                return atom
            atom = through[atom]
        return None


def _has_bodies(eqn: JaxprEqn) -> bool:
    return next(bodies(eqn), None) is not None


def _reshapes(eqn: JaxprEqn) -> bool:
    """True for a reshape, and for a broadcast that adds a dimension of size 1 or stretches one."""
    if eqn.primitive.name != "broadcast_in_dim":
        return eqn.primitive.name in _RESHAPES
    given, made = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    kept = eqn.params["broadcast_dimensions"]
    added = [size for dim, size in enumerate(made) if dim not in kept]
    stretched = any(size != made[dim] for size, dim in zip(given, kept, strict=True))
    return stretched or (bool(given) and 1 in added)


def _is_batched_vector(eqn: JaxprEqn) -> bool:
    if not is_free_matmul(eqn):
        return False
    summed, batch = eqn.params["dimension_numbers"]
    shapes = [atom.aval.shape for atom in eqn.invars]

    def free(side: int) -> int:
        taken = {*summed[side], *batch[side]}
        return prod(size for dim, size in enumerate(shapes[side]) if dim not in taken)

    members, terms = (prod(shapes[0][dim] for dim in dims[0]) for dims in (batch, summed))
    return members > 1 and terms > 1 and min(free(0), free(1)) == 1


def _summed_in(made: Any, *dtypes: Any) -> Any:
    """The type in which products are summed; for narrow floats, which promote to none, 32 bits."""
    if not jnp.issubdtype(made, jnp.floating):
        return made
    return jnp.float64 if jnp.float64 in (made, *dtypes) else jnp.float32


def _sum(eqn: JaxprEqn, left: Any, right: Any) -> Any:
    """The sum of products, in the precision in which a matmul sums."""
    summed, batch = eqn.params["dimension_numbers"]
    made = eqn.outvars[0].aval.dtype
    wide = _summed_in(made, left.dtype, right.dtype)
    first = len(batch[0])
    free = [
        [d for d in range(operand.ndim) if d not in summed[side] and d not in batch[side]]
        for side, operand in enumerate((left, right))
    ]
    sizes = [left.shape[d] for d in (*batch[0], *free[0])] + [right.shape[d] for d in free[1]]
    shape = (*sizes, *(left.shape[d] for d in summed[0]))
    last = range(len(sizes), len(shape))

    def spread(operand: Any, side: int, start: int) -> Any:
        order = (*batch[side], *free[side], *summed[side])
        places = (*range(first), *range(start, start + len(free[side])), *last)
        turned = jnp.transpose(operand, order).astype(wide)
        return jax.lax.broadcast_in_dim(turned, shape, places)

    products = jax.lax.mul(spread(left, 0, first), spread(right, 1, first + len(free[0])))
    return jnp.sum(products, tuple(last), dtype=wide).astype(made)
