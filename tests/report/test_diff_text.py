"""Differences as text, against goldens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autoshard.plans.plan_diff import PlanDiff, diff_plans
from autoshard.report import format_diff
from autoshard.sharding import parse_sharding
from tests.plan.plans import gpt_plan, plan_that_does_not_fit


def test_no_difference_is_said_in_one_line() -> None:
    assert format_diff(PlanDiff()) == "The plans are the same.\n"


def test_a_difference_reads_as_its_golden_does(check_golden: Callable[[str, str], None]) -> None:
    before = gpt_plan()
    replicated = parse_sharding('[{}, {"model"}]')
    after = replace(
        before,
        hardware="tpu-v5p",
        arguments=tuple(
            replace(tensor, sharding=replicated, local_bytes=2 * tensor.local_bytes)
            if "w1" in tensor.name
            else tensor
            for tensor in before.arguments[:-1]
        ),
        values={**before.values, "3.0": parse_sharding('[{}, {}, {"model"}]')},
        collectives=before.collectives[1:],
        communication_seconds=1.0e-3,
        memory=replace(before.memory, peak_bytes=125_000_000),
        notes=(),
    )
    text = format_diff(diff_plans(before, after), "a.json", "b.json", width=120)
    check_golden("diff.txt", text)


def test_other_constraints_are_a_difference() -> None:
    plan = gpt_plan()
    first, second, *_ = plan.asked
    other = replace(plan, asked=(first, replace(second, paths=("3.0",))))
    assert format_diff(diff_plans(plan, other)).splitlines() == [
        "before -> after",
        "",
        "Asked for  2 changed",
        "  what                                           before      after",
        "  ───────────────────────────────────────────────────────────────────",
        "  pin `gpt.py:41`: P('data',)                    2 tensors   1 tensor",
        '  uses of `kv` by `gpt.py:43`: [{}, {"model"}]   1 tensor    -',
    ]


def test_constraints_are_named_by_their_places() -> None:
    plan = replace(
        gpt_plan(), places={"9<1": "h_0/attn, gpt.py:43, before operand 1 of dot_general"}
    )
    without = replace(
        plan, constraints={k: s for k, s in (plan.constraints or {}).items() if k != "9<1"}
    )
    (change,) = diff_plans(plan, without).constraints
    assert change.name == plan.places["9<1"]


def test_a_plan_found_and_one_not_found(check_golden: Callable[[str, str], None]) -> None:
    diff = diff_plans(gpt_plan(), plan_that_does_not_fit())
    check_golden("diff_infeasible.txt", format_diff(diff))


def test_a_difference_below_three_digits_is_shown_in_full() -> None:
    plan = gpt_plan()
    other = replace(plan, memory=replace(plan.memory, peak_bytes=120_000_001))
    text = format_diff(diff_plans(plan, other))
    assert "120,000,000" in text
    assert "120,000,001" in text


def test_a_long_list_of_changes_says_how_many_are_left() -> None:
    plan = gpt_plan()
    sharding = plan.values["3.0"]
    other = replace(plan, values={f"{index}.0": sharding for index in range(100, 150)})
    assert "and 32 more" in format_diff(diff_plans(plan, other))
