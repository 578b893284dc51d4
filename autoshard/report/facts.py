"""What a report says, each number worked out once: bytes, seconds, counts; no text laid out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autoshard.graph.collective import PredictedCollective
from autoshard.plans.plan import (
    LiveTensor,
    PlanData,
    PlannedOp,
    PlannedProduct,
    PlannedRound,
    PlannedTensor,
)
from autoshard.plans.source_names import with_short_sources
from autoshard.report.alike import gather_alike
from autoshard.report.meshes import MeshRow, mesh_rows
from autoshard.report.spec_text import format_spec

_NUM_TENSORS = 40
_NUM_OPS = 10
_NUM_LIVE = 12
_NUM_HEAVIEST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """Our plan, or one written by hand, with its cost.

    Args:
        name: `this plan`, `data parallel`.
        seconds: Predicted step time.
        ratio: Its step time over ours; None for ours.
        collective_bytes: Per device, all runs.
        peak_bytes: Per device.
        fits: Whether that is within the budget.
        overlapped_seconds: Step time with collectives beside the computing; None where the backend
            does not do that.
    """

    name: str
    seconds: float
    overlapped_seconds: float | None
    ratio: float | None
    collective_bytes: float
    peak_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """Arguments or results that differ only in the numbers of their names.

    Args:
        name: With ranges: `params['blocks'][0..31]['w1']`.
        count: How many there are.
        type_text: `f32[512, 2048]`.
        spec: Sharding as a `PartitionSpec`.
        local_bytes: One device's pieces of all of them.
    """

    name: str
    count: int
    type_text: str
    spec: str
    local_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyOp:
    """An op that communicates, with its source line and the bytes per device of all its runs."""

    op: str
    num_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """All collectives of one kind over the same axes.

    Args:
        kind: `all-gather`.
        axes: Mesh axes or sub-axes.
        group_size: Devices in one group.
        count: Runs in one step.
        num_bytes: Per device, all runs.
        heaviest: The ops that cause most of it.
        num_other_ops: How many more cause some.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    count: float
    num_bytes: float
    heaviest: tuple[HeavyOp, ...]
    num_other_ops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverRow:
    """An op and all collectives it needs.

    Args:
        op: With its source line.
        kinds: `all-gather over data`, each once, the heaviest first.
        count: Runs in one step.
        num_bytes: Per device, all runs.
    """

    op: str
    kinds: tuple[str, ...]
    count: float
    num_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """Ops of one name, source line, type and sharding: a layer's op, and that of all its likes.

    Args:
        name: `dot_general`.
        source: `file.py:12 (function)`, or "".
        result: `f32[8, 16]`.
        spec: Sharding of the result.
        count: Runs in one step.
        compute_seconds: Of all runs on one device.
        communication_seconds: Likewise.
    """

    name: str
    source: str
    result: str
    spec: str
    count: float
    compute_seconds: float
    communication_seconds: float

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRow:
    """Heavy matrix products alike in all but their place: how they run, and why not otherwise.

    Args:
        name: `dot_general`.
        source: `file.py:12 (function)`, or "".
        result: `f32[8, 16]`.
        count: How many there are.
        algorithm: `all-gather-matmul`; "" where it runs at once.
        rings: Mesh axes round which pieces go.
        both_ways: Whether halves of them go either way.
        num_steps: In how many steps it runs; 1 where it runs at once.
        specs: Shardings of the operands where they live; none where it runs at once.
        seconds: Of all runs of all of them.
        extra_bytes: What one holds beside operands and result.
        other_seconds: The same for the other way; None where there is none.
        other_bytes: Likewise.
        other_fits: Whether there was room for it.
    """

    name: str
    source: str
    result: str
    count: int
    algorithm: str
    rings: tuple[str, ...]
    both_ways: bool
    num_steps: int
    specs: tuple[str, ...]
    seconds: float
    extra_bytes: int
    other_seconds: float | None
    other_bytes: int | None
    other_fits: bool

    @property
    def way(self) -> tuple[str, ...]:
        """`at once`; or the algorithm, where pieces go round, and `in 16 steps`."""
        if not self.algorithm:
            return ("at once",)
        ways = " both ways" if self.both_ways else ""
        place = (f"round {' and '.join(self.rings)}{ways}",) if self.rings else ()
        return (self.algorithm, *place, f"in {self.num_steps:,} steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    """Tensors alive at the memory peak, alike but for the numbers of their names."""

    name: str
    source: str
    count: int
    type_text: str
    spec: str
    local_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintRow:
    """A constraint of the plan: where it goes, and the `PartitionSpec` to constrain to.

    Args:
        path: Of the value, or of a single read of it.
        where: The same in words; the path where nobody knows them.
        spec: What to constrain to.
    """

    path: str
    where: str
    spec: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MissRow:
    """A value that comes out otherwise than planned, and what that costs."""

    path: str
    where: str
    planned: str
    propagated: str
    extra_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """A round of priorities and what the program costs after it.

    Args:
        priority: Of the round.
        first_asked: One of the tensors whose shardings bind from this round on.
        num_asked: How many do.
        axes: Mesh axes or sub-axes in use.
        seconds: Predicted step time.
        collective_bytes: Per device, all runs.
        peak_bytes: Per device.
    """

    priority: int
    first_asked: str
    num_asked: int
    axes: tuple[str, ...]
    seconds: float
    collective_bytes: float
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRow:
    """One of the constraints given to the planner, and what became of it.

    Args:
        text: What it says.
        num_tensors: How many tensors or reads it is about.
        specs: The shardings they have, each once, in their order.
    """

    text: str
    num_tensors: int
    specs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFacts:
    """Everything a report shows, in its order.

    Where rows are cut to the heaviest, `num_other_*` says how many are left out and, of tensors,
    `other_*_bytes` what they hold per device.

    Args:
        over_budget_bytes: How far the peak is above the budget; 0 when it fits or there is none.
        overlapped_seconds: Step time with collectives beside the computing; None where the backend
            does not do that, or nothing communicates.
        communication_fraction: Of the step time.
        ideal_seconds: No plan costs less than this; None where nothing is proven.
        plans: Ours first.
        rounds: None where the plan was made in a single round.
        meshes: None where the mesh was given.
    """

    function: str
    mesh: str
    num_devices: int
    hardware: str
    status: str
    advice: str
    is_feasible: bool
    seconds: float
    compute_seconds: float
    communication_seconds: float
    overlapped_seconds: float | None
    communication_fraction: float
    collective_bytes: float
    argument_bytes: int
    peak_bytes: int
    peak_where: str
    memory_budget: int | None
    over_budget_bytes: int
    backend: str
    gap: float
    num_ops: int
    num_choices: int
    reduced_nodes: int
    reduced_columns: int
    plans: tuple[PlanRow, ...]
    asked: tuple[AskedRow, ...]
    rounds: tuple[RoundRow, ...]
    meshes: tuple[MeshRow, ...]
    arguments: tuple[TensorRow, ...]
    num_arguments: int
    num_other_arguments: int
    other_arguments_bytes: int
    results: tuple[TensorRow, ...]
    num_results: int
    num_other_results: int
    other_results_bytes: int
    collectives: tuple[CollectiveRow, ...]
    ops: tuple[OpRow, ...]
    other_ops_seconds: float
    movers: tuple[MoverRow, ...]
    other_movers_bytes: float
    products: tuple[ProductRow, ...]
    live: tuple[LiveRow, ...]
    other_live_bytes: int
    constraints: tuple[ConstraintRow, ...] | None
    misses: tuple[MissRow, ...]
    notes: tuple[str, ...]
    stage_seconds: tuple[tuple[str, float], ...]
    versions: tuple[tuple[str, str], ...]


def gather_facts(plan: PlanData) -> ReportFacts:
    """Work out what a report on a plan says; source lines are shortened to their file names."""
    plan = with_short_sources(plan)
    budget = plan.memory_budget
    peak = plan.memory.peak_bytes
    over = 0 if budget is None else max(0, peak - budget)
    arguments, other_arguments, argument_rest = _tensor_rows(plan.arguments)
    results, other_results, result_rest = _tensor_rows(plan.results)
    heavy_ops = op_rows(plan.ops)
    movers = _mover_rows(plan.collectives)
    live_rows = _live_rows(plan.memory.live_at_peak)[:_NUM_LIVE]
    live_bytes = sum(row.local_bytes for row in live_rows)
    return ReportFacts(
        function=plan.function,
        mesh=", ".join(f"{axis.name}={axis.size}" for axis in plan.mesh.axes),
        num_devices=plan.mesh.num_devices,
        hardware=plan.hardware,
        status=plan.solver.status,
        advice=plan.solver.advice,
        is_feasible=plan.is_feasible,
        seconds=plan.seconds,
        compute_seconds=plan.compute_seconds,
        communication_seconds=plan.communication_seconds,
        overlapped_seconds=plan.overlapped_seconds if plan.communication_seconds else None,
        communication_fraction=plan.communication_seconds / plan.seconds if plan.seconds else 0.0,
        collective_bytes=plan.collective_bytes,
        argument_bytes=plan.memory.argument_bytes,
        peak_bytes=peak,
        peak_where=plan.memory.peak_where,
        memory_budget=budget,
        over_budget_bytes=over,
        backend=plan.solver.backend,
        gap=plan.solver.gap,
        num_ops=plan.solver.num_ops,
        num_choices=plan.solver.num_choices,
        reduced_nodes=plan.solver.reduced_nodes,
        reduced_columns=plan.solver.reduced_columns,
        plans=_plan_rows(plan, fits=over == 0),
        asked=_asked_rows(plan),
        rounds=tuple(map(_round_row, plan.rounds)),
        meshes=tuple(mesh_rows(plan)),
        arguments=arguments,
        num_arguments=len(plan.arguments),
        num_other_arguments=other_arguments,
        other_arguments_bytes=argument_rest,
        results=results,
        num_results=len(plan.results),
        num_other_results=other_results,
        other_results_bytes=result_rest,
        collectives=_collective_rows(plan.collectives),
        ops=tuple(heavy_ops[:_NUM_OPS]),
        other_ops_seconds=sum(row.seconds for row in heavy_ops[_NUM_OPS:]),
        movers=tuple(movers[:_NUM_OPS]),
        other_movers_bytes=sum(row.num_bytes for row in movers[_NUM_OPS:]),
        products=tuple(_product_rows(plan.products)),
        live=tuple(live_rows),
        other_live_bytes=max(0, peak - live_bytes),
        constraints=None
        if plan.constraints is None
        else tuple(
            ConstraintRow(path=path, where=plan.places.get(path, path), spec=format_spec(sharding))
            for path, sharding in sorted(plan.constraints.items(), key=lambda item: _place(item[0]))
        ),
        misses=tuple(
            MissRow(
                path=miss.path,
                where=plan.places.get(miss.path, miss.path),
                planned=format_spec(miss.planned),
                propagated=format_spec(miss.propagated),
                extra_seconds=miss.extra_seconds,
            )
            for miss in plan.misses
        ),
        notes=plan.notes,
        stage_seconds=tuple(
            sorted(plan.stage_seconds.items(), key=lambda stage: (-stage[1], stage[0]))
        ),
        versions=tuple(sorted(plan.versions.items())),
    )


def _plan_rows(plan: PlanData, *, fits: bool) -> tuple[PlanRow, ...]:
    ours = PlanRow(
        name="this plan",
        seconds=plan.seconds,
        overlapped_seconds=plan.overlapped_seconds,
        ratio=None,
        collective_bytes=plan.collective_bytes,
        peak_bytes=plan.memory.peak_bytes,
        fits=fits,
    )
    return (
        ours,
        *(
            PlanRow(
                name=baseline.name,
                seconds=baseline.seconds,
                overlapped_seconds=baseline.overlapped_seconds,
                ratio=baseline.seconds / plan.seconds if plan.seconds else float("inf"),
                collective_bytes=baseline.collective_bytes,
                peak_bytes=baseline.peak_bytes,
                fits=baseline.fits,
            )
            for baseline in plan.baselines
        ),
    )


def _asked_rows(plan: PlanData) -> tuple[AskedRow, ...]:
    planned = {
        **{f"in.{number}": tensor.sharding for number, tensor in enumerate(plan.arguments)},
        **{f"out<{number}": tensor.sharding for number, tensor in enumerate(plan.results)},
        **plan.values,
        **plan.wanted_uses,
    }
    return tuple(
        AskedRow(
            text=term.text,
            num_tensors=len(term.paths),
            specs=tuple(
                dict.fromkeys(format_spec(planned[path]) for path in term.paths if path in planned)
            ),
        )
        for term in plan.asked
    )


def _round_row(found: PlannedRound) -> RoundRow:
    first = found.asked[0].where if found.asked else ""
    return RoundRow(
        priority=found.priority,
        first_asked=first.rpartition(": ")[0] or first,  # without its type
        num_asked=len(found.asked),
        axes=found.axes,
        seconds=found.seconds,
        collective_bytes=found.collective_bytes,
        peak_bytes=found.peak_bytes,
    )


def _tensor_rows(tensors: Sequence[PlannedTensor]) -> tuple[tuple[TensorRow, ...], int, int]:
    """The heaviest rows in argument order; how many tensors, of how many bytes, are left out."""
    rows = [
        TensorRow(
            name=name,
            count=len(positions),
            type_text=type_text,
            spec=spec,
            local_bytes=sum(tensors[position].local_bytes for position in positions),
        )
        for name, (type_text, spec), positions in gather_alike(
            (tensor.name, (type_text(tensor), format_spec(tensor.sharding))) for tensor in tensors
        )
    ]
    heaviest = sorted(range(len(rows)), key=lambda index: -rows[index].local_bytes)
    shown = set(heaviest[:_NUM_TENSORS])
    left_out = [row for index, row in enumerate(rows) if index not in shown]
    return (
        tuple(row for index, row in enumerate(rows) if index in shown),
        sum(row.count for row in left_out),
        sum(row.local_bytes for row in left_out),
    )


def type_text(tensor: PlannedTensor) -> str:
    """`f32[512, 2048]`."""
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def _collective_rows(collectives: Iterable[PredictedCollective]) -> tuple[CollectiveRow, ...]:
    groups: dict[tuple[str, tuple[str, ...], int], list[PredictedCollective]] = {}
    for collective in collectives:
        key = (collective.kind, collective.axes, collective.group_size)
        groups.setdefault(key, []).append(collective)
    rows = []
    for (kind, axes, group_size), members in groups.items():
        bytes_by_op: dict[str, float] = {}
        for member in members:
            moved = member.bytes_per_device * member.count
            bytes_by_op[member.op] = bytes_by_op.get(member.op, 0.0) + moved
        heaviest = sorted(bytes_by_op.items(), key=lambda item: (-item[1], item[0]))
        rows.append(
            CollectiveRow(
                kind=kind,
                axes=axes,
                group_size=group_size,
                count=sum(member.count for member in members),
                num_bytes=sum(bytes_by_op.values()),
                heaviest=tuple(
                    HeavyOp(op=op, num_bytes=moved) for op, moved in heaviest[:_NUM_HEAVIEST]
                ),
                num_other_ops=max(0, len(heaviest) - _NUM_HEAVIEST),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.num_bytes, row.kind, row.axes)))


def _mover_rows(collectives: Iterable[PredictedCollective]) -> list[MoverRow]:
    by_op: dict[str, list[PredictedCollective]] = {}
    for collective in collectives:
        by_op.setdefault(collective.op, []).append(collective)
    rows = [
        MoverRow(
            op=op,
            kinds=tuple(
                dict.fromkeys(
                    f"{one.kind} over {', '.join(one.axes)}"
                    for one in sorted(members, key=lambda one: -one.bytes_per_device * one.count)
                )
            ),
            count=sum(one.count for one in members),
            num_bytes=sum(one.bytes_per_device * one.count for one in members),
        )
        for op, members in by_op.items()
    ]
    return sorted(rows, key=lambda row: -row.num_bytes)


def op_rows(ops: Iterable[PlannedOp]) -> list[OpRow]:
    """All ops, those alike as one, the longest first."""
    groups: dict[tuple[str, str, str, str], list[PlannedOp]] = {}
    for op in ops:
        key = (op.name, op.source, op.result, format_spec(op.sharding))
        groups.setdefault(key, []).append(op)
    rows = [
        OpRow(
            name=name,
            source=source,
            result=result,
            spec=spec,
            count=sum(op.repeat for op in members),
            compute_seconds=sum(op.compute_seconds for op in members),
            communication_seconds=sum(op.communication_seconds for op in members),
        )
        for (name, source, result, spec), members in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.seconds)


def _product_rows(products: Iterable[PlannedProduct]) -> Iterator[ProductRow]:
    """Those that run in steps, and those that gather at once and could run in steps."""
    groups: dict[tuple[object, ...], list[PlannedProduct]] = {}
    for product in products:
        if product.schedule is None and product.other_seconds is None:
            continue
        key = (product.name, product.source, product.result, product.schedule)
        groups.setdefault((*key, product.extra_bytes, product.other_fits), []).append(product)
    for members in groups.values():
        first, schedule = members[0], members[0].schedule
        others = [m.other_seconds for m in members if m.other_seconds is not None]
        yield ProductRow(
            name=first.name,
            source=first.source,
            result=first.result,
            count=len(members),
            algorithm="" if schedule is None else schedule.algorithm,
            rings=() if schedule is None else schedule.rings,
            both_ways=schedule is not None and schedule.both_ways,
            num_steps=1 if schedule is None else schedule.num_steps,
            specs=() if schedule is None else tuple(map(format_spec, schedule.homes[1:])),
            seconds=sum(member.seconds for member in members),
            extra_bytes=first.extra_bytes,
            other_seconds=sum(others) if others else None,
            other_bytes=first.other_bytes,
            other_fits=first.other_fits,
        )


def _live_rows(live: Sequence[LiveTensor]) -> list[LiveRow]:
    rows = [
        LiveRow(
            name=name,
            source=source,
            count=len(positions),
            type_text=type_text,
            spec=spec,
            local_bytes=sum(live[position].local_bytes for position in positions),
        )
        for name, (source, type_text, spec), positions in gather_alike(
            (tensor.name, (tensor.source, tensor.type_text, format_spec(tensor.sharding)))
            for tensor in live
        )
    ]
    return sorted(rows, key=lambda row: -row.local_bytes)


def _place(path: str) -> list[tuple[int, str]]:
    """Sorts paths as the program runs: `7.jaxpr/2.0` before `12.0`."""
    found = re.findall(r"([0-9]+)|([^0-9])", path)
    return [(int(digits), "") if digits else (-1, letter) for digits, letter in found]
