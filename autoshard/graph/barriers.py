"""Barriers: what is computed from any of their results waits for all of their operands."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from autoshard.graph.program import Graph, Op

BARRIER = "optimization_barrier"


def barriers(graph: Graph) -> Iterator[tuple[Op, ...]]:
    """The ops of each barrier, one an operand, which stand side by side in the program."""
    for key, ops in groupby(graph.ops, lambda op: op.name == BARRIER and (op.region, op.equation)):
        if key:
            yield tuple(ops)
