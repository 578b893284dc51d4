"""Every form of a report says which compiler model priced the plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from autoshard.plans.plan import PlanData
from autoshard.plans.plan_json import dump_plan, parse_plan
from autoshard.report.page import format_page
from autoshard.report.report_json import format_report_json
from autoshard.report.text import format_report
from tests.plan.plans import gpt_plan, plan_that_does_not_fit

MODEL = "generic TPU, not probed for v6e"


@pytest.mark.parametrize("form", [format_report, format_page, format_report_json])
@pytest.mark.parametrize("made", [gpt_plan, plan_that_does_not_fit])
def test_a_report_names_the_compiler_model(
    form: Callable[[PlanData], str], made: Callable[[], PlanData]
) -> None:
    plan = replace(made(), compiler_model=MODEL)
    assert MODEL in form(plan)
    assert "ompiler model" not in form(replace(plan, compiler_model=""))


def test_a_plan_file_keeps_it_and_one_without_is_read() -> None:
    plan = replace(gpt_plan(), compiler_model=MODEL)
    assert parse_plan(dump_plan(plan)).compiler_model == MODEL
    members = json.loads(dump_plan(plan))
    del members["compiler_model"]
    assert parse_plan(json.dumps(members)).compiler_model == ""
