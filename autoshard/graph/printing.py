"""A graph as compact text, one op a line, for people and for small goldens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.graph.program import Graph, Op, OpKind, Region


def format_graph(graph: Graph, *, sources: bool = True) -> str:
    """Write a graph as text.

    `%3: f32[8, 16] = tanh %2` reads: value 3, of that type, is made by tanh from value 2. A
    region's ops are indented under a line that says what it is and how often it runs. After an op
    come its rule where that is more than aligned dimensions, the floating-point operations of one
    run, a written sharding, a note, and its source line.

    Args:
        graph: Any graph, sound or not.
        sources: Whether to end lines with the user's source lines.
    """
    lines = ["  " * line.depth + _full_text(graph, line, sources) for line in program_lines(graph)]
    lines += [f"alike: {_values(group)}" for group in graph.groups]
    if graph.donated:
        lines.append(f"donated: {', '.join(map(str, graph.donated))}")
    lines += [f"note: {note}" for note in graph.notes]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a program's text.

    Args:
        depth: Regions around it.
        text: What it does, without the source line.
        source: The user's source line, or "".
        op: The op it is for; None where it opens a region.
    """

    depth: int
    text: str
    source: str
    op: int | None


def program_lines(graph: Graph) -> Iterator[Line]:
    """The ops of a graph in program order, each region opened by a line of its own."""
    opening: dict[int, list[Region]] = {}
    depth = [0] * len(graph.regions)
    for region in graph.regions[1:]:
        depth[region.index] = depth[region.parent] + 1
        opening.setdefault(region.start, []).append(region)
    for index in range(len(graph.ops) + 1):
        for region in opening.get(index, ()):
            yield Line(depth[region.parent], _region_text(region), region.source, None)
        if index < len(graph.ops):
            op = graph.ops[index]
            yield Line(depth[op.region], _op_text(graph, op), op.source, index)


def _full_text(graph: Graph, line: Line, sources: bool) -> str:
    """A line with everything that is known of its op."""
    source = f"  @ {line.source}" if sources and line.source else ""
    if line.op is None:
        return f"{line.text}{source}:"
    op = graph.ops[line.op]
    text = line.text
    if op.pinned:
        text += f" {op.pinned}"
    if op.kind is OpKind.COMPUTE and op.rule is not None and not _is_aligned(op):
        text += f"  {op.rule}"
    if op.flops:
        text += f"  flops={op.flops:g}"
    if op.note:
        text += f"  ({op.note})"
    return text + source


def _region_text(region: Region) -> str:
    text: str = region.kind
    if region.kind == "loop":
        text += f" {region.trip_count:g} times" + ("" if region.is_trip_count_known else "?")
    elif region.kind == "branch":
        text += f" {region.trip_count:.3g} of the time"
    elif region.manual_axes:
        text += f" over {', '.join(region.manual_axes)}"
    return text


def _op_text(graph: Graph, op: Op) -> str:
    made = ", ".join(f"%{v}: {graph.values[v].type_text}" for v in op.results)
    head = f"{made} = " if made else ""
    if op.kind is OpKind.RESULT:
        head = "return "
    elif op.kind is OpKind.FREE:
        head += "free "
    text = f"{head}{op.name}"
    if op.kind is OpKind.ARGUMENT:
        text += f" {graph.values[op.results[0]].name}"
    if op.operands:
        text += f" {_values(op.operands)}"
    if op.kind is OpKind.ENTER_MANUAL:
        text += " enter"
    elif op.kind is OpKind.LEAVE_MANUAL:
        text += " leave"
    return text


def _values(values: tuple[int, ...]) -> str:
    return " ".join(f"%{value}" for value in values)


def _is_aligned(op: Op) -> bool:
    """True where the rule says no more than that all tensors are cut alike."""
    rule = op.rule
    assert rule is not None
    tensors = {*rule.operands, *rule.results}
    plain = tuple((factor,) for factor in range(len(rule.factor_sizes)))
    special = rule.reduction or rule.need_replication or rule.permutation
    return tensors <= {plain, ()} and not special
