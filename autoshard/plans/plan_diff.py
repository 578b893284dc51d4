"""What differs between two plans: the program, totals, shardings, collectives, memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from autoshard.graph.collective import PredictedCollective
from autoshard.plans.plan import (
    AskedTerm,
    Baseline,
    HeldTensor,
    LiveTensor,
    Miss,
    PlanData,
    PlannedOp,
    PlannedRound,
    PlannedTensor,
)
from autoshard.plans.planned_product import PlannedProduct
from autoshard.plans.source_names import with_short_sources
from autoshard.remat.choice import Residual
from autoshard.sharding import Sharding, format_mesh
from autoshard.sharding.spec_text import format_spec

ABSENT = "-"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that differs.

    Args:
        name: What it is: `step time`, an argument's name, a path.
        before: What the first plan says, `-` if nothing.
        after: What the second plan says, likewise.
        before_number: The number `before` stands for, if it is one.
        after_number: Likewise.
        unit: Of the numbers: `s`, `B`, or "" for counts and fractions.
    """

    name: str
    before: str = ABSENT
    after: str = ABSENT
    before_number: float | None = None
    after_number: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDiff:
    """Differences of two plans by subject, each in the order of the plans.

    Left out is what says how planning went and not what was decided: seconds by stage, the
    solver's log and name, the sizes of its models, versions. What a program is made of is summed
    up by its fingerprint.
    """

    program: tuple[Change, ...] = ()
    asked: tuple[Change, ...] = ()
    totals: tuple[Change, ...] = ()
    arguments: tuple[Change, ...] = ()
    results: tuple[Change, ...] = ()
    constraints: tuple[Change, ...] = ()
    values: tuple[Change, ...] = ()
    ops: tuple[Change, ...] = ()
    collectives: tuple[Change, ...] = ()
    memory: tuple[Change, ...] = ()
    baselines: tuple[Change, ...] = ()
    notes: tuple[Change, ...] = ()
    rounds: tuple[Change, ...] = ()
    products: tuple[Change, ...] = ()
    residuals: tuple[Change, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the two plans decide and promise the same."""
        return self == PlanDiff()


def diff_plans(before: PlanData, after: PlanData) -> PlanDiff:
    """Everything in which two plans differ; nothing for a plan and itself.

    Source lines are compared by their file names: the same program elsewhere is no difference.
    """
    before, after = with_short_sources(before), with_short_sources(after)
    return PlanDiff(
        program=_program(before, after),
        asked=_by_key(_asked(before), _asked(after), _asked_text),
        totals=_totals(before, after),
        arguments=_by_key(_tensors(before.arguments), _tensors(after.arguments), _tensor_text),
        results=_by_key(_tensors(before.results), _tensors(after.results), _tensor_text),
        constraints=_by_key(_constraints(before), _constraints(after), str),
        values=(
            *_by_key(before.values, after.values, format_spec),
            *_by_key(before.wanted_uses, after.wanted_uses, format_spec, "use {}"),
            *_by_key(_misses(before), _misses(after), _miss_text, "missed {}"),
        ),
        ops=_by_key(numbered(before.ops, _op_name), numbered(after.ops, _op_name), _op_text),
        collectives=_collectives(before, after),
        memory=_memory(before, after),
        baselines=_by_key(_baselines(before), _baselines(after), _baseline_text),
        notes=_by_key(_notes(before), _notes(after), lambda _: "noted"),
        rounds=_rounds(before, after),
        products=_by_key(_products(before), _products(after), _product_text),
        residuals=_by_key(_residuals(before), _residuals(after), _residual_text),
    )


def _program(before: PlanData, after: PlanData) -> tuple[Change, ...]:
    old, new = before.program, after.program
    return _kept(
        _text("function", before.function, after.function),
        _text("fingerprint", before.planned_program, after.planned_program),
        _number("equations", old.num_equations, new.num_equations),
        _text("mesh", format_mesh(before.mesh), format_mesh(after.mesh)),
        _text("hardware", before.hardware, after.hardware),
        _text("compiler model", before.compiler_model, after.compiler_model),
    )


def _asked(plan: PlanData) -> dict[str, AskedTerm]:
    return numbered(plan.asked, lambda term: term.text)


def _asked_text(term: AskedTerm) -> str:
    return f"{len(term.paths)} tensor{'s' * (len(term.paths) != 1)}"


def _totals(before: PlanData, after: PlanData) -> tuple[Change, ...]:
    facts_before, facts_after = before.solver, after.solver
    return _kept(
        _text("status", facts_before.status, facts_after.status),
        _text("advice", facts_before.advice, facts_after.advice),
        _number("step time", before.seconds, after.seconds, "s"),
        _number("compute", before.compute_seconds, after.compute_seconds, "s"),
        _number("communication", before.communication_seconds, after.communication_seconds, "s"),
        _number("overlapped step time", before.overlapped_seconds, after.overlapped_seconds, "s"),
        _number("collective bytes", before.collective_bytes, after.collective_bytes, "B"),
        _number("cost", facts_before.seconds, facts_after.seconds, "s"),
        _number("proven bound", facts_before.bound_seconds, facts_after.bound_seconds, "s"),
        _number("gap", facts_before.gap, facts_after.gap),
    )


def _memory(before: PlanData, after: PlanData) -> tuple[Change, ...]:
    old, new = before.memory, after.memory
    totals = _kept(
        _number("budget", before.memory_budget, after.memory_budget, "B"),
        _number("arguments", old.argument_bytes, new.argument_bytes, "B"),
        _number("peak", old.peak_bytes, new.peak_bytes, "B"),
        _text("peak at", old.peak_where, new.peak_where),
        _text("peak at op", str(old.peak_op), str(new.peak_op)),
    )
    live = _by_key(
        numbered(old.live_at_peak, _live_name), numbered(new.live_at_peak, _live_name), _live_text
    )
    curve = _kept(_text("timeline", _timeline(before), _timeline(after)))
    held = _by_key(numbered(old.held, _held_name), numbered(new.held, _held_name), _held_text)
    return (*totals, *live, *curve, *held)


def _timeline(plan: PlanData) -> str:
    return " ".join(f"{op}:{num_bytes}" for op, num_bytes in plan.memory.timeline)


def _collectives(before: PlanData, after: PlanData) -> tuple[Change, ...]:
    """By what they are and what they are for; those alike are one entry with all their bytes."""

    def totals(plan: PlanData) -> dict[str, list[PredictedCollective]]:
        found: dict[str, list[PredictedCollective]] = {}
        for collective in plan.collectives:
            axes = ", ".join(collective.axes)
            name = f"{collective.kind} over {axes} ({collective.group_size}) for {collective.op}"
            found.setdefault(name, []).append(collective)
        return found

    def moved(members: Iterable[PredictedCollective]) -> float:
        return sum(member.moved_bytes for member in members)

    def runs(members: Iterable[PredictedCollective]) -> str:
        """Sizes and counts, for those whose totals are alike."""
        return ", ".join(f"{m.count:g} x {m.bytes_per_device:,} B" for m in members)

    old, new = totals(before), totals(after)
    changes = []
    for name in dict.fromkeys([*old, *new]):
        here, there = old.get(name), new.get(name)
        if here == there:
            continue
        change = Change(name=name)
        if here is not None:
            change = dataclasses.replace(change, before=runs(here), before_number=moved(here))
        if there is not None:
            change = dataclasses.replace(change, after=runs(there), after_number=moved(there))
        changes.append(dataclasses.replace(change, unit="B"))
    return tuple(changes)


def _baselines(plan: PlanData) -> dict[str, Baseline]:
    return numbered(plan.baselines, lambda baseline: baseline.name)


def _baseline_text(baseline: Baseline) -> str:
    beside = baseline.overlapped_seconds
    overlapped = "" if beside is None else f" ({beside:.6g} s overlapped)"
    return (
        f"{baseline.seconds:.6g} s{overlapped}, {baseline.collective_bytes:,.0f} B moved, "
        f"{baseline.peak_bytes:,} B held, {'fits' if baseline.fits else 'does not fit'}"
    )


def _constraints(plan: PlanData) -> dict[str, str]:
    if plan.constraints is None:
        return {"constraints": "not worked out"}
    found = numbered(plan.constraints.items(), lambda one: plan.places.get(one[0], one[0]))
    return {name: format_spec(sharding) for name, (_, sharding) in found.items()}


def _misses(plan: PlanData) -> dict[str, Miss]:
    return numbered(plan.misses, lambda miss: plan.places.get(miss.path, miss.path))


def _miss_text(miss: Miss) -> str:
    extra = "at unknown cost" if miss.extra_seconds is None else f"{miss.extra_seconds:g} s more"
    return f"{format_spec(miss.planned)} comes out as {format_spec(miss.propagated)}, {extra}"


def _products(plan: PlanData) -> dict[str, PlannedProduct]:
    return numbered(plan.products, lambda one: f"{one.equation} {one.name} {one.source}".strip())


def _residuals(plan: PlanData) -> dict[str, Residual]:
    found = () if plan.residuals is None else plan.residuals.residuals
    return numbered(found, lambda one: f"{one.what} {one.source} {one.type_text}")


def _residual_text(residual: Residual) -> str:
    return residual.fate


def _product_text(product: PlannedProduct) -> str:
    way = "at once" if product.schedule is None else str(product.schedule)
    other = (
        f"{'at once' if product.schedule else 'in steps'} {product.other_seconds:.6g} s,"
        f" {product.other_bytes or 0:,} B, {'fits' if product.other_fits else 'does not fit'}"
        if product.other_seconds is not None
        else "no other way"
    )
    return f"{product.result} {way}, {product.seconds:.6g} s, {product.extra_bytes:,} B; {other}"


def _notes(plan: PlanData) -> dict[str, str]:
    return numbered(plan.notes, str)


def _rounds(before: PlanData, after: PlanData) -> tuple[Change, ...]:
    """What each round was asked for and promises, and what it made of every line."""

    def totals(plan: PlanData) -> dict[str, PlannedRound]:
        return {
            f"round {found.priority}": dataclasses.replace(found, shardings=())
            for found in plan.rounds
        }

    def lines(plan: PlanData) -> dict[str, str]:
        return {
            f"line {number}": f"{line.text} {line.source}"
            for number, line in enumerate(plan.listing, start=1)
        }

    def shardings(plan: PlanData) -> dict[str, tuple[Sharding, ...]]:
        return {
            f"round {found.priority} line {number}": made
            for found in plan.rounds
            for number, made in enumerate(found.shardings, start=1)
        }

    return (
        *_by_key(totals(before), totals(after), _round_text),
        *_by_key(lines(before), lines(after), str),
        *_by_key(shardings(before), shardings(after), _shardings_text),
    )


def _round_text(found: PlannedRound) -> str:
    asked = "; ".join(f"{format_spec(one.sharding)} for {one.where}" for one in found.asked)
    return (
        f"{found.seconds:.6g} s, {found.collective_bytes:,.0f} B moved, {found.peak_bytes:,} B"
        f" held, axes {', '.join(found.axes)}, asks {asked}"
    )


def _shardings_text(made: tuple[Sharding, ...]) -> str:
    return ", ".join(map(format_spec, made))


def _tensors(tensors: Iterable[PlannedTensor]) -> dict[str, PlannedTensor]:
    return numbered(tensors, lambda tensor: tensor.name)


def _tensor_text(tensor: PlannedTensor) -> str:
    shape = ", ".join(map(str, tensor.shape))
    return (
        f"{tensor.dtype}[{shape}] {format_spec(tensor.sharding)}, "
        f"{tensor.local_bytes:,} of {tensor.num_bytes:,} B{' on the host' * tensor.is_on_host}"
    )


def _op_name(op: PlannedOp) -> str:
    return f"{op.index} {op.name} {op.source}".strip()


def _op_text(op: PlannedOp) -> str:
    return (
        f"{op.result} {format_spec(op.sharding)}, cut {op.cut}, {op.repeat:g} runs, "
        f"{op.compute_seconds:.6g} s + {op.communication_seconds:.6g} s"
    )


def _live_name(live: LiveTensor) -> str:
    return f"live {live.name or live.source or 'tensor'}"


def _live_text(live: LiveTensor) -> str:
    source = f" ({live.source})" if live.name and live.source else ""
    sharding = format_spec(live.sharding)
    return f"{live.type_text} {sharding}, {live.local_bytes:,} B{source}"


def _held_name(held: HeldTensor) -> str:
    return f"held {held.name or held.source or 'tensor'}"


def _held_text(held: HeldTensor) -> str:
    source = f" ({held.source})" if held.name and held.source else ""
    return (
        f"{held.kind} {held.type_text} {format_spec(held.sharding)}, {held.local_bytes:,} B,"
        f" ops {held.start} to {held.stop}{source}"
    )


def numbered(items: Iterable[T], name: Callable[[T], str]) -> dict[str, T]:
    """Items by name; a name that comes again gets a number."""
    found: dict[str, T] = {}
    counts: dict[str, int] = {}
    for item in items:
        key = name(item)
        counts[key] = counts.get(key, 0) + 1
        found[key if counts[key] == 1 else f"{key} #{counts[key]}"] = item
    return found


def _by_key(
    before: Mapping[str, T], after: Mapping[str, T], text: Callable[[T], str], name: str = "{}"
) -> tuple[Change, ...]:
    return tuple(
        Change(
            name=name.replace("{}", key),
            before=text(before[key]) if key in before else ABSENT,
            after=text(after[key]) if key in after else ABSENT,
        )
        for key in dict.fromkeys([*before, *after])
        if key not in before or key not in after or before[key] != after[key]
    )


def _text(name: str, before: str, after: str) -> Change | None:
    return None if before == after else Change(name=name, before=before, after=after)


def _number(name: str, before: float | None, after: float | None, unit: str = "") -> Change | None:
    if before == after:
        return None
    return Change(
        name=name,
        before=ABSENT if before is None else f"{before:,}",
        after=ABSENT if after is None else f"{after:,}",
        before_number=before,
        after_number=after,
        unit=unit,
    )


def _kept(*changes: Change | None) -> tuple[Change, ...]:
    return tuple(change for change in changes if change is not None)
