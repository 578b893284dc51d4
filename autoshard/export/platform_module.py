"""A traced program lowered again: for the platform it is to run on, or with products in steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from autoshard.apply.constrain import constrain_jaxpr
from autoshard.errors import ExportError, InputError
from autoshard.frontend.meshes import abstract_mesh, mesh_context
from autoshard.frontend.modules import Modules
from autoshard.frontend.operand_paths import operand_paths
from autoshard.frontend.tagging import tag_jaxpr
from autoshard.frontend.trace import Traced
from autoshard.loops.dot_schedule import DotSchedule
from autoshard.loops.on_examples import OnExamples
from autoshard.mlir_modules import module_bytecode
from autoshard.sharding import Mesh

PLATFORMS = ("cpu", "tpu", "cuda", "rocm")

AS_WRITTEN = "as written"
"""Stands for the platform of a module that came from elsewhere: there is nothing to lower again."""


def lowered_for(
    traced: Traced,
    mesh: Mesh,
    platform: str | None,
    schedules: Mapping[str, DotSchedule | OnExamples] | None = None,
) -> Traced:
    """The same traced program with its module lowered for a platform.

    Captured arrays come before the arguments in the module's main, as in the module planned. Paths
    stay what they are: a product in steps is a call in the place of its equation.

    Args:
        traced: What was planned.
        mesh: Of the plan.
        platform: `cpu`, `tpu`, `cuda`; None keeps the module it was planned on, whose ops belong to
            no platform wherever JAX has a choice.
        schedules: By path of an equation, the manual computation in its place.

    Raises:
        InputError: There is no such platform.
        ExportError: The program does not lower for the platform.
    """
    if platform is not None and platform not in PLATFORMS:
        raise InputError(
            f"there is no platform called {platform!r}",
            where=f"platform={platform!r}",
            fix=f"use one of {', '.join(PLATFORMS)}",
        )
    if not schedules and (platform is None or traced.platform in {platform, AS_WRITTEN}):
        return traced
    chosen = platform or traced.platform
    context = abstract_mesh(mesh)
    constrained = constrain_jaxpr(traced.jaxpr, {}, context, schedules)
    inner = tag_jaxpr(constrained, context).jaxpr
    flat = inner.replace(constvars=[], invars=[*inner.constvars, *inner.invars])
    run = jaxpr_as_fun(ClosedJaxpr(flat, []))
    try:
        with mesh_context(context):
            stage = jax.jit(run, keep_unused=True).trace(
                *(jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in flat.invars)
            )
        with mesh_context(None):
            lowered = stage.lower(lowering_platforms=(chosen,))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise ExportError(
            f"the program does not lower for {chosen}: {type(error).__name__}: {reason}",
            fix="export it for the platform it was planned on",
        ) from error
    return replace(
        traced,
        modules=Modules.given(module_bytecode(lowered.compiler_ir("stablehlo"))),
        operand_paths=operand_paths(constrained.jaxpr, context),
        platform=chosen,
    )
