"""The page of a plan in a headless Chromium: it renders, searches, filters and fetches nothing.

Needs `pip install playwright` and a Chromium: the `chromium` of the system, or one that
`CHROMIUM` names. Skipped where one of them is missing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from autoshard.plans.plan import PlanData
from autoshard.report import Against, format_page
from autoshard.report.page_facts import gather_page_facts
from autoshard.report.quantities import format_seconds
from tests.plan.plans import (
    gpt_plan,
    plan_in_rounds,
    plan_that_does_not_fit,
    plan_with_many_ops,
)
from tests.report.test_page import HOSTILE

pytestmark = pytest.mark.browser

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed", exc_type=ImportError
)
FLAGS = (
    "--no-sandbox --disable-gpu --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync"
).split()
OPENS_WITHIN_SECONDS = 2.0
SLACK = 2.0  # for a machine that does other things too


def chromium_path() -> str | None:
    named = [os.environ.get("CHROMIUM"), *map(shutil.which, ("chromium", "chromium-browser"))]
    return next((path for path in named if path), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = chromium_path()
    if path is None:
        pytest.skip("there is no Chromium: install it, or name it in CHROMIUM")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield found
        found.close()


@dataclass
class Opened:
    """A page in the browser, and what it said and asked for while it was open."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.page.locator(selector).all_inner_texts()
        return found

    def search(self, words: str) -> None:
        self.page.fill("#search", words)
        self.page.wait_for_timeout(150)


Open = Callable[..., Opened]


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    contexts: list[tuple[Any, Opened, Path]] = []

    def opened(
        plan: PlanData, against: Against | None = None, width: int = 1200, scheme: str = "light"
    ) -> Opened:
        path = tmp_path / f"page{len(contexts)}.html"
        path.write_text(format_page(plan, against), encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append((context, found := Opened(context.new_page()), path))
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.on("console", lambda message: found.complaints.append(message.text))
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.goto(path.as_uri())
        found.page.wait_for_selector("html[data-ready]", timeout=20_000)
        return found

    yield opened
    for context, found, path in contexts:
        fetched = [url for url in found.requests if not url.startswith("data:")]
        assert fetched == [path.as_uri()]
        assert found.complaints == []
        context.close()


@pytest.mark.parametrize("plan", [gpt_plan(), plan_in_rounds(), plan_that_does_not_fit()])
@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_fits_its_window(open_page: Open, plan: PlanData, width: int, scheme: str) -> None:
    found = open_page(plan, Against(plan=gpt_plan(), name="b.json"), width, scheme)
    assert found.page.evaluate("document.documentElement.scrollWidth") <= width
    assert found.page.locator("h1").inner_text() == "train_step"


def test_dark_and_light_have_other_colours(open_page: Open) -> None:
    script = "getComputedStyle(document.body).backgroundColor"
    light = open_page(gpt_plan()).page.evaluate(script)
    assert light != open_page(gpt_plan(), scheme="dark").page.evaluate(script)


def test_every_op_is_shown_with_its_figures(open_page: Open) -> None:
    found = open_page(gpt_plan())
    rows = found.texts("#ops-view tbody tr")
    facts = gather_page_facts(gpt_plan())
    assert len(rows) == len(facts.ops)
    for row, op in zip(rows, facts.ops, strict=True):
        for text in (op.name, op.source, op.result, op.spec, format_seconds(op.seconds)):
            assert text in row


def test_search_keeps_the_rows_that_have_every_word(open_page: Open) -> None:
    found = open_page(gpt_plan())
    found.search("  W1 BLOCKS ")
    names = found.texts("#values-view tbody th")
    assert [name.strip() for name in names] == [
        f"params['blocks'][{layer}]['w1']" for layer in range(3)
    ]
    assert found.texts("#values-view .remark") == ["3 of 21 rows"]
    assert found.texts("#ops-view .remark") == ["0 of 2 rows"]
    found.search("")
    assert found.texts("#values-view .remark") == ["21 rows"]


def test_filters_keep_the_rows_of_their_kind(open_page: Open) -> None:
    found = open_page(gpt_plan())
    found.page.select_option("#moved-view select >> nth=0", "all-reduce")
    assert found.texts("#moved-view td[data-label=kind]") == ["all-reduce"] * 2
    found.page.select_option("#moved-view select >> nth=1", "data")
    assert found.texts("#moved-view .remark") == ["0 of 4 rows"]


def test_headers_sort(open_page: Open) -> None:
    found = open_page(plan_with_many_ops(100))
    header = found.page.locator("#ops-view th button", has_text="compute")
    header.click()
    cells = found.texts("#ops-view td[data-label=compute]")
    most = sorted(gather_page_facts(plan_with_many_ops(100)).ops, key=lambda o: -o.compute_seconds)
    assert cells == [format_seconds(op.compute_seconds) for op in most[: len(cells)]]
    assert found.page.locator("#ops-view th[aria-sort=descending]").count() == 1
    header.click()
    cells = found.texts("#ops-view td[data-label=compute]")
    assert cells == [format_seconds(op.compute_seconds) for op in most[::-1][: len(cells)]]


def test_a_value_opens_to_its_pieces_on_the_devices(open_page: Open) -> None:
    found = open_page(gpt_plan())
    found.search("kv")
    found.page.locator("#values-view .open").click()
    pieces = found.page.locator("svg.mesh rect").evaluate_all(
        "all => all.map(r => r.dataset.piece)"
    )
    assert pieces == ["0", "0", "1", "1", "2", "2", "3", "3"]
    colours = found.page.locator("svg.mesh rect").evaluate_all(
        "all => all.map(r => r.getAttribute('fill'))"
    )
    assert len(set(colours)) == 4
    assert [colours[0], colours[2]] == [colours[1], colours[3]]
    assert found.texts(".drawing li") == [
        "dimension 0: 8 = 2 pieces of 4 over data",
        "dimension 1: 4 = 2 pieces of 2 over model:(1)2",
        "dimension 2: 64, not cut",
    ]
    found.page.locator("#values-view .open").click()
    assert found.page.locator("svg.mesh").count() == 0


def test_the_place_in_the_program_tells_what_is_held(open_page: Open) -> None:
    found = open_page(gpt_plan())
    said = "#memory-said"
    assert found.texts(said) == ["op 20, dot_general at gpt.py:41 (mlp): 120 MB held"]
    names = found.texts("#memory-view tbody th")
    assert names == ["copy of tanh for dot_general", "tanh", "params['embed']"]
    found.page.focus("#memory-place")
    found.page.keyboard.press("ArrowRight")
    assert found.texts(said) == ["op 21, tanh at gpt.py:42 (mlp): 60.0 MB held"]
    assert found.texts("#memory-view tbody th") == ["tanh", "params['embed']"]
    found.page.keyboard.press("Home")
    assert found.texts(said)[0].endswith(": 40.0 MB held")
    found.page.click("text=To the peak")
    assert found.texts(said)[0].endswith(": 120 MB held")


def test_the_keyboard_reaches_search_tables_and_values(open_page: Open) -> None:
    found = open_page(gpt_plan())
    found.page.keyboard.press("Tab")
    assert found.page.evaluate("document.activeElement.textContent") == "Skip to the plan"
    found.page.keyboard.press("/")
    found.page.keyboard.type("embed")
    found.page.wait_for_timeout(150)
    assert found.texts("#values-view .remark") == ["1 of 21 rows"]
    found.page.locator("#values-view .open").focus()
    found.page.keyboard.press("Enter")
    assert found.page.locator("#values-view .open[aria-expanded=true]").count() == 1


def test_a_line_opens_to_its_ops_and_collectives(open_page: Open) -> None:
    found = open_page(gpt_plan())
    line = found.page.locator("#lines-view details", has_text="41 (mlp)")
    line.locator("summary").click()
    cells = found.texts("#lines-view details[open] tbody th")
    assert cells == ["dot_general", "all-gather"]


def test_what_differs_can_be_filtered_by_subject(open_page: Open) -> None:
    found = open_page(plan_that_does_not_fit(), Against(plan=gpt_plan(), name="b.json"))
    found.page.select_option("#changes-view select", "plan by hand")
    assert found.texts("#changes-view tbody th") == ["replicated", "data parallel"]


def test_names_that_look_like_markup_stay_text(open_page: Open) -> None:
    plan = gpt_plan()
    hostile = replace(
        plan,
        function=HOSTILE,
        arguments=tuple(replace(one, name=HOSTILE) for one in plan.arguments),
        ops=tuple(replace(op, name=HOSTILE, source=HOSTILE) for op in plan.ops),
        memory=replace(
            plan.memory, held=tuple(replace(one, name=HOSTILE) for one in plan.memory.held)
        ),
    )
    found = open_page(hostile)
    assert found.page.locator("h1").inner_text() == HOSTILE
    assert found.page.locator("img:not(.thumb)").count() == 0
    assert found.texts("#values-view tbody th")[0].strip() == HOSTILE
    assert found.texts("#memory-view tbody th")[0] == HOSTILE


def test_a_plan_of_5000_ops_opens_in_time_and_stays_quick(open_page: Open) -> None:
    found = open_page(plan_with_many_ops(5_000))
    seconds = found.page.evaluate("performance.now()") / 1000
    assert seconds < SLACK * OPENS_WITHIN_SECONDS
    assert found.texts("#ops-view .remark") == ["5,000 rows, the first 25 shown"]
    assert found.page.locator("#ops-view tbody tr").count() == 25
    found.page.locator("#ops-view .more").click()
    assert found.page.locator("#ops-view tbody tr").count() == 125
    spent = found.page.evaluate(
        """() => {
            const field = document.getElementById("search");
            field.value = "op_7 model.py";
            field.dispatchEvent(new Event("input"));
            const start = performance.now();
            return new Promise((done) => setTimeout(() => requestAnimationFrame(
                () => done(performance.now() - start)), 70));
        }"""
    )
    assert spent < 1000 * SLACK
    assert set(found.texts("#ops-view tbody th")) == {"op_7"}
