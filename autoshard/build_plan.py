"""A solved problem as the record that a plan keeps, in the user's terms."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import jax

from autoshard.accumulation.choice import Accumulation
from autoshard.apply.placed_values import is_held_turned, placed_layout
from autoshard.apply.propagation.by_layer import PropagationByLayer
from autoshard.apply.wanted_uses import wanted_uses
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.frontend.key_arrays import without_word_dims
from autoshard.offload.choice import OffloadedStates
from autoshard.planning.hand_baselines import HandBaselines, hand_plan_notes
from autoshard.planning.hand_prices import HandPrices
from autoshard.planning.planner import spoken_priorities
from autoshard.planning.pricing import seconds_with
from autoshard.planning.product_records import planned_products
from autoshard.planning.round_records import planned_rounds
from autoshard.planning.solution import Solution
from autoshard.planning.traced_program import TracedProgram
from autoshard.planning.unpartitioned import ops_on_examples, unpartitioned_notes
from autoshard.plans.plan import AskedTerm, PlanData, PlannedTensor, SolverFacts
from autoshard.plans.searched_meshes import MeshSearch
from autoshard.plans.source_names import with_short_sources
from autoshard.remat.choice import ResidualChoice
from autoshard.setting import REMAT_AUTO, Setting
from autoshard.sharding import Sharding
from autoshard.version import VERSION
from solvers import Status


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """A decided plan in the planner's terms, and what went into it.

    Args:
        setting: What was asked.
        program: What was planned, with its residuals as chosen.
        solution: The plan.
        by_hand: Plans written by hand.
        search: How the mesh was found; None where it was given.
        propagation: Of shardings on the border of the program.
        residuals: What is kept for backward passes; None for the program as it is written.
        offloaded: States in host memory between steps; None where all are on the device.
        accumulation: In how many microbatches it runs; None for the batch as a whole.
        notes: On how the program was chosen.
    """

    setting: Setting
    program: TracedProgram
    solution: Solution
    by_hand: HandPrices
    search: MeshSearch | None
    propagation: PropagationByLayer
    residuals: ResidualChoice | None = None
    offloaded: OffloadedStates | None = None
    accumulation: Accumulation | None = None
    notes: tuple[str, ...] = ()

    def price(self, changes: Mapping[str, Sharding]) -> float | None:
        """Predicted seconds of a step in which some values, by path, are sharded otherwise."""
        return seconds_with(self.solution, changes, self.setting.options)


PEAK_SPREAD = 0.55
"""Share by which compiled peaks may lie above predicted ones.

Source: 78 small programs on CPUs, and the gradient of a selective scan, whose compiled peak is 1.41
to 1.53 times the predicted one (jaxlib 0.10.2).
"""


SMALL_BUFFERS = 4096
"""Bytes by which they may lie above predictions however small the program: buffers are aligned, and
tuples and pieces of collectives are buffers (315 programs on CPUs, jaxlib 0.10.2)."""


def budget_notes(budget: int | None, peak_bytes: int) -> Iterator[str]:
    """A doubt, where the compiled program may pass a budget that the predicted peak keeps."""
    if budget is not None and peak_bytes * (1 + PEAK_SPREAD) + SMALL_BUFFERS > budget:
        yield (
            f"the predicted peak is within {PEAK_SPREAD:.0%} and {SMALL_BUFFERS:,} bytes of the"
            " memory budget, as far as compiled programs lie around predictions: plan.verify tells"
            " what this one takes, plan.refine keeps to the budget as compiled"
        )


def plan_data(name: str, solved: Solved) -> PlanData:
    """The record of a plan.

    Args:
        name: Of what was planned.
        solved: The plan.
    """
    solution, setting, traced = solved.solution, solved.setting, solved.program.traced
    compares = setting.baselines and solution.is_feasible
    notes = hand_plan_notes(solution, solved.by_hand) if compares else ()
    with setting.stages.time("account"):
        account = solution.account
        if solution.is_feasible:
            notes = (*notes, *budget_notes(setting.budget, account.memory.peak_bytes))
        rounds, listing = planned_rounds(solution)
        uses = wanted_uses(
            solution.encoded,
            solution.decoded,
            traced.operand_paths,
            merges_all_gathers=solution.encoder.costing.backend.collectives.merges_all_gathers,
        )
        values = _values(solution)
        products = planned_products(solution)
        on_examples = ops_on_examples(solution)
    return with_short_sources(
        PlanData(
            function=name,
            program=traced.record,
            mesh=solved.program.mesh,
            hardware=setting.machine.name,
            memory_budget=setting.budget,
            arguments=_shown(_tensors(solution, is_result=False), traced.in_avals),
            results=_shown(_tensors(solution, is_result=True), traced.out_avals),
            values=values,
            wanted_uses=uses,
            constraints=None,
            misses=(),
            ops=account.ops,
            collectives=account.collectives,
            compute_seconds=account.compute_seconds,
            communication_seconds=account.communication_seconds,
            memory=account.memory,
            solver=_solver_facts(
                solution, setting, _residual_advice(solved) + _state_advice(solved)
            ),
            baselines=HandBaselines(solved.by_hand, setting.budget, setting.stages),
            asked=tuple(
                AskedTerm(text=term.text, paths=term.paths) for term in solved.program.asked.asked
            ),
            rounds=rounds,
            listing=listing,
            products=products,
            on_examples=on_examples,
            mesh_search=solved.search,
            overlapped_seconds=solution.overlapped_seconds,
            compiler_model=solution.encoder.costing.backend.describe(setting.machine.name),
            notes=(
                *traced.notes,
                *solved.notes,
                *solution.graph.notes,
                *unpartitioned_notes(solution),
                *notes,
            ),
            residuals=solved.residuals,
            offloaded=solved.offloaded,
            accumulation=solved.accumulation,
            waiting_seconds=solution.estimate.waiting_seconds,
            stage_seconds=dict(setting.stages.seconds),
            versions={
                "autoshard": VERSION,
                **{name: importlib.metadata.version(name) for name in ("jax", "ortools")},
            },
        )
    )


def _tensors(solution: Solution, *, is_result: bool) -> tuple[PlannedTensor, ...]:
    graph, parts = solution.graph, solution.encoded.parts
    found = []
    for op in graph.results if is_result else graph.arguments:
        value = graph.values[op.operands[0] if is_result else op.results[0]]
        candidate = solution.decoded.candidates.get(op.index)
        layout = solution.decoded.layouts[value.index]
        if is_result and candidate is not None:
            layout = candidate.operands[0]
        found.append(
            PlannedTensor(
                name=op.name if is_result else value.name,
                shape=value.shape,
                dtype=value.dtype,
                sharding=parts.to_sharding(layout),
                num_bytes=value.num_bytes,
                local_bytes=value.num_bytes // parts.num_pieces(layout),
                is_on_host=value.index in graph.on_host,
            )
        )
    return tuple(found)


def _shown(
    tensors: Sequence[PlannedTensor], avals: Sequence[jax.core.ShapedArray]
) -> tuple[PlannedTensor, ...]:
    """The last tensors (captured arrays come before them), in the shapes that JAX shows."""
    return tuple(
        replace(
            tensor,
            shape=tuple(aval.shape),
            sharding=without_word_dims(tensor.sharding, aval),
        )
        for tensor, aval in zip(tensors[len(tensors) - len(avals) :], avals, strict=True)
    )


def _values(solution: Solution) -> dict[str, Sharding]:
    """Shardings by path, without what no `PartitionSpec` says in a `shard_map` body."""
    graph, decoded = solution.graph, solution.decoded
    found = {
        path: solution.encoded.parts.to_sharding(placed_layout(graph, decoded, value))
        for path, value in graph.value_by_path.items()
        if graph.values[value].shape
        and not path.startswith("in.")
        and "<" not in path
        and not is_held_turned(graph, decoded, value)
    }
    return {
        path: sharding
        for path, sharding in found.items()
        if not path.startswith(graph.bodies) or all(ref.is_whole for ref in sharding.axis_refs())
    }


_ADVICE = {
    Status.OPTIMAL: "No plan of the model costs less.",
    Status.WITHIN_GAP: "Proven this close to the best; pass a smaller relative_gap to search on.",
    Status.FEASIBLE: "Usable, but not proven within the gap asked for; raise time_limit_seconds.",
    Status.INFEASIBLE: (
        "No plan fits the memory budget: raise memory_budget to what the least peak needs, use more"
        " devices, or make the batch smaller."
    ),
    Status.NO_SOLUTION: (
        "No plan was found in time, nor a proof that there is none: raise time_limit_seconds or"
        " memory_budget."
    ),
}


_TOO_LARGE_AS_COMPILED = (
    "What the leanest plan found holds at one time fits the memory budget, but not with what the"
    " compiler adds to it (gaps between temporaries, padding, tables of addresses): raise"
    " memory_budget to what it takes in all, use more devices, or make the batch smaller."
)


def _residual_advice(solved: Solved) -> str:
    """Where no plan was found, what was tried of residuals, or could be."""
    if solved.solution.is_feasible:
        return ""
    if solved.setting.remat != REMAT_AUTO:
        return ' Backward passes may compute residuals again: remat="auto" chooses which.'
    if solved.residuals is None and solved.setting.stages.is_over:
        return " No residuals of backward passes were chosen in time: raise time_limit_seconds."
    if solved.residuals is None:
        return " No residuals of backward passes could be computed again to make it fit."
    tried = len(solved.residuals.tried)
    return f" {tried} sets of residuals were planned, the smallest among them."


def _state_advice(solved: Solved) -> str:
    """Where no plan was found, which states of the optimizer lie in host memory even so."""
    if solved.solution.is_feasible or solved.offloaded is None:
        return ""
    sent, possible = len(solved.offloaded.updates), solved.offloaded.num_candidates
    return f" {sent} of {possible} updates of states have theirs in host memory already."


def _advice(solution: Solution) -> str:
    """What to do next; where rounds came before, what they have to do with it."""
    status = solution.result.status
    if solution.hand_plan:
        return (
            f"The plan written by hand called {solution.hand_plan}: the solver found nothing faster"
            " in its time; raise time_limit_seconds."
        )
    advice = _TOO_LARGE_AS_COMPILED if solution.is_too_large_with_gaps else _ADVICE[status]
    rounds = [decided.round for decided in solution.rounds]
    if not rounds:
        return advice
    before = spoken_priorities(rounds[:-1])
    if status in (Status.INFEASIBLE, Status.NO_SOLUTION):
        return (
            f"{advice} What {before} decided is fixed by now: give priority"
            f" {rounds[-1].priority} one of these numbers, to decide both at once."
        )
    return f"{advice} Gap and bound are among the plans that extend what {before} decided."


def _solver_facts(solution: Solution, setting: Setting, residual_advice: str) -> SolverFacts:
    result = solution.result
    bound = result.lower_bound / PICOSECONDS
    return SolverFacts(
        status=result.status.value,
        advice=_advice(solution) + residual_advice,
        backend=result.engine,
        seconds=(result.cost or 0) / PICOSECONDS,
        bound_seconds=bound,
        gap=result.gap if result.cost is not None else 1.0,
        num_ops=len(solution.encoded.ops),
        num_choices=sum(len(c) for c in solution.encoded.candidates),
        reduced_nodes=result.reduced_nodes,
        reduced_columns=result.reduced_columns,
        log=result.log,
        overlap="auto" if setting.options.overlap else "none",
        model_gap=solution.model_gap,
    )
