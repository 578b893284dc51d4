"""The few calls users make."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from autoshard.apply.placed_values import placed_layout
from autoshard.apply.planned import Plan, propagator_for
from autoshard.apply.stablehlo.module_file import read_module_file
from autoshard.apply.stablehlo.read_module import read_module
from autoshard.apply.wanted_uses import wanted_uses
from autoshard.collectives import HardwarePrices
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.errors import InputError
from autoshard.frontend.device_orders import DeviceOrder
from autoshard.frontend.key_arrays import without_word_dims
from autoshard.frontend.module import DEFAULT_TRIP_COUNT
from autoshard.frontend.scheduled_products import rewritable_products
from autoshard.frontend.signature import argument_positions, function_name
from autoshard.frontend.trace import trace
from autoshard.frontend.user_constraints import read_constraints
from autoshard.graph.custom_cost import CustomCost
from autoshard.mesh_search.request import (
    MeshChoice,
    MeshRequest,
    mesh_choice,
    named_in_search,
    read_request,
)
from autoshard.mesh_search.search import SearchOptions, search_meshes
from autoshard.mesh_search.shapes import DEFAULT_AXIS_NAMES
from autoshard.overlap.timeline import overlapped_seconds
from autoshard.planning.hand_plans import hand_baselines, hand_plan_notes
from autoshard.planning.memory_budget import parse_memory_budget
from autoshard.planning.planner import plan_graph, spoken_priorities
from autoshard.planning.pricing import seconds_with
from autoshard.planning.product_records import planned_products
from autoshard.planning.round_records import planned_rounds
from autoshard.planning.searches import SolveOptions
from autoshard.planning.solution import Solution
from autoshard.planning.stages import Stages
from autoshard.planning.traced_program import TracedProgram, read_traced
from autoshard.plans.plan import (
    AskedTerm,
    Baseline,
    MeshSearch,
    PlanData,
    PlannedTensor,
    SolverFacts,
)
from autoshard.plans.source_names import with_short_sources
from autoshard.sharding import Mesh
from autoshard.version import VERSION
from cost_models import AlphaBetaModel, CostModelError, Hardware, get_hardware, load_hardware
from solvers import CATALOG, Progress, Status


def optimize(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Any = None,
    devices: int | None = None,
    axis_names: Sequence[str] = DEFAULT_AXIS_NAMES,
    hardware: str | Path | Hardware = "cpu-host",
    memory_budget: str | float | None = "auto",
    in_shardings: Any = None,
    out_shardings: Any = None,
    constraints: Any = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    kwargs: Mapping[str, Any] | None = None,
    trip_counts: Mapping[str, float] | None = None,
    default_trip_count: float = DEFAULT_TRIP_COUNT,
    solver: str = "auto",
    time_limit_seconds: float = 60.0,
    relative_gap: float = 0.01,
    seed: int = 0,
    baselines: bool = True,
    schedules: str = "auto",
    overlap: str = "auto",
    custom_costs: Mapping[str, CustomCost] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Plan:
    """Choose a sharding for every tensor of a JAX function.

    Nothing is computed and no device is needed. Results that replace donated arguments (a training
    state) keep their sharding, so that the next step can take them as they are.

    Args:
        fn: Any JAX function; a whole training step gives the best plans.
        *args: Its positional arguments: pytrees of arrays or `jax.ShapeDtypeStruct`.
        mesh: A `jax.sharding.Mesh` (Explicit axes included), an `AbstractMesh`, or text such as
            `"data=8,model=8"`. `"auto"`, or nothing where `devices` is given: the best one is
            searched, and `plan.data.mesh_search` tells what was tried.
        devices: How many devices the mesh has that is searched; all of this machine's by default.
        axis_names: Of the axes of a mesh that is searched, outermost first; it has no more of them.
        hardware: Name of a known machine (`"tpu-v5p"`, `"h100"`), a YAML file, or a `Hardware`.
        memory_budget: Hard limit per device: `"auto"` for all the device offers, bytes, `"80GiB"`,
            a fraction such as 0.9, or None.
        in_shardings: Shardings the user insists on, as for `jax.jit`; None is free, and here
            `P.UNCONSTRAINED` dimensions are free too. Dimensions with priorities are decided one
            priority after another, the smallest first.
        out_shardings: Likewise for the result.
        constraints: What else is asked: a mapping from selector (`params**["w1"]`,
            `model.py:42 dot_general`) to sharding, a list of `Pin`, `Uses` and `Group`, or the path
            of a YAML file.
        donate_argnums: Arguments whose buffers the step may reuse.
        static_argnums: Arguments that are no arrays.
        kwargs: Keyword arguments of the function.
        trip_counts: Trip counts of loops the program does not tell, by `"file.py:line"`.
        default_trip_count: For loops that nobody tells; the plan notes each.
        solver: Backend name, or "auto".
        time_limit_seconds: For the solver; for all of the search where a mesh is searched.
        relative_gap: Stop once the plan is proven this close to the best.
        seed: One seed, one plan.
        baselines: Price plans written by hand too, for the report.
        schedules: `"auto"`: where an operand that a matrix product gathers would take a good part
            of the memory budget, the product may gather it in panels, step by step; `"none"`: all
            products run at once.
        overlap: `"auto"`: a collective that the backend can run beside the computing is priced by
            what is left to wait for; `"none"`: all are priced as if everything waited for them.
        custom_costs: What custom calls cost, by target or by the line that calls (`"file.py:42"`).
            Without it the estimate that a Pallas kernel carries counts; without that, every element
            once.
        progress: Told of a long solve.

    Returns:
        A plan. Where none fits the budget `plan.data.is_feasible` is false and the report says by
        how much, where, and what weighs most.

    Raises:
        InputError: A mesh, option or argument that cannot be used.
        ExportError: A function that does not trace or lower.
        ConstraintError: Shardings asked for that contradict one another or fit no tensor.
    """
    stages = Stages()
    request = read_request(mesh, devices, axis_names)
    options = _solve_options(solver, time_limit_seconds, relative_gap, seed)
    _check_schedules(schedules)
    options = replace(options, overlap=_overlaps(overlap))
    shardings = {"in_shardings": in_shardings, "out_shardings": out_shardings}
    named = named_in_search(request, shardings, constraints)
    setting = _Setting.of(request, named, hardware, memory_budget, options, stages, baselines)

    def program_on(ours: Mesh) -> TracedProgram:
        _, context, concrete = setting.choice.readings[ours]
        terms = read_constraints(constraints, DeviceOrder.of(ours, concrete))
        with stages.time("trace and lower"):
            traced = trace(
                fn,
                args,
                kwargs,
                mesh=ours,
                context=context,
                devices=concrete,
                donate_argnums=donate_argnums,
                static_argnums=static_argnums,
                **shardings,
            )
        steps = rewritable_products(traced.jaxpr.jaxpr) if schedules == "auto" else ()
        with stages.time("graph"):
            return read_traced(
                traced,
                ours,
                terms,
                trip_counts,
                default_trip_count,
                frozenset(steps),
                custom_costs,
            )

    solved = _solve(program_on, setting, progress)
    data = replace(
        _plan_data(function_name(fn), solved),
        donate_argnums=argument_positions(donate_argnums, len(args), "donate_argnums", fn),
        static_argnums=argument_positions(static_argnums, len(args), "static_argnums", fn),
    )
    return replace(
        _plan(data, solved),
        fn=fn,
        donate_argnums=data.donate_argnums,
        static_argnums=data.static_argnums,
    )


def optimize_module(
    module: str | bytes | Path,
    *,
    mesh: Any = None,
    devices: int | None = None,
    axis_names: Sequence[str] = DEFAULT_AXIS_NAMES,
    hardware: str | Path | Hardware = "cpu-host",
    memory_budget: str | float | None = "auto",
    trip_counts: Mapping[str, float] | None = None,
    default_trip_count: float = DEFAULT_TRIP_COUNT,
    solver: str = "auto",
    time_limit_seconds: float = 60.0,
    relative_gap: float = 0.01,
    seed: int = 0,
    baselines: bool = True,
    overlap: str = "auto",
    custom_costs: Mapping[str, CustomCost] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Plan:
    """Choose a sharding for every tensor of a StableHLO program that came from elsewhere.

    What its `sdy` annotations say is kept: shardings of arguments and results, constraints, groups,
    manual computations. `plan.stablehlo()` writes the program back with a sharding on every value,
    `plan.export()` makes it callable.

    Args:
        module: Text, bytecode, or the path of a file with either; its main is the program.
        mesh: As for `optimize`.
        devices: As for `optimize`.
        axis_names: As for `optimize`.
        hardware: As for `optimize`, like all that follow.
        memory_budget: Hard limit per device.
        trip_counts: Trip counts of loops, by `"model.mlir:40"`, the line the loop stands on.
        default_trip_count: For loops that nobody tells.
        solver: Backend name, or "auto".
        time_limit_seconds: For the solver.
        relative_gap: Stop once the plan is proven this close to the best.
        seed: One seed, one plan.
        baselines: Price plans written by hand too.
        overlap: Whether what can run beside the computing is priced so.
        custom_costs: What custom calls cost, by target or by line.
        progress: Told of a long solve.

    Raises:
        InputError: A mesh, option or file that cannot be used.
        ExportError: The module does not parse, or cannot be planned; with line and column.
        ConstraintError: Its shardings contradict one another or fit no tensor.
    """
    stages = Stages()
    request = read_request(mesh, devices, axis_names)
    options = _solve_options(solver, time_limit_seconds, relative_gap, seed)
    options = replace(options, overlap=_overlaps(overlap))
    setting = _Setting.of(request, {}, hardware, memory_budget, options, stages, baselines)
    name = module.name if isinstance(module, Path) else "module"
    with stages.time("read the module"):
        content = read_module_file(module) if isinstance(module, Path) else module

    def program_on(ours: Mesh) -> TracedProgram:
        with stages.time("read the module"):
            traced = read_module(content, ours, name=name)
        with stages.time("graph"):
            return read_traced(
                traced, ours, (), trip_counts, default_trip_count, custom_costs=custom_costs
            )

    solved = _solve(program_on, setting, progress)
    return _plan(_plan_data(name, solved), solved)


@dataclass(frozen=True, slots=True, eq=False)
class _Setting:
    """What a program is planned for, and how."""

    choice: MeshChoice
    machine: Hardware
    budget: int | None
    options: SolveOptions
    stages: Stages
    baselines: bool

    @staticmethod
    def of(
        request: MeshRequest,
        named: Mapping[str, str],
        hardware: str | Path | Hardware,
        memory_budget: str | float | None,
        options: SolveOptions,
        stages: Stages,
        baselines: bool,
    ) -> _Setting:
        """With the machine found, the meshes it can have, and the budget in bytes."""
        machine = _hardware(hardware)
        choice = mesh_choice(request, machine, named)
        device_bytes = _device_bytes(machine, choice.meshes[0])
        budget = parse_memory_budget(memory_budget, device_bytes)
        return _Setting(choice, machine, budget, options, stages, baselines)


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
    """A decided plan in the planner's terms, and what went into it."""

    setting: _Setting
    program: TracedProgram
    solution: Solution
    by_hand: tuple[Baseline, ...]
    search: MeshSearch | None


def _solve(
    program_on: Callable[[Mesh], TracedProgram],
    setting: _Setting,
    progress: Callable[[Progress], None] | None,
) -> _Solved:
    budget, options, stages = setting.budget, setting.options, setting.stages
    search: MeshSearch | None = None
    if setting.choice.is_search:
        found = search_meshes(
            setting.choice.meshes,
            program_on,
            SearchOptions(hardware=setting.machine, memory_limit=budget, solve=options),
            refused=setting.choice.refused,
            stages=stages,
            progress=progress,
        )
        program, solution, search = found.problem, found.solution, found.record
    else:
        program = program_on(setting.choice.meshes[0])
        solution = plan_graph(
            program.graph,
            program.mesh,
            setting.machine,
            program.wishes,
            budget,
            options,
            streamable=program.streamable,
            stages=stages,
            progress=progress,
        )
    by_hand: tuple[Baseline, ...] = ()
    if setting.baselines and solution.is_feasible:
        with stages.time("baselines"):
            propagator = propagator_for(program.traced, program.mesh)
            first = program.graph.num_captured
            by_hand = hand_baselines(
                solution,
                lambda inputs, outputs: propagator.propagate(inputs[first:], outputs),
                budget,
                options,
            )
    return _Solved(setting, program, solution, by_hand, search)


def _plan(data: PlanData, solved: _Solved) -> Plan:
    """A plan of a program without a function."""
    setting, program, solution = solved.setting, solved.program, solved.solution
    return Plan(
        data,
        None,
        program.traced,
        setting.choice.readings[program.mesh][2],
        price=lambda changes: seconds_with(solution, changes, setting.options),
        prices=HardwarePrices.of(setting.machine, program.mesh),
        solution=solution,
    )


def _hardware(given: str | Path | Hardware) -> Hardware:
    if not isinstance(given, (str, Path, Hardware)):
        raise InputError(
            f"expected a machine, found {type(given).__name__}",
            where=f"hardware={given!r}",
            fix="give the name of a known machine, a YAML file, or a cost_models.Hardware",
        )
    try:
        if isinstance(given, Hardware):
            return given
        if isinstance(given, Path) or given.endswith((".yaml", ".yml")):
            return load_hardware(given)
        return get_hardware(given)
    except CostModelError as error:
        raise InputError(error.what, where=error.where, fix=error.fix) from error


def _device_bytes(machine: Hardware, mesh: Mesh) -> int:
    """What one device offers under a mesh that the machine can have."""
    try:
        model = AlphaBetaModel(machine, [(axis.name, axis.size) for axis in mesh.axes])
    except CostModelError as error:
        raise InputError(error.what, where=error.where, fix=error.fix) from error
    return model.device_memory_bytes()


def _solve_options(
    solver: str, time_limit_seconds: float, relative_gap: float, seed: int
) -> SolveOptions:
    """How hard to look; what no solver takes is refused before the program is traced."""
    known = ("auto", *(backend.name for backend in CATALOG))
    if solver not in known:
        raise InputError(
            f"there is no solver called {solver!r}",
            where=f"solver={solver!r}",
            fix=f"use one of {', '.join(known)}",
        )
    amounts = {"time_limit_seconds": time_limit_seconds, "relative_gap": relative_gap}
    for name, number in amounts.items():
        if not number >= 0:  # nan is not
            raise InputError(
                f"{name} is {number}, which is no amount",
                where=f"{name}={number!r}",
                fix="give 0 or more",
            )
    return SolveOptions(
        backend=solver,
        time_limit_seconds=time_limit_seconds,
        relative_gap=relative_gap,
        seed=seed,
    )


def _overlaps(overlap: str) -> bool:
    if overlap not in ("auto", "none"):
        raise InputError(
            f"overlap is {overlap!r}, which is no way to price collectives",
            where=f"overlap={overlap!r}",
            fix='use "auto" or "none"',
        )
    return overlap == "auto"


def _check_schedules(schedules: str) -> None:
    if schedules not in ("auto", "none"):
        raise InputError(
            f"schedules is {schedules!r}, which is no way to choose them",
            where=f"schedules={schedules!r}",
            fix='use "auto" or "none"',
        )


def _plan_data(name: str, solved: _Solved) -> PlanData:
    solution, setting, traced = solved.solution, solved.setting, solved.program.traced
    account = solution.account
    rounds, listing = planned_rounds(solution)
    compares = setting.baselines and solution.is_feasible
    notes = hand_plan_notes(solution, solved.by_hand) if compares else ()
    uses = wanted_uses(solution.encoded, solution.decoded, traced.operand_paths)
    return with_short_sources(
        PlanData(
            function=name,
            program=traced.record,
            mesh=solved.program.mesh,
            hardware=setting.machine.name,
            memory_budget=setting.budget,
            arguments=_shown(_tensors(solution, is_result=False), traced.in_avals),
            results=_shown(_tensors(solution, is_result=True), traced.out_avals),
            values=_values(solution),
            wanted_uses=uses,
            constraints=None,
            misses=(),
            ops=account.ops,
            collectives=account.collectives,
            compute_seconds=account.compute_seconds,
            communication_seconds=account.communication_seconds,
            memory=account.memory,
            solver=_solver_facts(solution, setting),
            baselines=solved.by_hand,
            asked=tuple(
                AskedTerm(text=term.text, paths=term.paths) for term in solved.program.asked.asked
            ),
            rounds=rounds,
            listing=listing,
            products=planned_products(solution),
            mesh_search=solved.search,
            overlapped_seconds=overlapped_seconds(
                solution.encoder, solution.encoded, solution.decoded, account
            ),
            notes=(*traced.notes, *solution.graph.notes, *notes),
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


def _values(solution: Solution) -> dict[str, Any]:
    graph, decoded = solution.graph, solution.decoded
    return {
        path: solution.encoded.parts.to_sharding(placed_layout(graph, decoded, value))
        for path, value in graph.value_by_path.items()
        if graph.values[value].shape and not path.startswith("in.") and "<" not in path
    }


_ADVICE = {
    Status.OPTIMAL: "No plan of the model costs less.",
    Status.WITHIN_GAP: "Proven this close to the best; pass a smaller relative_gap to search on.",
    Status.FEASIBLE: "Usable, but not proven within the gap asked for; raise time_limit_seconds.",
    Status.INFEASIBLE: (
        "No plan fits the memory budget: raise memory_budget to what the least peak needs, use more"
        " devices, make the batch smaller, or wrap layers in jax.checkpoint."
    ),
    Status.NO_SOLUTION: (
        "No plan was found in time, nor a proof that there is none: raise time_limit_seconds or"
        " memory_budget."
    ),
}


_TOO_LARGE_WITH_GAPS = (
    "What the leanest plan found holds at one time fits the memory budget, but not with the gaps"
    " that the compiler leaves between temporaries: raise memory_budget to what it takes with them,"
    " use more devices, make the batch smaller, or wrap layers in jax.checkpoint."
)


def _advice(solution: Solution) -> str:
    """What to do next; where rounds came before, what they have to do with it."""
    status = solution.result.status
    advice = _TOO_LARGE_WITH_GAPS if solution.is_too_large_with_gaps else _ADVICE[status]
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


def _solver_facts(solution: Solution, setting: _Setting) -> SolverFacts:
    result = solution.result
    bound = result.lower_bound / PICOSECONDS
    return SolverFacts(
        status=result.status.value,
        advice=_advice(solution),
        backend=result.backend,
        seconds=(result.cost or 0) / PICOSECONDS,
        bound_seconds=bound,
        gap=result.gap if result.cost is not None else 1.0,
        num_ops=len(solution.encoded.ops),
        num_choices=sum(len(c) for c in solution.encoded.candidates),
        reduced_nodes=result.reduced_nodes,
        reduced_columns=result.reduced_columns,
        log=result.log,
        overlap="auto" if setting.options.overlap else "none",
    )
