"""Compiles small JAX functions by shape for a slice, and reads what the compiler made of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autoshard.aot.compile_process import CompiledAhead, CompileFailure, CompileRequest
from autoshard.aot.kept_compiles import kept_or_compiled
from autoshard.aot.program import ahead_program
from autoshard.aot.targets import Target, parse_target
from autoshard.hlo.compiled import CompiledCollective, read_module_collectives
from autoshard.hlo.text import HloModule, Instruction, parse_hlo
from autoshard.mlir_modules import module_bytecode
from autoshard.sharding import Mesh, parse_mesh_sizes

_CYCLES = re.compile(r'"estimated_cycles":\s*"?(\d+)')
_TIMEOUT_SECONDS = 240.0


Pin = Callable[..., Any]
"""`pin(value, *axes)` constrains a value to mesh axes by dimension."""


class NotCompiledError(Exception):
    """The compiler gave no program; says why."""


@dataclass(frozen=True, slots=True)
class Array:
    """An argument by shape.

    Args:
        shape: Global.
        dtype: As NumPy names it.
        axes: Mesh axes by dimension, as of `PartitionSpec`.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    axes: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Compiled:
    """A program as its compiler left it.

    Args:
        ahead: What the compiler gave back.
        mesh: That it was compiled for.
    """

    ahead: CompiledAhead
    mesh: Mesh

    @cached_property
    def module(self) -> HloModule:
        return parse_hlo(self.ahead.text)

    @cached_property
    def collectives(self) -> tuple[CompiledCollective, ...]:
        return read_module_collectives(self.module, self.mesh)

    @property
    def entry(self) -> list[Instruction]:
        """Instructions of the program itself, in schedule order."""
        return list(self.module.computations[self.module.entry].values())

    def everywhere(self) -> Iterator[tuple[str, Instruction]]:
        """Every instruction with the computation that it stands in."""
        for name, instructions in self.module.computations.items():
            for instruction in instructions.values():
                yield name, instruction

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """Instructions of all computations that one calls, and those call."""
        for _, name in instruction.called():
            for inner in self.module.computations.get(name, {}).values():
                yield inner
                yield from self.inside(inner)

    def opcodes(self, instruction: Instruction) -> set[str]:
        """Opcodes of an instruction and of all inside it."""
        return {instruction.opcode, *(inner.opcode for inner in self.inside(instruction))}


def cycles(instruction: Instruction) -> int | None:
    """Cycles that the compiler estimates for an instruction; None where it estimates none."""
    found = _CYCLES.search(instruction.attributes)
    return int(found[1]) if found else None


def in_vmem(instruction: Instruction) -> bool:
    """The result lies on the chip: in VMEM, memory space 1 of a TPU, or in the CMEM of a v4."""
    return "S(1)" in instruction.type_text or "S(3)" in instruction.type_text


def computes(made: Instruction) -> bool:
    """An instruction that writes what it computes: no argument, copy or view."""
    return made.opcode not in {"parameter", "bitcast", "get-tuple-element", "tuple"} and not (
        made.opcode.startswith(("copy", "slice", "custom-call"))
    )


@dataclass(slots=True, kw_only=True)
class Bench:
    """Compiles for one target, and counts what it compiled.

    Args:
        target: Devices to compile for.
        folder: Compiled programs are kept here by content; None keeps none.
    """

    target: Target
    folder: Path | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    num_compiles: int = 0

    @property
    def num_devices(self) -> int:
        assert self.target.num_devices is not None
        return self.target.num_devices

    def elsewhere(self, target: str) -> Bench:
        """A bench for another slice of the same chip."""
        return Bench(target=parse_target(target), folder=self.folder)

    def compile(
        self,
        function: Callable[..., Any],
        *arguments: Array,
        mesh: str,
        out: Any = (),
        donate: tuple[int, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Compiled:
        """Compile a function of flat arguments.

        Args:
            function: Gets a function `pin(value, *axes)` first, then the arguments.
            arguments: By shape.
            mesh: Axes and sizes, `data=2,model=4`.
            out: Mesh axes of the result, or a list of them for several results.
            donate: Positions of arguments that results may take the place of.
            options: Flags of the compiler.

        Raises:
            NotCompiledError: The compiler crashed, refused or took too long.
        """
        sizes = parse_mesh_sizes(mesh)
        names = tuple(axis.name for axis in sizes.axes)
        shape = tuple(axis.size for axis in sizes.axes)
        abstract = AbstractMesh(shape, names, axis_types=(AxisType.Auto,) * len(names))

        def sharding(axes: tuple[Any, ...]) -> NamedSharding:
            return NamedSharding(abstract, PartitionSpec(*axes))

        def pin(value: Any, *axes: Any) -> Any:
            return jax.lax.with_sharding_constraint(value, sharding(axes))

        outs = tuple(map(sharding, out)) if isinstance(out, list) else sharding(out)
        jitted = jax.jit(
            lambda *values: function(pin, *values),
            in_shardings=tuple(sharding(argument.axes) for argument in arguments),
            out_shardings=outs,
            donate_argnums=donate,
        )
        leaves = [jax.ShapeDtypeStruct(a.shape, jnp.dtype(a.dtype)) for a in arguments]
        lowered = jitted.trace(*leaves).lower(lowering_platforms=(self.target.platform,))
        program = ahead_program(module_bytecode(lowered.compiler_ir("stablehlo")), self.num_devices)
        request = CompileRequest(
            target=self.target,
            platform="cpu",
            mesh_shape=shape,
            device_order=None,
            compiler_options=options or {},
            timeout_seconds=_TIMEOUT_SECONDS,
        )
        outcome = kept_or_compiled(program, request, self.folder)
        self.num_compiles += 1
        if isinstance(outcome, CompileFailure):
            raise NotCompiledError(f"{outcome.kind}: {outcome.what.partition(chr(10))[0]}")
        self.versions = outcome.versions
        return Compiled(outcome, sizes)
