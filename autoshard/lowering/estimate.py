"""What a local program takes: seconds with its collectives beside its kernels, bytes, peak memory.

One function for plans, plans by hand and compiled programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.lowering.heap_simulator import allocated_bytes
from autoshard.lowering.local_program import Body, LocalProgram, Opcode, Space


@dataclass(frozen=True, slots=True)
class CollectiveUse:
    """A collective of a program, all its runs in one step.

    Args:
        seconds: On the network.
        exposed_seconds: Of these, those in which no kernel runs.
        num_bytes: Per device, the larger side.
    """

    seconds: float
    exposed_seconds: float
    num_bytes: float


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Bytes that one device holds.

    Args:
        argument_bytes: Of all arguments.
        peak_bytes: The most that is allocated at one time, fragmentation included.
        peak_time: Where the most is live.
        timeline: `(time, bytes live from there on)`, where it changes.
        host_bytes: In host memory.
    """

    argument_bytes: int
    peak_bytes: int
    peak_time: int
    timeline: tuple[tuple[int, int], ...]
    host_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one step of a local program takes.

    Args:
        cycles: Of all kernels, as far as their compiler estimates them.
        compute_seconds: Of all kernels.
        traffic_seconds: Likewise, elementwise work at the speed of HBM.
        communication_seconds: Of all collectives, one after another.
        overlapped_seconds: Of communication, those in which kernels run.
        collectives: In the order of the program's.
        memory: Of one device.
        waiting_seconds: In which bodies wait for transfers to and from host memory.
    """

    cycles: float
    compute_seconds: float
    traffic_seconds: float
    communication_seconds: float
    overlapped_seconds: float
    collectives: tuple[CollectiveUse, ...]
    memory: PeakMemory
    waiting_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """From the first instruction to the last."""
        return self.blocking_seconds - self.overlapped_seconds

    @property
    def exposed_seconds(self) -> float:
        """Of communication, those in which the device waits for it."""
        return self.communication_seconds - self.overlapped_seconds

    @property
    def blocking_seconds(self) -> float:
        """Of one step in which no collective overlaps."""
        return self.compute_seconds + self.communication_seconds + self.waiting_seconds

    @property
    def collective_bytes(self) -> float:
        """Per device, through all collectives."""
        return sum(one.num_bytes for one in self.collectives)


def estimate(program: LocalProgram) -> Estimate:
    """Run a local program.

    A device has a compute lane and a network. Kernels run one after another in the order in which
    they are issued; collectives do on the network, which all of them share, whatever axes they are
    over. A called body takes the compute lane; no collective crosses its end. Transfers to and from
    host memory run beside another run of their body, which takes at least as long as they do; where
    parts go back to where they came from, before and after it.
    """
    runs = program.runs()
    covered = [0.0] * len(program.collectives)
    seconds = [0.0] * len(program.order)
    sends = [False] * len(program.order)
    waiting = 0.0
    for index in reversed(range(len(program.order))):  # bodies come after those that call them
        lanes = _Lanes(program, seconds, sends)
        body = program.order[index]
        busy, sends[index] = lanes.run(body)
        seconds[index] = body.transfers.run_seconds(busy)
        waiting += (seconds[index] - busy) * runs[index]
        for collective, beside in lanes.covered():
            covered[collective] += beside * runs[index]
    uses = tuple(
        CollectiveUse(
            spent := one.seconds * one.count * runs[one.body],
            max(0.0, spent - beside),
            one.bytes_per_device * one.count * runs[one.body],
        )
        for one, beside in zip(program.collectives, covered, strict=True)
    )
    return Estimate(
        cycles=sum(one.cycles * runs[one.body] for one in program.kernels),
        compute_seconds=sum(one.seconds * runs[one.body] for one in program.kernels),
        traffic_seconds=sum(one.traffic_seconds * runs[one.body] for one in program.kernels),
        communication_seconds=sum(use.seconds for use in uses),
        overlapped_seconds=sum(use.seconds - use.exposed_seconds for use in uses),
        collectives=uses,
        memory=peak_memory(program),
        waiting_seconds=waiting,
    )


@dataclass(slots=True)
class _Lanes:
    """When the compute lane and the network of one run of a body are free again.

    Args:
        program: Of the body.
        body_seconds: Of one run of each body that may be called.
        body_sends: For each of these: it has collectives.
    """

    program: LocalProgram
    body_seconds: Sequence[float]
    body_sends: Sequence[bool]
    compute: float = 0.0
    network: float = 0.0
    _arrival: dict[int, float] = field(default_factory=dict)
    _sent: list[tuple[float, float, int]] = field(default_factory=list)
    _busy: list[tuple[float, float]] = field(default_factory=list)

    def run(self, body: Body) -> tuple[float, bool]:
        """Seconds of one run; true where there are collectives in it."""
        has_collectives = False
        for opcode, target in body.instructions:
            if opcode is Opcode.KERNEL:
                self._work(self.program.kernels[target].seconds)
            elif opcode is Opcode.START:
                has_collectives = True
                self._start(target)
            elif opcode is Opcode.DONE:
                self.compute = max(self.compute, self._arrival.get(target, 0.0))
            else:
                if self.body_sends[target]:  # its collectives wait for those under way
                    has_collectives = True
                    self.compute = max(self.compute, self.network)
                self._work(self.body_seconds[target] * self.program.order[target].trips)
                if self.body_sends[target]:
                    self.network = self.compute
        return max(self.compute, self.network), has_collectives

    def _work(self, seconds: float) -> None:
        if seconds:
            self._busy.append((self.compute, self.compute + seconds))
            self.compute += seconds

    def _start(self, target: int) -> None:
        one = self.program.collectives[target]
        seconds = one.seconds * one.count
        if not seconds:
            return
        begin = max(self.compute, self.network)
        self.network = self._arrival[target] = begin + seconds
        self._sent.append((begin, self.network, target))
        if not one.is_async:
            self.compute = self.network

    def covered(self) -> Iterator[tuple[int, float]]:
        """By collective, the seconds of one run of the body in which work runs beside it."""
        first = 0
        for begin, end, target in self._sent:
            while first < len(self._busy) and self._busy[first][1] <= begin:
                first += 1
            at, beside = first, 0.0
            while at < len(self._busy) and self._busy[at][0] < end:
                beside += min(end, self._busy[at][1]) - max(begin, self._busy[at][0])
                at += 1
            if beside:
                yield target, beside


def peak_memory(program: LocalProgram) -> PeakMemory:
    """Bytes that one device holds over a program; buffers in VMEM take none of them."""
    memory = program.memory
    change = np.zeros(memory.num_times + 2, dtype=np.int64)
    for buffer in program.buffers:
        if buffer.space is not Space.VMEM:
            change[buffer.start] += buffer.num_bytes
            change[buffer.stop] -= buffer.num_bytes
    live = np.cumsum(change)
    spans = ((b.start, b.stop, b.num_bytes) for b in program.buffers if b.space is Space.HBM)
    held = allocated_bytes(spans, memory.num_times, is_heap=memory.is_heap)
    outputs = sum(b.num_bytes for b in program.buffers if b.space is Space.OUTPUT)
    peak = memory.argument_bytes + outputs + memory.table_bytes + held
    changes = np.flatnonzero(np.diff(live, prepend=0))
    return PeakMemory(
        argument_bytes=memory.argument_bytes,
        peak_bytes=peak,
        peak_time=min(int(np.argmax(live)), memory.num_times - 1),
        timeline=tuple((int(i), int(live[i])) for i in changes if i < memory.num_times),
        host_bytes=memory.host_bytes,
    )
