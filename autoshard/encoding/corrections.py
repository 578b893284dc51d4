"""What compilers made of earlier plans, as costs and memory terms of the choices that caused it.

Ops and values are known by keys that the same program gives again: the path of their jaxpr
equation, the name of the op, and its number among the ops of that name there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.encoding.encoded import Encoded
from autoshard.encoding.node_costs import NodeCosts
from autoshard.encoding.picoseconds import PICOSECONDS, picoseconds
from autoshard.graph.program import Graph, Op, OpKind
from autoshard.layouts import Layout, MeshParts
from autoshard.sharding import Sharding
from solvers import FORBIDDEN, Edge, NodeMemory

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MOST_RATIO = 4.0
"""Of what an op or a class of ops takes over its price, and one over that, as far as it is expected
of candidates that were never compiled. A choice: one op that the model misses does not price out
all of its candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceCorrection:
    """Seconds that an op takes beside its price where it is cut in one way.

    Args:
        op: Its key.
        operands: Shardings it reads in.
        results: Shardings it makes.
        in_chunks: It is a collective matmul.
        seconds: Of one step, all runs; below zero where the price is too high.
        priced: Seconds of its kernels by the model, all runs.
        elsewhere: Of `seconds`, those that ops around it took more that are cut as in a faster
            plan: so do they where it is cut in a third way, as far as anybody knows.
    """

    op: str
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    in_chunks: bool = False
    seconds: float
    priced: float = 0.0
    elsewhere: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardCorrection:
    """Seconds that one reshard takes beside its price; below zero where the price is too high.

    Args:
        reader: Key of the op that reads the value.
        operand: Which of its operands the value is.
        before: Sharding that the value is made in.
        after: Sharding that it is read in.
        seconds: Of one step, all runs.
    """

    reader: str
    operand: int
    before: Sharding
    after: Sharding
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCorrection:
    """Bytes that a value takes beside those predicted, while it is live.

    Args:
        op: Key of the op that makes it.
        result: Which of its results it is.
        sharding: In which it is made.
        num_bytes: On one device.
    """

    op: str
    result: int
    sharding: Sharding
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrections:
    """What was learnt of one program from compiled plans.

    Args:
        choices: Of ops in the ways they were compiled in.
        reshards: Of reshards that were compiled.
        memory: Of values at compiled peaks.
        ratio_by_class: Seconds of all compiled ops of a class over their price: what candidates of
            ops that were never compiled are expected to take.
        num_ops: Of the program; 0 where nobody says.
        is_of_other_sizes: They were learnt at another batch or depth: an op takes as many times its
            price as it did there, where the program has as many ops.
    """

    choices: tuple[ChoiceCorrection, ...] = ()
    reshards: tuple[ReshardCorrection, ...] = ()
    memory: tuple[MemoryCorrection, ...] = ()
    ratio_by_class: Mapping[str, float] | None = None
    num_ops: int = 0
    is_of_other_sizes: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.choices or self.reshards or self.memory or self.ratio_by_class)


NO_CORRECTIONS = Corrections()


def op_keys(graph: Graph) -> tuple[str, ...]:
    """The key of every op, `7.jaxpr/38:dot_general`, with `#1` for the second of its name there."""
    seen: Counter[str] = Counter()
    found = []
    for op in graph.ops:
        name = f"{op.equation}:{op.name}"
        number = seen[name]
        seen[name] += 1
        found.append(f"{name}#{number}" if number else name)
    return tuple(found)


def corrected(encoded: Encoded, corrections: Corrections, node_costs: NodeCosts) -> Encoded:
    """The same problem with corrections in its costs and memory terms.

    Corrections of ops, shardings and candidates that it has not are left out.

    Args:
        encoded: The problem, corrected before or not.
        corrections: All that hold; those it had before are replaced.
        node_costs: What priced its ops.
    """
    plain = encoded.uncorrected or encoded.problem
    if corrections.is_empty:
        return replace(encoded, problem=plain, uncorrected=None)
    work = _Corrected(encoded, corrections, node_costs)
    is_exact = not corrections.is_of_other_sizes
    problem = replace(
        plain,
        node_costs=work.node_costs(plain.node_costs),
        edges=work.edges(plain.edges) if is_exact else plain.edges,
        node_memory=(*plain.node_memory, *(work.memory() if is_exact else ())),
    )
    return replace(encoded, problem=problem, uncorrected=plain)


class _Corrected:
    def __init__(self, encoded: Encoded, corrections: Corrections, prices: NodeCosts) -> None:
        self.encoded, self.corrections, self.prices = encoded, corrections, prices
        self.op_by_key = {key: op for op, key in enumerate(op_keys(encoded.graph))}
        self.ratios = corrections.ratio_by_class or {}
        self._computing_costs: dict[object, tuple[object, IntArray]] = {}
        self._shards: dict[int, list[object]] = {}  # by identity of candidates, which all live on

    def node_costs(self, plain: tuple[IntArray, ...]) -> tuple[IntArray, ...]:
        """Costs of what was compiled as compiled; of the rest by the ratio of its op or class."""
        costs = list(plain)
        observed: dict[int, list[ChoiceCorrection]] = {}
        for one in self.corrections.choices:
            node = self._node(one.op)
            if node is not None:
                observed.setdefault(node, []).append(one)
        for node, op_index in enumerate(self.encoded.ops):
            op, seen = self.encoded.graph.ops[op_index], observed.get(node, [])
            found = self._of_op(op, node, plain[node], seen)
            costs[node] = np.where(plain[node] >= FORBIDDEN, plain[node], found)
        return tuple(costs)

    def _of_op(
        self, op: Op, node: int, plain: IntArray, seen: Sequence[ChoiceCorrection]
    ) -> IntArray:
        if self.corrections.is_of_other_sizes:
            if self.corrections.num_ops != len(self.encoded.graph.ops):
                seen = ()
            priced = sum(one.priced for one in seen)
            more = sum(one.seconds for one in seen)
            return self._scaled(op, plain, 1 + more / priced if priced else None)
        candidates = self.encoded.candidates[node]
        found_in = [(_matching(self.encoded.parts, candidates, one), one) for one in seen]
        found_in = [(chosen, one) for chosen, one in found_in if chosen.any()]
        known = [(chosen, one.seconds) for chosen, one in found_in]
        ratio = None
        if known and op.kind is OpKind.COMPUTE:
            computing = self._computing(op, plain)
            priced = sum(int(computing[chosen].min()) for chosen, _ in known) / PICOSECONDS
            ratio = 1 + sum(seconds for _, seconds in known) / priced if priced else None
        found = self._scaled(op, plain, ratio)
        around = [one.elsewhere for _, one in found_in if one.elsewhere > 0]
        found = found + round(min(around, default=0.0) * PICOSECONDS)
        alike = [(self._alike(candidates, chosen), seconds) for chosen, seconds in known]
        for chosen, seconds in (*alike, *known):
            compiled = np.maximum(plain + round(seconds * PICOSECONDS), 0)
            found = np.where(chosen, compiled, found)
        return found

    def _alike(self, candidates: tuple[Candidate, ...], chosen: BoolArray) -> BoolArray:
        """bool[num_candidates]: those that cut all dimensions into as many shards as chosen ones.

        A device's part is the same whichever mesh axes cut it, and so are its kernels.
        """
        shards = self._shards.get(id(candidates))
        if shards is None:
            shards = self._shards[id(candidates)] = [
                (
                    c.streamed is not None,
                    [
                        list(map(self.encoded.parts.num_shards, layout))
                        for layout in (*c.operands, *c.results)
                    ],
                )
                for c in candidates
            ]
        wanted = [shards[place] for place in np.flatnonzero(chosen)]
        return np.array([one in wanted for one in shards])

    def _scaled(self, op: Op, plain: IntArray, ratio: float | None) -> IntArray:
        """Costs of candidates that were never compiled: the computing, not the collectives, scaled.

        Args:
            op: Theirs.
            plain: As priced.
            ratio: Of what those of the op that were compiled took to their price; None where none
                was, and the ratio of its class counts.
        """
        if op.kind is not OpKind.COMPUTE:
            return plain
        if ratio is None:
            ratio = self.ratios.get(op.op_class.value, 1.0)
        if ratio == 1.0:
            return plain
        more = (min(max(ratio, 1 / MOST_RATIO), MOST_RATIO) - 1.0) * self._computing(op, plain)
        scaled: IntArray = np.maximum(plain + np.rint(more).astype(np.int64), 0)
        return scaled

    def _computing(self, op: Op, plain: IntArray) -> IntArray:
        """int64[num_candidates]: the costs of an op without its collectives."""
        key = (self.prices.like(op), id(plain))
        known = self._computing_costs.get(key)
        if known is None:
            candidates = self.encoded.candidates[self.encoded.node_by_op[op.index]]
            sent = picoseconds(self.prices.reductions.seconds(op, candidates) * op.repeat)
            found = np.where(plain >= FORBIDDEN, 0, np.maximum(plain - sent, 0))
            known = self._computing_costs[key] = (plain, found)
        return known[1]

    def edges(self, plain: Sequence[Edge]) -> tuple[Edge, ...]:
        """The same edges, those of corrected reshards as compiled."""
        edges, parts = list(plain), self.encoded.parts
        for one in self.corrections.reshards:
            before, after = parts.find_layout(one.before), parts.find_layout(one.after)
            index = self._edge(one, after)
            if index is None or before is None or after is None:
                continue
            edge = edges[index]
            moved = np.outer(
                self._is_in(edge.u, before, one), self._is_in(edge.v, after, one, is_read=True)
            )
            compiled = np.maximum(edge.costs + round(one.seconds * PICOSECONDS), 0)
            is_corrected = moved & (edge.costs < FORBIDDEN)
            edges[index] = replace(edge, costs=np.where(is_corrected, compiled, edge.costs))
        return tuple(edges)

    def _edge(self, one: ReshardCorrection, after: Layout | None) -> int | None:
        """The edge that prices a reshard: of what several ops read, the one to their copy."""
        op = self.op_by_key.get(one.reader)
        if op is None:
            return None
        read = (op, one.operand)
        shared = self.encoded.edge_by_shared_read.get(read)
        if shared is not None:
            place = self.encoded.problem.edges[shared].v - len(self.encoded.ops)
            if after in self.encoded.reads[place].layouts:
                return shared
        return self.encoded.edge_by_read.get(read)

    def _is_in(
        self, node: int, layout: Layout, one: ReshardCorrection, *, is_read: bool = False
    ) -> BoolArray:
        """bool[num_choices]: the choices of a node in which the value of a reshard is in a layout.

        Args:
            node: What makes the value, its readers' copy, or what reads it.
            layout: The layout.
            one: The reshard.
            is_read: It is what reads it, or the copy.
        """
        if node >= len(self.encoded.ops):
            layouts = self.encoded.reads[node - len(self.encoded.ops)].layouts
            return np.array([have == layout for have in layouts])
        candidates = self.encoded.candidates[node]
        if is_read:
            return np.array([c.operands[one.operand] == layout for c in candidates])
        graph = self.encoded.graph
        value = graph.ops[self.op_by_key[one.reader]].operands[one.operand]
        place = graph.ops[self.encoded.ops[node]].results.index(value)
        return np.array([c.results[place] == layout for c in candidates])

    def memory(self) -> Iterator[NodeMemory]:
        """Bytes of each corrected value while it is live."""
        graph, parts = self.encoded.graph, self.encoded.parts
        for one in self.corrections.memory:
            node = self._node(one.op)
            layout = parts.find_layout(one.sharding)
            if node is None or layout is None:
                continue
            results = graph.ops[self.encoded.ops[node]].results
            if one.result >= len(results):
                continue
            start, stop = self.prices.facts.buffers.intervals[results[one.result]]
            held = [c.results[one.result] == layout for c in self.encoded.candidates[node]]
            usage = np.array(held, dtype=np.int64) * one.num_bytes
            yield NodeMemory(node, start, max(stop, start + 1), usage)

    def _node(self, key: str) -> int | None:
        op = self.op_by_key.get(key)
        return None if op is None else self.encoded.node_by_op.get(op)


def _matching(
    parts: MeshParts, candidates: tuple[Candidate, ...], one: ChoiceCorrection
) -> BoolArray:
    """bool[num_candidates]: the candidates that a correction is of."""
    operands = [parts.find_layout(sharding) for sharding in one.operands]
    results = [parts.find_layout(sharding) for sharding in one.results]
    return np.array(
        [
            list(c.operands) == operands
            and list(c.results) == results
            and (c.streamed is not None) == one.in_chunks
            for c in candidates
        ]
    )
