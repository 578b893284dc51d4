"""The few calls users make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from autoshard.aot.targets import parse_target
from autoshard.aot.verify import check_installed
from autoshard.apply.propagation.propagator import propagator_for
from autoshard.argument_types import check_types
from autoshard.build_plan import Solved, plan_data
from autoshard.collectives import HardwarePrices
from autoshard.export.module_file import read_module_file
from autoshard.export.read_module import read_module
from autoshard.export.sound_module import require_sound
from autoshard.frontend.device_orders import DeviceOrder
from autoshard.frontend.module import DEFAULT_TRIP_COUNT
from autoshard.frontend.scheduled_products import rewritable_products
from autoshard.frontend.signature import argument_positions, function_name
from autoshard.frontend.trace import trace
from autoshard.frontend.user_constraints import read_constraints
from autoshard.graph.custom_cost import CustomCost
from autoshard.mesh_search.request import (
    named_in_search,
    read_request,
)
from autoshard.mesh_search.search import SearchOptions, search_meshes
from autoshard.mesh_search.shapes import DEFAULT_AXIS_NAMES
from autoshard.plan import Plan
from autoshard.planning.hand_plans import (
    HandPrices,
    Propagate,
    price_hand_plans,
    with_floor,
)
from autoshard.planning.planner import plan_graph
from autoshard.planning.pricing import seconds_with
from autoshard.planning.solution import Solution
from autoshard.planning.stages import Stages
from autoshard.planning.traced_program import TracedProgram, read_traced
from autoshard.plans.plan import (
    MeshSearch,
    PlanData,
)
from autoshard.refine.corrections_file import load_corrections
from autoshard.refine.learnt import in_words
from autoshard.refine.request import is_measured
from autoshard.setting import Setting, is_auto, read_solve_options
from autoshard.sharding import Mesh, Sharding
from cost_models import Hardware
from solvers import Progress


def optimize(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Any = None,
    devices: int | None = None,
    axis_names: Sequence[str] = DEFAULT_AXIS_NAMES,
    hardware: str | Path | Hardware = "auto",
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
    corrections: str | Path | None = None,
    refine: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Plan:
    """Choose a sharding for every tensor of a JAX function.

    Nothing is computed and no device is needed. Results that replace donated arguments (a training
    state) keep their sharding, so that the next step can take them as they are.

    Args:
        fn: Any JAX function; a whole training step gives the best plans.
        *args: Its positional arguments: pytrees of arrays or `jax.ShapeDtypeStruct`.
        mesh: A `jax.sharding.Mesh` (Explicit axes included), an `AbstractMesh`, or text such as
            `"data=8,model=8"`; that of `jax.set_mesh` if not given. `"auto"`, or nothing where
            `devices` is given: the best one is searched, and `plan.data.mesh_search` tells what was
            tried.
        devices: How many devices the mesh has that is searched; all of this machine's by default.
        axis_names: Of the axes of a mesh that is searched, outermost first; it has no more of them.
        hardware: Name of a known machine (`"tpu-v5p"`, `"h100:8"`), a YAML file, or a `Hardware`.
            `"auto"` reads it off the devices of the mesh; a mesh without devices needs a name.
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
        corrections: A file of what refining learnt of the same program on the same machine
            (`plan.save_corrections`): prices and memory terms start from it.
        refine: What to compile for, `"v5e:2x4"`; the plan is then the best that compiled, as of
            `plan.refine(...)` with its defaults.
        progress: Told of a long solve.

    Returns:
        A plan. Where none fits the budget `plan.data.is_feasible` is false and the report says by
        how much, where, and what weighs most.

    Raises:
        InputError: A mesh, option or argument that cannot be used.
        ExportError: A function that does not trace or lower.
        ConstraintError: Shardings asked for that contradict one another or fit no tensor.
    """
    check_types(
        kwargs=kwargs,
        donate_argnums=donate_argnums,
        static_argnums=static_argnums,
        trip_counts=trip_counts,
        custom_costs=custom_costs,
        progress=progress,
    )
    stages = Stages()
    request = read_request(mesh, devices, axis_names)
    options = read_solve_options(solver, time_limit_seconds, relative_gap, seed, overlap)
    may_stream = is_auto("schedules", schedules, "choose them")
    if refine is not None and not is_measured(refine):
        check_installed(parse_target(refine))
    saved = None if corrections is None else load_corrections(corrections)
    if saved is not None:
        options = replace(options, corrections=saved.corrections)
    shardings = {"in_shardings": in_shardings, "out_shardings": out_shardings}
    named = named_in_search(request, shardings, constraints)
    setting = Setting.of(request, named, hardware, memory_budget, options, stages, baselines)

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
        if saved is not None:
            machine = setting.machine.name
            saved.check(traced.record.fingerprint, machine, str(corrections))
        steps = rewritable_products(traced.jaxpr.jaxpr) if may_stream else ()
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
        plan_data(function_name(fn), solved),
        donate_argnums=argument_positions(donate_argnums, len(args), "donate_argnums", fn),
        static_argnums=argument_positions(static_argnums, len(args), "static_argnums", fn),
    )
    if saved is not None:
        used = in_words(saved.corrections)
        note = f"costs corrected from {corrections}: {used}, as compiled by {saved.compiler}"
        data = replace(data, notes=(*data.notes, note))
    plan = replace(
        _plan(data, solved),
        fn=fn,
        donate_argnums=data.donate_argnums,
        static_argnums=data.static_argnums,
    )
    return plan if refine is None else plan.refine(refine)


def optimize_module(
    module: str | bytes | Path,
    *,
    mesh: Any = None,
    devices: int | None = None,
    axis_names: Sequence[str] = DEFAULT_AXIS_NAMES,
    hardware: str | Path | Hardware = "auto",
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
    check_types(
        module=module, trip_counts=trip_counts, custom_costs=custom_costs, progress=progress
    )
    stages = Stages()
    request = read_request(mesh, devices, axis_names)
    options = read_solve_options(solver, time_limit_seconds, relative_gap, seed, overlap)
    setting = Setting.of(request, {}, hardware, memory_budget, options, stages, baselines)
    name = module.name if isinstance(module, Path) else "module"
    with stages.time("read the module"):
        content = read_module_file(module) if isinstance(module, Path) else module
        require_sound(content, name)

    def program_on(ours: Mesh) -> TracedProgram:
        with stages.time("read the module"):
            traced = read_module(content, ours, name=name)
        with stages.time("graph"):
            return read_traced(
                traced, ours, (), trip_counts, default_trip_count, custom_costs=custom_costs
            )

    solved = _solve(program_on, setting, progress)
    return _plan(plan_data(name, solved), solved)


def _solve(
    program_on: Callable[[Mesh], TracedProgram],
    setting: Setting,
    progress: Callable[[Progress], None] | None,
) -> Solved:
    """Plan a program on the mesh given, or on the best of those to choose from."""
    search: MeshSearch | None = None
    if setting.choice.is_search:
        found = search_meshes(
            setting.choice.meshes,
            program_on,
            SearchOptions(
                hardware=setting.machine, memory_limit=setting.budget, solve=setting.options
            ),
            refused=setting.choice.refused,
            stages=setting.stages,
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
            setting.budget,
            setting.options,
            propagate=_propagate(program),
            streamable=program.streamable,
            stages=setting.stages,
            progress=progress,
        )
    by_hand = _plans_by_hand(program, solution, setting)
    solution = with_floor(solution, by_hand, setting.budget, setting.options.relative_gap)
    return Solved(setting, program, solution, by_hand, search)


def _plans_by_hand(program: TracedProgram, solution: Solution, setting: Setting) -> HandPrices:
    """What plans written by hand cost, where somebody wants to know."""
    if not (setting.baselines and solution.is_feasible):
        return HandPrices({})
    with setting.stages.time("baselines"):
        return price_hand_plans(solution, _propagate(program), setting.options)


def _propagate(program: TracedProgram) -> Propagate:
    """Shardings of all values from those of arguments, captured arrays first, and results."""
    first = program.graph.num_captured

    def propagate(
        inputs: Sequence[Sharding | None], outputs: Sequence[Sharding | None]
    ) -> Mapping[str, Sharding]:
        found = propagator_for(program.traced, program.mesh).propagate(inputs[first:], outputs)
        return cast("Mapping[str, Sharding]", found)

    return propagate


def _plan(data: PlanData, solved: Solved) -> Plan:
    """A plan of a program without a function."""
    setting, program, solution = solved.setting, solved.program, solved.solution
    return Plan(
        data,
        None,
        program.traced,
        setting.choice.readings[program.mesh][2],
        price=lambda changes: seconds_with(solution, changes, setting.options),
        prices=HardwarePrices.of(setting.machine, program.mesh),
        solved=solved,
    )
