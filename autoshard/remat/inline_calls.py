"""A jaxpr with its calls and its rematerialised regions inlined, level by level."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

REMAT = "remat2"
"""The primitive of `jax.checkpoint`; checked on jax 0.10.2."""


class Inlined(NamedTuple):
    """An equation of a flat jaxpr.

    Args:
        eqn: With operands and results of the flat jaxpr.
        is_recomputed: It stands in a region that `jax.checkpoint` computes again.
    """

    eqn: JaxprEqn
    is_recomputed: bool


def inline_calls(jaxpr: Jaxpr) -> tuple[list[Inlined], list[Any]]:
    """The equations and results of a jaxpr without the calls that only group equations.

    Every equation has results of its own, and name stacks hold those of the calls they stood in.
    Calls stay that say something to the compiler: shardings, layouts, options.
    """
    atom_of: dict[Var, Any] = {}
    eqns = list(_inlined(jaxpr, atom_of, None, is_recomputed=False))
    return eqns, [_read(atom, atom_of) for atom in jaxpr.outvars]


def _inlined(
    jaxpr: Jaxpr, atom_of: dict[Var, Any], holder: JaxprEqn | None, *, is_recomputed: bool
) -> Iterator[Inlined]:
    for eqn in jaxpr.eqns:
        operands = [_read(atom, atom_of) for atom in eqn.invars]
        outer = eqn if holder is None else _in_call(eqn, holder)
        body = _inlinable_body(eqn)
        if body is None:
            results = [Var(var.aval) for var in eqn.outvars]
            atom_of.update(zip(eqn.outvars, results, strict=True))
            yield Inlined(outer.replace(invars=operands, outvars=results), is_recomputed)
            continue
        inner = dict(zip(body.invars, operands, strict=True))
        again = is_recomputed or eqn.primitive.name == REMAT
        yield from _inlined(body, inner, outer, is_recomputed=again)
        for var, atom in zip(eqn.outvars, body.outvars, strict=True):
            atom_of[var] = _read(atom, inner)


def _read(atom: Any, atom_of: dict[Var, Any]) -> Any:
    return atom if isinstance(atom, Literal) else atom_of.get(atom, atom)


def _in_call(eqn: JaxprEqn, holder: JaxprEqn) -> JaxprEqn:
    """The equation with the name stack that its call gives it."""
    stack = holder.source_info.name_stack + eqn.source_info.name_stack
    return eqn.replace(source_info=eqn.source_info.replace(name_stack=stack))


def _inlinable_body(eqn: JaxprEqn) -> Jaxpr | None:
    """The body of a call that may be inlined."""
    name, params = eqn.primitive.name, eqn.params
    if name == REMAT:
        body: Any = params["jaxpr"] if params["differentiated"] else None
        return body.jaxpr if isinstance(body, ClosedJaxpr) else body
    if name != "jit" or params["jaxpr"].consts or params["compiler_options_kvs"]:
        return None
    said = (*params["in_shardings"], *params["out_shardings"])
    layouts = (*params["in_layouts"], *params["out_layouts"])
    # `UnspecifiedValue` is private to JAX; it is no sharding, and so it shards nothing.
    if any(hasattr(one, "memory_kind") for one in said) or any(one is not None for one in layouts):
        return None
    called: ClosedJaxpr = params["jaxpr"]
    return called.jaxpr
