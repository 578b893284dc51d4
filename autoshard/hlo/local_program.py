"""A compiled program as a local program: kernels, collectives, order, and what is allocated.

Instructions of a scheduled module stand in the order they run in. Kernels take the compiler's
cycles over the clock.

The compiler estimates no cycles of gathers, scatters and sorts, nor of many pads, slices and
copies, which it runs as kernels of their own (libtpu 0.0.52). They are counted with the bytes that
they move, in whole tiles as they lie, at the memory speed they reach; kernels of ragged matmuls
with their arithmetic too. One that has no estimate takes as long as another of its result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from autoshard.hlo.collective_instructions import (
    ASYNC_DONE,
    WINDOWED_LOOP,
    Place,
    Thread,
    carried_collectives,
    collectives_called,
    is_async_start,
    own_collective,
)
from autoshard.hlo.ragged_matmuls import kernel_flops, result_of
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
from autoshard.verification.collective_comparison import ASYNC, PLAIN, WINDOWED, CompiledCollective

_CYCLES = re.compile(r'"estimated_cycles":\s*"?(\d+)')
_NO_ESTIMATE = 2**63 - 1


# What reads and writes each element once and computes little: device memory bounds it.
_BY_ELEMENT = frozenset(
    "abs add and bitcast broadcast clamp compare constant convert copy divide exponential"
    " exponential-minus-one get-tuple-element iota log log-plus-one logistic maximum minimum"
    " multiply negate not or parameter power remainder reshape rsqrt select sign sqrt subtract tanh"
    " transpose tuple xor".split()
)


_UNESTIMATED = ("scatter", "gather", "sort")

_HOLDS = frozenset({"fusion", "async-start"})
"""Instructions that compute what they call; a SparseCore runs gathers and scatters of a TPU so."""

_COPIES = frozenset({"concatenate", "copy", "pad", "reshape", "reverse", "slice"})
"""Ops that read what they write, of which an instruction of its own may have no estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed:
    """How fast a device is.

    Args:
        clock_hz: What cycles are counted in.
        bytes_per_second: Of device memory.
        moved_seconds: Of an op without an estimate, by its name, the bytes that it reads and writes
            and its FLOP.
    """

    clock_hz: float
    bytes_per_second: float
    moved_seconds: Callable[[str, float, float], float]


def compiled_program(
    module: HloModule,
    mesh: Mesh,
    link_seconds: Callable[[CompiledCollective], float],
    speed: DeviceSpeed | None,
    allocated: Mapping[str, int] | None = None,
) -> LocalProgram:
    """The program of one device, as it is scheduled.

    A loop runs as often as the compiler says, one run after another; of branches the mean counts.

    Args:
        module: Scheduled, as compilers give it out.
        mesh: That it was compiled for.
        link_seconds: Of one run of a collective.
        speed: Of the device; kernels are left out where it is not given.
        allocated: Bytes of `argument`, `output` and `temporary` buffers, results in the memory of
            donated arguments once; none where they are not known.
    """
    reader = HloReader.of(module, mesh, link_seconds, speed)
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
class HloReader:
    """Walks a module in the order in which it runs, bodies in the place of what calls them.

    Args:
        module: Scheduled.
        mesh: Names the axes of the collectives, if given.
        link_seconds: Of one run of a collective; none takes any time where it is left out.
        speed: Of the device; kernels are left out where it is.
        compiled: Every collective, as often as it runs in one step.
        kernels: As of `LocalProgram`.
        collectives: Likewise.
        bodies: Likewise.
    """

    module: HloModule
    mesh: Mesh | None
    link_seconds: Callable[[CompiledCollective], float] | None
    speed: DeviceSpeed | None
    compiled: list[CompiledCollective] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)
    _underway: dict[Thread, int] = field(default_factory=dict)  # of fused collectives, loops too
    _ragged_cycles: dict[str, float] = field(default_factory=dict)  # by result

    def __post_init__(self) -> None:
        for computation in self.module.computations.values():
            for instruction in computation.values():
                made, cycles = result_of(instruction), cycles_of(instruction)
                if made and cycles:
                    self._ragged_cycles.setdefault(made, cycles)

    @staticmethod
    def of(
        module: HloModule,
        mesh: Mesh | None,
        link_seconds: Callable[[CompiledCollective], float] | None = None,
        speed: DeviceSpeed | None = None,
    ) -> HloReader:
        """One that has read a module from its entry on."""
        reader = HloReader(module, mesh, link_seconds, speed)
        reader._read(module.entry, -1, 1.0, Place())
        return reader

    def _read(self, computation: str, parent: int, trips: float, place: Place) -> int:
        """Add a computation as a body; its index."""
        index = len(self.bodies)
        self.bodies.append(Body(parent=parent, trips=trips))
        if WINDOWED_LOOP.search(computation):
            place = replace(place, form=WINDOWED)
        instructions = self.module.computations.get(computation, {})
        started: dict[str, list[int]] = {}
        found: list[Issued] = []
        for instruction in instructions.values():
            found += self._communicate(computation, instruction, index, place, started)
            if self.speed is not None:
                found += self._work(self.speed, instruction, instructions, index)
            found += self._calls(instruction, index, place)
        self.bodies[index] = replace(self.bodies[index], instructions=tuple(found))
        return index

    def _work(
        self,
        speed: DeviceSpeed,
        instruction: Instruction,
        beside: Mapping[str, Instruction],
        body: int,
    ) -> Iterator[Issued]:
        cycles = cycles_of(instruction) or self._ragged_cycles.get(result_of(instruction), 0.0)
        if cycles:
            seconds = cycles / speed.clock_hz
            traffic = self._capped(speed, cycles, instruction, beside) / speed.clock_hz
        else:
            seconds = traffic = self._moved(speed, instruction, beside)
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

    def _moved(
        self, speed: DeviceSpeed, instruction: Instruction, beside: Mapping[str, Instruction]
    ) -> float:
        """Seconds of what the compiler gives no estimate of; bytes count as they lie, in tiles.

        A gather reads as much as it makes, a copy at most that. A scatter reads what it adds, and
        reads and writes what it adds that to; a kernel that makes that itself writes zeros before.
        """
        if instruction.opcode in _COPIES and "[]" not in instruction.type_text:  # no scalar
            read = (beside[name].laid_out_bytes for name in instruction.operands if name in beside)
            made = instruction.laid_out_bytes
            return speed.moved_seconds("copy", float(made + min(made, sum(read))), 0.0)
        flops = kernel_flops(instruction, beside)
        if flops:
            read = (beside[name].laid_out_bytes for name in instruction.operands if name in beside)
            num_bytes = float(instruction.laid_out_bytes + sum(read))
            return speed.moved_seconds("matmul", num_bytes, flops)
        one, near = self._unestimated(instruction, beside)
        if one is None:
            return 0.0
        operands = [near[name] for name in one.operands if name in near]
        if one.opcode == "sort":
            num_bytes = one.laid_out_bytes + sum(found.laid_out_bytes for found in operands)
            return speed.moved_seconds("sort", float(num_bytes), 0.0)
        if one.opcode == "gather":
            num_bytes = 2 * one.laid_out_bytes + operands[-1].laid_out_bytes
            return speed.moved_seconds("gather", float(num_bytes), 0.0)
        num_operands = len(operands) // 2
        added = sum(found.laid_out_bytes for found in operands[num_operands + 1 :])
        num_bytes = 3 * added + operands[num_operands].laid_out_bytes
        seconds = speed.moved_seconds("scatter", float(num_bytes), 0.0)
        filled = instruction.laid_out_bytes if self._fills(instruction) else 0
        return seconds + filled / speed.bytes_per_second

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
        if instruction.opcode in _HOLDS:
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
        self,
        speed: DeviceSpeed,
        cycles: float,
        instruction: Instruction,
        beside: Mapping[str, Instruction],
    ) -> float:
        """Cycles of one instruction; of work by element at most those of its bytes."""
        if not cycles or not self._is_by_element(instruction):
            return cycles
        read = (beside[name].laid_out_bytes for name in instruction.operands if name in beside)
        num_bytes = instruction.laid_out_bytes + sum(read)
        return min(cycles, num_bytes / speed.bytes_per_second * speed.clock_hz)

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
        self,
        computation: str,
        instruction: Instruction,
        body: int,
        place: Place,
        started: dict[str, list[int]],
    ) -> Iterator[Issued]:
        """Enter what an instruction starts or waits for.

        Args:
            computation: That the instruction is in.
            instruction: Any.
            body: Of the computation.
            place: How often it runs.
            started: By name of an instruction, the collectives that it started or waited for.
        """
        if instruction.opcode in ASYNC_DONE:
            ended = [one for name in instruction.operands for one in started.get(name, ())]
            yield from (Issued(Opcode.DONE, one) for one in ended)
            started[instruction.name] = ended
            return
        if instruction.opcode == "fusion":
            yield from self._carry(instruction, body, place)
            return
        own = own_collective(self.module, self.mesh, computation, instruction, place)
        sent = [] if own is None else [own]
        if instruction.opcode == "async-start":
            form = ASYNC if place.form == PLAIN else place.form
            inside = replace(place, form=form)
            sent += collectives_called(self.module, self.mesh, instruction, inside)
        is_async = is_async_start(instruction)
        issued = [self._send(one, body, is_async=is_async) for one in sent]
        started[instruction.name] = [one.target for one in issued]
        yield from issued

    def _carry(self, fusion: Instruction, body: int, place: Place) -> Iterator[Issued]:
        for carried in carried_collectives(self.module, self.mesh, fusion, place):
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
        self.compiled.append(one)
        self.collectives.append(
            Collective(
                kind=one.kind,
                axes=one.axes,
                group_size=one.group_size,
                bytes_per_device=one.bytes_per_device,
                seconds=0.0 if self.link_seconds is None else self.link_seconds(one),
                is_async=is_async,
                name=one.op_name,
                body=body,
            )
        )
        return Issued(Opcode.START, len(self.collectives) - 1)

    def _calls(self, instruction: Instruction, body: int, place: Place) -> Iterator[Issued]:
        called = [name for _, name in instruction.called()]
        if instruction.opcode in ("fusion", "async-start", *ASYNC_DONE):
            return
        trips = 1.0
        if instruction.opcode == "while":
            known = known_trip_count(self.module, instruction)
            times = 1 if known is None else known
            trips = float(times)
            place = replace(
                place,
                trip_count=place.trip_count * times,
                is_known=place.is_known and known is not None,
                count=place.count * times,
            )
        elif instruction.opcode == "conditional" and called:
            trips = 1 / len(called)
            place = replace(place, count=place.count / len(called))
        for name in called:
            index = self._read(name, body, trips, place)
            if self.bodies[index].instructions:
                yield Issued(Opcode.CALL, index)
            else:  # what a reduction adds, what a sort compares
                del self.bodies[index]


def cycles_of(instruction: Instruction) -> float:
    """The compiler's estimate for one run of an instruction; 0 where it gives none.

    libtpu writes the largest 64-bit integer for what it cannot estimate, as a ragged matmul.
    """
    match = _CYCLES.search(instruction.attributes)
    return float(match[1]) if match and int(match[1]) != _NO_ESTIMATE else 0.0
