"""The order in which every body issues its tasks, and the seconds that a run of it takes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from autoshard.costing.combined_calls import combined_calls
from autoshard.graph.program import PRODUCTS, Graph, OpClass
from autoshard.lowering.bodies import Bodies, TaskBody
from autoshard.lowering.kernel_order import AssumedKernel, KernelOrders, kernel_orders
from autoshard.lowering.local_program import Opcode
from autoshard.lowering.op_tasks import OpTasks
from autoshard.lowering.schedule import (
    Lane,
    Role,
    Task,
    issue_order,
    issued_in_turn,
    schedule,
    schedule_late,
)


def schedule_bodies(
    graph: Graph, bodies: Bodies, tasks: OpTasks, rows_summed_with: Mapping[int, int]
) -> None:
    """Schedule all bodies, inner ones first.

    Args:
        graph: The program.
        bodies: Its bodies, with all their tasks.
        tasks: That made them.
        rows_summed_with: By gather of narrow rows, the last one whose sums are in the same call.
    """
    inner_first = tuple(reversed(bodies.by_region.values()))
    schedules = _Schedules(graph, bodies, tasks, rows_summed_with)
    if tasks.costing.backend.schedule.orders_for_memory:
        schedules.order_for_memory(inner_first)
        return
    for body in inner_first:
        bodies.takes(body, schedules.in_turn(body, body.tasks))


@dataclass(frozen=True, slots=True)
class _Schedules:
    """As `schedule_bodies`."""

    graph: Graph
    bodies: Bodies
    tasks: OpTasks
    rows_summed_with: Mapping[int, int]

    def order_for_memory(self, inner_first: tuple[TaskBody, ...]) -> None:
        """Let all bodies issue their tasks in that order in which the program holds the least."""
        policy = self.tasks.costing.backend.schedule
        orders: dict[int, KernelOrders] = {}
        for body in inner_first:
            orders[body.region] = self._orders(body, orders)
        which = orders[0].orders.best()
        for body in inner_first:
            found = orders[body.region].in_order(which)
            body.issued, body.instructions = found.tasks, found.instructions
            if policy.hides_latency:
                seconds = max(schedule(body.tasks).seconds, *body.to_and_from_host)
            elif _every_one_blocks(body.tasks):
                seconds = self.in_turn(body, [body.tasks[place] for place in found.turns])
            else:
                seconds = self.in_turn(body, found.in_turn(body.tasks))
            self.bodies.takes(body, seconds)

    def _orders(self, body: TaskBody, inner: Mapping[int, KernelOrders]) -> KernelOrders:
        """The orders of a body, those that it calls being ordered."""
        policy = self.tasks.costing.backend.schedule
        self._combine(body)
        kept = [place for home, place in self.bodies.ends if home == body.region]
        latency = policy.collective_microseconds if policy.hides_latency else None
        calling = self.bodies.calling(body)
        called = {place: inner[region].orders.held for place, region in calling.items()}
        return kernel_orders(body.tasks, kept, self._assumed, latency=latency, called=called)

    def in_turn(self, body: TaskBody, tasks: list[Task]) -> float:
        """Seconds of a body that issues its tasks as listed, or as lanes and needs allow."""
        policy = self.tasks.costing.backend.schedule
        if _every_one_blocks(tasks):
            body.instructions, seconds = issued_in_turn(tasks)
            return max(seconds, *body.to_and_from_host)
        timeline = schedule_late(tasks) if policy.overlaps_matmuls_only else schedule(tasks)
        body.instructions = issue_order(tasks, timeline)
        return max(timeline.seconds, *body.to_and_from_host)

    def _combine(self, body: TaskBody) -> None:
        """Put sums, and all-gathers, into one call."""
        policy = self.tasks.costing.backend.memory
        graph, keys = self.graph, dict[int, Hashable]()
        for place, task in enumerate(body.tasks):
            if not task.issues or any(one.opcode is not Opcode.START for one in task.issues):
                continue
            sent = [self.tasks.collectives[one.target] for one in task.issues]
            if {one.kind for one in sent} - policy.combined_kinds:
                continue
            value = sent[0].value if sent[0].value >= 0 else graph.ops[sent[0].op].results[0]
            keys[place] = graph.values[value].dtype, *((one.kind, one.axes) for one in sent)
        most = policy.combined_sum_bytes
        needs = [task.needs for task in body.tasks]
        num_bytes = [task.num_bytes for task in body.tasks]
        for place, call in combined_calls(needs, num_bytes, keys, most).items():
            body.tasks[place] = body.tasks[place]._replace(call=call)
        for place, task in enumerate(body.tasks):
            if task.role is Role.SUMS and task.op in self.rows_summed_with:
                last = self.rows_summed_with[task.op]
                body.tasks[place] = task._replace(call=-1 - last)

    def _assumed(self, task: Task) -> AssumedKernel:
        """The kernel of a task as XLA's schedulers estimate it."""
        matmul, convolution = self.tasks.costing.backend.schedule.assumed_microseconds
        op_class = self.graph.ops[task.op].op_class if task.role is Role.MAKES else None
        if op_class is OpClass.CONVOLUTION:
            return AssumedKernel(convolution, is_library_call=True)
        is_whole = task.lane is Lane.BOTH or op_class in PRODUCTS
        return AssumedKernel(matmul if is_whole else 1e6 * task.seconds)


def _every_one_blocks(tasks: list[Task]) -> bool:
    """True where no collective runs beside a kernel."""
    return all(task.lane is not Lane.NETWORK for task in tasks)
