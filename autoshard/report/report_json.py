"""A report's figures as JSON, for machines: the same numbers as the text, with their units."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from autoshard.plans.plan import PlanData
from autoshard.report.facts import gather_facts

FORMAT_NAME = "autoshard report"
FORMAT_VERSION = 1


def format_report_json(plan: PlanData) -> str:
    """The report as one JSON object; equal plans give equal text.

    `format` and `version` say what it is, the other members are the fields of `ReportFacts`.
    Shardings are `PartitionSpec`s as text. An infinite number is the text `inf`.
    """
    facts = dataclasses.asdict(gather_facts(plan))
    members = {"format": FORMAT_NAME, "version": FORMAT_VERSION, **facts}
    return json.dumps(_finite(members), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return "inf" if isinstance(value, float) and value == math.inf else value
