"""The command that plans one program under many settings: `autoshard sweep`."""

from __future__ import annotations

import csv
import io
import itertools
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import click

from autoshard import api
from autoshard.commands.command import Command, Seconds, example, wide_stdout, width_option
from autoshard.commands.export import plan_module_file
from autoshard.commands.targets import load_target
from autoshard.errors import AutoshardError
from autoshard.export.module_file import is_module_file
from autoshard.plans.plan import PlanData
from autoshard.report.layout import heading, print_on, section, table
from autoshard.report.quantities import format_bytes, format_percent, format_ratio, format_seconds
from autoshard.user_files import refuse_unwritable, write_or_refuse

EXIT_NO_PLAN = 1
COLUMNS = (
    "mesh",
    "hardware",
    "memory",
    "status",
    "step_seconds",
    "gap",
    "collective_bytes",
    "peak_bytes",
    "best_by_hand",
    "by_hand_ratio",
    "plan_seconds",
    "error",
)


@click.command(
    "sweep",
    cls=Command,
    epilog=example(
        "sweep train:train_step --mesh data=8 --mesh data=2,model=4 --memory auto --memory 0.5"
    ),
)
@click.argument("target", metavar="MODULE:FUNCTION|FILE.mlir")
@click.option("--mesh", "meshes", multiple=True, required=True, help="As for `plan`; several.")
@click.option(
    "--hardware",
    multiple=True,
    default=("cpu-host",),
    show_default=True,
    help="As for `plan`; several.",
)
@click.option(
    "--memory", multiple=True, default=("auto",), show_default=True, help="As for `plan`; several."
)
@click.option(
    "--time-limit",
    type=Seconds(),
    default=180.0,
    show_default=True,
    help="Seconds for each plan; what every plan needs is not cut short.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="TABLE.CSV",
    help="Write the table here too, after every plan.",
)
@click.option(
    "--cache/--no-cache",
    default=None,
    help="Keep plans, and read those kept: a sweep that was stopped goes on where it ended.",
)
@width_option
def sweep_command(
    target: str,
    meshes: tuple[str, ...],
    hardware: tuple[str, ...],
    memory: tuple[str, ...],
    time_limit: float,
    out: Path | None,
    cache: bool | None,
    width: int | None,
) -> None:
    """Plan MODULE:FUNCTION on every mesh, machine and memory limit given, and print a table.

    What cannot be planned is a row that says why. Exit code 0: there is a plan in every row; 1: in
    some there is none; 2: an error.
    """
    if out is not None:
        refuse_unwritable(out, "--out")
    if is_module_file(target):
        make = partial(plan_module_file, target)
    else:
        call = load_target(target)
        make = partial(api.optimize, call.function, *call.args, **dict(call.options))
    rows = []
    for mesh, machine, limit in itertools.product(meshes, hardware, memory):
        budget = None if limit == "none" else limit
        options = {"mesh": mesh, "hardware": machine, "memory_budget": budget}
        row = {"mesh": mesh, "hardware": machine, "memory": limit}
        began = time.monotonic()
        try:
            plan = make(**options, time_limit_seconds=time_limit, cache=cache)
            row |= _figures(plan.data)
        except AutoshardError as error:
            row |= {"status": "failed", "error": error.what}
        rows.append(row | {"plan_seconds": time.monotonic() - began})
        click.echo(f"{mesh}, {machine}, {limit}: {row['status']}", err=True)
        if out is not None:
            write_or_refuse(out, _csv(rows).encode(), "the table")
    title = heading(target, f"{len(rows):,} settings; by hand: its step time over that of the plan")
    columns = ("mesh", "hardware", "memory", "status", ">step", ">collectives", ">peak", "by hand")
    print_on(section(title, table(columns, map(_cells, rows))), wide_stdout(), width)
    if any("step_seconds" not in row for row in rows):
        sys.exit(EXIT_NO_PLAN)


def _figures(plan: PlanData) -> dict[str, Any]:
    if not plan.is_feasible:
        return {"status": plan.solver.status, "peak_bytes": plan.memory.peak_bytes}
    found = {
        "status": plan.solver.status,
        "step_seconds": plan.priced_seconds,
        "gap": plan.solver.gap,
        "collective_bytes": plan.collective_bytes,
        "peak_bytes": plan.memory.peak_bytes,
    }
    budget = plan.memory_budget
    fitting = [one for one in plan.baselines if budget is None or one.peak_bytes <= budget]
    if fitting:
        best = min(fitting, key=plan.priced_seconds_of)
        ratio = plan.priced_seconds_of(best) / plan.priced_seconds
        found |= {"best_by_hand": best.name, "by_hand_ratio": ratio}
    return found


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    known = "step_seconds" in row
    by_hand = (
        f"{format_ratio(row['by_hand_ratio'])} ({row['best_by_hand']})"
        if "by_hand_ratio" in row
        else row.get("error", "")
    )
    return (
        row["mesh"],
        row["hardware"],
        row["memory"],
        row["status"] + (f" ({format_percent(row['gap'])})" if known and row["gap"] > 0 else ""),
        format_seconds(row["step_seconds"]) if known else "",
        format_bytes(row["collective_bytes"]) if known else "",
        format_bytes(row["peak_bytes"]) if "peak_bytes" in row else "",
        by_hand,
    )


def _csv(rows: list[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
