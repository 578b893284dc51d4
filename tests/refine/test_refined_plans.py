"""Refined plans end to end: reports, files, the command, and the real TPU compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import autoshard
from autoshard.cli import main
from autoshard.plan import Plan
from autoshard.plans.plan_json import load_plan_data
from autoshard.plans.refinement import Refinement, TriedPlan
from autoshard.refine.corrections_file import load_corrections
from autoshard.report.layout import render_text
from autoshard.report.refinement_text import refinement_section
from tests.refine.programs import BATCH, PARAMS, planned, says, step

PROGRAM = "tests.refine.programs:step"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plan compiles to a millisecond, the replicated one to half of that."""

    def judge(data: Any) -> tuple[float, int]:
        is_whole = not any(list(t.sharding.axis_refs()) for t in data.arguments)
        return (5e-4 if is_whole else 1e-3), 10**9

    monkeypatch.setattr(Plan, "_compiler", lambda *_: says(judge))


@pytest.mark.usefixtures("compiler")
def test_the_report_tells_round_by_round_what_was_compiled() -> None:
    found = planned().refine("v5e:2x4", rounds=1)
    record = found.data.refinement
    assert record is not None
    text = render_text(refinement_section(record), 250)
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert lines[0] == f"Compiled {len(record.tried)} plans for v5e:2x4".split()
    row = next(line for line in lines if line[1:4] == ["replicated", "as", "written"])
    assert row[row.index("ms") + 1 : row.index("ms") + 3] == ["500", "us"]
    assert "+50.0" in row
    assert "This plan is the best that compiled, within the memory budget: replicated" in text
    assert "replicated as written" in str(found)


def test_the_report_says_why_plans_of_later_rounds_differ_and_why_some_did_not_compile() -> None:
    def tried(number: int, name: str, why: str, seconds: float | None) -> TriedPlan:
        return TriedPlan(
            round=number,
            name=name,
            also=("fsdp as written",) if number == 2 else (),
            status="compiled" if seconds else "out of memory",
            why=why,
            predicted_seconds=1.0,
            compiled_seconds=seconds,
            predicted_bytes=1,
            compiled_bytes=1 if seconds else None,
            fits=seconds is not None,
            num_constraints=0,
            best_before=None,
            compile_seconds=1.0,
            plan_seconds=0.0,
        )

    found = Refinement(
        target="v5e:4x4",
        compiler="libtpu",
        measure="compiler's cycles and links",
        memory_budget=None,
        tried=(
            tried(1, "optimized", "the plan at hand", 1.0),
            tried(1, "megatron as written", "a plan by hand; 31 GB of 16 GB", None),
            tried(2, "optimized", "matmul takes 2 s, not 1 s", 0.9),
        ),
        chosen=2,
        ended="all 2 rounds were used",
        left=None,
    )
    lines = [line.strip() for line in render_text(refinement_section(found), 120).splitlines()]
    assert "1  megatron as written: a plan by hand; 31 GB of 16 GB" in lines
    assert "2  optimized: matmul takes 2 s, not 1 s" in lines
    assert "2  optimized: the same program as fsdp as written." in lines
    assert not any("the plan at hand" in line for line in lines)


@pytest.mark.usefixtures("compiler")
def test_a_refined_plan_is_read_back_with_its_rounds(tmp_path: Path) -> None:
    found = planned().refine("v5e:2x4", rounds=2)
    found.save(tmp_path / "plan.json")
    assert load_plan_data(tmp_path / "plan.json") == found.data


@pytest.mark.usefixtures("compiler")
def test_the_command_writes_the_refined_plan_and_what_was_learnt(tmp_path: Path) -> None:
    planned().save(tmp_path / "plan.json")
    out = tmp_path / "refined.json"
    arguments = ["refine", str(tmp_path / "plan.json"), PROGRAM, "--target", "v5e:2x4"]
    ran = CliRunner().invoke(main, [*arguments, "--rounds", "1", "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    assert "replicated as written" in ran.output
    data = load_plan_data(out)
    assert data.refinement is not None
    assert data.target == PROGRAM
    saved = load_corrections(tmp_path / "refined.corrections.yaml")
    assert saved.program == data.program.fingerprint
    # Planned again from what was learnt, the report says so.
    planning = ["plan", PROGRAM, "--mesh", "data=2,model=4", "--hardware", "tpu-v5e"]
    corrections = ["--corrections", str(tmp_path / "refined.corrections.yaml")]
    again = CliRunner().invoke(main, [*planning, "--no-baselines", *corrections])
    assert again.exit_code == 0, again.output
    assert "costs corrected from" in again.output


@pytest.mark.usefixtures("compiler")
def test_plan_refines_at_once(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    arguments = ["plan", PROGRAM, "--mesh", "data=2,model=4", "--refine", "v5e:2x4"]
    ran = CliRunner().invoke(main, [*arguments, "--rounds", "1", "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    data = load_plan_data(out)
    assert data.hardware == "tpu-v5e"
    assert data.refinement is not None
    assert (tmp_path / "plan.corrections.yaml").exists()


def test_the_command_exits_1_and_writes_no_plan_where_none_compiles_within_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "_compiler", lambda *_: says(lambda _: (1e-3, 2**40)))
    planned().save(tmp_path / "plan.json")
    out = tmp_path / "refined.json"
    arguments = ["refine", str(tmp_path / "plan.json"), PROGRAM, "--target", "v5e:2x4"]
    ran = CliRunner().invoke(main, [*arguments, "--rounds", "1", "--out", str(out)])
    assert ran.exit_code == 1, ran.output
    assert "No plan was found that compiles within the memory budget" in ran.output
    assert not out.exists()
    monkeypatch.setattr(Plan, "_compiler", lambda *_: says(lambda _: "crashed"))
    ran = CliRunner().invoke(main, [*arguments, "--rounds", "1", "--out", str(out)])
    assert ran.exit_code == 1, ran.output
    assert "error: no plan compiled\n" in ran.output
    assert not out.exists()


@pytest.mark.slow
def test_a_plan_refined_by_the_tpu_compiler_is_not_slower_than_any_that_compiled() -> None:
    pytest.importorskip("libtpu")
    plan = autoshard.optimize(
        step, PARAMS, BATCH, mesh="data=2,model=4", hardware="tpu-v5e", donate_argnums=0
    )
    found = plan.refine("v5e:2x4", rounds=2, minutes=10)
    record = found.data.refinement
    assert record is not None
    assert record.chosen is not None
    assert "libtpu" in record.compiler
    seconds = [one.compiled_seconds for one in record.tried if one.compiled_seconds]
    assert record.tried[record.chosen].compiled_seconds == min(seconds)
    assert found.corrections is not None
    assert found.corrections.corrections.choices  # names of compiled ops told their equations
    # What comes back compiles to what the record says.
    checked = found.verify("v5e:2x4")
    assert checked.time is not None
    best = record.tried[record.chosen]
    assert checked.time.overlapped_seconds == pytest.approx(best.compiled_seconds)
    assert checked.memory is not None
    assert checked.memory.compiled_bytes == best.compiled_bytes


@pytest.mark.slow
def test_a_budget_holds_as_compiled_for_a_tpu_or_the_missing_bytes_are_said() -> None:
    pytest.importorskip("libtpu")
    options: dict[str, Any] = {"mesh": "data=2,model=4", "hardware": "tpu-v5e", "donate_argnums": 0}
    options["time_limit_seconds"] = 10
    least = autoshard.optimize(step, PARAMS, BATCH, memory_budget=1, **options)
    for share in (1.0, 1.1):
        budget = int(share * least.data.memory.peak_bytes)
        plan = autoshard.optimize(step, PARAMS, BATCH, memory_budget=budget, **options)
        found = plan.refine("v5e:2x4", rounds=2, minutes=2)
        record = found.data.refinement
        assert record is not None
        if record.chosen is None:
            assert record.missing_bytes > 0
            assert not found.data.is_feasible
            continue
        checked = found.verify("v5e:2x4")
        assert checked.memory is not None
        assert checked.memory.compiled_bytes <= budget
