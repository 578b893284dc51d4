"""The tasks of ops under a plan: what moves their operands, their work, their collectives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from autoshard.backends import SchedulePolicy
from autoshard.costing.costing import Costing
from autoshard.costing.matmul_epilogue import is_apart
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.hidden_communication import hidden_in_products
from autoshard.encoding.shared_reads import reads_of
from autoshard.graph.barriers import barriers
from autoshard.graph.computed_again import computes_again
from autoshard.graph.op_traits import renames
from autoshard.graph.product_writes import read_beside
from autoshard.graph.program import DEVICE_MEMORY, PRODUCTS, Op, OpKind
from autoshard.graph.scatters import is_into_zeros, starts_as_zeros
from autoshard.layouts import Layout
from autoshard.lowering.bodies import Bodies, TaskBody, TaskRef
from autoshard.lowering.collectives import Collectives, sharing
from autoshard.lowering.local_program import Collective, Instruction, Kernel, Opcode
from autoshard.lowering.optimizer_outputs import OptimizerOutputs
from autoshard.lowering.reshard_steps import ReshardSteps, SharedStep
from autoshard.lowering.schedule import Lane, Role, Task
from autoshard.lowering.waiting_operands import WaitingOperands
from autoshard.reshard import Step, StepKind


@dataclass(slots=True)
class OpTasks:
    """Makes the tasks of ops, in program order.

    Args:
        encoder: Of the problem.
        encoded: The problem.
        decoded: The plan.
        bodies: To which the tasks are added.

    Attributes:
        kernels: That the tasks issue.
        collectives: Likewise.
    """

    encoder: Encoder
    encoded: Encoded
    decoded: Decoded
    bodies: Bodies
    kernels: list[Kernel] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    _made_of: Collectives = field(init=False)
    _steps: ReshardSteps = field(init=False)
    _outputs: OptimizerOutputs = field(init=False)
    _sent_bits: Mapping[SharedStep, int] = field(init=False)
    _covering: frozenset[int] = field(init=False)
    _late: Mapping[int, int] = field(init=False)  # by product of an update, what it waits for
    _products: list[int] = field(default_factory=list)  # kernels of matmuls
    _moved: dict[SharedStep, TaskRef] = field(default_factory=dict)
    _zeros: dict[tuple[int, tuple[int, ...], str], int] = field(default_factory=dict)
    _barriers: dict[int, list[Op]] = field(default_factory=dict)  # by the first op of each
    _at: dict[int, TaskRef] = field(default_factory=dict)  # by op that no collective sums
    _behind: dict[int, tuple[int, set[int]]] = field(default_factory=dict)  # of computed again
    _waits: dict[int, set[int]] = field(default_factory=dict)  # by op of a barrier that is begun

    def __post_init__(self) -> None:
        self._made_of = Collectives(self.costing, self.encoded, self.decoded)
        self._steps = ReshardSteps(self.encoded, self.decoded)
        self._outputs = OptimizerOutputs.of(self.encoder, self.decoded)
        self._sent_bits = self._steps.sent_bits()
        self._covering = frozenset(self._find_covering())
        waits = self.encoder.buffers.update_waits
        self._late = {one: waits[one] for one in waits if self._writes_what_follows(one)}
        if self._schedule_policy.orders_for_memory:  # others remove barriers before they order
            for barrier in barriers(self.encoded.graph):
                decided = [op for op in barrier if op.index in self.decoded.candidates]
                self._barriers.update({op.index: decided for op in decided[:1]})

    @property
    def costing(self) -> Costing:
        """The costs that price the plan."""
        return self.encoder.costing

    @property
    def _schedule_policy(self) -> SchedulePolicy:
        return self.costing.backend.schedule

    def _find_covering(self) -> Iterator[int]:
        """Ops that collectives start beside."""
        every = not self._schedule_policy.overlaps_matmuls_only
        for op in self.encoded.graph.ops:
            if every or op.op_class in PRODUCTS:
                yield op.index
            if op.op_class in PRODUCTS and self._writes_what_follows(op.index):
                yield from self.encoder.buffers.computed_with.get(op.index, ())

    def waits_behind(self) -> dict[int, int]:
        """By op, a later one that it waits for: to join its kernel, or to compute an update."""
        return {**self.encoder.buffers.joined, **self._late}

    def _writes_what_follows(self, product: int) -> bool:
        """True where devices do not have to sum first what a product makes."""
        made = self.decoded.candidates.get(product)
        return made is not None and not is_apart(made)

    def add(self, op: Op) -> None:
        """The tasks of one op: what moves its operands, its work, its collectives."""
        candidate, graph = self.decoded.candidates[op.index], self.encoded.graph
        body = self.bodies.homes[op.region]
        if graph.is_transfer(op):
            self._transfer(op, self.bodies.by_region[body])
        needs = self._needs(op, body)
        if op.index in self._late:
            after = self.encoder.buffers.computed_with[op.index]
            read = read_beside(graph, op.index, after)
            needs.update(*(self.bodies.needs(value, body) for value in read))
        if not self.encoder.buffers.again.isdisjoint(op.results):
            self._behind[op.results[0]] = body, needs.copy()
        compute, sent = self.encoder.node_costs.seconds_of(op, candidate)
        compute += self._outputs.more_seconds(op)
        is_argument = op.kind is OpKind.ARGUMENT  # there before anything is ordered
        num_bytes = 0 if is_argument else self.written_bytes(op, candidate.partial)
        fills_early = self.costing.backend.fusion.fills_zeros_early
        if fills_early and (is_into_zeros(graph, op) or starts_as_zeros(graph, op)):
            needs.add(self._fill(op, body, num_bytes))
            num_bytes = 0
        is_fused = self._is_fused(op)
        made = self._kernel(
            op,
            body,
            compute,
            needs,
            covers=op.index in self._covering,
            role=Role.MAKES,
            num_bytes=num_bytes,
            is_fused=is_fused,
            is_in_place=self._is_in_place(op),
            joins=self._kernel_of(op, body),
        )
        collectives = self._made_of.of_op(op)
        if op.kind is OpKind.RESULT:
            self.bodies.ends.append((body, made))
        if not collectives:
            self.bodies.made.update((value, (body, made)) for value in op.results)
            if not is_fused:
                self._at[op.index] = body, made
            return
        priced = list(sharing(collectives, sent))
        passed = float(hidden_in_products(self.encoded.graph, self.costing, op, (candidate,))[0])
        if passed > 0:  # chunks that are passed on while the matmul of others runs
            beside, priced = _split(priced, passed)
            sending = self._send(body, beside, needs, is_async=True)
            joined = Task(0.0, Lane.COMPUTE, _sorted({made, sending}), is_fused=True)
            made = self.bodies.add(body, joined)
        is_at_once = candidate.streamed is None and candidate.runs_per_sum in (1, inf)
        is_async = is_at_once and all(one.is_async for one in priced)
        made = self._send(
            body,
            priced,
            {made},
            is_async=is_async,
            num_bytes=self.written_bytes(op),
            op=op.index,
        )
        self.bodies.made.update((value, (body, made)) for value in op.results)

    def kernels_after(self, waits: WaitingOperands) -> Iterator[Kernel]:
        """All kernels, once it is known which operands of matmuls are in VMEM."""
        products, costs = set(self._products), self.encoder.node_costs
        for place, kernel in enumerate(self.kernels):
            if place in products:
                op, candidate = (
                    self.encoded.graph.ops[kernel.op],
                    self.decoded.candidates[kernel.op],
                )
                kernel = kernel.longer(costs.more_seconds(op, candidate, waits.any_for(op)))
            yield kernel

    def _needs(self, op: Op, body: int) -> set[int]:
        """The tasks that an op waits for, its operands moved; of a barrier, those of all."""
        if op.index in self._barriers:
            self._wait(self._barriers[op.index], body)
        found = self._waits.pop(op.index, None)
        return self._moved_operands(op, body) if found is None else found

    def _wait(self, barrier: Sequence[Op], body: int) -> None:
        """A task of no work, after all operands of a barrier and before all that read it."""
        for op in barrier:
            self._waits[op.index] = self._moved_operands(op, body)
        every = set().union(*(self._waits[op.index] for op in barrier))
        passed = self.bodies.add(body, Task(0.0, Lane.COMPUTE, _sorted(every)))
        for op in barrier:
            self._waits[op.index].add(passed)

    def _moved_operands(self, op: Op, body: int) -> set[int]:
        """Move what an op reads to where it wants it; the tasks it then waits for."""
        around = self.bodies.around[body]
        needs: set[int] = set()
        for position, value in enumerate(op.operands):
            if self.bodies.home_of[value] in around:
                needs.update(self.read(op, position, body))
        return needs

    def _made(self, op: Op, value: int, body: int) -> set[int]:
        """Tasks that a read waits for; of a value that is computed again, what making it reads."""
        if computes_again(op, value, self._behind):
            home, behind = self._behind[value]
            if home == body:
                return behind
        return self.bodies.needs(value, body)

    def _fill(self, op: Op, body: int, num_bytes: int) -> int:
        """Write the zeros that an op starts from; one kernel writes all of one type."""
        value = self.encoded.graph.values[op.results[0]]
        call = self._zeros.setdefault((body, value.shape, value.dtype), -1 - op.index)
        task = Task(0.0, Lane.COMPUTE, role=Role.FILLS, op=op.index, num_bytes=num_bytes, call=call)
        return self.bodies.add(body, task)

    def _transfer(self, op: Op, body: TaskBody) -> None:
        """Bring what a device has of a value to another memory, beside the tasks of a body."""
        host, graph = self.costing.model.hardware.host, self.encoded.graph
        comes = op.memory_kind == DEVICE_MEMORY
        body.is_in_place |= op.index in self.encoder.node_costs.in_place
        value = graph.values[op.results[0]]
        layout = self.decoded.layouts[value.index]
        if host is not None:
            num_bytes = self.encoder.room.held_bytes(value, layout)
            body.to_and_from_host[comes] += num_bytes / host.bytes_per_second

    def read(self, op: Op, position: int, body: int) -> set[int]:
        """Move an operand to where an op wants it; the tasks it then waits for."""
        value, costs = op.operands[position], self.encoder.read_costs
        needs = self._made(op, value, body)
        steps = self._steps.of(op, position)
        order = costs.orders.seconds(op, value)
        if not steps:
            if order is not None:
                wanted = self.decoded.candidates[op.index].operands[position]
                place = self.encoder.tables.of(value).index[wanted]
                needs = self._reread(op, position, body, float(order[place, place]), needs)
            return needs
        narrowed = costs.narrowing_seconds(op, position)
        copy = self.decoded.shared.get((op.index, position))
        is_sent = False
        taken: list[Step] = []
        for step in steps:
            is_first = step.kind is not StepKind.SLICE and (not is_sent or step.before == copy)
            is_sent = is_sent or is_first
            key = self._steps.shared(op, position, step)
            if key not in self._moved:
                taken.append(step)
                table = self.encoded.table(value, self._sent_bits[key])
                if narrowed is not None and is_first:
                    seconds = float(narrowed[table.index[step.before]])
                    needs = self._reread(op, position, body, seconds, needs)
                self._moved[key] = body, self._step(op, position, step, body, needs)
            home, place = self._moved[key]
            needs = {place} if home == body else set()
        if order is None or not taken:
            return needs
        index = self.encoder.tables.of(value).index  # copied once, at the end of the way
        copied = float(order[index[taken[0].before], index[taken[-1].after]])
        return self._reread(op, position, body, copied, needs)

    def _reread(
        self, op: Op, position: int, body: int, seconds: float, needs: set[int]
    ) -> set[int]:
        """The tasks to wait for once an operand is converted or copied beside its move."""
        if not seconds:
            return needs
        seconds *= self._times(op, position, body)
        covers = not self._schedule_policy.overlaps_matmuls_only
        return {self._kernel(op, body, seconds, needs, covers=covers)}

    def _times(self, op: Op, position: int, body: int) -> float:
        """Reads of an operand by an op in one run of a body."""
        repeat = self.bodies.by_region[body].repeat
        return reads_of(op, position) / repeat if repeat else 1.0

    def _step(self, op: Op, position: int, step: Step, body: int, needs: set[int]) -> int:
        """One step of a reshard: the cut is a kernel, everything else a collective."""
        value = op.operands[position]
        bits = self._sent_bits[self._steps.shared(op, position, step)]
        seconds = self.encoded.table(value, bits).step_seconds(step)
        times = self._times(op, position, body)
        made = self.encoded.graph.values[value]
        num_bytes = self.encoder.room.held_bytes(made, step.after)
        if step.kind is StepKind.SLICE:
            covers = not self._schedule_policy.overlaps_matmuls_only
            return self._kernel(
                op, body, seconds * times, needs, covers=covers, num_bytes=num_bytes
            )
        found = sharing(self._made_of.of_step(op, value, step, bits), seconds)
        return self._send(
            body,
            [replace(one, count=one.count * times) for one in found],
            needs,
            is_async=self._schedule_policy.is_async(step.kind.value),
            num_bytes=num_bytes,
        )

    def written_bytes(self, op: Op, partial: Layout | None = None) -> int:
        """Of the buffers that an op writes, before its results are summed or after."""
        buffers, graph = self.encoder.buffers, self.encoded.graph
        return sum(
            self.encoder.room.held_bytes(
                graph.values[value], partial or self.decoded.layouts[value]
            )
            for value in op.results
            if buffers.is_stored[value] and buffers.owner[value] == value
        )

    def _is_fused(self, op: Op) -> bool:
        """True for an op that its readers compute, that renames, or that hands on to a loop."""
        stored = self.encoder.buffers.is_stored
        is_carry = op.kind is OpKind.JOIN and op.name == "while"
        return is_carry or renames(op) or not any(stored[value] for value in op.results)

    def _kernel_of(self, op: Op, body: int) -> int:
        """The task in whose kernel an op may run; -1 for one of its own."""
        home, kernel = self._at.get(self.encoder.buffers.joined.get(op.index, -1), (-1, -1))
        return kernel if home == body else -1

    def _is_in_place(self, op: Op) -> bool:
        """True for an op that writes to buffers of donated arguments alone."""
        buffers, reused = self.encoder.buffers, self.encoder.room.reused
        stored = [buffers.owner[value] for value in op.results if buffers.is_stored[value]]
        return bool(stored) and reused.issuperset(stored)

    def _kernel(
        self,
        op: Op,
        body: int,
        seconds: float,
        needs: Iterable[int],
        *,
        covers: bool,
        role: Role = Role.MOVES,
        num_bytes: int = 0,
        is_fused: bool = False,
        is_in_place: bool = False,
        joins: int = -1,
    ) -> int:
        seconds = max(0.0, seconds)
        issues: tuple[Instruction, ...] = ()
        if seconds:
            issues = (Instruction(Opcode.KERNEL, len(self.kernels)),)
            if role is Role.MAKES and op.name == "dot_general":
                self._products.append(len(self.kernels))
            self.kernels.append(
                Kernel(
                    name=op.name,
                    op=op.index,
                    source=op.source,
                    body=self.bodies.by_region[body].index,
                    seconds=seconds,
                    overlaps=covers,
                    traffic_seconds=seconds,
                )
            )
        needed = _sorted(needs)
        task = Task(
            seconds,
            Lane.COMPUTE,
            needed,
            covers,
            issues,
            role,
            op.index,
            num_bytes,
            is_fused,
            is_in_place=is_in_place,
            joins=joins,
        )
        return self.bodies.add(body, task)

    def _send(
        self,
        body: int,
        found: Iterable[Collective],
        needs: Iterable[int],
        *,
        is_async: bool,
        num_bytes: int = 0,
        op: int = -1,
    ) -> int:
        """Collectives that run one after another, as one task; of an op, those that sum."""
        first = len(self.collectives)
        index = self.bodies.by_region[body].index
        self.collectives += [replace(one, is_async=is_async, body=index) for one in found]
        sent = self.collectives[first:]
        issues = tuple(Instruction(Opcode.START, first + place) for place in range(len(sent)))
        seconds = sum(one.seconds * one.count for one in sent)
        task = Task(
            seconds,
            Lane.NETWORK if is_async else Lane.BOTH,
            _sorted(needs),
            issues=issues,
            role=Role.MOVES if op < 0 else Role.SUMS,
            op=op,
            num_bytes=num_bytes,
        )
        return self.bodies.add(body, task)


def _sorted(needs: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(needs))


def _split(
    collectives: Iterable[Collective], passed: float
) -> tuple[list[Collective], list[Collective]]:
    """Runs of a collective matmul's messages that take so many seconds, and all others.

    Args:
        collectives: Those that may run beside the matmul are asynchronous.
        passed: Seconds of them that do.
    """
    found = list(collectives)
    shifts = sum(one.seconds * one.count for one in found if one.is_async)
    share = min(1.0, passed / shifts) if shifts else 0.0
    beside = [replace(one, count=one.count * share) for one in found if one.is_async]
    after = [
        replace(one, count=one.count * (1 - share)) if one.is_async else one
        for one in found
        if not one.is_async or share < 1
    ]
    return beside, after
