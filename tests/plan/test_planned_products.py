"""Products in steps as part of a plan's data."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autoshard.loops.dot_schedule import DotSchedule
from autoshard.plans.plan_json import dump_plan, parse_plan
from autoshard.plans.planned_product import PlannedProduct
from autoshard.plans.verify_plan import verify_plan
from autoshard.sharding import Mesh, MeshAxis, parse_sharding
from tests.plan.plans import dot_schedules, gpt_plan, patient

ROWS = parse_sharding('[{"data"}, {}]')
MESH = Mesh((MeshAxis("data", 2), MeshAxis("model", 4)))


def product(schedule: DotSchedule | None, equation: str = "7") -> PlannedProduct:
    return PlannedProduct(
        equation=equation,
        name="dot_general",
        source="gpt.py:41 (mlp)",
        result="f32[8, 8]",
        schedule=schedule,
        seconds=1.0,
        extra_bytes=10,
        other_seconds=None,
        other_bytes=None,
        other_fits=False,
    )


@patient
@given(schedule=dot_schedules(MESH))
def test_only_products_in_steps_have_schedules_and_their_results_are_constrained(
    schedule: DotSchedule,
) -> None:
    plan = gpt_plan()
    values = {**plan.values, "7.0": next(iter(plan.values.values()))}
    plan = replace(plan, values=values, products=(product(schedule), product(None, "9")))
    assert plan.schedules == {"7": schedule}
    assert "7.0" in plan.required
    assert "9.0" not in plan.required


@patient
@given(schedule=dot_schedules(MESH), over=st.sampled_from("ab"))
def test_a_schedule_that_fits_neither_mesh_nor_statement_is_found(
    schedule: DotSchedule, over: str
) -> None:
    wrong = replace(schedule, over=over, rings=(), moved="")
    found = verify_plan(replace(gpt_plan(), products=(product(wrong),)))
    assert found == [f"`products[0].schedule`: `over`: '{over}' is not summed over"]


def test_a_file_from_before_rings_is_read_as_panels() -> None:
    panels = DotSchedule(
        statement="A(a,b) += B(a,c) * C(c,b)",
        homes=(ROWS, ROWS, ROWS),
        grid=("data",),
        cut=("a",),
        over="c",
        panel=8,
        num_steps=4,
    )
    plan = replace(gpt_plan(), products=(product(panels),))
    text = dump_plan(plan)
    for member in ('"both_ways": false, ', '"moved": "", ', '"rings": [], '):
        assert member in text
        text = text.replace(member, "")
    assert parse_plan(text) == plan
