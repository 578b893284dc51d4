"""Plans someone would write by hand: a sharding for every argument of a program."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoshard.errors import ShardingError
from autoshard.graph.dimension_classes import DimClasses, dimension_classes
from autoshard.graph.program import Graph
from autoshard.layouts import Layout, MeshParts, Parts
from autoshard.planning.tensor_parallel import examples_class, shared_arguments, tensor_parallel
from autoshard.sharding import Sharding

BATCH_DIM = 0
_KEY_WORDS = 4  # at most, of a random key: an argument of no examples
HAND_PLANS = ("replicated", "data parallel", "fsdp", "megatron")
MODEL_AXES = ("model", "tensor", "tp")
"""Names of the mesh axis that a Megatron plan cuts weights by; it is the last one where none is."""


def hand_plans(
    graph: Graph,
    parts: MeshParts,
    carried: Sequence[tuple[int, int]],
    annotated: Sequence[Sharding | None] = (),
) -> dict[str, tuple[Layout, ...]]:
    """Argument layouts of replicated, data-parallel, fully sharded and Megatron plans.

    The arguments that a step gives back (its state) count as parameters, all others as a batch
    that is cut along its examples, or its first dimension. What is given back and has a dimension
    of examples (a cache of decoding, environments of a rollout) is part of the batch. Where nothing
    else is given back, those are parameters that the examples share, if any are; where everything
    is given back and there are no products, everything is a batch.

    Args:
        graph: The program.
        parts: The mesh parts of the plan compared with.
        carried: Pairs of an argument and the result that replaces it.
        annotated: Shardings that arguments carry; the others are as in data parallel.

    Returns:
        By name; without Megatron where the program has nothing to cut so, and without the user's
        own (`yours`) where no argument carries a sharding.
    """
    classes = dimension_classes(graph)
    given_back = {argument for argument, _ in carried}
    state, examples = _parameters(graph, classes, given_back)
    shapes = [graph.values[op.results[0]].shape for op in graph.arguments]
    everything = tuple(range(len(parts.axes)))
    whole = [((),) * len(shape) for shape in shapes]
    batch = [
        layout if i in state else cut_along(parts, shape, everything, examples[i])
        for i, (layout, shape) in enumerate(zip(whole, shapes, strict=True))
    ]
    sharded = [
        cut_along(parts, shape, everything, _largest_divisible(parts, shape))
        if i in (state or given_back)
        else layout
        for i, (layout, shape) in enumerate(zip(batch, shapes, strict=True))
    ]
    plans: dict[str, Sequence[Layout]] = {
        "replicated": whole,
        "data parallel": batch,
        "fsdp": sharded,
    }
    columns_then_rows = _megatron(graph, classes, parts, state)
    if columns_then_rows is not None:
        plans["megatron"] = columns_then_rows
    if any(annotated):
        plans["yours"] = [
            _annotated_layout(parts, given) or layout
            for given, layout in zip(annotated, batch, strict=True)
        ]
    return {name: tuple(layouts) for name, layouts in plans.items()}


def _annotated_layout(parts: MeshParts, given: Sharding | None) -> Layout | None:
    if given is None or not given.is_fully_closed:
        return None
    try:
        return parts.to_layout(given)
    except ShardingError:  # a part of an axis that this plan keeps in one piece
        return None


def _parameters(
    graph: Graph, classes: DimClasses, given_back: set[int]
) -> tuple[set[int], list[int]]:
    """Positions of the parameters, and for each argument the dimension along which examples are."""
    arguments = [classes[op.results[0]] for op in graph.arguments]
    others = [position for position in range(len(arguments)) if position not in given_back]
    sizes = (math.prod(graph.values[graph.arguments[i].results[0]].shape) for i in others)
    holds_examples = any(size > _KEY_WORDS for size in sizes)
    if not holds_examples:  # all is given back, as by a simulation: parameters and examples
        others = list(range(len(arguments)))
    examples = examples_class(graph, classes, others)
    if examples is None and not holds_examples:
        return set(), [BATCH_DIM] * len(arguments)
    dims = [own.index(examples) if examples in own else BATCH_DIM for own in arguments]
    shared = {position for position in given_back if examples not in arguments[position]}
    return shared or shared_arguments(graph, classes) or given_back, dims


def _megatron(
    graph: Graph, classes: DimClasses, parts: MeshParts, state: set[int]
) -> list[Layout] | None:
    """Weights cut by columns, then rows over the model axis; the batch over all others."""
    if not parts.axes:
        return None
    axis = next((name for name in MODEL_AXES if name in parts.axes), parts.axes[-1])
    model = parts.parts_by_axis[axis]
    found = tensor_parallel(graph, classes, state, parts.num_shards(model))
    if found is None:
        return None
    others = tuple(part for part in range(len(parts.axes)) if part not in model)
    layouts = []
    for op in graph.arguments:
        value = op.results[0]
        shape, dims = graph.values[value].shape, found.classes[value]
        layout: Layout = ((),) * len(shape)
        for axes, wanted in ((others, found.batch), (model, found.cut)):
            dim = next((d for d, own in enumerate(dims) if own in wanted), None)
            if dim is not None:
                cut = cut_along(parts, shape, axes, dim)
                layout = tuple(a or b for a, b in zip(layout, cut, strict=True))
        layouts.append(layout)
    return layouts


def cut_along(parts: MeshParts, shape: tuple[int, ...], axes: Parts, dim: int) -> Layout:
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
