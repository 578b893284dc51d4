"""The `autoshard refine` command, and what `autoshard plan --refine` shares with it."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import jax

from autoshard.commands.command import Command, example, wide_stdout, width_option
from autoshard.commands.export import save_planned
from autoshard.commands.saved_plan import (
    MACHINE_OPTION,
    machine_of,
    planned_again,
    target_of,
    with_program,
)
from autoshard.errors import PlanError
from autoshard.plan import Plan
from autoshard.plans.plan_json import load_plan_data
from autoshard.refine.corrections_file import load_corrections
from autoshard.refine.request import check_request
from autoshard.report import print_report

EXIT_NO_PLAN = 1
_USAGE = "refine PLAN TARGET --target TOPOLOGY"

ROUNDS_OPTION = click.option(
    "--rounds",
    type=int,
    default=4,
    show_default=True,
    help="Rounds of compiling, at most; the first compiles the plan and those by hand.",
)
MINUTES_OPTION = click.option(
    "--minutes",
    type=float,
    default=15.0,
    show_default=True,
    help="After so many no further compile begins.",
)
KEEP_OPTION = click.option(
    "--keep-in",
    type=click.Path(path_type=Path, file_okay=False),
    help="A folder for compiled programs; one that lies there is not compiled again.",
)


@click.command(
    "refine",
    cls=Command,
    epilog=example(
        "refine plan.json train:train_step --target v5e:2x4 --out refined.json",
        "refine plan.json train:train_step --target measure --rounds 1",
    ),
)
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("target", required=False, metavar="[MODULE:FUNCTION]")
@click.option(
    "--target",
    "topology",
    required=True,
    help="What to compile for: v5e:4x4, 8xH100; or measure, to run on the devices at hand.",
)
@ROUNDS_OPTION
@MINUTES_OPTION
@click.option(
    "--candidate",
    "candidates",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Another plan file of the same program, compiled too; may be given again.",
)
@click.option(
    "--corrections",
    type=click.Path(path_type=Path),
    help="What refining learnt before; prices and memory terms start from it.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Save the refined plan to this file.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=180.0,
    show_default=True,
    help="Seconds to plan again in, and for each later solve.",
)
@KEEP_OPTION
@MACHINE_OPTION
@width_option
def refine_command(
    plan: Path,
    target: str | None,
    topology: str,
    rounds: int,
    minutes: float,
    candidates: tuple[Path, ...],
    corrections: Path | None,
    out: Path | None,
    time_limit: float,
    keep_in: Path | None,
    hardware: Path | None,
    width: int | None,
) -> None:
    """Refine a saved plan: compile it and the plans by hand, learn what differs, plan again.

    The program is traced and planned again, from MODULE:FUNCTION, or from the module file that the
    plan was made from. What was learnt is written beside --out, as OUT.corrections.yaml. Ctrl-C
    ends with the best plan so far.

    Exit code 0: the best compiled plan fits; 1: none does; 2: an error.
    """
    check_out(out)
    data = load_plan_data(plan)
    check_request(topology, rounds, minutes, data.mesh, data.hardware, len(jax.devices()))
    others = {str(path): load_plan_data(path) for path in candidates}
    name = target_of(data, plan, target, _USAGE)
    with_program(data, plan, name, _USAGE)  # refuses another program before it is planned
    machine = machine_of(data, plan, hardware)
    options = {}
    if corrections is not None:
        saved_before = load_corrections(corrections)
        saved_before.fitting(data.function, data.planned_program, machine.name, str(corrections))
        options["corrections"] = corrections
    again = planned_again(data, machine, name, time_limit, baselines=True, **options)
    saved = {str(plan): data} if data.is_feasible else {}  # without a plan there is none to compile
    refine_and_save(
        again,
        topology,
        rounds=rounds,
        minutes=minutes,
        candidates={**saved, **others},
        keep_in=keep_in,
        out=out,
        target=name,
        width=width,
    )


def refine_and_save(
    plan: Plan,
    topology: str,
    *,
    rounds: int,
    minutes: float,
    candidates: dict[str, object],
    keep_in: Path | None,
    out: Path | None,
    target: str,
    width: int | None,
) -> None:
    """Refine a plan, print its report, and save it with what was learnt.

    Where no plan compiled within the memory budget, none is saved and the exit code is 1.
    """
    refined = plan.refine(
        topology,
        rounds=rounds,
        minutes=minutes,
        candidates=candidates,
        keep_in=keep_in,
        progress=lambda line: click.echo(line, err=True),
    )
    record = refined.data.refinement
    assert record is not None
    if out is not None:
        refined.save_corrections(corrections_beside(out))
        if record.chosen is not None:
            save_planned(refined, out, target)
    print_report(refined.data, wide_stdout(), width)
    if record.chosen is None:
        within = " within the memory budget" if record.missing_bytes else ""
        click.echo(f"error: no plan compiled{within}", err=True)
        sys.exit(EXIT_NO_PLAN)


def corrections_beside(out: Path) -> Path:
    """The corrections file of a plan: `plan.corrections.yaml` beside `plan.json`."""
    return out.with_name(f"{out.stem}.corrections.yaml")


def check_out(out: Path | None) -> None:
    """Refuse before compiling what could not be saved after it.

    Raises:
        PlanError: There is no such folder.
    """
    if out is not None and not out.resolve().parent.is_dir():
        raise PlanError(
            f"there is no folder {out.resolve().parent}",
            where=f"--out {out}",
            fix="name a file in a folder that exists",
        )
