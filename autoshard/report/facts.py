"""What a report says, each number worked out once: bytes, seconds, counts; no text laid out."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.accumulation.choice import Accumulation
from autoshard.offload.choice import OffloadedStates
from autoshard.plans.plan import PlanData
from autoshard.plans.refinement import Refinement
from autoshard.plans.source_names import with_short_sources
from autoshard.remat.choice import ResidualChoice
from autoshard.report.collective_rows import CollectiveRow, MoverRow, collective_rows, mover_rows
from autoshard.report.decision_rows import (
    AskedRow,
    ConstraintRow,
    MissRow,
    PlanRow,
    RoundRow,
    asked_rows,
    constraint_rows,
    miss_rows,
    plan_rows,
    round_row,
)
from autoshard.report.followers import sharded_like_arguments
from autoshard.report.meshes import MeshRow, mesh_rows
from autoshard.report.module_tree import ModuleRow, module_rows
from autoshard.report.op_rows import OpRow, ProductRow, op_rows, product_rows
from autoshard.report.tensor_rows import LiveRow, TensorRow, live_rows, tensor_rows

_NUM_OPS = 10
_NUM_LIVE = 12


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
        model_gap: Between the solver's objective for these choices and the estimated step time.
        ideal_seconds: No plan costs less than this; None where nothing is proven.
        plans: Ours first.
        rounds: None where the plan was made in a single round.
        meshes: None where the mesh was given.
        modules: Outermost ones first; none where the program names none.
        refinement: What was compiled; None where the plan was not refined.
        residuals: What is kept for backward passes; None for the program as it is written.
        offloaded: States in host memory between steps; None where all are on the device.
        accumulation: In how many microbatches it runs; None for the batch as a whole.
    """

    function: str
    mesh: str
    num_devices: int
    hardware: str
    compiler_model: str
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
    model_gap: float
    num_ops: int
    num_choices: int
    reduced_nodes: int
    reduced_columns: int
    plans: tuple[PlanRow, ...]
    asked: tuple[AskedRow, ...]
    rounds: tuple[RoundRow, ...]
    meshes: tuple[MeshRow, ...]
    refinement: Refinement | None
    residuals: ResidualChoice | None
    offloaded: OffloadedStates | None
    accumulation: Accumulation | None
    arguments: tuple[TensorRow, ...]
    num_arguments: int
    num_other_arguments: int
    other_arguments_bytes: int
    results: tuple[TensorRow, ...]
    num_results: int
    num_results_like_arguments: int
    num_other_results: int
    other_results_bytes: int
    collectives: tuple[CollectiveRow, ...]
    modules: tuple[ModuleRow, ...]
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
    arguments, other_arguments, argument_rest = tensor_rows(plan.arguments)
    alike = sharded_like_arguments(plan.results, plan.arguments)
    results, other_results, result_rest = tensor_rows(
        [result for position, result in enumerate(plan.results) if position not in alike]
    )
    heavy_ops = op_rows(plan.ops)
    movers = mover_rows(plan.collectives)
    live = live_rows(plan.memory.live_at_peak)[:_NUM_LIVE]
    live_bytes = sum(row.local_bytes for row in live)
    return ReportFacts(
        function=plan.function,
        mesh=", ".join(f"{axis.name}={axis.size}" for axis in plan.mesh.axes),
        num_devices=plan.mesh.num_devices,
        hardware=plan.hardware,
        compiler_model=plan.compiler_model,
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
        model_gap=plan.solver.model_gap,
        num_ops=plan.solver.num_ops,
        num_choices=plan.solver.num_choices,
        reduced_nodes=plan.solver.reduced_nodes,
        reduced_columns=plan.solver.reduced_columns,
        plans=plan_rows(plan, fits=over == 0),
        asked=asked_rows(plan),
        rounds=tuple(map(round_row, plan.rounds)),
        meshes=tuple(mesh_rows(plan)),
        refinement=plan.refinement,
        residuals=plan.residuals,
        offloaded=plan.offloaded,
        accumulation=plan.accumulation,
        arguments=arguments,
        num_arguments=len(plan.arguments),
        num_other_arguments=other_arguments,
        other_arguments_bytes=argument_rest,
        results=results,
        num_results=len(plan.results),
        num_results_like_arguments=len(alike),
        num_other_results=other_results,
        other_results_bytes=result_rest,
        collectives=collective_rows(plan.collectives),
        modules=module_rows(plan),
        ops=tuple(heavy_ops[:_NUM_OPS]),
        other_ops_seconds=sum(row.seconds for row in heavy_ops[_NUM_OPS:]),
        movers=tuple(movers[:_NUM_OPS]),
        other_movers_bytes=sum(row.num_bytes for row in movers[_NUM_OPS:]),
        products=tuple(product_rows(plan.products)),
        live=tuple(live),
        other_live_bytes=max(0, peak - live_bytes),
        constraints=None if plan.constraints is None else tuple(constraint_rows(plan)),
        misses=tuple(miss_rows(plan)),
        notes=plan.notes,
        stage_seconds=tuple(
            sorted(plan.stage_seconds.items(), key=lambda stage: (-stage[1], stage[0]))
        ),
        versions=tuple(sorted(plan.versions.items())),
    )
