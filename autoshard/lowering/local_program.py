"""One device's program: kernels, collectives, buffers, and the order in which they run.

`lower` makes it of a plan, `hlo.local_program` of compiled text; `estimate` runs either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple


class Space(Enum):
    """The memory that a buffer is in."""

    ARGUMENT = "argument"
    OUTPUT = "output"
    HBM = "hbm"
    VMEM = "vmem"


class Opcode(Enum):
    """Kinds of instructions of a schedule."""

    KERNEL = "kernel"
    START = "start"
    DONE = "done"
    CALL = "call"


class Instruction(NamedTuple):
    """One entry of a schedule.

    A `START` of a collective that is not asynchronous blocks until it is over and has no `DONE`; an
    asynchronous one without a `DONE` is over when its body is.

    Args:
        opcode: Kind.
        target: Index of the kernel, of the collective, or of the body that is called.
    """

    opcode: Opcode
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A computation that runs by itself.

    Args:
        name: Of the op, or of the compiled instruction.
        op: Index of the op in the graph of a plan; -1 in a compiled program.
        op_name: JAX's name stack in a compiled program, "" where the compiler dropped it.
        source: `file.py:12`, or "".
        body: Index of the body that it is in.
        seconds: Of one run.
        overlaps: Asynchronous collectives may run beside it.
        cycles: The compiler's estimate for one run; 0 where there is none.
        traffic_seconds: Of one run, elementwise work at the speed of HBM; `seconds` for the rest.
        unpriced_seconds: Of those of one run, which the choice problem does not have.
    """

    name: str
    op: int = -1
    op_name: str = ""
    source: str = ""
    body: int = 0
    seconds: float
    overlaps: bool = True
    cycles: float = 0.0
    traffic_seconds: float
    unpriced_seconds: float = 0.0

    def longer(self, seconds: float) -> Kernel:
        """The same that takes so much longer than the choice problem says."""
        if not seconds:
            return self
        return replace(
            self,
            seconds=self.seconds + seconds,
            traffic_seconds=self.traffic_seconds + seconds,
            unpriced_seconds=self.unpriced_seconds + seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective as it is run.

    Args:
        kind: `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all`, `collective-permute`,
            `collective-broadcast`.
        axes: Mesh axes (or sub-axes, `x:(1)2`) that it works over; None where its groups follow
            none.
        group_size: Devices of one group.
        bytes_per_device: The larger side: of an all-gather the result, of others the operand.
        seconds: Of one run.
        is_async: Kernels between its start and its end run beside it.
        op: Index of the op that it serves in the graph of a plan; -1 in a compiled program.
        value: Index of the value that is resharded; -1 for sums, halos, what the user wrote, and in
            a compiled program.
        name: Of the op that it serves with its source line; in a compiled program its name stack.
        body: Index of the body that it is in.
        count: How often it runs in one run of its body.
    """

    kind: str
    axes: tuple[str, ...] | None
    group_size: int
    bytes_per_device: int
    seconds: float
    is_async: bool
    op: int = -1
    value: int = -1
    name: str
    body: int = 0
    count: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Bytes that a device holds for a part of the program.

    Args:
        kind: `argument`, `output` (a result in no argument's buffer, allocated throughout),
            `value`, `copy` (resharded or converted), `chunks` (panels and sums of a collective
            matmul) or `work` (what an op holds beside its operands and results: operands in another
            order, halos, parts of a sum); of a compiled program also `temporary`.
        value: Index of the value in the graph of a plan, of working memory the first result of its
            op; -1 in a compiled program.
        op: Index of the op that makes it, of a resharded copy of the op that it is made for; -1 in
            a compiled program.
        num_bytes: On one device.
        start: Index of the op from which it is live.
        stop: Index of the first op at which it is not any more.
        space: The memory that it is in.
    """

    kind: str
    value: int = -1
    op: int = -1
    num_bytes: int
    start: int
    stop: int
    space: Space


@dataclass(frozen=True, slots=True)
class HostTransfers:
    """Transfers of one run of a body to host memory and back.

    Args:
        to_seconds: Of all that leaves.
        from_seconds: Of all that comes, which takes the other way of the link.
        is_in_place: Parts go back to where they came from: none comes before the last one left.
    """

    to_seconds: float = 0.0
    from_seconds: float = 0.0
    is_in_place: bool = False

    def run_seconds(self, busy: float) -> float:
        """Of one run in which a device is busy for so long, beside the transfers of other runs."""
        if self.is_in_place:
            return busy + self.to_seconds + self.from_seconds
        return max(busy, self.to_seconds, self.from_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A part of the schedule: the program itself, a loop body, or a branch.

    Args:
        parent: Index of the body that calls it; -1 for the program itself.
        trips: How often it runs in one run of its parent; of each of n branches 1/n.
        transfers: To and from host memory, in one run.
        instructions: In the order in which they are issued.
    """

    parent: int = -1
    trips: float = 1.0
    transfers: HostTransfers = HostTransfers()
    instructions: tuple[Instruction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """How the buffers of a program share the memory of a device.

    Args:
        argument_bytes: Of all arguments, tile padding included.
        table_bytes: Of tuple index tables.
        host_bytes: Of what lies in host memory.
        num_times: Points in time that live ranges refer to: `[0, num_times)`.
        is_heap: Temporaries are placed by the heap simulation, beside arguments and results that
            stay allocated throughout; otherwise the peak is the most that is live at once.
        order: Index of the op that runs at each time; empty where that is program order.
    """

    argument_bytes: int = 0
    table_bytes: int = 0
    host_bytes: int = 0
    num_times: int = 1
    is_heap: bool = False
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalProgram:
    """One device's program.

    Args:
        kernels: In program order.
        collectives: In program order; each once, however many readers it serves.
        buffers: Those of arguments, and temporaries in HBM and VMEM; the largest first.
        order: The schedule, body by body; the first is the program itself.
        memory: How the buffers share the memory of a device.
    """

    kernels: tuple[Kernel, ...] = ()
    collectives: tuple[Collective, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    order: tuple[Body, ...] = (Body(),)
    memory: Memory = Memory()

    def runs(self) -> tuple[float, ...]:
        """How often each body runs in one run of the program; parents come before their bodies."""
        found: list[float] = []
        for body in self.order:
            found.append(body.trips * (found[body.parent] if body.parent >= 0 else 1.0))
        return tuple(found)

    def starts(self, times: Mapping[int, int] | None = None) -> dict[tuple[int, int], int]:
        """By value and op that an asynchronous collective serves, when it is started.

        Args:
            times: When each op is run, where that is not in program order.
        """
        found: dict[tuple[int, int], int] = {}
        for body in self.order:
            following: int | None = None
            for one in reversed(body.instructions):
                if one.opcode is Opcode.KERNEL:
                    following = self.kernels[one.target].op
                    following = times[following] if times else following
                elif one.opcode is Opcode.START and following is not None:
                    sent = self.collectives[one.target]
                    if sent.is_async and sent.value >= 0:
                        found[sent.value, sent.op] = following
        return found
