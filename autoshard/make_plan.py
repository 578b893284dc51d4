"""From a program that can be traced to its plan: made now, or read from a cache."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import jax

from autoshard.accumulation.choice import Microbatches
from autoshard.accumulation_search import AccumulationSearch, BatchOfProgram
from autoshard.build_plan import Solved, plan_data
from autoshard.collectives import HardwarePrices
from autoshard.encoding.corrections import NO_CORRECTIONS
from autoshard.frontend.trace import Traced
from autoshard.graph_reading import GraphReading
from autoshard.offload.choice import StreamedUpdate
from autoshard.plan import Plan
from autoshard.plan_cache.entries import PlanCache
from autoshard.plan_cache.key import plan_key
from autoshard.plan_cache.lookup import Lookup
from autoshard.planning.stages import collecting
from autoshard.planning.traced_program import TracedProgram
from autoshard.planning.warm_start import WarmStart
from autoshard.plans.plan import PlanData
from autoshard.program_search import ProgramSearch
from autoshard.rewriting import AS_WRITTEN, Rewriting
from autoshard.setting import REMAT_AUTO, REMAT_KEEP, Setting
from autoshard.sharding import Mesh
from solvers import Progress

Residuals: TypeAlias = tuple[str, ...] | None
"""Names of what is kept for backward passes; None for the program as it is written."""

_WAIT_SECONDS, _WAIT_LIMITS = 600.0, 3.0
"""Seconds, and time limits of planning, that a process waits for the plan of process 0; trace and
costs of the largest programs, which no limit cuts short, take minutes."""


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

    def on(
        self,
        mesh: Mesh,
        setting: Setting,
        residuals: Residuals = None,
        updates: tuple[StreamedUpdate, ...] = (),
    ) -> TracedProgram:
        """The graph of the program on a mesh, keeping these residuals, these states on the host."""
        traced = self.traced_on(mesh, Rewriting(self.microbatches, residuals, updates))
        return _rewritten(self.reading.of(traced, mesh, setting), residuals, updates)


def _rewritten(
    read: TracedProgram, residuals: Residuals, updates: tuple[StreamedUpdate, ...]
) -> TracedProgram:
    """A program that was read as rewritten, its states in host memory."""
    first = read.graph.num_captured
    hosted = tuple(sorted(first + place for one in updates for place in one.arguments))
    graph = replace(read.graph, hosted=hosted)
    return replace(read, graph=graph, residuals=residuals, updates=updates)


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
        return ProgramSearch(partial(over.on, setting=ours), ours, progress, start, terms).run()

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
    rewriting = data.rewriting
    single = replace(setting, choice=setting.choice.only(data.mesh), remat=REMAT_KEEP)
    traced, reading = program.traced_on(data.mesh, data.rewriting), program.reading

    def program_on(ours: Mesh) -> TracedProgram:  # holds no arrays, as the whole program does
        read = reading.of(traced, ours, single)
        return _rewritten(read, rewriting.residuals, rewriting.updates)

    @functools.cache
    def solve_again() -> Solved:
        solved = ProgramSearch(program_on, single, progress, WarmStart.of(data)).run()
        return replace(
            solved,
            residuals=data.residuals,
            offloaded=data.offloaded,
            accumulation=data.accumulation,
        )

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
