"""A plan's record with the constraints that its program needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from autoshard.apply.boundary_shardings import planned_in_module
from autoshard.apply.constraint_places import constraint_places
from autoshard.apply.minimal_set import MinimalSet, minimal_constraints
from autoshard.apply.propagation.propagator import propagator_for
from autoshard.frontend.trace import Traced
from autoshard.plans.plan import Miss, PlanData
from autoshard.sharding import Sharding

_NOT_MINIMAL = (
    "the search for the smallest set of constraints was cut short: some of them may be superfluous"
)


def with_constraints(
    data: PlanData,
    traced: Traced,
    price: Callable[[Mapping[str, Sharding]], float | None] | None,
) -> PlanData:
    """The same plan with the smallest set of constraints from which propagation reproduces it.

    Args:
        data: The plan.
        traced: Its program.
        price: Predicted seconds of a step in which some values are sharded otherwise.
    """
    found = _reduced(data, traced)

    def extra_seconds(path: str, sharding: Sharding) -> float | None:
        seconds = None if price is None else price({path: sharding})
        return None if seconds is None else seconds - data.priced_seconds

    return replace(
        data,
        constraints=found.constraints,
        misses=tuple(
            Miss(
                path=miss.path,
                planned=miss.planned,
                propagated=miss.propagated,
                extra_seconds=extra_seconds(miss.path, miss.propagated),
            )
            for miss in found.misses
        ),
        places=constraint_places(
            traced, [*found.constraints, *(miss.path for miss in found.misses)]
        ),
        notes=(*data.notes, *(() if found.is_minimal else (_NOT_MINIMAL,))),
        stage_seconds={**data.stage_seconds, "constraints": found.seconds},
    )


def _reduced(data: PlanData, traced: Traced) -> MinimalSet:
    return minimal_constraints(
        propagator_for(traced, data.mesh).propagate,
        data.values,
        tuple(data.values),
        *planned_in_module(traced, data),
        data.required,
    )
