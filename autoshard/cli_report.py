"""The commands that only read: `autoshard report`, `diff` and `hardware`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from autoshard.cli_command import Command, example, wide_stdout, width_option
from autoshard.plan_diff import diff_plans
from autoshard.plan_json import load_plan_data
from autoshard.report import format_program, print_diff, print_report
from autoshard.report.hardware_text import print_hardware
from cost_models import CATALOG

EXIT_DIFFERENT = 1


@click.command("report", cls=Command, epilog=example("report plan.json --width 120"))
@click.argument("plan", type=click.Path(path_type=Path))
@click.option(
    "--round",
    "after_round",
    type=click.IntRange(min=0),
    metavar="PRIORITY",
    help="Print the program after this round of priorities instead.",
)
@width_option
def report_command(plan: Path, after_round: int | None, width: int | None) -> None:
    """Print what a saved plan says: totals, shardings, collectives, memory."""
    if after_round is not None:
        wide_stdout().write(format_program(load_plan_data(plan), after_round))
        return
    print_report(load_plan_data(plan), wide_stdout(), width)


@click.command("diff", cls=Command, epilog=example("diff a.json b.json"))
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@width_option
def diff_command(before: Path, after: Path, width: int | None) -> None:
    """Print what differs between two saved plans.

    How planning went (seconds, solver, versions) is no difference. Exit code 0: the same; 1: they
    differ; 2: an error.
    """
    diff = diff_plans(load_plan_data(before), load_plan_data(after))
    print_diff(diff, os.fspath(before), os.fspath(after), wide_stdout(), width)
    if not diff.is_empty:
        sys.exit(EXIT_DIFFERENT)


@click.command("hardware", cls=Command, epilog=example("hardware"))
@width_option
def hardware_command(width: int | None) -> None:
    """List the machines known by name."""
    print_hardware(CATALOG, wide_stdout(), width)
