"""Equations of a rewritten program that stand together, and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import JaxprEqn, Literal, Var

from autoshard.errors import PlanError
from autoshard.frontend.jaxpr_paths import rewrite_bodies
from autoshard.frontend.meshes import mesh_context

Block = tuple[list[JaxprEqn], set[Var]]
"""Equations that stand together, and what they wait for."""


def in_order(
    blocks: Iterable[Block], loops: Iterable[Block], there: set[Var]
) -> Iterator[JaxprEqn]:
    """Equations in their order, and loops as soon as all is there that they read.

    Raises:
        PlanError: Loops wait for one another.
    """
    missing: list[tuple[set[Var], list[JaxprEqn]]] = []
    waiting: dict[Var, list[int]] = {}

    def ready(block: Block) -> list[JaxprEqn]:
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
    if waiting:
        raise PlanError(
            "updates of states wait for one another",
            where="states in host memory",
            fix="keep some of them on the device",
        )


def read_by(eqn: JaxprEqn) -> set[Var]:
    return {atom for atom in eqn.invars if isinstance(atom, Var)}


def traced_block(
    run: Callable[..., Any], given: Sequence[Var], made: Sequence[Var], instead: Sequence[JaxprEqn]
) -> Block:
    """A block of the equations of a function.

    Args:
        run: The function, of arrays; returns a list of arrays.
        given: What it is given, and waits for.
        made: What its results are called.
        instead: The equations in whose place these stand.
    """
    mesh = given[0].aval.sharding.mesh
    with mesh_context(None if mesh.empty else mesh):
        traced = jax.make_jaxpr(run)(*(var.aval for var in given))
    atom_of: dict[Var, Any] = dict(zip(traced.jaxpr.invars, given, strict=True))
    atom_of.update(zip(traced.jaxpr.outvars, made, strict=True))
    renamed = [
        eqn.replace(
            invars=[a if isinstance(a, Literal) else atom_of.get(a, a) for a in eqn.invars],
            outvars=[atom_of.get(var, var) for var in eqn.outvars],
        )
        for eqn in traced.jaxpr.eqns
    ]
    return _with_lines_of(renamed, instead), {*given}


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
