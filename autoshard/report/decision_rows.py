"""What was asked for and decided as rows: plans, constraints, rounds of priorities."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.plans.plan import Baseline, PlanData, PlannedRound
from autoshard.report.alike import gather_places
from autoshard.sharding.spec_text import format_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """Our plan, or one written by hand, with its cost.

    Args:
        name: `this plan`, `data parallel`.
        seconds: Predicted step time.
        ratio: Its step time over ours; None for ours.
        collective_bytes: Per device, all runs.
        peak_bytes: Per device.
        fits: Whether that is within the budget.
        overlapped_seconds: Step time with collectives beside the computing; None where the backend
            does not do that.
    """

    name: str
    seconds: float
    overlapped_seconds: float | None
    ratio: float | None
    collective_bytes: float
    peak_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRow:
    """One of the constraints given to the planner, and what became of it.

    Args:
        text: What it says.
        num_tensors: How many tensors or reads it is about.
        specs: The shardings they have, each once, in their order.
    """

    text: str
    num_tensors: int
    specs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """A round of priorities and what the program costs after it.

    Args:
        priority: Of the round.
        first_asked: One of the tensors whose shardings bind from this round on.
        num_asked: How many do.
        axes: Mesh axes or sub-axes in use.
        seconds: Predicted step time.
        collective_bytes: Per device, all runs.
        peak_bytes: Per device.
    """

    priority: int
    first_asked: str
    num_asked: int
    axes: tuple[str, ...]
    seconds: float
    collective_bytes: float
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintRow:
    """A constraint of the plan: where it goes, and the `PartitionSpec` to constrain to.

    Args:
        path: Of the value, or of a single read of it.
        where: The same in words, with ranges of modules where it stands for several; the path
            where nobody knows the words.
        spec: What to constrain to.
        alike: Paths of further constraints that differ only in the numbers of their modules.
    """

    path: str
    where: str
    spec: str
    alike: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissRow:
    """A value that comes out otherwise than planned, and what that costs."""

    path: str
    where: str
    planned: str
    propagated: str
    extra_seconds: float | None


def plan_rows(plan: PlanData, *, fits: bool) -> tuple[PlanRow, ...]:
    """Ours, which fits the budget or not, then those written by hand.

    Ratios are of the time that plans were compared by: overlapped, where that was asked.
    """
    ours = PlanRow(
        name="this plan",
        seconds=plan.seconds,
        overlapped_seconds=plan.overlapped_seconds,
        ratio=None,
        collective_bytes=plan.collective_bytes,
        peak_bytes=plan.memory.peak_bytes,
        fits=fits,
    )
    return (
        ours,
        *(
            PlanRow(
                name=baseline.name,
                seconds=baseline.seconds,
                overlapped_seconds=baseline.overlapped_seconds,
                ratio=_priced(baseline, plan) / plan.priced_seconds
                if plan.priced_seconds
                else float("inf"),
                collective_bytes=baseline.collective_bytes,
                peak_bytes=baseline.peak_bytes,
                fits=baseline.fits,
            )
            for baseline in plan.baselines
        ),
    )


def _priced(baseline: Baseline, plan: PlanData) -> float:
    beside = baseline.overlapped_seconds
    return baseline.seconds if beside is None or plan.solver.overlap == "none" else beside


def asked_rows(plan: PlanData) -> tuple[AskedRow, ...]:
    """The constraints given to the planner, in their order."""
    planned = {
        **{f"in.{number}": tensor.sharding for number, tensor in enumerate(plan.arguments)},
        **{f"out<{number}": tensor.sharding for number, tensor in enumerate(plan.results)},
        **plan.values,
        **plan.wanted_uses,
    }
    return tuple(
        AskedRow(
            text=term.text,
            num_tensors=len(term.paths),
            specs=tuple(
                dict.fromkeys(format_spec(planned[path]) for path in term.paths if path in planned)
            ),
        )
        for term in plan.asked
    )


def round_row(found: PlannedRound) -> RoundRow:
    """A round of priorities, its first tensor without its type."""
    first = found.asked[0].where if found.asked else ""
    return RoundRow(
        priority=found.priority,
        first_asked=first.rpartition(": ")[0] or first,
        num_asked=len(found.asked),
        axes=found.axes,
        seconds=found.seconds,
        collective_bytes=found.collective_bytes,
        peak_bytes=found.peak_bytes,
    )


def constraint_rows(plan: PlanData) -> Iterator[ConstraintRow]:
    """The constraints as the program runs; none where nobody has worked them out."""
    in_order = sorted((plan.constraints or {}).items(), key=lambda item: _place(item[0]))
    told = (
        (plan.places.get(path, path), (format_spec(sharding), "" if path in plan.places else path))
        for path, sharding in in_order
    )
    for where, (spec, _), positions in gather_places(told):
        path, *alike = (in_order[position][0] for position in positions)
        yield ConstraintRow(path=path, where=where, spec=spec, alike=tuple(alike))


def miss_rows(plan: PlanData) -> Iterator[MissRow]:
    """Values that come out otherwise than planned."""
    for miss in plan.misses:
        yield MissRow(
            path=miss.path,
            where=plan.places.get(miss.path, miss.path),
            planned=format_spec(miss.planned),
            propagated=format_spec(miss.propagated),
            extra_seconds=miss.extra_seconds,
        )


def _place(path: str) -> list[tuple[int, str]]:
    """Sorts paths as the program runs: `7.jaxpr/2.0` before `12.0`."""
    found = re.findall(r"([0-9]+)|([^0-9])", path)
    return [(int(digits), "") if digits else (-1, letter) for digits, letter in found]
