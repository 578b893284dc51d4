"""Reports as text, against goldens and against the numbers they are made of."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from autoshard.plans.plan import PlanData
from autoshard.report import format_report, gather_facts, print_report
from tests.plan.plans import gpt_plan, patient, plan_that_does_not_fit, plans

CheckGolden = Callable[[str, str], None]


@pytest.mark.parametrize("width", [60, 100, 160])
def test_a_report_reads_as_its_golden_does(check_golden: CheckGolden, width: int) -> None:
    check_golden(f"report_{width}.txt", format_report(gpt_plan(), width))


def test_a_plan_that_does_not_fit_says_by_how_much_where_and_what_weighs_most(
    check_golden: CheckGolden,
) -> None:
    text = format_report(plan_that_does_not_fit())
    assert "20,000,000 bytes (20.0 MB) over the budget" in " ".join(text.split())
    check_golden("report_infeasible.txt", text)


@settings(patient, max_examples=20)
@given(plan=plans(), width=st.integers(40, 200))
def test_no_line_is_longer_than_the_width_and_no_colour_is_written(
    plan: PlanData, width: int
) -> None:
    text = format_report(plan, width)
    assert max(map(cell_len, text.split("\n"))) <= width
    assert all(letter.isprintable() for letter in text.replace("\n", ""))


def test_a_summary_is_the_report_without_its_tables_of_tensors_and_ops() -> None:
    whole, brief = format_report(gpt_plan()), format_report(gpt_plan(), summary=True)
    headings = [line.split("  ")[0] for line in brief.splitlines() if line[:1].isupper()]
    assert headings[:2] == ["Beside plans written by hand", "Collectives"]
    assert not {"Arguments", "Results", "Constraints"} & {*headings}
    assert set(brief.splitlines()) <= set(whole.splitlines())


def test_a_pipe_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    file = io.StringIO()
    print_report(gpt_plan(), file)
    assert file.getvalue() == format_report(gpt_plan())


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name in ("NO_COLOR", "TTY_COMPATIBLE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    file = Terminal()
    print_report(gpt_plan(), file, width=100)
    assert "\x1b[1mtrain_step\x1b[0m on 8 x tpu-v5e" in file.getvalue()


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    plan = replace(gpt_plan(), function="[bold]step[/]", notes=("[red]see :smile:[/red]",))
    text = format_report(plan)
    assert text.startswith("[bold]step[/] on 8 x")
    assert "- [red]see :smile:[/red]" in text


def test_layers_alike_are_one_row_with_the_bytes_of_all() -> None:
    rows = gather_facts(gpt_plan()).arguments
    assert [(row.name, row.count, row.local_bytes) for row in rows][:3] == [
        ("params['blocks'][0..2]['w1']", 3, 3 * 512 * 2048 * 4 // 8),
        ("params['blocks'][0..2]['w2']", 3, 3 * 512 * 2048 * 4 // 8),
        ("params['blocks'][0..2]['ln']", 3, 3 * 512 * 4),
    ]


def test_many_rows_are_cut_to_the_heaviest_and_the_rest_is_counted() -> None:
    plan = gpt_plan()
    tensor = plan.arguments[0]
    many = tuple(
        replace(tensor, name=f"p{chr(97 + index // 26)}{chr(97 + index % 26)}", local_bytes=index)
        for index in range(100)
    )
    facts = gather_facts(replace(plan, arguments=many))
    assert len(facts.arguments) == 40
    assert facts.num_other_arguments == 60
    assert facts.other_arguments_bytes == sum(range(60))
    assert "60 smaller ones" in format_report(replace(plan, arguments=many))


@settings(patient, max_examples=30)
@given(plan=plans())
def test_rows_add_up_to_the_totals_of_the_plan(plan: PlanData) -> None:
    facts = gather_facts(plan)
    shown = sum(row.local_bytes for row in facts.arguments)
    assert shown + facts.other_arguments_bytes == sum(t.local_bytes for t in plan.arguments)
    assert sum(row.count for row in facts.collectives) == pytest.approx(
        sum(collective.count for collective in plan.collectives)
    )
    assert sum(row.num_bytes for row in facts.collectives) == pytest.approx(plan.collective_bytes)


def test_the_step_times_of_others_are_told_as_a_multiple_of_ours() -> None:
    plans_shown = gather_facts(gpt_plan()).plans
    assert [(row.name, row.ratio) for row in plans_shown] == [
        ("this plan", None),
        ("replicated", pytest.approx(21.0 / 7.8)),
        ("data parallel", pytest.approx(11.7 / 7.8)),
    ]


def test_constraints_are_listed_in_program_order() -> None:
    plan = gpt_plan()
    sharding = plan.values["3.0"]
    paths = ["12.0", "7.jaxpr/10.0", "7.jaxpr/9.0", "3.0", "in.2"]
    facts = gather_facts(replace(plan, constraints=dict.fromkeys(paths, sharding)))
    assert facts.constraints is not None
    assert [row.path for row in facts.constraints] == [
        "in.2",
        "3.0",
        "7.jaxpr/9.0",
        "7.jaxpr/10.0",
        "12.0",
    ]


def test_constraints_not_worked_out_yet_are_told_apart_from_none_needed() -> None:
    assert "not worked out yet" in format_report(replace(gpt_plan(), constraints=None))
    assert "say it all" in format_report(replace(gpt_plan(), constraints={}))


def test_more_constraints_than_fit_are_counted() -> None:
    sharding = gpt_plan().values["3.0"]
    constraints = {f"{index}.0": sharding for index in range(50)}
    assert "and 20 more" in format_report(replace(gpt_plan(), constraints=constraints))


def test_sub_axes_in_constraints_are_explained() -> None:
    plan = gpt_plan()
    constraints = {"3.0": plan.arguments[-2].sharding}
    assert "is a part of an axis" in format_report(replace(plan, constraints=constraints))
