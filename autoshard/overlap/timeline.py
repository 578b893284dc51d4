"""The tasks of a decided plan, body by body, and how much of its communication is hidden."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.backends import SchedulePolicy
from autoshard.candidates.streamed import messages_of
from autoshard.costing.costing import Costing
from autoshard.encoding.accounting import Account
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.way_to_reader import SharedStep, sent_bits, way_to_reader
from autoshard.graph.program import PRODUCTS, Op, OpKind, Region
from autoshard.overlap.hidden import hidden_in_steps
from autoshard.overlap.lanes import Lane, Task, Timeline, schedule, schedule_late
from autoshard.reshard import Step, StepKind

_Ref = tuple[int, int]  # a body, and the place of a task in it


@dataclass(frozen=True, slots=True)
class TimedCollective:
    """A collective of a plan, all its runs.

    Args:
        kind: `all-gather`.
        op: Index of the op it is for.
        seconds: What it takes.
        exposed_seconds: What of it nothing is computed beside.
    """

    kind: str
    op: int
    seconds: float
    exposed_seconds: float


@dataclass(frozen=True, slots=True)
class PlanTimeline:
    """A step of a plan with collectives running beside the computing.

    Args:
        seconds: Of one step.
        compute_seconds: What of it is computing.
        collectives: Whatever communicates, in program order; what several readers in one body
            share is there once.
    """

    seconds: float
    compute_seconds: float
    collectives: tuple[TimedCollective, ...]

    @property
    def hidden_seconds(self) -> float:
        """Seconds of communication that run beside the computing."""
        return sum(c.seconds - c.exposed_seconds for c in self.collectives)


def plan_timeline(encoder: Encoder, encoded: Encoded, decoded: Decoded) -> PlanTimeline:
    """Schedule a plan body by body.

    Which collectives are asynchronous is in `backends.schedule`. A collective starts when its
    operand is there and is over before its first reader starts.
    """
    return _Builder(encoder, encoded, decoded).timeline()


@dataclass(slots=True)
class _Body:
    """A stretch of ops that is scheduled by itself.

    Args:
        parent: The body around it; -1 for the program itself.
        trips: How often it runs per run of its parent.
        repeat: How often it runs in one step.
        tasks: In an order in which they could run one by one.
        names: Per task, the kind and op of what communicates.
        outer: Tasks of the parent that must be over before it starts.
    """

    parent: int
    trips: float
    repeat: float
    tasks: list[Task] = field(default_factory=list)
    names: list[tuple[str, int] | None] = field(default_factory=list)
    outer: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Builder:
    encoder: Encoder
    encoded: Encoded
    decoded: Decoded
    _bodies: dict[int, _Body] = field(init=False)
    _sent_bits: Mapping[SharedStep, int] = field(init=False)
    _covering: frozenset[int] = field(init=False)
    _made: dict[int, _Ref] = field(default_factory=dict)  # by value, the task that makes it
    _moved: dict[tuple[int, Step, int], _Ref] = field(default_factory=dict)
    _loops: dict[int, _Ref] = field(default_factory=dict)  # by body that is over, its task
    _found: list[tuple[int, TimedCollective]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sent_bits = sent_bits(self.encoded, self.decoded)
        self._covering = frozenset(self._find_covering())
        self._bodies = {}
        for region in self.encoded.graph.regions:
            if region.kind == "manual":
                continue
            parent = self._home(region.parent) if region.parent >= 0 else -1
            repeat = self._bodies[parent].repeat if parent >= 0 else 1.0
            repeat *= region.trip_count
            self._bodies[region.index] = _Body(parent, region.trip_count, repeat)

    def _find_covering(self) -> Iterator[int]:
        """Ops that collectives start beside."""
        every = not self._schedule.overlaps_matmuls_only
        for op in self.encoded.graph.ops:
            if every or op.op_class in PRODUCTS:
                yield op.index
            made = self.decoded.candidates.get(op.index)
            if op.op_class in PRODUCTS and made and not (made.reduced or made.scattered):
                yield from self.encoder.buffers.computed_with.get(op.index, ())

    @property
    def costing(self) -> Costing:
        return self.encoder.costing

    @property
    def _schedule(self) -> SchedulePolicy:
        return self.costing.backend.schedule

    def timeline(self) -> PlanTimeline:
        graph = self.encoded.graph
        exits = self._exits()
        open_bodies: list[Region] = []
        starting = sorted(
            (r for r in graph.regions if r.index in self._bodies),
            key=lambda r: (r.start, -r.stop, r.index),
        )
        first = 0
        for op in graph.ops:
            while open_bodies and open_bodies[-1].stop <= op.index:
                self._close(open_bodies.pop(), exits)
            while first < len(starting) and starting[first].start <= op.index:
                open_bodies.append(starting[first])
                first += 1
            if op.index in self.decoded.candidates:
                self._add(op)
        while len(open_bodies) > 1:
            self._close(open_bodies.pop(), exits)
        main = self._bodies[0]
        timeline = self._scheduled(main)
        self._note(main, timeline.exposed)
        compute = sum(
            task.seconds * body.repeat
            for body in self._bodies.values()
            for task in body.tasks
            if task.lane is Lane.COMPUTE
        )
        found = sorted(self._found, key=lambda item: item[0])
        return PlanTimeline(timeline.seconds, compute, tuple(c for _, c in found))

    def _home(self, region: int) -> int:
        """The body that ops of a region are scheduled in."""
        regions = self.encoded.graph.regions
        while regions[region].kind == "manual":
            region = regions[region].parent
        return region

    def _home_of(self, value: int) -> int:
        graph = self.encoded.graph
        return self._home(graph.maker(value).region)

    def _around(self, body: int) -> list[int]:
        """A body and those around it, innermost first."""
        found = []
        while body >= 0:
            found.append(body)
            body = self._bodies[body].parent
        return found

    # -- what runs ------------------------------------------------------------------------------

    def _add(self, op: Op) -> None:
        """The tasks of one op: what moves its operands, its work, its sums."""
        candidate = self.decoded.candidates[op.index]
        body = self._home(op.region)
        needs: set[int] = set()
        for position, value in enumerate(op.operands):
            if self._home_of(value) in self._around(body):
                needs.update(self._read(op, position, body))
        compute, sums = self.encoder.node_costs.seconds_of(op, candidate)
        made = self._task(body, compute, Lane.COMPUTE, needs, covers=op.index in self._covering)
        kinds = self._sum_kinds(op)
        passed = hidden_in_steps(self.encoded.graph, self.costing, op, candidate)
        if passed > 0:  # pieces that go round while the product computes
            beside = self._task(body, passed, Lane.NETWORK, needs, (kinds[0], op.index))
            made = self._task(body, 0.0, Lane.COMPUTE, {made, beside})
            sums -= passed
        if sums > 0:
            is_at_once = candidate.streamed is None and candidate.runs_per_sum == 1
            beside = is_at_once and all(self._schedule.is_async(kind) for kind in kinds)
            lane = Lane.NETWORK if beside else Lane.BOTH
            made = self._task(body, sums, lane, {made}, (kinds[0], op.index))
        self._made.update((value, (body, made)) for value in op.results)

    def _read(self, op: Op, position: int, body: int) -> set[int]:
        """Move an operand to where an op wants it; the tasks it then waits for."""
        value = op.operands[position]
        needs = self._needs(value, body)
        for step in way_to_reader(self.encoded, self.decoded, op, position):
            taken = (value, step, body)
            if taken not in self._moved:
                num_bytes = self._num_bytes(value, step, op)
                self._moved[taken] = (body, self._step(step, num_bytes, body, needs, op))
            needs = {self._moved[taken][1]}
        return needs

    def _num_bytes(self, value: int, step: Step, op: Op) -> float:
        """Of a whole value, as it is sent."""
        found = self.encoded.graph.values[value]
        return found.num_bytes * self._sent_bits[value, step, op.region] / found.bits

    def _step(self, step: Step, num_bytes: float, body: int, needs: set[int], op: Op) -> int:
        parts = self.encoded.parts
        is_grown = step.kind in (StepKind.ALL_GATHER, StepKind.SLICE)
        larger = step.after if is_grown else step.before
        pieces = parts.num_pieces(larger)
        local = np.array([num_bytes / pieces])
        order = tuple(sorted(step.parts))
        seconds = float(self.costing.step_seconds(step.kind, order, local)[0])
        if step.kind is StepKind.SLICE:
            covers = not self._schedule.overlaps_matmuls_only
            return self._task(body, seconds, Lane.COMPUTE, needs, covers=covers)
        beside = self._schedule.is_async(step.kind.value)
        lane = Lane.NETWORK if beside else Lane.BOTH
        return self._task(body, seconds, lane, needs, (step.kind.value, op.index))

    def _sum_kinds(self, op: Op) -> list[str]:
        candidate = self.decoded.candidates[op.index]
        if op.collective is not None:
            return [op.collective.kind]
        if candidate.streamed is not None and op.rule is not None:
            sent = messages_of(self.encoded.parts, op.rule, candidate)
            return [found.message.kind for found in sent]
        if not (candidate.reduced or candidate.scattered):
            return []
        graph = self.encoded.graph
        return [one.kind for one in self.costing.sums_of(graph, op, candidate)]

    def _task(
        self,
        body: int,
        seconds: float,
        lane: Lane,
        needs: Iterable[int],
        name: tuple[str, int] | None = None,
        *,
        covers: bool = True,
    ) -> int:
        found = self._bodies[body]
        found.tasks.append(Task(max(0.0, seconds), lane, tuple(sorted(needs)), covers))
        found.names.append(name)
        return len(found.tasks) - 1

    # -- bodies in bodies -----------------------------------------------------------------------

    def _needs(self, value: int, body: int) -> set[int]:
        """Tasks of a body that a value read there waits for; what lies outside, its body does."""
        ref = self._made.get(value)
        if ref is None:
            return set()
        around = self._around(body)
        home, place = ref
        while home not in around:
            home, place = self._loops[home]
        if home == body:
            return {place}
        self._bodies[around[around.index(home) - 1]].outer.add(place)
        return set()

    def _exits(self) -> dict[int, list[tuple[Op, int]]]:
        """By body, the operands of joins that are made in it and read outside."""
        found: dict[int, list[tuple[Op, int]]] = {}
        for op in self.encoded.graph.ops:
            if op.kind is not OpKind.JOIN or op.index not in self.decoded.candidates:
                continue
            around = self._around(self._home(op.region))
            for position, value in enumerate(op.operands):
                home = self._home_of(value)
                if home not in around:
                    found.setdefault(home, []).append((op, position))
        return found

    def _close(self, region: Region, exits: dict[int, list[tuple[Op, int]]]) -> None:
        """Schedule a body that is over, and put it in the one around it as one task."""
        body = self._bodies[region.index]
        for op, position in exits.get(region.index, ()):
            self._read(op, position, region.index)
        timeline = self._scheduled(body)
        self._note(body, timeline.exposed)
        place = self._task(body.parent, timeline.seconds * body.trips, Lane.BOTH, body.outer)
        self._loops[region.index] = (body.parent, place)
        if region.kind == "loop":
            for op, _ in exits.get(region.index, ()):
                if op.name == "while":
                    self._made.update((value, (body.parent, place)) for value in op.results)

    def _scheduled(self, body: _Body) -> Timeline:
        is_late = self._schedule.overlaps_matmuls_only
        return schedule_late(body.tasks) if is_late else schedule(body.tasks)

    def _note(self, body: _Body, exposed: Sequence[float]) -> None:
        for task, name, waited in zip(body.tasks, body.names, exposed, strict=True):
            if name is not None:
                kind, op = name
                timed = TimedCollective(kind, op, task.seconds * body.repeat, waited * body.repeat)
                self._found.append((op, timed))


def overlapped_seconds(
    encoder: Encoder, encoded: Encoded, decoded: Decoded, account: Account
) -> float | None:
    """Seconds of a step when collectives run beside computing; None where the backend has none."""
    if not encoder.costing.backend.schedule.overlaps:
        return None
    timeline = plan_timeline(encoder, encoded, decoded)
    return account.compute_seconds + account.communication_seconds - timeline.hidden_seconds
