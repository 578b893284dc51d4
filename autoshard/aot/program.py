"""The program that is compiled ahead of time: what `plan.jit` lowers, for another platform."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxlib.mlir import ir

from autoshard.apply.boundary_shardings import as_written
from autoshard.apply.constrain import constrain_jaxpr
from autoshard.apply.named_shardings import JaxMesh, flat_named_shardings
from autoshard.apply.sound_slices import with_sound_slices
from autoshard.errors import ExportError
from autoshard.export.plan_module import annotated_module
from autoshard.export.platform_module import AS_WRITTEN
from autoshard.export.runnable import runnable_module
from autoshard.frontend.meshes import abstract_mesh, mesh_context
from autoshard.frontend.tagging import with_equation_names
from autoshard.frontend.trace import Traced
from autoshard.mlir_modules import (
    SHARDING,
    main_of,
    module_bytecode,
    module_context,
    parse_module,
)
from autoshard.plans.plan import PlanData
from autoshard.sharding import Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadProgram:
    """A program ready for a compiler.

    Args:
        module: StableHLO with the plan's constraints and boundary shardings, as bytecode.
        num_devices: Devices it runs on.
        free_inputs: By argument of main, whether the compiler chooses its sharding.
        free_outputs: Likewise by result.
        names_equations: The name of every op holds the path of its equation.
    """

    module: bytes
    num_devices: int
    free_inputs: tuple[bool, ...]
    free_outputs: tuple[bool, ...]
    names_equations: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ShardedProgram:
    """A program and how it is sharded.

    Args:
        data: The plan.
        traced: The program it was made for.
        constraints: Of the plan.
        inputs: Shardings of the flat arguments, as given to `jax.jit`.
        outputs: Likewise of the flat results.
    """

    data: PlanData
    traced: Traced
    constraints: Mapping[str, Sharding]
    inputs: Sequence[Sharding | None]
    outputs: Sequence[Sharding | None]

    @staticmethod
    def of(data: PlanData, traced: Traced) -> ShardedProgram:
        """The program of a plan that has its constraints."""
        assert data.constraints is not None
        return ShardedProgram(
            data,
            traced,
            data.constraints,
            as_written(data.arguments, traced.user_in, data.mesh),
            as_written(data.results, traced.user_out, data.mesh),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Lowerer:
    """Lowers a sharded program under any of its constraints.

    Args:
        program: What was planned.
        platform: `cpu`, `tpu` or `cuda`.
        names_equations: Write the path of its equation into the name of every op.
    """

    program: ShardedProgram
    platform: str
    names_equations: bool = False

    def lower(self, constraints: Mapping[str, Sharding]) -> AheadProgram:
        """The program with these constraints in it.

        Raises:
            ExportError: It does not lower for the platform.
        """
        traced, data = self.program.traced, self.program.data
        if traced.platform == AS_WRITTEN:
            module = runnable_module(annotated_module(traced, data, constraints))
        else:
            module = self._lowered(constraints)
        num_devices = data.mesh.num_devices
        return ahead_program(module, num_devices, names_equations=self.names_equations)

    def _lowered(self, constraints: Mapping[str, Sharding]) -> bytes:
        traced, data = self.program.traced, self.program.data
        mesh = JaxMesh(abstract_mesh(data.mesh))
        program = with_equation_names(traced.jaxpr) if self.names_equations else traced.jaxpr
        closed = constrain_jaxpr(program, constraints, mesh, data.schedules)
        jitted = jax.jit(
            _evaluator(with_sound_slices(closed, data.mesh.num_devices), data.function),
            in_shardings=flat_named_shardings(
                self.program.inputs, mesh, [f"argument `{name}`" for name in traced.in_names]
            ),
            out_shardings=flat_named_shardings(
                self.program.outputs, mesh, [f"result `{name}`" for name in traced.out_names]
            ),
            donate_argnums=tuple(i for i, given in enumerate(traced.donated) if given),
        )
        leaves = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in traced.in_avals]
        try:
            with mesh_context(mesh.abstract):
                lowered = jitted.trace(*leaves).lower(lowering_platforms=(self.platform,))
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise ExportError(
                f"the program does not lower for {self.platform}: {type(error).__name__}: {reason}",
                where=f"`{data.function}`",
                fix="compile it for another platform, or replace the op that has no lowering there",
            ) from error
        return module_bytecode(lowered.compiler_ir("stablehlo"))


def _evaluator(closed: ClosedJaxpr, name: str) -> Callable[..., Any]:
    def evaluate(*leaves: Any) -> Any:
        return tuple(jaxpr_as_fun(closed)(*leaves))

    evaluate.__name__ = evaluate.__qualname__ = name if name.isidentifier() else "planned"
    return evaluate


def ahead_program(
    module: bytes, num_devices: int, *, names_equations: bool = False
) -> AheadProgram:
    """A StableHLO module ready for a compiler, its free boundaries read off its attributes."""
    with module_context():
        parsed = parse_module(module)  # by this name: its ops do not keep it alive
        main = main_of(parsed)
        kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        return AheadProgram(
            module=module,
            num_devices=num_devices,
            free_inputs=_without_sharding(main, "arg_attrs", len(kind.inputs)),
            free_outputs=_without_sharding(main, "res_attrs", len(kind.results)),
            names_equations=names_equations,
        )


def _without_sharding(main: Any, side: str, count: int) -> tuple[bool, ...]:
    if side not in main.attributes:
        return (True,) * count
    return tuple(SHARDING not in ir.DictAttr(given) for given in main.attributes[side])
