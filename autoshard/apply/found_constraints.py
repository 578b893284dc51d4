"""A plan's record with the constraints that its program needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import replace
from functools import partial

from autoshard.apply.boundary_shardings import planned_in_module
from autoshard.apply.constraint_places import constraint_places
from autoshard.apply.minimal_set import MinimalSet, Tell, minimal_constraints
from autoshard.apply.propagation.few_layers import EqualLayers
from autoshard.apply.propagation.propagator import propagator_for
from autoshard.frontend.trace import Traced
from autoshard.plans.plan import Miss, PlanData
from autoshard.sharding import Sharding

_STAGE = "constraints"
_USUAL_WORK = 3_000_000
"""Ops propagated through in all, 20 us each: a minute (2026-11-25, one core). A choice."""


def with_constraints(
    data: PlanData,
    traced: Traced,
    price: Callable[[Mapping[str, Sharding]], float | None] | None,
    *,
    effort: float = 1.0,
    is_over: Callable[[], bool] = lambda: False,
    tell: Tell | None = None,
    layers: EqualLayers | None = None,
) -> PlanData:
    """The same plan with the smallest set of constraints from which propagation reproduces it.

    Where the search ended before, a note says how many may be superfluous, and what ended it.

    Args:
        data: The plan.
        traced: Its program.
        price: Predicted seconds of a step in which some values are sharded otherwise.
        effort: Limit of the search's work, as a multiple of the usual one.
        is_over: True once the time for planning is.
        tell: Told how far the search is.
        layers: Of the program, as far as they are known.
    """
    started = time.perf_counter()
    found = _reduced(
        data, traced, layers or EqualLayers(traced), effort * _USUAL_WORK, is_over, tell
    )
    seconds = time.perf_counter() - started

    def extra_seconds(path: str, sharding: Sharding) -> float | None:
        seconds = None if price is None or is_over() else price({path: sharding})
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
        notes=(*data.notes, *(() if found.is_minimal else (_not_minimal(found, is_over()),))),
        stage_seconds={**data.stage_seconds, _STAGE: seconds},
    )


def with_every_constraint(data: PlanData, traced: Traced, free: Collection[str]) -> PlanData:
    """The same plan with a constraint on every value: nothing is propagated. A note says so.

    Args:
        data: The plan.
        traced: Its program.
        free: Paths of constants and of what is made of them alone: each reader has its own copy.
    """
    planned = {path: one for path, one in data.values.items() if path not in free}
    every = {**data.required, **planned}
    note = (
        f"each of {len(every)} values has a constraint: time was over before a smaller set was"
        " searched; raise time_limit_seconds"
    )
    return replace(
        data,
        constraints=every,
        misses=(),
        places=constraint_places(traced, every),
        notes=(*data.notes, note),
    )


def _not_minimal(found: MinimalSet, is_late: bool) -> str:
    end, remedy = (
        ("as planning did", "time_limit_seconds")
        if is_late
        else (
            "at its limit of work",
            "constraint_effort (inf: until every one is known to be needed)",
        )
    )
    return (
        f"{found.untried} of {len(found.constraints)} constraints may be superfluous: the search"
        f" for the smallest set ended {end}, after {found.num_propagations} propagations; raise"
        f" {remedy}"
    )


def _reduced(
    data: PlanData,
    traced: Traced,
    equal: EqualLayers,
    max_work: float,
    is_over: Callable[[], bool],
    tell: Tell | None,
) -> MinimalSet:
    """The set for a program with few of its equal layers, then for all; at once where none are."""
    planned, required = data.values, data.required
    inputs, outputs = planned_in_module(traced, data)
    inner_copies_of: Callable[[str], Hashable] = str
    few = None
    layers = equal.few({**planned, **required}, inputs)
    if layers is not None:
        inner_copies_of = layers.inner_copies_of
        propagator = propagator_for(layers, data.mesh)
        few = minimal_constraints(
            partial(propagator.propagate, wanted=planned),
            {path: sharding for path, sharding in planned.items() if layers.has(path)},
            tuple(planned),
            inputs,
            outputs,
            layers.of_uses(required),
            max_propagations=max_work / propagator.num_ops,
            copies_of=layers.copies_of,
            is_over=is_over,
            tell=tell,
        )
    propagator = propagator_for(traced, data.mesh)
    return minimal_constraints(
        partial(propagator.propagate, wanted=planned),
        planned,
        tuple(planned),
        inputs,
        outputs,
        required,
        max_propagations=max_work / propagator.num_ops,
        copies_of=inner_copies_of,
        few=few,
        is_over=is_over,
        tell=tell,
    )
