"""The `autoshard export` and `autoshard explain` commands, and planning a module file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from autoshard import api
from autoshard.apply.planned import Plan, load_plan
from autoshard.apply.stablehlo import stage_names
from autoshard.apply.stablehlo.module_file import (
    is_module_file,
    read_module_file,
    write_module_file,
)
from autoshard.apply.stablehlo.planned_text import PLANNED
from autoshard.apply.stablehlo.read_module import read_module
from autoshard.apply.stablehlo.verify_module import verify_module
from autoshard.collectives import HardwarePrices
from autoshard.errors import ExportError, InputError, PlanError
from autoshard.plan import PlanData
from autoshard.plan_json import load_plan_data
from autoshard.report.propagation_text import print_comparison
from autoshard.targets import load_target
from cost_models import CostModelError, Hardware, get_hardware, load_hardware

_MACHINE_OPTION = click.option(
    "--hardware",
    metavar="FILE.yaml",
    type=click.Path(path_type=Path),
    help="The file that describes the machine, where the plan is for one that has no known name.",
)

F = TypeVar("F", bound=Callable[..., Any])

_FINAL_STAGES = frozenset({"explicit", "no-rules", "collectives"})


def export_options(command: F) -> F:
    """Adds the arguments and options of `export` to the function that runs it."""
    return _with(
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
        _MACHINE_OPTION,
    )


def explain_options(command: F) -> F:
    """Adds the arguments and options of `explain` to the function that runs it."""
    return _with(
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
            type=click.FloatRange(min=0, min_open=True),
            default=60.0,
            show_default=True,
            help="Seconds to plan again in, which prices the differences.",
        ),
        _MACHINE_OPTION,
    )


def _with(command: F, *options: Callable[[F], F]) -> F:
    for add in reversed(options):
        command = add(command)
    return command


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
    machine = _machine(data, plan, hardware) if decides or hardware is not None else None
    known = _with_program(data, plan, target)
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
    machine = _machine(data, plan, hardware)
    known = _with_program(data, plan, target)
    known.price = _planned_again(data, machine, _target_of(data, plan, target), time_limit).price
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


def _target_of(data: PlanData, plan: Path, target: str | None) -> str:
    chosen = target or data.target
    if not chosen:
        raise PlanError(
            "the plan does not say what it was made from",
            where=str(plan),
            fix=f"name it after the plan: autoshard export {plan} train:{data.function} -o ...",
        )
    return chosen


def _with_program(data: PlanData, plan: Path, target: str | None) -> Plan:
    """A saved plan with the program it was made for, traced or read again."""
    name = _target_of(data, plan, target)
    if is_module_file(name):
        path = Path(name)
        traced = read_module(read_module_file(path), data.mesh, name=path.name)
        if traced.record.fingerprint != data.program.fingerprint:
            raise PlanError(
                "the plan was made for another module",
                where=f"{plan}, and {name} as it is now",
                fix="name the module it was planned from, or plan again",
            )
        known = Plan(data, None, traced)
    else:
        call = load_target(name)
        kwargs = call.options.get("kwargs")
        known = load_plan(plan, call.function, *call.args, kwargs=kwargs)
    return known


def _machine(data: PlanData, plan: Path, hardware: Path | None) -> Hardware:
    """The machine a plan was made for: by its name, or from the file that describes it."""
    try:
        machine = get_hardware(data.hardware) if hardware is None else load_hardware(hardware)
    except CostModelError as error:
        if hardware is not None:
            raise InputError(error.what, where=error.where, fix=error.fix) from error
        raise InputError(
            f"the plan is for {data.hardware}, which is no machine known by name",
            where=str(plan),
            fix="name the file that describes it: --hardware machine.yaml",
        ) from error
    if machine.name != data.hardware:
        raise InputError(
            f"the plan is for {data.hardware}, and the file describes {machine.name}",
            where=f"--hardware {hardware}",
            fix="name the file of the machine planned for, or plan again",
        )
    return machine


def _planned_again(data: PlanData, machine: Hardware, name: str, time_limit: float) -> Plan:
    options: dict[str, Any] = {
        "mesh": data.mesh,
        "hardware": machine,
        "memory_budget": data.memory_budget,
        "time_limit_seconds": time_limit,
        "baselines": False,
    }
    if is_module_file(name):
        return api.optimize_module(Path(name), **options)
    call = load_target(name)
    options["schedules"] = "none"  # StableHLO has no form for products in steps yet
    return api.optimize(call.function, *call.args, **{**call.options, **options})
