"""The `autoshard export` and `autoshard explain` commands, and planning a module file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from autoshard import api
from autoshard.collectives import HardwarePrices
from autoshard.commands.command import Seconds
from autoshard.commands.saved_plan import (
    MACHINE_OPTION,
    machine_of,
    planned_again,
    target_of,
    with_options,
    with_program,
)
from autoshard.errors import ExportError
from autoshard.export import stage_names
from autoshard.export.module_file import is_module_file, write_module_file
from autoshard.export.planned_text import PLANNED
from autoshard.export.verify_module import verify_module
from autoshard.plan import Plan
from autoshard.plans.plan_json import load_plan_data
from autoshard.report.propagation_text import print_comparison

F = TypeVar("F", bound=Callable[..., Any])

_EXPLAIN = "explain PLAN TARGET"
_FINAL_STAGES = frozenset({"explicit", "no-rules", "collectives"})


def export_options(command: F) -> F:
    """Adds the arguments and options of `export` to the function that runs it."""
    return with_options(
        command,
        click.argument("plan", type=click.Path(path_type=Path)),
        click.argument("target", required=False, metavar="[MODULE:FUNCTION]"),
        click.option(
            "-o",
            "--out",
            required=True,
            type=click.Path(path_type=Path),
            help="The file to write; no file is written when anything fails.",
        ),
        click.option(
            "--stage",
            type=click.Choice([PLANNED, *stage_names()]),
            default=PLANNED,
            show_default=True,
            help="As it compiles, or after this export step.",
        ),
        click.option(
            "--platform",
            type=click.Choice(["cpu", "tpu", "cuda"]),
            help="Lower the program for this platform; it belongs to none if not given.",
        ),
        MACHINE_OPTION,
    )


def explain_options(command: F) -> F:
    """Adds the arguments and options of `explain` to the function that runs it."""
    return with_options(
        command,
        click.argument("plan", type=click.Path(path_type=Path)),
        click.argument("target", required=False, metavar="[MODULE:FUNCTION]"),
        click.option(
            "--against",
            type=click.Choice(["propagation"]),
            default="propagation",
            show_default=True,
            help="What to compare the plan with.",
        ),
        click.option(
            "--inputs",
            type=click.Choice(["plan", "program"]),
            default="plan",
            show_default=True,
            help="Propagation starts from the plan's arguments and results, or from the program"
            " as written.",
        ),
        click.option(
            "--time-limit",
            type=Seconds(),
            default=60.0,
            show_default=True,
            help="Seconds to plan again in, which prices the differences.",
        ),
        MACHINE_OPTION,
    )


def run_export(
    plan: Path,
    target: str | None,
    out: Path,
    stage: str,
    platform: str | None,
    hardware: Path | None,
) -> None:
    """Write the program of a plan as StableHLO text."""
    data = load_plan_data(plan)
    decides = stage in _FINAL_STAGES
    machine = machine_of(data, plan, hardware) if decides or hardware is not None else None
    known = with_program(data, plan, target, "export PLAN TARGET -o FILE")
    known.prices = None if machine is None else HardwarePrices.of(machine, data.mesh)
    text = known.stablehlo(stage, platform=platform)
    if decides:
        violations = verify_module(text)
        if violations:
            raise ExportError(
                f"the exported module has {len(violations)} ops whose shardings do not agree:"
                f" {violations[0]}",
                where=str(out),
                fix="this is a mistake of autoshard; please report it with the plan",
            )
    write_module_file(out, text)
    click.echo(f"wrote {out}: stage {stage}, {text.count(chr(10))} lines")


def run_explain(
    plan: Path,
    target: str | None,
    inputs: str,
    time_limit: float,
    hardware: Path | None,
    width: int | None,
) -> None:
    """Print where a plan differs from propagation alone."""
    data = load_plan_data(plan)
    machine = machine_of(data, plan, hardware)
    name = target_of(data, plan, target, _EXPLAIN)
    known = with_program(data, plan, name, _EXPLAIN)
    known.price = planned_again(data, machine, name, time_limit).price
    print_comparison(known.against_propagation(inputs), sys.stdout, width)


def plan_module_file(target: str, **options: Any) -> Plan:
    """Plan a module file, as the command line is given it."""
    return api.optimize_module(Path(target), **options)


def save_planned(plan: Plan, out: Path, target: str) -> None:
    """Save a plan, or write its program where the file is one for modules.

    The plan file keeps what was planned, so that the program can be found again.
    """
    if is_module_file(out.name):
        write_module_file(out, plan.stablehlo())
        return
    plan.data = replace(plan.data, target=target)
    plan.save(out)
