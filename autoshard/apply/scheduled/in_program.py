"""A schedule in the place of one `dot_general` equation of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Var

from autoshard.apply.named_shardings import JaxMesh, sharding_to_spec
from autoshard.apply.scheduled.lower import lower
from autoshard.errors import PlanError
from autoshard.frontend.meshes import mesh_context
from autoshard.loops import dot_general_statement
from autoshard.loops.dot_schedule import DotSchedule, with_plain_names
from autoshard.sharding import Sharding


class Scheduled(NamedTuple):
    """What a product in steps makes, and where it lies."""

    result: Var
    home: Sharding


def turned_before_use(jaxpr: Jaxpr) -> dict[Var, tuple[int, ...]]:
    """By variable that one transpose reads and nothing else, its permutation."""
    readers: dict[Var, list[JaxprEqn | None]] = {}
    for eqn, atoms in (*((e, e.invars) for e in jaxpr.eqns), (None, jaxpr.outvars)):
        for atom in atoms:
            if isinstance(atom, Var):
                readers.setdefault(atom, []).append(eqn)
    return {
        var: tuple(found[0].params["permutation"])
        for var, found in readers.items()
        if len(found) == 1 and found[0] is not None and found[0].primitive.name == "transpose"
    }


def scheduled_equation(
    eqn: JaxprEqn,
    operands: list[Any],
    schedule: DotSchedule,
    mesh: JaxMesh,
    path: str,
    order: Sequence[int] | None = None,
    earlier: Scheduled | None = None,
) -> JaxprEqn:
    """The equation that computes the same by a schedule: a call of one `shard_map`.

    Args:
        eqn: A `dot_general`.
        operands: What it reads.
        schedule: How it is to run.
        mesh: To run on.
        path: Of the equation, for messages and names.
        order: Of the dimensions of the result as it is made, where what reads it turns it so; else
            all that is computed from it would be turned with it, and states copied for that.
        earlier: Another product in steps, which this one runs after if it lies over axes of this
            one's grid: no `shard_map` takes what is cut by others.

    Raises:
        PlanError: The equation is another product than the one planned.
    """
    avals = [atom.aval for atom in eqn.invars]
    statement = None
    if eqn.primitive.name == "dot_general":
        ranks = [aval.ndim for aval in avals]
        numbers = eqn.params["dimension_numbers"]
        statement = with_plain_names(dot_general_statement(numbers, *ranks))
    if statement is None or str(statement) != schedule.statement:
        raise PlanError(
            f"the plan has a schedule for {schedule.statement}, and there is"
            f" {statement or eqn.primitive.name}",
            where=path,
            fix="plan again for this program",
        )
    extents = statement.extents_of([aval.shape for aval in avals])
    made = schedule if order is None else schedule.made_in(order)
    if earlier is not None and not _axes_of(earlier.home) <= set(schedule.grid):
        earlier = None
    run = lower(
        made.placed(extents, mesh.base),
        mesh.auto,
        schedule.grid,
        precision=eqn.params["precision"],
        preferred_element_type=eqn.outvars[0].aval.dtype,
        after=() if earlier is None else (sharding_to_spec(earlier.home),),
    )
    read = operands if earlier is None else [*operands, earlier.result]

    def scheduled_product(*arrays: Any) -> Any:
        found = run(*arrays)
        return (
            found
            if order is None
            else jnp.transpose(found, [int(dim) for dim in np.argsort(order)])
        )

    with mesh_context(mesh.abstract):
        traced = jax.make_jaxpr(jax.jit(scheduled_product))(
            *(jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in read)
        )
    (call,) = traced.jaxpr.eqns
    return call.replace(invars=read, outvars=eqn.outvars, source_info=eqn.source_info, ctx=eqn.ctx)


def _axes_of(home: Sharding) -> set[str]:
    return {axis.name for axis in home.axis_refs()}
