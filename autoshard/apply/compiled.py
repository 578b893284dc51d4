"""What the compiler really made of a program: its collectives, its memory, its shardings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from autoshard.apply.hlo_text import HloModule, Instruction, parse_hlo
from autoshard.apply.replica_groups import crossed_axes, parse_groups
from autoshard.graph.collective import PredictedCollective
from autoshard.sharding import AxisRef, Mesh, spanned_axes

_KIND_BY_OPCODE = {
    "all-gather": "all-gather",
    "all-gather-start": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "all-reduce": "all-reduce",
    "all-reduce-start": "all-reduce",
    "all-to-all": "all-to-all",
    "ragged-all-to-all": "all-to-all",
    "collective-permute": "collective-permute",
    "collective-permute-start": "collective-permute",
    "collective-broadcast": "collective-broadcast",
}
_FINISHES = frozenset({"async-update", "async-done"})
"""They name the computation that their start has already run."""

_KNOWN_TRIP_COUNT = re.compile(r'"?known_trip_count"?\s*:\s*\{\s*"?n"?\s*:\s*"?(\d+)"?')


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCollective:
    """One communication instruction of a compiled program.

    Args:
        kind: `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all`, `collective-permute`.
        axes: The mesh axes it works over (`x`, or `x:(1)2` for a part of one); None where no mesh
            was given or the groups follow no axes.
        group_size: Devices in one group; for a permutation all those along the axes it crosses or,
            without a mesh, those that its pairs connect.
        num_groups: Groups at work at the same time.
        bytes_per_device: The larger side: of an all-gather the result, of others the operand; all
            tensors of a combined collective together.
        trip_count: How often the loops around it run; 1 outside of loops.
        is_trip_count_known: False where some loop did not tell, and was taken to run once.
        count: How often it runs: `trip_count`, in a branch divided by the number of branches.
        op_name: JAX's name stack, "" where the compiler dropped it.
        source: `file.py:12`, or "".
    """

    kind: str
    axes: tuple[str, ...] | None
    group_size: int
    num_groups: int
    bytes_per_device: int
    trip_count: int
    is_trip_count_known: bool
    count: float
    op_name: str
    source: str


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """Bytes per device moved by one kind of collective over one set of axes.

    Args:
        kind: As in `CompiledCollective`.
        axes: Sorted; None if the compiled program's axes are not known.
        group_size: Devices in one group.
        predicted_bytes: In the plan, each collective as often as it runs.
        compiled_bytes: In the compiled program, likewise.
        predicted_ops: What the plan has them for.
        compiled_ops: Name stacks of those in the compiled program.
    """

    kind: str
    axes: tuple[str, ...] | None
    group_size: int
    predicted_bytes: float
    compiled_bytes: float
    predicted_ops: tuple[str, ...]
    compiled_ops: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveComparison:
    """A plan's collectives beside those of the compiled program.

    Args:
        rows: By kind, axes and group size; the largest difference first.
        predicted_bytes: Over all rows.
        compiled_bytes: Over all rows.
    """

    rows: tuple[CollectiveRow, ...]
    predicted_bytes: float
    compiled_bytes: float

    @property
    def difference_percent(self) -> float:
        """How much more the plan lists than the program has; negative for less."""
        if self.compiled_bytes == 0:
            return 0.0 if self.predicted_bytes == 0 else float("inf")
        return 100.0 * (self.predicted_bytes - self.compiled_bytes) / self.compiled_bytes


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
    module = parse_hlo(text)
    return tuple(_walk(module, mesh, module.entry, 1, True, 1.0))


def compare_collectives(
    predicted: Iterable[PredictedCollective], compiled: Iterable[CompiledCollective]
) -> CollectiveComparison:
    """Put a plan's collectives beside those of the compiled program.

    Args:
        predicted: Of the plan.
        compiled: `CompiledProgram.collectives`. Without axes, kinds and group sizes are compared.
    """
    compiled = tuple(compiled)
    by_axes = all(collective.axes is not None for collective in compiled)
    rows: dict[tuple[str, tuple[str, ...] | None, int], list[list[tuple[float, str]]]] = {}

    def row(kind: str, axes: tuple[str, ...] | None, size: int) -> list[list[tuple[float, str]]]:
        names = tuple(sorted(axes)) if by_axes and axes is not None else None
        return rows.setdefault((kind, names, size), [[], []])

    for plan in predicted:
        entry = (plan.bytes_per_device * plan.count, plan.op)
        row(plan.kind, plan.axes, plan.group_size)[0].append(entry)
    for real in compiled:
        row(real.kind, real.axes, real.group_size)[1].append(
            (real.bytes_per_device * real.count, real.op_name)
        )
    made = [
        CollectiveRow(
            kind=kind,
            axes=axes,
            group_size=size,
            predicted_bytes=sum(amount for amount, _ in planned),
            compiled_bytes=sum(amount for amount, _ in real),
            predicted_ops=tuple(dict.fromkeys(op for _, op in planned)),
            compiled_ops=tuple(dict.fromkeys(op for _, op in real)),
        )
        for (kind, axes, size), (planned, real) in rows.items()
    ]
    made.sort(key=lambda r: (-abs(r.predicted_bytes - r.compiled_bytes), r.kind, r.axes or ()))
    return CollectiveComparison(
        rows=tuple(made),
        predicted_bytes=sum(row.predicted_bytes for row in made),
        compiled_bytes=sum(row.compiled_bytes for row in made),
    )


def _walk(
    module: HloModule,
    mesh: Mesh | None,
    computation: str,
    trip_count: int,
    is_known: bool,
    count: float,
) -> Iterator[CompiledCollective]:
    instructions = module.computations.get(computation, {})
    for instruction in instructions.values():
        kind = _KIND_BY_OPCODE.get(instruction.opcode)
        if kind is not None:
            found = _collective(module, mesh, instructions, instruction, kind)
            if found is not None:
                axes, size, groups, num_bytes = found
                yield CompiledCollective(
                    kind=kind,
                    axes=axes,
                    group_size=size,
                    num_groups=groups,
                    bytes_per_device=num_bytes,
                    trip_count=trip_count,
                    is_trip_count_known=is_known,
                    count=count,
                    op_name=instruction.string("op_name"),
                    source=module.source(instruction),
                )
            continue
        if instruction.opcode in _FINISHES:
            continue
        called = list(instruction.called())
        if instruction.opcode == "while":
            trips = known_trip_count(module, instruction)
            times = 1 if trips is None else trips
            for _, name in called:
                yield from _walk(
                    module,
                    mesh,
                    name,
                    trip_count * times,
                    is_known and trips is not None,
                    count * times,
                )
            continue
        share = count / len(called) if instruction.opcode == "conditional" and called else count
        for _, name in called:
            yield from _walk(module, mesh, name, trip_count, is_known, share)


def _collective(
    module: HloModule,
    mesh: Mesh | None,
    instructions: dict[str, Instruction],
    instruction: Instruction,
    kind: str,
) -> tuple[tuple[str, ...] | None, int, int, int] | None:
    """Axes, group size, number of groups, bytes; None where nothing moves."""
    groups = parse_groups(instruction.attributes, module.num_devices)
    size = max(map(len, groups), default=1)
    if size == 1:
        return None
    num_bytes = sum(instructions[name].num_bytes for name in instruction.operands)
    if kind == "all-gather":
        num_bytes *= size
    if mesh is None:
        return None, size, len(groups), num_bytes
    if kind == "collective-permute":
        axes: tuple[AxisRef, ...] | None = crossed_axes(instruction.attributes, mesh)
        size = math.prod(axis.size_on(mesh) for axis in axes or ())
        return _names(axes), size, module.num_devices // size, num_bytes
    axes = spanned_axes(groups, mesh)
    return _names(axes), size, len(groups), num_bytes


def _names(axes: tuple[AxisRef, ...] | None) -> tuple[str, ...] | None:
    return None if axes is None else tuple(map(_axis_name, axes))


def _axis_name(axis: AxisRef) -> str:
    return axis.name if axis.size is None else f"{axis.name}:({axis.pre_size}){axis.size}"


def known_trip_count(module: HloModule, loop: Instruction) -> int | None:
    """What the compiler noted, else the bound of a condition that counts up from 0."""
    known = _KNOWN_TRIP_COUNT.search(loop.attributes)
    if known is not None:
        return int(known[1])
    condition = next((name for key, name in loop.called() if key == "condition"), "")
    instructions = [*_with_called(module, condition)]
    compares = [i for i in instructions if i.opcode == "compare"]
    bounds = [i for i in instructions if i.opcode == "constant" and "[]" in i.type_text]
    if len(compares) != 1 or len(bounds) != 1 or "direction=LT" not in compares[0].attributes:
        return None
    value = bounds[0].operands[0]
    return int(value) if value.isdigit() else None


def _with_called(module: HloModule, computation: str) -> Iterator[Instruction]:
    for instruction in module.computations.get(computation, {}).values():
        yield instruction
        for _, name in instruction.called():
            yield from _with_called(module, name)
