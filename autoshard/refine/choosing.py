"""Which compiled plan is the best: of those that fit the fastest, and of equals the simplest."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.plans.refinement import TriedPlan

_EQUAL = 1e-9
"""Relative: what the same program compiled twice may differ in by rounding."""


def best_of(tried: Sequence[TriedPlan]) -> int | None:
    """The place of the best plan among those that fit; None where none does.

    A measured plan is faster than another only where their spreads do not reach each other. Of
    plans that are as fast, the one with the fewest constraints is the best, then the earliest.
    """
    fitting = [i for i, one in enumerate(tried) if one.fits and one.compiled_seconds is not None]
    if not fitting:
        return None
    fastest = min(fitting, key=lambda i: (_seconds(tried[i]), i))
    as_fast = [i for i in fitting if not is_faster(tried[fastest], tried[i])]
    return min(as_fast, key=lambda i: (tried[i].num_constraints, _seconds(tried[i]), i))


def is_faster(one: TriedPlan, other: TriedPlan) -> bool:
    """Whether a plan is faster than another beyond rounding and beyond both spreads."""
    apart = one.spread_seconds + other.spread_seconds
    return _seconds(one) * (1 + _EQUAL) + apart < _seconds(other)


def least_missing(tried: Sequence[TriedPlan], budget: int) -> tuple[int | None, int]:
    """The place of the compiled plan that misses a budget by the least, and by how many bytes.

    None and 0 where nothing compiled.
    """
    peaks = [(one.compiled_bytes, i) for i, one in enumerate(tried) if one.compiled_bytes]
    if not peaks:
        return None, 0
    peak, place = min(peaks)
    return place, max(peak - budget, 0)


def _seconds(one: TriedPlan) -> float:
    assert one.compiled_seconds is not None
    return one.compiled_seconds
