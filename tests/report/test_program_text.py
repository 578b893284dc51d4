"""The program after a round, and rounds in a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings

from autoshard.errors import InputError
from autoshard.plans.plan import PlanData
from autoshard.report import format_program, format_report
from tests.plan.plans import gpt_plan, patient, plan_in_rounds, plan_that_does_not_fit, plans

CheckGolden = Callable[[str, str], None]


@pytest.mark.parametrize("priority", [0, 2, 3])
def test_the_program_after_a_round_reads_as_its_golden_does(
    check_golden: CheckGolden, priority: int
) -> None:
    check_golden(f"program_{priority}.txt", format_program(plan_in_rounds(), priority))


def test_the_last_round_is_shown_where_none_is_named() -> None:
    assert format_program(plan_in_rounds()) == format_program(plan_in_rounds(), 3)


def test_what_a_round_changed_is_marked_and_nothing_else() -> None:
    lines = format_program(plan_in_rounds(), 3).splitlines()
    marked = [line for line in lines if line.startswith("* ")]
    assert [line.split("  ")[0] for line in marked] == [
        "* %2: f32[64, 128] = argument m",
        "* return result %2",
    ]


def test_a_round_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        format_program(plan_in_rounds(), 1)
    assert str(caught.value) == (
        "there is no round 1: the rounds are 0, 2, 3\n"
        "  where: plan for train_step\n"
        "  fix: name a round by its priority"
    )


def test_a_plan_of_one_round_says_what_makes_several() -> None:
    with pytest.raises(InputError) as caught:
        format_program(gpt_plan())
    assert str(caught.value) == (
        "the plan was made in a single round: its shardings have one priority\n"
        "  where: plan for train_step\n"
        '  fix: give dimensions priorities, as in [{"data"}p0, {"model"}p1]'
    )


def test_a_report_has_a_table_of_rounds(check_golden: CheckGolden) -> None:
    check_golden("rounds.txt", format_report(plan_in_rounds()).partition("\nArguments")[0])
    assert "Rounds" not in format_report(gpt_plan())


def test_the_proof_of_a_plan_in_rounds_is_said_to_be_among_its_extensions() -> None:
    plan = plan_in_rounds()
    assert "of the best plan of the model that extends round 2" in format_report(plan)
    proven = replace(plan, solver=replace(plan.solver, gap=0.0))
    assert "no plan of the model that extends round 2 costs less" in format_report(proven)


def test_a_plan_that_does_not_fit_shows_the_rounds_that_came_before() -> None:
    plan = replace(plan_that_does_not_fit(), rounds=plan_in_rounds().rounds)
    assert "Rounds of priorities" in format_report(plan)


@settings(patient, max_examples=20)
@given(plan=plans())
def test_the_text_of_any_program_has_a_line_for_every_op(plan: PlanData) -> None:
    if plan.rounds:
        text = format_program(plan)
        assert text.count("\n") >= len(plan.listing)
        assert all(letter.isprintable() for letter in text.replace("\n", ""))
