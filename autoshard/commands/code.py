"""The `autoshard code` command."""

from __future__ import annotations

from pathlib import Path

import click

from autoshard.commands.command import Command, example, wide_stdout
from autoshard.commands.saved_plan import with_program
from autoshard.plans.plan_json import load_plan_data


@click.command("code", cls=Command, epilog=example("code plan.json train:train_step"))
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("target", required=False, metavar="[MODULE:FUNCTION]")
def code_command(plan: Path, target: str | None) -> None:
    """Print a saved plan as Python code to paste: shardings of arguments and results, constraints.

    The program is traced again, from MODULE:FUNCTION or the module file that it was planned
    from, for the trees of its arguments and results and for the lines that the constraints go to.
    """
    data = load_plan_data(plan)
    known = with_program(data, plan, target, "code PLAN TARGET")
    wide_stdout().write(known.code())
