"""The few calls users make."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoshard.argument_types import check_types
from autoshard.backends import backend_for
from autoshard.errors import InputError
from autoshard.export.module_file import read_module_file
from autoshard.export.read_module import read_module
from autoshard.export.sound_module import require_sound
from autoshard.frontend.argument_roles import is_given, jitted_argnums
from autoshard.frontend.meshes import is_mesh
from autoshard.frontend.module import DEFAULT_TRIP_COUNT
from autoshard.frontend.signature import argument_positions, function_name
from autoshard.frontend.trace import Traced, trace
from autoshard.graph.custom_cost import CustomCost
from autoshard.graph_reading import GraphReading
from autoshard.make_plan import PlannableProgram, make_plan
from autoshard.mesh_search.request import (
    named_in_search,
    read_request,
)
from autoshard.mesh_search.shapes import DEFAULT_AXIS_NAMES
from autoshard.plan import Plan
from autoshard.plan_cache.folder import cache_folder
from autoshard.planned_call import PlannedCall
from autoshard.planning.progress_line import shown
from autoshard.planning.stages import TRACE, StageProgress, Stages
from autoshard.planning.warm_start import WarmStart
from autoshard.plans.plan import (
    PlanData,
)
from autoshard.printable import printable
from autoshard.refine.corrections_file import load_corrections
from autoshard.refine.learnt import in_words
from autoshard.refine.request import is_measured, target_hardware
from autoshard.rewriting import AS_WRITTEN, Rewriting
from autoshard.setting import (
    Setting,
    is_auto,
    read_accumulate,
    read_remat,
    read_solve_options,
)
from autoshard.sharding import Mesh
from cost_models import Hardware


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
    time_limit_seconds: float = 180.0,
    relative_gap: float = 0.01,
    seed: int = 0,
    simplicity: float | None = None,
    constraint_effort: float = 1.0,
    baselines: bool = True,
    schedules: str = "auto",
    overlap: str = "auto",
    remat: str = "auto",
    accumulate: int | str | None = None,
    custom_costs: Mapping[str, CustomCost] | None = None,
    corrections: str | Path | None = None,
    refine: str | None = None,
    cache: bool | str | os.PathLike[str] | None = None,
    start: Plan | None = None,
    progress: Callable[[StageProgress], None] | bool | None = None,
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
            `"auto"` is what `refine` compiles for, else read off the devices of the mesh; a mesh
            without devices needs a name.
        memory_budget: Hard limit per device: `"auto"` for all the device offers, bytes, `"80GiB"`,
            a fraction such as 0.9, or None.
        in_shardings: Shardings the user insists on, as for `jax.jit`; None is free, and here
            `P.UNCONSTRAINED` dimensions are free too. Dimensions with priorities are decided one
            priority after another, the smallest first.
        out_shardings: Likewise for the result.
        constraints: What else is asked: a mapping from selector (`params**["w1"]`,
            `model.py:42 dot_general`) to sharding, a list of `Pin`, `Uses` and `Group`, and of
            `Keep`, `Recompute` and `Offload` for residuals, or the path of a YAML file.
        donate_argnums: Arguments whose buffers the step may reuse; of a `jax.jit` function, those
            that it donates unless others are given.
        static_argnums: Arguments that are no arrays; likewise.
        kwargs: Keyword arguments of the function.
        trip_counts: Trip counts of loops the program does not tell, by `"file.py:line"`.
        default_trip_count: For loops that nobody tells; the plan notes each.
        solver: Backend name, or "auto".
        time_limit_seconds: For planning: the search, plans by hand and constraints. Tracing and
            pricing, which every plan needs, run to their end.
        relative_gap: Stop once the plan is proven this close to the best.
        seed: One seed, one plan.
        simplicity: How much of the step time may be given up for a plan that is easier to review,
            with fewer constraints, equal layers alike and one order of axes; by default 1 %, as far
            as `relative_gap` leaves room. 0 gives up nothing. Not where a mesh is searched.
        constraint_effort: How much work the search for the smallest set of constraints may take,
            as a multiple of the usual limit; inf for no limit.
        baselines: Price plans written by hand too, for the report.
        schedules: `"auto"`: where an operand that a matrix product gathers would take a good part
            of the memory budget, the product may gather it in panels, step by step; `"none"`: all
            products run at once.
        overlap: `"auto"`: a collective that the backend can run beside the computing is priced by
            what is left to wait for; `"none"`: all are priced as if everything waited for them.
        remat: `"auto"`: where the step does not fit the budget as it is written, or only with
            slower shardings, choose what its backward passes keep of the forward ones and what
            they compute again, whatever `jax.checkpoint` says in it; `"keep"`: the program as it
            is written; `"off"`: nothing is computed again, and `jax.checkpoint` in it has no
            effect.
        accumulate: Run the step over so many microbatches and add up what it sums over examples,
            gradients above all; refused where an op takes examples together otherwise. `"auto"`:
            where the step does not fit the budget, the number that makes it fastest. None: one.
        custom_costs: What custom calls cost, by target or by the line that calls (`"file.py:42"`).
            Without it the estimate that a Pallas kernel carries counts; without that, every element
            once.
        corrections: A file of what refining learnt of the function on the same machine
            (`plan.save_corrections`): prices and memory terms start from it; of another batch or
            depth, the ratios of compiled to priced seconds.
        refine: What to compile for, `"v5e:2x4"`; the plan is then the best that compiled, as of
            `plan.refine(...)` with its defaults.
        cache: A folder in which plans are kept by content: the same call, in any process, reads its
            plan from there. True for the platform's own, None as the environment variable
            `AUTOSHARD_CACHE` says (none where it is unset). Under `jax.distributed` process 0
            plans, and the others wait for its file.
        start: An earlier plan of this program or a similar one, loaded or not: the search starts
            from its shardings. Not where a mesh is searched.
        progress: Told of every stage and how far it is; True shows a line in the terminal or
            notebook. The logger `autoshard` has the same.

    Returns:
        A plan. Where none fits the budget `plan.data.is_feasible` is false and the report says by
        how much, where, and what weighs most.

    Raises:
        InputError: A mesh, option or argument that cannot be used.
        ExportError: A function that does not trace or lower.
        ConstraintError: Shardings asked for that contradict one another or fit no tensor.
        PlanError: Process 0 kept no plan that this one could read.
    """
    said = {name: value for name, value in locals().items() if name not in ("fn", "args")}
    return _optimized(fn, args, OptimizeOptions(**said))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptimizeOptions:
    """The keyword arguments of `optimize`."""

    mesh: Any
    devices: int | None
    axis_names: Sequence[str]
    hardware: str | Path | Hardware
    memory_budget: str | float | None
    in_shardings: Any
    out_shardings: Any
    constraints: Any
    donate_argnums: int | Sequence[int]
    static_argnums: int | Sequence[int]
    kwargs: Mapping[str, Any] | None
    trip_counts: Mapping[str, float] | None
    default_trip_count: float
    solver: str
    time_limit_seconds: float
    relative_gap: float
    seed: int
    simplicity: float | None
    constraint_effort: float
    baselines: bool
    schedules: str
    overlap: str
    remat: str
    accumulate: int | str | None
    custom_costs: Mapping[str, CustomCost] | None
    corrections: str | Path | None
    refine: str | None
    cache: bool | str | os.PathLike[str] | None
    start: Plan | None
    progress: Callable[[StageProgress], None] | bool | None


def _optimized(
    fn: Callable[..., Any],
    args: Sequence[Any],
    said: OptimizeOptions,
    known: Traced | None = None,
) -> Plan:
    """Plan a call as `optimize` does.

    Args:
        fn: The function.
        args: Its positional arguments.
        said: All else.
        known: The call's trace on the mesh given, as it is written, where there is one already.
    """
    check_types(
        fn=fn,
        kwargs=said.kwargs,
        donate_argnums=said.donate_argnums,
        static_argnums=said.static_argnums,
        trip_counts=said.trip_counts,
        custom_costs=said.custom_costs,
        progress=said.progress,
        axis_names=said.axis_names,
        memory_budget=said.memory_budget,
        schedules=said.schedules,
        remat=said.remat,
        accumulate=said.accumulate,
        baselines=said.baselines,
        corrections=said.corrections,
        refine=said.refine,
        start=said.start,
    )
    said = _with_argnums_of_jit(fn, len(args), said)
    if said.mesh is None and any(map(is_mesh, args)):
        raise InputError(
            "a mesh stands among the arguments of the function",
            where=f"`{function_name(fn)}`",
            fix="name it: optimize(fn, *args, mesh=mesh)",
        )
    folder = cache_folder(said.cache)
    request = read_request(said.mesh, said.devices, said.axis_names)
    options = read_solve_options(
        said.solver,
        said.time_limit_seconds,
        said.relative_gap,
        said.seed,
        said.overlap,
        said.simplicity,
        said.constraint_effort,
    )
    stages = Stages(shown(said.progress), options.time_limit_seconds)
    may_stream = is_auto("schedules", said.schedules, "choose them")
    hardware = _hardware_for(said.refine, said.hardware)
    saved = None if said.corrections is None else load_corrections(said.corrections)
    shardings = {"in_shardings": said.in_shardings, "out_shardings": said.out_shardings}
    named = named_in_search(request, shardings, said.constraints)
    setting = Setting.of(
        request,
        named,
        hardware,
        said.memory_budget,
        options,
        stages,
        said.baselines,
        read_remat(said.remat),
        read_accumulate(said.accumulate),
    )
    reading = GraphReading(
        said.constraints, said.trip_counts, said.default_trip_count, may_stream, said.custom_costs
    )

    @functools.cache
    def traced_on(ours: Mesh, rewriting: Rewriting) -> Traced:
        if known is not None and rewriting == AS_WRITTEN:
            return known
        _, context, concrete = setting.choice.readings[ours]
        with stages.time(TRACE):
            return trace(
                fn,
                args,
                said.kwargs,
                mesh=ours,
                context=context,
                devices=concrete,
                donate_argnums=said.donate_argnums,
                static_argnums=said.static_argnums,
                rewrite=rewriting.of,
                platform=backend_for(setting.machine).lowering_platform,
                **shardings,
            )

    name = function_name(fn)
    note = ""
    if saved is not None:
        fingerprint = traced_on(setting.choice.meshes[0], AS_WRITTEN).fingerprint
        where = str(said.corrections)
        fitting = saved.fitting(name, fingerprint, setting.machine.name, where)
        setting = replace(setting, options=replace(options, corrections=fitting))
        sizes = " at another batch or depth" if fitting.is_of_other_sizes else ""
        used = f"{in_words(fitting)}, as compiled by {saved.compiler}{sizes}"
        note = f"costs corrected from {where}: {used}"
    donated = argument_positions(said.donate_argnums, len(args), "donate_argnums", fn)
    static = argument_positions(said.static_argnums, len(args), "static_argnums", fn)
    for both in sorted({*donated} & {*static}):
        raise InputError(
            f"argument {both} is donated and static: what is no array has no buffer to reuse",
            where=f"donate_argnums={said.donate_argnums!r}, static_argnums={said.static_argnums!r}"
            f" of `{name}`",
            fix="name it in one of them",
        )

    def finished(data: PlanData) -> PlanData:
        notes = (*data.notes, *filter(None, [note]))
        return replace(data, donate_argnums=donated, static_argnums=static, notes=notes)

    program = PlannableProgram(name, traced_on, reading, finished, (donated, static))
    start = None if said.start is None else WarmStart.of(said.start.data)
    plan = make_plan(program, setting, folder, stages.tell_solve, start)
    assert plan.traced is not None
    graph = functools.partial(reading.of, plan.traced, plan.data.mesh, setting)
    plan = replace(
        plan,
        fn=fn,
        donate_argnums=donated,
        static_argnums=static,
        call=PlannedCall.of(fn, args, said, graph, _optimized),
    )
    return plan if said.refine is None else plan.refine(said.refine)


def _with_argnums_of_jit(
    fn: Callable[..., Any], num_args: int, said: OptimizeOptions
) -> OptimizeOptions:
    """The options, with what a `jax.jit` function donates and holds static where none is given."""
    donated, static = (
        tuple(position for position in positions if position < num_args)
        for positions in jitted_argnums(fn)
    )
    return replace(
        said,
        donate_argnums=said.donate_argnums if is_given(said.donate_argnums) else donated,
        static_argnums=said.static_argnums if is_given(said.static_argnums) else static,
    )


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
    time_limit_seconds: float = 180.0,
    relative_gap: float = 0.01,
    seed: int = 0,
    simplicity: float | None = None,
    constraint_effort: float = 1.0,
    baselines: bool = True,
    overlap: str = "auto",
    custom_costs: Mapping[str, CustomCost] | None = None,
    refine: str | None = None,
    cache: bool | str | os.PathLike[str] | None = None,
    progress: Callable[[StageProgress], None] | bool | None = None,
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
        time_limit_seconds: As for `optimize`.
        relative_gap: Stop once the plan is proven this close to the best.
        seed: One seed, one plan.
        simplicity: How much of the step time may be given up for a simpler plan.
        constraint_effort: How much work the search for constraints may take.
        baselines: Price plans written by hand too.
        overlap: Whether what can run beside the computing is priced so.
        custom_costs: What custom calls cost, by target or by line.
        refine: What to compile for, as for `optimize`; a module cannot be measured.
        cache: As for `optimize`.
        progress: Told of every stage and how far it is; True shows a line in the terminal or
            notebook. The logger `autoshard` has the same.

    Raises:
        InputError: A mesh, option or file that cannot be used.
        ExportError: The module does not parse, or cannot be planned; with line and column.
        ConstraintError: Its shardings contradict one another or fit no tensor.
    """
    check_types(
        module=module,
        trip_counts=trip_counts,
        custom_costs=custom_costs,
        progress=progress,
        axis_names=axis_names,
        memory_budget=memory_budget,
        baselines=baselines,
        refine=refine,
    )
    if isinstance(module, str) and module and not any(map(module.__contains__, "{ \n")):
        raise InputError(
            "the module is a single word, as names of files are",
            where=f"module={printable(module, 200)!r}",
            fix="pass the text of the module, or its file as a pathlib.Path",
        )
    folder = cache_folder(cache)
    hardware = _hardware_for(refine, hardware)
    if refine is not None and is_measured(refine):
        raise InputError(
            "a module is compiled, and not run on arguments made by its shapes",
            where=f"refine={refine!r}",
            fix='name devices to compile for, as in "v5e:2x4"',
        )
    request = read_request(mesh, devices, axis_names)
    options = read_solve_options(
        solver, time_limit_seconds, relative_gap, seed, overlap, simplicity, constraint_effort
    )
    stages = Stages(shown(progress), options.time_limit_seconds)
    setting = Setting.of(request, {}, hardware, memory_budget, options, stages, baselines)
    name = module.name if isinstance(module, Path) else "module"
    with stages.time("read the module"):
        content = read_module_file(module) if isinstance(module, Path) else module
        require_sound(content, name)

    @functools.cache
    def traced_on(ours: Mesh, _: Rewriting) -> Traced:
        with stages.time("read the module"):
            return read_module(content, ours, name=name)

    reading = GraphReading(
        None, trip_counts, default_trip_count, may_stream=False, custom_costs=custom_costs
    )
    program = PlannableProgram(name, traced_on, reading, lambda data: data, content)
    plan = make_plan(program, setting, folder, stages.tell_solve)
    return plan if refine is None else plan.refine(refine)


def _hardware_for(refine: str | None, hardware: str | Path | Hardware) -> str | Path | Hardware:
    """The machine to plan for: where none is named, the one to compile for.

    Raises:
        InputError: The target is unknown, or its compiler is not installed.
    """
    compiled_for = target_hardware(refine)
    return compiled_for if compiled_for and hardware == "auto" else hardware
