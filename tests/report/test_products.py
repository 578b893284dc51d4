"""What a report says of products that could run in steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autoshard.loops.dot_schedule import DotSchedule
from autoshard.plans.planned_product import PlannedProduct
from autoshard.report import format_report
from autoshard.sharding import parse_sharding
from tests.plan.plans import gpt_plan

CheckGolden = Callable[[str, str], None]

ROWS = parse_sharding('[{"data"}, {}]')

IN_STEPS = PlannedProduct(
    equation="7",
    name="dot_general",
    source="gpt.py:41 (mlp)",
    result="f32[512, 2048]",
    schedule=DotSchedule(
        statement="A(a,b) += B(a,c) * C(c,b)",
        homes=(ROWS, ROWS, ROWS),
        grid=("data",),
        cut=("a",),
        over="c",
        panel=128,
        num_steps=4,
    ),
    seconds=2e-3,
    extra_bytes=1_000_000,
    other_seconds=1.5e-3,
    other_bytes=4_000_000,
    other_fits=False,
)
AT_ONCE = replace(IN_STEPS, equation="9", schedule=None, other_seconds=3e-3, other_fits=True)


def section(*products: PlannedProduct) -> str:
    text = format_report(replace(gpt_plan(), products=products))
    start = text.index("Heavy matmuls") if "Heavy matmuls" in text else len(text)
    return text[start : text.index("\n\n", start) + 1] if start < len(text) else ""


def test_products_alike_are_one_row_with_the_reason(check_golden: CheckGolden) -> None:
    check_golden("products.txt", section(IN_STEPS, replace(IN_STEPS, equation="8"), AT_ONCE))


def test_a_product_whose_pieces_go_round_says_where_and_by_which_algorithm() -> None:
    assert IN_STEPS.schedule is not None
    ring = replace(IN_STEPS.schedule, rings=("data",), moved="C", both_ways=True)
    lines = [line.strip() for line in section(replace(IN_STEPS, schedule=ring)).splitlines()]
    assert "all-gather-matmul" in lines[3]
    assert "round data both ways" in lines[4]
    assert "in 4 steps, from" in lines[5]
    cannon = replace(ring, rings=("data", "model"), moved="BC", both_ways=False)
    assert replace(cannon).algorithm == "cannon"


def test_what_speaks_against_the_other_way_is_said() -> None:
    faster = replace(IN_STEPS, other_fits=True)
    assert "fits, but slower elsewhere" in section(faster)
    alone = replace(IN_STEPS, other_seconds=None, other_bytes=None)
    assert "nothing at once ends" in section(alone)


def test_a_product_that_has_no_other_way_and_no_steps_is_left_out() -> None:
    assert section(replace(AT_ONCE, other_seconds=None, other_bytes=None)) == ""
    assert section() == ""
