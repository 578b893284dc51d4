"""What commands need of a saved plan: its program, its machine, and the same planned again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from autoshard import api
from autoshard.commands.targets import load_target
from autoshard.errors import InputError, PlanError
from autoshard.export.module_file import is_module_file, read_module_file
from autoshard.export.read_module import read_module
from autoshard.export.sound_module import require_sound
from autoshard.plan import Plan
from autoshard.plans.plan import PlanData
from autoshard.saved_plan import load_plan
from cost_models import CostModelError, Hardware, get_hardware, load_hardware

F = TypeVar("F", bound=Callable[..., Any])

_TARGET = re.compile(r"[A-Za-z_][\w.]{0,200}:[A-Za-z_][\w.]{0,200}", re.ASCII)

MACHINE_OPTION = click.option(
    "--hardware",
    metavar="FILE.yaml",
    type=click.Path(path_type=Path),
    help="The file that describes the machine, where the plan is for one that has no known name.",
)


def with_options(command: F, *options: Callable[[F], F]) -> F:
    """A command with arguments and options, in this order."""
    for add in reversed(options):
        command = add(command)
    return command


def target_of(data: PlanData, plan: Path, target: str | None, usage: str) -> str:
    """What a plan was made from, as the command line calls it.

    A plan file is data that anybody may have written: a module it names is read, a function it
    names is not imported.

    Args:
        data: The plan.
        plan: Its file.
        target: What the user says it was made from, if anything.
        usage: How to say it: `code PLAN TARGET`.

    Raises:
        PlanError: The user does not say it, and the plan names no module file.
    """
    if target:
        return target
    if is_module_file(data.target):
        return data.target
    known = data.target if _TARGET.fullmatch(data.target) else "MODULE:FUNCTION"
    words = usage.replace("PLAN", shlex.quote(str(plan))).replace("TARGET", known)
    raise PlanError(
        "the plan was made from a function, and only a function that you name is imported",
        where=str(plan),
        fix=f"name it: autoshard {words}",
    )


def with_program(data: PlanData, plan: Path, target: str | None, usage: str) -> Plan:
    """A saved plan with the program it was made for, traced or read again.

    Raises:
        PlanError: As `target_of`, or the program is another one.
    """
    name = target_of(data, plan, target, usage)
    if is_module_file(name):
        path = Path(name)
        content = read_module_file(path)
        require_sound(content, path.name)
        traced = read_module(content, data.mesh, name=path.name)
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


def machine_of(data: PlanData, plan: Path, hardware: Path | None) -> Hardware:
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


def planned_again(
    data: PlanData, machine: Hardware, name: str, time_limit: float, **options: Any
) -> Plan:
    """The program of a saved plan, planned for the same mesh, machine and memory budget.

    Args:
        data: The plan.
        machine: What it was made for.
        name: What it was made from, as the command line calls it.
        time_limit: Seconds for planning.
        options: Of `api.optimize`, what else to say; `constraints` are added to those of the hook.
    """
    options = {
        "mesh": data.mesh,
        "hardware": machine,
        "memory_budget": data.memory_budget,
        "time_limit_seconds": time_limit,
        "baselines": False,
        "overlap": data.solver.overlap,
        **options,
    }
    if is_module_file(name):
        for of_functions in ("constraints", "corrections"):
            options.pop(of_functions, None)
        return api.optimize_module(Path(name), **options)
    call = load_target(name)
    options.setdefault("schedules", "auto" if data.products else "none")
    options.setdefault("remat", _remat(data))
    options.setdefault("accumulate", data.accumulation and data.accumulation.microbatches.count)
    constraints = options.pop("constraints", None)
    if constraints is not None:
        options["constraints"] = [call.options.get("constraints", ()), constraints]
    return api.optimize(call.function, *call.args, **{**call.options, **options})


def _remat(data: PlanData) -> str:
    """How residuals were treated in a saved plan."""
    if data.residuals is None:
        return "keep"
    return "auto" if data.residuals.tried else "off"
