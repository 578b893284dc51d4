"""Reference pages are complete, and what programs print into pages is current."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import autoshard
import cost_models
import solvers
from autoshard.cli import main
from autoshard.explain.explanation import (
    AlikeTensor,
    Alternative,
    CollectiveChange,
    Estimate,
    Explanation,
    OpChange,
    Read,
    Refusal,
)
from autoshard.frontend.program_record import ProgramRecord
from autoshard.graph.collective import PredictedCollective
from autoshard.plans.plan import (
    AskedSharding,
    AskedTerm,
    Baseline,
    HeldTensor,
    LiveTensor,
    MemoryUse,
    Miss,
    PlanData,
    PlannedOp,
    PlannedRound,
    PlannedTensor,
    ProgramLine,
    SolverFacts,
)
from autoshard.plans.searched_meshes import MeshSearch, TriedMesh
from solvers.catalog import CATALOG
from tests.docs.pages import ROOT, section_of

REFERENCE = ROOT / "docs" / "reference"
PLAN = (REFERENCE / "plan.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def refresh() -> dict[str, Any]:
    """What `docs/refresh.py` defines."""
    return runpy.run_path(str(ROOT / "docs" / "refresh.py"))


def rows_of(text: str, heading: str) -> dict[str, str]:
    """First and other cells of the tables under a heading."""
    _, _, rest = text.partition(f"\n## {heading}\n")
    section = re.split(r"\n## ", rest)[0]
    rows = re.findall(r"^\| (.+?) \| (.*) \|$", section, flags=re.MULTILINE)
    return {first: rest for first, rest in rows if not first.startswith("---")}


def names_in(cells: str) -> list[str]:
    return re.findall(r"`\*?\*?(\w+)[^`]*`", cells)


def test_the_table_of_known_machines_is_that_of_the_catalog(refresh: dict[str, Any]) -> None:
    table = section_of(REFERENCE / "hardware.md", "hardware table")
    assert table == refresh["hardware_table"](), "run `python docs/refresh.py`"


def test_every_public_name_is_on_its_page(refresh: dict[str, Any]) -> None:
    table = section_of(REFERENCE / "names.md", "public names")
    assert table == refresh["public_names"](), "run `python docs/refresh.py`"
    for package in (autoshard, solvers, cost_models):
        _, _, rest = table.partition(f"## `{package.__name__}`\n")
        listed = re.findall(r"^\| `(\w+)", rest.partition("\n## ")[0], flags=re.MULTILINE)
        assert listed == list(package.__all__)


def test_the_api_reference_is_that_of_the_docstrings(refresh: dict[str, Any]) -> None:
    text = section_of(REFERENCE / "api.md", "API reference")
    assert text == refresh["api_reference"](), "run `python docs/refresh.py`"
    parameters = inspect.signature(autoshard.optimize).parameters
    chapter = text.partition("## autoshard.optimize\n")[2].partition("\n## ")[0]
    assert [name for name in parameters if f"* `{name}`:" not in chapter.replace("`*", "`")] == []


def test_the_notebook_has_the_code_of_the_first_plan_and_runs(
    refresh: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = refresh["NOTEBOOK"].read_text(encoding="utf-8")
    assert text == refresh["first_plan_notebook"](), "run `python docs/refresh.py`"
    cells = ["".join(one["source"]) for one in json.loads(text)["cells"] if "outputs" in one]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells[1:]:  # the first one is for a process without JAX
        exec(compile(cell, "cell", "exec"), names)
    assert names["losses"][0] > names["losses"][-1]
    assert names["plan"]._repr_html_().startswith("<iframe")


def labels_of(report: str) -> list[str]:
    """The first cell of each line; figures change with every better price, these do not."""
    return [re.split(r"\s{2,}", line.strip())[0] for line in report.splitlines()]


def test_the_readme_shows_the_lines_that_the_demo_prints(refresh: dict[str, Any]) -> None:
    shown = section_of(ROOT / "README.md", "demo report")
    assert labels_of(shown) == labels_of(refresh["demo_report"]()), "run `python docs/refresh.py`"


def test_every_argument_of_optimize_is_documented_with_its_default() -> None:
    rows = rows_of(PLAN, "`autoshard.optimize`")
    parameters = inspect.signature(autoshard.optimize).parameters
    assert [name for cell in rows for name in names_in(cell)] == list(parameters)
    for parameter in parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "mesh":
            default = rows[f"`{parameter.name}`"].partition(" | ")[0].strip("`")
            assert default.replace('"', "'") == repr(parameter.default)


def test_every_public_member_of_a_plan_is_documented() -> None:
    documented = {name for cell in rows_of(PLAN, "`autoshard.Plan`") for name in names_in(cell)}
    fields = {field.name for field in dataclasses.fields(autoshard.Plan)}
    members = fields | set(vars(autoshard.Plan))
    public = {name for name in members if not name.startswith("_")}
    assert documented == public


def test_every_field_of_plan_data_is_documented_in_order() -> None:
    documented = [name for cell in rows_of(PLAN, "`PlanData`") for name in names_in(cell)]
    derived = [name for name, member in vars(PlanData).items() if isinstance(member, property)]
    fields = [field.name for field in dataclasses.fields(PlanData)]
    assert documented == ["field", *fields, *derived][1:]


@pytest.mark.parametrize(
    "kind",
    [
        PlannedTensor,
        PlannedOp,
        PredictedCollective,
        MemoryUse,
        LiveTensor,
        HeldTensor,
        SolverFacts,
        Baseline,
        PlannedRound,
        AskedSharding,
        ProgramLine,
        AskedTerm,
        MeshSearch,
        TriedMesh,
        Miss,
        ProgramRecord,
    ],
    ids=lambda kind: kind.__name__,
)
def test_every_field_inside_plan_data_is_documented_in_order(kind: Any) -> None:
    cells = rows_of(PLAN, "Inside `PlanData`")[f"`{kind.__name__}`"]
    documented = names_in(re.sub(r"\([^)]*\)", "", cells))
    assert documented == [field.name for field in dataclasses.fields(kind)]


@pytest.mark.parametrize(
    "kind",
    [
        Explanation,
        AlikeTensor,
        Read,
        Alternative,
        OpChange,
        CollectiveChange,
        Estimate,
        Refusal,
    ],
    ids=lambda kind: kind.__name__,
)
def test_every_field_of_an_explanation_is_documented_in_order(kind: Any) -> None:
    cells = rows_of(PLAN, "`Explanation`")[f"`{kind.__name__}`"]
    documented = names_in(re.sub(r"\([^)]*\)", "", cells))
    derived = [name for name, member in vars(kind).items() if isinstance(member, property)]
    assert documented == [*(field.name for field in dataclasses.fields(kind)), *derived]


def test_every_error_is_documented() -> None:
    documented = {name for cell in rows_of(PLAN, "Errors") for name in names_in(cell)}
    public = {getattr(autoshard, name) for name in autoshard.__all__}
    kinds = {kind for kind in public if isinstance(kind, type)}
    errors = {kind.__name__ for kind in kinds if issubclass(kind, autoshard.AutoshardError)}
    assert documented == errors - {"AutoshardError"}


def test_every_solver_is_documented() -> None:
    text = (REFERENCE / "solvers.md").read_text(encoding="utf-8")
    for backend in CATALOG:
        assert f"| `{backend.name}` |" in text


def test_every_option_of_the_plan_command_is_on_its_page() -> None:
    text = (ROOT / "docs" / "how-to" / "command-line.md").read_text(encoding="utf-8")
    options = [option for param in main.commands["plan"].params for option in param.opts]
    missing = [option for option in options if option.startswith("--") and option not in text]
    assert missing == []


def test_the_glossary_is_in_alphabetical_order_and_says_each_word_once() -> None:
    text = (REFERENCE / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", text, flags=re.MULTILINE)
    assert 20 < len(words) < 40  # a page
    assert words == sorted(set(words), key=str.lower)


def test_every_package_has_its_place_among_the_rooms() -> None:
    page = (ROOT / "docs/explanation/how-it-works.md").read_text(encoding="utf-8")
    rooms = page.partition("\n## Rooms\n")[2].partition("\n## ")[0]
    named = [line.split("`")[1] for line in rooms.splitlines() if line.startswith("| `")]
    packages = [path.parent.name for path in (ROOT / "autoshard").glob("*/__init__.py")]
    assert sorted(named) == sorted(packages)
