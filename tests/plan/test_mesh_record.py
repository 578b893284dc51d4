"""The record of a mesh search in a plan: saved, read, checked, and shown."""

from __future__ import annotations

import json
from dataclasses import replace

from autoshard.plans.plan import PlanData
from autoshard.plans.plan_json import dump_plan, parse_plan
from autoshard.plans.searched_meshes import MeshSearch, TriedMesh
from autoshard.plans.verify_plan import verify_plan
from autoshard.report import format_report
from autoshard.sharding import Mesh, parse_mesh_sizes
from tests.plan.plans import MESH, gpt_plan, plan_that_does_not_fit

OTHER = parse_mesh_sizes("data=8")


def searched(plan: PlanData, *tried: TriedMesh) -> PlanData:
    record = MeshSearch(num_devices=8, bound_seconds=7.5e-3, tried=tried)
    return replace(plan, mesh_search=record)


def chosen(mesh: Mesh = MESH) -> TriedMesh:
    return TriedMesh(
        mesh=mesh, outcome="chosen", seconds=7.8e-3, bound_seconds=7.5e-3, peak_bytes=120_000_000
    )


LINE = TriedMesh(mesh=OTHER, outcome="bound", reason="it is slower", bound_seconds=9e-3)


def test_a_search_comes_back_from_its_text() -> None:
    plan = searched(gpt_plan(), chosen(), LINE)
    assert parse_plan(dump_plan(plan)) == plan


def test_a_file_from_before_there_were_searches_is_read() -> None:
    members = json.loads(dump_plan(gpt_plan()))
    del members["mesh_search"]
    assert parse_plan(json.dumps(members)) == gpt_plan()


def test_a_record_that_is_not_that_of_the_plan_is_refused() -> None:
    tried = (
        chosen(OTHER),
        replace(LINE, outcome="worse"),
        replace(LINE, mesh=parse_mesh_sizes("data=4")),
    )
    assert verify_plan(searched(gpt_plan(), *tried)) == [
        '`mesh_search.tried[1].outcome`: "worse" is no outcome; expected one of chosen, no better,'
        " bound, memory, alike, impossible, no time",
        "`mesh_search.tried[2].mesh`: has 4 devices; expected 8",
        "`mesh_search.tried`: expected one chosen mesh, that of the plan",
    ]


def section(plan: PlanData) -> list[str]:
    lines = format_report(plan).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("Meshes"))
    return lines[start : lines.index("", start)]


def test_a_report_has_a_table_of_the_meshes() -> None:
    beaten = replace(LINE, outcome="no better", seconds=9.5e-3, peak_bytes=90_000_000)
    assert section(searched(gpt_plan(), chosen(), beaten)) == [
        "Meshes  2 of as many devices; the step as the solver sees it",
        "  mesh                 step   at least    memory",
        "  ─────────────────────────────────────────────────────────────",
        "  data=2, model=4   7.80 ms    7.50 ms    120 MB   this plan",
        "  data=8            9.50 ms    9.00 ms   90.0 MB   it is slower",
    ]


def test_a_report_shows_the_first_meshes_of_many() -> None:
    shown = section(searched(gpt_plan(), chosen(), *[LINE] * 30))
    assert shown[0] == "Meshes  31 of as many devices; the step as the solver sees it"
    assert len(shown) == 3 + 20 + 1
    assert shown[-1].strip() == "and 11 more"


def test_a_report_of_no_plan_has_the_meshes_too() -> None:
    plan = plan_that_does_not_fit()
    lines = section(searched(plan, chosen(plan.mesh), LINE))
    assert lines[-1].split() == ["data=8", "9.00", "ms", "it", "is", "slower"]
