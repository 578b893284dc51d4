"""Comparing a plan with propagation alone, value by value, and telling which decision made what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from autoshard.apply.minimal_set import Propagate
from autoshard.errors import InputError
from autoshard.plans.plan import PlanData
from autoshard.plans.source_names import SourceNames
from autoshard.sharding import AxisRef, Sharding
from autoshard.verification.propagation_comparison import (
    Decision,
    Difference,
    PropagationComparison,
)

Price: TypeAlias = Callable[[Mapping[str, Sharding]], float | None]

INPUTS = ("plan", "program")


def against_propagation(
    propagate: Propagate,
    data: PlanData,
    constraints: Mapping[str, Sharding],
    given: tuple[Sequence[Sharding | None], Sequence[Sharding | None]],
    sources: Mapping[str, str],
    *,
    price: Price | None = None,
    inputs: str = "plan",
) -> PropagationComparison:
    """Compare a plan with what propagation makes of its inputs alone.

    A value is put down to the constraint without which it comes out elsewhere while all others are
    kept.

    Args:
        propagate: Shardy's propagation over the program.
        data: The plan.
        constraints: Those that reproduce it.
        given: Shardings of arguments and of results that propagation starts from.
        sources: Source line by equation path.
        price: Predicted seconds of a step with some values sharded otherwise.
        inputs: What `given` is, to be told: `plan` or `program`.

    Raises:
        InputError: There are no such inputs.
    """
    if inputs not in INPUTS:
        raise InputError(
            f"propagation cannot start from {inputs!r}",
            where=f"inputs={inputs!r}",
            fix=f"use one of {', '.join(INPUTS)}",
        )
    alone = propagate(*given, {})
    shorten = SourceNames(sources.values()).shorten
    sources = {equation: shorten(source) for equation, source in sources.items()}
    planned = {path: sharding for path, sharding in data.values.items() if path in alone}
    different = {
        path: alone[path] for path in planned if _cuts(alone[path]) != _cuts(planned[path])
    }

    def told(path: str) -> Difference:
        return Difference(
            path=path,
            source=_source(path, sources),
            planned=planned[path],
            propagated=different[path].closed(),
        )

    decisions, explained = [], set()
    together = propagate(*given, constraints)
    for path, wanted in constraints.items():
        rest = {other: sharding for other, sharding in constraints.items() if other != path}
        without = propagate(*given, rest)
        follows = [
            value
            for value in different
            if _cuts(without[value]) != _cuts(together[value])
            and _cuts(together[value]) == _cuts(planned[value])
        ]
        if not follows:
            continue
        explained.update(follows)
        decisions.append(
            Decision(
                path=path,
                source=_source(path, sources),
                wanted=wanted,
                differences=tuple(map(told, follows)),
                saved_seconds=_saved(price, data, {value: different[value] for value in follows}),
            )
        )
    decisions.sort(key=lambda d: -(d.saved_seconds or 0.0))
    saved = _saved(price, data, different) if different else 0.0
    return PropagationComparison(
        inputs=inputs,
        decisions=tuple(decisions),
        unexplained=tuple(told(path) for path in different if path not in explained),
        num_values=len(planned),
        plan_seconds=data.priced_seconds,
        propagated_seconds=None if saved is None else data.priced_seconds + saved,
    )


def _saved(price: Price | None, data: PlanData, changes: Mapping[str, Sharding]) -> float | None:
    seconds = None if price is None else price(changes)
    return None if seconds is None else seconds - data.priced_seconds


def _cuts(sharding: Sharding) -> tuple[tuple[AxisRef, ...], ...]:
    return tuple(dim.axes for dim in sharding.dims)


def _source(path: str, sources: Mapping[str, str]) -> str:
    """The line of the equation that makes or reads a value."""
    equation = path.partition("<")[0]
    while equation:
        if sources.get(equation):
            return sources[equation]
        equation = equation.rpartition(".")[0] if "." in equation else ""
    return ""
