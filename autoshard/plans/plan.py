"""A plan as plain data: what was decided, what it costs, and how sure that is.

No JAX here: a plan can be read, compared and reported on a machine without it. The parts that act
on a program (`jit`, `wrap`, `in_shardings`) are added by `autoshard.plan`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.accumulation.choice import Accumulation
from autoshard.errors import PlanError
from autoshard.frontend.program_record import ProgramRecord
from autoshard.graph.collective import PredictedCollective
from autoshard.loops.dot_schedule import DotSchedule
from autoshard.loops.on_examples import OnExamples
from autoshard.offload.choice import OffloadedStates
from autoshard.plans.planned_product import PlannedProduct
from autoshard.plans.refinement import Refinement
from autoshard.plans.searched_meshes import MeshSearch
from autoshard.remat.choice import ResidualChoice
from autoshard.rewriting import AS_WRITTEN, Rewriting
from autoshard.sharding import Mesh, Sharding

FORMAT_VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTensor:
    """An argument or result of the function.

    Args:
        name: As the user says it: `state['params']['w1']`.
        shape: Global shape.
        dtype: As StableHLO prints it: `f32`.
        sharding: What was decided.
        num_bytes: Of the whole tensor.
        local_bytes: Of one device's piece.
        is_on_host: It lies in host memory.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    sharding: Sharding
    num_bytes: int
    local_bytes: int
    is_on_host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOp:
    """One op as it runs under the plan.

    Args:
        index: Its place in program order; memory is reported on the same scale.
        name: `dot_general`.
        source: `file.py:12 (function)` of the user's line, or "".
        result: Type and sharding of its first result: `f32[8, 16]`.
        sharding: Of the first result.
        cut: Pieces its work falls into.
        repeat: How often it runs.
        compute_seconds: All runs of its own work on one device.
        communication_seconds: All runs of its reductions and of the reshards of its operands.
    """

    index: int
    name: str
    source: str
    result: str
    sharding: Sharding
    cut: int
    repeat: float
    compute_seconds: float
    communication_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTensor:
    """A tensor alive at the memory peak, by what one device holds of it."""

    name: str
    source: str
    type_text: str
    sharding: Sharding
    local_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTensor:
    """A tensor, the part of the program that it is held for, and what one device holds of it.

    Args:
        name: As in `LiveTensor`.
        kind: `argument`, `output` (a result whose memory no temporary takes), `value`, `copy` (of a
            value, sharded otherwise for one reader), `panels` (of a product that runs in steps) or
            `work` (working memory of an op, such as operands in another order).
        source: Where it is made; of a copy, where it is read.
        type_text: `f32[8, 16]`.
        sharding: Of the value; a copy has another.
        local_bytes: Of one device.
        start: Index of the op from which it is held.
        stop: Index of the first op at which it is not any more.
    """

    name: str
    kind: str
    source: str
    type_text: str
    sharding: Sharding
    local_bytes: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes one device holds.

    Args:
        argument_bytes: Of all arguments.
        peak_bytes: Most held at one time, arguments included; where tensors are laid out as they
            are made, with the gaps between them.
        peak_op: Index of the op at which that is.
        peak_where: Its name and source line.
        live_at_peak: The largest tensors alive then, largest first.
        timeline: `(time, bytes held from there on)`, where it changes.
        held: At every time, the largest tensors held then, in order. None in the files of versions
            that did not keep it.
        host_bytes: In host memory, of residuals that are offloaded to it.
        order: Index of the op that runs at each time; empty where times are op indices.
    """

    argument_bytes: int
    peak_bytes: int
    peak_op: int
    peak_where: str
    live_at_peak: tuple[LiveTensor, ...]
    timeline: tuple[tuple[int, int], ...] = ()
    held: tuple[HeldTensor, ...] = ()
    host_bytes: int = 0
    order: tuple[int, ...] = ()

    def op_at(self, time: int) -> int:
        """Index of the op that runs at a time."""
        return self.order[time] if time < len(self.order) else time


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A plan someone would write by hand, priced like ours.

    Args:
        name: `replicated`, `data parallel`, `fsdp` or `megatron`.
        seconds: Predicted step time.
        collective_bytes: Bytes per device through collectives, all runs.
        peak_bytes: Predicted memory peak.
        fits: Whether that is within the budget.
        overlapped_seconds: Step time with collectives beside the computing; None where the backend
            does not do that.
    """

    name: str
    seconds: float
    collective_bytes: float
    peak_bytes: int
    fits: bool
    overlapped_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverFacts:
    """How the answer was found and what is proven of it.

    Args:
        status: `optimal`, `within gap`, `feasible`, `infeasible`, `no solution`.
        advice: What to do next.
        backend: What solved it.
        seconds: Cost of the plan as the solver sees it.
        bound_seconds: No plan of the model costs less.
        gap: `(seconds - bound_seconds) / seconds`.
        num_ops: Ops with a choice.
        num_choices: Choices before presolve.
        reduced_nodes: Nodes left after presolve.
        reduced_columns: Columns of the model that reached the exact solver.
        log: What the solver said.
        overlap: How collectives were priced that can run beside the computing: `auto`, by what is
            left to wait for; `none`, as if everything waited.
        model_gap: By how much the estimated step time differs from the solver's objective for
            these choices, over that; 0 in the files of versions that did not keep it.
    """

    status: str
    advice: str
    backend: str
    seconds: float
    bound_seconds: float
    gap: float
    num_ops: int
    num_choices: int
    reduced_nodes: int
    reduced_columns: int
    log: tuple[str, ...]
    overlap: str = "auto"
    model_gap: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A value the constraints do not bring where the plan wants it.

    Args:
        path: The value.
        planned: What the plan wants.
        propagated: What it gets.
        extra_seconds: What that costs a step; None where nobody can tell.
    """

    path: str
    planned: Sharding
    propagated: Sharding
    extra_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTerm:
    """One of the constraints given to the planner.

    Args:
        text: What it says: "pin `params**`: [{}, {"x"}]".
        paths: The values (`7.0`), reads (`38<1`), arguments (`in.3`) and results (`out<0`) it is
            about. Its values and reads get a constraint in the program even where propagation
            would bring them there by itself.
    """

    text: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSharding:
    """A sharding that the user asked for, priorities and all, and where."""

    where: str
    sharding: Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLine:
    """A line of the program: an op, or the opening of a region.

    Args:
        text: `%3: f32[8, 16] = tanh %2`, two blanks before it for every region around it.
        source: `file.py:12 (function)` of the user's line, or "".
    """

    text: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRound:
    """What one round of priorities decided, and the program after it.

    Args:
        priority: Of the dimensions that bind from this round on.
        asked: The shardings that have such dimensions.
        axes: Mesh axes or sub-axes in use.
        seconds: Predicted time of one step if planning ended here.
        collective_bytes: Bytes per device through collectives, all runs.
        peak_bytes: Predicted memory peak.
        shardings: Per line of the plan's listing, of each value it makes; of what it gives back,
            for a result of the function; none for the opening of a region.
    """

    priority: int
    asked: tuple[AskedSharding, ...]
    axes: tuple[str, ...]
    seconds: float
    collective_bytes: float
    peak_bytes: int
    shardings: tuple[tuple[Sharding, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanData:
    """Everything a plan says.

    Args:
        function: Name of the function planned.
        program: The traced program it was made for; a plan applies to no other.
        mesh: The mesh it was made for.
        hardware: Name of the machine it was priced on.
        memory_budget: Bytes per device allowed, or None.
        arguments: In flat order.
        results: In flat order.
        values: Planned sharding by jaxpr path, for every value a path leads to.
        wanted_uses: Reshards wanted at single uses, by use path; results of scatters and loops
            by theirs.
        constraints: The minimal set that reproduces `values`, once it has been computed.
        misses: What that set does not reproduce.
        ops: Ops that take time, in program order.
        collectives: What the compiler will have to insert.
        compute_seconds: Of one step on one device.
        communication_seconds: Likewise.
        memory: Bytes one device holds.
        solver: How the answer was found.
        baselines: Plans written by hand, priced alike; of a plan just made, on first use.
        notes: What the exporter and planner had to say.
        stage_seconds: Wall time by stage of planning.
        versions: Of autoshard, jax and ortools.
        donate_argnums: Positional arguments the step may reuse, as given when planning.
        static_argnums: Positional arguments that are no arrays, likewise.
        rounds: What each round of priorities decided, the last one being the plan; none where the
            user's shardings have one priority.
        listing: The program line by line, which rounds tell the shardings of; none without them.
        target: What the command line calls the thing planned: `train:step`, `model.mlir`; "" for
            a plan made from Python.
        asked: The constraints given, term by term; shardings of arguments and results that are
            given as such, and those in the program, are not among them.
        products: Matrix products that could run in steps, in program order.
        mesh_search: How the mesh was found; None where it was given.
        places: Where constraints and misses are in the program, in words, by path.
        overlapped_seconds: Predicted time of one step with collectives running beside the
            computing; None where the backend does not do that.
        compiler_model: What it was priced with: `libtpu 0.0.42 for v5e`; "" where that was not
            recorded.
        refinement: How it was refined by compiling; None where it was not.
        residuals: What is kept for backward passes and what is computed again; None for the program
            as it is written.
        accumulation: In how many microbatches the step runs; None for the batch as a whole.
        waiting_seconds: In which one step waits for transfers to and from host memory.
        on_examples: By path, the equations that run on each device's examples in a `shard_map`,
            because the compiler does not partition their op.
    """

    function: str
    program: ProgramRecord
    mesh: Mesh
    hardware: str
    memory_budget: int | None
    arguments: tuple[PlannedTensor, ...]
    results: tuple[PlannedTensor, ...]
    values: Mapping[str, Sharding]
    wanted_uses: Mapping[str, Sharding]
    constraints: Mapping[str, Sharding] | None
    misses: tuple[Miss, ...]
    ops: tuple[PlannedOp, ...]
    collectives: tuple[PredictedCollective, ...]
    compute_seconds: float
    communication_seconds: float
    memory: MemoryUse
    solver: SolverFacts
    baselines: Sequence[Baseline] = ()
    notes: tuple[str, ...] = ()
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    donate_argnums: tuple[int, ...] = ()
    static_argnums: tuple[int, ...] = ()
    rounds: tuple[PlannedRound, ...] = ()
    listing: tuple[ProgramLine, ...] = ()
    asked: tuple[AskedTerm, ...] = ()
    target: str = ""
    products: tuple[PlannedProduct, ...] = ()
    mesh_search: MeshSearch | None = None
    overlapped_seconds: float | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    compiler_model: str = ""
    refinement: Refinement | None = None
    on_examples: Mapping[str, OnExamples] = field(default_factory=dict)
    residuals: ResidualChoice | None = None
    offloaded: OffloadedStates | None = None
    accumulation: Accumulation | None = None
    waiting_seconds: float = 0.0

    @property
    def kept_residuals(self) -> tuple[str, ...] | None:
        """Names of what is kept for backward passes; None for the program as it is written."""
        return None if self.residuals is None else self.residuals.kept

    @property
    def rewriting(self) -> Rewriting:
        """The changes to the program that it is run with."""
        parts = None if self.accumulation is None else self.accumulation.microbatches
        updates = () if self.offloaded is None else self.offloaded.updates
        return Rewriting(parts, self.kept_residuals, updates)

    @property
    def planned_program(self) -> str:
        """Fingerprint of the rewritten program: paths are paths in this."""
        if self.rewriting == AS_WRITTEN:
            return self.program.fingerprint
        rewriting = self.rewriting
        parts = rewriting.microbatches
        over = () if parts is None else (f"{parts.count} microbatches",)
        kept = (*map(repr, rewriting.updates), *(rewriting.residuals or ()))
        text = "\n".join((self.program.fingerprint, *over, *kept))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def is_tight(self) -> bool:
        """Whether more than half of the memory budget is used, so that order counts."""
        return self.memory_budget is not None and 2 * self.memory.peak_bytes > self.memory_budget

    @property
    def schedules(self) -> Mapping[str, DotSchedule | OnExamples]:
        """By path of an equation, the `shard_map` that takes its place."""
        steps = {p.equation: p.schedule for p in self.products if p.schedule is not None}
        return {**steps, **self.on_examples}

    @property
    def seconds(self) -> float:
        """Predicted time of one step."""
        return self.compute_seconds + self.communication_seconds + self.waiting_seconds

    @property
    def priced_seconds(self) -> float:
        """Predicted time of one step as plans were compared: overlapped, where that was asked."""
        return self._priced(self.seconds, self.overlapped_seconds)

    def priced_seconds_of(self, baseline: Baseline) -> float:
        """The same of a plan by hand."""
        return self._priced(baseline.seconds, baseline.overlapped_seconds)

    def _priced(self, seconds: float, overlapped: float | None) -> float:
        return seconds if overlapped is None or self.solver.overlap == "none" else overlapped

    @property
    def collective_bytes(self) -> float:
        """Bytes per device through collectives, all runs."""
        return sum(c.moved_bytes for c in self.collectives)

    @property
    def required(self) -> Mapping[str, Sharding]:
        """Constraints that always go into the program, by path.

        These are on single uses, on what is pinned, and on what products in steps make.
        """
        asked = (path for term in self.asked for path in term.paths)
        made_in_steps = (f"{equation}.0" for equation in self.schedules)
        pinned = (path for path in (*asked, *made_in_steps) if path in self.values)
        return {**self.wanted_uses, **{path: self.values[path] for path in pinned}}

    @property
    def is_feasible(self) -> bool:
        """Whether there is a plan to apply."""
        return self.solver.status in ("optimal", "within gap", "feasible")

    def require_feasible(self) -> None:
        """Refuse to act on a plan that does not exist.

        Raises:
            PlanError: No plan was found; says by how much the budget was missed.
        """
        if self.is_feasible:
            return
        over = self.memory.peak_bytes - (self.memory_budget or 0)
        missed = (
            f"; the least peak found, {self.memory.peak_bytes:,} bytes at"
            f" {self.memory.peak_where}, exceeds the budget of {self.memory_budget:,} by {over:,}"
            if self.memory_budget is not None and over > 0
            else ""
        )
        raise PlanError(
            f"no plan to apply ({self.solver.status}){missed}",
            where=f"plan for {self.function} on {self.mesh}",
            fix=self.solver.advice,
        )
