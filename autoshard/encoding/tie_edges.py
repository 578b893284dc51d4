"""Ties as edges of the choice problem: tensors that must end sharded alike."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from autoshard.candidates.candidate import Candidate
from autoshard.candidates.op_candidates import place_of
from autoshard.graph.program import Graph, Op, OpKind
from autoshard.sharding import format_sharding
from autoshard.wishes.pinned import Pin
from autoshard.wishes.ties import Tie, TiedTensor, constrained_arguments, refuse_clashes, unequal
from autoshard.wishes.wishes import Wishes
from solvers import FORBIDDEN, Edge

_COPIES = "the copies of an unrolled loop body"


@dataclass(frozen=True, slots=True)
class TieEdges:
    """Builds the edges that keep tensors alike.

    Args:
        pins: By op and value, the sharding the user asked for.
    """

    graph: Graph
    wishes: Wishes
    candidates: Mapping[int, tuple[Candidate, ...]]
    node_by_op: Mapping[int, int]
    pins: Mapping[int, Mapping[int, Pin]]
    _ends: dict[tuple[int, bool, int], TiedTensor] = field(default_factory=dict)

    def make(self) -> list[Edge]:
        """An edge for each tie between two nodes.

        Raises:
            ConstraintError: Tensors tied together have no sharding in common.
        """
        ties = [
            *self._in_groups(),
            *self._read_by_copies(),
            *self._donated(),
            *self._wished(),
            *self._constrained(),
        ]
        refuse_clashes(ties)
        costs = functools.cache(partial(unequal, cost=FORBIDDEN))  # equal layers share them
        return [
            Edge(a.node, b.node, costs(a.layouts, b.layouts))
            for a, b in ((tie.first, tie.second) for tie in ties)
            if a.node != b.node
        ]

    def _in_groups(self) -> Iterator[Tie]:
        for group in self.graph.groups:
            yield from self._chain(
                ((self.graph.maker(v), v) for v in group), "one shard_alike group"
            )

    def _read_by_copies(self) -> Iterator[Tie]:
        """Reads of what an unrolled body computes in all copies: a constraint reaches them all."""
        for group in self.graph.groups:
            readers: dict[tuple[str, str, int], list[Op]] = {}
            for value in group:
                for op in (self.graph.ops[index] for index in self.graph.consumers[value]):
                    if op.kind is OpKind.COMPUTE and op.index in self.node_by_op:
                        for place in (i for i, read in enumerate(op.operands) if read == value):
                            readers.setdefault((op.equation, op.name, place), []).append(op)
            for (_, _, place), ops in readers.items():
                if len(ops) == len(group):
                    yield from self._alike([self._read(op, place) for op in ops], _COPIES)

    def _donated(self) -> Iterator[Tie]:
        reason = "an argument given up (donated) and the result that replaces it"
        arguments, results = self.graph.arguments, self.graph.results
        for argument, result in self.wishes.alike:
            u, v = arguments[argument], results[result]
            yield from self._chain(((u, u.results[0]), (v, v.operands[0])), reason)

    def _wished(self) -> Iterator[Tie]:
        for wish in self.wishes.groups:
            members = ((self.graph.ops[op], value) for op, value in wish.members)
            yield from self._chain(members, wish.said)

    def _constrained(self) -> Iterator[Tie]:
        for u, v in constrained_arguments(self.graph, self.wishes):
            name = self.graph.values[u.results[0]].name
            reason = f"the sharding constraint that alone reads {name}"
            yield from self._alike([self._end(one, one.results[0]) for one in (u, v)], reason)

    def _chain(self, members: Iterable[tuple[Op, int]], reason: str) -> Iterator[Tie]:
        """Ties each to the next, of those that are decided."""
        held = [self._end(op, value) for op, value in members if op.index in self.node_by_op]
        return (Tie(a, b, reason) for a, b in pairwise(held))

    def _alike(self, ends: Sequence[TiedTensor], reason: str) -> Iterator[Tie]:
        """Likewise, of tensors that may be sharded alike: not on another mesh, say."""
        if set(ends[0].layouts).intersection(*(end.layouts for end in ends[1:])):
            yield from (Tie(a, b, reason) for a, b in pairwise(ends))

    def _read(self, op: Op, place: int) -> TiedTensor:
        """An operand as an op reads it."""
        layouts = tuple(candidate.operands[place] for candidate in self.candidates[op.index])
        return TiedTensor(self.node_by_op[op.index], layouts, self._label(op, op.operands[place]))

    def _end(self, op: Op, value: int) -> TiedTensor:
        """A value as an op has it; one object for each."""
        key = (op.index, bool(op.results), place_of(op, value))
        if key not in self._ends:
            self._ends[key] = TiedTensor(
                self.node_by_op[op.index],
                tuple(c.side(is_result=key[1])[key[2]] for c in self.candidates[op.index]),
                self._label(op, value),
                is_asked=value in self.pins.get(op.index, {}),
            )
        return self._ends[key]

    def _label(self, op: Op, value: int) -> str:
        pin = self.pins.get(op.index, {}).get(value)
        if pin is not None:
            return f"{pin.where} is asked to be {format_sharding(pin.sharding)}"
        found = self.graph.values[value]
        name = found.name or f"{op.name} at {op.source or 'unknown line'}"
        count = len(self.candidates[op.index])
        return f"{name}: {found.type_text} can be sharded in {count} ways"
