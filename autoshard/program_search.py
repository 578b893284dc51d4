"""The search for the plan of a program: shardings, residuals, and states in host memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.apply.propagation.by_layer import PropagationByLayer
from autoshard.build_plan import Solved
from autoshard.constraints import Offload, ResidualTerm
from autoshard.encoding.corrections import NO_CORRECTIONS
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Encoded
from autoshard.errors import InputError
from autoshard.frontend.key_arrays import with_word_dims
from autoshard.lowering.live_buffers import host_bytes
from autoshard.mesh_search.search import SearchOptions, search_meshes
from autoshard.offload.asked import AskedState, asked_states
from autoshard.offload.choice import OffloadedStates, StreamedUpdate
from autoshard.offload_candidates import StateCandidates, notes_on_asked
from autoshard.offload_search import PlannedStates, StateSearch
from autoshard.planning.hand_prices import HandPrices, price_hand_plans, with_floor
from autoshard.planning.planner import (
    encode_scarce,
    plan_further,
    plan_graph,
    simplified,
    with_least_peak,
)
from autoshard.planning.searches import LONG, SHORT, Searches
from autoshard.planning.solution import NoPlanInTimeError, Solution, TooLargeError
from autoshard.planning.spread_layouts import Propagate
from autoshard.planning.stack_traffic import stack_seconds
from autoshard.planning.traced_program import TracedProgram
from autoshard.planning.warm_start import WarmStart
from autoshard.plans.searched_meshes import MeshSearch
from autoshard.remat.choice import ResidualChoice
from autoshard.remat.joint_program import JointProgram
from autoshard.remat_search import JOINT_GAP, PlannedResiduals, RematSearch
from autoshard.setting import REMAT_AUTO, REMAT_OFF, Setting
from autoshard.sharding import Mesh, Sharding
from solvers import Progress, Status

_AMPLE = 0.5
"""Of the memory limit: a plan that holds less is not slowed by it. A choice: it saves a search."""
_LEAST_SECONDS = 8.0
"""A search for a faster plan with other residuals may take, however soon there was one."""


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What is known so far.

    Args:
        program: The program as it would run.
        solution: Its plan; None where none was found, or it was not looked for.
        least_bytes: The least peak found, or a bound on it above the budget.
        residuals: What it keeps for backward passes, where that was decided.
        offloaded: Its states in host memory.
        meshes: What came of those to choose from.
        late: There was no time for a plan.
        notes: On how the program was chosen.
    """

    program: TracedProgram
    solution: Solution | None = None
    least_bytes: int | None = None
    residuals: ResidualChoice | None = None
    offloaded: OffloadedStates | None = None
    meshes: MeshSearch | None = None
    late: NoPlanInTimeError | None = None
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.solution is not None and self.solution.is_feasible


@dataclass(frozen=True, slots=True, eq=False)
class ProgramSearch:
    """The search for the plan of a program, on the mesh given or the best of those to choose from.

    Args:
        read: The program on a mesh; with `residuals=` and `updates=` as rewritten.
        setting: What is asked.
        progress: Told of every plan found.
        start: A plan to start from.
        terms: What users ask of residuals.
    """

    read: Callable[..., TracedProgram]
    setting: Setting
    progress: Callable[[Progress], None] | None
    start: WarmStart | None = None
    terms: tuple[ResidualTerm, ...] = ()

    def run(self) -> Solved:
        """The fastest plan found that fits; the leanest where none does.

        The program is planned as it is written. Where that does not fit, or more memory or fewer
        residuals may make it faster, residuals of backward passes are chosen with the shardings;
        where it does not fit even so, states go to host memory.

        Raises:
            InputError: What is asked of residuals cannot be had.
            NoPlanInTimeError: There was no time for any plan.
        """
        found = self._on_best_mesh() if self.setting.choice.is_search else self._as_written()
        program = found.program
        states = asked_states(program.asked, program.traced, program.carried)
        of_states = {one.said for one in states.values()}
        terms = tuple(one for one in self.terms if str(one) not in of_states)
        self._refuse(terms, states)
        if self._may_rewrite and (terms or self._may_be_faster(found.solution)):
            found = self._with_residuals(found, terms)
        elif found.program.residuals is not None:
            everything = ResidualChoice.of_everything(found.program.residuals)
            found = replace(found, residuals=everything)
        if found.solution is None and found.late is None:  # the leanest plan as it is written
            least = self._planned(found.program, start=self.start)
            found = replace(found, solution=least, least_bytes=least.peak_bytes)
        if found.solution is None:
            assert found.late is not None
            raise found.late
        if states or (self._may_rewrite and not found.fits):
            found = self._with_states_on_host(found, states)
        found = replace(found, solution=self._at_last(found))
        assert found.solution is not None
        propagation = _propagation(found.program)
        solution, by_hand = _beside_plans_by_hand(
            found.program, found.solution, self.setting, propagation
        )
        return Solved(
            self.setting,
            found.program,
            solution,
            by_hand,
            found.meshes,
            propagation,
            found.residuals,
            found.offloaded,
            notes=found.notes,
        )

    @property
    def _may_rewrite(self) -> bool:
        """True where the program may keep and hold otherwise what does not fit."""
        is_limited = self.setting.budget is not None or bool(self.terms)
        return self.setting.remat == REMAT_AUTO and is_limited

    def _refuse(self, terms: Sequence[ResidualTerm], states: Mapping[int, AskedState]) -> None:
        """Refuses what is asked of residuals where none can be chosen, or there is no host memory.

        Args:
            terms: On residuals.
            states: By flat argument, why it is to lie in host memory.

        Raises:
            InputError: It is.
        """
        remat, machine = self.setting.remat, self.setting.machine
        if terms and remat != REMAT_AUTO:
            raise InputError(
                f"residuals are asked for, and remat={remat!r} leaves none to choose",
                where=str(terms[0]),
                fix='leave remat="auto"',
            )
        offloads = [
            *(str(term) for term in terms if isinstance(term, Offload)),
            *(one.said for one in states.values() if one.demand is not None),
        ]
        if offloads and machine.host is None:
            raise InputError(
                f"{machine.name} is described without host memory, which is asked for",
                where=offloads[0],
                fix="describe it in a hardware file: host, with capacity_bytes and"
                " bytes_per_second",
            )

    def _program_on(self, mesh: Mesh) -> TracedProgram:
        """The program as it is written, or computing nothing again, where that is asked."""
        written = self.read(mesh)
        if self.setting.remat != REMAT_OFF:
            return written
        everything = JointProgram.of(written.traced.jaxpr).everything
        return self.read(mesh, residuals=everything) if everything else written

    def _on_best_mesh(self) -> _Found:
        setting = self.setting
        seconds = LONG * setting.stages.seconds_left
        found = search_meshes(
            setting.choice.meshes,
            self._program_on,
            SearchOptions(
                hardware=setting.machine,
                memory_limit=setting.budget,
                solve=replace(setting.options, time_limit_seconds=seconds),
            ),
            refused=setting.choice.refused,
            stages=setting.stages,
            progress=self.progress,
        )
        least_bytes = found.solution.peak_bytes
        return _Found(found.problem, found.solution, least_bytes, meshes=found.record)

    def _as_written(self) -> _Found:
        """On the one mesh; without a plan where memory is so scarce that others are looked for."""
        program = self._program_on(self.setting.choice.meshes[0])
        setting = self._first_setting if self._may_rewrite else self.setting
        try:
            solution = self._planned(program, setting, start=self.start, must_fit=self._may_rewrite)
        except TooLargeError as error:
            return _Found(program, least_bytes=error.least_bytes)
        except NoPlanInTimeError as error:
            if not self._may_rewrite:
                raise
            return _Found(program, late=error)
        return _Found(program, solution, solution.peak_bytes)

    @property
    def _first_setting(self) -> Setting:
        """For half of the searches of a program as it is written that may be rewritten.

        Most that do not fit are known not to by then, and what is rewritten takes the rest.
        """
        return _searching(self.setting, SHORT / 2 * self.setting.options.time_limit_seconds)

    def _at_last(self, found: _Found) -> Solution | None:
        """The plan after the searches that only the last one is worth.

        Where it does not fit, for what it takes at least. Where it is of the program as it is
        written, and not proven yet, the other half of its own.
        """
        solution, stages, progress = found.solution, self.setting.stages, self.progress
        if solution is None or stages.is_over:
            return solution
        if not found.fits:
            options = self.setting.options
            return with_least_peak(solution, options, stages=stages, progress=progress)
        is_rewritten = bool(found.program.residuals or found.program.updates)
        is_first_half = self._may_rewrite and found.meshes is None and not is_rewritten
        if not is_first_half or solution.result.status is not Status.FEASIBLE:
            return solution
        options = self._first_setting.options
        further = plan_further(solution, options, stages=stages, progress=progress)
        return simplified(further, options, stages=stages, progress=progress)

    def _may_be_faster(self, solution: Solution | None) -> bool:
        """True for a plan that does not fit, or is slowed by the memory that residuals take.

        It would be faster with more memory, or moves what it keeps longer than the joint problem's
        gap.
        """
        if solution is None or not solution.is_feasible:
            return True
        setting, problem, result = self.setting, solution.encoded.problem, solution.result
        searches = Searches(setting.options, setting.stages, self.progress)
        limit = problem.memory_limit
        if limit is None or (result.peak or 0) < _AMPLE * limit or searches.is_over:
            return False
        if stack_seconds(solution) > JOINT_GAP * solution.step_seconds:
            return True
        if solution.cost <= (1.0 + JOINT_GAP) * result.bound_without_limit:
            return False
        ample = replace(problem, memory_limit=None)
        found = searches.another(ample, solution.choices, relative_gap=JOINT_GAP)
        return found.cost is not None and solution.cost > (1.0 + JOINT_GAP) * found.cost

    def _with_residuals(self, found: _Found, terms: tuple[ResidualTerm, ...]) -> _Found:
        """The program with chosen residuals, if it is better with them, or they are asked for."""

        def search() -> PlannedResiduals | None:
            if self.setting.stages.is_over and not terms:
                return None
            taken = max(sum(self.setting.stages.seconds.values()), _LEAST_SECONDS)
            is_bonus = found.fits and not terms
            setting = _searching(self.setting, SHORT * taken) if is_bonus else self.setting
            search = self._remat_search(found.program.mesh, setting, terms)
            return search.run(found.program, found.least_bytes)

        chosen = self.setting.stages.settled(search)
        if chosen is None or not (terms or _is_better(chosen.solution, found)):
            return found
        return replace(
            found,
            program=chosen.program,
            solution=chosen.solution,
            least_bytes=chosen.solution.peak_bytes,
            residuals=chosen.choice,
        )

    def _remat_search(
        self, mesh: Mesh, setting: Setting, terms: tuple[ResidualTerm, ...]
    ) -> RematSearch:
        budget, options, progress = setting.budget, setting.options, self.progress
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
            lambda names: self.read(mesh, residuals=names),
            encode,
            lambda program: self._planned(program, as_found, is_scarce=True),
            lambda found: simplified(found, options, stages=setting.stages, progress=progress),
            Searches(options, setting.stages, progress),
            budget,
            terms,
        )

    def _with_states_on_host(self, found: _Found, asked: Mapping[int, AskedState]) -> _Found:
        """The program with states in host memory: those asked, and what it takes to fit."""
        if found.solution is None or found.program.updates:  # those of a kept plan are decided
            return found
        chosen, refused = self._states_there(found.program, found.solution, asked)
        notes = notes_on_asked(asked, refused, found.program.traced.in_names)
        found = replace(found, notes=notes)
        if chosen is None or not (asked or _is_better(chosen.solution, found)):
            return found
        return replace(
            found,
            program=chosen.program,
            solution=chosen.solution,
            offloaded=chosen.offloaded,
        )

    def _states_there(
        self, program: TracedProgram, least: Solution, asked: Mapping[int, AskedState]
    ) -> tuple[PlannedStates | None, Mapping[int, str]]:
        """The plan with states in host memory, and by argument why it stays on the device."""
        setting, host = self.setting, self.setting.machine.host
        if host is None:
            return None, dict.fromkeys(asked, f"{setting.machine.name} is described without any")

        def read(updates: tuple[StreamedUpdate, ...]) -> TracedProgram:
            return self.read(program.mesh, residuals=program.residuals, updates=updates)

        def plan(program: TracedProgram) -> Solution:
            return self._planned(program, is_scarce=True)

        room = host.capacity_bytes - host_bytes(least.encoder, least.decoded)
        found = StateCandidates.of(program, least, room)
        search = StateSearch(read, plan, setting.budget, host, asked)
        chosen = setting.stages.settled(lambda: search.run(program, least, found))
        if chosen is None:
            return None, {
                **dict.fromkeys(asked, "no plan was found with it there"),
                **found.refused,
            }
        return chosen, found.refused

    def _planned(
        self,
        program: TracedProgram,
        setting: Setting | None = None,
        *,
        start: WarmStart | None = None,
        is_scarce: bool = False,
        must_fit: bool = False,
    ) -> Solution:
        ours = setting or self.setting
        options = ours.options
        if program.residuals is not None or program.updates:  # costs were learnt of another one
            options = replace(options, corrections=NO_CORRECTIONS)
        return plan_graph(
            program.graph,
            program.mesh,
            ours.machine,
            program.wishes,
            ours.budget,
            options,
            propagate=_propagate(program, _propagation(program)),
            start=start,
            streamable=program.streamable,
            stages=ours.stages,
            progress=self.progress,
            is_scarce=is_scarce,
            must_fit=must_fit,
        )


def _searching(setting: Setting, seconds: float) -> Setting:
    """The same, with no more seconds for the first search, nor for all that follow it."""
    least = min(seconds, setting.options.time_limit_seconds)
    return replace(setting, options=replace(setting.options, time_limit_seconds=least))


def _is_better(solution: Solution, found: _Found) -> bool:
    """True for a plan of a rewritten program that is faster, or leaner where neither fits."""
    if found.solution is not None and found.fits:
        return solution.is_feasible and solution.step_seconds < found.solution.step_seconds
    least_bytes = found.least_bytes
    return least_bytes is None or solution.is_feasible or solution.peak_bytes < least_bytes


def _beside_plans_by_hand(
    program: TracedProgram, solution: Solution, setting: Setting, propagation: PropagationByLayer
) -> tuple[Solution, HandPrices]:
    """The plan, or one written by hand that is faster, and all of those, where they are asked."""
    if not (setting.baselines and solution.is_feasible):
        return solution, HandPrices({})
    traced, options, stages = program.traced, setting.options, setting.stages
    pairs = zip(traced.annotated, traced.in_avals, strict=False)  # arguments of a module carry none
    own = [None if given is None else with_word_dims(given, aval) for given, aval in pairs]
    annotated = (*(None,) * program.graph.num_captured, *own)

    def priced() -> HandPrices:
        return price_hand_plans(
            solution, _propagate(program, propagation), options, annotated, stages
        )

    with stages.time("baselines"):
        prices = stages.settled(priced)
        return with_floor(solution, prices, setting.budget, options.relative_gap), prices


def _propagation(program: TracedProgram) -> PropagationByLayer:
    return PropagationByLayer(program.traced, program.mesh, program.graph.value_by_path)


def _propagate(program: TracedProgram, propagation: PropagationByLayer) -> Propagate:
    """Shardings of all values from those of arguments, captured arrays first, and results."""
    first = program.graph.num_captured

    def propagate(
        inputs: Sequence[Sharding | None], outputs: Sequence[Sharding | None]
    ) -> Mapping[str, Sharding]:
        return propagation.propagate(inputs[first:], outputs)

    return propagate
