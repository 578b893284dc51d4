"""An equation inside a `shard_map`, for ops that the compiler does not partition."""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import JaxprEqn

from autoshard.apply.named_shardings import JaxMesh, sharding_to_spec
from autoshard.errors import PlanError
from autoshard.frontend.meshes import mesh_context
from autoshard.frontend.rewritable_equations import BATCHED
from autoshard.loops.on_examples import OnExamples


def equation_on_examples(
    eqn: JaxprEqn, operands: list[Any], planned: OnExamples, mesh: JaxMesh, path: str
) -> JaxprEqn:
    """The equation that computes the same on each device's examples: a call of a `shard_map`.

    Args:
        eqn: An FFT or `top_k`.
        operands: What it reads.
        planned: Its shardings.
        mesh: To run on.
        path: Of the equation, for messages.

    Raises:
        PlanError: The equation is of another primitive, or has other ranks.
    """
    ranks = [planned.operand.rank, *(result.rank for result in planned.results)]
    found = [atom.aval.ndim for atom in (*eqn.invars, *eqn.outvars)]
    if eqn.primitive.name not in BATCHED or ranks != found:
        raise PlanError(
            f"the plan runs an op of ranks {ranks} on each device's examples, and there is"
            f" {eqn.primitive.name} of ranks {found}",
            where=path,
            fix="plan again for this program",
        )

    def local(array: Any) -> tuple[Any, ...]:
        made = eqn.primitive.bind(array, **eqn.params)
        results = made if eqn.primitive.multiple_results else (made,)
        return tuple(map(_as_declared, results))

    run = jax.shard_map(
        local,
        mesh=mesh.auto,
        in_specs=sharding_to_spec(planned.operand),
        out_specs=tuple(map(sharding_to_spec, planned.results)),
        check_vma=False,  # axes that shard nothing are replicated, which JAX cannot infer here
    )
    (atom,) = eqn.invars
    with mesh_context(mesh.abstract):
        traced = jax.make_jaxpr(jax.jit(run))(
            jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)
        )
    (call,) = traced.jaxpr.eqns
    return call.replace(
        invars=operands, outvars=eqn.outvars, source_info=eqn.source_info, ctx=eqn.ctx
    )


def _as_declared(array: Any) -> Any:
    """The array in the dimension order of its shape.

    A gather before an FFT or after it may give its operand another one, in which host CPUs compute
    no FFT (jaxlib 0.10.2: `RET_CHECK failure` in `fft_thunk.cc`).
    """
    order: Any = Layout(tuple(range(array.ndim)))
    return with_layout_constraint(array, order)
