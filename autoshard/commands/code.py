"""The `autoshard code` command."""

from __future__ import annotations

from pathlib import Path

import click

from autoshard.commands.command import Command, example, wide_stdout
from autoshard.commands.saved_plan import target_of, with_program
from autoshard.plans.plan_json import load_plan_data


@click.command(
    "code", cls=Command, epilog=example("code plan.json", "code plan.json train:train_step")
)
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("target", required=False, metavar="[MODULE:FUNCTION]")
def code_command(plan: Path, target: str | None) -> None:
    """Print a saved plan as Python code to paste: shardings of arguments and results, constraints.

    The program is traced again, from what the plan file remembers of it or from MODULE:FUNCTION,
    for the trees of its arguments and results and for the lines that the constraints go to.
    """
    data = load_plan_data(plan)
    fix = f"name it after the plan: autoshard code {plan} train:{data.function}"
    known = with_program(data, plan, target_of(data, plan, target, fix=fix))
    wide_stdout().write(known.code())
