"""The minimal set of constraints of a plan, searched within what is left of its time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoshard.apply.found_constraints import with_constraints, with_every_constraint
from autoshard.build_plan import Solved
from autoshard.frontend.trace import Traced
from autoshard.graph.program import Graph, OpKind
from autoshard.plans.plan import PlanData
from autoshard.sharding import Sharding

_LEAST_SHARE, _LEAST_SECONDS = 0.05, 0.5
"""Of the time limit, and of seconds, that the search may take however late it is. A choice."""


def searched_constraints(
    data: PlanData,
    traced: Traced,
    price: Callable[[Mapping[str, Sharding]], float | None] | None,
    solved: Solved | None,
) -> PlanData:
    """The plan with its constraints.

    Where too little time is left to propagate shardings once, every value has one.

    Args:
        data: A plan without them.
        traced: Its program.
        price: Predicted seconds of a step in which some values are sharded otherwise.
        solved: What it was solved from: its options and time; None for a plan read from a file.
    """
    if solved is None:
        return with_constraints(data, traced, price)
    setting = solved.setting
    stages = setting.stages
    least = max(_LEAST_SHARE * stages.limit_seconds, _LEAST_SECONDS)

    def search() -> PlanData:
        with stages.time("constraints"):
            seconds = max(stages.seconds_left / 2, least)
            if seconds < stages.propagation_seconds:
                return with_every_constraint(data, traced, _free(solved.solution.graph))
            return with_constraints(
                data,
                traced,
                price,
                effort=setting.options.constraint_effort,
                is_over=stages.is_over_in(seconds),
                tell=stages.tell,
                layers=solved.propagation.layers,
            )

    return stages.settled(search)


def _free(graph: Graph) -> set[str]:
    """Paths of constants, and of what is made of them alone."""
    return {
        path
        for path, value in graph.value_by_path.items()
        if graph.maker(value).kind is OpKind.FREE
    }
