"""`autoshard report` and `diff` as a page, as JSON, and in a build."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autoshard.cli import main
from autoshard.plans.plan_json import load_plan_data, save_plan
from autoshard.report import Against, format_page, format_report, format_report_json
from tests.plan.plans import gpt_plan, plan_in_rounds, plan_that_does_not_fit


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [os.fspath(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def saved(folder: Path) -> Path:
    save_plan(gpt_plan(), folder / "plan.json")
    save_plan(plan_in_rounds(), folder / "other.json")
    save_plan(plan_that_does_not_fit(), folder / "none.json")
    return folder


def test_report_writes_a_page(saved: Path) -> None:
    result = run("report", "plan.json", "--html", "out.html")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "wrote out.html\n", "")
    assert (saved / "out.html").read_text(encoding="utf-8") == format_page(gpt_plan())


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "plan.json", "--against", "other.json", "--html", "out.html"),
        ("diff", "other.json", "plan.json", "--html", "out.html"),
    ],
)
def test_two_plans_are_compared_on_a_page(saved: Path, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert (result.stdout, result.stderr) == ("wrote out.html\n", "")
    assert result.exit_code == (1 if arguments[0] == "diff" else 0)
    text = (saved / "out.html").read_text(encoding="utf-8")
    assert text == format_page(gpt_plan(), Against(plan=plan_in_rounds(), name="other.json"))


def test_a_page_of_equal_plans_exits_with_0() -> None:
    assert run("diff", "plan.json", "plan.json", "--html", "out.html").exit_code == 0


def test_report_prints_json() -> None:
    result = run("report", "plan.json", "--json")
    assert (result.exit_code, result.stdout) == (0, format_report_json(gpt_plan()))


def test_json_stays_json_where_a_page_is_written_too(saved: Path) -> None:
    result = run("report", "plan.json", "--json", "--html", "out.html")
    assert result.stdout == format_report_json(gpt_plan())
    assert (saved / "out.html").exists()


@pytest.mark.parametrize("limit", ["120MB", "120000000", "0.12GB", "1TiB"])
def test_a_peak_within_the_limit_passes(limit: str) -> None:
    result = run("report", "plan.json", "--fail-above", limit)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == format_report(gpt_plan())


def test_a_peak_above_the_limit_exits_with_1_and_one_line() -> None:
    result = run("report", "plan.json", "--fail-above", "119999999")
    assert result.exit_code == 1
    assert result.stdout == format_report(gpt_plan())
    assert result.stderr == (
        "plan.json: the memory peak of 120,000,000 bytes (120 MB) per device at dot_general at"
        " gpt.py:41 (mlp) is above 119,999,999 bytes (120 MB)\n"
    )


def test_a_plan_that_was_not_found_passes_no_limit() -> None:
    result = run("report", "none.json", "--fail-above", "1TB")
    assert result.exit_code == 1
    assert result.stderr == "none.json: no plan was found (infeasible)\n"


@pytest.mark.parametrize("limit", ["0.9", "much", "0", "80 parsec", "-3GB"])
def test_a_limit_that_is_no_amount_is_refused_before_the_plan_is_read(limit: str) -> None:
    result = run("report", "missing.json", f"--fail-above={limit}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"error: {limit!r} is not an amount of memory\n"
        f"  where: {limit}\n"
        '  fix: write bytes (16000000000) or a unit ("16GiB", "16GB")\n'
    )


def test_a_comparison_needs_a_page() -> None:
    result = run("report", "plan.json", "--against", "other.json")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: --against compares on a page, and no page is asked for\n"
        "  where: --against other.json\n"
        "  fix: add --html out.html, or use `autoshard diff`, which prints what differs\n"
    )


@pytest.mark.parametrize("option", [("--json",), ("--html", "out.html")])
def test_a_round_is_text(option: tuple[str, ...], saved: Path) -> None:
    result = run("report", "other.json", "--round", "2", *option)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "error: --round prints text, and so goes with neither --json nor --html\n"
        "  where: --round 2\n"
        "  fix: leave out one of them\n"
    )
    assert not (saved / "out.html").exists()


def test_a_page_that_cannot_be_written_is_one_message(saved: Path) -> None:
    result = run("report", "plan.json", "--html", "missing/out.html")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "error: the page cannot be written: No such file or directory\n"
        "  where: missing/out.html\n"
        "  fix: name a file in a folder that exists and that you may write to\n"
    )
    assert load_plan_data(saved / "plan.json") == gpt_plan()
