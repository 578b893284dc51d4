"""The `autoshard why` command."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from autoshard.commands.command import Command, Seconds, example, wide_stdout, width_option
from autoshard.commands.plan import read_trip_count
from autoshard.commands.saved_plan import MACHINE_OPTION, machine_of, planned_again, target_of
from autoshard.errors import PlanError
from autoshard.explain.explanation import Explanation
from autoshard.explain.known import known_explanation
from autoshard.explain.plan_held import held_to
from autoshard.explain.why_text import print_explanation
from autoshard.export.module_file import is_module_file
from autoshard.plan import Plan
from autoshard.plans.plan import PlanData
from autoshard.plans.plan_json import load_plan_data
from autoshard.report.quantities import format_seconds

_ALIKE = 1e-3  # of the step time; the price of one plan may differ by less between two versions
_ANY_PLAN = 1.0  # a gap that any plan meets: the plan explained is the one of the file


@click.command(
    "why",
    cls=Command,
    epilog=example('why plan.json \'params["mlp"]["w1"]\' train:train_step --alternatives 3'),
)
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("tensor")
@click.argument("target", required=False, metavar="[MODULE:FUNCTION]")
@click.option(
    "--alternatives",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    help="How many other shardings to plan with at most.",
)
@click.option(
    "--no-replan",
    is_flag=True,
    help="Tell what the plan file knows, and do not plan again to price alternatives.",
)
@click.option(
    "--constraints",
    type=click.Path(path_type=Path),
    help="The YAML file of constraints that the plan was made with, if any.",
)
@click.option(
    "--trip-count",
    "trip_counts",
    multiple=True,
    metavar="FILE:LINE=N",
    help="As the plan was made with; may be given again.",
)
@click.option(
    "--time-limit",
    type=Seconds(),
    default=60.0,
    show_default=True,
    help="Seconds to plan again in, and as many for all alternatives together.",
)
@MACHINE_OPTION
@width_option
def why_command(
    plan: Path,
    tensor: str,
    target: str | None,
    alternatives: int,
    no_replan: bool,
    constraints: Path | None,
    trip_counts: tuple[str, ...],
    time_limit: float,
    hardware: Path | None,
    width: int | None,
) -> None:
    """Print why TENSOR is sharded as it is: what else it could be, at what cost, what forbids it.

    TENSOR is named as in constraints: params["w1"], result[0], model.py:42 dot_general; or by its
    path. The program is traced again, from MODULE:FUNCTION or the module file that it was
    planned from, and planned with the tensor held to other shardings.
    """
    data = load_plan_data(plan)
    if no_replan:
        print_explanation(known_explanation(data, tensor), wide_stdout(), width)
        return
    data.require_feasible()
    name = target_of(data, plan, target, f"why PLAN {shlex.quote(tensor)} TARGET")
    again, notes = _planned(
        data,
        plan,
        name,
        time_limit=time_limit,
        hardware=hardware,
        constraints=constraints,
        trip_counts=dict(map(read_trip_count, trip_counts)) or None,
    )
    found: Explanation = again.why(
        tensor, num_alternatives=alternatives, time_limit_seconds=time_limit
    )
    print_explanation(replace(found, notes=(*found.notes, *notes)), wide_stdout(), width)


def _planned(
    data: PlanData, plan: Path, name: str, *, time_limit: float, hardware: Path | None, **more: Any
) -> tuple[Plan, list[str]]:
    """The plan of a file as one that can be asked why, and what to say of how it came about."""
    machine = machine_of(data, plan, hardware)
    options = dict(more)
    if not is_module_file(name):
        options["schedules"] = "auto" if data.products else "none"
    if not data.rounds:
        options["relative_gap"] = _ANY_PLAN
    again = planned_again(data, machine, name, time_limit, **options)
    _check_same(data, again.data, plan, name)
    assert again.solved is not None
    held = held_to(again.solved.solution, data, time_limit_seconds=time_limit)
    if held is None:
        return again, [
            f"the plan in {plan} could not be found again in {name}: this is about the plan made"
            " now"
        ]
    again.solved, again.data = replace(again.solved, solution=held), data
    notes = [f"{name} was planned again to price this"]
    now = held.account.compute_seconds + held.account.communication_seconds
    if abs(now - data.seconds) > _ALIKE * data.seconds:
        notes.append(
            f"the step took {format_seconds(data.seconds)} when the plan was made: prices, trip"
            " counts or autoshard have changed since"
        )
    return again, notes


def _check_same(data: PlanData, again: PlanData, plan: Path, name: str) -> None:
    """Refuse another program, or other constraints, than the plan was made for.

    Raises:
        PlanError: Says which.
    """
    if again.planned_program != data.planned_program:
        raise PlanError(
            "the plan was made for another program",
            where=f"{plan}, and {name} as it is now",
            fix="plan again, or take the program the plan was made for",
        )
    made_with, given = ([term.paths for term in one.asked] for one in (data, again))
    if made_with != given:
        terms = "; ".join(term.text for term in data.asked) or "none"
        raise PlanError(
            f"the plan was made with other constraints: {terms}",
            where=f"{plan}, and the constraints given now",
            fix="give the file they are in: --constraints asked.yaml",
        )
