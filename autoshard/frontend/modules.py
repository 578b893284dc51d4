"""The tagged StableHLO of a program: with few of its equal layers, and whole once asked for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import jax
from jax.extend.core import ClosedJaxpr
from jax.sharding import AbstractMesh

from autoshard.frontend.equal_layers import FewEquations
from autoshard.frontend.meshes import mesh_context
from autoshard.frontend.operand_paths import OperandPaths, operand_paths
from autoshard.frontend.refused_borders import reused_manual_axes
from autoshard.frontend.signature import Call
from autoshard.frontend.tagging import tag_jaxpr
from autoshard.frontend.trace_errors import does_not_lower
from autoshard.mlir_modules import module_bytecode


@dataclass(frozen=True, slots=True, eq=False)
class FewModule:
    """A module in which runs of equal layers have few copies, under their paths in the whole.

    Args:
        module: Tagged StableHLO as MLIR bytecode, locations included.
        equations: Those of the program that are left, and where others were.
        operand_paths: By equation path, the path of each operand, or None.
    """

    module: bytes
    equations: FewEquations
    operand_paths: OperandPaths


@dataclass(frozen=True, eq=False)
class Modules:
    """A program as tagged StableHLO.

    Args:
        lower: Makes the whole module, as MLIR bytecode, locations included.
        few: The module with few layers; None where none repeat.
    """

    lower: Callable[[], bytes]
    few: FewModule | None = None

    @staticmethod
    def given(module: bytes) -> Modules:
        """A module that is there already."""
        return Modules(lambda: module)

    @cached_property
    def whole(self) -> bytes:
        """The module of all equations; lowered once it is asked for."""
        return self.lower()


def modules_of(
    closed: ClosedJaxpr, stage: jax.stages.Traced, call: Call, mesh: AbstractMesh, platform: str
) -> tuple[Modules, str, tuple[str, ...]]:
    """The modules of a traced call, the platform that they are lowered for, and notes on that.

    Args:
        closed: The program.
        stage: JAX's own form of it.
        call: What was traced.
        mesh: Named in the tags.
        platform: Decides which lowering rules are used, if they work.

    Raises:
        ExportError: The program does not lower.
    """
    few = FewEquations.of(closed.jaxpr)

    def lower(few: FewEquations | None, platform: str) -> tuple[bytes, str, tuple[str, ...]]:
        tagged = tag_jaxpr(closed, mesh, few)
        with mesh_context(None):
            lowered, lowered_for, notes = _lower(stage, tagged, platform, call)
        return module_bytecode(lowered.compiler_ir("stablehlo")), lowered_for, notes

    module, lowered_for, notes = lower(few, platform)
    if few is None:
        return Modules.given(module), lowered_for, notes
    layers = FewModule(module, few, operand_paths(closed.jaxpr, mesh, few))
    return Modules(lambda: lower(None, lowered_for)[0], layers), lowered_for, notes


def _lower(
    stage: jax.stages.Traced, tagged: ClosedJaxpr, platform: str, call: Call
) -> tuple[jax.stages.Lowered, str, tuple[str, ...]]:
    """Lower the tagged jaxpr in place of the one `stage` was traced to, with no second trace."""
    try:
        return _with_jaxpr(stage, tagged).lower(lowering_platforms=(platform,)), platform, ()
    except Exception as error:
        if (reused := reused_manual_axes(stage.jaxpr.jaxpr)) is not None:
            raise reused from error
        first = error
    other = "tpu" if platform == "cpu" else "cpu"
    try:
        lowered = _with_jaxpr(stage, tagged).lower(lowering_platforms=(other,))
    except Exception as error:
        raise does_not_lower(call, platform, first) from error
    reason = str(first).strip().splitlines()[0] if str(first).strip() else type(first).__name__
    note = f"lowered for {other}, because lowering for {platform} failed: {reason}"
    return lowered, other, (note,)


def _with_jaxpr(stage: jax.stages.Traced, jaxpr: ClosedJaxpr) -> jax.stages.Traced:
    """A copy of a traced stage that holds another jaxpr of the same type, captured arrays first.

    `_params` and `_lojax` are private to `jax.stages.Traced`; checked on jax 0.10.2.
    """
    other = copy.copy(stage)
    num_own = len(stage.jaxpr.consts)
    constvars = jaxpr.jaxpr.constvars
    hoisted = jaxpr.jaxpr.replace(
        constvars=constvars[:num_own], invars=[*constvars[num_own:], *jaxpr.jaxpr.invars]
    )
    other._params = {**stage._params, "jaxpr": ClosedJaxpr(hoisted, stage.jaxpr.consts)}
    other._lojax = None
    return other
