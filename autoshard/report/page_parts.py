"""What the parts of a page are made of: sections, tables, bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoshard.report.markup import Element, Node, element

_MOST_ROWS = 200

Cell = Node


def section(name: str, title: str, remark: str, *body: Node | None) -> Element:
    """A part of the page that the navigation leads to."""
    return element(
        "section",
        element("h2", title, id=f"{name}-title"),
        element("p", remark, class_="remark") if remark else None,
        *body,
        id=name,
        aria_labelledby=f"{name}-title",
    )


def data_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Element:
    """A table; on narrow screens every row becomes a card, which each cell has its header for.

    Args:
        caption: Read to those who do not see it.
        columns: Headers; one that begins with `>` holds numbers.
        rows: Their cells; the first one is the row's header.
    """
    rows = list(rows)
    shown = rows[:_MOST_ROWS]
    names = [column.removeprefix(">") for column in columns]
    kinds = ["number" if column.startswith(">") else None for column in columns]
    head = element(
        "tr",
        *(
            element("th", name, scope="col", role="columnheader", class_=kind)
            for name, kind in zip(names, kinds, strict=True)
        ),
        role="row",
    )
    body = [
        element(
            "tr",
            *(
                element(
                    "td" if place else "th",
                    cell,
                    role="cell" if place else "rowheader",
                    scope=None if place else "row",
                    class_=kind,
                    data_label=name,
                )
                for place, (cell, name, kind) in enumerate(zip(row, names, kinds, strict=True))
            ),
            role="row",
        )
        for row in shown
    ]
    more = len(rows) - len(shown)
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element("thead", head, role="rowgroup"),
            element("tbody", *body, role="rowgroup"),
            role="table",
        ),
        element("p", f"and {more:,} more, in the plan file", class_="remark") if more else None,
        class_="table",
    )


def bar(*parts: tuple[str, float], mark: float | None = None) -> Element:
    """A bar of parts, each a fraction of its width; `mark` is a line across it.

    Args:
        parts: A class that gives the colour, and the fraction.
        mark: Where the line is, as a fraction.
    """
    shapes = []
    start = 0.0
    for kind, fraction in parts:
        fraction = min(fraction, 1 - start)
        shapes.append(
            element("rect", class_=kind, x=_percent(start), width=_percent(fraction), height="100%")
        )
        start += fraction
    if mark is not None:
        shapes.append(
            element("rect", class_="mark", x=_percent(min(mark, 0.995)), width="2", height="100%")
        )
    return element("svg", *shapes, class_="bar", aria_hidden="true", focusable="false")


def _percent(fraction: float) -> str:
    return f"{100 * max(0.0, fraction):.2f}%"


def part_of(amount: float, whole: float) -> float:
    """A fraction for a bar: never above 1."""
    return min(1.0, amount / whole) if whole > 0 else 0.0
