"""Which of several compiled plans is the best."""

from __future__ import annotations

from autoshard.plans.refinement import TriedPlan
from autoshard.refine.choosing import best_of, is_faster, least_missing


def tried(
    seconds: float | None,
    *,
    constraints: int = 0,
    peak: int | None = 1,
    fits: bool = True,
    spread: float = 0.0,
) -> TriedPlan:
    return TriedPlan(
        round=1,
        name="one",
        status="compiled" if seconds is not None else "crashed",
        why="",
        predicted_seconds=1.0,
        compiled_seconds=seconds,
        spread_seconds=spread,
        predicted_bytes=1,
        compiled_bytes=peak,
        fits=fits,
        num_constraints=constraints,
        best_before=None,
        compile_seconds=0.0,
        plan_seconds=0.0,
    )


def test_the_fastest_that_fits_is_the_best() -> None:
    assert best_of([tried(3.0), tried(1.0, fits=False), tried(2.0), tried(None)]) == 2


def test_none_is_the_best_where_none_fits() -> None:
    assert best_of([tried(1.0, fits=False), tried(None)]) is None
    assert best_of([]) is None


def test_ties_go_to_fewer_constraints_then_to_the_first() -> None:
    assert best_of([tried(1.0, constraints=5), tried(1.0, constraints=2), tried(1.0)]) == 2
    assert best_of([tried(1.0), tried(1.0)]) == 0


def test_a_plan_that_is_slower_by_a_thousandth_is_no_tie() -> None:
    assert best_of([tried(1.001), tried(1.0, constraints=9)]) == 1


def test_a_measured_plan_within_the_spread_of_a_simpler_one_is_not_called_faster() -> None:
    slow, fast = tried(1.00, spread=0.03), tried(0.95, constraints=4, spread=0.03)
    assert not is_faster(fast, slow)
    assert best_of([slow, fast]) == 0


def test_a_measured_plan_beyond_both_spreads_is_faster() -> None:
    slow, fast = tried(1.00, spread=0.01), tried(0.95, constraints=4, spread=0.01)
    assert is_faster(fast, slow)
    assert best_of([slow, fast]) == 1


def test_the_plan_that_misses_a_budget_by_the_least_is_told_with_its_bytes() -> None:
    plans = [tried(1.0, peak=130), tried(9.0, peak=107), tried(None, peak=None)]
    assert least_missing(plans, 100) == (1, 7)
    assert least_missing([tried(None, peak=None)], 100) == (None, 0)
