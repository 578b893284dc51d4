"""Walking a closed jaxpr: every value, equation and use has a path, and constraints go in by path.

The path language (positions count from 0):

* `in.3`: flat argument 3 of the whole function; `const.0`: an array it closes over;
* `7.0`: output 0 of equation 7; `7.jaxpr/in.2`: argument 2 of the body that equation 7 holds in its
  parameter `jaxpr`; `7.branches[1]/38.0`: output 0 of equation 38 in its second branch; and so on;
* `7.jaxpr/38`: an equation; `7.jaxpr/38<1`: operand 1 of that equation, that use alone;
* `out<2`: flat result 2 of the whole function; `7.jaxpr/out<0`: result 0 of a body.

Bodies are found in any parameter that holds a jaxpr, a closed jaxpr, or a tuple or list of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autoshard.frontend.meshes import mesh_context

Body: TypeAlias = Any
"""A `Jaxpr` or a `ClosedJaxpr`."""

_BODIES = (Jaxpr, ClosedJaxpr)
_BODY_TYPES = frozenset(_BODIES)

CALLS = frozenset(
    {
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "remat",
        "remat2",
        "checkpoint",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "custom_lin",
    }
)
"""Primitives whose body takes the operands as they are."""

CLOSED_BODIES = frozenset(
    {
        # Kernels: their bodies work on references and grids, not on tensors of the program.
        "core_map",
        "mpmd_map",
        "pallas_call",
        "run_scoped",
        # The user's own partitioning, and calls whose body only documents them.
        "composite",
        "custom_partitioning",
        # Reducers over scalars; XLA recognises some of them by their body.
        "reduce",
        "reduce_window",
        "scatter",
        "scatter-add",
        "scatter-mul",
        "scatter-max",
        "scatter-min",
        "scatter-sub",
        "scatter_add",
        "scatter_max",
        "scatter_min",
        "scatter_mul",
        "scatter_sub",
        "select_and_scatter",
        "select_and_scatter_add",
    }
)
"""Primitives whose bodies are opaque: nothing in them is named or constrained."""


def scan_params(
    params: dict[str, Any], body: ClosedJaxpr, num_consts: int, num_carry: int
) -> dict[str, Any]:
    """Parameters of a `scan` with another body; `linear` is one of them up to JAX 0.9."""
    linear = {"linear": (False,) * len(body.jaxpr.invars)} if "linear" in params else {}
    return {**params, "jaxpr": body, "num_consts": num_consts, "num_carry": num_carry, **linear}


def is_constrainable(aval: Any) -> bool:
    """Whether a value of this type can be cut: an ordinary array of rank 1 or more.

    Typed PRNG keys, references and tokens are not; nor is a value whose type already carries the
    sharding of an Explicit mesh, nor one inside a `shard_map` over every axis.
    """
    shape = getattr(aval, "shape", None)
    if not shape or not isinstance(getattr(aval, "dtype", None), np.dtype):
        return False
    sharding = getattr(aval, "sharding", None)
    if sharding is None:
        return True
    mesh = sharding.mesh
    return not (mesh.axis_names and not mesh.auto_axes) and not any(sharding.spec)


def is_tagged(var: Var, mesh: AbstractMesh) -> bool:
    """True for a variable with a path, if it is read: not where all axes of a mesh are manual."""
    return bool(mesh.auto_axes) and is_constrainable(var.aval)


def bodies(eqn: JaxprEqn) -> Iterator[tuple[str, Jaxpr]]:
    """The jaxprs inside an equation, with the key that names each: `jaxpr`, `branches[1]`."""
    if eqn.primitive.name in CLOSED_BODIES:
        return
    for name, value in eqn.params.items():
        if isinstance(value, _BODIES):
            yield name, open_jaxpr(value)
        elif isinstance(value, (tuple, list)):
            for position, member in enumerate(value):
                if isinstance(member, _BODIES):
                    yield f"{name}[{position}]", open_jaxpr(member)


def equations_of(jaxpr: Jaxpr, prefix: str = "") -> Iterator[tuple[str, JaxprEqn]]:
    """Every equation with its path, one before those in its bodies."""
    for index, eqn in enumerate(jaxpr.eqns):
        path = f"{prefix}{index}"
        yield path, eqn
        for key, body in bodies(eqn):
            yield from equations_of(body, f"{path}.{key}/")


def open_jaxpr(body: Body) -> Jaxpr:
    return body.jaxpr if isinstance(body, ClosedJaxpr) else body


def shard_map_bodies(jaxpr: Jaxpr) -> Iterator[str]:
    """Per `shard_map` body, the beginning of all paths in it."""
    for path, eqn in equations_of(jaxpr):
        if eqn.primitive.name == "shard_map":
            yield from (f"{path}.{key}/" for key, _ in bodies(eqn))


def body_mesh(eqn: JaxprEqn) -> AbstractMesh | None:
    """The mesh inside a `shard_map` body, with the types its axes have there; None elsewhere."""
    if eqn.primitive.name != "shard_map":
        return None
    mesh: AbstractMesh = eqn.params["mesh"].abstract_mesh
    names = eqn.params.get(
        "newly_manual_axes", eqn.params.get("manual_axes")
    )  # since, to JAX 0.10.1
    return mesh.update_axis_types(dict.fromkeys(names, AxisType.Manual))


def rewrite_bodies(
    eqn: JaxprEqn,
    rewrite: Callable[[str, Jaxpr], Jaxpr],
    once: dict[tuple[str, int], Body] | None = None,
) -> dict[str, Any] | None:
    """The parameters of an equation with every body rewritten; None when it holds no body.

    Args:
        eqn: The equation.
        rewrite: Makes the new body, of its key and the old one.
        once: Bodies rewritten so far, by key and identity of the old one, which is alive: a body
            that several equations hold stays one, and is lowered to one function.
    """
    if eqn.primitive.name in CLOSED_BODIES:
        return None

    def rewritten(key: str, body: Body) -> Body:
        if once is None:
            return _rewrite_body(key, body, rewrite)
        if (key, id(body)) not in once:
            once[key, id(body)] = _rewrite_body(key, body, rewrite)
        return once[key, id(body)]

    changed: dict[str, Any] = {}
    for name, value in eqn.params.items():
        if isinstance(value, _BODIES):
            changed[name] = rewritten(name, value)
        elif isinstance(value, (tuple, list)) and not _BODY_TYPES.isdisjoint(map(type, value)):
            members = [
                rewritten(f"{name}[{position}]", member) if isinstance(member, _BODIES) else member
                for position, member in enumerate(value)
            ]
            # A named tuple takes its fields one by one.
            changed[name] = (
                type(value)(*members) if hasattr(value, "_fields") else type(value)(members)
            )
    return {**eqn.params, **changed} if changed else None


def _rewrite_body(key: str, body: Body, rewrite: Callable[[str, Jaxpr], Jaxpr]) -> Body:
    rewritten = rewrite(key, open_jaxpr(body))
    if rewritten is open_jaxpr(body):
        return body
    return ClosedJaxpr(rewritten, body.consts) if isinstance(body, ClosedJaxpr) else rewritten


def used_variables(jaxpr: Jaxpr) -> set[Var]:
    """Every variable that an equation or the result of this jaxpr reads."""
    used = {atom for eqn in jaxpr.eqns for atom in eqn.invars if not isinstance(atom, Literal)}
    used.update(atom for atom in jaxpr.outvars if not isinstance(atom, Literal))
    return used


class ConstraintEquations:
    """Makes `sharding_constraint` equations, as `with_sharding_constraint` would.

    One equation per sharding is traced through the public call and then copied, so nothing here
    depends on what parameters the primitive has.
    """

    def __init__(self) -> None:
        self._templates: dict[tuple[int, NamedSharding], JaxprEqn] = {}

    def make(
        self, operand: Any, sharding: NamedSharding, *, scope: str, like: JaxprEqn | None
    ) -> JaxprEqn:
        """`result = sharding_constraint(operand)`, with a result of the operand's type.

        Args:
            operand: A variable or literal of rank 1 or more.
            sharding: May have `PartitionSpec.UNCONSTRAINED` dimensions.
            scope: The whole name stack of the new equation.
            like: The equation whose source line and context the new one takes, if there is one.
        """
        rank = len(operand.aval.shape)
        template = self._templates.get((rank, sharding))
        if template is None:
            template = self._templates[rank, sharding] = _trace_constraint(rank, sharding)
        like = like or template
        # The scope stands alone: behind the user's own stack a transformation would wrap it, as in
        # `transpose(jvp(scope))`.
        source_info = like.source_info.replace(
            name_stack=like.source_info.name_stack[:0].extend(scope)
        )
        return JaxprEqn(
            [operand],
            [Var(operand.aval)],
            template.primitive,
            template.params,
            template.effects,
            source_info,
            like.ctx,
        )


def _trace_constraint(rank: int, sharding: NamedSharding) -> JaxprEqn:
    with mesh_context(sharding.mesh.abstract_mesh):
        traced = jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, sharding))(
            jax.ShapeDtypeStruct((1,) * rank, np.dtype(np.float32))
        )
    (equation,) = traced.jaxpr.eqns
    return equation


def all_open(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh, rank: int) -> NamedSharding:
    """The sharding that says nothing: every dimension unconstrained."""
    return NamedSharding(mesh, PartitionSpec(*(PartitionSpec.UNCONSTRAINED,) * rank))
