"""Which equations of a program may be replaced by a `shard_map` that the plan writes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from jax.extend.core import Jaxpr, JaxprEqn

from autoshard.frontend.jaxpr_paths import bodies, is_constrainable

MATMULS = frozenset({"dot_general"})
"""Run by distributed schedules."""

BATCHED = frozenset({"fft", "top_k"})
"""Run on each device's examples; leading dimensions that are not computed along are a batch."""


def rewritable_equations(
    jaxpr: Jaxpr, primitives: Collection[str], prefix: str = ""
) -> Iterator[str]:
    """Paths of the equations of some primitives outside of `shard_map` bodies and kernels.

    Left out are those whose result is a scalar or already has a sharding in its type.
    """
    for index, eqn in enumerate(jaxpr.eqns):
        path = f"{prefix}{index}"
        if eqn.primitive.name in primitives:
            if _is_rewritable(eqn):
                yield path
        elif eqn.primitive.name != "shard_map":
            for key, body in bodies(eqn):
                yield from rewritable_equations(body, primitives, f"{path}.{key}/")


def is_free_matmul(eqn: JaxprEqn) -> bool:
    """True for a `dot_general` whose result has no sharding in its type.

    Gradients traced under a mesh name one of Auto axes, which says nothing.
    """
    if eqn.primitive.name not in MATMULS:
        return False
    said = eqn.params["out_sharding"]
    return said is None or not said.mesh.explicit_axes


def _is_rewritable(eqn: JaxprEqn) -> bool:
    return all(is_constrainable(atom.aval) for atom in (*eqn.invars, *eqn.outvars))
