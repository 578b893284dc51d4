"""The page of a plan, read without a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from autoshard.accumulation.choice import Accumulation, Microbatches
from autoshard.errors import InputError
from autoshard.plans.plan import PlanData
from autoshard.plans.plan_diff import PlanDiff, diff_plans
from autoshard.report import Against, format_frame, format_page, gather_facts, write_page
from autoshard.report.page_data import SUBJECTS
from autoshard.report.page_facts import gather_page_facts, line_place
from autoshard.report.quantities import format_bytes, format_seconds
from tests.plan.plans import (
    gpt_plan,
    patient,
    plan_in_rounds,
    plan_that_does_not_fit,
    plan_with_many_ops,
    plans,
)

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'"
ROOT = Path(__file__).parents[2]
ASSETS = "autoshard/report/html"
EMPTY_TAGS = {"meta", "input", "br"}


class Page(HTMLParser):
    """What a browser would find in a page; a tag that is closed wrongly is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.contents: dict[str, list[str]] = {}
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY_TAGS:
            self.open.append(tag)
            self.contents.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.contents[self.open[-1]][-1] += data
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def data(self) -> Any:
        return json.loads(self.contents["script"][0])

    def ids(self) -> list[str]:
        return [attributes["id"] or "" for _, attributes in self.tags if "id" in attributes]


def attributes_of(page: Page, tag: str) -> Iterator[dict[str, str | None]]:
    return (attributes for name, attributes in page.tags if name == tag)


@pytest.mark.parametrize("plan", [gpt_plan(), plan_in_rounds(), plan_that_does_not_fit()])
def test_every_link_leads_to_a_part_of_the_page_and_no_id_comes_twice(plan: PlanData) -> None:
    page = Page(format_page(plan))
    ids = page.ids()
    links = [attributes["href"] for attributes in attributes_of(page, "a")]
    assert len(set(ids)) == len(ids)
    assert {f"#{name}" for name in ids} >= set(links)


def test_microbatches_are_told_with_the_step_time() -> None:
    parts = Microbatches(count=4, dims=(None, 0))
    plan = replace(gpt_plan(), accumulation=Accumulation(microbatches=parts, batch_size=64))
    told = "microbatches: 4 of 16 examples each, totals added up"
    assert told in Page(format_page(plan)).text
    assert told not in Page(format_page(gpt_plan())).text


def test_the_totals_are_those_of_the_report() -> None:
    page, facts = Page(format_page(gpt_plan())), gather_facts(gpt_plan())
    for figure in (
        format_seconds(facts.seconds),
        f"compute {format_seconds(facts.compute_seconds)}",
        f"communication {format_seconds(facts.communication_seconds)} (19.2 %)",
        f"{format_bytes(facts.peak_bytes)} ",
        "80.0 % of 150 MB allowed",
        "40.0 MB arguments",
        f"Collectives per device {format_bytes(facts.collective_bytes)}",
        "proven within 0.64 % of the best plan of the model",
        "2.69x",
        "1.50x",
    ):
        assert figure in page.text


def test_every_op_collective_and_value_is_in_the_data_with_its_figures() -> None:
    plan = gpt_plan()
    data = Page(format_page(plan)).data
    assert sum(row[7][0] for row in data["ops"]) == pytest.approx(plan.seconds)
    assert sum(row[5][0] for row in data["moved"]) == pytest.approx(plan.collective_bytes)
    assert [row[1] for row in data["values"]] == [
        *(tensor.name for tensor in (*plan.arguments, *plan.results)),
        *(op.name for op in plan.ops),
        *plan.values,
    ]
    by_name = {row[1]: row for row in data["values"]}
    kv = by_name["kv"]
    assert kv[:5] == ["argument", "kv", "", "f32[8, 4, 64]", [8, 4, 64]]
    assert data["shardings"][kv[5]] == {
        "spec": "P('data', 'model:(1)2')",
        "grid": 0,
        "pieces": [2, 2, 1],
        "axes": ["data", "model:(1)2", ""],
        "held": [0, 0, 1, 1, 2, 2, 3, 3],
        "sums": [],
    }
    assert kv[6] == [2048, "2.05 kB"]


def test_lines_hold_the_time_of_their_ops_and_the_bytes_of_their_collectives() -> None:
    lines = {row[0]: row for row in Page(format_page(gpt_plan())).data["lines"]}
    assert list(lines) == [
        "gpt.py:20",
        "gpt.py:41 (mlp)",
        "gpt.py:42 (mlp)",
        "gpt.py:43 (mlp)",
        "gpt.py:60 (loss)",
    ]
    assert [part[1] for part in lines["gpt.py:41 (mlp)"][1:5]] == [
        "6.00 ms",
        "1.50 ms",
        "7.50 ms",
        "3.15 MB",
    ]


def test_lines_are_sorted_by_file_and_number() -> None:
    lines = ["b.py:9 (f)", "a.py:100", "a.py:12 (g)", "", "b.py:10 (f)"]
    assert sorted(lines, key=line_place) == [
        "a.py:12 (g)",
        "a.py:100",
        "b.py:9 (f)",
        "b.py:10 (f)",
        "",
    ]


def test_what_no_tensor_explains_is_told_at_every_place() -> None:
    moments = gather_page_facts(gpt_plan()).moments
    assert [(m.op, m.held_bytes, m.unnamed_bytes) for m in moments] == [
        (0, 40_000_000, 40_000_000 - 8_192_000),
        (20, 120_000_000, 120_000_000 - 8_192_000 - 33_554_432 - 41_943_040),
        (21, 60_000_000, 60_000_000 - 8_192_000 - 33_554_432),
    ]
    assert moments[1].where == "dot_general at gpt.py:41 (mlp)"


def test_an_older_file_tells_what_is_held_at_the_peak() -> None:
    plan = gpt_plan()
    older = replace(plan, memory=replace(plan.memory, held=()))
    facts = gather_page_facts(older)
    assert [(one.name, one.start, one.stop) for one in facts.held] == [
        ("params['embed']", 20, 21),
        ("", 20, 21),
        ("", 20, 21),
    ]


def test_ticks_are_round_and_reach_the_budget() -> None:
    assert gather_page_facts(gpt_plan()).memory_ticks == (
        0,
        50_000_000,
        100_000_000,
        150_000_000,
    )


def test_a_budget_far_above_the_peak_does_not_flatten_the_drawing() -> None:
    plan = replace(gpt_plan(), memory_budget=16_000_000_000)
    assert gather_page_facts(plan).memory_ticks == (0, 50_000_000, 100_000_000, 150_000_000)


def test_a_plan_that_does_not_fit_says_so_first() -> None:
    page = Page(format_page(plan_that_does_not_fit()))
    assert (
        "No plan: infeasible. The least peak found is 20,000,000 bytes (20.0 MB) over the budget,"
        " at dot_general at gpt.py:41 (mlp). Raise the memory limit, or use more devices."
    ) in page.text


def test_names_cannot_become_markup_or_script() -> None:
    plan = gpt_plan()
    hostile = replace(
        plan,
        function=HOSTILE,
        hardware=HOSTILE,
        notes=(HOSTILE,),
        arguments=tuple(replace(one, name=HOSTILE) for one in plan.arguments),
        ops=tuple(replace(op, name=HOSTILE, source=HOSTILE) for op in plan.ops),
        collectives=tuple(replace(c, op=HOSTILE, kind=HOSTILE) for c in plan.collectives),
        values={HOSTILE: plan.values["3.0"]},
        constraints={HOSTILE: plan.values["3.0"]},
        stage_seconds={HOSTILE: 1.0},
        versions={HOSTILE: HOSTILE},
    )
    text = format_page(hostile, Against(plan=plan, name=HOSTILE))
    page, usual = Page(text), Page(format_page(plan, Against(plan=plan, name="a")))
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "img" not in [tag for tag, _ in page.tags]
    assert page.contents["script"][1] == usual.contents["script"][1]
    assert page.contents["h1"] == [HOSTILE]
    assert page.data["values"][0][1] == HOSTILE
    assert [tag for tag, _ in Page(format_frame(hostile)).tags] == ["iframe"]


@pytest.mark.parametrize("against", [None, Against(plan=plan_in_rounds(), name="b.json")])
def test_nothing_is_fetched_and_only_the_own_script_may_run(against: Against | None) -> None:
    text = format_page(gpt_plan(), against)
    page = Page(text)
    for name in ("href", "src", "action", "style", "onclick", "onload"):
        for tag, attributes in page.tags:
            value = attributes.get(name)
            assert value is None or value.startswith("#"), f"{tag} {name}={value}"
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import", text) == []
    policy = next(
        attributes["content"] or ""
        for attributes in attributes_of(page, "meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    for kind, content in (
        ("script", page.contents["script"][1]),
        ("style", page.contents["style"][0]),
    ):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_the_script_never_parses_text_as_markup_or_as_script() -> None:
    script = Page(format_page(gpt_plan())).contents["script"][1]
    pattern = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|fetch\("
    assert re.findall(pattern, script) == []


def test_tables_have_captions_and_headers_with_scopes() -> None:
    page = Page(format_page(gpt_plan(), Against(plan=plan_in_rounds(), name="b.json")))
    tables = [tag for tag, _ in page.tags].count("table")
    assert len(page.contents["caption"]) == tables > 3
    assert all(page.contents["caption"])
    assert all(attributes.get("scope") for attributes in attributes_of(page, "th"))


def test_a_comparison_shows_both_totals_and_every_change() -> None:
    before = gpt_plan()
    after = replace(
        before,
        communication_seconds=3.0e-3,
        collectives=before.collectives[1:],
        memory=replace(before.memory, peak_bytes=125_000_000, timeline=((0, 125_000_000),)),
    )
    page = Page(format_page(after, Against(plan=before, name="before.json")))
    assert "Compared with before.json" in page.text
    assert "step time 7.80 ms 9.30 ms +19.2 %" in page.text
    assert "memory peak 120 MB 125 MB +4.17 %" in page.text
    diff = diff_plans(before, after)
    shown = [(subject, name) for subject, name, *_ in page.data["changes"]]
    wanted = [
        (name, change.name) for subject, name in SUBJECTS for change in getattr(diff, subject)
    ]
    assert shown == [one for one in wanted if one != ("memory", "timeline")]
    assert page.data["memory"]["before"] == [[0, 40_000_000], [20, 120_000_000], [21, 60_000_000]]


def test_shardings_that_differ_are_drawn_on_the_mesh_of_each_plan() -> None:
    before, after = gpt_plan(), plan_with_many_ops(20)
    tensor = replace(before.arguments[0], name=after.arguments[0].name)
    before = replace(before, arguments=(tensor,))
    data = Page(format_page(after, Against(plan=before, name="before.json"))).data
    row = next(row for row in data["changes"] if row[:2] == ["argument", tensor.name])
    old, new = (data["shardings"][number] for number in row[5:])
    assert (old["spec"], len(data["grids"][old["grid"]]["devices"])) == ("P('data', 'model')", 8)
    assert (new["spec"], len(data["grids"][new["grid"]]["devices"])) == ("P('data', 'model')", 256)


def test_every_subject_of_a_comparison_is_shown() -> None:
    assert {subject for subject, _ in SUBJECTS} == {field.name for field in fields(PlanDiff)}


@settings(patient, max_examples=25)
@given(plan=plans(), other=plans())
def test_any_plan_has_a_page_that_is_sound_and_the_same_every_time(
    plan: PlanData, other: PlanData
) -> None:
    text = format_page(plan, Against(plan=other, name="other"))
    assert text == format_page(plan, Against(plan=other, name="other"))
    data = Page(text).data
    assert len(data["values"]) == len(plan.arguments) + len(plan.results) + len(plan.ops) + len(
        plan.values
    )
    for one in data["shardings"]:
        assert len(one["held"]) == len(data["grids"][one["grid"]]["devices"])


def test_styles_and_scripts_are_part_of_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["autoshard"]
    assets = [path.relative_to(ROOT / "autoshard") for path in (ROOT / ASSETS).iterdir()]
    assert len(assets) > 1
    assert [path for path in assets if not any(path.match(pattern) for pattern in patterns)] == []


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    write_page(gpt_plan(), path)
    assert path.read_text(encoding="utf-8") == format_page(gpt_plan())
    with pytest.raises(InputError) as caught:
        write_page(gpt_plan(), tmp_path / "missing" / "plan.html")
    assert str(caught.value) == (
        "the page cannot be written: No such file or directory\n"
        f"  where: {tmp_path / 'missing' / 'plan.html'}\n"
        "  fix: name a file in a folder that exists and that you may write to"
    )
    assert [one.name for one in tmp_path.iterdir()] == ["plan.html"]


def test_a_notebook_shows_the_page_in_a_frame_of_its_own() -> None:
    ((tag, attributes),) = Page(format_frame(gpt_plan())).tags
    assert tag == "iframe"
    assert attributes["srcdoc"] == format_page(gpt_plan())
    assert attributes["title"] == "train_step"


def test_colours_can_be_told_from_what_they_stand_on() -> None:
    style = Page(format_page(gpt_plan())).contents["style"][0]
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    for scheme in (light.partition("}")[0], dark.partition("}")[0]):
        colours = dict(re.findall(r"--([a-z]+): #([0-9a-f]{6});", scheme))
        for ground in ("card", "back"):
            for text in ("ink", "quiet", "good", "bad"):
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
            for shape in ("compute", "communication", "focus"):
                assert contrast(colours[shape], colours[ground]) >= 3, (shape, ground)


def contrast(one: str, other: str) -> float:
    """Source: Web Content Accessibility Guidelines 2.2, relative luminance and contrast ratio."""

    def luminance(colour: str) -> float:
        channels = [int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        red, green, blue = (
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
