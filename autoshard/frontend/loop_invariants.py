"""Ops of a loop body that compute the same in every run: compilers run them once, before the loop.

Source: openxla/xla, `while_loop_invariant_code_motion.cc`, which runs behind the partitioner: what
the op sends is sent once. Seen with jaxlib 0.10.2 for host CPUs and libtpu 0.0.52 for a v5e, where
the result is larger than the operands too. Inner loops and conditionals move as one op does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from autoshard.frontend import op_kinds
from autoshard.frontend.dead_code import Control
from autoshard.frontend.graph_builder import GraphBuilder, OpDraft
from autoshard.frontend.trip_counts import Loop
from autoshard.graph.program import OpKind

_HOISTED = frozenset({OpKind.COMPUTE, OpKind.FREE, OpKind.CONSTRAINT, OpKind.JOIN})
_WITH_READERS = op_kinds.FREE_SOURCES | frozenset(
    """bitcast_convert broadcast_in_dim convert copy reshape reverse slice transpose""".split()
)
"""Ops that are hoisted for an op that reads them alone.

`costing.loop_borders` knows of those that convert when they run.
"""


@dataclass(frozen=True, slots=True)
class _Work:
    """An op of a loop body, or an inner loop or conditional with all that is in it.

    Args:
        ops: In program order.
        reads: Values made outside of it.
        makes: The results of its ops.
        is_control: True of a loop or a conditional.
    """

    ops: Sequence[OpDraft]
    reads: Set[int]
    makes: Set[int]
    is_control: bool

    @staticmethod
    def of(ops: Sequence[OpDraft], control: Control | None = None) -> _Work:
        makes = {value for op in ops for value in op.results}
        reads = {value for op in ops for value in op.operands}
        reads |= set() if control is None else {control.value}
        return _Work(ops, reads - makes, makes, control is not None)

    @property
    def stays(self) -> bool:
        """True where it may have effects, or is more than work."""
        return any(map(_has_effects, self.ops)) or (
            not self.is_control and self.ops[0].kind is OpKind.JOIN
        )

    @property
    def is_worth_it(self) -> bool:
        """False of an op that is hoisted for its readers alone."""
        return self.is_control or self.ops[0].name not in _WITH_READERS


def hoist_loop_invariants(
    build: GraphBuilder, loops: Iterable[Loop], controls: Sequence[Control]
) -> None:
    """Move ops before the loop whose body they stand in, in place.

    An op made of constants alone stays: every device makes its own piece where it is read. So do
    conditions, `shard_map` bodies and custom calls, and the loops and conditionals around them.

    Args:
        build: The whole program, of which no op is repeated yet.
        loops: Its loops, inner ones first.
        controls: Of its loops and conditionals.
    """
    for loop in loops:
        hoisted = [op for work in _invariant(build, loop, controls) for op in work.ops]
        build.move_before_loop(hoisted, loop.region, loop.joins)


def _invariant(build: GraphBuilder, loop: Loop, controls: Sequence[Control]) -> Sequence[_Work]:
    """In program order."""
    works = list(_works(build, loop.region, controls))
    carries = (build.maker(value) for value in loop.joins)
    changing = {v for carry in carries if len(carry.operands) > 1 for v in carry.results}
    constant: set[int] = set()
    invariant: list[_Work] = []
    for work in works:
        if work.stays or not changing.isdisjoint(work.reads):
            changing |= work.makes
            continue
        invariant.append(work)
        if not work.is_control and constant >= work.reads:
            constant |= work.makes
    of_condition = _needed_for(loop.condition, works)
    needed: set[int] = set()
    hoisted: list[_Work] = []
    for work in reversed(invariant):
        is_worth_it = work.is_worth_it and constant.isdisjoint(work.makes)
        stays = id(work) in of_condition and work.reads  # a scalar may be read there and elsewhere
        if not stays and (is_worth_it or not needed.isdisjoint(work.makes)):
            hoisted.append(work)
            needed |= work.reads
    return hoisted[::-1]


def _works(build: GraphBuilder, region: int, controls: Sequence[Control]) -> Iterator[_Work]:
    """The works of a loop body, in program order."""
    spans: dict[int, tuple[int, Control | None]] = {}
    for inside in controls:
        if build.regions[inside.regions[0]].parent == region:
            bodies = (build.regions[inner] for inner in inside.regions)
            joins = (build.values[value].op for value in inside.joins)
            ends = [(at, at + 1) for at in joins] + [(body.start, body.stop) for body in bodies]
            spans[min(start for start, _ in ends)] = max(stop for _, stop in ends), inside
    at, stop = build.regions[region].start, build.regions[region].stop
    while at < stop:
        after, control = spans.get(at, (at + 1, None))
        yield _Work.of(build.ops[at:after], control)
        at = after


def _needed_for(value: int, works: Sequence[_Work]) -> set[int]:
    """`id`s of the works that a value is computed by."""
    needed, found = {value}, set[int]()
    for work in reversed(works):
        if not needed.isdisjoint(work.makes):
            found.add(id(work))
            needed |= work.reads
    return found


def _has_effects(op: OpDraft) -> bool:
    is_custom = op.name.startswith("custom_call") or op.name.startswith("rng")
    return op.kind not in _HOISTED or is_custom or op.collective is not None
