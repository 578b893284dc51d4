"""The data a page's script draws from: numbers to sort by, and the text shown for each."""

from __future__ import annotations

import json
import sys
from typing import Any, TypeAlias

from autoshard.plans.plan_diff import PlanDiff, numbered
from autoshard.report.diff_text import change_cells
from autoshard.report.drawing import Grid
from autoshard.report.markup import visible
from autoshard.report.op_rows import OpRow
from autoshard.report.page_facts import LineRow, MovedRow, PageFacts, ValueRow
from autoshard.report.quantities import format_bytes, format_count, format_seconds

Json: TypeAlias = Any

SUBJECTS = (
    ("program", "program"),
    ("asked", "asked for"),
    ("totals", "totals"),
    ("arguments", "argument"),
    ("results", "result"),
    ("constraints", "constraint"),
    ("values", "value"),
    ("ops", "op"),
    ("products", "heavy matmul"),
    ("residuals", "residual"),
    ("collectives", "collective"),
    ("memory", "memory"),
    ("baselines", "plan by hand"),
    ("notes", "note"),
    ("rounds", "round"),
)
"""The subjects of a comparison, and what one change of each is called."""

_UNSAFE = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"}


def page_data(facts: PageFacts, against: PageFacts | None, diff: PlanDiff | None) -> str:
    """The data as JSON that can stand inside a page: nothing in it ends the script it stands in.

    Args:
        facts: Of the plan.
        against: Of the plan it is compared with.
        diff: From `against` to the plan.
    """
    plans = [facts] if against is None else [facts, against]
    data = {
        "grids": [_grid(plan.grid) for plan in plans],
        "shardings": [one for number, plan in enumerate(plans) for one in _drawn(plan, number)],
        "ops": [_op(row, n) for row, n in zip(facts.ops, facts.op_shardings, strict=True)],
        "moved": list(map(_moved, facts.moved)),
        "values": list(map(_value, facts.values)),
        "lines": list(map(_line, facts.lines)),
        "memory": _memory(facts, against),
        "changes": [] if diff is None or against is None else _changes(diff, against, facts),
        "leftOut": facts.num_left_out,
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.translate(_UNSAFE)


def _grid(grid: Grid) -> Json:
    return {
        "down": [visible(name) for name in grid.down],
        "across": [visible(name) for name in grid.across],
        "columns": grid.columns,
        "devices": grid.devices,
        "numDevices": grid.num_devices,
    }


def _drawn(facts: PageFacts, grid: int) -> list[Json]:
    """The shardings of a plan, with the number of the grid they are drawn on."""
    return [
        {
            "spec": visible(spec),
            "grid": grid,
            "pieces": drawing.pieces,
            "axes": [visible(axes) for axes in drawing.axes],
            "held": drawing.held,
            "sums": [visible(axes) for axes in drawing.sums],
        }
        for spec, drawing in zip(facts.specs, facts.drawings, strict=True)
    ]


def _seconds(number: float) -> list[Json]:
    return [_sortable(number), format_seconds(number)]


def _bytes(number: float | None) -> list[Json]:
    return [-1, ""] if number is None else [_sortable(number), format_bytes(number)]


def _sortable(number: float) -> float:
    """A number that JSON has; a sum may be infinite."""
    return min(number, sys.float_info.max)


def _op(row: OpRow, sharding: int) -> Json:
    return [
        visible(row.name),
        visible(row.source),
        visible(row.result),
        sharding,
        [_sortable(row.count), format_count(row.count)],
        _seconds(row.compute_seconds),
        _seconds(row.communication_seconds),
        _seconds(row.seconds),
    ]


def _moved(row: MovedRow) -> Json:
    return [
        visible(row.op),
        visible(row.kind),
        visible(", ".join(row.axes)),
        row.group_size,
        [_sortable(row.count), format_count(row.count)],
        _bytes(row.num_bytes),
    ]


def _value(row: ValueRow) -> Json:
    return [
        row.kind,
        visible(row.name),
        visible(row.source),
        visible(row.type_text),
        row.shape,
        row.sharding,
        _bytes(row.local_bytes),
    ]


def _line(row: LineRow) -> Json:
    return [
        visible(row.source),
        _seconds(row.compute_seconds),
        _seconds(row.communication_seconds),
        _seconds(row.compute_seconds + row.communication_seconds),
        _bytes(row.num_bytes),
        row.ops,
        row.moved,
    ]


def _memory(facts: PageFacts, against: PageFacts | None) -> Json:
    report = facts.report
    return {
        "moments": [
            [
                moment.op,
                moment.held_bytes,
                format_bytes(moment.held_bytes),
                format_bytes(moment.unnamed_bytes) if moment.unnamed_bytes else "",
                visible(moment.where),
            ]
            for moment in facts.moments
        ],
        "held": [
            [
                visible(tensor.name),
                tensor.kind,
                visible(tensor.source),
                visible(tensor.type_text),
                sharding,
                _bytes(tensor.local_bytes),
                tensor.start,
                tensor.stop,
            ]
            for tensor, sharding in zip(facts.held, facts.held_shardings, strict=True)
        ],
        "peak": report.peak_bytes,
        "budget": None
        if report.memory_budget is None
        else [report.memory_budget, format_bytes(report.memory_budget)],
        "ticks": [_bytes(tick) for tick in facts.memory_ticks],
        "before": [] if against is None else [[m.op, m.held_bytes] for m in against.moments],
    }


def _changes(diff: PlanDiff, before: PageFacts, after: PageFacts) -> list[Json]:
    """What differs; of arguments and results, with the shardings of both plans, -1 for none."""
    found = []
    for subject, kind in SUBJECTS:
        old, new = _shardings(before, kind), _shardings(after, kind)
        for change in getattr(diff, subject):
            if (subject, change.name) == ("memory", "timeline"):  # it is drawn
                continue
            earlier = len(after.drawings) + old[change.name] if change.name in old else -1
            cells = (change.name, *change_cells(change))
            found.append([kind, *map(visible, cells), earlier, new.get(change.name, -1)])
    return found


def _shardings(facts: PageFacts, kind: str) -> dict[str, int]:
    """Numbers of shardings by the names that a comparison uses."""
    rows = numbered((row for row in facts.values if row.kind == kind), lambda row: row.name)
    return {name: row.sharding for name, row in rows.items()}
