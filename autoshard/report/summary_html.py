"""A plan as a notebook shows it: a few lines and two tables, no script, no style that travels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoshard.plans.plan import PlanData
from autoshard.report.facts import ReportFacts, gather_facts
from autoshard.report.markup import Element, element, write_markup
from autoshard.report.microbatches_text import microbatches_rows
from autoshard.report.quantities import (
    format_bytes,
    format_count,
    format_percent,
    format_ratio,
    format_seconds,
)
from autoshard.report.residuals_text import residuals_line
from autoshard.report.text import memory_text, proof_text

_MOST_ROWS = 8


def format_summary(plan: PlanData) -> str:
    """A plan in brief, as HTML for the middle of a page."""
    facts = gather_facts(plan)
    place = f" on {facts.num_devices:,} × {facts.hardware}, mesh {facts.mesh}"
    return write_markup(
        element(
            "div",
            element("p", element("strong", facts.function), place),
            _totals(facts),
            _by_hand(facts),
            _collectives(facts),
            element("p", "plan.report() says more; autoshard report --html draws it."),
        )
    )


def _totals(facts: ReportFacts) -> Element:
    found = proof_text(facts) if facts.is_feasible else facts.advice
    rows = (
        ("status", f"{facts.status}: {found}"),
        (
            "step time",
            f"{format_seconds(facts.seconds)} predicted, of it communication"
            f" {format_seconds(facts.communication_seconds)}"
            f" ({format_percent(facts.communication_fraction)})",
        ),
        ("collectives", f"{format_bytes(facts.collective_bytes)} per device"),
        *microbatches_rows(facts.accumulation),
        *([] if facts.residuals is None else [("residuals", residuals_line(facts.residuals))]),
        ("memory peak", memory_text(facts)),
        *([("compiler model", facts.compiler_model)] if facts.compiler_model else []),
    )
    return element(
        "table",
        *(
            element("tr", element("th", name, scope="row"), element("td", text))
            for name, text in rows
        ),
    )


def _by_hand(facts: ReportFacts) -> Element | None:
    if len(facts.plans) == 1:
        return None
    rows = [
        (
            row.name,
            format_seconds(row.seconds),
            "" if row.ratio is None else format_ratio(row.ratio),
            format_bytes(row.collective_bytes),
            format_bytes(row.peak_bytes),
            "yes" if row.fits else "no",
        )
        for row in facts.plans
    ]
    return _table(("plan", "step", "ratio", "collectives", "memory", "fits"), rows)


def _collectives(facts: ReportFacts) -> Element | None:
    rows = [
        (
            row.kind,
            ", ".join(row.axes),
            format_count(row.count),
            format_bytes(row.num_bytes),
        )
        for row in facts.collectives[:_MOST_ROWS]
    ]
    return _table(("collective", "over", "runs", "bytes"), rows) if rows else None


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Element:
    head = element("tr", *(element("th", column, scope="col") for column in columns))
    body = (element("tr", *(element("td", cell) for cell in row)) for row in rows)
    return element("table", element("thead", head), element("tbody", *body))
