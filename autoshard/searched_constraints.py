"""The minimal set of constraints of a plan, searched within what is left of its time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoshard.apply.found_constraints import with_constraints
from autoshard.build_plan import Solved
from autoshard.frontend.trace import Traced
from autoshard.plans.plan import PlanData
from autoshard.sharding import Sharding

_LEAST_FOR_CONSTRAINTS = 0.05
"""Of the time limit. A choice: without it a late plan has every constraint of its search."""


def searched_constraints(
    data: PlanData,
    traced: Traced,
    price: Callable[[Mapping[str, Sharding]], float | None] | None,
    solved: Solved | None,
) -> PlanData:
    """The plan with its constraints.

    Args:
        data: A plan without them.
        traced: Its program.
        price: Predicted seconds of a step in which some values are sharded otherwise.
        solved: What it was solved from: its options and time; None for a plan read from a file.
    """
    if solved is None:
        return with_constraints(data, traced, price)
    setting = solved.setting

    def search() -> PlanData:
        with setting.stages.time("constraints"):
            return with_constraints(
                data,
                traced,
                price,
                effort=setting.options.constraint_effort,
                is_over=setting.stages.half_of_the_rest(_LEAST_FOR_CONSTRAINTS),
                tell=setting.stages.tell,
            )

    return setting.stages.settled(search)
