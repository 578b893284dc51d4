"""Until when values are read, by ops that compute what lies between too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from autoshard.graph.program import Graph, Op, OpClass, OpKind, Region


def last_uses(
    graph: Graph,
    stored: Sequence[bool],
    again: Set[int],
    writing: Set[int],
    run_at: Mapping[int, int],
    least_part: int,
) -> list[int]:
    """Per value, the time after which it is not read.

    A value that is not stored keeps what it is computed from until its own last reader is run. A
    product keeps that no longer than it runs itself: what follows it in its fusion runs with it.

    Args:
        graph: The program.
        stored: Per value, whether it has a buffer.
        again: Values that are written for gathers alone: all else computes them.
        writing: Products that write something in their place.
        run_at: By op index, when ops run that do not in program order.
        least_part: As `FusionPolicy.min_concatenated_part`.
    """
    times = [run_at.get(op.index, op.index) for op in graph.ops]
    last = _read_last(graph, _read_by_parts(graph, least_part), times)
    gathered = {value: _gathered_last(graph, value, times) + 1 for value in again}
    for op in reversed(graph.ops):
        for result in op.results:
            if op.index in writing and not stored[result]:
                last[result] = times[op.index] + 1
            if not stored[result] or result in again:
                for value in op.operands:
                    last[value] = max(last[value], last[result])
            last[result] = gathered.get(result, last[result])
    return last


def _gathered_last(graph: Graph, value: int, times: Sequence[int]) -> int:
    """When the last gather that reads a value is run."""
    readers = graph.consumers[value]
    return max(times[index] for index in readers if graph.ops[index].op_class is OpClass.GATHER)


def loop_of(graph: Graph, join: Op) -> Region | None:
    """The loop whose carry `join` is; None of other joins."""
    if join.name != "while":
        return None
    for region in graph.regions:
        if region.kind == "loop" and region.parent == join.region and region.start > join.index:
            return region
    return None


def carry_stop(graph: Graph, join: Op) -> int:
    """End of the loop whose carry `join` is; its own next time for other joins."""
    loop = loop_of(graph, join)
    return loop.stop if loop else join.index + 1


def _read_last(graph: Graph, by_parts: Set[tuple[int, int]], times: Sequence[int]) -> list[int]:
    """Per value, when the last op that has it for an operand is run."""
    last = [times[value.op] + 1 for value in graph.values]
    stops = [max(times[one.start : one.stop], default=0) + 1 for one in graph.regions]
    for op in reversed(graph.ops):
        for value in op.results:
            for index in graph.consumers[value]:
                used = _read_stop(graph, value, graph.ops[index], times, stops)
                for read in op.operands if (index, value) in by_parts else (value,):
                    last[read] = max(last[read], used)
    return last


def _read_stop(
    graph: Graph, value: int, reader: Op, times: Sequence[int], stops: Sequence[int]
) -> int:
    """When a read is over: a loop reads what comes from outside until its end.

    Args:
        graph: The program.
        value: That is read.
        reader: The op that does.
        times: When each op is run.
        stops: When each region is over.
    """
    if reader.kind is OpKind.RESULT:
        return len(graph.ops)
    if reader.name == "while" and value in reader.operands[1:]:
        return times[graph.values[value].op] + 1  # the body gives it back
    if reader.name == "while" and len(reader.operands) > 1:
        return times[reader.index]  # the carry takes the buffer over
    home = graph.maker(value).region
    time = times[reader.index] + 1
    region = reader.region
    while region >= 0 and region != home:
        if graph.regions[region].kind == "loop":
            time = max(time, stops[region])
        region = graph.regions[region].parent
    return time


def _read_by_parts(graph: Graph, least_part: int) -> Set[tuple[int, int]]:
    """Joined tensors of which matrix products read the parts: by op index and value.

    They run along none of these, but make as many rows or columns as all parts have.
    """
    found: set[tuple[int, int]] = set()
    products = [op for op in graph.ops if op.op_class is OpClass.MATMUL and op.rule is not None]
    for op in products if least_part else []:
        assert op.rule is not None
        for value, dims in zip(op.operands, op.rule.operands, strict=True):
            joined = _joined_dim(graph, graph.maker(value), least_part)
            if joined is not None and op.rule.reduction.isdisjoint(dims[joined]):
                found.add((op.index, value))
    return found


def _joined_dim(graph: Graph, op: Op, least: int) -> int | None:
    """Along which dimension an op puts tensors together, all of a multiple of so many elements."""
    if op.name != "concatenate" or op.kind is not OpKind.COMPUTE:
        return None
    whole = graph.values[op.results[0]].shape
    parts = [graph.values[value].shape for value in op.operands]
    for dim, size in enumerate(whole):
        if any(part[dim] != size for part in parts):
            return dim if all(part[dim] % least == 0 for part in parts) else None
    return None
