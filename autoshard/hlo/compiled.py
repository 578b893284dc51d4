"""What the compiler really made of a program: its collectives, its memory, its shardings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from autoshard.hlo.local_program import HloReader
from autoshard.hlo.text import HloModule, parse_hlo
from autoshard.sharding import Mesh
from autoshard.verification.collective_comparison import (
    CollectiveComparison,
    CollectiveRow,
    CompiledCollective,
    compare_collectives,
)

__all__ = [
    "CollectiveComparison",
    "CollectiveRow",
    "CompiledCollective",
    "CompiledProgram",
    "compare_collectives",
    "read_collectives",
    "read_compiled",
    "read_module_collectives",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """A compiled program as its compiler describes it; bytes are per device.

    Args:
        collectives: In text order of the program, bodies in the place of what calls them.
        argument_bytes: Its arguments.
        output_bytes: Its results.
        temp_bytes: What it needs beside those while running.
        alias_bytes: Results that lie in the memory of donated arguments.
        peak_bytes: Arguments, results and temporaries together, those in the same memory once.
        generated_code_bytes: The program itself.
        input_shardings: Of the flat arguments, as JAX has them.
        output_shardings: Of the flat results.
    """

    collectives: tuple[CompiledCollective, ...]
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    peak_bytes: int
    generated_code_bytes: int
    input_shardings: tuple[Any, ...]
    output_shardings: tuple[Any, ...]


def read_compiled(compiled: jax.stages.Compiled, mesh: Mesh | None = None) -> CompiledProgram:
    """Describe a compiled program.

    Args:
        compiled: What `jax.jit(...).lower(...).compile()` gives.
        mesh: Names the axes of the collectives, if given.

    Raises:
        InputError: The text of the program is not HLO as this version of JAX prints it.
    """
    memory = compiled.memory_analysis()
    sizes = {
        name: int(getattr(memory, f"{name}_size_in_bytes", 0) or 0)
        for name in ("argument", "output", "temp", "alias", "generated_code")
    }
    return CompiledProgram(
        collectives=read_collectives(compiled.as_text() or "", mesh),
        argument_bytes=sizes["argument"],
        output_bytes=sizes["output"],
        temp_bytes=sizes["temp"],
        alias_bytes=sizes["alias"],
        peak_bytes=sizes["argument"] + sizes["output"] + sizes["temp"] - sizes["alias"],
        generated_code_bytes=sizes["generated_code"],
        input_shardings=tuple(jax.tree.leaves(compiled.input_shardings)),
        output_shardings=tuple(jax.tree.leaves(compiled.output_shardings)),
    )


def read_collectives(text: str, mesh: Mesh | None = None) -> tuple[CompiledCollective, ...]:
    """Every collective that the optimized HLO of a program runs, once for each place.

    Raises:
        InputError: The text is not HLO, or spells device groups in an unknown way.
    """
    return read_module_collectives(parse_hlo(text), mesh)


def read_module_collectives(
    module: HloModule, mesh: Mesh | None = None
) -> tuple[CompiledCollective, ...]:
    """As `read_collectives`, of a module that has been parsed."""
    return tuple(HloReader.of(module, mesh).compiled)
