"""Source lines shortened."""

from __future__ import annotations

from dataclasses import replace

from autoshard.plans.plan_diff import diff_plans
from autoshard.plans.source_names import SourceNames, with_short_sources
from autoshard.report import format_report
from tests.plan.plans import gpt_plan


def test_a_path_becomes_its_file_name() -> None:
    text = "dot_general at /home/me/gpt/train.py:12 (loss)"
    assert SourceNames([text]).shorten(text) == "dot_general at train.py:12 (loss)"


def test_files_of_one_name_keep_the_folders_that_tell_them_apart() -> None:
    names = SourceNames(["/a/b/model.py:1", "/a/c/model.py:2", "/a/c/train.py:3"])
    assert names.shorten("/a/b/model.py:1") == "b/model.py:1"
    assert names.shorten("/a/c/model.py:9") == "c/model.py:9"
    assert names.shorten("/a/c/train.py:3") == "train.py:3"


def test_a_file_that_ends_another_ones_path_is_shown_whole() -> None:
    names = SourceNames(["/b/model.py:1", "/a/b/model.py:1"])
    assert names.shorten("/b/model.py:1") == "/b/model.py:1"
    assert names.shorten("/a/b/model.py:1") == "a/b/model.py:1"


def test_other_text_is_left_alone() -> None:
    names = SourceNames(["gpt.py:12", "pass {'file.py:line': n} for 3/4 of it: 7"])
    assert names.shorten("gpt.py:12, 3/4 of it: 7") == "gpt.py:12, 3/4 of it: 7"


def test_where_the_code_lies_is_neither_reported_nor_a_difference() -> None:
    plan = gpt_plan()
    ops = tuple(replace(op, source=f"/home/me/{op.source}") for op in plan.ops)
    collectives = tuple(
        replace(c, op=c.op.replace("gpt.py", "/home/me/gpt.py")) for c in plan.collectives
    )
    elsewhere = replace(plan, ops=ops, collectives=collectives)
    assert with_short_sources(elsewhere) == plan
    assert format_report(elsewhere) == format_report(plan)
    assert diff_plans(elsewhere, plan).is_empty
