"""Transfers between the memory of a device and that of its host that nothing else runs beside."""

from __future__ import annotations

from autoshard.graph.program import Graph, Op


def in_place_transfers(graph: Graph) -> frozenset[int]:
    """Indices of the transfers of loops whose parts go back to where they came from.

    No part comes before the last one left, as both are in one buffer; all others run a run of the
    loop ahead or behind.

    Source: updates of states in host memory, by libtpu 0.0.52 for a v5e.
    """
    sliced: dict[int, set[int]] = {}
    written: dict[int, set[int]] = {}
    for op in graph.ops:
        if not graph.on_host.isdisjoint(op.results) and graph.is_in_loop(op.region):
            stacks = {"dynamic_slice": sliced, "dynamic_update_slice": written}.get(op.name)
            if stacks is not None:
                stacks.setdefault(op.region, set()).add(op.operands[0])
    regions = {
        region for region in sliced if not sliced[region].isdisjoint(written.get(region, ()))
    }
    return frozenset(op.index for op in graph.ops if op.region in regions and graph.is_transfer(op))


def stays(graph: Graph, op: Op) -> bool:
    """True of an op that brings a value to the memory in which it is."""
    return bool(op.memory_kind) and not graph.is_transfer(op)
