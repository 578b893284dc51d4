"""Where the time of a plan goes, as text: by module, by op, by what moves bytes, by matmul."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType

from autoshard.report.facts import ReportFacts
from autoshard.report.layout import heading, section, table
from autoshard.report.module_tree import ModuleRow
from autoshard.report.op_rows import ProductRow
from autoshard.report.quantities import format_bytes, format_count, format_seconds

_MAX_PRODUCTS = 20
_MODULE_DEPTH = 4
_LEAST_SHARE = 0.01  # of the step, for a module to be told


def counted_name(name: str, count: int) -> str:
    return f"{name} ({count:,})" if count > 1 else name


def modules_section(facts: ReportFacts) -> RenderableType:
    """The tree of modules, as deep as it says something."""
    if not facts.modules:
        return Group()
    least = _LEAST_SHARE * facts.seconds
    rows = list(_module_lines(facts.modules, 0, least))
    return section(
        heading("By module", "all runs of one step, backward included; what is inside counts"),
        table(("module", ">compute", ">comm.", ">bytes"), rows),
    )


def _module_lines(
    modules: tuple[ModuleRow, ...], depth: int, least_seconds: float
) -> Iterator[tuple[str, str, str, str]]:
    for row in modules:
        if row.compute_seconds + row.communication_seconds < least_seconds:
            continue
        yield (
            "  " * depth + counted_name(row.name, row.count),
            format_seconds(row.compute_seconds),
            format_seconds(row.communication_seconds),
            format_bytes(row.num_bytes),
        )
        if depth + 1 < _MODULE_DEPTH:
            yield from _module_lines(row.modules, depth + 1, least_seconds)


def ops_section(facts: ReportFacts) -> RenderableType:
    if not facts.ops:
        return Group()
    rows = [
        (
            row.name,
            row.source,
            f"{row.result} {row.spec}",
            format_count(row.count),
            format_seconds(row.compute_seconds),
            format_seconds(row.communication_seconds),
        )
        for row in facts.ops
    ]
    if facts.other_ops_seconds:
        share = format_seconds(facts.other_ops_seconds)
        rows.append((f"all others: {share}", "", "", "", "", ""))
    return section(
        heading("Where the time goes", "all runs of one step"),
        table(("op", "line", "result", ">runs", ">compute", ">comm."), rows),
    )


def movers_section(facts: ReportFacts) -> RenderableType:
    if not facts.movers:
        return Group()
    rows = [
        (row.op, "\n".join(row.kinds), format_count(row.count), format_bytes(row.num_bytes))
        for row in facts.movers
    ]
    if facts.other_movers_bytes:
        rows.append((f"all others: {format_bytes(facts.other_movers_bytes)}", "", "", ""))
    return section(
        heading("What moves the bytes", "per device, all runs of one step"),
        table(("op", "collectives", ">runs", ">bytes"), rows),
    )


def products_section(rows: tuple[ProductRow, ...]) -> RenderableType:
    if not rows:
        return Group()
    cells = [
        (
            _product(row),
            _way(row),
            format_seconds(row.seconds),
            format_bytes(row.extra_bytes),
            _otherwise(row),
        )
        for row in rows[:_MAX_PRODUCTS]
    ]
    if len(rows) > _MAX_PRODUCTS:
        cells.append((f"and {len(rows) - _MAX_PRODUCTS:,} more", "", "", "", ""))
    return section(
        heading("Heavy matmuls", "all runs of one step; bytes beside operands and result"),
        table(("matmul", "runs", ">time", ">holds", "otherwise"), cells),
    )


def _product(row: ProductRow) -> str:
    place = f"{row.name} at {row.source}" if row.source else row.name
    return f"{counted_name(place, row.count)}\n{row.result}"


def _way(row: ProductRow) -> str:
    lines = "\n".join(row.way)
    return "\n".join((f"{lines}, from", *row.specs)) if row.specs else lines


def _otherwise(row: ProductRow) -> str:
    """The best other way, and what speaks against it."""
    other = "at once" if row.algorithm else "in steps"
    if row.other_seconds is None or row.other_bytes is None:
        return f"nothing {other} ends in the same sharding"
    cost = f"{other} {format_seconds(row.other_seconds)}, {format_bytes(row.other_bytes)}:"
    if not row.other_fits:
        return f"{cost}\ndoes not fit"
    if row.other_seconds >= row.seconds:
        return f"{cost}\nfits, no faster"
    return f"{cost}\nfits, but slower elsewhere"
