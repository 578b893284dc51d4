"""What a page shows beyond the report's text: every op, collective and value, and memory by op."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from autoshard.plans.plan import HeldTensor, MemoryUse, PlanData, PlannedTensor
from autoshard.plans.source_names import with_short_sources
from autoshard.report.alike import gather_places
from autoshard.report.drawing import Drawing, Grid, draw, grid_of
from autoshard.report.facts import ReportFacts, gather_facts
from autoshard.report.op_rows import OpRow, op_rows
from autoshard.report.tensor_rows import type_text
from autoshard.sharding import Mesh, Sharding
from autoshard.sharding.spec_text import format_spec
from autoshard.source_place import format_source, parse_source

MOST_ROWS = 20_000
"""Rows of a table; the plan file has the others."""

_TICK_STEPS = (1, 2, 2.5, 5, 10)
_NUM_TICKS = 4
_FAR = 2  # a budget that many times above what is held would flatten the drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedRow:
    """The collectives of one kind over the same axes for one op.

    Args:
        op: `dot_general at gpt.py:41 (mlp)`.
        source: The line in it, or "".
        kind: `all-gather`.
        axes: Mesh axes or sub-axes.
        group_size: Devices in one group.
        count: Runs in one step.
        num_bytes: Per device, all runs.
    """

    op: str
    source: str
    kind: str
    axes: tuple[str, ...]
    group_size: int
    count: float
    num_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRow:
    """A value of the program.

    Args:
        kind: `argument`, `result`, `op` (the result of one that takes time) or `value` (any that a
            path leads to).
        name: As the user says it, the op's name, or the path.
        source: `file.py:12 (function)`, or "".
        type_text: `f32[512, 2048]`, or "" where the plan does not say.
        shape: Of the whole tensor; None where the plan does not say.
        sharding: Number of its drawing.
        local_bytes: Of one device's piece, or None where the plan does not say.
    """

    kind: str
    name: str
    source: str
    type_text: str
    shape: tuple[int, ...] | None
    sharding: int
    local_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRow:
    """A line of the user's program and what it does.

    Args:
        source: `file.py:12 (function)`, or "" for all ops that have none.
        compute_seconds: Of all runs of its ops on one device.
        communication_seconds: Likewise.
        num_bytes: Through collectives, per device.
        ops: Numbers of its ops.
        moved: Numbers of its collectives.
    """

    source: str
    compute_seconds: float
    communication_seconds: float
    num_bytes: float
    ops: tuple[int, ...]
    moved: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A place of the program at which what is held changes.

    Args:
        op: Index of the op.
        held_bytes: From there on, per device.
        unnamed_bytes: What of it the page's list of tensors does not explain.
        where: The op's name and line, or "" where the plan does not say.
    """

    op: int
    held_bytes: int
    unnamed_bytes: int
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFacts:
    """Everything a page shows.

    Args:
        report: What the report says too.
        grid: The devices as they are drawn.
        specs: Every sharding as a `PartitionSpec`, each once.
        drawings: The same shardings on the devices.
        ops: All ops that take time, those alike as one, the longest first.
        op_shardings: Of each, the number of its result's sharding.
        moved: All collectives, by op; the heaviest first.
        values: Arguments, results, results of ops, and values by path.
        lines: The user's lines, file by file.
        moments: What is held when.
        held: Tensors held, each for its part of the program.
        held_shardings: Of each, the number of its sharding.
        memory_ticks: Round numbers of bytes up to what is held, or allowed where that is near.
        num_left_out: Rows beyond the page's limit, by table.
    """

    report: ReportFacts
    grid: Grid
    specs: tuple[str, ...]
    drawings: tuple[Drawing, ...]
    ops: tuple[OpRow, ...]
    op_shardings: tuple[int, ...]
    moved: tuple[MovedRow, ...]
    values: tuple[ValueRow, ...]
    lines: tuple[LineRow, ...]
    moments: tuple[Moment, ...]
    held: tuple[HeldTensor, ...]
    held_shardings: tuple[int, ...]
    memory_ticks: tuple[int, ...]
    num_left_out: dict[str, int]


class _Shardings:
    """Numbers for shardings that read the same."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._number_by_sharding: dict[Sharding, int] = {}
        self._number_by_spec: dict[str, int] = {}
        self.drawings: list[Drawing] = []

    def number(self, sharding: Sharding) -> int:
        known = self._number_by_sharding.get(sharding)
        if known is None:
            known = self.number_of_spec(sharding)
            self._number_by_sharding[sharding] = known
        return known

    def number_of_spec(self, sharding: Sharding) -> int:
        drawing = draw(sharding, self._mesh)
        key = f"{format_spec(sharding)} {len(drawing.pieces)}"  # specs end where cuts do
        if key not in self._number_by_spec:
            self._number_by_spec[key] = len(self.drawings)
            self.drawings.append(drawing)
        return self._number_by_spec[key]

    @property
    def specs(self) -> tuple[str, ...]:
        return tuple(key.rpartition(" ")[0] for key in self._number_by_spec)


def gather_page_facts(plan: PlanData) -> PageFacts:
    """Work out what a page on a plan shows; source lines are shortened to their file names."""
    plan = with_short_sources(plan)
    shardings = _Shardings(plan.mesh)
    ops = op_rows(plan.ops)
    sharding_by_op = {
        (op.name, op.result, format_spec(op.sharding)): op.sharding for op in plan.ops
    }
    moved = _moved_rows(plan)
    values = [*_value_rows(plan, shardings)]
    held = plan.memory.held or _held_at_peak(plan.memory)
    most = max([plan.memory.peak_bytes, *(held for _, held in plan.memory.timeline)])
    budget = plan.memory_budget or 0
    num_rows = {"ops": len(ops), "moved": len(moved), "values": len(values)}
    return PageFacts(
        report=gather_facts(plan),
        grid=grid_of(plan.mesh),
        ops=tuple(ops[:MOST_ROWS]),
        op_shardings=tuple(
            shardings.number(sharding_by_op[op.name, op.result, op.spec]) for op in ops[:MOST_ROWS]
        ),
        moved=tuple(moved[:MOST_ROWS]),
        values=tuple(values[:MOST_ROWS]),
        lines=tuple(_line_rows(ops[:MOST_ROWS], moved[:MOST_ROWS])),
        moments=tuple(_moments(plan, held)),
        held=held,
        held_shardings=tuple(shardings.number(tensor.sharding) for tensor in held),
        memory_ticks=_ticks(max(most, budget if budget <= _FAR * most else 0)),
        num_left_out={name: max(0, num - MOST_ROWS) for name, num in num_rows.items()},
        specs=shardings.specs,
        drawings=tuple(shardings.drawings),
    )


def _moved_rows(plan: PlanData) -> list[MovedRow]:
    rows = [
        MovedRow(
            op=op,
            source=op.partition(" at ")[2],
            kind=kind,
            axes=axes,
            group_size=group_size,
            count=sum(plan.collectives[position].count for position in positions),
            num_bytes=sum(plan.collectives[position].moved_bytes for position in positions),
        )
        for op, (kind, axes, group_size), positions in gather_places(
            (one.op, (one.kind, one.axes, one.group_size)) for one in plan.collectives
        )
    ]
    return sorted(rows, key=lambda row: -row.num_bytes)


def _value_rows(plan: PlanData, shardings: _Shardings) -> Iterator[ValueRow]:
    for kind, tensors in (("argument", plan.arguments), ("result", plan.results)):
        for tensor in tensors:
            yield _tensor_row(kind, tensor, shardings)
    for op in plan.ops:
        yield ValueRow(
            kind="op",
            name=op.name,
            source=op.source,
            type_text=op.result,
            shape=_shape(op.result),
            sharding=shardings.number(op.sharding),
            local_bytes=None,
        )
    for path, sharding in plan.values.items():
        yield ValueRow(
            kind="value",
            name=path,
            source="",
            type_text="",
            shape=None,
            sharding=shardings.number(sharding),
            local_bytes=None,
        )


def _tensor_row(kind: str, tensor: PlannedTensor, shardings: _Shardings) -> ValueRow:
    return ValueRow(
        kind=kind,
        name=tensor.name,
        source="",
        type_text=type_text(tensor),
        shape=tensor.shape,
        sharding=shardings.number(tensor.sharding),
        local_bytes=tensor.local_bytes,
    )


def _shape(result: str) -> tuple[int, ...] | None:
    """Of `f32[8, 16]`; None where that is not told."""
    sizes = result.partition("[")[2].removesuffix("]")
    words = [word.strip() for word in sizes.split(",")] if sizes else []
    return tuple(map(int, words)) if all(map(_is_whole, words)) and "[" in result else None


def _is_whole(word: str) -> bool:
    return word.isascii() and word.isdigit()


def _line_rows(ops: Sequence[OpRow], moved: Sequence[MovedRow]) -> list[LineRow]:
    ops_by_line: dict[str, list[int]] = {}
    moved_by_line: dict[str, list[int]] = {}
    for number, op in enumerate(ops):
        ops_by_line.setdefault(_line(op.source), []).append(number)
    for number, row in enumerate(moved):
        moved_by_line.setdefault(_line(row.source), []).append(number)
    return [
        LineRow(
            source=source,
            compute_seconds=sum(ops[n].compute_seconds for n in ops_by_line.get(source, ())),
            communication_seconds=sum(
                ops[n].communication_seconds for n in ops_by_line.get(source, ())
            ),
            num_bytes=sum(moved[n].num_bytes for n in moved_by_line.get(source, ())),
            ops=tuple(ops_by_line.get(source, ())),
            moved=tuple(moved_by_line.get(source, ())),
        )
        for source in sorted({*ops_by_line, *moved_by_line}, key=line_place)
    ]


def _line(source: str) -> str:
    """`train.py:12 (loss)`, whatever module runs it."""
    return format_source(replace(parse_source(source), module=""))


def line_place(source: str) -> tuple[bool, str, int, str]:
    """Sorts `file.py:12 (function)` by file and line; what has no line comes last."""
    file, _, rest = source.partition(":")
    number = rest.partition(" ")[0]
    return (not source, file, int(number) if _is_whole(number) else 0, rest)


def _held_at_peak(memory: MemoryUse) -> tuple[HeldTensor, ...]:
    """What an older plan file says of what is held: only what is at the peak."""
    return tuple(
        HeldTensor(
            name=live.name,
            kind="value",
            source=live.source,
            type_text=live.type_text,
            sharding=live.sharding,
            local_bytes=live.local_bytes,
            start=memory.peak_op,
            stop=memory.peak_op + 1,
        )
        for live in memory.live_at_peak
    )


def _moments(plan: PlanData, held: Iterable[HeldTensor]) -> Iterator[Moment]:
    named: dict[int, int] = {}
    for tensor in held:
        named[tensor.start] = named.get(tensor.start, 0) + tensor.local_bytes
        named[tensor.stop] = named.get(tensor.stop, 0) - tensor.local_bytes
    where = {op.index: f"{op.name} at {op.source}" if op.source else op.name for op in plan.ops}
    where[plan.memory.peak_op] = plan.memory.peak_where
    held_by_op = dict(plan.memory.timeline)
    last = max(held_by_op, default=0)
    named_now = held_now = 0
    for op in sorted({*held_by_op, *named}):
        named_now += named.get(op, 0)
        held_now = held_by_op.get(op, held_now)
        if op <= last:
            yield Moment(
                op=op,
                held_bytes=held_now,
                unnamed_bytes=max(0, held_now - named_now),
                where=where.get(plan.memory.op_at(op), ""),
            )


def _ticks(most: int) -> tuple[int, ...]:
    """Some round numbers from 0 up to the first one that is not below."""
    if most <= 0:
        return (0,)
    rough = most / _NUM_TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = max(1, round(unit * next(s for s in _TICK_STEPS if s * unit >= rough * (1 - 1e-9))))
    return tuple(step * number for number in range(-(-most // step) + 1))
