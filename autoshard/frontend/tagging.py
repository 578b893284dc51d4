"""Tags: an all-open sharding constraint after every value, located at the value's path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import AbstractMesh, NamedSharding

from autoshard.frontend.equation_places import equation_sources
from autoshard.frontend.jaxpr_paths import (
    Body,
    ConstraintEquations,
    all_open,
    body_mesh,
    is_constrainable,
    rewrite_bodies,
    used_variables,
)


@dataclass(frozen=True, slots=True, eq=False)
class Tagged:
    """A jaxpr with its tags, and what was learned on the way.

    Args:
        jaxpr: Each equation's name stack ends in `E[path]`; each cuttable value that something
            reads is followed by an all-open constraint whose name stack ends in `T[path]`.
        operand_paths: By equation path, the path of each operand, and by `7.jaxpr/out` those of
            the results of a body; None for literals and for values that cannot be cut.
        source_by_equation: By equation path, `h/0/attn, file.py:12 (function)`; "" where unknown.
    """

    jaxpr: ClosedJaxpr
    operand_paths: dict[str, tuple[str | None, ...]]
    source_by_equation: dict[str, str]


def tag_jaxpr(closed: ClosedJaxpr, mesh: AbstractMesh) -> Tagged:
    """Tag every value of a program, without tracing it again.

    Inside a `shard_map` body the tags name the mesh of that body, whose manual axes are its own.

    Args:
        closed: The whole program.
        mesh: Named in the tags; its axes are Auto.
    """
    tagger = _Tagger(mesh)
    jaxpr = tagger.tag(closed.jaxpr, "", None)
    return Tagged(ClosedJaxpr(jaxpr, closed.consts), tagger.operand_paths, equation_sources(closed))


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
    def __init__(self, mesh: AbstractMesh) -> None:
        self.mesh = mesh  # inside a shard_map body, that of the body
        self.constraints = ConstraintEquations()
        self.open_shardings: dict[tuple[AbstractMesh, int], NamedSharding] = {}
        self.operand_paths: dict[str, tuple[str | None, ...]] = {}

    def tag(self, jaxpr: Jaxpr, prefix: str, parent: JaxprEqn | None) -> Jaxpr:
        """A copy of `jaxpr` with tags; `parent` is the equation that holds it, if any."""
        eqns: list[JaxprEqn] = []
        used = used_variables(jaxpr)
        first = jaxpr.eqns[0] if jaxpr.eqns else parent
        tag_of: dict[Var, Var] = {}
        path_of: dict[Var, str] = {}

        def tag_value(var: Var, path: str, like: JaxprEqn | None) -> None:
            path_of[var] = path
            tag = self.tag_equation(var, path, like)
            eqns.append(tag)
            tag_of[var] = tag.outvars[0]

        for kind, variables in (("const", jaxpr.constvars), ("in", jaxpr.invars)):
            for position, var in enumerate(variables):
                if var in used and self.is_tagged(var):
                    path = f"{prefix}{kind}.{position}"
                    if parent is None:
                        path_of[var] = path
                    else:
                        tag_value(var, path, first)

        for index, eqn in enumerate(jaxpr.eqns):
            path = f"{prefix}{index}"
            self.operand_paths[path] = tuple(
                None if isinstance(atom, Literal) else path_of.get(atom) for atom in eqn.invars
            )
            eqns.append(self.rebuild(eqn, path, tag_of))
            for position, var in enumerate(eqn.outvars):
                if var in used and self.is_tagged(var):
                    tag_value(var, f"{path}.{position}", eqn)

        if parent is not None:
            self.operand_paths[f"{prefix}out"] = tuple(
                None if isinstance(atom, Literal) else path_of.get(atom) for atom in jaxpr.outvars
            )
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

    def is_tagged(self, var: Var) -> bool:
        return bool(self.mesh.auto_axes) and is_constrainable(var.aval)

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
