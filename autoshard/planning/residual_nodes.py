"""Residuals as nodes of the choice problem: keep, compute again, let go, or offload.

The problem is that of a program that keeps every residual. Each forward op gets a node of four
states. Kept, its results take memory until the backward pass reads them, and of a scan the time of
writing and reading the stack. Computed again, the op costs its price once more, in the sharding
that it has. Neither is a choice where only ops read it that are not computed again. On the host,
two slices of a stack stay on the device::

    cost    = ... + sum_u keep[u, x_u] [s_u = KEEP or HOST] + price[u, x_u] [s_u = AGAIN]
                  + sum_p wait[p, sum_{u in p} bytes[u, x_u] [s_u = HOST]]
    memory  = ... + bytes[u, x_u] [s_u = KEEP] + 2 / length bytes[u, x_u] [s_u = HOST]
                                                     between the last read of the forward pass
                                                     and the first one of the backward pass
    s_v = AGAIN  =>  s_u != DROP                    for every u that v reads
    s_u != DROP                                     where the backward pass reads u

A value without a buffer is computed by its readers, from what it is computed from: such an op is
kept only where its operands are. Left out are operands that are moved a second time to compute an
op again, so a bound of this problem holds for the rewritten program too, as far as both are priced
alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoshard.constraints.program import holder_of
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Encoded
from autoshard.encoding.picoseconds import PICOSECONDS, picoseconds
from autoshard.graph.program import Graph, Op, OpClass, OpKind, Region
from autoshard.planning.host_link import HostLink
from autoshard.planning.residual_problem import AGAIN, DROP, HOST, KEEP, ResidualProblem
from autoshard.planning.solution import Solution
from autoshard.remat.forward_op import ForwardOp, ForwardResult, ValuePaths
from solvers import FORBIDDEN, Edge, EdgeMemory, MemoryLimit, NodeMemory

IntArray = npt.NDArray[np.int64]

_STATES = 4
_SLICES_ON_DEVICE = 2
"""Of a stack in host memory: one that is computed with, and one on its way."""


class LeanProgram(NamedTuple):
    """The program with all computed again that can be.

    Args:
        solution: Its plan.
        path: By path of an equation of the program that keeps every residual, its path here.
        values: Paths of forward values here.
    """

    solution: Solution
    path: Mapping[str, str]
    values: ValuePaths


def with_residual_nodes(
    encoder: Encoder,
    encoded: Encoded,
    ops: Sequence[ForwardOp],
    lean: LeanProgram,
    asked: Mapping[int, Collection[int]],
) -> ResidualProblem:
    """The choice problem of a program that keeps every residual, with residuals to choose.

    Args:
        encoder: Of the problem.
        encoded: The problem.
        ops: The forward ops of the program.
        lean: The same program with all computed again that can be.
        asked: By forward op, the states that users leave to choose.
    """
    return _Builder(encoder, encoded, tuple(ops), lean, asked).build()


class _Builder:
    def __init__(
        self,
        encoder: Encoder,
        encoded: Encoded,
        ops: tuple[ForwardOp, ...],
        lean: LeanProgram,
        asked: Mapping[int, Collection[int]],
    ) -> None:
        self.encoder, self.encoded, self.ops = encoder, encoded, ops
        self.lean, self.lean_path, self.lean_values = lean.solution.encoded, lean.path, lean.values
        self.lean_candidates = lean.solution.decoded.candidates
        self.lean_is_stored = lean.solution.encoder.buffers.is_stored
        self.asked = asked
        self.graph, self.buffers = encoded.graph, encoder.buffers
        problem = encoded.problem
        self.host = encoder.costing.model.hardware.host
        self.first = problem.num_nodes  # the passes' waits for the host, then the forward ops
        self.passes = tuple(dict.fromkeys(op.pass_index for op in ops)) if self.host else ()
        self.first_op = self.first + len(self.passes)
        self.node_costs = list(problem.node_costs)
        self.terms: dict[int, list[NodeMemory]] = defaultdict(list)
        for term in problem.node_memory:
            self.terms[term.node].append(term)
        self.tables: dict[tuple[int, int], IntArray] = {}  # by node and forward op
        self.held: list[tuple[int, int, int, int, IntArray]] = []
        self.kept_bytes: list[list[tuple[int, IntArray]]] = [[] for _ in ops]
        self.again: list[list[tuple[int, IntArray]]] = [[] for _ in ops]
        self.by_equation = _by_equation(self.graph)
        self.lean_equation = _by_equation(self.lean.graph)
        self.forward = frozenset(
            index for op in ops if op.path for index in self.by_equation[op.path]
        )
        self.members: dict[int, list[int]] = defaultdict(list)  # values by their buffer
        for value, owner in enumerate(self.buffers.owner):
            self.members[owner].append(value)
        self.loops = self._loops()

    def build(self) -> ResidualProblem:
        claimed: set[int] = set()
        fused: list[bool] = []
        times = self._times()
        for position, op in enumerate(self.ops):
            fused.append(self._hold(position, op, times, claimed))
        for position, op in enumerate(self.ops):
            self._price(position, op)
        self._price_readers()
        costs = [self._state_costs(position, op) for position, op in enumerate(self.ops)]
        problem = self.encoded.problem
        edges, place = list(problem.edges), dict[tuple[int, int], int]()
        for (node, position), table in self.tables.items():
            place[node, position] = len(edges)
            edges.append(Edge(node, self.first_op + position, table))
        edges += self._closure(fused)
        held = [
            EdgeMemory(place[node, position], start, stop, self._on_device(usage, position))
            for node, position, start, stop, usage in self.held
        ]
        links = [self._link(number) for number in self.passes]
        return ResidualProblem(
            replace(
                problem,
                node_costs=(*self.node_costs, *(link.wait_costs for link in links), *costs),
                edges=tuple(edges),
                node_memory=(
                    *(term for terms in self.terms.values() for term in terms),
                    *self._bought(links),
                ),
                edge_memory=(*problem.edge_memory, *held, *self._sent(place)),
            ),
            tuple(self._host_limits(links)),
            self.ops,
            tuple(map(tuple, self.kept_bytes)),
            tuple(map(tuple, self.again)),
            self._lean_choices,
        )

    @cached_property
    def _lean_choices(self) -> dict[int, int]:
        """By node, its choice in the lean plan, where it is there and is offered here."""
        ops = [
            *zip(self.graph.arguments, self.lean.graph.arguments, strict=True),
            *zip(self.graph.results, self.lean.graph.results, strict=True),
        ]
        pairs = [(op.index, other.index) for op, other in ops]
        for path, other in self.lean_path.items():
            pairs += self._pairs(path, other)
        found = {}
        for index, other_index in pairs:
            node = self.encoded.node_by_op.get(index)
            chosen = self.lean_candidates.get(other_index)
            if node is not None and chosen in self.encoded.candidates[node]:
                found[node] = self.encoded.candidates[node].index(chosen)
        return found

    def _pairs(self, path: str, other: str) -> list[tuple[int, int]]:
        """Ops of an equation and those of the same one in the lean program."""
        ours = [i for i in self.by_equation.get(path, ()) if self.graph.ops[i].equation == path]
        theirs = [
            i for i in self.lean_equation.get(other, ()) if self.lean.graph.ops[i].equation == other
        ]
        names = [self.graph.ops[index].name for index in ours]
        is_alike = names == [self.lean.graph.ops[index].name for index in theirs]
        return list(zip(ours, theirs, strict=True)) if is_alike else []

    def _state_costs(self, position: int, op: ForwardOp) -> IntArray:
        costs = np.zeros(_STATES, dtype=np.int64)
        if not op.may_repeat:
            costs[AGAIN] = FORBIDDEN
        if op.is_required:
            costs[DROP] = FORBIDDEN
        if op.stack_length is not None and op.may_repeat and not self.kept_bytes[position]:
            costs[KEEP] = FORBIDDEN  # nobody can tell what a stack of it would take
        if not self._may_offload(position, op):
            costs[HOST] = FORBIDDEN
        for state in range(_STATES):
            if state not in self.asked.get(position, range(_STATES)):
                costs[state] = FORBIDDEN
        return costs

    def _closure(self, fused: Sequence[bool]) -> Iterator[Edge]:
        """Edges by which an op that runs again, or has no buffer, needs its operands.

        What has no buffer is computed again with an op that is: as a start of that, behind the
        barrier, it would be written.
        """
        tables = {}
        for is_fused, reads_fused in product((False, True), repeat=2):
            needs = tables[is_fused, reads_fused] = np.zeros((_STATES, _STATES), dtype=np.int64)
            needs[DROP, AGAIN] = FORBIDDEN
            if is_fused:
                needs[AGAIN, KEEP] = needs[DROP, KEEP] = FORBIDDEN
            if reads_fused:
                needs[KEEP, AGAIN] = FORBIDDEN
        for position, op in enumerate(self.ops):
            for operand in op.operands:
                reads_fused = fused[operand] and self.ops[operand].may_repeat
                table = tables[fused[position], reads_fused]
                yield Edge(self.first_op + operand, self.first_op + position, table)

    # -- what offloading takes -------------------------------------------------------------------

    def _may_offload(self, position: int, op: ForwardOp) -> bool:
        """True where slices of a stack may leave for the host, and are worth it."""
        sizes = [int(usage.max()) for _, usage in self.kept_bytes[position]]
        return (
            self.host is not None
            and op.pass_index in self.loops
            and all(one.is_array for one in op.results)
            and sum(sizes) > self.encoder.room.negligible_bytes
        )

    def _link(self, number: int) -> HostLink:
        """Between a device and its host, in one pass: what it takes while bodies compute."""
        assert self.host is not None
        offered = (
            int(usage.max())
            for position, op in enumerate(self.ops)
            if op.pass_index == number and self._may_offload(position, op)
            for _, usage in self.kept_bytes[position]
        )
        seconds = [self._seconds_in(loop) for loop in self.loops.get(number, ())]
        return HostLink(self.host.bytes_per_second, tuple(seconds), sum(offered))

    def _seconds_in(self, loop: Region) -> float:
        """Of computing in all runs of a loop, with the shardings of the lean plan."""
        costs, lean = self.encoded.problem.node_costs, self._lean_choices
        nodes = (self.encoded.node_by_op.get(index) for index in range(loop.start, loop.stop))
        found = [
            int(costs[node][lean[node]] if node in lean else costs[node].min())
            for node in nodes
            if node is not None
        ]
        return sum(cost for cost in found if cost < FORBIDDEN) / PICOSECONDS

    def _on_device(self, usage: IntArray, position: int) -> IntArray:
        """Bytes on the device by state: what is kept, and slices of what is on the host."""
        table = _column(usage, KEEP)
        length = self.ops[position].stack_length
        if length is not None:
            table[:, HOST] = np.minimum(usage, usage * _SLICES_ON_DEVICE // max(length, 1))
        return table

    @property
    def _host_time(self) -> int:
        """When bytes in host memory are counted, and after it bytes on the link, by pass."""
        return len(self.graph.ops) + 1

    def _sent(self, place: Mapping[tuple[int, int], int]) -> Iterator[EdgeMemory]:
        """Bytes of offloaded residuals, in host memory and on the link."""
        for position, op in enumerate(self.ops):
            if not self._may_offload(position, op):
                continue
            link = self._host_time + 1 + self.passes.index(op.pass_index)
            for node, usage in self.kept_bytes[position]:
                for time in (self._host_time, link):
                    sent = _column(usage, HOST)
                    yield EdgeMemory(place[node, position], time, time + 1, sent)

    def _bought(self, links: Sequence[HostLink]) -> Iterator[NodeMemory]:
        """Bytes that pass the links only at the price of waiting longer."""
        for place, link in enumerate(links):
            time = self._host_time + 1 + place
            yield NodeMemory(self.first + place, time, time + 1, link.left_bytes)

    def _host_limits(self, links: Sequence[HostLink]) -> Iterator[MemoryLimit]:
        """The most bytes in host memory, and on the link of each pass."""
        if self.host is not None:
            most = (self.host.capacity_bytes, *(link.most_bytes for link in links))
            for time, limit in enumerate(most, start=self._host_time):
                yield MemoryLimit(time, time + 1, limit)

    def _loops(self) -> dict[int, tuple[Region, Region]]:
        """By pass of a scan, the loop that writes its stacks and the one that reads them."""
        found: dict[int, tuple[Region, Region]] = {}
        for op in self.ops:
            for one in op.results if op.stack_length is not None else ():
                stack = self.graph.value_by_path.get(one.stack)
                if stack is not None and op.pass_index not in found:
                    touching = (
                        self.graph.ops[index]
                        for value in self.members[self.buffers.owner[stack]]
                        for index in (self.graph.values[value].op, *self.graph.consumers[value])
                    )
                    regions = {one.region for one in touching if one.kind is OpKind.COMPUTE}
                    loops = [self.graph.regions[index] for index in sorted(regions)]
                    loops = [region for region in loops if region.kind == "loop"]
                    if len(loops) > 1:
                        found[op.pass_index] = loops[0], loops[-1]
        return found

    # -- what computing again takes -------------------------------------------------------------

    def _price(self, position: int, op: ForwardOp) -> None:
        """Pay an op a second time where it is computed again.

        In the forward pass it costs what it does where it is kept, or where nothing is: it may be
        fused with its readers there. Then they cost more, in place of the op that began the kernel.
        """
        copied = _equation(op, self.lean_values.copied)
        copies = {node: copy for node, _, copy in self._prices(op.path, copied)}
        for node, kept, fused in self._forward_prices[position]:
            once = np.minimum(kept, fused)
            self._set_costs(node, once)
            table = self._table(node, position)
            table[:, [KEEP, HOST]] += (kept - once)[:, None]
            if (fused > once).any():
                began = self._table(node, self._began_kernel(position))
                began[:, [AGAIN, DROP]] += (fused - once)[:, None]
            again = copies.get(node, np.zeros_like(fused))
            table[:, AGAIN] += again
            self.again[position].append((node, again))

    def _began_kernel(self, position: int) -> int:
        """The op that pays, where all is kept, for the kernel that an op is in where nothing is."""
        todo, seen = [position], {position}
        for one in todo:  # grows as it goes
            for operand in self.ops[one].operands:
                if operand not in seen and self._is_fused_in_lean(self.ops[operand]):
                    seen.add(operand)
                    todo.append(operand)
        return max(todo, key=self._paid_where_kept)

    def _is_fused_in_lean(self, op: ForwardOp) -> bool:
        """True of an op whose results have no buffer in the forward pass where nothing is kept."""
        paths = [self.lean_values.forward.get(one.name, "") for one in op.results]
        values = [self.lean.graph.value_by_path.get(path) for path in paths]
        return all(value is not None and not self.lean_is_stored[value] for value in values)

    def _paid_where_kept(self, position: int) -> int:
        """The most that an op costs more where all is kept than where nothing is."""
        prices = self._forward_prices[position]
        return max((int((kept - fused).max()) for _, kept, fused in prices), default=0)

    @cached_property
    def _forward_prices(self) -> list[list[tuple[int, IntArray, IntArray]]]:
        """By forward op, prices of its nodes in the forward pass: where all is kept, and nothing.

        A list, as nodes are priced anew while it is read.
        """
        forward = self.lean_values.forward
        return [list(self._prices(op.path, _equation(op, forward))) for op in self.ops]

    def _price_readers(self) -> None:
        """Pay for reading a buffer as it is read: what is computed again may be fused."""
        forward = {op.path for op in self.ops}
        keeper = {
            self.buffers.owner[self.graph.value_by_path[one.stack]]: position
            for position, op in enumerate(self.ops)
            for one in op.results
            if one.stack in self.graph.value_by_path and self.kept_bytes[position]
        }
        for path, other in self.lean_path.items():
            if path in forward:
                continue
            for node, kept, again in self._prices(path, other):
                if (kept == again).all():
                    continue
                once = np.minimum(kept, again)
                self._set_costs(node, once)
                position = self._largest_read(self.graph.ops[self.encoded.ops[node]], keeper)
                if position is not None:
                    table = self._table(node, position)
                    table[:, [KEEP, HOST]] += (kept - once)[:, None]
                    table[:, [AGAIN, DROP]] += (again - once)[:, None]

    def _largest_read(self, op: Op, keeper: Mapping[int, int]) -> int | None:
        """The forward op whose stack is the largest that an op reads, through fused ones too."""
        todo, found = list(op.operands), dict[int, None]()
        for value in todo:  # grows as it goes
            maker = self.graph.maker(value)
            owner = self.buffers.owner[value]
            if owner in keeper:
                found[keeper[owner]] = None
            elif not self.buffers.is_stored[value] or maker.op_class is OpClass.COPY:
                todo += (one for one in maker.operands if one not in todo)
        sizes = {one: max(int(u.max()) for _, u in self.kept_bytes[one]) for one in found}
        return max(sizes, key=sizes.__getitem__, default=None)

    def _prices(self, path: str, other: str) -> Iterator[tuple[int, IntArray, IntArray]]:
        """Nodes of an equation, with its prices here and those of one where nothing is kept.

        Those of "", which is not there, are nothing.
        """
        lean = dict(self._pairs(path, other))
        for index in self.by_equation.get(path, ()):
            node = self.encoded.node_by_op.get(index)
            if node is None:
                continue
            costs = self.encoded.problem.node_costs[node]
            other_costs = self._lean_costs(lean[index], node) if index in lean else costs
            if not other:
                other_costs = np.where(costs < FORBIDDEN, 0, costs)
            allowed = (costs < FORBIDDEN) & (other_costs < FORBIDDEN)
            if allowed.any() and (costs[allowed].any() or other_costs[allowed].any()):
                yield node, np.where(allowed, costs, 0), np.where(allowed, other_costs, 0)

    def _lean_costs(self, index: int, node: int) -> IntArray:
        """Costs of an op where nothing is kept; those here of candidates that it has not there."""
        costs = self.encoded.problem.node_costs[node]
        other = self.lean.node_by_op.get(index)
        if other is None:
            return costs
        there = dict(
            zip(self.lean.candidates[other], self.lean.problem.node_costs[other], strict=True)
        )
        own = zip(self.encoded.candidates[node], costs, strict=True)
        return np.array([there.get(candidate, cost) for candidate, cost in own], dtype=np.int64)

    def _set_costs(self, node: int, costs: IntArray) -> None:
        """Price a node anew where it is allowed."""
        old = self.node_costs[node]
        self.node_costs[node] = np.where(old < FORBIDDEN, costs, old)

    def _table(self, node: int, position: int) -> IntArray:
        """Costs of the states of a forward op, by the choices of a node."""
        key = node, position
        if key not in self.tables:
            size = len(self.node_costs[node])
            self.tables[key] = np.zeros((size, _STATES), dtype=np.int64)
        return self.tables[key]

    # -- what keeping takes ---------------------------------------------------------------------

    def _times(self) -> dict[tuple[int, int], tuple[int, int]]:
        """By pass and segment, from when to when what it keeps is there, at most.

        Of a scan, while any of its stacks is; else until the backward pass first reads of it.
        """
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for op in self.ops:
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
        readers = (index for index in self.graph.consumers[value] if index not in self.forward)
        first = min(readers, default=None)
        return None if first is None else (0, first)

    def _hold(
        self,
        position: int,
        op: ForwardOp,
        times: dict[tuple[int, int], tuple[int, int]],
        claimed: set[int],
    ) -> bool:
        """Let what an op makes take memory only where it is kept; whether readers compute it.

        They do where it has no buffer, or one that is gone before they read.
        """
        until = times.get((op.pass_index, op.segment))
        is_fused = op.stack_length is None
        for one in op.results:
            value = self.graph.value_by_path.get(one.path)
            if op.stack_length is not None and until is not None:
                self._hold_stack(position, one, value, op.stack_length, until)
            elif op.stack_length is None and value is not None and value not in claimed:
                claimed.add(value)
                is_own = self.buffers.is_stored[value] and self.buffers.owner[value] == value
                if is_own and self._last_use(value) <= self.buffers.intervals[value][1]:
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
                self.encoder.room.local_bytes(found, candidate.results[place]) * length
                for candidate in self.encoded.candidates[node]
            ],
            dtype=np.int64,
        )
        speed = self.encoder.costing.elementwise_speed
        moved = picoseconds(2.0 * usage.astype(np.float64) / speed)
        self._table(node, position)[:, [KEEP, HOST]] += moved[:, None]
        self._keep(position, node, *until, usage)

    def _is_for_backward(self, owner: int) -> bool:
        """True of a stack that loops alone read."""
        ops = (
            self.graph.ops[index]
            for value in self.members[owner]
            for index in self.graph.consumers[value]
        )
        return all(op.name == "while" or self.graph.is_in_loop(op.region) for op in ops)

    def _move_costs(self, position: int, owner: int) -> None:
        """Pay for writing and reading a stack only where it is kept."""
        touched: dict[int, None] = {}
        for value in self.members[owner]:
            touched[self.graph.values[value].op] = None
            touched.update(dict.fromkeys(self.graph.consumers[value]))
        for index in touched:
            node = self.encoded.node_by_op.get(index)
            if node is None or not self.node_costs[node].any():
                continue
            costs = self.node_costs[node]
            allowed = costs < FORBIDDEN
            self.node_costs[node] = np.where(allowed, 0, costs)
            self._table(node, position)[:, [KEEP, HOST]] += np.where(allowed, costs, 0)[:, None]

    def _hold_between(self, position: int, value: int, read_again: int) -> None:
        """Free a buffer between the forward and the backward pass unless it is kept."""
        start, stop = self.buffers.intervals[value]
        let_go = max(start + 1, min(stop, self._last_use(value, self.forward)))
        if let_go < read_again:
            self._make_conditional(position, value, let_go, read_again)

    def _last_use(self, owner: int, readers: Collection[int] | None = None) -> int:
        """When some readers, or all, have read a buffer for the last time, through fused ones."""
        last, todo, seen = 0, list(self.members[owner]), set(self.members[owner])
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
        terms, self.terms[node] = self.terms[node], []
        for term in terms:
            if (term.start, term.stop) != interval:
                self.terms[node].append(term)
                continue
            before, after = replace(term, stop=start), replace(term, start=stop)
            self.terms[node] += [left for left in (before, after) if left.start < left.stop]
            self._keep(position, node, start, stop, term.usage)

    def _keep(self, position: int, node: int, start: int, stop: int, usage: IntArray) -> None:
        self._table(node, position)
        self.held.append((node, position, start, stop, usage))
        self.kept_bytes[position].append((node, usage))


def _equation(op: ForwardOp, path_of: Mapping[str, str]) -> str:
    """The equation that makes the results of a forward op, or "" where none does."""
    paths = (path_of.get(one.name) for one in op.results)
    return next((path.rpartition(".")[0] for path in paths if path), "")


def _by_equation(graph: Graph) -> Mapping[str, list[int]]:
    """Ops of every equation and of its bodies, in program order."""
    found: dict[str, list[int]] = defaultdict(list)
    for op in graph.ops:
        equation = op.equation
        while equation:
            found[equation].append(op.index)
            equation = holder_of(equation)
    return found


def _column(usage: IntArray, state: int) -> IntArray:
    table = np.zeros((len(usage), _STATES), dtype=np.int64)
    table[:, state] = usage
    return table
