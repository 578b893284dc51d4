"""A plan with other residuals is a plan of another program, and its file keeps the choice."""

from __future__ import annotations

from dataclasses import replace

from autoshard.plans.plan_diff import diff_plans
from autoshard.plans.plan_json import dump_plan, parse_plan
from autoshard.remat.choice import Residual, ResidualChoice, TriedResiduals
from autoshard.report import format_report
from tests.plan.plans import gpt_plan

CHOICE = ResidualChoice(
    kept=("0:in.0",),
    residuals=(
        Residual(
            name="0:7.0",
            what="dot_general",
            is_named=False,
            source="model.py:12 (block)",
            type_text="f32[4, 8, 16]",
            is_kept=False,
            local_bytes=2048,
            seconds=1e-3,
        ),
    ),
    saved_bytes=2048,
    recomputed_seconds=1e-3,
    bound_seconds=1.9e-3,
    as_written_peak_bytes=9000,
    tried=(
        TriedResiduals(
            is_chosen=True,
            num_kept=1,
            kept_bytes=512,
            recomputed_seconds=1e-3,
            seconds=2e-3,
            peak_bytes=7000,
        ),
    ),
)


def test_a_plan_file_keeps_the_choice() -> None:
    plan = replace(gpt_plan(), residuals=CHOICE)
    assert parse_plan(dump_plan(plan)).residuals == CHOICE


def test_plans_of_one_program_with_other_residuals_differ_in_their_fingerprints() -> None:
    before = gpt_plan()
    after = replace(before, residuals=CHOICE)
    assert before.planned_program == before.program.fingerprint
    assert after.planned_program != before.planned_program
    found = diff_plans(before, after)
    assert [change.name for change in found.program] == ["fingerprint"]
    (residual,) = found.residuals
    assert residual.name == "dot_general model.py:12 (block) f32[4, 8, 16]"
    assert (residual.before, residual.after) == ("-", "computed again")


def test_where_nothing_fits_no_bound_of_nothing_is_told() -> None:
    """It said "none is faster than 0 s"."""
    plan = replace(gpt_plan(), residuals=replace(CHOICE, bound_seconds=0.0))
    assert "Sets of residuals  in the order they were planned\n" in format_report(plan)
