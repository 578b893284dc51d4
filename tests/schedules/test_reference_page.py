"""The reference page of schedules names all there is."""

from __future__ import annotations

import re
from pathlib import Path

from autoshard import loops, schedules
from autoshard.loops import Schedule
from autoshard.loops.distribution_text import parse_distribution
from autoshard.loops.statement import parse_statement

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "schedules.md").read_text("utf-8")


def test_every_product_of_the_library_is_on_the_page() -> None:
    named = set(re.findall(r"^\| `(\w+)\(", PAGE, flags=re.MULTILINE))
    assert set(schedules.__all__) - {"ScheduledMatmul"} <= named


def test_every_operation_is_on_the_page() -> None:
    named = set(re.findall(r"^\| `\.(\w+)\(", PAGE, flags=re.MULTILINE))
    plain = {"shape", "communicated_at", "communicated_at_loop", "depth", "leaves", "extent"}
    asked = {"value", "loops_of"}
    operations = {
        name for name, member in vars(Schedule).items() if callable(member) and name[0] != "_"
    }
    assert named == operations - plain - asked


def test_the_grammars_of_the_page_are_those_of_the_parsers() -> None:
    for parser in (parse_distribution, parse_statement):
        rules = re.findall(r"^ {8}(\w+ +=.*)$", parser.__doc__ or "", flags=re.MULTILINE)
        assert len(rules) >= 2
        for rule in rules:
            assert rule in PAGE


def test_every_function_on_distributions_is_on_the_page() -> None:
    functions = {
        "points_to_colours",
        "colours_to_processors",
        "holdings",
        "draw_maps",
        "distribution_to_sharding",
        "sharding_to_distribution",
        "spread_faces",
        "verify_distribution",
    }
    assert functions <= set(loops.__all__)
    assert all(f"{name}(" in PAGE for name in functions)
