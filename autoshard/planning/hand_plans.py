"""Plans someone would write by hand, priced like ours: what the report compares with.

Each is a sharding for every argument; what it means for the rest of the program is what Shardy's
propagation makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autoshard.candidates.op_candidates import read_pins
from autoshard.errors import ShardingError
from autoshard.graph.program import Graph
from autoshard.layouts import Layout, MeshParts, Parts
from autoshard.planning.pricing import price_layouts
from autoshard.planning.searches import SolveOptions
from autoshard.planning.solution import Solution
from autoshard.planning.tensor_parallel import shared_arguments, tensor_parallel
from autoshard.plans.plan import Baseline
from autoshard.sharding import Sharding
from autoshard.wishes.ties import constrained_arguments

Propagate = Callable[[Sequence[Sharding | None], Sequence[Sharding | None]], Mapping[str, Sharding]]

BATCH_DIM = 0
HAND_PLANS = ("replicated", "data parallel", "fsdp", "megatron")
MODEL_AXES = ("model", "tensor", "tp")
"""Names of the mesh axis that a Megatron plan cuts weights by; it is the last one where none is."""


def hand_plans(
    graph: Graph, parts: MeshParts, carried: Sequence[tuple[int, int]]
) -> dict[str, tuple[Layout, ...]]:
    """Argument layouts of replicated, data-parallel, fully sharded and Megatron plans.

    The arguments that a step gives back (its state) count as parameters, all others as a batch
    whose first dimension is cut. Where none is given back, those are parameters that the examples
    of the batch share.

    Args:
        graph: The program.
        parts: The mesh parts of the plan compared with.
        carried: Pairs of an argument and the result that replaces it.

    Returns:
        By name; without Megatron where the program has nothing to cut so.
    """
    state = {argument for argument, _ in carried} or shared_arguments(graph)
    shapes = [graph.values[op.results[0]].shape for op in graph.arguments]
    everything = tuple(range(len(parts.axes)))
    whole = [((),) * len(shape) for shape in shapes]
    batch = [
        layout if i in state else _cut(parts, shape, everything, BATCH_DIM)
        for i, (layout, shape) in enumerate(zip(whole, shapes, strict=True))
    ]
    sharded = [
        _cut(parts, shape, everything, _largest_divisible(parts, shape)) if i in state else layout
        for i, (layout, shape) in enumerate(zip(batch, shapes, strict=True))
    ]
    plans: dict[str, Sequence[Layout]] = {
        "replicated": whole,
        "data parallel": batch,
        "fsdp": sharded,
    }
    columns_then_rows = _megatron(graph, parts, state)
    if columns_then_rows is not None:
        plans["megatron"] = columns_then_rows
    return {name: tuple(layouts) for name, layouts in plans.items()}


def _megatron(graph: Graph, parts: MeshParts, state: set[int]) -> list[Layout] | None:
    """Weights cut by columns, then rows over the model axis; the batch over all others."""
    if not parts.axes:
        return None
    axis = next((name for name in MODEL_AXES if name in parts.axes), parts.axes[-1])
    model = parts.parts_by_axis[axis]
    found = tensor_parallel(graph, state, parts.num_shards(model))
    if found is None:
        return None
    others = tuple(part for part in range(len(parts.axes)) if part not in model)
    layouts = []
    for op in graph.arguments:
        value = op.results[0]
        shape, classes = graph.values[value].shape, found.classes[value]
        layout: Layout = ((),) * len(shape)
        for axes, wanted in ((others, found.batch), (model, found.cut)):
            dim = next((d for d, own in enumerate(classes) if own in wanted), None)
            if dim is not None:
                cut = _cut(parts, shape, axes, dim)
                layout = tuple(a or b for a, b in zip(layout, cut, strict=True))
        layouts.append(layout)
    return layouts


def hand_baselines(
    solution: Solution,
    propagate: Propagate,
    budget: int | None,
    options: SolveOptions,
) -> tuple[Baseline, ...]:
    """Price the hand plans of a program in its own planning problem.

    Args:
        solution: Our plan. Arguments whose sharding the user fixed, or that must be sharded like
            what the user fixed, keep theirs.
        propagate: Shardings of all values from those of arguments and results.
        budget: Bytes per device allowed, or None.
        options: For the small solves.

    Returns:
        Without the plans that contradict what was asked.
    """
    carried = solution.encoder.wishes.alike
    found = []
    for name, arguments in _plans_for(solution).items():
        layouts = _spread(solution, _with_fixed(solution, arguments), carried, propagate)
        priced = price_layouts(solution, layouts, replace(options, backend="auto"))
        if priced is None:
            continue
        peak = priced.peak_bytes
        found.append(
            Baseline(
                name=name,
                seconds=priced.estimate.blocking_seconds,
                collective_bytes=priced.estimate.collective_bytes,
                peak_bytes=peak,
                fits=budget is None or peak <= budget,
                overlapped_seconds=priced.overlapped_seconds,
            )
        )
    return tuple(found)


def hand_plan_notes(solution: Solution, baselines: Sequence[Baseline]) -> tuple[str, ...]:
    """What to tell of the hand plans that were not priced; nothing where all were."""
    priced = {baseline.name for baseline in baselines}
    named = _plans_for(solution)
    missing = [name for name in named if name not in priced]
    notes = []
    if missing:
        names = ", ".join(missing)
        notes.append(f"not possible under what was asked, and so not compared with: {names}")
    if "megatron" not in named:
        notes.append(
            "not compared with megatron: the program has no parameters that a product makes columns"
            " of and the next one sums up, in a size that the model axis divides"
        )
    return tuple(notes)


def _plans_for(solution: Solution) -> dict[str, tuple[Layout, ...]]:
    return hand_plans(solution.graph, solution.encoded.parts, solution.encoder.wishes.alike)


def _with_fixed(solution: Solution, arguments: Sequence[Layout]) -> list[Layout]:
    fixed = _fixed_ops(solution)
    return [
        solution.decoded.layouts[op.results[0]] if op.index in fixed else layout
        for layout, op in zip(arguments, solution.graph.arguments, strict=True)
    ]


def _fixed_ops(solution: Solution) -> set[int]:
    """Ops whose tensors the user fixed, and those that must end like one of them."""
    graph, wishes = solution.graph, solution.encoder.wishes
    alike = [
        *({graph.arguments[a].index, graph.results[r].index} for a, r in wishes.alike),
        *({op for op, _ in wish.members} for wish in wishes.groups),
        *({graph.values[value].op for value in group} for group in graph.groups),
        *(
            {argument.index, asked.index}
            for argument, asked in constrained_arguments(graph, wishes)
        ),
    ]
    fixed = set(read_pins(graph, solution.encoded.parts, wishes))
    while any(not fixed.isdisjoint(ops) and not ops <= fixed for ops in alike):
        fixed.update(*(ops for ops in alike if not fixed.isdisjoint(ops)))
    return fixed


def _spread(
    solution: Solution,
    arguments: Sequence[Layout],
    carried: Sequence[tuple[int, int]],
    propagate: Propagate,
) -> list[Layout | None]:
    """Layouts of all values under argument layouts."""
    graph, parts = solution.graph, solution.encoded.parts
    outputs: list[Sharding | None] = [None] * len(graph.results)
    for argument, result in carried:
        outputs[result] = parts.to_sharding(arguments[argument])
    shardings = propagate([parts.to_sharding(layout) for layout in arguments], outputs)
    layouts: list[Layout | None] = [None] * len(graph.values)
    for op, layout in zip(graph.arguments, arguments, strict=True):
        layouts[op.results[0]] = layout
    for path, sharding in shardings.items():
        value = graph.value_by_path.get(path)
        if value is None or layouts[value] is not None:
            continue
        try:
            layouts[value] = parts.to_layout(sharding)
        except ShardingError:  # a part of an axis that this plan keeps in one piece
            continue
    return layouts


def _cut(parts: MeshParts, shape: tuple[int, ...], axes: Parts, dim: int) -> Layout:
    """A tensor cut along one dimension by as many parts as divide it."""
    layout: list[Parts] = [()] * len(shape)
    if dim < len(shape):
        for part in axes:
            if shape[dim] % parts.num_shards((*layout[dim], part)) == 0:
                layout[dim] = (*layout[dim], part)
    return tuple(layout)


def _largest_divisible(parts: MeshParts, shape: tuple[int, ...]) -> int:
    """The dimension that the whole mesh divides and that is largest; else simply the largest."""
    total = parts.mesh.num_devices
    ranked = sorted(range(len(shape)), key=lambda d: (shape[d] % total != 0, -shape[d]))
    return ranked[0] if ranked else 0
