"""The commands that only read: `autoshard report`, `diff` and `hardware`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from autoshard.commands.command import Command, example, wide_stdout, width_option
from autoshard.errors import InputError
from autoshard.planning.memory_budget import parse_bytes
from autoshard.plans.plan import PlanData
from autoshard.plans.plan_diff import diff_plans
from autoshard.plans.plan_json import load_plan_data
from autoshard.report import (
    Against,
    format_program,
    format_report_json,
    print_diff,
    print_report,
    write_page,
)
from autoshard.report.hardware_text import print_hardware
from autoshard.report.quantities import format_bytes
from cost_models import CATALOG

EXIT_EXCEEDED = 1
EXIT_DIFFERENT = 1

_html_option = click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="OUT.HTML",
    help="Write one page that opens in any browser, without a network.",
)


@click.command(
    "report",
    cls=Command,
    epilog=example("report plan.json", "report plan.json --html plan.html --fail-above 80GiB"),
)
@click.argument("plan", type=click.Path(path_type=Path))
@_html_option
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="BEFORE.JSON",
    help="With --html: compare with this plan on the page.",
)
@click.option(
    "--summary", is_flag=True, help="Print totals, plans by hand, collectives and notes only."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option(
    "--fail-above",
    metavar="AMOUNT",
    help="Exit with 1 if the memory peak of a device is above this: 80GiB.",
)
@click.option(
    "--round",
    "after_round",
    type=click.IntRange(min=0),
    metavar="PRIORITY",
    help="Print the program after this round of priorities instead.",
)
@width_option
def report_command(
    plan: Path,
    page: Path | None,
    against: Path | None,
    summary: bool,
    as_json: bool,
    fail_above: str | None,
    after_round: int | None,
    width: int | None,
) -> None:
    """Print what a saved plan says: totals, shardings, collectives, memory.

    Exit code 0: done; 1: more than --fail-above, or no plan was found; 2: an error.
    """
    limit = None if fail_above is None else parse_bytes(fail_above)
    _check_views(page, against, as_json, after_round)
    data = load_plan_data(plan)
    if page is not None:
        write_page(data, page, None if against is None else _against(against))
    if after_round is not None:
        wide_stdout().write(format_program(data, after_round))
    elif as_json:
        click.echo(format_report_json(data), nl=False)
    elif page is not None:
        click.echo(f"wrote {page}")
    else:
        print_report(data, wide_stdout(), width, summary=summary)
    exceeded = None if limit is None else _exceeded(data, limit)
    if exceeded:
        click.echo(f"{plan}: {exceeded}", err=True)
        sys.exit(EXIT_EXCEEDED)


def _check_views(
    page: Path | None, against: Path | None, as_json: bool, after_round: int | None
) -> None:
    """Refuse options that say different things to do."""
    if against is not None and page is None:
        raise InputError(
            "--against compares on a page, and no page is asked for",
            where=f"--against {against}",
            fix="add --html out.html, or use `autoshard diff`, which prints what differs",
        )
    if after_round is not None and (as_json or page is not None):
        raise InputError(
            "--round prints text, and so goes with neither --json nor --html",
            where=f"--round {after_round}",
            fix="leave out one of them",
        )


def _against(before: Path) -> Against:
    return Against(plan=load_plan_data(before), name=os.fspath(before))


def _exceeded(data: PlanData, limit: int) -> str | None:
    """What is wrong with a plan that has to stay within a limit, in one line."""
    if not data.is_feasible:
        return f"no plan was found ({data.solver.status})"
    peak = data.memory.peak_bytes
    if peak <= limit:
        return None
    where = f" at {data.memory.peak_where}" if data.memory.peak_where else ""
    return (
        f"the memory peak of {peak:,} bytes ({format_bytes(peak)}) per device{where} is above"
        f" {limit:,} bytes ({format_bytes(limit)})"
    )


@click.command("diff", cls=Command, epilog=example("diff plan.json other.json"))
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@_html_option
@width_option
def diff_command(before: Path, after: Path, page: Path | None, width: int | None) -> None:
    """Print what differs between two saved plans.

    How planning went (seconds, solver, versions) is no difference. Exit code 0: the same; 1: they
    differ; 2: an error.
    """
    old, new = _against(before), load_plan_data(after)
    diff = diff_plans(old.plan, new)
    if page is not None:
        write_page(new, page, old)
        click.echo(f"wrote {page}")
    else:
        print_diff(diff, os.fspath(before), os.fspath(after), wide_stdout(), width)
    if not diff.is_empty:
        sys.exit(EXIT_DIFFERENT)


@click.command("hardware", cls=Command, epilog=example("hardware"))
@width_option
def hardware_command(width: int | None) -> None:
    """List the machines known by name."""
    print_hardware(CATALOG, wide_stdout(), width)
