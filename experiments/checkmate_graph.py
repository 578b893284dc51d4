"""The graph that Checkmate schedules, read from a plan: costs and sizes are those of the plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import autoshard
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.graph.program import PRODUCTS, Graph, Op, OpKind
from experiments.checkmate_milp import StepGraph

_WINDOWS = ("reduce_window", "select_and_scatter")


@dataclass(eq=False)
class _Group:
    """A matmul, convolution or pooling with the element-wise ops behind it."""

    ops: list[int] = field(default_factory=list)
    operands: set[int] = field(default_factory=set)


def step_graph(plan: autoshard.Plan) -> StepGraph:
    """Convolutions, matmuls and poolings of a planned step, each with all that follows it.

    What is computed from arguments by element-wise ops alone is there all the time, as they are.
    """
    assert plan.solved is not None
    solution = plan.solved.solution
    graph, encoded, buffers = solution.graph, solution.encoded, solution.encoder.buffers
    groups, group_of = _groups(graph)
    node_costs = {
        encoded.ops[node]: int(encoded.problem.node_costs[node][choice])
        for node, choice in enumerate(solution.choices[: len(encoded.ops)])
    }
    given = {buffers.owner[value] for op in graph.arguments for value in op.results}
    returned = {value for op in graph.results for value in op.operands}

    def num_bytes(owner: int) -> int:
        value = graph.values[owner]
        candidate = solution.decoded.candidates[value.op]
        place = graph.ops[value.op].results.index(owner)
        return solution.encoder.room.local_bytes(value, candidate.results[place])

    def size(index: int) -> int:
        owners = set()
        todo = [
            value
            for op in groups[index].ops
            for value in graph.ops[op].results
            if value in returned or any(group_of.get(j) != index for j in graph.consumers[value])
        ]
        for value in todo:  # grows as it goes
            if buffers.is_stored[value]:
                owners.add(buffers.owner[value])
            elif group_of.get(graph.values[value].op) == index:
                todo += graph.maker(value).operands
        return sum(num_bytes(owner) for owner in owners - given if _is_of(owner, index))

    def _is_of(owner: int, index: int) -> bool:
        return group_of.get(graph.values[owner].op) == index

    scratch: dict[int, int] = defaultdict(int)
    for term in encoded.problem.node_memory:
        op = encoded.ops[term.node] if term.node < len(encoded.ops) else -1
        results = graph.ops[op].results if op >= 0 else ()
        if all(buffers.intervals[one] != (term.start, term.stop) for one in results):
            taken = int(term.usage[solution.choices[term.node]])
            scratch[group_of.get(op, -1)] = max(scratch[group_of.get(op, -1)], taken)
    order = _in_order(groups)
    place = {index: position for position, index in enumerate(order)}
    return StepGraph(
        tuple(sum(node_costs.get(op, 0) for op in groups[i].ops) / PICOSECONDS for i in order),
        tuple(size(i) for i in order),
        tuple(scratch[i] for i in order),
        tuple(tuple(sorted(place[j] for j in groups[i].operands)) for i in order),
        plan.data.memory.argument_bytes,
    )


def _groups(graph: Graph) -> tuple[dict[int, _Group], Mapping[int, int]]:
    """Groups by the index of their first op, and the group of every op that is in one."""
    groups: dict[int, _Group] = {}
    group_of: dict[int, int] = {}
    for op in graph.ops:
        if op in graph.arguments or op in graph.results:
            continue
        made = {group_of[m.index] for m in map(graph.maker, op.operands) if m.index in group_of}
        if not _is_heavy(op):
            if not made:
                continue
            last = max(made, key=lambda one: groups[one].ops[-1])
            if not any(_reaches(groups, last, other) for other in made - {last}):
                groups[last].ops.append(op.index)
                groups[last].operands |= made - {last}
                group_of[op.index] = last
                continue
        groups[op.index] = _Group([op.index], made)
        group_of[op.index] = op.index
    return groups, group_of


def _is_heavy(op: Op) -> bool:
    is_computed = op.kind in (OpKind.COMPUTE,)
    return is_computed and (op.op_class in PRODUCTS or any(n in op.name for n in _WINDOWS))


def _reaches(groups: Mapping[int, _Group], start: int, stop: int) -> bool:
    """True where a group is computed from another, directly or not."""
    todo, seen = [stop], {stop}
    for one in todo:  # grows as it goes
        if one == start:
            return True
        new = groups[one].operands - seen
        seen |= new
        todo += new
    return False


def _in_order(groups: Mapping[int, _Group]) -> list[int]:
    """Groups, each after those that it reads, else as their first ops stand in the program."""
    found: list[int] = []
    left = dict(groups)
    while left:
        ready = min(one for one, group in left.items() if group.operands.isdisjoint(left))
        found.append(ready)
        del left[ready]
    return found
