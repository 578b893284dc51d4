"""Differences between plans."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

from hypothesis import given, settings

from autoshard.plans.plan import PlanData
from autoshard.plans.plan_diff import Change, PlanDiff, diff_plans
from autoshard.sharding import parse_sharding
from tests.plan.plans import gpt_plan, patient, plan_that_does_not_fit, plans

_HOW_PLANNING_WENT = {"stage_seconds", "versions"}
_FOLLOWS = {"places"}  # from the program and the constraints
_SUMMED_UP = {"program"}  # by its fingerprint


@patient
@given(plan=plans())
def test_a_plan_does_not_differ_from_itself(plan: PlanData) -> None:
    assert diff_plans(plan, plan) == PlanDiff()


@settings(patient, max_examples=30)
@given(plan=plans(), other=plans())
def test_another_value_of_any_field_is_a_difference(plan: PlanData, other: PlanData) -> None:
    left_out = _HOW_PLANNING_WENT | _FOLLOWS | _SUMMED_UP | {"solver"}
    for name in (one.name for one in dataclasses.fields(PlanData) if one.name not in left_out):
        before, after = getattr(plan, name), getattr(other, name)
        if isinstance(before, tuple):
            same = sorted(map(repr, before)) == sorted(map(repr, after))
        else:
            same = before == after
        assert same or not diff_plans(plan, replace(plan, **{name: after})).is_empty, name


@settings(patient, max_examples=30)
@given(before=plans(), after=plans())
def test_the_way_back_has_the_same_differences_the_other_way_round(
    before: PlanData, after: PlanData
) -> None:
    def turned(change: Change) -> Change:
        return replace(
            change,
            before=change.after,
            after=change.before,
            before_number=change.after_number,
            after_number=change.before_number,
        )

    there, back = diff_plans(before, after), diff_plans(after, before)
    for field in dataclasses.fields(PlanDiff):
        changes = map(turned, getattr(there, field.name))
        assert sorted(changes, key=repr) == sorted(getattr(back, field.name), key=repr)


def test_how_planning_went_is_no_difference() -> None:
    plan = gpt_plan()
    other = replace(
        plan,
        stage_seconds={"solve": 99.0},
        versions={"jax": "0.11"},
        solver=replace(plan.solver, log=(), backend="brute force", num_choices=1),
    )
    assert diff_plans(plan, other).is_empty


def test_another_sharding_of_an_argument_is_told_with_both_shardings() -> None:
    plan = gpt_plan()
    first = plan.arguments[0]
    other = replace(first, sharding=parse_sharding('[{}, {"model"}]'), local_bytes=1_048_576)
    diff = diff_plans(plan, replace(plan, arguments=(other, *plan.arguments[1:])))
    assert diff == PlanDiff(
        arguments=(
            Change(
                name="params['blocks'][0]['w1']",
                before="f32[512, 2048] P('data', 'model'), 524,288 of 4,194,304 B",
                after="f32[512, 2048] P(None, 'model'), 1,048,576 of 4,194,304 B",
            ),
        )
    )


def test_an_argument_that_is_gone_is_told() -> None:
    plan = gpt_plan()
    diff = diff_plans(plan, replace(plan, arguments=plan.arguments[:-1]))
    assert [(change.name, change.after) for change in diff.arguments] == [("tokens", "-")]


def test_totals_carry_numbers_and_units() -> None:
    plan = gpt_plan()
    diff = diff_plans(plan, replace(plan, compute_seconds=2 * plan.compute_seconds))
    assert [(c.name, c.before_number, c.after_number, c.unit) for c in diff.totals] == [
        ("step time", 7.8e-3, 14.1e-3, "s"),
        ("compute", 6.3e-3, 12.6e-3, "s"),
    ]


def test_collectives_are_compared_by_what_they_are_for() -> None:
    plan = gpt_plan()
    first, *others = plan.collectives
    diff = diff_plans(plan, replace(plan, collectives=(replace(first, count=4.0), *others)))
    assert diff.collectives == (
        Change(
            name="all-gather over data (2) for dot_general at gpt.py:41 (mlp)",
            before="3 x 1,048,576 B",
            after="4 x 1,048,576 B",
            before_number=3_145_728.0,
            after_number=4_194_304.0,
            unit="B",
        ),
    )


def test_a_plan_that_was_not_found_differs_in_status_budget_and_constraints() -> None:
    diff = diff_plans(gpt_plan(), plan_that_does_not_fit())
    assert [change.name for change in diff.totals][:2] == ["status", "advice"]
    assert [change.name for change in diff.memory] == ["budget"]
    assert diff.constraints[-1].after == "not worked out"
