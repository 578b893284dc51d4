"""Ops of a loop body that compute the same in every run: compilers run them once, before the loop.

Source: openxla/xla, `while_loop_invariant_code_motion.cc`, which runs behind the partitioner: what
the op sends is sent once. Seen with jaxlib 0.10.2 for host CPUs and libtpu 0.0.52 for a v5e, where
the result is larger than the operands too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoshard.frontend import op_kinds
from autoshard.frontend.graph_builder import GraphBuilder, OpDraft
from autoshard.frontend.trip_counts import Loop
from autoshard.graph.program import OpKind

_HOISTED = frozenset({OpKind.COMPUTE, OpKind.FREE, OpKind.CONSTRAINT})
_WITH_READERS = op_kinds.FREE_SOURCES | frozenset(
    """bitcast_convert broadcast_in_dim convert copy reshape reverse sharding_constraint slice
    transpose""".split()
)
"""Ops that are hoisted for an op that reads them alone.

`costing.loop_borders` knows of those that convert when they run.
"""


def hoist_loop_invariants(build: GraphBuilder, loops: Iterable[Loop]) -> None:
    """Move ops before the loop whose body they stand in, in place.

    What is made of constants alone stays: every device makes its own piece where it is read. So
    do conditions, branches, inner loops, `shard_map` bodies and custom calls.

    Args:
        build: The whole program, of which no op is repeated yet.
        loops: Its loops, inner ones first.
    """
    for loop in loops:
        build.move_before_loop(_invariant_ops(build, loop), loop.region, loop.joins)


def _invariant_ops(build: GraphBuilder, loop: Loop) -> Sequence[OpDraft]:
    """In program order."""
    region = build.regions[loop.region]
    inside = build.ops[region.start : region.stop]
    carries = (build.maker(value) for value in loop.joins)
    changing = {v for carry in carries if len(carry.operands) > 1 for v in carry.results}
    constant: set[int] = set()
    invariant: list[OpDraft] = []
    for op in inside:
        if op.region != loop.region or _stays(op) or not changing.isdisjoint(op.operands):
            changing.update(op.results)
            continue
        invariant.append(op)
        if constant.issuperset(op.operands):
            constant.update(op.results)
    of_condition = _needed_for(loop.condition, inside)
    needed: set[int] = set()
    hoisted: list[OpDraft] = []
    for op in reversed(invariant):
        is_worth_it = op.name not in _WITH_READERS and constant.isdisjoint(op.results)
        stays = id(op) in of_condition and op.operands  # a scalar may be read there and elsewhere
        if not stays and (is_worth_it or not needed.isdisjoint(op.results)):
            hoisted.append(op)
            needed.update(op.operands)
    return hoisted[::-1]


def _needed_for(value: int, ops: Sequence[OpDraft]) -> set[int]:
    """`id`s of the ops that a value is computed by."""
    needed, found = {value}, set[int]()
    for op in reversed(ops):
        if not needed.isdisjoint(op.results):
            found.add(id(op))
            needed.update(op.operands)
    return found


def _stays(op: OpDraft) -> bool:
    """True of an op that may have effects, or is more than work."""
    is_custom = op.name.startswith("custom_call") or op.name.startswith("rng")
    return op.kind not in _HOISTED or is_custom or op.collective is not None
