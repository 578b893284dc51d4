"""Layouts of all values of a program under layouts of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Encoded
from autoshard.errors import ShardingError
from autoshard.graph.dimension_classes import dimension_classes
from autoshard.layouts import Layout, MeshParts, Parts
from autoshard.planning.hand_plans import cut_along
from autoshard.sharding import Sharding

Propagate = Callable[[Sequence[Sharding | None], Sequence[Sharding | None]], Mapping[str, Sharding]]
"""Shardings of all values, by path, from those of arguments and results."""


def spread(
    encoder: Encoder,
    encoded: Encoded,
    arguments: Sequence[Layout | None],
    propagate: Propagate,
) -> list[Layout | None]:
    """Layouts of all values under argument layouts."""
    graph, parts = encoder.graph, encoded.parts
    given = [None if layout is None else parts.to_sharding(layout) for layout in arguments]
    outputs: list[Sharding | None] = [None] * len(graph.results)
    for argument, result in encoder.wishes.alike:
        outputs[result] = given[argument]
    shardings = propagate(given, outputs)
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


def spread_by_class(
    encoder: Encoder, parts: MeshParts, arguments: Sequence[Layout | None]
) -> list[Layout | None]:
    """Layouts of all values: dimensions of one class are cut as in the first argument cut there."""
    graph = encoder.graph
    classes = dimension_classes(graph)
    cut: dict[int, Parts] = {}
    for op, layout in zip(graph.arguments, arguments, strict=True):
        for dim, own in enumerate(layout or ()):
            if own:
                cut.setdefault(classes[op.results[0]][dim], own)
    given = {op.results[0]: one for op, one in zip(graph.arguments, arguments, strict=True)}
    for argument, result in encoder.wishes.alike:
        given.setdefault(graph.results[result].operands[0], arguments[argument])

    def of(value: int) -> Layout | None:
        if value in given:
            return given[value]
        shape, dims = graph.values[value].shape, classes[value]
        dim = next((dim for dim, own in enumerate(dims) if own in cut), None)
        return ((),) * len(shape) if dim is None else cut_along(parts, shape, cut[dims[dim]], dim)

    return list(map(of, range(len(graph.values))))
