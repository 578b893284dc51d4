"""Pictures of a sweep's table: solve time against size, cost against budget, mesh shapes compared.

    python experiments/plots.py sweep/table.csv --out pictures [--formats svg,png]

Each picture is drawn where the table has what it shows: points of several sizes, budgets, meshes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from experiments.sweeps.table import read_table

Row = Mapping[str, str]

GIB = 2**30
COLUMNS = 3
# Okabe and Ito (2008): told apart by colour-blind readers too.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = "osD^vPX"
INK, FAINT = "#262626", "#8c8c8c"
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": FAINT,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "figure.dpi": 150,
    "font.size": 9,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "autoshard",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
FEASIBLE = ("optimal", "within gap", "feasible")


def solve_time(rows: Sequence[Row]) -> Figure | None:
    """Seconds of planning against the number of ops, a line for each workload and mesh."""
    done = [row for row in rows if row["plan_seconds"]]
    groups = _grouped(done, ("workload", "mesh", "hardware", "memory", "solver"))
    lines = [(name, _by(group, "num_ops")) for name, group in groups.items()]
    lines = [(name, group) for name, group in lines if len({r["num_ops"] for r in group}) > 1]
    if not lines:
        return None
    figure, axes = pyplot.subplots(figsize=(6.4, 4.2))
    for index, (name, group) in enumerate(lines):
        axes.plot(
            _numbers(group, "num_ops"),
            _numbers(group, "plan_seconds"),
            color=COLORS[index % len(COLORS)],
            marker=MARKERS[index % len(MARKERS)],
            markersize=4.5,
            linewidth=1.5,
            label=name,
        )
    axes.set(xscale="log", yscale="log", xlabel="ops with a choice", ylabel="planning, s")
    axes.set_title("Planning time against program size")
    for axis in (axes.xaxis, axes.yaxis):
        _plain_log_ticks(axis)
    axes.legend()
    return figure


def cost_against_budget(rows: Sequence[Row]) -> Figure | None:
    """Predicted step time against the memory budget: Pareto fronts, and what is proven of them."""
    done = [row for row in rows if row["budget_bytes"]]
    panels = {
        name: group
        for name, group in _grouped(done, ("workload", "sizes", "hardware", "solver")).items()
        if any(len(_budgets(of_mesh)) > 1 for of_mesh in _grouped(group, ("mesh",)).values())
    }
    return _panels(panels, _draw_budgets, "Step time against memory budget")


def mesh_shapes(rows: Sequence[Row]) -> Figure | None:
    """Predicted step time on each mesh, at its largest budget; plans by hand beside."""
    done = [row for row in rows if row["status"] and row["status"] != "failed"]
    panels = {
        name: [_roomiest(of_mesh) for of_mesh in _grouped(group, ("mesh",)).values()]
        for name, group in _grouped(done, ("workload", "sizes", "hardware", "solver")).items()
    }
    panels = {name: group for name, group in panels.items() if len(group) > 1}
    return _panels(panels, _draw_meshes, "Step time by mesh shape")


FIGURES: dict[str, Callable[[Sequence[Row]], Figure | None]] = {
    "solve_time": solve_time,
    "cost_against_budget": cost_against_budget,
    "mesh_shapes": mesh_shapes,
}
"""Every picture by the name of its file."""


def _draw_budgets(axes: Axes, rows: Sequence[Row]) -> None:
    for index, (name, of_mesh) in enumerate(_grouped(rows, ("mesh",)).items()):
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        found = _by([row for row in of_mesh if row["cost_seconds"]], "budget_bytes")
        budgets = [float(row["budget_bytes"]) / GIB for row in found]
        costs = [_milliseconds(row, "cost_seconds") for row in found]
        bounds = [_milliseconds(row, "bound_seconds") for row in found]
        # A plan that fits a budget fits every larger one.
        front = [min(costs[: place + 1]) for place in range(len(costs))]
        axes.fill_between(budgets, bounds, costs, color=color, alpha=0.12, linewidth=0)
        axes.step(budgets, front, where="post", color=color, linewidth=1.5)
        axes.plot(budgets, costs, marker, color=color, markersize=4.5, label=name)
        missed = [float(r["budget_bytes"]) / GIB for r in of_mesh if r["status"] == "infeasible"]
        # Below the lowest point, side by side.
        at_foot = [0.02 + 0.04 * index] * len(missed)
        axes.plot(missed, at_foot, "x", color=color, transform=axes.get_xaxis_transform())
    if any(row["status"] == "infeasible" for row in rows):
        axes.plot([], [], "x", color=FAINT, label="no plan fits")
    axes.set(xlabel="budget of one device, GiB", ylabel="step, ms", xscale="log")
    shown = [_milliseconds(r, c) for r in rows if r["cost_seconds"] for c in COST_AND_BOUND]
    axes.set_ylim(0.9 * min(shown), 1.1 * max(shown))  # differences of a per mille are not news
    _plain_log_ticks(axes.xaxis)
    axes.legend(fontsize=8, frameon=True, framealpha=0.85, edgecolor="none")


def _draw_meshes(axes: Axes, rows: Sequence[Row]) -> None:
    ordered = sorted(rows, key=lambda row: [int(size) for size in mesh_label(row).split("×")])
    places = range(len(ordered))
    compute = [_milliseconds(row, "compute_seconds") for row in ordered]
    communication = [_milliseconds(row, "communication_seconds") for row in ordered]
    axes.barh(places, compute, color=COLORS[0], height=0.6, label="compute")
    axes.barh(
        places, communication, left=compute, color=COLORS[5], height=0.6, label="communication"
    )
    for place, row in zip(places, ordered, strict=True):
        total = compute[place] + communication[place]
        text = f"{total:.0f}" if total >= 100 else f"{total:.3g}"
        axes.annotate(
            text if row["status"] in FEASIBLE else row["status"],
            (0.0, place),
            xytext=(4, 0),
            textcoords="offset points",
            ha="left",
            va="center",
            fontsize=8,
            color="white" if row["status"] in FEASIBLE else INK,
            fontweight="bold",
        )
    for marker, (column, name) in zip("|dx", BY_HAND, strict=True):
        at = [(_milliseconds(r, column), place) for place, r in enumerate(ordered) if r.get(column)]
        if at:
            axes.plot(*zip(*at, strict=True), marker, color=INK, markersize=6, label=name)
    # A plan by hand that is far worse need not be in sight.
    widest = max([a + b for a, b in zip(compute, communication, strict=True)], default=0.0)
    axes.set_xlim(0, 1.6 * widest or 1.0)
    axes.set_yticks(places, [mesh_label(row) for row in ordered])
    axes.set_ylim(len(ordered) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="step, ms", ylabel="mesh")


COST_AND_BOUND = ("cost_seconds", "bound_seconds")

BY_HAND = (
    ("data_parallel_step_seconds", "data parallel"),
    ("fsdp_step_seconds", "FSDP"),
    ("megatron_step_seconds", "Megatron"),
)
"""Columns of plans written by hand, and what their marks are called."""


def _budgets(rows: Iterable[Row]) -> set[str]:
    """Budgets that a plan was found for."""
    return {row["budget_bytes"] for row in rows if row["cost_seconds"]}


def _roomiest(rows: Sequence[Row]) -> Row:
    """The row of the largest budget; none is larger than any."""
    return max(rows, key=lambda row: float(row["budget_bytes"] or math.inf))


def mesh_label(row: Row) -> str:
    """Sizes alone: `8×8` for `data=8,model=8`."""
    return "×".join(part.partition("=")[2] for part in row["mesh"].split(","))


def _panels(
    groups: Mapping[str, Sequence[Row]], draw: Callable[[Axes, Sequence[Row]], None], title: str
) -> Figure | None:
    """One picture of small ones, a group of rows each."""
    if not groups:
        return None
    columns = min(COLUMNS, len(groups))
    lines = math.ceil(len(groups) / columns)
    figure, grid = pyplot.subplots(
        lines, columns, figsize=(max(4.6, 3.7 * columns), 3.3 * lines), squeeze=False
    )
    handles: dict[str, Line2D] = {}
    for axes, (name, rows) in zip(grid.flat, groups.items(), strict=False):
        draw(axes, rows)
        axes.set_title(name)
        if axes.get_legend() is None:
            handles |= {text: h for h, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    for axes in list(grid.flat)[len(groups) :]:
        axes.set_visible(False)
    if handles:
        figure.legend(handles.values(), handles, loc="outside lower left", ncols=3)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return figure


def _grouped(rows: Iterable[Row], columns: Sequence[str]) -> dict[str, list[Row]]:
    """Rows by what these columns say, named by the first and by those that differ."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        said = (mesh_label(row) if column == "mesh" else row[column] for column in columns)
        groups.setdefault(tuple(said), []).append(row)
    tells = [len({key[place] for key in groups}) > 1 for place in range(len(columns))]
    tells[0] = True
    return {
        ", ".join(part for part, is_told in zip(key, tells, strict=True) if part and is_told): found
        for key, found in groups.items()
    }


def _by(rows: Iterable[Row], column: str) -> list[Row]:
    return sorted(rows, key=lambda row: float(row[column]))


def _numbers(rows: Iterable[Row], column: str) -> list[float]:
    return [float(row[column]) for row in rows]


def _milliseconds(row: Row, column: str) -> float:
    return 1e3 * float(row.get(column) or 0.0)


def _plain_log_ticks(axis: Axis) -> None:
    """Write 20 where a logarithmic axis would write a power, and few numbers."""
    low, high = axis.get_view_interval()
    few = high / max(low, 1e-12) < 4
    axis.set_major_locator(LogLocator(subs=range(1, 10) if few else (1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def draw_table(rows: Sequence[Row], name: str, path: Path) -> bool:
    """Draw one of `FIGURES` to a file; False where the table has nothing to compare."""
    with pyplot.rc_context(STYLE):
        figure = FIGURES[name](rows)
        if figure is None:
            return False
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)
    return True


def main() -> None:
    """Draw every picture that the table has points for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("table", type=Path, help="table.csv of a sweep")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the pictures")
    parser.add_argument("--formats", default="svg,png", help="endings, as in svg,png,pdf")
    options = parser.parse_args()
    rows = read_table(options.table)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in FIGURES:
        paths = [options.out / f"{name}.{ending}" for ending in options.formats.split(",")]
        for path in paths:
            if not draw_table(rows, name, path):
                print(f"{name}: nothing in the table to compare")
                break
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
