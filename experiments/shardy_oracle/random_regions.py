"""Random programs of manual computations, sound and damaged, also nested."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoshard.sharding import (
    AxisRef,
    DimSharding,
    ManualComputation,
    ManualRegion,
    ManualShapes,
    Mesh,
    Sharding,
    canonicalize,
    format_manual_computation,
    format_mesh,
    format_sharding,
    manual_local_shape,
    num_shards,
    parse_mesh,
    resolve_mesh,
    verify_manual_computation,
    verify_sharding,
)
from autoshard.sharding.manual import Shape
from experiments.shardy_oracle.oracle import mlir_type
from experiments.shardy_oracle.random_shardings import damaged, sound_sharding

MESHES = {
    "mesh": parse_mesh('<["x"=4, "y"=2, "z"=2, "w"=1]>'),
    "same": parse_mesh('<["x"=4, "y"=2, "z"=2, "w"=1]>'),
    "other": parse_mesh('<["x"=2, "y"=2]>'),
    "turned": parse_mesh('<["y"=2, "x"=4, "z"=2, "w"=1]>'),
    "placed": parse_mesh('<["x"=2, "y"=2], device_ids=[3, 2, 1, 0]>'),
    "empty": Mesh(),
}
"""None of a single device: jaxlib reads past the end of its bare sharding, and crashes."""

BORDER_GARBLES = ("", " ", *', ? { } : "x" p1 [ ] < > = @mesh'.split())


@dataclass(frozen=True, slots=True)
class RegionCase:
    """A manual computation with the shapes at its border and what is inside."""

    computation: ManualComputation
    shapes: ManualShapes
    constraints: tuple[tuple[Sharding, tuple[int, ...]], ...] = ()
    nested: tuple[RegionCase, ...] = ()

    @property
    def region(self) -> ManualRegion:
        """What reading the case's program gives."""
        return ManualRegion(
            self.computation,
            tuple(sharding for sharding, _ in self.constraints),
            tuple(case.region for case in self.nested),
        )


def random_region(draw: random.Random, bound: Sequence[str] = (), depth: int = 0) -> RegionCase:
    """A sound manual computation on axes that none around it has bound."""
    mesh = MESHES["mesh"]
    free = [name for name in mesh.axis_names if name not in bound]
    manual_axes = tuple(name for name in free if draw.random() < 0.45)
    num_operands, num_results = draw.choice([(1, 1), (1, 1), (2, 1), (1, 2), (0, 1), (1, 0)])
    ins = [_border_value(mesh, bound, manual_axes, draw) for _ in range(num_operands)]
    outs = [_border_value(mesh, bound, manual_axes, draw) for _ in range(num_results)]
    inner = [*bound, *manual_axes]
    constraints = []
    for _ in range(draw.choice([0, 0, 1])):
        sharding, shape, _ = _border_value(mesh, inner, (), draw)
        if shape is not None and None not in shape:
            constraints.append((sharding, tuple(size or 0 for size in shape)))
    num_nested = draw.choice([0, 0, 1]) if depth < 2 else 0
    return RegionCase(
        ManualComputation(
            tuple(sharding for sharding, _, _ in ins),
            tuple(sharding for sharding, _, _ in outs),
            manual_axes,
        ),
        ManualShapes(
            operands=tuple(shape for _, shape, _ in ins),
            results=tuple(shape for _, shape, _ in outs),
            local_operands=tuple(local for _, _, local in ins),
            local_results=tuple(local for _, _, local in outs),
        ),
        tuple(constraints),
        tuple(random_region(draw, inner, depth + 1) for _ in range(num_nested)),
    )


def _border_value(
    mesh: Mesh, bound: Sequence[str], manual_axes: Sequence[str], draw: random.Random
) -> tuple[Sharding, Shape, Shape]:
    """A sharding that uses no bound axis, and the shapes outside and inside."""
    if draw.random() < 0.05:
        return Sharding(), None, None
    sharding = sound_sharding(mesh, draw.randrange(3), draw)

    def usable(axes: Sequence[AxisRef]) -> tuple[AxisRef, ...]:
        kept = (
            axis if axis.name not in manual_axes or draw.random() < 0.3 else AxisRef(axis.name)
            for axis in axes
            if axis.name not in bound
        )
        return tuple(sorted(dict.fromkeys(kept), key=lambda axis: axis.name not in manual_axes))

    seen: set[AxisRef] = set()
    dims = []
    for dim in sharding.dims:
        axes = tuple(axis for axis in usable(dim.axes) if axis not in seen)
        seen.update(axes)
        dims.append(DimSharding(axes, dim.is_open, dim.priority))
    sharding = canonicalize(Sharding(tuple(dims)), mesh)
    shape: list[int | None] = []
    for dim in sharding.dims:
        pieces = num_shards(dim, mesh)
        shape.append(None if draw.random() < 0.05 else pieces * draw.choice([1, 2, 3]))
    local = manual_local_shape(sharding, mesh, manual_axes, tuple(shape))
    return sharding, tuple(shape), local


def damaged_region(case: RegionCase, draw: random.Random) -> RegionCase:
    """The case with one thing changed, often for the worse, on some level."""
    if case.nested and draw.random() < 0.5:
        return replace(case, nested=(damaged_region(case.nested[0], draw), *case.nested[1:]))
    where = draw.randrange(4)
    if where == 0:
        return replace(case, computation=_damaged_axes(case.computation, draw))
    if where == 1:
        return replace(case, computation=_damaged_shardings(case.computation, draw))
    if where == 2 and case.constraints:
        sharding, shape = case.constraints[0]
        changed = (_damaged_sharding(sharding, draw), shape)
        return replace(case, constraints=(changed, *case.constraints[1:]))
    return replace(case, shapes=_damaged_shapes(case.shapes, draw))


def _damaged_axes(manual: ManualComputation, draw: random.Random) -> ManualComputation:
    names = manual.manual_axes
    name = draw.choice(["x", "y", "z", "w", "nowhere"])
    changed = draw.choice([(*names, name), (name, *names), names[::-1], names[1:], ()])
    return replace(manual, manual_axes=changed)


def _damaged_shardings(manual: ManualComputation, draw: random.Random) -> ManualComputation:
    kind = draw.choice(["in_shardings", "out_shardings"])
    shardings: list[Sharding] = list(getattr(manual, kind))
    if not shardings or draw.random() < 0.1:
        shardings.append(Sharding())
    elif draw.random() < 0.1:
        shardings.pop()
    else:
        index = draw.randrange(len(shardings))
        shardings[index] = _damaged_sharding(shardings[index], draw)
    changed: dict[str, Any] = {kind: tuple(shardings)}
    return replace(manual, **changed)


def _damaged_sharding(sharding: Sharding, draw: random.Random) -> Sharding:
    where = draw.randrange(4)
    if where == 0:
        return replace(sharding, mesh_name=draw.choice([*MESHES, "unknown"]))
    if where == 1:
        return replace(sharding, inlined_mesh=MESHES[draw.choice(list(MESHES))])
    if where == 2:
        dims = (DimSharding(dim.axes[::-1], dim.is_open, dim.priority) for dim in sharding.dims)
        return replace(sharding, dims=tuple(dims))
    return damaged(sharding, draw)


def _damaged_shapes(shapes: ManualShapes, draw: random.Random) -> ManualShapes:
    kind = draw.choice(["operands", "results", "local_operands", "local_results"])
    values: list[Shape] = list(getattr(shapes, kind))
    if not values or draw.random() < 0.1:
        values.append((4,))
    elif draw.random() < 0.1:
        values.pop()
    else:
        index = draw.randrange(len(values))
        shape = values[index] or ()
        size = draw.choice([1, 2, 3, 7, 16, None])
        values[index] = draw.choice([(size, *shape[1:]), (*shape, size), shape[:-1]])
    return replace(shapes, **{kind: tuple(values)})


def region_violations(
    case: RegionCase, meshes: Mapping[str, Mesh], bound: frozenset[str] = frozenset()
) -> list[str]:
    """What is wrong with a case on any level, as our verifiers see it."""
    violations = verify_manual_computation(
        case.computation, meshes, case.shapes, outer_manual_axes=bound
    )
    inner = bound | set(case.computation.manual_axes)
    for sharding, shape in case.constraints:
        mesh = resolve_mesh(sharding, meshes)
        violations += verify_sharding(sharding, mesh, shape, manual_axes=inner)
    for nested in case.nested:
        violations += region_violations(nested, meshes, inner)
    return violations


def module_text(case: RegionCase, border: str | None = None) -> str:
    """A program with the case in it; `border` takes the place of the outermost border's text."""
    lines = [format_mesh(mesh, name) for name, mesh in MESHES.items()]
    lines += ["func.func @f() {", *_lines(case, "v", border), "return", "}"]
    return "\n".join(lines) + "\n"


def _lines(case: RegionCase, prefix: str, border: str | None = None) -> list[str]:
    """The operation, with custom calls before it that make its operands."""
    shapes = case.shapes
    operands, lines = _made(shapes.operands, f"{prefix}_in")
    arguments = ", ".join(
        f"%{prefix}_arg{index}: {mlir_type(shape)}"
        for index, shape in enumerate(shapes.local_operands)
    )
    border = border or format_manual_computation(case.computation)
    results = f"%{prefix}_out:{len(shapes.results)} = " if shapes.results else ""
    lines.append(
        f"{results}sdy.manual_computation({', '.join(operands)}) {border} ({arguments}) {{"
    )
    for index, (sharding, shape) in enumerate(case.constraints):
        made, more = _made((shape,), f"{prefix}_free{index}")
        lines += more
        lines.append(
            f"%{prefix}_held{index} = sdy.sharding_constraint {made[0]} "
            f"{format_sharding(sharding)} : {mlir_type(shape)}"
        )
    for index, nested in enumerate(case.nested):
        lines += _lines(nested, f"{prefix}{index}")
    returned, more = _made(shapes.local_results, f"{prefix}_ret")
    lines += more
    types = ", ".join(map(mlir_type, shapes.local_results))
    lines.append(f"sdy.return {', '.join(returned)} : {types}" if returned else "sdy.return")
    lines.append(
        f"}} : ({', '.join(map(mlir_type, shapes.operands))}) -> "
        f"({', '.join(map(mlir_type, shapes.results))})"
    )
    return lines


def _made(shapes: Sequence[Shape], prefix: str) -> tuple[list[str], list[str]]:
    """Names of values with these shapes, and the lines that make them."""
    names = [f"%{prefix}{index}" for index in range(len(shapes))]
    lines = [
        f"{name} = stablehlo.custom_call @make() {{has_side_effect = true}} : () -> "
        f"{mlir_type(shape)}"
        for name, shape in zip(names, shapes, strict=True)
    ]
    return names, lines


def with_computation(case: RegionCase, computation: ManualComputation) -> RegionCase:
    """The case with the border that was read from its text."""
    return replace(case, computation=computation)
