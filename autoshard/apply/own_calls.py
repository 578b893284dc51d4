"""Calls that each get a function of their own, so that compilers merge them with what they read.

JAX lowers equal calls (of `jnp.var` on arrays of one shape, say) to one function. XLA puts a
function that is called once into its caller before it simplifies anything, and one that is called
more often only afterwards. Where such a function reduces dimensions that a reshape made, the
reshape is then written out, in tiles that it does not fill.
"""

from __future__ import annotations

from collections import Counter

from jax._src.core import jaxprs_in_params  # private; checked on jax 0.9.0 and 0.10.2
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

_CALL = "jit"
_RESHAPE = "reshape"
_PRODUCTS = frozenset({"conv_general_dilated", "dot_general"})
_REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"})


def with_own_calls(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A copy of a program in which such calls differ by their names; itself if there are none.

    Only calls in its main body are looked at: those that reduce several dimensions at once of what
    comes from a reshape, and through no product, not in calls on the way either.

    Args:
        closed: The program.
    """
    jaxpr = closed.jaxpr
    calls = Counter(id(eqn.params["jaxpr"]) for eqn in jaxpr.eqns if eqn.primitive.name == _CALL)
    if not calls or max(calls.values()) == 1:
        return closed
    reshaped: set[Var] = set()
    eqns = []
    for place, eqn in enumerate(jaxpr.eqns):
        read = [v for v in eqn.invars if not isinstance(v, Literal) and v in reshaped]
        if eqn.primitive.name == _RESHAPE:
            reshaped.update(eqn.outvars)
        elif read and not _multiplies(eqn):
            shapes = {v.aval.shape for v in read}
            reshaped.update(v for v in eqn.outvars if getattr(v.aval, "shape", None) in shapes)
        is_call = eqn.primitive.name == _CALL and calls[id(eqn.params["jaxpr"])] > 1
        is_own = is_call and bool(read) and _reduces(eqn)
        eqns.append(_renamed(eqn, place) if is_own else eqn)
    return ClosedJaxpr(jaxpr.replace(eqns=eqns), closed.consts)


def _multiplies(eqn: JaxprEqn) -> bool:
    """Whether an equation is a product, or calls a function that has one in it."""
    bodies = jaxprs_in_params(eqn.params)
    return eqn.primitive.name in _PRODUCTS or any(_multiplies(e) for b in bodies for e in b.eqns)


def _reduces(call: JaxprEqn) -> bool:
    body: Jaxpr = call.params["jaxpr"].jaxpr
    reductions = (eqn for eqn in body.eqns if eqn.primitive.name in _REDUCTIONS)
    return any(len(eqn.params["axes"]) > 1 for eqn in reductions)


def _renamed(call: JaxprEqn, place: int) -> JaxprEqn:
    name = f"{call.params['name']}_{place}"
    return call.replace(params={**call.params, "name": name})
