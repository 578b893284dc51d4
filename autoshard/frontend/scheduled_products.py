"""Which `dot_general` equations of a program may be replaced by a distributed schedule."""

from __future__ import annotations

from collections.abc import Iterator

from jax.extend.core import Jaxpr, JaxprEqn

from autoshard.frontend.jaxpr_paths import bodies, is_constrainable


def rewritable_products(jaxpr: Jaxpr, prefix: str = "") -> Iterator[str]:
    """Paths of the `dot_general` equations outside of `shard_map` bodies and kernels.

    Left out are those whose result is a scalar or already has a sharding in its type.
    """
    for index, eqn in enumerate(jaxpr.eqns):
        path = f"{prefix}{index}"
        if eqn.primitive.name == "dot_general":
            if _is_rewritable(eqn):
                yield path
        elif eqn.primitive.name != "shard_map":
            for key, body in bodies(eqn):
                yield from rewritable_products(body, f"{path}.{key}/")


def _is_rewritable(eqn: JaxprEqn) -> bool:
    return all(is_constrainable(atom.aval) for atom in (*eqn.invars, *eqn.outvars))
