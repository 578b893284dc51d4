"""Time and bytes by module."""

from __future__ import annotations

from dataclasses import replace

from autoshard.plans.plan import PlanData
from autoshard.report import format_page, format_report
from autoshard.report.decision_rows import constraint_rows
from autoshard.report.facts import gather_facts
from autoshard.report.module_tree import module_rows
from tests.plan.plans import gpt_plan


def plan_with_modules() -> PlanData:
    """Two layers and a head, each op of one second; the second layer also communicates."""
    plan = gpt_plan()
    modules = ("net/h_0/attn", "net/h_0/mlp backward", "net/h_1/attn", "net/h_1/mlp", "net/head")
    ops = tuple(
        replace(
            plan.ops[0],
            index=index,
            source=f"{module}, net.py:{1 + index % 2} (f)",
            compute_seconds=1.0,
            communication_seconds=0.0,
        )
        for index, module in enumerate(modules)
    )
    moved = replace(plan.collectives[0], op=f"dot_general at {modules[2]}, net.py:1 (f)")
    return replace(plan, ops=ops, collectives=(moved,))


def test_modules_that_differ_in_a_number_are_one_and_count_what_is_inside() -> None:
    (net,) = module_rows(plan_with_modules())
    assert [(row.path, row.count, row.compute_seconds) for row in (net, *net.modules)] == [
        ("net", 1, 5.0),
        ("net/h_0..1", 2, 4.0),
        ("net/head", 1, 1.0),
    ]
    layers = net.modules[0]
    assert [(row.name, row.count, row.compute_seconds) for row in layers.modules] == [
        ("attn", 1, 2.0),
        ("mlp", 1, 2.0),
    ]


def test_bytes_are_counted_in_every_module_around_them() -> None:
    plan = plan_with_modules()
    (net,) = module_rows(plan)
    layers, head = net.modules
    moved = plan.collectives[0].moved_bytes
    assert [row.num_bytes for row in (net, layers, layers.modules[0])] == [moved] * 3
    assert head.num_bytes == 0


def test_a_program_without_modules_has_no_tree() -> None:
    assert module_rows(gpt_plan()) == ()
    assert "By module" not in format_report(gpt_plan())
    assert 'id="modules"' not in format_page(gpt_plan())


def test_the_tree_is_in_the_text_and_opens_on_the_page() -> None:
    plan = plan_with_modules()
    assert "By module" in format_report(plan)
    page = format_page(plan)
    assert '<details open><summary><span class="name">net</span>' in page
    assert '<span class="name">h_0..1 (2)</span>' in page


def test_ops_and_constraints_of_equal_layers_are_one_row() -> None:
    plan = plan_with_modules()
    layer = [row for row in gather_facts(plan).ops if row.source.startswith("net/h_0..1/attn")]
    assert [row.source for row in layer] == ["net/h_0..1/attn, net.py:1 (f)"]
    sharding = plan.values["3.0"]
    places = {f"{n}.0": f"net/h_{n}/attn, net.py:1 (f), on what add makes" for n in (3, 4)}
    placed = replace(plan, constraints=dict.fromkeys(places, sharding), places=places)
    rows = [*constraint_rows(placed)]
    assert "Constraints  2 (1 with equal layers once)" in format_report(placed)
    assert [(row.where, row.path, row.alike) for row in rows] == [
        ("net/h_3..4/attn, net.py:1 (f), on what add makes", "3.0", ("4.0",))
    ]
    apart = [*constraint_rows(replace(plan, constraints=dict.fromkeys(places, sharding)))]
    assert [row.alike for row in apart] == [(), ()]
