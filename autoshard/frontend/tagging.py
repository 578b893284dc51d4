"""Tags: an all-open sharding constraint after every value, located at the value's path."""

from __future__ import annotations

from itertools import count
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import AbstractMesh, NamedSharding

from autoshard.frontend.equal_layers import FewEquations
from autoshard.frontend.jaxpr_paths import (
    Body,
    ConstraintEquations,
    all_open,
    body_mesh,
    is_tagged,
    rewrite_bodies,
    used_variables,
)


def tag_jaxpr(
    closed: ClosedJaxpr, mesh: AbstractMesh, few: FewEquations | None = None
) -> ClosedJaxpr:
    """A program with a tag after every value, without tracing it again.

    Each equation's name stack ends in `E[path]`; each cuttable value that something reads is
    followed by an all-open constraint whose name stack ends in `T[path]`. Inside a `shard_map` body
    the tags name the mesh of that body, whose manual axes are its own.

    Args:
        closed: The whole program.
        mesh: Named in the tags; its axes are Auto.
        few: The equations to keep of it, under their paths in the whole.
    """
    tagger = _Tagger(mesh, few)
    jaxpr = closed.jaxpr if few is None else few.jaxpr
    return ClosedJaxpr(tagger.tag(jaxpr, "", None), closed.consts)


def with_equation_names(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A copy of a program in which every equation's name stack ends in its path, as in `E[7]`.

    Compilers keep name stacks in the metadata of what they make of an op. Paths in a body are
    relative to the equation that holds it (`E[.jaxpr/5]`), whose name precedes them: a body that
    several equations hold stays one function, so the compiler sees the program as it is applied.
    """
    once: dict[tuple[str, int], Body] = {}

    def of(eqn: JaxprEqn, path: str) -> JaxprEqn:
        params = rewrite_bodies(eqn, lambda key, body: named(body, f".{key}/"), once)
        return eqn.replace(params=params or eqn.params, source_info=_named_source(eqn, path))

    def named(jaxpr: Jaxpr, prefix: str) -> Jaxpr:
        return jaxpr.replace(eqns=[of(eqn, f"{prefix}{i}") for i, eqn in enumerate(jaxpr.eqns)])

    return ClosedJaxpr(named(closed.jaxpr, ""), closed.consts)


def _named_source(eqn: JaxprEqn, path: str) -> Any:
    source_info = eqn.source_info
    return source_info.replace(name_stack=source_info.name_stack.extend(f"E[{path}]"))


class _Tagger:
    def __init__(self, mesh: AbstractMesh, few: FewEquations | None) -> None:
        self.mesh = mesh  # inside a shard_map body, that of the body
        self.few = few
        self.constraints = ConstraintEquations()
        self.open_shardings: dict[tuple[AbstractMesh, int], NamedSharding] = {}

    def tag(self, jaxpr: Jaxpr, prefix: str, parent: JaxprEqn | None) -> Jaxpr:
        """A copy of `jaxpr` with tags; `parent` is the equation that holds it, if any."""
        eqns: list[JaxprEqn] = []
        few = self.few if parent is None else None
        used = used_variables(few.whole if few else jaxpr)
        first = jaxpr.eqns[0] if jaxpr.eqns else parent
        tag_of: dict[Var, Var] = {}

        def tag_value(var: Var, path: str, like: JaxprEqn | None) -> None:
            if var in used and is_tagged(var, self.mesh):
                tag = self.tag_equation(var, path, like)
                eqns.append(tag)
                tag_of[var] = tag.outvars[0]

        for kind, variables in (("const", jaxpr.constvars), ("in", jaxpr.invars)):
            for position, var in enumerate(variables if parent is not None else ()):
                tag_value(var, f"{prefix}{kind}.{position}", first)
        for index, eqn in zip(few.numbers if few else count(), jaxpr.eqns, strict=False):
            path = f"{prefix}{index}"
            eqns.append(self.rebuild(eqn, path, tag_of))
            for position, var in enumerate(eqn.outvars):
                tag_value(var, f"{path}.{position}", eqn)
        outvars = [
            atom if isinstance(atom, Literal) else tag_of.get(atom, atom) for atom in jaxpr.outvars
        ]
        return Jaxpr(
            jaxpr.constvars,
            jaxpr.invars,
            outvars,
            eqns,
            jaxpr.effects,
            jaxpr.debug_info,
            jaxpr.is_high,
        )

    def tag_equation(self, var: Var, path: str, like: JaxprEqn | None) -> JaxprEqn:
        own = var.aval.sharding.mesh
        mesh = own if own.manual_axes else self.mesh  # the result of a callback has none
        rank = len(var.aval.shape)
        sharding = self.open_shardings.get((mesh, rank))
        if sharding is None:
            sharding = self.open_shardings[mesh, rank] = all_open(mesh, rank)
        return self.constraints.make(var, sharding, scope=f"T[{path}]", like=like)

    def rebuild(self, eqn: JaxprEqn, path: str, tag_of: dict[Var, Var]) -> JaxprEqn:
        around = self.mesh
        self.mesh = body_mesh(eqn) or around
        params = rewrite_bodies(eqn, lambda key, body: self.tag(body, f"{path}.{key}/", eqn))
        self.mesh = around
        return eqn.replace(
            invars=[
                atom if isinstance(atom, Literal) else tag_of.get(atom, atom) for atom in eqn.invars
            ],
            params=params,
            source_info=_named_source(eqn, path),
        )
