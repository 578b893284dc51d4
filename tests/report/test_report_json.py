"""A report's figures for machines."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from hypothesis import given, settings

from autoshard.plans.plan import PlanData
from autoshard.report import ReportFacts, format_report_json, gather_facts
from tests.plan.plans import gpt_plan, patient, plan_that_does_not_fit, plans

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "report-json.md"


def read(plan: PlanData) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(format_report_json(plan))
    return found


def test_the_members_are_the_format_and_the_facts() -> None:
    members = read(gpt_plan())
    facts = gather_facts(gpt_plan())
    assert members.pop("format") == "autoshard report"
    assert members.pop("version") == 1
    assert list(members) == [field.name for field in dataclasses.fields(facts)]
    assert members["seconds"] == facts.seconds
    assert members["plans"][2] == dataclasses.asdict(facts.plans[2])
    assert members["collectives"][0]["axes"] == ["data", "model:(1)2"]


def test_an_infinite_number_is_told_as_text() -> None:
    assert read(plan_that_does_not_fit())["gap"] == "inf"


@settings(patient, max_examples=20)
@given(plan=plans())
def test_any_plan_has_a_report_in_json(plan: PlanData) -> None:
    assert format_report_json(plan) == format_report_json(plan)
    assert read(plan)["num_arguments"] == len(plan.arguments)


def test_every_member_is_on_its_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)
    assert documented == ["format", "version", *(f.name for f in dataclasses.fields(ReportFacts))]
