"""Pictures show what the table says, and only where there is something to compare."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot
from matplotlib.container import BarContainer

from experiments.plots import (
    FIGURES,
    GIB,
    cost_against_budget,
    mesh_label,
    mesh_shapes,
    solve_time,
)
from experiments.sweeps.folder import SweepFolder
from experiments.sweeps.table import COLUMNS
from tests.sweeps.points import row

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def closed() -> Any:
    yield
    pyplot.close("all")


def told(**columns: Any) -> dict[str, str]:
    """A row as it is read from a table."""
    whole = dict.fromkeys(COLUMNS, "") | row(mesh="data=2,model=4") | columns
    return {name: str(value) for name, value in whole.items()}


def numbers(data: Any) -> list[float]:
    return [float(number) for number in data]


SIZES = [told(num_ops=ops, plan_seconds=ops / 100) for ops in (400, 100, 200)]
BUDGETS = [
    told(budget_bytes=8 * GIB, status="infeasible"),
    *(
        told(budget_bytes=budget * GIB, cost_seconds=cost, bound_seconds=cost / 2)
        for budget, cost in [(64, 0.2), (16, 0.4), (32, 0.5)]
    ),
]
MESHES = [
    told(mesh=mesh, compute_seconds=compute, communication_seconds=communication)
    for mesh, compute, communication in [
        ("data=16,model=4", 0.25, 0.5),
        ("data=8,model=8", 0.25, 0.125),
    ]
] + [told(mesh="data=64", status="infeasible")]


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
def test_one_point_is_nothing_to_compare(draw: Any) -> None:
    assert draw([]) is None
    assert draw([told(status="failed", error="no luck")]) is None
    assert draw([{**BUDGETS[1], **SIZES[0], "mesh": "data=8"}]) is None


def test_planning_time_is_drawn_by_size() -> None:
    figure = solve_time(SIZES)
    assert figure is not None
    (line,) = figure.axes[0].lines
    assert numbers(line.get_xdata()) == [100, 200, 400]
    assert numbers(line.get_ydata()) == [1, 2, 4]


def test_a_larger_budget_never_costs_more_on_the_front() -> None:
    figure = cost_against_budget(BUDGETS)
    assert figure is not None
    front, found, missed, _ = figure.axes[0].lines
    assert front.get_drawstyle() == "steps-post"
    assert list(zip(numbers(front.get_xdata()), numbers(front.get_ydata()), strict=True)) == [
        (16, 400),
        (32, 400),
        (64, 200),
    ]
    assert numbers(found.get_xdata()) == [16, 32, 64]
    assert numbers(found.get_ydata()) == [400, 500, 200]
    assert numbers(missed.get_xdata()) == [8]


def test_meshes_are_compared_at_their_largest_budget() -> None:
    small = [{**row, "budget_bytes": "1", "compute_seconds": "9"} for row in MESHES]
    large = [{**row, "budget_bytes": "2"} for row in MESHES]
    figure = mesh_shapes([*large, *small])
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].texts] == ["375", "750", "infeasible"]


def test_compute_and_communication_are_drawn_on_end_mesh_by_mesh() -> None:
    figure = mesh_shapes(MESHES)
    assert figure is not None
    (axes,) = figure.axes
    compute, communication = (c for c in axes.containers if isinstance(c, BarContainer))
    assert [bar.get_width() for bar in compute] == [250, 250, 0]
    assert [bar.get_x() for bar in communication] == [250, 250, 0]
    assert [bar.get_width() for bar in communication] == [125, 500, 0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["8×8", "16×4", "64"]
    assert [text.get_text() for text in axes.texts] == ["375", "750", "infeasible"]


def test_a_mesh_is_called_by_its_sizes() -> None:
    assert mesh_label({"mesh": "pod=2,data=16"}) == "2×16"


def test_the_command_writes_what_the_table_has(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    for index, mesh in enumerate(MESHES):
        folder.write(str(index), {}, dict(mesh))
    command = [sys.executable, str(ROOT / "experiments/plots.py"), str(folder.merge())]
    done = subprocess.run(
        [*command, "--out", "pictures", "--formats", "svg,png"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "solve_time: nothing in the table to compare",
        "cost_against_budget: nothing in the table to compare",
        "wrote pictures/mesh_shapes.svg",
        "wrote pictures/mesh_shapes.png",
    ]
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == [
        "mesh_shapes.png",
        "mesh_shapes.svg",
    ]
