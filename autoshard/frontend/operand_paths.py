"""Paths of what the equations of a program read."""

from __future__ import annotations

from itertools import count
from typing import Any

from jax.extend.core import Jaxpr, Literal, Var
from jax.sharding import AbstractMesh

from autoshard.frontend.equal_layers import FewEquations
from autoshard.frontend.jaxpr_paths import bodies, body_mesh, is_tagged

OperandPaths = dict[str, tuple[str | None, ...]]


def operand_paths(
    jaxpr: Jaxpr, mesh: AbstractMesh, few: FewEquations | None = None
) -> OperandPaths:
    """By equation path, the path of each operand, and by `7.jaxpr/out` those of a body's results.

    None stands for literals and for values that cannot be cut.

    Args:
        jaxpr: The whole program.
        mesh: Of its tags.
        few: The equations to look at, under their paths in the whole.
    """
    found: OperandPaths = {}
    _find(jaxpr if few is None else few.jaxpr, "", mesh, few, found)
    return found


def _find(
    jaxpr: Jaxpr,
    prefix: str,
    mesh: AbstractMesh,
    few: FewEquations | None,
    found: OperandPaths,
) -> None:
    path_of: dict[Var, str] = {}

    def read(atoms: list[Any]) -> tuple[str | None, ...]:
        return tuple([None if type(one) is Literal else path_of.get(one) for one in atoms])

    for kind, variables in (("const", jaxpr.constvars), ("in", jaxpr.invars)):
        for position, var in enumerate(variables):
            if is_tagged(var, mesh):
                path_of[var] = f"{prefix}{kind}.{position}"
    for index, eqn in zip(few.numbers if few else count(), jaxpr.eqns, strict=False):
        path = f"{prefix}{index}"
        found[path] = read(eqn.invars)
        inside = body_mesh(eqn) or mesh
        for key, body in bodies(eqn):
            _find(body, f"{path}.{key}/", inside, None, found)
        for position, var in enumerate(eqn.outvars):
            if is_tagged(var, mesh):
                path_of[var] = f"{path}.{position}"
    if prefix:
        found[f"{prefix}out"] = read(jaxpr.outvars)
