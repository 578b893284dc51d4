"""A plan as text for a terminal or a pipe."""

from __future__ import annotations

from typing import TextIO

from rich.console import Group, RenderableType
from rich.text import Text

from autoshard.plans.plan import PlanData
from autoshard.report.collective_rows import CollectiveRow
from autoshard.report.decision_rows import RoundRow
from autoshard.report.facts import ReportFacts, gather_facts
from autoshard.report.layout import heading, indented, plain, print_on, render_text, section, table
from autoshard.report.meshes import meshes_section
from autoshard.report.microbatches_text import microbatches_line, microbatches_rows
from autoshard.report.offloaded_text import offloaded_line, offloaded_rows
from autoshard.report.ops_text import (
    counted_name,
    modules_section,
    movers_section,
    ops_section,
    products_section,
)
from autoshard.report.quantities import (
    format_bytes,
    format_count,
    format_percent,
    format_ratio,
    format_seconds,
)
from autoshard.report.refinement_text import refinement_section
from autoshard.report.residuals_text import residuals_line, residuals_section
from autoshard.report.tensor_rows import LiveRow, TensorRow

_MAX_CONSTRAINTS = 30
_MAX_MISSES = 10
_MAX_ASKED = 20
_MAX_SPECS = 3


def format_report(plan: PlanData, width: int = 100, *, summary: bool = False) -> str:
    """A plan as plain text: totals, baselines, shardings, collectives, memory, constraints.

    Where no plan was found: by how many bytes the budget is missed, at which point of the program,
    and what weighs most there.

    Args:
        plan: The plan.
        width: Columns of the text; tables fold to keep within it.
        summary: Only totals, plans by hand, collectives and notes of a plan that was found.
    """
    return render_text(_report(gather_facts(plan), summary=summary), width)


def format_brief(plan: PlanData) -> str:
    """A plan in one line: `train_step on 8 x tpu-v5e, mesh data=2, model=4: optimal, 13.2 ms`."""
    facts = gather_facts(plan)
    if not facts.is_feasible:
        return f"{_title_text(facts)}: {facts.status}"
    return (
        f"{_title_text(facts)}: {facts.status}, {format_seconds(plan.priced_seconds)} a step,"
        f" {format_bytes(facts.collective_bytes)} through collectives,"
        f" {format_bytes(facts.peak_bytes)} at the peak"
    )


def print_report(
    plan: PlanData, file: TextIO, width: int | None = None, *, summary: bool = False
) -> None:
    """Print a plan, in colour and in its width if the file is a terminal."""
    print_on(_report(gather_facts(plan), summary=summary), file, width)


def _report(facts: ReportFacts, *, summary: bool) -> RenderableType:
    if not facts.is_feasible:
        return Group(
            _title(facts),
            _missed(facts),
            meshes_section(facts.meshes),
            _asked(facts),
            _rounds(facts),
            refinement_section(facts.refinement),
            residuals_section(facts.residuals),
            _live(facts),
            *_ending(facts),
        )
    head = (_title(facts), _totals(facts), _plans(facts))
    if summary:
        return Group(*head, _collectives(facts.collectives), *_ending(facts))
    parts = [
        *head,
        refinement_section(facts.refinement),
        residuals_section(facts.residuals),
        meshes_section(facts.meshes),
        _asked(facts),
        _rounds(facts),
        _tensors(
            "Arguments",
            facts.arguments,
            facts.num_arguments,
            facts.num_other_arguments,
            facts.other_arguments_bytes,
        ),
        _tensors(
            "Results",
            facts.results,
            facts.num_results,
            facts.num_other_results,
            facts.other_results_bytes,
            facts.num_results_like_arguments,
        ),
        _collectives(facts.collectives),
        modules_section(facts),
        ops_section(facts),
        movers_section(facts),
        products_section(facts.products),
        _live(facts),
        _constraints(facts),
        *_ending(facts),
    ]
    return Group(*parts)


def _title(facts: ReportFacts) -> RenderableType:
    return plain(facts.function, "bold").append_text(plain(_place(facts)))


def _title_text(facts: ReportFacts) -> str:
    return f"{facts.function}{_place(facts)}"


def _place(facts: ReportFacts) -> str:
    return f" on {facts.num_devices} x {facts.hardware}, mesh {facts.mesh}"


def _totals(facts: ReportFacts) -> RenderableType:
    rows: list[tuple[str, str | Text]] = [
        (
            "status",
            plain(f"{facts.status}: {proof_text(facts)}", "green"),
        ),
        (
            "step time",
            f"{format_seconds(facts.seconds)} predicted: compute "
            f"{format_seconds(facts.compute_seconds)}, communication "
            f"{format_seconds(facts.communication_seconds)} "
            f"({format_percent(facts.communication_fraction)}){_waiting(facts)}",
        ),
        *_overlapped(facts),
        *microbatches_rows(facts.accumulation),
        *([] if facts.residuals is None else [("residuals", residuals_line(facts.residuals))]),
        *offloaded_rows(facts.offloaded),
        ("collectives", f"{format_bytes(facts.collective_bytes)} per device"),
        ("memory peak", memory_text(facts)),
        *_compiler_model(facts),
        (
            "solver",
            f"{facts.backend}; {facts.num_ops:,} ops with {facts.num_choices:,} choices, presolved "
            f"to {facts.reduced_nodes:,} nodes and {facts.reduced_columns:,} columns",
        ),
        (
            "model gap",
            f"{format_percent(facts.model_gap)} between objective and estimate",
        ),
    ]
    return _pairs(rows)


def _waiting(facts: ReportFacts) -> str:
    """The time of waiting for the host, where there is any."""
    waits = facts.seconds - facts.compute_seconds - facts.communication_seconds
    return f", waiting for the host {format_seconds(waits)}" if waits > 1e-9 * facts.seconds else ""


def _compiler_model(facts: ReportFacts) -> list[tuple[str, str | Text]]:
    """The model that priced the plan, where the plan says it."""
    return [("compiler model", facts.compiler_model)] if facts.compiler_model else []


def _overlapped(facts: ReportFacts) -> list[tuple[str, str | Text]]:
    """What the step takes when collectives do not hold up the computing, where they need not."""
    if facts.overlapped_seconds is None:
        return []
    hidden = facts.seconds - facts.overlapped_seconds
    return [
        (
            "overlapped",
            f"{format_seconds(facts.overlapped_seconds)} when collectives run beside the computing,"
            f" {format_seconds(max(0.0, hidden))} of them hidden",
        )
    ]


def proof_text(facts: ReportFacts) -> str:
    """What is known of other plans: `no plan of the model costs less`."""
    if facts.gap >= 1:
        return "nothing is proven about other plans"
    given = ""
    if facts.rounds:
        given = f" that extends round {facts.rounds[-2].priority}"
    if facts.gap <= 0:
        return f"no plan of the model{given} costs less"
    return f"proven within {format_percent(facts.gap)} of the best plan of the model{given}"


def memory_text(facts: ReportFacts) -> str:
    """The peak, beside what is allowed."""
    text = f"{format_bytes(facts.peak_bytes)} per device"
    if facts.memory_budget is not None:
        share = facts.peak_bytes / facts.memory_budget if facts.memory_budget else float("inf")
        text += f" of {format_bytes(facts.memory_budget)} allowed ({format_percent(share)})"
    return f"{text}, {format_bytes(facts.argument_bytes)} of it arguments"


def _missed(facts: ReportFacts) -> RenderableType:
    lines = [plain(f"No plan: {facts.status}", "bold red")]
    if facts.over_budget_bytes and facts.memory_budget is not None:
        over = facts.over_budget_bytes
        lines.append(
            plain(
                f"The smallest memory peak found is {over:,} bytes ({format_bytes(over)}) over "
                f"the budget of {facts.memory_budget:,} bytes "
                f"({format_bytes(facts.memory_budget)}) per device, at {facts.peak_where}."
            )
        )
    if facts.accumulation is not None:
        lines.append(plain(f"Microbatches: {microbatches_line(facts.accumulation)}."))
    if facts.residuals is not None:
        lines.append(plain(f"Residuals: {residuals_line(facts.residuals)}."))
    if facts.offloaded is not None:
        lines.append(plain(f"On the host: {offloaded_line(facts.offloaded)}."))
    lines.append(plain(facts.advice))
    if facts.compiler_model:
        lines.append(plain(f"Compiler model: {facts.compiler_model}."))
    return Group(*lines)


def _plans(facts: ReportFacts) -> RenderableType:
    if len(facts.plans) == 1:
        return Group()
    overlaps = any(row.overlapped_seconds is not None for row in facts.plans)
    rows: list[tuple[str | Text, ...]] = [
        (
            plain(row.name, "bold" if row.ratio is None else ""),
            format_seconds(row.seconds),
            *([_seconds_or_none(row.overlapped_seconds)] if overlaps else []),
            "" if row.ratio is None else format_ratio(row.ratio),
            format_bytes(row.collective_bytes),
            format_bytes(row.peak_bytes),
            plain("yes", "green") if row.fits else plain("no", "red"),
        )
        for row in facts.plans
    ]
    return section(
        heading("Beside plans written by hand", "priced alike"),
        table(
            (
                "plan",
                ">step",
                *((">overlapped",) if overlaps else ()),
                ">ratio",
                ">collectives",
                ">memory",
                "fits",
            ),
            rows,
        ),
    )


def _seconds_or_none(seconds: float | None) -> str:
    return "" if seconds is None else format_seconds(seconds)


def _asked(facts: ReportFacts) -> RenderableType:
    if not facts.asked:
        return Group()
    rows = [
        (row.text, f"{row.num_tensors:,}", _some(row.specs)) for row in facts.asked[:_MAX_ASKED]
    ]
    if len(facts.asked) > _MAX_ASKED:
        rows.append((f"and {len(facts.asked) - _MAX_ASKED:,} more", "", ""))
    return section(
        heading("Asked for", "constraints given, and what the plan has there"),
        table(("constraint", ">tensors", "sharding"), rows),
    )


def _some(specs: tuple[str, ...]) -> str:
    """The first few, each on a line of its own."""
    lines = list(specs[:_MAX_SPECS])
    if len(specs) > _MAX_SPECS:
        lines.append(f"and {len(specs) - _MAX_SPECS:,} more")
    return "\n".join(lines)


def _rounds(facts: ReportFacts) -> RenderableType:
    if not facts.rounds:
        return Group()
    rows = [
        (
            str(row.priority),
            _round_asks(row),
            ", ".join(row.axes),
            format_seconds(row.seconds),
            format_bytes(row.collective_bytes),
            format_bytes(row.peak_bytes),
        )
        for row in facts.rounds
    ]
    return section(
        heading("Rounds of priorities", "each extends the one before; costs if it ended there"),
        table((">round", "asks", "axes", ">step", ">collectives", ">memory"), rows),
    )


def _round_asks(row: RoundRow) -> str:
    more = row.num_asked - 1
    return f"{row.first_asked} and {more:,} more" if more > 0 else row.first_asked


def _tensors(
    title: str,
    rows: tuple[TensorRow, ...],
    num_tensors: int,
    num_others: int,
    other_bytes: int,
    num_like_arguments: int = 0,
) -> RenderableType:
    cells = [
        (_tensor_name(row), row.type_text, row.spec, format_bytes(row.local_bytes)) for row in rows
    ]
    if num_others:
        cells.append((f"{num_others:,} smaller ones", "", "", format_bytes(other_bytes)))
    like = f", {num_like_arguments:,} sharded like arguments" if num_like_arguments else ""
    return section(
        heading(title, f"{num_tensors:,}{like}; bytes per device"),
        table(("name", "type", "sharding", ">bytes"), cells),
    )


def _tensor_name(row: TensorRow) -> str:
    also = f" and {', '.join(row.moments)}" if row.moments else ""
    return f"{counted_name(row.name, row.count)}{also}"


def _collectives(rows: tuple[CollectiveRow, ...]) -> RenderableType:
    if not rows:
        return section(heading("Collectives"), indented("none"))
    cells = [
        (
            row.kind,
            ", ".join(row.axes),
            f"{row.group_size:,}",
            format_count(row.count),
            format_bytes(row.num_bytes),
            _heaviest(row),
        )
        for row in rows
    ]
    return section(
        heading("Collectives", "bytes per device, all runs of one step"),
        table(("kind", "axes", ">group", ">runs", ">bytes", "heaviest for"), cells),
    )


def _heaviest(row: CollectiveRow) -> str:
    lines = [f"{format_bytes(heavy.num_bytes)} {heavy.op}" for heavy in row.heaviest]
    if row.num_other_ops:
        lines.append(f"and {row.num_other_ops:,} more")
    return "\n".join(lines)


def _live(facts: ReportFacts) -> RenderableType:
    if not facts.live:
        return Group()
    rows = [
        (_live_name(row), row.type_text, row.spec, format_bytes(row.local_bytes))
        for row in facts.live
    ]
    if facts.other_live_bytes:
        rows.append(("everything else", "", "", format_bytes(facts.other_live_bytes)))
    where = f", at {facts.peak_where}" if facts.peak_where else ""
    return section(
        heading("Memory at the peak", f"{format_bytes(facts.peak_bytes)} per device{where}"),
        table(("tensor", "type", "sharding", ">bytes"), rows),
    )


def _live_name(row: LiveRow) -> str:
    name = row.name
    if row.source:
        name = f"{name} at {row.source}" if name else row.source
    return counted_name(name or "unnamed", row.count)


def _constraints(facts: ReportFacts) -> RenderableType:
    rows = facts.constraints
    if rows is None:
        return section(
            heading("Constraints"),
            indented("not worked out yet: plan.constraints, plan.jit and plan.save do that"),
        )
    if not rows:
        body: RenderableType = indented("none: the shardings of arguments and results say it all")
    else:
        body = table(
            ("where", "constrain to"),
            [
                (counted_name(row.where, 1 + len(row.alike)), row.spec)
                for row in rows[:_MAX_CONSTRAINTS]
            ]
            + _rest(len(rows), _MAX_CONSTRAINTS),
        )
    if any(":(" in row.spec for row in rows):
        body = Group(body, indented("axis:(before)size is a part of an axis, from a refined mesh"))
    by_hand = "; plan.jit puts them in, by hand jax.lax.with_sharding_constraint does"
    number = sum(1 + len(row.alike) for row in rows)
    once = f" ({len(rows):,} with equal layers once)" if number > len(rows) else ""
    title = heading("Constraints", f"{number:,}{once}{by_hand if rows else ''}")
    if not facts.misses:
        return section(title, body)
    misses = [
        (miss.where, miss.planned, miss.propagated, _extra(miss.extra_seconds))
        for miss in facts.misses[:_MAX_MISSES]
    ]
    rest = [(*row, "", "") for row in _rest(len(facts.misses), _MAX_MISSES)]
    return Group(
        section(title, body),
        section(
            heading("Not as planned", "no set of constraints brings these values there"),
            table(("where", "planned", "comes out as", ">costs more"), [*misses, *rest]),
        ),
    )


def _rest(number: int, shown: int) -> list[tuple[str, str]]:
    return [(f"and {number - shown:,} more", "")] if number > shown else []


def _extra(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)


def _ending(facts: ReportFacts) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if facts.notes:
        parts.append(section(heading("Notes"), *(indented(f"- {note}") for note in facts.notes)))
    if facts.stage_seconds:
        stages = ", ".join(f"{name} {format_seconds(s)}" for name, s in facts.stage_seconds)
        total = format_seconds(sum(seconds for _, seconds in facts.stage_seconds))
        parts.append(section(heading("Planned in", total), indented(stages)))
    if facts.versions:
        versions = ", ".join(f"{name} {version}" for name, version in facts.versions)
        parts.append(indented(f"with {versions}", style="dim"))
    return parts


def _pairs(rows: list[tuple[str, str | Text]]) -> RenderableType:
    width = max(len(name) for name, _ in rows) + 2
    lines = []
    for name, value in rows:
        label = plain(name.ljust(width), "dim")
        lines.append(label.append_text(plain(value) if isinstance(value, str) else value))
    return Group(*lines)
