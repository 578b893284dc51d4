"""The commands that trace a program: `autoshard plan`, `export` and `explain`."""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path

import click

from autoshard import api
from autoshard.commands.command import (
    Command,
    Fraction,
    Seconds,
    example,
    seconds_spent,
    wide_stdout,
    width_option,
)
from autoshard.commands.export import (
    explain_options,
    export_options,
    plan_module_file,
    run_explain,
    run_export,
    save_planned,
)
from autoshard.commands.refine import (
    KEEP_OPTION,
    MINUTES_OPTION,
    ROUNDS_OPTION,
    refine_and_save,
)
from autoshard.commands.targets import load_target
from autoshard.errors import InputError
from autoshard.export.module_file import is_module_file
from autoshard.mesh_search.request import AUTO
from autoshard.mesh_search.shapes import DEFAULT_AXIS_NAMES
from autoshard.planning.progress_line import ProgressLine
from autoshard.planning.stages import TimeLimit
from autoshard.refine.request import target_hardware
from autoshard.report import print_report
from autoshard.sharding import parse_mesh_sizes
from autoshard.user_files import refuse_unwritable

EXIT_NO_PLAN = 1
_HARDWARE = "cpu-host"


@click.command(
    "plan",
    cls=Command,
    epilog=example(
        "plan train:train_step --mesh data=2,model=4 --hardware tpu-v5e --out plan.json",
        "plan train:train_step --devices 8 --hardware tpu-v5e --out other.json",
    ),
)
@click.argument("target", metavar="MODULE:FUNCTION|FILE.mlir")
@click.option(
    "--mesh", help="Axes and their sizes, data=2,model=4; or auto, to have the best one searched."
)
@click.option(
    "--devices",
    type=int,
    metavar="N",
    help="Search the best mesh of so many devices; of all of this machine's, if --mesh is auto.",
)
@click.option(
    "--axis-names",
    metavar="NAMES",
    default=",".join(DEFAULT_AXIS_NAMES),
    show_default=True,
    help="Of the axes of a mesh that is searched, from the outermost on.",
)
@click.option(
    "--hardware",
    help="A machine that `autoshard hardware` lists, or a YAML file that describes one; if not"
    f" given, what --refine compiles for, else {_HARDWARE}.",
)
@click.option(
    "--memory",
    default="auto",
    show_default=True,
    help="Limit per device: 16GiB, 0.9 (of the device), auto (all of it) or none.",
)
@click.option(
    "--constraints",
    type=click.Path(path_type=Path),
    help="A YAML file with shardings to keep: pins, uses, groups.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Save the plan to this file; to one that ends in .mlir, the planned program.",
)
@click.option(
    "--time-limit",
    type=Seconds(),
    default=180.0,
    show_default=True,
    help="Seconds in all, starting included; what every plan needs is not cut short.",
)
@click.option(
    "--gap",
    type=Fraction(),
    default=0.01,
    show_default=True,
    help="Stop once the plan is proven this close to the best, as a fraction.",
)
@click.option(
    "--schedules",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="Whether large matmuls may all-gather their operands in chunks.",
)
@click.option(
    "--overlap",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="Whether a collective that can run beside the computing is priced by what is left to wait"
    " for.",
)
@click.option(
    "--remat",
    type=click.Choice(["auto", "keep", "off"]),
    default="auto",
    show_default=True,
    help="What a function that does not fit may compute again: chosen, as it is written, nothing.",
)
@click.option(
    "--accumulate",
    metavar="N|auto",
    help="Run a function over so many microbatches, gradients summed; auto: where it does not fit.",
)
@click.option("--solver", default="auto", show_default=True, help="Name of the solver.")
@click.option("--seed", type=int, default=0, show_default=True, help="One seed, one plan.")
@click.option(
    "--simplicity",
    type=Fraction(),
    help="Fraction of the step time to give up at most for a plan that is easier to review;"
    " 0.01, as far as --gap leaves room, if not given.",
)
@click.option(
    "--constraint-effort",
    type=float,
    default=1.0,
    show_default=True,
    help="Work of the search for the smallest set of constraints, as a multiple; inf: no limit.",
)
@click.option(
    "--trip-count",
    "trip_counts",
    multiple=True,
    metavar="FILE:LINE=N",
    help="How often a loop runs that the program does not tell; may be given again.",
)
@click.option(
    "--no-baselines", is_flag=True, help="Leave out the comparison with plans written by hand."
)
@click.option(
    "--cache/--no-cache",
    default=None,
    help="Keep plans, and read those kept of the same program and options; as AUTOSHARD_CACHE says"
    " (a folder, 1 or 0) if not given.",
)
@click.option(
    "--corrections",
    type=click.Path(path_type=Path),
    help="What `autoshard refine` learnt of the same program: prices start from it.",
)
@click.option(
    "--refine",
    "topology",
    metavar="TARGET",
    help="Compile for v5e:2x4, 8xH100, ... (or measure), and give the best plan as compiled.",
)
@ROUNDS_OPTION
@MINUTES_OPTION
@KEEP_OPTION
@width_option
def plan_command(
    target: str,
    mesh: str | None,
    devices: int | None,
    axis_names: str,
    hardware: str | None,
    memory: str,
    constraints: Path | None,
    out: Path | None,
    time_limit: float,
    gap: float,
    schedules: str,
    overlap: str,
    remat: str,
    accumulate: str | None,
    solver: str,
    seed: int,
    simplicity: float | None,
    constraint_effort: float,
    trip_counts: tuple[str, ...],
    no_baselines: bool,
    cache: bool | None,
    corrections: Path | None,
    topology: str | None,
    rounds: int,
    minutes: float,
    keep_in: Path | None,
    width: int | None,
) -> None:
    """Plan MODULE:FUNCTION, or a StableHLO module in a file, and print a report.

    The arguments come from a Python function beside it, found by name: autoshard_args_FUNCTION() or
    autoshard_args() in the module, or an attribute `autoshard_args` of the function. It returns a
    tuple of arguments (jax.ShapeDtypeStruct will do), or a dict with the tuple under "args" and, if
    wanted, "kwargs", "in_shardings", "out_shardings", "constraints", "donate_argnums",
    "static_argnums". What --constraints says is added to what the hook says.

    Exit code 1: no plan fits; 2: an error. Neither writes a file.
    """
    if mesh is not None and mesh != AUTO:
        parse_mesh_sizes(mesh)
    counts = dict(map(read_trip_count, trip_counts))
    if out is not None:
        refuse_unwritable(out, "--out")
    hardware = hardware or target_hardware(topology) or _HARDWARE
    if is_module_file(target):
        make = partial(plan_module_file, target)
    else:
        call = load_target(target)
        options = dict(call.options)
        if constraints is not None:
            options["constraints"] = [options.get("constraints", ()), constraints]
        make = partial(api.optimize, call.function, *call.args, **options)
        make = partial(make, schedules=schedules, remat=remat, accumulate=_count(accumulate))
        if corrections is not None:
            make = partial(make, corrections=corrections)
    with ProgressLine() as progress:
        plan = make(
            mesh=mesh,
            devices=devices,
            axis_names=tuple(name.strip() for name in axis_names.split(",")),
            hardware=hardware,
            memory_budget=None if memory == "none" else memory,
            trip_counts=counts or None,
            solver=solver,
            overlap=overlap,
            time_limit_seconds=TimeLimit.of(time_limit, seconds_spent()),
            relative_gap=gap,
            seed=seed,
            simplicity=simplicity,
            constraint_effort=constraint_effort,
            baselines=not no_baselines,
            cache=cache,
            progress=progress,
        )
        if topology is None and plan.data.is_feasible:
            _ = plan.constraints  # worked out on first use; the report and the file show them
    if topology is not None:
        refine_and_save(
            plan,
            topology,
            rounds=rounds,
            minutes=minutes,
            candidates={},
            keep_in=keep_in,
            out=out,
            target=target,
            width=width,
        )
        return
    if plan.data.is_feasible and out is not None:
        save_planned(plan, out, target)
    print_report(plan.data, wide_stdout(), width)
    if not plan.data.is_feasible:
        click.echo(
            f"error: no plan was found ({plan.data.solver.status})"
            + (f"; {out} was not written" if out else ""),
            err=True,
        )
        sys.exit(EXIT_NO_PLAN)


@click.command(
    "export",
    cls=Command,
    epilog=example("export plan.json train:train_step -o model.mlir --stage collectives"),
)
@export_options
def export_command(
    plan: Path,
    target: str | None,
    out: Path,
    stage: str,
    platform: str | None,
    hardware: Path | None,
) -> None:
    """Write the program of a saved plan as StableHLO, a sharding on every value.

    The program is traced again: from MODULE:FUNCTION, or from the module file that the plan was
    made from.
    """
    refuse_unwritable(out, "--out")
    run_export(plan, target, out, stage, platform, hardware)


@click.command(
    "explain",
    cls=Command,
    epilog=example("explain plan.json train:train_step --against propagation"),
)
@explain_options
@width_option
def explain_command(
    plan: Path,
    target: str | None,
    against: str,  # noqa: ARG001  (there is one choice so far)
    inputs: str,
    time_limit: float,
    hardware: Path | None,
    width: int | None,
) -> None:
    """Print where a saved plan differs from Shardy's propagation alone, why, and what that saves.

    The program is traced again, and planned again to price the differences.
    """
    run_explain(plan, target, inputs, time_limit, hardware, width)


def _count(text: str | None) -> int | str | None:
    """A number of microbatches, or what stands in its place."""
    return int(text) if text is not None and text.isdecimal() else text


def read_trip_count(text: str) -> tuple[str, float]:
    """`train.py:12=100` as a place and a number.

    Raises:
        InputError: It is of another form.
    """
    place, _, count = text.rpartition("=")
    try:
        number = float(count)
    except ValueError:
        number = math.nan
    if not place or not 0 <= number < math.inf:
        raise InputError(
            f'expected FILE:LINE=N with a number of at least 0, found "{text}"',
            where="--trip-count",
            fix="name the line the loop is written on, as in train.py:12=100",
        )
    return place, number
