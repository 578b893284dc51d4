"""From a program that can be traced to its plan: made now, or read from a cache."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import jax

from autoshard.accumulation.choice import Microbatches
from autoshard.accumulation_search import AccumulationSearch, BatchOfProgram
from autoshard.apply.propagation.by_layer import PropagationByLayer
from autoshard.build_plan import Solved, plan_data
from autoshard.collectives import HardwarePrices
from autoshard.constraints import Offload, ResidualTerm
from autoshard.encoding.corrections import NO_CORRECTIONS
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Encoded
from autoshard.errors import InputError
from autoshard.frontend.key_arrays import with_word_dims
from autoshard.frontend.trace import Traced
from autoshard.graph_reading import GraphReading
from autoshard.mesh_search.search import SearchOptions, search_meshes
from autoshard.plan import Plan
from autoshard.plan_cache.entries import PlanCache
from autoshard.plan_cache.key import plan_key
from autoshard.plan_cache.lookup import Lookup
from autoshard.planning.hand_plans import HandPrices, Propagate, price_hand_plans, with_floor
from autoshard.planning.planner import encode_scarce, plan_graph, simplified
from autoshard.planning.searches import LONG, SHORT, Searches
from autoshard.planning.solution import NoPlanInTimeError, Solution, TooLargeError
from autoshard.planning.stages import collecting
from autoshard.planning.traced_program import TracedProgram
from autoshard.planning.warm_start import WarmStart
from autoshard.plans.plan import MeshSearch, PlanData
from autoshard.remat.choice import ResidualChoice
from autoshard.remat.joint_program import JointProgram
from autoshard.remat_search import JOINT_GAP, PlannedResiduals, RematSearch
from autoshard.rewriting import AS_WRITTEN, Rewriting
from autoshard.setting import REMAT_AUTO, REMAT_KEEP, REMAT_OFF, Setting
from autoshard.sharding import Mesh, Sharding
from solvers import Progress

Residuals: TypeAlias = tuple[str, ...] | None
"""Names of what is kept for backward passes; None for the program as it is written."""

_WAIT_SECONDS, _WAIT_LIMITS = 600.0, 3.0
"""Seconds, and time limits of planning, that a process waits for the plan of process 0; trace and
costs of the largest programs, which no limit cuts short, take minutes."""


_AMPLE = 0.5
"""Of the memory limit: a plan that holds less is not slowed by it. A choice: it saves a search."""
_LEAST_SECONDS = 8.0
"""A search for a faster plan with other residuals may take, however soon there was one."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannableProgram:
    """What is planned, on any mesh.

    Args:
        name: Of the function or the file.
        traced_on: Traces or reads it once for each mesh and rewriting.
        reading: How it becomes a graph.
        finished: Adds to the record of a plan what callers said.
        said: What else the plan follows from, as plain values.
        microbatches: That it runs over.
    """

    name: str
    traced_on: Callable[[Mesh, Rewriting], Traced]
    reading: GraphReading
    finished: Callable[[PlanData], PlanData]
    said: Any
    microbatches: Microbatches | None = None

    def on(self, mesh: Mesh, setting: Setting, residuals: Residuals = None) -> TracedProgram:
        """The graph of the program on a mesh, keeping these residuals."""
        rewriting = Rewriting(self.microbatches, residuals)
        read = self.reading.of(self.traced_on(mesh, rewriting), mesh, setting)
        return replace(read, residuals=residuals)


def make_plan(
    program: PlannableProgram,
    setting: Setting,
    folder: Path | None,
    progress: Callable[[Progress], None] | None,
    start: WarmStart | None = None,
) -> Plan:
    """The plan that a cache holds, or one that is made now, and kept where there is a cache.

    Raises:
        InputError: The cache cannot be written to.
        PlanError: Process 0 kept no plan that this one could read.
    """
    with collecting(never=False):
        if folder is None:
            return _made(program, setting, progress, start)
        return _kept(program, setting, folder, progress, start)


def _kept(
    program: PlannableProgram,
    setting: Setting,
    folder: Path,
    progress: Callable[[Progress], None] | None,
    start: WarmStart | None,
) -> Plan:
    """The plan that a cache holds, or one that is made now and kept."""
    first = setting.choice.meshes[0]
    asked = (program.name, program.said, program.traced_on(first, AS_WRITTEN).asked)
    said = program.reading.asked(first, setting)
    key = plan_key({"program": asked, "reading": said, "start": start, **setting.asked})
    lookup = Lookup.of(PlanCache(folder), program.name, key)
    is_follower = jax.distributed.is_initialized() and jax.process_index() > 0
    if not is_follower:
        lookup.cache.require_writable()
    with setting.stages.time("plan cache"):
        seconds = _WAIT_SECONDS + _WAIT_LIMITS * setting.options.time_limit_seconds
        data = lookup.waited_for(seconds) if is_follower else lookup.found()
    # Of meshes to search, the program on the first one was looked up.
    if data is not None:
        written = program.traced_on(data.mesh, AS_WRITTEN)
        if written.fingerprint == data.program.fingerprint:
            return _plan_from_cache(data, program, setting, progress)
    plan = _made(program, setting, progress, start)
    if plan.data.is_feasible and not setting.stages.is_interrupted:
        _ = plan.constraints  # a search of its own, which is kept too
    if setting.stages.is_interrupted:
        return plan
    notes = [*lookup.notes, *filter(None, [lookup.keep(plan.data)])]
    return replace(plan, data=replace(plan.data, notes=(*plan.data.notes, *notes)))


def _made(
    program: PlannableProgram,
    setting: Setting,
    progress: Callable[[Progress], None] | None,
    start: WarmStart | None,
) -> Plan:
    solved = _with_microbatches(program, setting, progress, start)
    data = setting.stages.settled(lambda: plan_data(program.name, solved))
    return _plan(program.finished(data), solved)


def _with_microbatches(
    program: PlannableProgram,
    setting: Setting,
    progress: Callable[[Progress], None] | None,
    start: WarmStart | None,
) -> Solved:
    """The program planned over the microbatches that are asked for, or over the best number."""
    terms = program.reading.residual_terms(setting.choice.meshes[0], setting)

    def solve(parts: Microbatches | None, may_rematerialise: bool) -> Solved:
        ours = setting
        if parts is not None:  # what was learnt is of the program as it is written
            uncorrected = replace(setting.options, corrections=NO_CORRECTIONS)
            ours = replace(ours, options=uncorrected)
        if not (may_rematerialise or terms) and ours.remat == REMAT_AUTO:
            ours = replace(ours, remat=REMAT_KEEP)
        over = replace(program, microbatches=parts)
        return _solve(partial(over.on, setting=ours), ours, progress, start, terms)

    count = setting.accumulate
    if count == 1:
        return solve(None, True)
    batch = BatchOfProgram.of(program.on(setting.choice.meshes[0], setting))
    search = AccumulationSearch(solve, batch, setting.stages)
    return search.given(count) if isinstance(count, int) else search.auto()


def _plan_from_cache(
    data: PlanData,
    program: PlannableProgram,
    setting: Setting,
    progress: Callable[[Progress], None] | None,
) -> Plan:
    """A kept plan; its problem is solved again where only that can answer."""
    kept = data.kept_residuals
    single = replace(setting, choice=setting.choice.only(data.mesh), remat=REMAT_KEEP)
    traced, reading = program.traced_on(data.mesh, data.rewriting), program.reading

    def program_on(ours: Mesh) -> TracedProgram:  # holds no arrays, as the whole program does
        return replace(reading.of(traced, ours, single), residuals=kept)

    @functools.cache
    def solve_again() -> Solved:
        solved = _solve(program_on, single, progress, WarmStart.of(data))
        return replace(solved, residuals=data.residuals, accumulation=data.accumulation)

    seconds = sum(data.stage_seconds.values())
    note = f"kept plan, made in {seconds:.1f} s and not made again; cache=False makes it anew"
    stages = dict(setting.stages.seconds)
    return Plan(
        replace(data, notes=(*data.notes, note), stage_seconds=stages),
        None,
        traced,
        setting.choice.readings[data.mesh][2],
        price=lambda changes: solve_again().price(changes),
        prices=HardwarePrices.of(setting.machine, data.mesh),
        solve_again=solve_again,
    )


def _solve(
    program_on: Callable[..., TracedProgram],
    setting: Setting,
    progress: Callable[[Progress], None] | None,
    start: WarmStart | None,
    terms: tuple[ResidualTerm, ...] = (),
) -> Solved:
    """Plan a program on the mesh given, or on the best of those to choose from."""
    search: MeshSearch | None = None
    residuals: ResidualChoice | None = None
    solution: Solution | None = None
    late: NoPlanInTimeError | None = None
    least_bytes: int | None = None
    may_choose = setting.remat == REMAT_AUTO and (setting.budget is not None or bool(terms))
    _refuse_terms(terms, setting)
    if setting.remat == REMAT_OFF:
        program_on = partial(_keeping_everything, program_on)
    if setting.choice.is_search:
        seconds = LONG * setting.stages.seconds_left
        found = search_meshes(
            setting.choice.meshes,
            program_on,
            SearchOptions(
                hardware=setting.machine,
                memory_limit=setting.budget,
                solve=replace(setting.options, time_limit_seconds=seconds),
            ),
            refused=setting.choice.refused,
            stages=setting.stages,
            progress=progress,
        )
        program, solution, search = found.problem, found.solution, found.record
    else:
        program = program_on(setting.choice.meshes[0])
        try:
            seconds = SHORT * setting.options.time_limit_seconds  # the others take the rest
            first = _searching(setting, seconds) if may_choose else setting
            solution = _planned(program, first, progress, start, must_fit=may_choose)
        except TooLargeError as error:
            least_bytes = error.least_bytes
        except NoPlanInTimeError as error:
            if not may_choose:
                raise
            late = error
    if solution is not None:
        least_bytes = solution.peak_bytes
    if may_choose and (terms or _is_slowed_by_memory(solution, setting, progress)):

        def chosen_residuals() -> PlannedResiduals | None:
            if setting.stages.is_over and not terms:
                return None
            fits = solution is not None and solution.is_feasible
            taken = max(sum(setting.stages.seconds.values()), _LEAST_SECONDS)
            ours = _searching(setting, SHORT * taken) if fits and not terms else setting
            search = _search_residuals(program_on, program.mesh, ours, progress, terms)
            return search.run(program, least_bytes)

        chosen = setting.stages.settled(chosen_residuals)
        if chosen is not None and (terms or _is_better(chosen.solution, solution, least_bytes)):
            program, solution, residuals = chosen.program, chosen.solution, chosen.choice
    elif program.residuals is not None:
        residuals = ResidualChoice.of_everything(program.residuals)
    if solution is None and late is None:  # the leanest plan of the program as it is written
        solution = _planned(program, setting, progress, start)
    if solution is None:
        assert late is not None
        raise late
    solution, by_hand = _beside_plans_by_hand(program, solution, setting)
    return Solved(setting, program, solution, by_hand, search, residuals)


def _searching(setting: Setting, seconds: float) -> Setting:
    """The same, with no more seconds for the first search, nor for all that follow it."""
    least = min(seconds, setting.options.time_limit_seconds)
    return replace(setting, options=replace(setting.options, time_limit_seconds=least))


def _is_slowed_by_memory(
    solution: Solution | None, setting: Setting, progress: Callable[[Progress], None] | None
) -> bool:
    """True for a plan that does not fit, or would be faster with more memory."""
    if solution is None or not solution.is_feasible:
        return True
    problem, result = solution.encoded.problem, solution.result
    limit, searches = problem.memory_limit, Searches(setting.options, setting.stages, progress)
    has_room = limit is None or (result.peak or 0) < _AMPLE * limit
    if has_room or searches.is_over:
        return False
    ample = replace(problem, memory_limit=None)
    found = searches.another(ample, solution.choices, relative_gap=JOINT_GAP)
    return found.cost is not None and solution.cost > (1.0 + JOINT_GAP) * found.cost


def _is_better(chosen: Solution, as_written: Solution | None, least_bytes: int | None) -> bool:
    """True for a plan with chosen residuals that is faster, or leaner where neither fits."""
    if as_written is not None and as_written.is_feasible:
        return chosen.is_feasible and chosen.cost < as_written.cost
    return least_bytes is None or chosen.is_feasible or chosen.peak_bytes < least_bytes


def _refuse_terms(terms: tuple[ResidualTerm, ...], setting: Setting) -> None:
    """Refuses what is asked of residuals where none can be chosen, or there is no host memory.

    Raises:
        InputError: It is.
    """
    if terms and setting.remat != REMAT_AUTO:
        raise InputError(
            f"residuals are asked for, and remat={setting.remat!r} leaves none to choose",
            where=str(terms[0]),
            fix='leave remat="auto"',
        )
    offloads = [term for term in terms if isinstance(term, Offload)]
    if offloads and setting.machine.host is None:
        raise InputError(
            f"{setting.machine.name} has no host memory that residuals could be offloaded to",
            where=str(offloads[0]),
            fix="describe it in a hardware file: host, with capacity_bytes and bytes_per_second",
        )


def _search_residuals(
    program_on: Callable[..., TracedProgram],
    mesh: Mesh,
    setting: Setting,
    progress: Callable[[Progress], None] | None,
    terms: tuple[ResidualTerm, ...],
) -> RematSearch:
    budget, options = setting.budget, setting.options
    as_found = replace(setting, options=replace(options, simplicity=0.0))

    def encode(program: TracedProgram) -> tuple[Encoder, Encoded]:
        return encode_scarce(
            program.graph,
            program.mesh,
            setting.machine,
            program.wishes,
            budget,
            setting.options,
            streamable=program.streamable,
            stages=setting.stages,
        )

    return RematSearch(
        lambda names: program_on(mesh, residuals=names),
        encode,
        lambda program: _planned(program, as_found, progress, is_scarce=True),
        lambda solution: simplified(solution, options, stages=setting.stages, progress=progress),
        Searches(options, setting.stages, progress),
        budget,
        terms,
    )


def _keeping_everything(program_on: Callable[..., TracedProgram], mesh: Mesh) -> TracedProgram:
    """The program on a mesh, computing nothing again."""
    written = program_on(mesh)
    everything = JointProgram.of(written.traced.jaxpr).everything
    return program_on(mesh, residuals=everything) if everything else written


def _planned(
    program: TracedProgram,
    setting: Setting,
    progress: Callable[[Progress], None] | None,
    start: WarmStart | None = None,
    *,
    is_scarce: bool = False,
    must_fit: bool = False,
) -> Solution:
    options = setting.options
    if program.residuals is not None:  # what was learnt is of the program as it is written
        options = replace(options, corrections=NO_CORRECTIONS)
    return plan_graph(
        program.graph,
        program.mesh,
        setting.machine,
        program.wishes,
        setting.budget,
        options,
        propagate=_propagate(program),
        start=start,
        streamable=program.streamable,
        stages=setting.stages,
        progress=progress,
        is_scarce=is_scarce,
        must_fit=must_fit,
    )


def _beside_plans_by_hand(
    program: TracedProgram, solution: Solution, setting: Setting
) -> tuple[Solution, HandPrices]:
    """The plan, or one written by hand that is faster, and all of those, where they are asked."""
    if not (setting.baselines and solution.is_feasible):
        return solution, HandPrices({})
    traced, options, stages = program.traced, setting.options, setting.stages
    pairs = zip(traced.annotated, traced.in_avals, strict=False)  # arguments of a module carry none
    own = [None if given is None else with_word_dims(given, aval) for given, aval in pairs]
    annotated = (*(None,) * program.graph.num_captured, *own)

    def priced() -> HandPrices:
        return price_hand_plans(solution, _propagate(program), options, annotated, stages)

    with stages.time("baselines"):
        prices = stages.settled(priced)
        return with_floor(solution, prices, setting.budget, options.relative_gap), prices


def _propagate(program: TracedProgram) -> Propagate:
    """Shardings of all values from those of arguments, captured arrays first, and results."""
    first, paths = program.graph.num_captured, program.graph.value_by_path
    propagation = PropagationByLayer(program.traced, program.mesh, paths)

    def propagate(
        inputs: Sequence[Sharding | None], outputs: Sequence[Sharding | None]
    ) -> Mapping[str, Sharding]:
        return propagation.propagate(inputs[first:], outputs)

    return propagate


def _plan(data: PlanData, solved: Solved) -> Plan:
    """A plan of a program without a function."""
    setting, program = solved.setting, solved.program
    return Plan(
        data,
        None,
        program.traced,
        setting.choice.readings[program.mesh][2],
        price=solved.price,
        prices=HardwarePrices.of(setting.machine, program.mesh),
        solved=solved,
    )
