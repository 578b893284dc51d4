"""Works of schedulers, made of the tasks of a body, and their order."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.lowering.kernel_order import AssumedKernel, _one_by_one, _Works, kernel_orders
from autoshard.lowering.local_program import Instruction, Opcode
from autoshard.lowering.memory_scheduler import Work
from autoshard.lowering.schedule import Lane, Task


def assumed(task: Task) -> AssumedKernel:
    return AssumedKernel(1e6 * task.seconds)


def works_of(tasks: Sequence[Task]) -> list[Work]:
    body = _Works(tasks, frozenset(), 0.0, {})
    for members in _one_by_one(tasks):
        body.add(members, assumed)
    return body.works


def made(*needs: int, num_bytes: int = 1, joins: int = -1) -> Task:
    return Task(1.0, Lane.COMPUTE, needs, num_bytes=num_bytes, joins=joins)


def test_what_is_gathered_is_there_until_it_is_read() -> None:
    gathered = Task(1.0, Lane.NETWORK, (0,), num_bytes=8)
    _, begun, over, reader = works_of([made(), gathered, made(1)])
    assert (begun.num_bytes, over.num_bytes, reader.needs) == (0, 8, (2,))


def test_a_kernel_waits_for_all_that_runs_in_it() -> None:
    _, scale, kernel, joined = works_of([made(), made(0), made(0), made(1, 2, joins=2)])
    assert (scale.joins, kernel.needs, joined.joins) == (-1, (0, 1), 2)


def test_what_waits_for_later_work_has_a_kernel_of_its_own() -> None:
    *_, last = works_of([made(), made(0), made(1, 0, joins=0)])
    assert last.joins == -1


def test_what_joins_runs_right_behind_though_it_reads_nothing_of_the_kernel() -> None:
    tasks = [made(), made(0, num_bytes=4), made(0, num_bytes=9, joins=1), made(1)]
    found = kernel_orders(tasks, [2, 3], assumed, latency=None, called={}).issued(0)
    assert [one.task for one in found.tasks] == [0, 1, 2, 3]


def test_a_loop_holds_what_its_body_holds_in_the_order_that_is_taken_for_both() -> None:
    """The order that holds the least in the outer body alone is not the one that is taken."""
    loop = Task(1.0, Lane.BOTH, (0,), issues=(Instruction(Opcode.CALL, 1),), num_bytes=1)
    tasks = [made(num_bytes=4), loop, made(1)]
    alone = kernel_orders(tasks, [2], assumed, latency=None, called={1: (0, 0, 0)})
    assert alone.memory.best == 0
    found = kernel_orders(tasks, [2], assumed, latency=None, called={1: (30, 20, 30)})
    assert found.memory.best == 1
