"""Gradients of weights that take more than they let go of: a TPU makes them when they are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.graph.buffers import Buffers
from autoshard.graph.dataflow import trace_back
from autoshard.graph.program import Graph, Op, OpKind
from autoshard.graph.run_late import is_for_updates
from autoshard.lowering.heap_simulator import allocated_bytes
from autoshard.lowering.live_ranges import LiveRange, is_argument, value_of


def made_when_read(
    encoded: Encoded, decoded: Decoded, buffers: Buffers, ranges: Sequence[LiveRange]
) -> list[LiveRange]:
    """The same live ranges, where gradients that only updates read are made with these.

    So are those that take more in device memory than is let go of when they are made. What would
    be let go of is held until then. If more is held so when most is, all are made at once.
    """
    at_once = list(ranges)
    if not buffers.moved_at:
        return at_once

    def peak(held: Sequence[LiveRange]) -> int:
        spans = ((o.start, o.stop, o.num_bytes) for o in held if not is_argument(encoded, o))
        return allocated_bytes(spans, len(encoded.graph.ops), is_heap=True)

    return min(at_once, _made_late(encoded, decoded, buffers, at_once), key=peak)


def _made_late(
    encoded: Encoded, decoded: Decoded, buffers: Buffers, ranges: Sequence[LiveRange]
) -> list[LiveRange]:
    held = list(ranges)
    places: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
    for place, one in enumerate(held):
        if not is_argument(encoded, one):
            value, is_copy = value_of(encoded, one)
            places[value if is_copy else buffers.owner[value], is_copy].append(place)
    for index in sorted(buffers.moved_at, reverse=True):
        op = encoded.graph.ops[index]
        found = places.get((buffers.owner[op.results[0]], False))
        if not found or not is_for_updates(encoded.graph, buffers.updates, op.results[0]):
            continue
        if decoded.candidates[index].streamed is not None:
            continue
        place = max(found, key=lambda place: held[place].stop - held[place].start)
        made = held[place]
        read = _read_with(encoded.graph, buffers, op)
        keys = {key for value in read for key in ((buffers.owner[value], False), (value, True))}
        let_go = [
            place
            for key in keys
            for place in places.get(key, ())
            if index <= held[place].stop <= made.start + 1
        ]
        if made.num_bytes > sum(held[place].num_bytes for place in let_go):
            held[place] = made._replace(start=max(made.start, made.stop - 1))
            for other in let_go:
                held[other] = held[other]._replace(stop=made.stop)
    return held


def _read_with(graph: Graph, buffers: Buffers, op: Op) -> set[int]:
    """What an op reads, and what is read by those computed with it."""

    def passes(maker: Op, value: int) -> bool:
        is_computed = maker.kind in (OpKind.COMPUTE, OpKind.CONSTRAINT)
        return is_computed and not buffers.is_stored[value]

    met = trace_back(graph, op.operands, passes)
    return {*met.inner, *met.frontier}
