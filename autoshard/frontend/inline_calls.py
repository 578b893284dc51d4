"""A jaxpr with its calls and its rematerialised regions inlined, level by level."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from autoshard.frontend.source_lines import SourceLines

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


def inline_calls(
    jaxpr: Jaxpr, body_of: Callable[[JaxprEqn], Jaxpr | None] | None = None
) -> tuple[list[Inlined], list[Any]]:
    """The equations and results of a jaxpr without the calls that only group equations.

    Every equation has results of its own, and name stacks hold those of the calls they stood in.
    An equation of a library without a line of the user's has that of the call.
    Calls stay that say something to the compiler: shardings, layouts, options.

    Args:
        jaxpr: What holds the calls.
        body_of: The body of a call to inline, None of one that stays; by default all that can be.
    """
    atom_of: dict[Var, Any] = {}
    inliner = _Inliner(body_of or inlinable_body)
    eqns = list(inliner.inlined(jaxpr, atom_of, None, is_recomputed=False))
    return eqns, [_read(atom, atom_of) for atom in jaxpr.outvars]


def without_outer_call(jaxpr: Jaxpr) -> Jaxpr:
    """The program that a program which is one call calls; itself if it is none.

    So a function and `jax.jit` of it are one program.
    """
    lines = SourceLines()
    while len(jaxpr.eqns) == 1 and jaxpr.eqns[0].primitive.name != REMAT:
        (call,) = jaxpr.eqns
        body = inlinable_body(call)
        if body is None:
            break
        atom_of = dict(zip(body.invars, call.invars, strict=True))
        eqns = [
            with_call_source(eqn, call, lines).replace(
                invars=[_read(atom, atom_of) for atom in eqn.invars]
            )
            for eqn in body.eqns
        ]
        results = (_read(atom, atom_of) for atom in body.outvars)
        atom_of = dict(zip(call.outvars, results, strict=True))
        outvars = [_read(atom, atom_of) for atom in jaxpr.outvars]
        jaxpr = jaxpr.replace(eqns=eqns, outvars=outvars)
    return jaxpr


class _Inliner:
    def __init__(self, body_of: Callable[[JaxprEqn], Jaxpr | None]) -> None:
        self.body_of, self.lines = body_of, SourceLines()

    def inlined(
        self,
        jaxpr: Jaxpr,
        atom_of: dict[Var, Any],
        holder: JaxprEqn | None,
        *,
        is_recomputed: bool,
    ) -> Iterator[Inlined]:
        for eqn in jaxpr.eqns:
            operands = [_read(atom, atom_of) for atom in eqn.invars]
            outer = eqn if holder is None else with_call_source(eqn, holder, self.lines)
            body = self.body_of(eqn)
            if body is None:
                results = [Var(var.aval) for var in eqn.outvars]
                atom_of.update(zip(eqn.outvars, results, strict=True))
                yield Inlined(outer.replace(invars=operands, outvars=results), is_recomputed)
                continue
            inner = dict(zip(body.invars, operands, strict=True))
            again = is_recomputed or eqn.primitive.name == REMAT
            yield from self.inlined(body, inner, outer, is_recomputed=again)
            for var, atom in zip(eqn.outvars, body.outvars, strict=True):
                atom_of[var] = _read(atom, inner)


def with_call_source(eqn: JaxprEqn, call: JaxprEqn, lines: SourceLines) -> JaxprEqn:
    """An equation with the name stack that its call gives it, and a line of the user's."""
    inner, outer = eqn.source_info, call.source_info
    source = inner.replace(name_stack=outer.name_stack + inner.name_stack)
    if not lines.line(eqn):
        source = source.replace(traceback=outer.traceback)
    return eqn.replace(source_info=source)


def _read(atom: Any, atom_of: dict[Var, Any]) -> Any:
    return atom if isinstance(atom, Literal) else atom_of.get(atom, atom)


def inlinable_body(eqn: JaxprEqn) -> Jaxpr | None:
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
