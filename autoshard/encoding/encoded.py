"""A planning problem ready to solve, and its answer read back as layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeAlias

from autoshard.candidates.candidate import Candidate
from autoshard.costing.convert_motion import ReadBits
from autoshard.encoding.all_reduce_motion import AllReduceMotion
from autoshard.encoding.hidden_communication import NOTHING_HIDDEN, Hidden
from autoshard.encoding.shared_reads import SharedRead
from autoshard.graph.program import Graph, Op, OpKind
from autoshard.layouts import Layout, MeshParts
from autoshard.reshard import ReshardTable
from solvers import NodeMemory, Problem

TableKey: TypeAlias = tuple[tuple[int, ...], int, int]
"""Of a table of reshards: shape, bits of an element as it lies, bits as it is sent."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A planning problem ready to solve, and what is needed to read its answer."""

    problem: Problem
    graph: Graph
    parts: MeshParts
    ops: tuple[int, ...]  # per node, its op; nodes of shared reads come after these
    candidates: tuple[tuple[Candidate, ...], ...]  # per node of an op
    tables: Mapping[TableKey, ReshardTable]
    node_by_op: Mapping[int, int]
    read_bits: ReadBits
    reads: tuple[SharedRead, ...] = ()  # per node after those of ops
    all_reduces: AllReduceMotion = field(default_factory=AllReduceMotion)
    hidden: Hidden = NOTHING_HIDDEN
    edge_by_read: Mapping[tuple[int, int], int] = field(default_factory=dict)
    edge_by_shared_read: Mapping[tuple[int, int], int] = field(default_factory=dict)
    uncorrected: Problem | None = None  # where `problem` is corrected by what was compiled

    def table(self, value: int, bits: int) -> ReshardTable:
        """Reshards of a value, with so many bits of an element sent."""
        found = self.graph.values[value]
        return self.tables[found.shape, found.bits, bits]

    def has_choices_of(self, other: Encoded) -> bool:
        """The choices of the two stand for the same candidates, whatever these cost."""
        same = self.ops == other.ops and self.reads == other.reads
        return same and self.candidates == other.candidates

    def is_argument(self, term: NodeMemory) -> bool:
        """True where it is what an argument takes itself, which is there from the start."""
        return self.maker(term.node).kind is OpKind.ARGUMENT and term.start == 0

    def maker(self, node: int) -> Op:
        """The op of a node; of a shared read, the one that makes the value."""
        if node < len(self.ops):
            return self.graph.ops[self.ops[node]]
        value = self.reads[node - len(self.ops)].value
        return self.graph.maker(value)


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """The chosen candidate of every op, and the layout of every value."""

    candidates: Mapping[int, Candidate]  # by op index
    layouts: tuple[Layout, ...]  # by value index
    shared: Mapping[tuple[int, int], Layout] = field(default_factory=dict)
    """By op index and operand position, the layout that readers of one value share a copy in."""


def decode(encoded: Encoded, choices: Sequence[int]) -> Decoded:
    """Read a solver's choices back.

    Values that every device can make itself follow their readers, as far as those agree: what one
    reader wants cut further it cuts for itself.
    """
    graph = encoded.graph
    chosen = encoded.all_reduces.as_run(
        {
            op: encoded.candidates[node][choice]
            for node, (op, choice) in enumerate(zip(encoded.ops, choices, strict=False))
        }
    )
    copies = zip(encoded.reads, choices[len(encoded.ops) :], strict=True)
    shared = {key: read.layouts[choice] for read, choice in copies for key in read.reads}
    layouts: list[Layout | None] = [None] * len(graph.values)
    for op in graph.ops:
        if op.index in chosen:
            for value, layout in zip(op.results, chosen[op.index].results, strict=True):
                layouts[value] = layout
    for op in reversed(graph.ops):
        wanted = chosen[op.index].operands if op.index in chosen else None
        if op.kind is OpKind.FREE and op.results:  # made piece by piece, from pieces
            made = layouts[op.results[0]]
            shape = graph.values[op.results[0]].shape
            same = all(graph.values[value].shape == shape for value in op.operands)
            wanted = (made,) * len(op.operands) if made is not None and same else None
        for position, value in enumerate(op.operands):
            if wanted is not None and graph.values[value].op not in chosen:
                layouts[value] = _common(layouts[value], wanted[position])
    final = tuple(
        layout if layout is not None else ((),) * len(value.shape)
        for layout, value in zip(layouts, graph.values, strict=True)
    )
    return Decoded(chosen, final, shared)


def _common(layout: Layout | None, wanted: Layout) -> Layout:
    """What two layouts cut alike, from the major end of every dimension on."""
    if layout is None or layout == wanted:
        return wanted
    return tuple(
        tuple(a for a, b in takewhile(lambda pair: pair[0] == pair[1], zip(*dims, strict=False)))
        for dims in zip(layout, wanted, strict=True)
    )
