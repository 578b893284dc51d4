"""The best mesh for a program: bounds first, then plans, the most promising mesh first.

Every mesh has a bound, which no plan on it can be below: first what its matrix products take, then
what the solver proves. The mesh with the lowest bound is planned next, for a share of the time;
meshes whose bound is no better than the best plan found are planned no further.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic

from autoshard.backends import backend_for
from autoshard.costing.costing import cost_model_for
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.errors import AutoshardError
from autoshard.graph.program import OpKind
from autoshard.mesh_search.floor import cuts_nothing, floor_seconds
from autoshard.mesh_search.shapes import axes_text, distinct_meshes
from autoshard.mesh_search.trial import MeshTrial, P, Problem, tell_trials
from autoshard.planning.planner import plan_further, plan_graph
from autoshard.planning.searches import Searches, SolveOptions
from autoshard.planning.simpler import simpler
from autoshard.planning.solution import NoPlanInTimeError, Solution
from autoshard.planning.stages import Stages
from autoshard.plans.searched_meshes import MeshSearch, TriedMesh
from autoshard.sharding import Mesh
from autoshard.wishes.mesh_parts import parts_for
from cost_models import Hardware
from solvers import Progress

_FIRST_SHARE = 0.5  # of the time left: for the first plans on all meshes that have none yet

_NAMES_A_MESH = (OpKind.CONSTRAINT, OpKind.ENTER_MANUAL, OpKind.LEAVE_MANUAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What a mesh is searched for, and how hard.

    Args:
        hardware: The machine.
        memory_limit: Bytes one device may hold, or None for no limit.
        solve: The time limit is that of the whole search, the gap that of its answer.
    """

    hardware: Hardware
    memory_limit: int | None
    solve: SolveOptions


@dataclass(frozen=True, slots=True, eq=False)
class Searched(Generic[P]):
    """The plan on the best mesh found.

    Where no mesh has room for a plan, it is the one of the least memory peak.
    """

    mesh: Mesh
    problem: P
    solution: Solution
    record: MeshSearch


def search_meshes(
    meshes: Sequence[Mesh],
    problem_on: Callable[[Mesh], P],
    options: SearchOptions,
    *,
    refused: Sequence[TriedMesh] = (),
    stages: Stages | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Searched[P]:
    """Plan a program on the mesh that suits it best.

    A program that names no mesh axis is read once and stands for all meshes, which a second reading
    confirms; of meshes whose links are alike one is then planned. The answer is the cheapest plan
    found, on the mesh with the fewest axes where several cost the same. When time is up, the best
    plan so far is the answer.

    Args:
        meshes: To choose from, all of as many devices; on a draw the first one wins.
        problem_on: Reads the program on a mesh.
        options: What to search for.
        refused: Meshes already found impossible, for the record.
        stages: Where to count the time.
        progress: Told of every solve.

    Raises:
        AutoshardError: The program cannot be planned on any of the meshes; says why on one.
    """
    search: _Search[P] = _Search(options, stages or Stages(), progress)
    search.open(meshes, problem_on)
    found = search.run(refused)
    if search.shared is None:
        return found
    others = [mesh for mesh in (found.mesh, *meshes) if mesh != search.read_on]
    problem = _read_alike(search.shared, problem_on, others[0]) if others else search.shared
    if problem is not None:
        return found if found.mesh == search.read_on else replace(found, problem=problem)
    again: _Search[P] = _Search(options, search.stages, progress, search.began)
    again.open(meshes, problem_on, is_shared=False)
    return again.run(refused)


def _read_alike(shared: P, problem_on: Callable[[Mesh], P], mesh: Mesh) -> P | None:
    """A program on another mesh; None where it is another program there.

    So it is where it asks what mesh it is traced under.
    """
    try:
        problem = problem_on(mesh)
    except AutoshardError:
        return None
    return problem if problem.graph == shared.graph else None


@dataclass(slots=True, eq=False)
class _Search(Generic[P]):
    options: SearchOptions
    stages: Stages
    progress: Callable[[Progress], None] | None
    began: float = 0.0  # once the program could be read
    shared: P | None = None
    read_on: Mesh | None = None
    candidates: list[MeshTrial[P]] = field(default_factory=list)
    alike: tuple[TriedMesh, ...] = ()
    late: NoPlanInTimeError | None = None

    # -- what there is to search ----------------------------------------------------------------

    def open(
        self,
        meshes: Sequence[Mesh],
        problem_on: Callable[[Mesh], P],
        *,
        is_shared: bool = True,
    ) -> None:
        """Read the program on the first mesh that takes it, and on all where it names a mesh."""
        self.candidates = [MeshTrial(m, place, problem_on) for place, m in enumerate(meshes)]
        first = self._first_readable()
        assert first.problem is not None
        self.began = self.began or time.monotonic()
        if not is_shared or _names_a_mesh(first.problem):
            return
        self.shared, self.read_on = first.problem, first.mesh
        with self.stages.time("mesh search"):
            distinct, self.alike = distinct_meshes(meshes, self.options.hardware)
            self.candidates = [one for one in self.candidates if one.mesh in distinct]
            for one in self.candidates:
                one.problem, one.error = self.shared, None
                self._set_floor(one, self.shared)
            if not any(one.is_of_use for one in self.candidates):
                self.candidates[0].is_of_use = True

    def _first_readable(self) -> MeshTrial[P]:
        """The first mesh on which the program can be read.

        Raises:
            AutoshardError: There is none, or two say the same of what is wrong.
        """
        errors: list[AutoshardError] = []
        for one in self.candidates:
            self._read(one)
            if one.error is None:
                return one
            if errors and str(errors[-1]) == str(one.error):
                raise one.error
            errors.append(one.error)
        raise errors[-1]  # of the mesh with the most axes

    def _read(self, one: MeshTrial[P]) -> None:
        if one.problem is not None or one.error is not None:
            return
        try:
            one.problem = one.problem_on(one.mesh)
        except AutoshardError as error:
            one.error = error

    def _set_floor(self, one: MeshTrial[P], problem: P) -> None:
        least = backend_for(self.options.hardware).layout.min_conv_batch
        parts = parts_for(problem.graph, one.mesh, problem.wishes, least)
        model = cost_model_for(self.options.hardware, parts)
        floor = floor_seconds(problem.graph, parts, model) * PICOSECONDS
        one.bound = max(0, int(floor) - len(problem.graph.ops))  # costs are rounded, op by op
        one.is_of_use = not cuts_nothing(problem.graph, parts)

    # -- the search -----------------------------------------------------------------------------

    def run(self, refused: Sequence[TriedMesh]) -> Searched[P]:
        while (one := self._next()) is not None:
            if self.has_tried and (self.stages.is_over or self._seconds_left() <= 0):
                break
            try:
                self._advance(one)
            except KeyboardInterrupt:
                if self.best is None:
                    raise
                self.stages.is_interrupted = True
        chosen = self.best or self._least_peak()
        assert chosen.solution is not None
        assert chosen.problem is not None
        tried = tell_trials(
            self.candidates, chosen, self.options.solve.relative_gap, self.options.memory_limit
        )
        searches = Searches(
            replace(self.options.solve, time_limit_seconds=self._seconds_left()),
            self.stages,
            self._teller(chosen.mesh),
        )
        solution = simpler(chosen.solution, searches, self.options.solve.simplicity)
        bounds = [one.bound for one in self.candidates if one.can_have_plans]
        record = MeshSearch(
            num_devices=chosen.mesh.num_devices,
            bound_seconds=min(bounds, default=0) / PICOSECONDS,
            tried=(*tried, *self.alike, *refused),
        )
        return Searched(chosen.mesh, chosen.problem, solution, record)

    @property
    def best(self) -> MeshTrial[P] | None:
        planned = [one for one in self.candidates if one.cost is not None]
        return min(planned, key=lambda one: one.rank, default=None)

    @property
    def has_tried(self) -> bool:
        return any(one.num_tries for one in self.candidates)

    def _is_beaten(self, one: MeshTrial[P]) -> bool:
        best = self.best
        return best is not None and one.is_beaten_by(best, self.options.solve.relative_gap)

    def _next(self) -> MeshTrial[P] | None:
        left = [one for one in self.candidates if not one.is_settled and not self._is_beaten(one)]
        return min(left, key=lambda one: one.promise, default=None)

    def _advance(self, one: MeshTrial[P]) -> None:
        """Plan on a mesh, or plan further."""
        try:
            if one.problem is None:
                one.problem = one.problem_on(one.mesh)
                self._set_floor(one, one.problem)
                one.is_of_use = True  # what is asked of the program says more
                if self._is_beaten(one):
                    return
            share = replace(self.options.solve, time_limit_seconds=self._share(one))
            one.num_tries += 1
            solution = self._planned(one, one.problem, share)
        except NoPlanInTimeError as error:
            self.late = error
        except AutoshardError as error:
            one.error = error
        else:
            self._keep(one, solution)

    def _share(self, one: MeshTrial[P]) -> float:
        """Seconds for the next solve: at first of one half of the time left, then of all."""
        left = [o for o in self.candidates if not o.is_settled and not self._is_beaten(o)]
        new = [other for other in left if other.num_tries == 0]
        if one.num_tries or len(left) < 2:
            return self._seconds_left() / max(1, len(left))
        return self._seconds_left() * _FIRST_SHARE / len(new)

    def _planned(self, one: MeshTrial[P], problem: P, solve: SolveOptions) -> Solution:
        tell = self._teller(one.mesh)
        if one.solution is not None:
            return plan_further(one.solution, solve, stages=self.stages, progress=tell)
        return plan_graph(
            problem.graph,
            one.mesh,
            self.options.hardware,
            problem.wishes,
            self.options.memory_limit,
            replace(solve, simplicity=0.0),
            streamable=problem.streamable,
            stages=self.stages,
            progress=tell,
        )

    def _teller(self, mesh: Mesh) -> Callable[[Progress], None] | None:
        tell = self.progress
        if tell is None:
            return None
        name = axes_text(mesh)
        return lambda progress: tell(replace(progress, stage=f"{name}: {progress.stage}"))

    def _keep(self, one: MeshTrial[P], solution: Solution) -> None:
        """Note what was found, and forget what no longer matters."""
        result = solution.result
        one.solution, one.status = solution, result.status
        one.cost = solution.cost if solution.is_feasible else None
        one.bound = max(one.bound, min(result.lower_bound, one.cost or result.lower_bound))
        one.peak = solution.peak_bytes
        best = self.best
        for other in self.candidates:
            is_done = other.is_settled or self._is_beaten(other)
            if best is not None and other is not best and is_done:
                other.solution = None

    def _least_peak(self) -> MeshTrial[P]:
        """Where no plan fits on any mesh, the one that comes nearest.

        Raises:
            AutoshardError: None could be planned at all.
        """
        planned = [one for one in self.candidates if one.solution is not None]
        if planned:
            return min(planned, key=lambda one: (one.peak or 0, one.place))
        if self.late is not None:
            raise self.late
        raise next(one.error for one in reversed(self.candidates) if one.error is not None)

    def _seconds_left(self) -> float:
        spent = time.monotonic() - self.began
        return max(0.0, self.options.solve.time_limit_seconds - spent)


def _names_a_mesh(problem: Problem) -> bool:
    """Whether a program, or what was asked of it, names axes or was written for one mesh."""
    asked = any(
        sharding.inlined_mesh is not None or any(True for _ in sharding.axis_refs())
        for sharding in problem.wishes.shardings()
    )
    return asked or any(
        op.kind in _NAMES_A_MESH or op.collective is not None for op in problem.graph.ops
    )
