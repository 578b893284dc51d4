"""Points and rows that tests of sweeps share."""

from __future__ import annotations

from typing import Any

from experiments.sweeps.point import PlanOptions, Point
from experiments.sweeps.table import ASKED

MLP = {"layers": 2, "features": 16, "hidden": 32, "batch": 16}


def mlp_point(sizes: dict[str, Any] | None = None, **options: Any) -> Point:
    """A small perceptron's point; `options` are those of `PlanOptions`."""
    given = {"baselines": False, **options}
    return Point(workload="mlp", sizes={**MLP, **(sizes or {})}, options=PlanOptions(**given))


def row(**columns: Any) -> dict[str, Any]:
    """A row with something in every column that says what was asked."""
    return {**dict.fromkeys(ASKED, "x"), "status": "optimal", "commit": "abc", **columns}
