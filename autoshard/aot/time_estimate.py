"""Step time of a compiled program: the compiler's cycles, and collectives beside them.

Instructions of a scheduled module stand in the order they run in. Two lanes are filled in that
order: what computes waits for the work before it, a collective for the collective before it, all on
one network. An asynchronous one takes the network from its start on and is waited for at its end;
any other stops the work.

The compiler estimates no cycles of gathers, scatters and sorts, which it runs as kernels of their
own (libtpu 0.0.42). They are counted with the bytes that they move, in whole tiles as they lie, at
the memory speed they reach.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, field

from autoshard.hlo.compiled import (
    ASYNC_DONE,
    Thread,
    carried_collectives,
    collectives_inside,
    is_async_start,
    own_collective,
)
from autoshard.hlo.text import HloModule, Instruction
from autoshard.hlo.trip_counts import known_trip_count
from autoshard.sharding import Mesh
from autoshard.verification.collective_comparison import CompiledCollective

_CYCLES = re.compile(r'"estimated_cycles":\s*"?(\d+)')


# What reads and writes each element once and computes little: device memory bounds it.
_BY_ELEMENT = frozenset(
    "abs add and bitcast broadcast clamp compare constant convert copy divide exponential"
    " exponential-minus-one get-tuple-element iota log log-plus-one logistic maximum minimum"
    " multiply negate not or parameter power remainder reshape rsqrt select sign sqrt subtract tanh"
    " transpose tuple xor".split()
)


_UNESTIMATED = ("scatter", "gather", "sort")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed:
    """How fast a device is.

    Args:
        clock_hz: What cycles are counted in.
        bytes_per_second: Of device memory.
        moved_seconds: Of bytes that a gather, scatter or sort reads and writes, by its name.
    """

    clock_hz: float
    bytes_per_second: float
    moved_seconds: Callable[[str, float], float]


@dataclass(frozen=True, slots=True)
class EstimatedSeconds:
    """What a program takes.

    Args:
        cycles: As the compiler estimates them, all runs.
        compute_seconds: The same over the clock, and what is estimated in no cycles.
        at_memory_speed_seconds: Likewise, but of work element by element no more than device memory
            takes to read and write it. The compiler's estimate is two to four times that.
        link_seconds: Of all collectives, one after another.
        overlapped_seconds: Of the two lanes together.
    """

    cycles: float
    compute_seconds: float
    at_memory_speed_seconds: float
    link_seconds: float
    overlapped_seconds: float


def estimate_seconds(
    module: HloModule,
    mesh: Mesh,
    link_seconds: Callable[[CompiledCollective], float],
    speed: DeviceSpeed,
) -> EstimatedSeconds:
    """Add up a program as it is scheduled.

    A loop runs as often as the compiler says, one run after another; of branches the mean counts.

    Args:
        module: Scheduled, as compilers give it out.
        mesh: That it was compiled for.
        link_seconds: Of one run of a collective.
        speed: Of the device.
    """
    spent = _Schedule(module, mesh, link_seconds, speed).run(module.entry)
    return EstimatedSeconds(
        cycles=spent.cycles,
        compute_seconds=spent.cycles / speed.clock_hz + spent.moved,
        at_memory_speed_seconds=spent.capped / speed.clock_hz + spent.moved,
        link_seconds=spent.link,
        overlapped_seconds=spent.both,
    )


@dataclass(frozen=True, slots=True)
class _Spent:
    cycles: float = 0.0
    capped: float = 0.0
    link: float = 0.0
    both: float = 0.0
    moved: float = 0.0

    def times(self, count: float) -> _Spent:
        return _Spent(*(amount * count for amount in astuple(self)))

    def plus(self, other: _Spent) -> _Spent:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return _Spent(*(one + more for one, more in pairs))


@dataclass(slots=True, eq=False)
class _Lanes:
    """When the work and the network of a computation are free again."""

    work: float = 0.0
    network: float = 0.0
    arrival: dict[str, float] = field(default_factory=dict)

    def send(self, name: str, seconds: float, *, is_async: bool) -> None:
        self.network = max(self.work, self.network) + seconds
        self.arrival[name] = self.network
        if not is_async:
            self.work = self.network

    def wait_for(self, name: str) -> None:
        self.work = max(self.work, self.arrival.get(name, 0.0))


@dataclass(slots=True, eq=False)
class _Schedule:
    module: HloModule
    mesh: Mesh
    link_seconds: Callable[[CompiledCollective], float]
    speed: DeviceSpeed
    known: dict[str, _Spent] = field(default_factory=dict)
    underway: set[Thread] = field(default_factory=set)  # of fused collectives, loops too

    def run(self, computation: str) -> _Spent:
        """One run of a computation."""
        found = self.known.get(computation)
        if found is None:
            found = self.known[computation] = self._run(computation)
        return found

    def _run(self, computation: str) -> _Spent:
        instructions = self.module.computations.get(computation, {})
        lanes = _Lanes()
        cycles = capped = link = moved = 0.0
        for instruction in instructions.values():
            own = cycles_of(instruction)
            cycles += own
            capped += self._capped(own, instruction, instructions)
            link += self._communicate(computation, instruction, lanes)
            lanes.work += own / self.speed.clock_hz
            if not own:
                seconds = self._moved(instruction, instructions)
                moved += seconds
                lanes.work += seconds
            inner = self._inside(instruction)
            if inner is not None:
                moved += inner.moved
                cycles, capped = cycles + inner.cycles, capped + inner.capped
                link += inner.link
                lanes.work += inner.both
                if inner.link:
                    lanes.network = max(lanes.network, lanes.work)
        return _Spent(cycles, capped, link, max(lanes.work, lanes.network), moved)

    def _moved(self, instruction: Instruction, beside: Mapping[str, Instruction]) -> float:
        """Seconds of what the compiler gives no estimate of; bytes count as they lie, in tiles.

        A gather reads as much as it makes. A scatter reads what it adds, and reads and writes what
        it adds that to; a kernel that makes that itself writes zeros before.
        """
        one, near = self._unestimated(instruction, beside)
        if one is None:
            return 0.0
        operands = [near[name] for name in one.operands if name in near]
        if one.opcode == "sort":
            num_bytes = one.laid_out_bytes + sum(found.laid_out_bytes for found in operands)
            return self.speed.moved_seconds("sort", float(num_bytes))
        if one.opcode == "gather":
            num_bytes = 2 * one.laid_out_bytes + operands[-1].laid_out_bytes
            return self.speed.moved_seconds("gather", float(num_bytes))
        num_operands = len(operands) // 2
        added = sum(found.laid_out_bytes for found in operands[num_operands + 1 :])
        num_bytes = 3 * added + operands[num_operands].laid_out_bytes
        seconds = self.speed.moved_seconds("scatter", float(num_bytes))
        filled = instruction.laid_out_bytes if self._fills(instruction) else 0
        return seconds + filled / self.speed.bytes_per_second

    def _fills(self, instruction: Instruction) -> bool:
        """Whether a kernel writes one value to all of its result, before anything else."""
        inside = self._all_inside(instruction) if instruction.opcode == "fusion" else ()
        return any(
            one.opcode == "broadcast" and one.num_bytes == instruction.num_bytes
            for one, _ in inside
        )

    def _unestimated(
        self, instruction: Instruction, beside: Mapping[str, Instruction]
    ) -> tuple[Instruction | None, Mapping[str, Instruction]]:
        """The gather, scatter or sort in an instruction, and what stands beside that.

        A scatter goes before what it is fused with.
        """
        inside = [(instruction, beside)]
        if instruction.opcode == "fusion":
            inside = list(self._all_inside(instruction))
        for name in _UNESTIMATED:
            for one, near in inside:
                if one.opcode == name:
                    return one, near
        return None, beside

    def _all_inside(
        self, instruction: Instruction
    ) -> Iterator[tuple[Instruction, Mapping[str, Instruction]]]:
        for _, name in instruction.called():
            body = self.module.computations.get(name, {})
            for found in body.values():
                yield found, body
                yield from self._all_inside(found)

    def _capped(
        self, cycles: float, instruction: Instruction, beside: Mapping[str, Instruction]
    ) -> float:
        """Cycles of one instruction; of work by element at most those of its bytes."""
        if not cycles or not self._is_by_element(instruction):
            return cycles
        operands = (beside[name].num_bytes for name in instruction.operands if name in beside)
        num_bytes = instruction.num_bytes + sum(operands)
        return min(cycles, num_bytes / self.speed.bytes_per_second * self.speed.clock_hz)

    def _is_by_element(self, instruction: Instruction) -> bool:
        if instruction.opcode != "fusion":
            return instruction.opcode in _BY_ELEMENT
        inside = [
            found
            for _, name in instruction.called()
            for found in self.module.computations.get(name, {}).values()
        ]
        return all(self._is_by_element(found) for found in inside)

    def _communicate(self, computation: str, instruction: Instruction, lanes: _Lanes) -> float:
        """Enter what an instruction starts or waits for; seconds of what it starts."""
        if instruction.opcode in ASYNC_DONE:
            for operand in instruction.operands:
                lanes.wait_for(operand)
            lanes.arrival[instruction.name] = lanes.work
            return 0.0
        if instruction.opcode == "fusion":
            return self._carry(instruction, lanes)
        own = own_collective(self.module, self.mesh, computation, instruction)
        if own is not None:
            seconds = self.link_seconds(own)
        elif instruction.opcode == "async-start":
            inside = collectives_inside(self.module, self.mesh, instruction)
            seconds = sum(self.link_seconds(found) * found.count for found in inside)
        else:
            return 0.0
        lanes.send(instruction.name, seconds, is_async=is_async_start(instruction))
        return seconds

    def _carry(self, fusion: Instruction, lanes: _Lanes) -> float:
        spent = 0.0
        for carried in carried_collectives(self.module, self.mesh, fusion):
            thread = carried.thread
            name = fusion.name if thread is None else f"{thread[0]} on channel {thread[1]}"
            if thread not in self.underway:
                seconds = self.link_seconds(carried.collective)
                lanes.send(name, seconds, is_async=carried.starts)
                spent += seconds
            elif carried.ends:
                lanes.wait_for(name)
            carried.note(self.underway)
        return spent

    def _inside(self, instruction: Instruction) -> _Spent | None:
        called = [name for _, name in instruction.called()]
        if instruction.opcode == "while":
            spent = _Spent()
            for name in called:
                spent = spent.plus(self.run(name))
            return spent.times(known_trip_count(self.module, instruction) or 1)
        if instruction.opcode == "conditional" and called:
            spent = _Spent()
            for name in called:
                spent = spent.plus(self.run(name))
            return spent.times(1 / len(called))
        if instruction.opcode == "call":
            return self.run(called[0])
        return None


def cycles_of(instruction: Instruction) -> float:
    """The compiler's estimate for one run of an instruction; 0 where it gives none."""
    match = _CYCLES.search(instruction.attributes)
    return float(match[1]) if match else 0.0
