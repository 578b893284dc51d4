"""Live ranges where ops do not run in program order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoshard.encoding.copy_memory import SLICED
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.memory_tags import PARTIAL, ROWS, SUMMED
from autoshard.graph.buffers import in_order, read_stop
from autoshard.graph.program import Op, OpKind
from autoshard.lowering.live_ranges import LiveRange, is_argument, value_of
from autoshard.lowering.op_times import OpTimes
from solvers import EdgeMemory

_UNTIL_SUMMED = frozenset({PARTIAL, SUMMED, ROWS})


class IssuedRanges:
    """The live ranges of a plan, at the times at which its ops run.

    Args:
        encoder: Of the problem.
        encoded: The problem.
        decoded: The plan.
        times: When ops run.
        starts: By value and op, when an asynchronous collective starts to move the value for it.
    """

    def __init__(
        self,
        encoder: Encoder,
        encoded: Encoded,
        decoded: Decoded,
        times: OpTimes,
        starts: Mapping[tuple[int, int], int],
    ) -> None:
        self._encoded, self._decoded, self._times, self._starts = encoded, decoded, times, starts
        self._graph = encoded.graph
        terms = encoded.problem.node_memory
        self._with_rows = {encoded.maker(one.node).index for one in terms if one.tag == ROWS}
        self._before = encoder.buffers
        backend = encoder.costing.backend
        self.buffers = in_order(self._graph, backend, self._before, times.run, times.filled)

    def of(self, one: LiveRange) -> LiveRange:
        """A live range that is in program order."""
        if is_argument(self._encoded, one):
            return one
        value, is_copy = value_of(self._encoded, one)
        start, stop = self._of_copy(one, value) if is_copy else self._of_value(one, value)
        return one._replace(start=start, stop=max(stop, start + 1))

    def _of_value(self, one: LiveRange, value: int) -> tuple[int, int]:
        """Of a value itself, or of what making it takes beside it."""
        owner = self._before.owner[value]
        maker = self._graph.maker(value).index
        tag = self._encoded.problem.node_memory[one.term].tag
        begun, over = self._times.sums.get(maker, (-1, -1))
        if tag in _UNTIL_SUMMED and begun >= 0:
            start = begun if tag == SUMMED else self._times.run[maker]
            return start, begun if tag == ROWS else over + 1
        if (one.start, one.stop) == self._before.intervals[owner]:
            start, stop = self.buffers.intervals[owner]
            return max(start, begun) if maker in self._with_rows else start, stop
        is_own = one.start in (maker, self._before.time_of(maker))
        start = self._at(maker if is_own else one.start)
        if one.stop == one.start + 1:
            return start, start + 1
        is_until_end = one.stop >= len(self._graph.ops)
        return start, one.stop if is_until_end else self._at(one.stop - 1) + 1

    def _at(self, time: int) -> int:
        """When that op runs which is run at some time in program order."""
        return self._times.run[min(time, len(self._graph.ops) - 1)]

    def _of_copy(self, one: LiveRange, value: int) -> tuple[int, int]:
        """Of a copy that is moved for its readers: until none of them needs it any more."""
        copy = self._copy(one)
        readers = self._readers(copy, value)
        runs = {op.index: self.buffers.time_of(op.index) for op in readers}
        if self.buffers.updates.issuperset(runs):  # all of one state run at once
            start = max(runs.values())
        else:
            start = min(min(run, self._starts.get((value, op), run)) for op, run in runs.items())
        if copy.tag == SLICED:
            start = self._times.run[self._graph.maker(value).index]
        if all(op.kind is not OpKind.RESULT for op in readers):
            return start, max(read_stop(self._graph, self.buffers, op) for op in readers)
        if one.start < min(op.index for op in readers):  # beside a donated argument
            start = self.buffers.intervals[self.buffers.owner[value]][0]
        return start, len(self._graph.ops)

    def _copy(self, one: LiveRange) -> EdgeMemory:
        problem = self._encoded.problem
        return problem.edge_memory[one.term - len(problem.node_memory)]

    def _readers(self, copy: EdgeMemory, value: int) -> Sequence[Op]:
        """Ops that a copy is made for, those that read the value as it was made left out."""
        encoded, decoded = self._encoded, self._decoded
        problem = encoded.problem
        node = problem.edges[copy.edge].v
        if node < len(encoded.ops):
            return [self._graph.ops[encoded.ops[node]]]
        reads = encoded.reads[node - len(encoded.ops)].reads
        moved = [
            op
            for op, position in reads
            if decoded.candidates[op].operands[position] != decoded.layouts[value]
        ]
        return [self._graph.ops[op] for op in moved or [op for op, _ in reads]]
