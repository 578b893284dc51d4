"""A program graph under construction: ops may still change, and become frozen at the end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from autoshard.graph.collective import WrittenCollective
from autoshard.graph.custom_cost import CustomCost
from autoshard.graph.program import Graph, Op, OpClass, OpKind, Region, Value
from autoshard.graph.rule import Rule
from autoshard.graph.window import Window

TensorType = tuple[tuple[int, ...], str, int]
"""Shape, element type as StableHLO prints it, bits of one element as stored."""


@dataclass(slots=True)
class OpDraft:
    """An op whose repeats, operands and rule are not final yet; fields are those of `Op`."""

    kind: OpKind
    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    rule: Rule | None
    region: int
    repeat: float
    op_class: OpClass = OpClass.NOTHING
    flops: float = 0.0
    source: str = ""
    equation: str = ""
    pinned: str = ""
    note: str = ""
    operand_repeats: tuple[float, ...] = ()
    collective: WrittenCollective | None = None
    declared: CustomCost | None = None
    is_exact: bool = False
    is_sum: bool = False
    spread: tuple[int, ...] = ()
    windows: tuple[Window, ...] = ()
    moved_windows: int = 0
    memory_kind: str = ""
    in_function: bool = False
    hoisted_from: int = -1
    copies: int = -1


@dataclass(slots=True)
class ValueDraft:
    """A value that may still get a path; fields are those of `Value`."""

    type: TensorType
    op: int
    path: str = ""
    name: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type[0]


@dataclass(slots=True)
class GraphBuilder:
    """Collects ops in program order."""

    ops: list[OpDraft] = field(default_factory=list)
    values: list[ValueDraft] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    value_by_path: dict[str, int] = field(default_factory=dict)
    _alike: dict[object, dict[int, None]] = field(default_factory=dict)

    def add(
        self,
        kind: OpKind,
        name: str,
        operands: tuple[int, ...],
        result_types: Iterable[TensorType],
        *,
        rule: Rule | None,
        region: int,
        repeat: float,
        source: str = "",
        equation: str = "",
        pinned: str = "",
    ) -> OpDraft:
        """Append an op and the values it makes."""
        index = len(self.ops)
        first = len(self.values)
        for result_type in result_types:
            self.values.append(ValueDraft(result_type, index))
        results = tuple(range(first, len(self.values)))
        draft = OpDraft(
            kind,
            name,
            operands,
            results,
            rule,
            region,
            repeat,
            source=source,
            equation=equation,
            pinned=pinned,
        )
        self.ops.append(draft)
        return draft

    def maker(self, value: int) -> OpDraft:
        """The op that makes a value."""
        return self.ops[self.values[value].op]

    def shape(self, value: int) -> tuple[int, ...]:
        return self.values[value].type[0]

    def open_region(
        self,
        kind: Literal["main", "loop", "branch", "manual"],
        parent: int,
        *,
        manual_axes: tuple[str, ...] = (),
        source: str = "",
        mesh: str = "",
    ) -> int:
        """Begin a region at the next op; `close_region` ends it."""
        index = len(self.regions)
        start = len(self.ops)
        self.regions.append(
            Region(
                index,
                kind,
                parent,
                start,
                start,
                manual_axes=manual_axes,
                source=source,
                mesh=mesh,
            )
        )
        return index

    def close_region(self, region: int) -> None:
        self.regions[region] = replace(self.regions[region], stop=len(self.ops))

    def move_before_loop(
        self, moved: Sequence[OpDraft], region: int, carries: Sequence[int]
    ) -> None:
        """Move ops of a loop's region before the loop, and the regions whose ops are among them.

        Args:
            moved: In program order; they read no value that the loop changes.
            region: Of the loop.
            carries: The values that the loop carries.
        """
        if not moved:
            return
        joins = [self.maker(value) for value in carries]
        entered = {join.results[0]: join.operands[0] for join in joins if len(join.operands) == 1}
        found = self.regions[region]
        for op in moved:
            op.operands = tuple(entered.get(value, value) for value in op.operands)
            if op.region == region:
                op.region = found.parent
                op.hoisted_from = region if op.hoisted_from < 0 else op.hoisted_from
        start = min(self.values[value].op for value in carries)
        is_moved = {id(op) for op in moved}
        gone = [at for at in range(start, found.stop) if id(self.ops[at]) in is_moved]
        left = [op for op in self.ops[start : found.stop] if id(op) not in is_moved]
        self.ops[start : found.stop] = [*moved, *left]
        for index in range(start, found.stop):
            for value in self.ops[index].results:
                self.values[value].op = index
        for inner in self.regions[region:]:
            if inner.stop > found.stop:
                continue
            first, last = (bisect_left(gone, at) for at in (inner.start, inner.stop))
            if inner.index != region and inner.start in gone[first : first + 1]:
                parent = found.parent if inner.parent == region else inner.parent
                at, stop = start + first, start + last
            else:
                parent = inner.parent
                at, stop = inner.start + len(gone) - first, inner.stop + len(gone) - last
            self.regions[inner.index] = replace(inner, parent=parent, start=at, stop=stop)

    def set_trip_count(self, region: int, count: float, *, is_known: bool) -> None:
        """Make every op of a loop body, imported as if it ran once, repeat `count` times."""
        found = replace(self.regions[region], trip_count=count, is_trip_count_known=is_known)
        self.regions[region] = found
        for op in self.ops[found.start : found.stop]:
            op.repeat *= count
            if op.operand_repeats:
                op.operand_repeats = tuple(repeat * count for repeat in op.operand_repeats)

    def name_path(self, path: str, value: int) -> None:
        """Let a jaxpr path lead to a value.

        A second value of the same path, the copy of a loop body that is unrolled, must be sharded
        like the first: a constraint at the path reaches both.
        """
        first = self.value_by_path.setdefault(path, value)
        if first != value:
            self.tie(path, first)
            self.tie(path, value)
        if not self.values[value].path:
            self.values[value].path = path

    def tie(self, group: object, value: int) -> None:
        """Add a value to a group whose members must be sharded alike."""
        self._alike.setdefault(group, {})[value] = None

    @property
    def has_ties(self) -> bool:
        """True where some values must be sharded alike."""
        return bool(self._alike)

    def untie(self, values: Set[int]) -> None:
        """Take values out of all groups; the paths of copies lead to those that are left."""
        for group, members in self._alike.items():
            left = self._alike[group] = {one: None for one in members if one not in values}
            if left and isinstance(group, str) and self.value_by_path.get(group) in values:
                self.value_by_path[group] = next(iter(left))

    def note(self, text: str) -> None:
        """Tell the user something, once."""
        self.notes[text] = None

    def finish(self, donated: Sequence[bool], num_captured: int) -> Graph:
        """The frozen graph.

        Args:
            donated: Per argument that is not captured, whether the program may reuse its buffer.
            num_captured: Arguments before those.
        """
        self._number_regions()
        values = tuple(
            Value(index, *draft.type, draft.op, draft.path, draft.name)
            for index, draft in enumerate(self.values)
        )
        ops = tuple(
            Op(
                index,
                draft.kind,
                draft.name,
                draft.operands,
                draft.results,
                draft.rule,
                draft.op_class,
                draft.flops,
                draft.repeat,
                draft.region,
                draft.source,
                draft.equation,
                draft.pinned,
                draft.note,
                draft.operand_repeats,
                draft.collective,
                draft.declared,
                draft.is_exact,
                draft.is_sum,
                draft.spread,
                draft.windows,
                draft.moved_windows,
                draft.memory_kind,
                draft.in_function,
                draft.hoisted_from,
                draft.copies,
            )
            for index, draft in enumerate(self.ops)
        )
        return Graph(
            values,
            ops,
            tuple(self.regions),
            _groups(self._alike),
            dict(self.value_by_path),
            tuple(num_captured + position for position, given in enumerate(donated) if given),
            tuple(self.notes),
            num_captured,
        )

    def _number_regions(self) -> None:
        """Number the regions in program order; those that were moved before a loop come late."""
        order = sorted(self.regions, key=lambda region: (region.start, region.index))
        number = {region.index: place for place, region in enumerate(order)} | {-1: -1}
        self.regions = [
            replace(region, index=place, parent=number[region.parent])
            for place, region in enumerate(order)
        ]
        for op in self.ops:
            op.region, op.hoisted_from = number[op.region], number[op.hoisted_from]


def _groups(alike: Mapping[object, Mapping[int, None]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(members) for members in alike.values() if len(members) > 1)
