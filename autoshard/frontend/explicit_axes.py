"""Programs for Explicit mesh axes, as programs for Auto ones: types say nothing, constraints do.

JAX's types carry the sharding of a value along Explicit axes. A plan chooses shardings, so they
leave the types; what the user wrote there (`reshard`, `out_sharding=`) stays as constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from autoshard.frontend.jaxpr_paths import ConstraintEquations, bodies, rewrite_bodies
from autoshard.frontend.meshes import as_auto, mesh_context
from autoshard.frontend.spec_entries import spec_entries
from autoshard.sharding import AxisRef, DimSharding, Sharding

ArgumentAxes = tuple[tuple[tuple[str, ...], ...], ...]
"""By flat argument, the Explicit axes that each dimension is sharded along in its type."""

_TYPE_ONLY = frozenset({"reshard", "mesh_cast"})
_SAID_BY_USER = ("sharding", "out_sharding", "dst_sharding")


def argument_axes(leaves: Sequence[Any], mesh: AbstractMesh) -> ArgumentAxes:
    """The Explicit axes in the types of arguments: arrays, or `ShapeDtypeStruct`s with shardings.

    Empty where the mesh has no Explicit axes.
    """
    if not mesh.explicit_axes:
        return ()
    return tuple(_axes_of(getattr(leaf, "sharding", None), leaf, mesh) for leaf in leaves)


def _axes_of(sharding: Any, leaf: Any, mesh: AbstractMesh) -> tuple[tuple[str, ...], ...]:
    if not isinstance(sharding, NamedSharding) or isinstance(leaf, jax.core.Tracer):
        return ()
    own = sharding.mesh.abstract_mesh
    if dict(own.shape) != dict(mesh.shape):
        return ()
    explicit = {*mesh.explicit_axes} & {*own.explicit_axes}
    named = [tuple(axis for axis in axes if axis in explicit) for axes in _entries(sharding.spec)]
    named += [()] * (len(leaf.shape) - len(named))
    return tuple(named) if any(named) else ()


def typed(
    avals: Sequence[jax.ShapeDtypeStruct], axes: ArgumentAxes, mesh: AbstractMesh | None
) -> list[jax.ShapeDtypeStruct]:
    """Abstract arguments with the Explicit axes of a mesh in their types."""
    if not axes or mesh is None or not mesh.explicit_axes:
        return list(avals)
    return [
        jax.ShapeDtypeStruct(
            aval.shape,
            aval.dtype,
            weak_type=aval.weak_type,
            sharding=NamedSharding(mesh, PartitionSpec(*(dim or None for dim in dims))),
        )
        if any(dims)
        else aval
        for aval, dims in zip(avals, axes, strict=True)
    ]


def fixed_by_type(axes: Sequence[Sequence[str]], mesh: AbstractMesh) -> Sharding | None:
    """The sharding that a type fixes: Explicit axes stay as they are, Auto ones are left free.

    A type that names no axis fixes nothing.
    """
    if not any(axes):
        return None
    named = {axis for dim in axes for axis in dim}
    dims = [tuple(map(AxisRef, dim)) for dim in axes]
    unnamed = [axis for axis in mesh.explicit_axes if axis not in named]
    is_mixed = bool(mesh.auto_axes)
    return Sharding(
        tuple(DimSharding(dim, is_open=is_mixed) for dim in dims),
        replicated=tuple(map(AxisRef, unnamed)) if is_mixed else (),
    )


def typed_axes(aval: Any) -> tuple[tuple[str, ...], ...]:
    """By dimension, the Explicit axes in a type; () where it is of no such mesh."""
    sharding = getattr(aval, "sharding", None)
    if sharding is None or not sharding.mesh.explicit_axes:
        return ()
    return tuple(_entries(sharding.spec))


def _entries(spec: PartitionSpec) -> list[tuple[str, ...]]:
    """The axes of each entry."""
    return [
        ()
        if entry is None or entry is PartitionSpec.UNCONSTRAINED
        else tuple(map(str, entry))
        if isinstance(entry, tuple)
        else (str(entry),)
        for entry in spec_entries(spec)
    ]


def without_explicit_types(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A program as traced under Auto axes.

    `reshard`, and `out_sharding=` of any op, become sharding constraints where they name an axis.
    Where they name none they are kept only as the user wrote them: a `reshard` of a sharded value,
    and none that differentiation makes from the type of an argument, which is free.
    """
    return ClosedJaxpr(_AutoAxes().jaxpr(closed.jaxpr), closed.consts)


def has_reshards(jaxpr: Jaxpr) -> bool:
    """True where an equation, of a body too, changes nothing but the mesh or sharding of a type.

    JAX adds some of its own between meshes that differ in their kind of device alone.
    """
    return any(
        eqn.primitive.name in _TYPE_ONLY or any(has_reshards(body) for _, body in bodies(eqn))
        for eqn in jaxpr.eqns
    )


class _AutoAxes:
    def __init__(self) -> None:
        self.constraints = ConstraintEquations()
        self.variables: dict[Var, Any] = {}
        self.avals: dict[Any, Any] = {}
        self.contexts: dict[Any, Any] = {}
        self.bodies: dict[int, Jaxpr] = {}

    def body(self, _: str, jaxpr: Jaxpr) -> Jaxpr:
        """Of bodies that several equations share, one copy."""
        if id(jaxpr) not in self.bodies:
            self.bodies[id(jaxpr)] = self.jaxpr(jaxpr)
        return self.bodies[id(jaxpr)]

    def jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        constvars = [self.bound(var) for var in jaxpr.constvars]
        invars = [self.bound(var) for var in jaxpr.invars]
        eqns: list[JaxprEqn] = []
        for eqn in jaxpr.eqns:
            self.add(eqn, eqns)
        return jaxpr.replace(
            constvars=constvars,
            invars=invars,
            eqns=eqns,
            outvars=[self.read(atom) for atom in jaxpr.outvars],
        )

    def add(self, eqn: JaxprEqn, eqns: list[JaxprEqn]) -> None:
        operands = [self.read(atom) for atom in eqn.invars]
        if eqn.primitive.name in _TYPE_ONLY:
            (result,) = eqn.outvars
            self.variables[result] = self.kept(operands[0], eqn, eqns)
            return
        params = rewrite_bodies(eqn, self.body) or eqn.params
        results = [self.bound(var) for var in eqn.outvars]
        eqns.append(
            eqn.replace(
                invars=operands,
                outvars=results,
                params={name: self.param(eqn, name, value) for name, value in params.items()},
                ctx=self.context(eqn.ctx),
            )
        )
        if len(results) == 1:
            self.variables[eqn.outvars[0]] = self.kept(results[0], eqn, eqns)

    def kept(self, value: Any, eqn: JaxprEqn, eqns: list[JaxprEqn]) -> Any:
        """A value behind the constraint that its equation's words are, if they are any."""
        sharding = _said(eqn)
        rank = len(getattr(value.aval, "shape", ()))
        if sharding is None or not rank or eqn.primitive.name == "sharding_constraint":
            return value
        if sharding.spec.unreduced or sharding.spec.reduced:
            return value  # where a sum is reduced is for the plan
        mesh = sharding.mesh.abstract_mesh
        entries = _entries(sharding.spec)
        if not any(entries) and not (mesh.are_all_axes_explicit and _is_written_gather(eqn)):
            return value
        auto = NamedSharding(as_auto(mesh), PartitionSpec(*(dim or None for dim in entries)))
        like = eqn.replace(ctx=self.context(eqn.ctx))
        scope = str(eqn.source_info.name_stack)
        equation = self.constraints.make(value, auto, scope=scope, like=like)
        if {axis for dim in entries for axis in dim} >= set(mesh.explicit_axes) and mesh.auto_axes:
            open_dims = frozenset(range(rank))  # further, along Auto axes
            equation = equation.replace(params={**equation.params, "unconstrained_dims": open_dims})
        eqns.append(equation)
        return equation.outvars[0]

    def param(self, eqn: JaxprEqn, name: str, value: Any) -> Any:
        if isinstance(value, NamedSharding) and name in _SAID_BY_USER:
            if eqn.primitive.name != "sharding_constraint":
                bare = PartitionSpec(*(None,) * len(value.spec))
                return NamedSharding(as_auto(value.mesh), bare)
            value = _beside_types(value, eqn.invars[0].aval)
        return self.without_types(value)

    def without_types(self, value: Any) -> Any:
        if isinstance(value, (jax.sharding.Mesh, AbstractMesh)):
            return as_auto(value)
        if isinstance(value, NamedSharding):
            return value.update(mesh=as_auto(value.mesh))
        if type(value) is tuple and any(isinstance(one, NamedSharding) for one in value):
            return tuple(map(self.without_types, value))
        return value

    def bound(self, var: Var) -> Var:
        new = self.variables[var] = Var(self.aval(var.aval))
        return new

    def read(self, atom: Any) -> Any:
        if isinstance(atom, Literal):
            return Literal(atom.val, self.aval(atom.aval))
        return self.variables[atom]

    def aval(self, aval: Any) -> Any:
        found = self.avals.get(aval)
        if found is None:
            found = self.avals[aval] = _without_axes(aval)
        return found

    def context(self, ctx: Any) -> Any:
        found = self.contexts.get(ctx)
        if found is None:
            # Equations take the context they are traced in; its constructor differs by version.
            with ctx.manager, mesh_context(as_auto(ctx.cur_abstract_mesh)):
                found = self.contexts[ctx] = jax.make_jaxpr(jax.lax.neg)(0.0).eqns[0].ctx
        return found


def _said(eqn: JaxprEqn) -> NamedSharding | None:
    """The sharding that an equation gives its result in so many words."""
    found = (eqn.params.get(name) for name in _SAID_BY_USER)
    return next((one for one in found if isinstance(one, NamedSharding)), None)


def _beside_types(sharding: NamedSharding, aval: Any) -> NamedSharding:
    """What `with_sharding_constraint` says along Auto axes, after the Explicit ones of the type."""
    own = typed_axes(aval)
    if not any(own):
        return sharding
    said = [*spec_entries(sharding.spec), *[None] * (len(own) - len(sharding.spec))]
    entries = [
        entry if entry is PartitionSpec.UNCONSTRAINED else (*axes, *named) or None
        for entry, axes, named in zip(said, own, _entries(PartitionSpec(*said)), strict=True)
    ]
    return sharding.update(spec=PartitionSpec(*entries))


def _is_written_gather(eqn: JaxprEqn) -> bool:
    return (
        eqn.primitive.name == "reshard"
        and any(typed_axes(eqn.invars[0].aval))
        and "transpose(" not in str(eqn.source_info.name_stack)
    )


def _without_axes(aval: Any) -> Any:
    sharding = getattr(aval, "sharding", None)
    if sharding is None or sharding.mesh.empty:
        return aval
    mesh = as_auto(sharding.mesh)
    return aval.update(sharding=NamedSharding(mesh, PartitionSpec(*(None,) * len(aval.shape))))
