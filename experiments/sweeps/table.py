"""The table of a sweep as CSV: one row for each point, in an order that does not depend on when."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ASKED = (
    "workload",
    "sizes",
    "mesh",
    "hardware",
    "memory",
    "solver",
    "time_limit_seconds",
    "relative_gap",
    "seed",
    "schedules",
    "overlap",
    "baselines",
)
"""What a point is; `sizes` names those that are not the workload's own."""

FOUND = (
    "parameters",
    "devices",
    "status",
    "error",
    "cost_seconds",
    "bound_seconds",
    "gap",
    "step_seconds",
    "compute_seconds",
    "communication_seconds",
    "budget_bytes",
    "peak_bytes",
    "argument_bytes",
    "collective_bytes",
    "num_collectives",
    "num_ops",
    "num_choices",
    "reduced_nodes",
    "reduced_columns",
    "backend",
)
"""What its plan is; the same whenever it is planned by the same code."""

TOOK = ("plan_seconds", "peak_rss_bytes")
"""What planning took, the stages' seconds beside it; never the same twice."""

PROVENANCE = ("commit", "date", "machine", "python", "autoshard", "jax", "jaxlib", "ortools")
"""Where a row comes from."""

COLUMNS = ("id", *ASKED, *FOUND, *TOOK, *PROVENANCE)
"""Columns that every table has; those named after stages and baselines follow."""


def table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, in the order of what was asked, whatever order they come in.

    Columns that only some rows have, such as those of a planning stage, come last, by name.
    """
    further = sorted({name for row in rows for name in row} - set(COLUMNS))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, *further], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows, key=_order))
    return text.getvalue()


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a table, all as text; what a row does not have is empty."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def shown_row(row: Mapping[str, str]) -> dict[str, str]:
    """A row as a page of results shows it."""
    feasible = bool(row["step_seconds"])
    return {
        "workload": f"{row['workload']} {row['sizes']}".strip(),
        "mesh": row["mesh"],
        "memory": row["memory"],
        "status": row["status"],
        "step ms": f"{1e3 * float(row['step_seconds']):.1f}" if feasible else "",
        "gap %": f"{100 * float(row['gap']):.2f}" if feasible else "",
        "peak GiB": f"{int(row['peak_bytes']) / 2**30:.1f}" if row["peak_bytes"] else "",
        "collectives GB": f"{float(row['collective_bytes']) / 1e9:.1f}" if feasible else "",
        "plan s": f"{float(row['plan_seconds']):.1f}" if row["plan_seconds"] else "",
        "error": row["error"],
    }


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*(tuple(_natural(str(row.get(name, "")))) for name in ASKED), row["id"])


def _natural(text: str) -> Iterable[tuple[int, float, str]]:
    """Parts of a text that order numbers by size: `8x8` before `16x4`."""
    for word, number in re.findall(r"([^\d]+)|(\d+(?:\.\d+)?)", text):
        yield (0, float(number), "") if number else (1, 0.0, word)
