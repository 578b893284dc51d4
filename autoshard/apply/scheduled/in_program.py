"""A schedule in the place of one `dot_general` equation of a program."""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import JaxprEqn

from autoshard.apply.named_shardings import JaxMesh
from autoshard.apply.scheduled.lower import lower
from autoshard.errors import PlanError
from autoshard.frontend.meshes import mesh_context
from autoshard.loops import dot_general_statement
from autoshard.loops.dot_schedule import DotSchedule, with_plain_names


def scheduled_equation(
    eqn: JaxprEqn, operands: list[Any], schedule: DotSchedule, mesh: JaxMesh, path: str
) -> JaxprEqn:
    """The equation that computes the same by a schedule: a call of one `shard_map`.

    Args:
        eqn: A `dot_general`.
        operands: What it reads.
        schedule: How it is to run.
        mesh: To run on.
        path: Of the equation, for messages and names.

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
    run = lower(
        schedule.placed(extents, mesh.base),
        mesh.auto,
        schedule.grid,
        precision=eqn.params["precision"],
        preferred_element_type=eqn.outvars[0].aval.dtype,
    )

    def scheduled_product(*arrays: Any) -> Any:
        return run(*arrays)

    with mesh_context(mesh.abstract):
        traced = jax.make_jaxpr(jax.jit(scheduled_product))(
            *(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
        )
    (call,) = traced.jaxpr.eqns
    return call.replace(
        invars=operands, outvars=eqn.outvars, source_info=eqn.source_info, ctx=eqn.ctx
    )
