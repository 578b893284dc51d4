"""The few calls users make."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from autoshard.apply.planned import Plan, propagator_for
from autoshard.apply.stablehlo.module_file import read_module_file
from autoshard.apply.stablehlo.read_module import read_module
from autoshard.apply.wanted_uses import wanted_uses
from autoshard.carried import carried_pairs
from autoshard.collectives import HardwarePrices
from autoshard.constraints import Resolved
from autoshard.encode import PICOSECONDS, Wishes
from autoshard.errors import InputError
from autoshard.frontend.device_orders import DeviceOrder
from autoshard.frontend.key_arrays import with_word_dims, without_word_dims
from autoshard.frontend.meshes import read_mesh
from autoshard.frontend.module import DEFAULT_TRIP_COUNT, ModuleNames, module_to_graph
from autoshard.frontend.scheduled_products import rewritable_products
from autoshard.frontend.signature import argument_positions, function_name
from autoshard.frontend.trace import Traced, trace
from autoshard.frontend.user_constraints import (
    asked_inside,
    read_constraints,
    resolve_constraints,
)
from autoshard.graph.program import Graph
from autoshard.hand_plans import hand_baselines, impossible_note
from autoshard.memory_budget import parse_memory_budget
from autoshard.plan import AskedTerm, Baseline, PlanData, PlannedTensor, SolverFacts
from autoshard.planner import (
    Solution,
    SolveOptions,
    Stages,
    plan_graph,
    seconds_with,
    spoken_priorities,
)
from autoshard.product_records import planned_products
from autoshard.round_records import planned_rounds
from autoshard.sharding import Mesh, Sharding
from autoshard.source_names import with_short_sources
from autoshard.version import VERSION
from autoshard.wishes import AlikeWish
from cost_models import AlphaBetaModel, CostModelError, Hardware, get_hardware, load_hardware
from solvers import CATALOG, Progress, Status


def optimize(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Any,
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
    progress: Callable[[Progress], None] | None = None,
) -> Plan:
    """Choose a sharding for every tensor of a JAX function.

    Nothing is computed and no device is needed. Results that replace donated arguments (a training
    state) keep their sharding, so that the next step can take them as they are.

    Args:
        fn: Any JAX function; a whole training step gives the best plans.
        *args: Its positional arguments: pytrees of arrays or `jax.ShapeDtypeStruct`.
        mesh: A `jax.sharding.Mesh` (Explicit axes included), an `AbstractMesh`, or text such as
            `"data=8,model=8"`.
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
        time_limit_seconds: For the solver.
        relative_gap: Stop once the plan is proven this close to the best.
        seed: One seed, one plan.
        baselines: Price plans written by hand too, for the report.
        schedules: `"auto"`: where an operand that a matrix product gathers would take a good part
            of the memory budget, the product may gather it in panels, step by step; `"none"`: all
            products run at once.
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
    ours, context, concrete = read_mesh(mesh)
    terms = read_constraints(constraints, DeviceOrder.of(ours, concrete))
    options = _solve_options(solver, time_limit_seconds, relative_gap, seed)
    _check_schedules(schedules)
    setting = _Setting.of(ours, hardware, memory_budget, options, stages, baselines)
    with stages.time("trace and lower"):
        traced = trace(
            fn,
            args,
            kwargs,
            mesh=ours,
            context=context,
            devices=concrete,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            donate_argnums=donate_argnums,
            static_argnums=static_argnums,
        )
    solved = _solve(
        traced,
        terms,
        setting,
        trip_counts=trip_counts,
        default_trip_count=default_trip_count,
        progress=progress,
        streamable=frozenset(
            rewritable_products(traced.jaxpr.jaxpr) if schedules == "auto" else ()
        ),
    )
    data = replace(
        _plan_data(function_name(fn), traced, solved),
        donate_argnums=argument_positions(donate_argnums, len(args), "donate_argnums", fn),
        static_argnums=argument_positions(static_argnums, len(args), "static_argnums", fn),
    )
    return Plan(
        data,
        fn,
        traced,
        concrete,
        data.donate_argnums,
        data.static_argnums,
        lambda changes: seconds_with(solved.solution, changes, options),
        prices=HardwarePrices.of(setting.machine, ours),
    )


def optimize_module(
    module: str | bytes | Path,
    *,
    mesh: Any,
    hardware: str | Path | Hardware = "cpu-host",
    memory_budget: str | float | None = "auto",
    trip_counts: Mapping[str, float] | None = None,
    default_trip_count: float = DEFAULT_TRIP_COUNT,
    solver: str = "auto",
    time_limit_seconds: float = 60.0,
    relative_gap: float = 0.01,
    seed: int = 0,
    baselines: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> Plan:
    """Choose a sharding for every tensor of a StableHLO program that came from elsewhere.

    What its `sdy` annotations say is kept: shardings of arguments and results, constraints, groups,
    manual computations. `plan.stablehlo()` writes the program back with a sharding on every value,
    `plan.export()` makes it callable.

    Args:
        module: Text, bytecode, or the path of a file with either; its main is the program.
        mesh: As for `optimize`.
        hardware: As for `optimize`, like all that follow.
        memory_budget: Hard limit per device.
        trip_counts: Trip counts of loops, by `"model.mlir:40"`, the line the loop stands on.
        default_trip_count: For loops that nobody tells.
        solver: Backend name, or "auto".
        time_limit_seconds: For the solver.
        relative_gap: Stop once the plan is proven this close to the best.
        seed: One seed, one plan.
        baselines: Price plans written by hand too.
        progress: Told of a long solve.

    Raises:
        InputError: A mesh, option or file that cannot be used.
        ExportError: The module does not parse, or cannot be planned; with line and column.
        ConstraintError: Its shardings contradict one another or fit no tensor.
    """
    stages = Stages()
    ours, _, concrete = read_mesh(mesh)
    options = _solve_options(solver, time_limit_seconds, relative_gap, seed)
    setting = _Setting.of(ours, hardware, memory_budget, options, stages, baselines)
    name = module.name if isinstance(module, Path) else "module"
    with stages.time("read the module"):
        content = read_module_file(module) if isinstance(module, Path) else module
        traced = read_module(content, ours, name=name)
    solved = _solve(
        traced,
        (),
        setting,
        trip_counts=trip_counts,
        default_trip_count=default_trip_count,
        progress=progress,
    )
    return Plan(
        _plan_data(name, traced, solved),
        None,
        traced,
        concrete,
        price=lambda changes: seconds_with(solved.solution, changes, options),
        prices=HardwarePrices.of(setting.machine, ours),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Setting:
    """What a program is planned for, and how."""

    mesh: Mesh
    machine: Hardware
    budget: int | None
    options: SolveOptions
    stages: Stages
    baselines: bool

    @staticmethod
    def of(
        mesh: Mesh,
        hardware: str | Path | Hardware,
        memory_budget: str | float | None,
        options: SolveOptions,
        stages: Stages,
        baselines: bool,
    ) -> _Setting:
        """With the machine found and the budget in bytes."""
        machine, device_bytes = _hardware(hardware, mesh)
        budget = parse_memory_budget(memory_budget, device_bytes)
        return _Setting(mesh, machine, budget, options, stages, baselines)


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
    """A decided plan in the planner's terms, and what went into it."""

    setting: _Setting
    solution: Solution
    by_hand: tuple[Baseline, ...]
    asked: Resolved


def _solve(
    traced: Traced,
    terms: Any,
    setting: _Setting,
    *,
    trip_counts: Mapping[str, float] | None,
    default_trip_count: float,
    progress: Callable[[Progress], None] | None,
    streamable: frozenset[str] = frozenset(),
) -> _Solved:
    mesh, budget, options, stages = setting.mesh, setting.budget, setting.options, setting.stages
    with stages.time("graph"):
        asked = resolve_constraints(terms, traced, mesh)
        graph = module_to_graph(
            traced.module,
            ModuleNames(
                arguments=traced.in_names,
                captured=traced.captured_names,
                results=traced.out_names,
                donated=traced.donated,
                source_by_equation=traced.source_by_equation,
            ),
            trip_counts=trip_counts,
            default_trip_count=default_trip_count,
            asked=asked_inside(asked, traced, mesh),
        )
    wishes = _wishes(traced, graph, asked)
    solution = plan_graph(
        graph,
        mesh,
        setting.machine,
        wishes,
        budget,
        options,
        streamable=streamable,
        stages=stages,
        progress=progress,
    )
    by_hand: tuple[Baseline, ...] = ()
    if setting.baselines and solution.is_feasible:
        with stages.time("baselines"):
            propagator = propagator_for(traced, mesh)
            by_hand = hand_baselines(
                solution,
                lambda inputs, outputs: propagator.propagate(inputs[graph.num_captured :], outputs),
                budget,
                options,
            )
    return _Solved(setting, solution, by_hand, asked)


def _hardware(given: str | Path | Hardware, mesh: Mesh) -> tuple[Hardware, int]:
    """The machine, and the bytes one of its devices offers under this mesh."""
    if not isinstance(given, (str, Path, Hardware)):
        raise InputError(
            f"expected a machine, found {type(given).__name__}",
            where=f"hardware={given!r}",
            fix="give the name of a known machine, a YAML file, or a cost_models.Hardware",
        )
    try:
        if isinstance(given, Hardware):
            machine = given
        elif isinstance(given, Path) or given.endswith((".yaml", ".yml")):
            machine = load_hardware(given)
        else:
            machine = get_hardware(given)
        model = AlphaBetaModel(machine, [(axis.name, axis.size) for axis in mesh.axes])
    except CostModelError as error:
        raise InputError(error.what, where=error.where, fix=error.fix) from error
    return machine, model.device_memory_bytes()


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


def _check_schedules(schedules: str) -> None:
    if schedules not in ("auto", "none"):
        raise InputError(
            f"schedules is {schedules!r}, which is no way to choose them",
            where=f"schedules={schedules!r}",
            fix='use "auto" or "none"',
        )


def _wishes(traced: Traced, graph: Graph, asked: Resolved) -> Wishes:
    def types(avals: Sequence[Any]) -> list[tuple[tuple[int, ...], str]]:
        return [(tuple(aval.shape), str(aval.dtype)) for aval in avals]

    # Arrays that the function closes over come first; JAX gives every device a copy of them.
    captured = [
        Sharding.replicated_everywhere(len(graph.values[op.results[0]].shape))
        for op in graph.arguments[: graph.num_captured]
    ]
    carried = carried_pairs(
        traced.in_names,
        types(traced.in_avals),
        traced.donated,
        traced.out_names,
        types(traced.out_avals),
    )
    return Wishes(
        arguments=(*captured, *map(with_word_dims, asked.arguments, traced.in_avals)),
        results=tuple(map(with_word_dims, asked.results, traced.out_avals)),
        alike=[(len(captured) + argument, result) for argument, result in carried],
        groups=[
            AlikeWish(tuple(_member(graph, path) for path in group.paths), group.said)
            for group in asked.groups
        ],
    )


def _member(graph: Graph, path: str) -> tuple[int, int]:
    """The op that decides a tensor of a group, and its value."""
    if path.startswith("out<"):
        result = graph.results[int(path.removeprefix("out<"))]
        return result.index, result.operands[0]
    value = graph.value_by_path[path]
    return graph.values[value].op, value


def _plan_data(name: str, traced: Traced, solved: _Solved) -> PlanData:
    solution, setting = solved.solution, solved.setting
    account = solution.account
    rounds, listing = planned_rounds(solution)
    compares = setting.baselines and solution.is_feasible
    notes = impossible_note(solved.by_hand) if compares else ()
    uses = wanted_uses(solution.encoded, solution.decoded, traced.operand_paths)
    return with_short_sources(
        PlanData(
            function=name,
            program=traced.record,
            mesh=setting.mesh,
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
            solver=_solver_facts(solution),
            baselines=solved.by_hand,
            asked=tuple(AskedTerm(text=term.text, paths=term.paths) for term in solved.asked.asked),
            rounds=rounds,
            listing=listing,
            products=planned_products(solution),
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
                local_bytes=value.num_bytes // parts.num_shards(p for dim in layout for p in dim),
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
    graph = solution.graph
    return {
        path: solution.encoded.parts.to_sharding(solution.decoded.layouts[value])
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


def _advice(solution: Solution) -> str:
    """What to do next; where rounds came before, what they have to do with it."""
    status = solution.result.status
    rounds = [decided.round for decided in solution.rounds]
    if not rounds:
        return _ADVICE[status]
    before = spoken_priorities(rounds[:-1])
    if status in (Status.INFEASIBLE, Status.NO_SOLUTION):
        return (
            f"{_ADVICE[status]} What {before} decided is fixed by now: give priority"
            f" {rounds[-1].priority} one of these numbers, to decide both at once."
        )
    return f"{_ADVICE[status]} Gap and bound are among the plans that extend what {before} decided."


def _solver_facts(solution: Solution) -> SolverFacts:
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
    )
