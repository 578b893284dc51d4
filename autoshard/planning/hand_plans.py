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
from autoshard.overlap.timeline import overlapped_seconds
from autoshard.planning.planner import Solution, SolveOptions, price_layouts
from autoshard.plans.plan import Baseline
from autoshard.sharding import Sharding
from autoshard.wishes.ties import constrained_arguments

Propagate = Callable[[Sequence[Sharding | None], Sequence[Sharding | None]], Mapping[str, Sharding]]

BATCH_DIM = 0
HAND_PLANS = ("replicated", "data parallel", "fsdp")


def hand_plans(
    graph: Graph, parts: MeshParts, carried: Sequence[tuple[int, int]]
) -> dict[str, tuple[Layout, ...]]:
    """Argument layouts of replicated, data-parallel and fully sharded plans.

    The arguments that a step gives back (its state) count as parameters, all others as a batch
    whose first dimension is cut.

    Args:
        graph: The program.
        parts: The mesh parts of the plan compared with.
        carried: Pairs of an argument and the result that replaces it.
    """
    state = {argument for argument, _ in carried}
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
    plans = (tuple(whole), tuple(batch), tuple(sharded))
    return dict(zip(HAND_PLANS, plans, strict=True))


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
    plans = hand_plans(solution.graph, solution.encoded.parts, carried)
    found = []
    for name, arguments in plans.items():
        layouts = _spread(solution, _with_fixed(solution, arguments), carried, propagate)
        priced = price_layouts(solution, layouts, replace(options, backend="auto"))
        if priced is None:
            continue
        account = priced.account
        peak = account.memory.peak_bytes
        found.append(
            Baseline(
                name=name,
                seconds=account.compute_seconds + account.communication_seconds,
                collective_bytes=sum(c.bytes_per_device * c.count for c in account.collectives),
                peak_bytes=peak,
                fits=budget is None or peak <= budget,
                overlapped_seconds=overlapped_seconds(
                    priced.encoder, priced.encoded, priced.decoded, account
                ),
            )
        )
    return tuple(found)


def impossible_note(baselines: Sequence[Baseline]) -> tuple[str, ...]:
    """What to tell of the hand plans that could not be priced; nothing where all were."""
    priced = {baseline.name for baseline in baselines}
    missing = [name for name in HAND_PLANS if name not in priced]
    if not missing:
        return ()
    return (f"not possible under what was asked, and so not compared with: {', '.join(missing)}",)


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
