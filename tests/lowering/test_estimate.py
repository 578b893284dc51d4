"""What a local program takes, of a plan or of a compiled program."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.hlo.local_program import DeviceSpeed, compiled_program
from autoshard.hlo.text import parse_hlo
from autoshard.lowering.estimate import CollectiveUse, estimate
from autoshard.lowering.local_program import (
    Body,
    Buffer,
    Collective,
    HostTransfers,
    Instruction,
    Kernel,
    LocalProgram,
    Memory,
    Opcode,
    Space,
)
from autoshard.sharding import parse_mesh_sizes
from autoshard.verification.collective_comparison import CompiledCollective
from tests.lowering.test_lower import gathering
from tests.planner.test_hidden import chain

KERNEL, START, DONE, CALL = Opcode


def kernel(seconds: float, body: int = 0) -> Kernel:
    return Kernel(name="dot_general", body=body, seconds=seconds, traffic_seconds=seconds)


def gather(
    seconds: float, body: int = 0, *, is_async: bool = True, count: float = 1.0
) -> Collective:
    return Collective(
        kind="all-gather",
        axes=("x",),
        group_size=4,
        bytes_per_device=1000,
        seconds=seconds,
        is_async=is_async,
        name="",
        body=body,
        count=count,
    )


def issue(*instructions: tuple[Opcode, int]) -> tuple[Instruction, ...]:
    return tuple(Instruction(*one) for one in instructions)


BESIDE = issue((START, 0), (KERNEL, 0), (DONE, 0), (KERNEL, 1))


@pytest.mark.parametrize(
    ("seconds", "is_async", "instructions", "expected"),
    [
        (3.0, True, BESIDE, 9.0),
        (6.0, True, BESIDE, 11.0),
        (3.0, False, issue((START, 0), (KERNEL, 0), (KERNEL, 1)), 12.0),
        (3.0, True, issue((KERNEL, 0), (START, 0), (DONE, 0), (KERNEL, 1)), 12.0),
        (3.0, True, issue((KERNEL, 0), (KERNEL, 1), (START, 0)), 12.0),  # over with its body
    ],
)
def test_a_collective_costs_what_no_kernel_between_its_start_and_its_end_covers(
    seconds: float, is_async: bool, instructions: tuple[Instruction, ...], expected: float
) -> None:
    program = LocalProgram(
        kernels=(kernel(4.0), kernel(5.0)),
        collectives=(gather(seconds, is_async=is_async),),
        order=(Body(instructions=instructions),),
    )
    found = estimate(program)
    assert found.seconds == expected
    assert found.collectives == (CollectiveUse(seconds, expected - 9.0, 1000.0),)


@pytest.mark.parametrize(("host_seconds", "waiting"), [(4.0, 0.0), (6.5, 5.0)])
def test_a_body_takes_as_long_as_its_transfers_to_the_host(
    host_seconds: float, waiting: float
) -> None:
    transfers = HostTransfers(host_seconds, 1.0)
    loop = Body(parent=0, trips=2.0, transfers=transfers, instructions=issue((KERNEL, 0)))
    program = LocalProgram(
        kernels=(kernel(4.0, body=1),), order=(Body(instructions=issue((CALL, 1))), loop)
    )
    found = estimate(program)
    assert found.waiting_seconds == waiting
    assert found.seconds == 8.0 + waiting


def test_collectives_run_one_after_another_and_are_exposed_one_by_one() -> None:
    program = LocalProgram(
        kernels=(kernel(4.0),),
        collectives=(gather(3.0), gather(3.0)),
        order=(Body(instructions=issue((START, 0), (START, 1), (KERNEL, 0), (DONE, 1))),),
    )
    assert [use.exposed_seconds for use in estimate(program).collectives] == [0.0, 2.0]


def test_a_loop_runs_as_often_as_it_says_and_nothing_crosses_from_one_run_into_the_next() -> None:
    program = LocalProgram(
        kernels=(kernel(2.0, 1), kernel(10.0)),
        collectives=(gather(3.0, 1, count=0.5), gather(4.0)),
        order=(
            Body(instructions=issue((START, 1), (CALL, 1), (KERNEL, 1))),
            Body(parent=0, trips=6.0, instructions=issue((KERNEL, 0), (START, 0))),
        ),
    )
    found = estimate(program)
    assert found.compute_seconds == 6 * 2.0 + 10.0
    assert found.communication_seconds == 6 * 1.5 + 4.0
    assert found.seconds == 4.0 + 6 * 3.5 + 10.0  # the loop's gathers wait for the one outside
    assert found.collective_bytes == 6 * 500.0 + 1000.0


@st.composite
def programs(draw: st.DrawFn) -> LocalProgram:
    """Kernels and collectives of whole seconds, in up to three bodies, in any order."""
    kernels: list[Kernel] = []
    collectives: list[Collective] = []
    bodies: list[Body] = []
    num_bodies = draw(st.integers(1, 3))
    for index in range(num_bodies):
        found: list[Instruction] = []
        for _ in range(draw(st.integers(0, 6))):
            if draw(st.booleans()):
                found.append(Instruction(KERNEL, len(kernels)))
                kernels.append(kernel(float(draw(st.integers(1, 9))), index))
            else:
                found.append(Instruction(START, len(collectives)))
                one = gather(float(draw(st.integers(0, 9))), index, is_async=draw(st.booleans()))
                collectives.append(one)
                if one.is_async and draw(st.booleans()):
                    found.append(Instruction(KERNEL, len(kernels)))
                    kernels.append(kernel(1.0, index))
                    found.append(Instruction(DONE, len(collectives) - 1))
        parent = draw(st.integers(0, index - 1)) if index else -1
        trips = float(draw(st.integers(1, 4))) if index else 1.0
        bodies.append(Body(parent=parent, trips=trips, instructions=tuple(found)))
        if index:
            outer = bodies[parent]
            called = (*outer.instructions, Instruction(CALL, index))
            bodies[parent] = Body(parent=outer.parent, trips=outer.trips, instructions=called)
    return LocalProgram(kernels=tuple(kernels), collectives=tuple(collectives), order=tuple(bodies))


@given(program=programs())
def test_a_step_takes_no_less_than_its_kernels_or_its_collectives_and_no_more_than_both(
    program: LocalProgram,
) -> None:
    found = estimate(program)
    longest = max(found.compute_seconds, found.communication_seconds)
    assert longest <= found.seconds <= found.blocking_seconds
    assert all(0 <= use.exposed_seconds <= use.seconds for use in found.collectives)
    assert found.exposed_seconds == sum(use.exposed_seconds for use in found.collectives)


@given(program=programs())
def test_where_every_collective_blocks_a_step_takes_its_instructions_in_turn(
    program: LocalProgram,
) -> None:
    blocking = LocalProgram(
        kernels=program.kernels,
        collectives=tuple(gather(c.seconds, c.body, is_async=False) for c in program.collectives),
        order=program.order,
    )
    assert estimate(blocking).seconds == estimate(program).blocking_seconds


def buffer(start: int, stop: int, num_bytes: int, space: Space = Space.HBM) -> Buffer:
    return Buffer(kind="value", num_bytes=num_bytes, start=start, stop=stop, space=space)


BUFFERS = (
    buffer(0, 2, 8),
    buffer(1, 9, 4),
    buffer(2, 9, 12),
    buffer(0, 9, 100, Space.VMEM),
    buffer(0, 9, 3, Space.ARGUMENT),
)


def test_memory_is_what_is_live_at_once_or_what_a_heap_grows_to() -> None:
    summed = LocalProgram(buffers=BUFFERS, memory=Memory(argument_bytes=3, num_times=10))
    found = estimate(summed).memory
    assert (found.peak_bytes, found.peak_time, found.argument_bytes) == (3 + 4 + 12, 2, 3)
    assert found.timeline == ((0, 11), (1, 15), (2, 19), (9, 0))
    heap = Memory(argument_bytes=5, table_bytes=7, num_times=10, is_heap=True)
    found = estimate(LocalProgram(buffers=BUFFERS, memory=heap)).memory
    assert found.peak_bytes == 5 + 7 + 24  # the third fits into no gap


CLOCK = 1e12


def as_hlo(program: LocalProgram) -> str:
    """A program without loops as a compiler would print it."""
    lines = []
    made = "%x"
    for opcode, target in program.order[0].instructions:
        if opcode is KERNEL:
            cycles = round(program.kernels[target].seconds * CLOCK)
            config = f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'
            lines.append(f"%kernel.{target} = f32[8]{{0}} fusion({made}), kind=kLoop, {config}")
            made = f"%kernel.{target}"
        elif opcode is START:
            shape = f"(f32[8]{{0}}, f32[{8 * (target + 1)}]{{0}})"
            groups = "replica_groups=[1,4]<=[4], dimensions={0}"
            lines.append(f"%start.{target} = {shape} all-gather-start({made}), {groups}")
        else:
            lines.append(f"%done.{target} = f32[8]{{0}} all-gather-done(%start.{target})")
    body = "\n  ".join(lines)
    return (
        "HloModule planned, is_scheduled=true, num_partitions=4\n\n"
        f"ENTRY %main (x: f32[8]) -> f32[8] {{\n  %x = f32[8]{{0}} parameter(0)\n  {body}\n}}\n"
    )


@pytest.mark.parametrize("rows", [128, 4096, 65536])
def test_a_plan_and_the_text_of_what_it_means_take_the_same(rows: int) -> None:
    planned = gathering(chain(rows, 1024), 1, 2, 3)
    taken = iter([one.seconds for one in _sent_in_order(planned)])

    def link_seconds(_: CompiledCollective) -> float:
        return next(taken)

    speed = DeviceSpeed(clock_hz=CLOCK, bytes_per_second=1.0, moved_seconds=lambda *_: 0.0)
    module = parse_hlo(as_hlo(planned))
    compiled = compiled_program(module, parse_mesh_sizes("x=4"), link_seconds, speed)
    before, after = estimate(planned), estimate(compiled)
    assert len(compiled.collectives) == len(planned.collectives) == 3
    assert after.compute_seconds == pytest.approx(before.compute_seconds)
    assert after.communication_seconds == pytest.approx(before.communication_seconds)
    assert after.seconds == pytest.approx(before.seconds)


def _sent_in_order(program: LocalProgram) -> Sequence[Collective]:
    instructions = program.order[0].instructions
    return [program.collectives[one.target] for one in instructions if one.opcode is START]


def test_buffers_of_a_compiled_program_are_what_its_compiler_reports() -> None:
    speed = DeviceSpeed(clock_hz=CLOCK, bytes_per_second=1.0, moved_seconds=lambda *_: 0.0)
    module = parse_hlo(as_hlo(LocalProgram(order=(Body(instructions=issue()),))))
    allocated = {"argument": 5, "output": 3, "temporary": 11}
    program = compiled_program(module, parse_mesh_sizes("x=4"), lambda _: 0.0, speed, allocated)
    found = estimate(program).memory
    assert (found.argument_bytes, found.peak_bytes) == (5, 19)


def test_transfers_in_place_wait_for_one_another() -> None:
    beside, in_place = HostTransfers(3.0, 2.0), HostTransfers(3.0, 2.0, is_in_place=True)
    assert (beside.run_seconds(1.0), beside.run_seconds(4.0)) == (3.0, 4.0)
    assert in_place.run_seconds(1.0) == 6.0
