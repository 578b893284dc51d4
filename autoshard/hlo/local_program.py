"""A compiled program as a local program: kernels, collectives, order, and what is allocated.

Instructions of a scheduled module stand in the order they run in. Kernels take the compiler's
cycles over the clock.

The compiler estimates no cycles of gathers, scatters and sorts, which it runs as kernels of their
own (libtpu 0.0.42). They are counted with the bytes that they move, in whole tiles as they lie, at
the memory speed they reach.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

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
from autoshard.lowering.local_program import (
    Body,
    Buffer,
    Collective,
    Kernel,
    LocalProgram,
    Memory,
    Opcode,
    Space,
)
from autoshard.lowering.local_program import (
    Instruction as Issued,
)
from autoshard.sharding import Mesh
from autoshard.verification.collective_comparison import WINDOWED, CompiledCollective

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


def compiled_program(
    module: HloModule,
    mesh: Mesh,
    link_seconds: Callable[[CompiledCollective], float],
    speed: DeviceSpeed,
    allocated: Mapping[str, int] | None = None,
) -> LocalProgram:
    """The program of one device, as it is scheduled.

    A loop runs as often as the compiler says, one run after another; of branches the mean counts.

    Args:
        module: Scheduled, as compilers give it out.
        mesh: That it was compiled for.
        link_seconds: Of one run of a collective.
        speed: Of the device.
        allocated: Bytes of `argument`, `output` and `temporary` buffers, results in the memory of
            donated arguments once; none where they are not known.
    """
    reader = _Reader(module, mesh, link_seconds, speed)
    reader.read(module.entry, parent=-1, trips=1.0)
    buffers = tuple(
        Buffer(
            kind=kind,
            num_bytes=num_bytes,
            start=0,
            stop=1,
            space=Space.ARGUMENT if kind == "argument" else Space.HBM,
        )
        for kind, num_bytes in (allocated or {}).items()
    )
    return LocalProgram(
        kernels=tuple(reader.kernels),
        collectives=tuple(reader.collectives),
        buffers=buffers,
        order=tuple(reader.bodies),
        memory=Memory(argument_bytes=(allocated or {}).get("argument", 0)),
    )


@dataclass(slots=True, eq=False)
class _Reader:
    module: HloModule
    mesh: Mesh
    link_seconds: Callable[[CompiledCollective], float]
    speed: DeviceSpeed
    kernels: list[Kernel] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)
    _underway: dict[Thread, int] = field(default_factory=dict)  # of fused collectives, loops too

    def read(self, computation: str, parent: int, trips: float) -> Issued:
        """Add a computation as a body; the instruction that calls it."""
        index = len(self.bodies)
        self.bodies.append(Body(parent=parent, trips=trips))
        instructions = self.module.computations.get(computation, {})
        started: dict[str, list[int]] = {}
        found: list[Issued] = []
        for instruction in instructions.values():
            found += self._communicate(computation, instruction, index, started)
            found += self._work(instruction, instructions, index)
            found += self._calls(instruction, index)
        self.bodies[index] = Body(parent=parent, trips=trips, instructions=tuple(found))
        return Issued(Opcode.CALL, index)

    def _work(
        self, instruction: Instruction, beside: Mapping[str, Instruction], body: int
    ) -> Iterator[Issued]:
        cycles = cycles_of(instruction)
        seconds = traffic = self._moved(instruction, beside) if not cycles else 0.0
        if cycles:
            seconds = cycles / self.speed.clock_hz
            traffic = self._capped(cycles, instruction, beside) / self.speed.clock_hz
        if not seconds:
            return
        yield Issued(Opcode.KERNEL, len(self.kernels))
        self.kernels.append(
            Kernel(
                name=instruction.name,
                op_name=instruction.string("op_name"),
                source=self.module.source(instruction),
                body=body,
                seconds=seconds,
                cycles=cycles,
                traffic_seconds=traffic,
            )
        )

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

    def _communicate(
        self, computation: str, instruction: Instruction, body: int, started: dict[str, list[int]]
    ) -> Iterator[Issued]:
        """Enter what an instruction starts or waits for.

        Args:
            computation: That the instruction is in.
            instruction: Any.
            body: Of the computation.
            started: By name of an instruction, the collectives that it started or waited for.
        """
        if instruction.opcode in ASYNC_DONE:
            ended = [one for name in instruction.operands for one in started.get(name, ())]
            yield from (Issued(Opcode.DONE, one) for one in ended)
            started[instruction.name] = ended
            return
        if instruction.opcode == "fusion":
            yield from self._carry(instruction, body)
            return
        own = own_collective(self.module, self.mesh, computation, instruction)
        if own is not None:
            sent: tuple[CompiledCollective, ...] = (own,)
        elif instruction.opcode == "async-start":
            sent = collectives_inside(self.module, self.mesh, instruction)
        else:
            return
        is_async = is_async_start(instruction)
        issued = [self._send(one, body, is_async=is_async) for one in sent]
        started[instruction.name] = [one.target for one in issued]
        yield from issued

    def _carry(self, fusion: Instruction, body: int) -> Iterator[Issued]:
        for carried in carried_collectives(self.module, self.mesh, fusion):
            thread = carried.thread
            if thread is None or thread not in self._underway:
                issued = self._send(carried.collective, body, is_async=carried.starts)
                yield issued
                if thread is not None and carried.starts:
                    self._underway[thread] = issued.target
            elif carried.ends and self.collectives[self._underway[thread]].body == body:
                yield Issued(Opcode.DONE, self._underway[thread])
            if thread is not None and carried.ends:
                self._underway.pop(thread, None)

    def _send(self, one: CompiledCollective, body: int, *, is_async: bool) -> Issued:
        self.collectives.append(
            Collective(
                kind=one.kind,
                axes=one.axes,
                group_size=one.group_size,
                bytes_per_device=one.bytes_per_device,
                seconds=self.link_seconds(one),
                is_async=is_async,
                name=one.op_name,
                body=body,
                count=one.count,
                is_windowed=one.form == WINDOWED,
            )
        )
        return Issued(Opcode.START, len(self.collectives) - 1)

    def _calls(self, instruction: Instruction, body: int) -> Iterator[Issued]:
        called = [name for _, name in instruction.called()]
        trips = 1.0
        if instruction.opcode == "while":
            trips = known_trip_count(self.module, instruction) or 1
        elif instruction.opcode == "conditional" and called:
            trips = 1 / len(called)
        elif instruction.opcode == "call":
            called = called[:1]
        else:
            return
        for name in called:
            yield self.read(name, body, float(trips))


def cycles_of(instruction: Instruction) -> float:
    """The compiler's estimate for one run of an instruction; 0 where it gives none."""
    match = _CYCLES.search(instruction.attributes)
    return float(match[1]) if match else 0.0
