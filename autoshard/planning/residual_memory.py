"""Memory of forward ops that are kept: their buffers, until backward passes have read them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from autoshard.encoding.picoseconds import picoseconds
from autoshard.planning.residual_problem import HOST, KEEP
from autoshard.planning.residual_program import ResidualProgram
from autoshard.planning.residual_tables import ResidualTables
from autoshard.remat.forward_op import ForwardOp, ForwardResult
from solvers import FORBIDDEN


class ResidualMemory:
    """Lets results of forward ops take memory only where they are kept.

    Args:
        program: The program.
        tables: Changed in place.
    """

    def __init__(self, program: ResidualProgram, tables: ResidualTables) -> None:
        self.program, self.tables = program, tables
        self.graph, self.buffers, self.encoded = program.graph, program.buffers, program.encoded

    def hold(self) -> list[bool]:
        """Let what forward ops make take memory only where it is kept; whether readers compute it.

        Those of an op do where it has no buffer, or one that is gone before they read.
        """
        times, claimed = self._times(), set[int]()
        return [
            self._hold(position, op, times, claimed) for position, op in enumerate(self.program.ops)
        ]

    def _times(self) -> dict[tuple[int, int], tuple[int, int]]:
        """By pass and segment, from when to when what it keeps is there, at most.

        Of a scan, while any of its stacks is; else until the backward pass first reads of it.
        """
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for op in self.program.ops:
            key = op.pass_index, op.segment
            for one in op.results:
                now = self._until(op, one)
                if now is not None:
                    start, stop = found.get(key, now)
                    by_scan = op.stack_length is not None
                    stop = max(stop, now[1]) if by_scan else min(stop, now[1])
                    found[key] = min(start, now[0]), stop
        return found

    def _until(self, op: ForwardOp, one: ForwardResult) -> tuple[int, int] | None:
        values = self.graph.value_by_path
        if op.stack_length is not None:
            stack = values.get(one.stack)
            return None if stack is None else self.buffers.intervals[self.buffers.owner[stack]]
        value = values.get(one.path)
        if value is None or not one.is_required:
            return None
        readers = (
            index for index in self.graph.consumers[value] if index not in self.program.forward
        )
        first = min(readers, default=None)
        return None if first is None else (0, first)

    def _hold(
        self,
        position: int,
        op: ForwardOp,
        times: dict[tuple[int, int], tuple[int, int]],
        claimed: set[int],
    ) -> bool:
        """As `hold`, of one op."""
        until = times.get((op.pass_index, op.segment))
        is_fused = op.stack_length is None
        for one in op.results:
            value = self.graph.value_by_path.get(one.path)
            if op.stack_length is not None and until is not None:
                self._hold_stack(position, one, value, op.stack_length, until)
            elif op.stack_length is None and value is not None and value not in claimed:
                claimed.add(value)
                is_own = self.buffers.is_stored[value] and self.buffers.owner[value] == value
                ends = self.buffers.intervals[value][1] + 1  # its last reader may write over it
                if is_own and self._last_use(value) <= ends:
                    is_fused = False
                    if until is not None:
                        self._hold_between(position, value, until[1])
        return is_fused and bool(op.path)

    def _hold_stack(
        self,
        position: int,
        one: ForwardResult,
        value: int | None,
        length: int,
        until: tuple[int, int],
    ) -> None:
        stack = self.graph.value_by_path.get(one.stack)
        if stack is not None:
            owner = self.buffers.owner[stack]
            if self._is_for_backward(owner):
                self._make_conditional(position, owner, *self.buffers.intervals[owner])
                self._move_costs(position, owner)
            return
        if value is None or self.graph.values[value].op not in self.encoded.node_by_op:
            return
        found = self.graph.values[value]
        node = self.encoded.node_by_op[found.op]
        place = self.graph.ops[found.op].results.index(value)
        usage = np.array(
            [
                self.program.encoder.room.local_bytes(found, candidate.results[place]) * length
                for candidate in self.encoded.candidates[node]
            ],
            dtype=np.int64,
        )
        speed = self.program.encoder.costing.elementwise_speed
        moved = picoseconds(2.0 * usage.astype(np.float64) / speed)
        self.tables.of(node, position)[:, [KEEP, HOST]] += moved[:, None]
        self.tables.keep(position, node, *until, usage)

    def _is_for_backward(self, owner: int) -> bool:
        """True of a stack that loops alone read."""
        ops = (
            self.graph.ops[index]
            for value in self.program.members[owner]
            for index in self.graph.consumers[value]
        )
        return all(op.name == "while" or self.graph.is_in_loop(op.region) for op in ops)

    def _move_costs(self, position: int, owner: int) -> None:
        """Pay for writing and reading a stack only where it is kept."""
        touched: dict[int, None] = {}
        for value in self.program.members[owner]:
            touched[self.graph.values[value].op] = None
            touched.update(dict.fromkeys(self.graph.consumers[value]))
        for index in touched:
            node = self.encoded.node_by_op.get(index)
            if node is None or not self.tables.node_costs[node].any():
                continue
            costs = self.tables.node_costs[node]
            allowed = costs < FORBIDDEN
            self.tables.node_costs[node] = np.where(allowed, 0, costs)
            self.tables.of(node, position)[:, [KEEP, HOST]] += np.where(allowed, costs, 0)[:, None]

    def _hold_between(self, position: int, value: int, read_again: int) -> None:
        """Free a buffer between the forward and the backward pass unless it is kept."""
        start, stop = self.buffers.intervals[value]
        let_go = max(start + 1, min(stop, self._last_use(value, self.program.forward)))
        if let_go < read_again:
            self._make_conditional(position, value, let_go, read_again)

    def _last_use(self, owner: int, readers: Collection[int] | None = None) -> int:
        """When some readers, or all, have read a buffer for the last time, through fused ones."""
        last, todo, seen = 0, list(self.program.members[owner]), set(self.program.members[owner])
        for value in todo:  # grows as it goes
            for index in self.graph.consumers[value]:
                if readers is not None and index not in readers:
                    continue
                last = max(last, index + 1)
                for result in self.graph.ops[index].results:
                    if not self.buffers.is_stored[result] and result not in seen:
                        seen.add(result)
                        todo.append(result)
        return last

    def _make_conditional(self, position: int, owner: int, start: int, stop: int) -> None:
        """Let a buffer take memory in a stretch of time where it is kept, and only there."""
        node = self.encoded.node_by_op.get(self.graph.values[owner].op)
        if node is None:
            return
        interval = self.buffers.intervals[owner]
        terms, self.tables.terms[node] = self.tables.terms[node], []
        for term in terms:
            if (term.start, term.stop) != interval:
                self.tables.terms[node].append(term)
                continue
            before, after = replace(term, stop=start), replace(term, start=stop)
            self.tables.terms[node] += [left for left in (before, after) if left.start < left.stop]
            self.tables.keep(position, node, start, stop, term.usage)
