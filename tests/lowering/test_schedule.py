"""Tasks on two lanes: what runs beside what, and what is left to wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.lowering.estimate import Estimate, estimate
from autoshard.lowering.local_program import (
    Body,
    Collective,
    Instruction,
    Kernel,
    LocalProgram,
    Opcode,
)
from autoshard.lowering.schedule import (
    Lane,
    Task,
    Timeline,
    issue_order,
    issued_in_turn,
    schedule,
    schedule_late,
)

COMPUTE, NETWORK, BOTH = Lane.COMPUTE, Lane.NETWORK, Lane.BOTH


@st.composite
def bodies(draw: st.DrawFn, most: int = 12) -> list[Task]:
    """Tasks of whole seconds, so that sums are exact."""
    return [
        Task(
            float(draw(st.integers(0, 9))),
            draw(st.sampled_from(Lane)),
            tuple(sorted(draw(st.sets(st.integers(0, place - 1), max_size=3)))) if place else (),
            covers=draw(st.booleans()),
        )
        for place in range(draw(st.integers(1, most)))
    ]


def issued(tasks: Sequence[Task], timeline: Timeline) -> Estimate:
    """What a body takes in the order in which its tasks are issued, each of them one number."""
    opcodes = {COMPUTE: Opcode.KERNEL}
    named = [
        task._replace(issues=(Instruction(opcodes.get(task.lane, Opcode.START), place),))
        for place, task in enumerate(tasks)
    ]
    return estimate(
        LocalProgram(
            kernels=tuple(
                Kernel(name="", seconds=seconds, traffic_seconds=seconds)
                for seconds in (task.seconds if task.lane is COMPUTE else 0.0 for task in tasks)
            ),
            collectives=tuple(
                Collective(
                    kind="all-gather",
                    axes=("x",),
                    group_size=4,
                    bytes_per_device=0,
                    seconds=0.0 if task.lane is COMPUTE else task.seconds,
                    is_async=task.lane is NETWORK,
                    name="",
                )
                for task in tasks
            ),
            order=(Body(instructions=issue_order(named, timeline)),),
        )
    )


def exposed(tasks: Sequence[Task], timeline: Timeline) -> tuple[float, ...]:
    """By task, the seconds in which nothing runs beside it."""
    return tuple(use.exposed_seconds for use in issued(tasks, timeline).collectives)


def total(tasks: Sequence[Task], *lanes: Lane) -> float:
    return sum(task.seconds for task in tasks if task.lane in lanes)


def intervals(tasks: Sequence[Task], timeline: Timeline, lane: Lane) -> list[tuple[float, float]]:
    return sorted(
        (start, start + task.seconds)
        for task, start in zip(tasks, timeline.starts, strict=True)
        if task.lane in (lane, BOTH) and task.seconds
    )


@given(tasks=bodies())
def test_a_body_takes_no_less_than_its_fullest_lane_and_no_more_than_its_tasks_in_turn(
    tasks: list[Task],
) -> None:
    seconds = schedule(tasks).seconds
    fullest = max(total(tasks, COMPUTE, BOTH), total(tasks, NETWORK, BOTH))
    assert fullest <= seconds <= total(tasks, COMPUTE, NETWORK, BOTH)


@given(tasks=bodies())
def test_nothing_starts_before_what_it_needs_and_no_lane_does_two_things(
    tasks: list[Task],
) -> None:
    timeline = schedule(tasks)
    for task, start in zip(tasks, timeline.starts, strict=True):
        assert all(start >= timeline.starts[n] + tasks[n].seconds for n in task.needs)
    for lane in (COMPUTE, NETWORK):
        used = intervals(tasks, timeline, lane)
        assert all(before[1] <= after[0] for before, after in pairwise(used))


@given(tasks=bodies())
def test_tasks_issued_in_order_take_as_long_as_the_timeline_says(tasks: list[Task]) -> None:
    timeline = schedule(tasks)
    found = issued(tasks, timeline)
    assert found.seconds == timeline.seconds
    assert found.seconds == found.compute_seconds + found.exposed_seconds


@given(tasks=bodies())
def test_a_late_schedule_as_issued_takes_no_less_than_its_fullest_lane_and_no_more_than_in_turn(
    tasks: list[Task],
) -> None:
    found = issued(tasks, schedule_late(tasks))
    fullest = max(total(tasks, COMPUTE, BOTH), total(tasks, NETWORK, BOTH))
    assert fullest <= found.seconds <= total(tasks, COMPUTE, NETWORK, BOTH)


@given(tasks=bodies())
def test_collectives_start_beside_what_covers_them_or_where_nothing_is_computed(
    tasks: list[Task],
) -> None:
    timeline = schedule(tasks)
    timed = list(zip(tasks, timeline.starts, strict=True))
    for sent, now in timed:
        if sent.lane is NETWORK and sent.seconds:
            beside = [
                task
                for task, start in timed
                if task.lane is COMPUTE and start <= now < start + task.seconds
            ]
            assert all(task.covers for task in beside)


@given(tasks=bodies())
def test_where_every_collective_blocks_nothing_is_hidden(tasks: list[Task]) -> None:
    blocking = [
        Task(task.seconds, BOTH if task.lane is NETWORK else task.lane, task.needs)
        for task in tasks
    ]
    assert schedule(blocking).seconds == total(tasks, COMPUTE, NETWORK, BOTH)


@given(tasks=bodies(), find=st.sampled_from((schedule, schedule_late)))
def test_where_every_collective_blocks_tasks_are_issued_in_turn(
    tasks: list[Task], find: Callable[[Sequence[Task]], Timeline]
) -> None:
    blocking = [
        task._replace(
            lane=BOTH if task.lane is NETWORK else task.lane,
            issues=(Instruction(Opcode.KERNEL, place),),
        )
        for place, task in enumerate(tasks)
    ]
    timeline = find(blocking)
    expected = issue_order(blocking, timeline), timeline.seconds
    assert issued_in_turn(blocking) == expected


@given(tasks=bodies())
def test_collectives_that_take_no_time_leave_the_computing(tasks: list[Task]) -> None:
    free = [
        Task(task.seconds if task.lane is COMPUTE else 0.0, task.lane, task.needs) for task in tasks
    ]
    assert schedule(free).seconds == total(tasks, COMPUTE)


def one_by_one(tasks: Sequence[Task], order: Sequence[int]) -> float:
    """Each task in turn as early as its lanes and needs allow, none put before an earlier one."""
    ends = [0.0] * len(tasks)
    free = {COMPUTE: 0.0, NETWORK: 0.0}
    for place in order:
        task = tasks[place]
        lanes = [COMPUTE, NETWORK] if task.lane is BOTH else [task.lane]
        lanes = lanes if task.seconds else []
        start = max([ends[n] for n in task.needs] + [free[lane] for lane in lanes], default=0.0)
        ends[place] = start + task.seconds
        free.update(dict.fromkeys(lanes, ends[place]))
    return max(ends)


def least_seconds(tasks: Sequence[Task]) -> float:
    """The shortest of all timelines: lanes are served in some order, and that order is tried."""
    return min(
        one_by_one(tasks, order)
        for order in permutations(range(len(tasks)))
        if all(order.index(n) < order.index(p) for p, t in enumerate(tasks) for n in t.needs)
    )


@given(tasks=bodies(most=5))
def test_no_order_at_all_is_shorter_by_half(tasks: list[Task]) -> None:
    least, found = least_seconds(tasks), schedule(tasks).seconds
    assert least <= found <= 2 * least


@given(
    gathers=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    products=st.lists(st.integers(1, 9), min_size=3, max_size=3),
)
def test_weights_fetched_for_a_chain_of_products_are_scheduled_as_well_as_can_be(
    gathers: list[int], products: list[int]
) -> None:
    tasks: list[Task] = []
    before: tuple[int, ...] = ()
    for gather, product in zip(gathers, products, strict=False):
        tasks.append(Task(float(gather), NETWORK))
        tasks.append(Task(float(product), COMPUTE, (*before, len(tasks) - 1)))
        before = (len(tasks) - 1,)
    assert schedule(tasks).seconds == least_seconds(tasks)


def test_a_weight_that_is_fetched_while_earlier_layers_compute_costs_nothing() -> None:
    tasks = [Task(4.0, COMPUTE), Task(3.0, NETWORK), Task(4.0, COMPUTE, (0, 1))]
    timeline = schedule(tasks)
    assert (timeline.seconds, exposed(tasks, timeline)) == (8.0, (0.0, 0.0, 0.0))


@pytest.mark.parametrize("lane", [NETWORK, BOTH])
def test_a_sum_between_dependent_products_is_waited_for_to_the_end(lane: Lane) -> None:
    tasks = [Task(4.0, COMPUTE), Task(3.0, lane, (0,)), Task(4.0, COMPUTE, (1,))]
    timeline = schedule(tasks)
    assert (timeline.seconds, exposed(tasks, timeline)) == (11.0, (0.0, 3.0, 0.0))


def test_the_gather_that_is_read_first_goes_first() -> None:
    tasks = [
        Task(5.0, NETWORK),  # for the last product
        Task(1.0, NETWORK),
        Task(2.0, COMPUTE, (1,)),
        Task(4.0, COMPUTE, (0, 2)),
    ]
    timeline = schedule(tasks)
    assert timeline.starts == (1.0, 0.0, 1.0, 6.0)
    assert timeline.seconds == 10.0


def test_prefetching_holds_up_a_blocking_sum_for_one_collective_only() -> None:
    tasks = [
        Task(1.0, COMPUTE),
        Task(1.0, BOTH, (0,)),
        *(Task(3.0, NETWORK) for _ in range(4)),
        Task(20.0, COMPUTE, (1,)),
        Task(1.0, COMPUTE, (2, 3, 4, 5, 6)),
    ]
    timeline = schedule(tasks)
    assert timeline.starts[1] == 3.0
    assert timeline.seconds == 25.0


def test_a_task_that_takes_no_time_waits_for_no_lane() -> None:
    tasks = [
        Task(9.0, COMPUTE),
        Task(0.0, COMPUTE),
        Task(2.0, NETWORK, (1,)),
        Task(1.0, COMPUTE, (2,)),
    ]
    timeline = schedule(tasks)
    assert (timeline.starts[2], timeline.seconds) == (0.0, 10.0)


def test_a_weight_is_fetched_beside_the_next_product_and_not_beside_an_update() -> None:
    update = Task(5.0, COMPUTE, covers=False)
    product = Task(4.0, COMPUTE, (0,))
    timeline = schedule([update, product, Task(3.0, NETWORK), Task(1.0, COMPUTE, (1, 2))])
    assert timeline.starts[2] == 5.0
    assert timeline.seconds == 10.0
    last = [Task(4.0, COMPUTE), update, Task(3.0, NETWORK, (1,))]
    assert exposed(last, schedule(last))[2] == 3.0


@given(tasks=bodies())
def test_a_late_schedule_keeps_the_laws_of_an_early_one(tasks: list[Task]) -> None:
    timeline = schedule_late(tasks)
    for task, start in zip(tasks, timeline.starts, strict=True):
        assert start >= 0
        assert all(start >= timeline.starts[n] + tasks[n].seconds for n in task.needs)
    for lane in (COMPUTE, NETWORK):
        used = intervals(tasks, timeline, lane)
        assert all(before[1] <= after[0] for before, after in pairwise(used))


def test_late_a_weight_is_there_right_before_its_product_and_not_sooner() -> None:
    first, second = Task(9.0, COMPUTE), Task(9.0, COMPUTE, (0,))
    body = [first, second, Task(3.0, NETWORK), Task(1.0, COMPUTE, (1, 2))]
    assert schedule(body).starts[2] == 0.0
    assert schedule_late(body).starts[2] == 15.0


def test_late_a_sum_that_may_run_at_any_time_keeps_no_weight_from_its_place() -> None:
    """The count of what a loss is over comes first of all, and nothing waits for it soon."""
    weight = [Task(1.0, COMPUTE), Task(3.0, NETWORK, (0,))]
    count = [Task(1.0, COMPUTE), Task(1.0, BOTH, (2,))]
    products = [Task(9.0, COMPUTE), Task(9.0, COMPUTE, (4,)), Task(9.0, COMPUTE, (1, 5))]
    body = [*weight, *count, *products]
    timeline = schedule_late(body)
    assert exposed(body, timeline)[1] == 0.0
    assert timeline.seconds == 30.0


def test_tasks_that_take_no_time_open_no_gap_between_updates() -> None:
    tasks = [
        Task(5.0, COMPUTE, covers=False),
        Task(0.0, COMPUTE, (0,)),
        Task(5.0, COMPUTE, (1,), covers=False),
        Task(3.0, NETWORK),
    ]
    timeline = schedule(tasks)
    assert exposed(tasks, timeline)[3] == 3.0
    assert timeline.seconds == 13.0


def test_the_most_urgent_collective_goes_before_a_loop_where_computing_covers_it() -> None:
    loop, other = Task(3.0, BOTH), Task(4.0, COMPUTE)
    timeline = schedule([Task(4.0, NETWORK), Task(2.0, COMPUTE, (0,)), loop, other])
    assert timeline.starts[0] == 0.0
    uncovered = schedule(
        [Task(4.0, NETWORK), Task(2.0, COMPUTE, (0,)), loop, Task(4.0, COMPUTE, covers=False)]
    )
    assert uncovered.starts[:1] == (4.0,)
