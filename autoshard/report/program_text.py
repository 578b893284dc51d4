"""The program after a round of priorities, as text: every value with its sharding."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.errors import InputError
from autoshard.plans.plan import PlanData, PlannedRound, ProgramLine
from autoshard.plans.source_names import with_short_sources
from autoshard.report.alike import gather_alike
from autoshard.report.layout import plain
from autoshard.report.quantities import format_bytes, format_seconds
from autoshard.sharding import Sharding, format_sharding
from autoshard.sharding.spec_text import format_spec

_WIDEST = 72  # a line longer than this does not push all others to the right
_CHANGED = "*"


def format_program(plan: PlanData, after_round: int | None = None) -> str:
    """The program of a plan with priorities, each value with its sharding after one round.

    A star marks what that round changed. Lines are as long as they need to be.

    Args:
        plan: The plan.
        after_round: The priority of the round; the last one if not given.

    Raises:
        InputError: The plan has no such round, or was made in a single one.
    """
    plan = with_short_sources(plan)
    place = _place(plan, after_round)
    shown = plan.rounds[place]
    before = plan.rounds[place - 1].shardings if place else None
    lines = [
        f"{plan.function} after round {shown.priority} of {_numbers(plan.rounds)}",
        f"  axes in use: {', '.join(shown.axes) or 'none'}",
        f"  step {format_seconds(shown.seconds)}, {format_bytes(shown.collective_bytes)} through"
        f" collectives and {format_bytes(shown.peak_bytes)} at the memory peak, per device",
        *(f"  asks {text} for {where}" for where, text in _asked(shown)),
        f"  {_CHANGED} changed in this round",
        "",
    ]
    rows = [
        _row(line, made, before[number] if before else None)
        for number, (line, made) in enumerate(zip(plan.listing, shown.shardings, strict=True))
    ]
    return plain("\n".join((*lines, *_aligned(rows)))).plain + "\n"


def _asked(shown: PlannedRound) -> list[tuple[str, str]]:
    """The shardings that bind from a round on, by where; those of likes in one line."""
    spelled = ((one.where, format_sharding(one.sharding)) for one in shown.asked)
    return [(where, text) for where, text, _ in gather_alike(spelled)]


def _place(plan: PlanData, after_round: int | None) -> int:
    """Where the round of a priority stands in the plan."""
    priorities = [found.priority for found in plan.rounds]
    if not priorities:
        raise InputError(
            "the plan was made in a single round: its shardings have one priority",
            where=f"plan for {plan.function}",
            fix='give dimensions priorities, as in [{"data"}p0, {"model"}p1]',
        )
    if after_round is None:
        return len(priorities) - 1
    if after_round not in priorities:
        raise InputError(
            f"there is no round {after_round}: the rounds are {_numbers(plan.rounds)}",
            where=f"plan for {plan.function}",
            fix="name a round by its priority",
        )
    return priorities.index(after_round)


def _numbers(rounds: Sequence[PlannedRound]) -> str:
    return ", ".join(str(found.priority) for found in rounds)


def _row(
    line: ProgramLine, made: tuple[Sharding, ...], before: tuple[Sharding, ...] | None
) -> tuple[str, str, str, str]:
    """Mark, text, shardings and source of a line; before the first round nothing is cut."""
    cut = any(dim.axes for sharding in made for dim in sharding.dims)
    changed = cut if before is None else made != before
    specs = ", ".join(format_spec(sharding) for sharding in made if sharding.dims)
    return _CHANGED if changed else " ", line.text, specs, line.source


def _aligned(rows: Sequence[tuple[str, str, str, str]]) -> list[str]:
    def width(column: int) -> int:
        return max((len(row[column]) for row in rows if len(row[column]) <= _WIDEST), default=0)

    texts, specs = width(1), width(2)
    return [
        f"{mark} {text.ljust(texts)}  {spec.ljust(specs)}  {source}".rstrip()
        for mark, text, spec, source in rows
    ]
