"""A plan as one page of HTML that needs nothing else: styles, script and data are in it."""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass
from importlib.resources import files

from autoshard.plans.plan import PlanData
from autoshard.plans.plan_diff import Change, diff_plans
from autoshard.report import page_sections as parts
from autoshard.report.diff_text import change_cells
from autoshard.report.facts import ReportFacts
from autoshard.report.markup import Element, Node, element, write_markup
from autoshard.report.page_data import page_data
from autoshard.report.page_facts import PageFacts, gather_page_facts
from autoshard.report.page_parts import data_table, section
from autoshard.report.quantities import format_bytes, format_seconds
from autoshard.user_files import write_or_refuse

_FRAME_HEIGHT = 720  # pixels; a choice
_SCRIPTS = ("dom.js", "tables.js", "mesh.js", "memory.js", "page.js")


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """The plan that a page compares with, and what to call it: its file."""

    plan: PlanData
    name: str


def format_page(plan: PlanData, against: Against | None = None) -> str:
    """A plan as an HTML page, and what differs from another plan where one is given.

    The page asks for nothing over a network, and its security policy forbids it to: only the
    style and the script that are in it, told by their digests, have an effect.

    Args:
        plan: The plan.
        against: The plan before it.
    """
    facts = gather_page_facts(plan)
    before = None if against is None else gather_page_facts(against.plan)
    diff = None if against is None else diff_plans(against.plan, plan)
    style = _asset("page.css")
    script = _script()
    body = write_markup(
        element(
            "body",
            element("a", "Skip to the plan", href="#main", class_="skip"),
            parts.title(facts.report),
            _navigation(facts, is_compared=against is not None),
            element(
                "main",
                parts.totals(facts.report),
                None
                if before is None or against is None
                else _compared(facts.report, before.report, against.name),
                *_views(facts),
                id="main",
            ),
        )
    ).removesuffix("</body>")
    head = write_markup(_head(plan, style, script)).removesuffix("</head>")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n{head}<style>{style}</style></head>\n{body}\n'
        f'<script type="application/json" id="data">{page_data(facts, before, diff)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def format_frame(plan: PlanData) -> str:
    """The page as a frame inside another one: a notebook's styles and scripts do not reach it."""
    return write_markup(
        element(
            "iframe",
            srcdoc=format_page(plan),
            title=plan.function,
            width="100%",
            height=str(_FRAME_HEIGHT),
        )
    )


def write_page(
    plan: PlanData, path: str | os.PathLike[str], against: Against | None = None
) -> None:
    """Write a page to a file, whole or not at all.

    Raises:
        InputError: The file cannot be written.
    """
    write_or_refuse(path, format_page(plan, against).encode(), "the page")


def _head(plan: PlanData, style: str, script: str) -> Element:
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}';"
        f" script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{plan.function} on {plan.mesh.num_devices} x {plan.hardware}"),
    )


def _asset(name: str) -> str:
    return files("autoshard.report").joinpath("html", name).read_text(encoding="utf-8")


def _script() -> str:
    return '"use strict";\n(() => {\n' + "\n".join(map(_asset, _SCRIPTS)) + "})();\n"


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _navigation(facts: PageFacts, *, is_compared: bool) -> Element:
    names = {
        "compared": "Compared" if is_compared else "",
        "by-hand": "By hand",
        "memory": "Memory",
        "time": "Time",
        "modules": "Modules" if facts.report.modules else "",
        "lines": "Lines",
        "collectives": "Collectives",
        "values": "Values",
        "constraints": "Constraints",
        "asked": "Asked" if facts.report.asked else "",
        "notes": "Notes",
    }
    links = [
        element("li", element("a", title, href=f"#{name}"))
        for name, title in names.items()
        if title
    ]
    search = element(
        "input",
        id="search",
        type="search",
        placeholder="Search every table  /",
        autocomplete="off",
        spellcheck="false",
    )
    label = element("label", "Search every table", for_="search", class_="unseen")
    return element("nav", element("div", element("ul", *links), label, search), aria_label="Parts")


def _views(facts: PageFacts) -> list[Node | None]:
    report = facts.report
    return [
        element("noscript", element("p", "The tables below need JavaScript.", class_="alert")),
        parts.by_hand(report),
        parts.meshes(report),
        parts.residuals(report),
        section(
            "memory",
            "Memory over the program",
            "Bytes one device holds at each op; the bars are the largest tensors, from the op"
            " that makes them to the last one that reads them. Arguments are paler; copies for one"
            " reader, and panels, have a colour of their own.",
            element("div", id="memory-view"),
        ),
        section(
            "time",
            "Where the time goes",
            "Ops alike are one row, with all runs of one step.",
            element("div", id="ops-view", class_="view"),
        ),
        parts.modules(report),
        section(
            "lines",
            "By source line",
            "What each line of the program takes; open one for its ops and reshards.",
            element("div", id="lines-view", class_="view"),
        ),
        section(
            "collectives",
            "Collectives",
            "Bytes per device, all runs of one step.",
            parts.kinds(report),
            element("div", id="moved-view", class_="view", hidden=not report.collectives),
        ),
        section(
            "values",
            "Values on the mesh",
            "Devices of one colour hold the same piece. Open a value for a larger drawing.",
            element("div", id="values-view", class_="view"),
        ),
        parts.constraints(report),
        parts.asked(report),
        parts.rounds(report),
        parts.products(report),
        parts.ending(report),
    ]


def _compared(after: ReportFacts, before: ReportFacts, name: str) -> Element:
    figures = (
        ("step time", before.seconds, after.seconds, "s"),
        ("compute", before.compute_seconds, after.compute_seconds, "s"),
        ("communication", before.communication_seconds, after.communication_seconds, "s"),
        ("collective bytes", before.collective_bytes, after.collective_bytes, "B"),
        ("memory peak", before.peak_bytes, after.peak_bytes, "B"),
        ("arguments", before.argument_bytes, after.argument_bytes, "B"),
    )
    rows = [(what, *_figures(old, new, unit)) for what, old, new, unit in figures]
    return section(
        "compared",
        f"Compared with {name}",
        f"Before is {name}, whose memory is the dashed line below; after is this plan.",
        data_table("Totals of both plans", ("what", ">before", ">after", ">change"), rows),
        element("div", id="changes-view", class_="view"),
    )


def _figures(before: float, after: float, unit: str) -> tuple[str, str, str]:
    """Both figures as people read them, and by how much they differ."""
    if before == after:
        shown = format_seconds(before) if unit == "s" else format_bytes(before)
        return shown, shown, "the same"
    return change_cells(
        Change(
            name="",
            before=f"{before:,}",
            after=f"{after:,}",
            before_number=before,
            after_number=after,
            unit=unit,
        )
    )
