"""The parts of a page that need no script: title, totals, comparison by hand, what was asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoshard.report.facts import ReportFacts
from autoshard.report.markup import Element, Node, element
from autoshard.report.microbatches_text import microbatches_line
from autoshard.report.module_tree import ModuleRow
from autoshard.report.offloaded_text import offloaded_line
from autoshard.report.page_parts import bar, data_table, part_of, section
from autoshard.report.quantities import (
    format_bytes,
    format_count,
    format_percent,
    format_ratio,
    format_seconds,
)
from autoshard.report.residuals_text import (
    RESIDUAL_COLUMNS,
    TRIED_COLUMNS,
    residual_rows,
    residuals_line,
    tried_rows,
)
from autoshard.report.text import proof_text

_OPEN_DEPTH = 2  # of the module tree, when the page opens


def title(facts: ReportFacts) -> Element:
    """What the plan is for, and whether there is one."""
    return element(
        "header",
        element(
            "div",
            element("p", "autoshard plan", class_="kicker"),
            element("h1", facts.function or "unnamed function"),
            element(
                "p",
                f"{facts.num_devices:,} × {facts.hardware}, mesh {facts.mesh}",
                class_="place",
            ),
            element("p", f"compiler model: {facts.compiler_model}", class_="place")
            if facts.compiler_model
            else None,
        ),
        element("p", facts.status, class_="badge good" if facts.is_feasible else "badge bad"),
        class_="top",
    )


def totals(facts: ReportFacts) -> Element:
    """Time, memory, bytes moved and what is proven, each with a picture where one helps."""
    return element(
        "section",
        element("h2", "Totals", class_="unseen"),
        _missed(facts),
        element("div", _time(facts), _memory(facts), _moved(facts), _proof(facts), class_="tiles"),
        id="totals",
    )


def _tile(name: str, figure: str, *body: Node | None) -> Element:
    return element(
        "div", element("h3", name), element("p", figure, class_="figure"), *body, class_="tile"
    )


def _time(facts: ReportFacts) -> Element:
    return _tile(
        "Step time, predicted",
        format_seconds(facts.seconds),
        bar(
            ("compute", part_of(facts.compute_seconds, facts.seconds)),
            ("communication", part_of(facts.communication_seconds, facts.seconds)),
        ),
        element(
            "p",
            _key("compute", f"compute {format_seconds(facts.compute_seconds)}"),
            _key(
                "communication",
                f"communication {format_seconds(facts.communication_seconds)} ",
                element("span", f"({format_percent(facts.communication_fraction)})", class_="word"),
            ),
            None
            if facts.overlapped_seconds is None
            else f"{format_seconds(facts.overlapped_seconds)} when they overlap",
        ),
        None
        if facts.accumulation is None
        else element("p", f"microbatches: {microbatches_line(facts.accumulation)}"),
    )


def _memory(facts: ReportFacts) -> Element:
    budget = facts.memory_budget
    scale = max(facts.peak_bytes, budget or 0)
    rest = facts.peak_bytes - facts.argument_bytes
    allowed = ""
    if budget is not None:
        share = format_percent(facts.peak_bytes / budget) if budget else "all"
        allowed = f"{share} of {format_bytes(budget)} allowed"
    return _tile(
        "Memory peak per device",
        format_bytes(facts.peak_bytes),
        bar(
            ("arguments", part_of(facts.argument_bytes, scale)),
            ("held", part_of(rest, scale)),
            mark=None if budget is None else part_of(budget, scale),
        ),
        element(
            "p",
            _key("arguments", f"{format_bytes(facts.argument_bytes)} arguments"),
            _key("held", "the rest"),
        ),
        element("p", allowed) if allowed else None,
        None
        if facts.offloaded is None
        else element("p", f"on the host: {offloaded_line(facts.offloaded)}"),
    )


def _key(kind: str, *text: Node) -> Element:
    """What a colour stands for; a blank after it lets the line break there."""
    return element("span", element("span", class_=f"key {kind}"), *text, " ", class_="legend")


def _moved(facts: ReportFacts) -> Element:
    runs = sum(row.count for row in facts.collectives)
    return _tile(
        "Collectives per device",
        format_bytes(facts.collective_bytes),
        bar(
            *(
                (f"kind{min(place, 3)}", part_of(row.num_bytes, facts.collective_bytes))
                for place, row in enumerate(facts.collectives)
            )
        ),
        element("p", f"{format_count(runs)} runs in one step"),
    )


def _proof(facts: ReportFacts) -> Element:
    figure = (
        "none"
        if facts.gap >= 1
        else "optimal"
        if facts.gap <= 0
        else f"≤ {format_percent(facts.gap)}"
    )
    return _tile(
        "Distance from the best plan",
        figure,
        bar(("proof", 0.0 if facts.gap >= 1 else 1 - max(0.0, facts.gap))),
        element(
            "p",
            f"{proof_text(facts)}; {facts.num_ops:,} ops with {facts.num_choices:,} choices,"
            f" solved by {facts.backend or 'no solver'};"
            f" model gap {format_percent(facts.model_gap)}",
        ),
    )


def _missed(facts: ReportFacts) -> Element | None:
    if facts.is_feasible:
        return None
    text = f"No plan: {facts.status}. "
    if facts.over_budget_bytes:
        text += (
            f"The least peak found is {facts.over_budget_bytes:,} bytes"
            f" ({format_bytes(facts.over_budget_bytes)}) over the budget, at {facts.peak_where}. "
        )
    return element("p", text + facts.advice, class_="alert", role="alert")


def by_hand(facts: ReportFacts) -> Element:
    """Our plan and those written by hand, with bars to the same scale."""
    slowest = max(row.seconds for row in facts.plans)
    largest = max(row.peak_bytes for row in facts.plans)
    overlaps = any(row.overlapped_seconds is not None for row in facts.plans)
    rows = [
        (
            element("strong", row.name) if row.ratio is None else row.name,
            format_seconds(row.seconds),
            bar(("time", part_of(row.seconds, slowest))),
            *([_known(format_seconds, row.overlapped_seconds)] if overlaps else []),
            "" if row.ratio is None else format_ratio(row.ratio),
            format_bytes(row.collective_bytes),
            format_bytes(row.peak_bytes),
            bar(("held" if row.fits else "over", part_of(row.peak_bytes, largest))),
            "yes" if row.fits else element("span", "no", class_="bad"),
        )
        for row in facts.plans
    ]
    overlapped = (">overlapped",) if overlaps else ()
    columns = ("plan", ">step", "", *overlapped, ">ratio", ">collectives", ">memory", "", "fits")
    return section(
        "by-hand",
        "Beside plans written by hand",
        "Priced alike; the ratio is their step time over that of this plan."
        if len(facts.plans) > 1
        else "None were priced.",
        data_table("Step time, bytes and memory of each plan", columns, rows),
    )


def _known(form: Callable[[float], str], number: float | None) -> str:
    return "" if number is None else form(number)


def meshes(facts: ReportFacts) -> Element | None:
    """The meshes that a search tried."""
    if not facts.meshes:
        return None
    rows = [
        (
            element("strong", row.axes) if row.is_chosen else row.axes,
            _known(format_seconds, row.seconds),
            _known(format_seconds, row.bound_seconds),
            _known(format_bytes, row.peak_bytes),
            "this plan" if row.is_chosen else row.reason,
        )
        for row in facts.meshes
    ]
    return section(
        "meshes",
        "Meshes",
        "Of as many devices; the step as the solver sees it.",
        data_table("Meshes considered", ("mesh", ">step", ">at least", ">memory", "why"), rows),
    )


def residuals(facts: ReportFacts) -> Element | None:
    """What is kept for backward passes, and the sets that were planned."""
    choice = facts.residuals
    if choice is None or not choice.residuals:
        return None
    return section(
        "residuals",
        "Residuals",
        f"What backward passes read of forward passes: the plan {residuals_line(choice)}.",
        data_table(
            "Residuals, largest first",
            RESIDUAL_COLUMNS,
            residual_rows(choice, len(choice.residuals)),
        ),
        data_table("Sets of residuals planned", TRIED_COLUMNS, tried_rows(choice)),
    )


def kinds(facts: ReportFacts) -> Element:
    """Collectives by kind and mesh axes, with bars to the same scale."""
    if not facts.collectives:
        return element("p", "The plan needs no collectives.")
    most = max(row.num_bytes for row in facts.collectives)
    rows = [
        (
            row.kind,
            ", ".join(row.axes),
            f"{row.group_size:,}",
            format_count(row.count),
            format_bytes(row.num_bytes),
            bar((f"kind{min(place, 3)}", part_of(row.num_bytes, most))),
        )
        for place, row in enumerate(facts.collectives)
    ]
    columns = ("kind", "over", ">group", ">runs", ">bytes", "")
    return data_table("Collectives by kind and mesh axes", columns, rows)


def asked(facts: ReportFacts) -> Element | None:
    """The constraints given, and what became of them."""
    if not facts.asked:
        return None
    rows = [(row.text, f"{row.num_tensors:,}", _lines(row.specs)) for row in facts.asked]
    return section(
        "asked",
        "Asked for",
        "Constraints given, and what the plan has there.",
        data_table("Constraints given", ("constraint", ">tensors", "sharding"), rows),
    )


def rounds(facts: ReportFacts) -> Element | None:
    """What each round of priorities decided."""
    if not facts.rounds:
        return None
    rows = [
        (
            str(row.priority),
            row.first_asked + (f" and {row.num_asked - 1:,} more" if row.num_asked > 1 else ""),
            ", ".join(row.axes),
            format_seconds(row.seconds),
            format_bytes(row.collective_bytes),
            format_bytes(row.peak_bytes),
        )
        for row in facts.rounds
    ]
    columns = ("round", "asks", "axes", ">step", ">collectives", ">memory")
    return section(
        "rounds",
        "Rounds of priorities",
        "Each extends the one before; costs if planning ended there.",
        data_table("Rounds of priorities", columns, rows),
    )


def products(facts: ReportFacts) -> Element | None:
    """Heavy matmuls and how they run."""
    if not facts.products:
        return None
    rows = [
        (
            f"{row.name} at {row.source}" if row.source else row.name,
            row.result,
            f"{row.count:,}",
            " ".join(row.way),
            format_seconds(row.seconds),
            format_bytes(row.extra_bytes),
        )
        for row in facts.products
    ]
    columns = ("matmul", "result", ">alike", "runs", ">time", ">holds")
    return section(
        "products",
        "Heavy matmuls",
        "Time of all runs of one step; bytes held beside operands and result.",
        data_table("Heavy matmuls", columns, rows),
    )


def modules(facts: ReportFacts) -> Element | None:
    """The tree of modules; each opens to those inside of it."""
    if not facts.modules:
        return None
    return section(
        "modules",
        "By module",
        "All runs of one step, the backward pass included. A module counts what is inside of it;"
        " modules that differ only in a number are one.",
        element(
            "div",
            element(
                "div",
                *(element("span", title) for title in ("module", "", "compute", "comm.", "bytes")),
                class_="head",
            ),
            *(_module(row, facts.seconds, 0) for row in facts.modules),
            class_="tree",
        ),
    )


def _module(row: ModuleRow, step_seconds: float, depth: int) -> Element:
    label = (
        element(
            "span", f"{row.name} ({row.count:,})" if row.count > 1 else row.name, class_="name"
        ),
        bar(
            ("compute", part_of(row.compute_seconds, step_seconds)),
            ("communication", part_of(row.communication_seconds, step_seconds)),
        ),
        element("span", format_seconds(row.compute_seconds), class_="number"),
        element("span", format_seconds(row.communication_seconds), class_="number"),
        element("span", format_bytes(row.num_bytes), class_="number"),
    )
    if not row.modules:
        return element("div", *label, class_="leaf")
    return element(
        "details",
        element("summary", *label),
        *(_module(inside, step_seconds, depth + 1) for inside in row.modules),
        open=depth < _OPEN_DEPTH,
    )


def constraints(facts: ReportFacts) -> Element:
    """What to paste, and what no constraint brings about."""
    rows = facts.constraints
    remark = "Not worked out yet: plan.constraints, plan.jit and plan.save do that."
    body: Element | None = None
    if rows is not None:
        remark = "None: the shardings of arguments and results say it all."
    if rows:
        remark = "plan.jit puts them in; by hand, jax.lax.with_sharding_constraint does."
        body = data_table(
            "Constraints by value",
            ("where", "constrain to"),
            [
                (
                    f"{row.where} ({1 + len(row.alike):,})" if row.alike else row.where,
                    element("code", row.spec),
                )
                for row in rows
            ],
        )
    return section("constraints", "Constraints", remark, body, _misses(facts))


def _misses(facts: ReportFacts) -> Element | None:
    if not facts.misses:
        return None
    rows = [
        (
            miss.where,
            element("code", miss.planned),
            element("code", miss.propagated),
            "unknown" if miss.extra_seconds is None else _signed(miss.extra_seconds),
        )
        for miss in facts.misses
    ]
    columns = ("where", "planned", "comes out as", ">costs more")
    return element(
        "div",
        element("h3", "Not as planned"),
        element("p", "No set of constraints brings these values there.", class_="remark"),
        data_table("Values that come out otherwise", columns, rows),
    )


def _signed(seconds: float) -> str:
    return f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)


def ending(facts: ReportFacts) -> Element:
    """Notes, and how planning went."""
    stages = ", ".join(f"{name} {format_seconds(s)}" for name, s in facts.stage_seconds)
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions)
    return section(
        "notes",
        "Notes",
        "",
        element("ul", *(element("li", note) for note in facts.notes)) if facts.notes else None,
        element("p", facts.advice) if facts.advice else None,
        element("p", f"Planned in: {stages}", class_="remark") if stages else None,
        element("p", f"With {versions}", class_="remark") if versions else None,
    )


def _lines(texts: Sequence[str]) -> Node:
    return element("div", *(element("code", text, class_="line") for text in texts))
