"""The plans that are compiled: those optimized, those by hand, those that the user passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoshard.apply.found_constraints import with_constraints
from autoshard.apply.propagation.propagator import propagator_for
from autoshard.build_plan import Solved, plan_data
from autoshard.errors import InputError, ShardingError
from autoshard.frontend.device_orders import DeviceOrder
from autoshard.frontend.user_shardings import read_shardings
from autoshard.layouts import Layout
from autoshard.planning.hand_prices import price_hand_plans, solution_with
from autoshard.planning.pricing import seconds_with
from autoshard.planning.solution import Solution
from autoshard.planning.spread_layouts import Propagate
from autoshard.plans.plan import PlanData
from autoshard.sharding import Sharding, format_mesh

_USABLE = "feasible"


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """A plan that may be compiled.

    Args:
        name: `optimized`, `fsdp as written`, `candidate 1`.
        data: Its record, with constraints.
        solution: In the planner's terms; None for a record that the user passes.
        solved: Of the plan, if it is chosen.
        why: Why it is compiled.
        predicted_seconds: Of one step, with the corrections it was planned with.
        plan_seconds: That it took to plan.
    """

    name: str
    data: PlanData
    solution: Solution | None
    solved: Solved | None
    why: str
    predicted_seconds: float
    plan_seconds: float = 0.0

    @property
    def shardings(self) -> tuple[object, ...]:
        """The same for contenders that are the same program."""
        data = self.data
        return (
            tuple(tensor.sharding for tensor in data.arguments),
            tuple(tensor.sharding for tensor in data.results),
            tuple(sorted((data.constraints or {}).items(), key=lambda item: item[0])),
            tuple(sorted(data.schedules)),
        )


@dataclass(slots=True, eq=False)
class Contenders:
    """Makes contenders of one program.

    Args:
        function: Its name.
        solved: The plan to refine.
        base: Its record: what only `optimize` knows is taken from it.
    """

    function: str
    solved: Solved
    base: PlanData
    _propagate: Propagate | None = field(default=None, init=False)
    _by_hand: list[tuple[str, Solution]] | None = field(default=None, init=False)
    _of_shardings: dict[str, Contender] = field(default_factory=dict, init=False)

    def of_solution(
        self, solution: Solution, name: str, why: str, plan_seconds: float = 0.0
    ) -> Contender:
        """A plan with the constraints that bring every value about.

        One that does not fit by the model counts as a plan all the same: the compiler decides.
        """
        solved = replace(self.solved, solution=solution)
        data = self._data(solved)
        data = with_constraints(data, solved.program.traced, self._price(solution))
        return Contender(name, data, solution, solved, why, _predicted(solution), plan_seconds)

    def as_written(self, solution: Solution, name: str, why: str) -> Contender:
        """A plan by hand as people write it: arguments and results alone are sharded.

        What lies between is the partitioner's, as far as the program itself pins nothing: values
        are taken to be sharded as propagation, which the partitioner runs too, leaves them.
        """
        solved = replace(self.solved, solution=solution)
        data = replace(self._data(solved), wanted_uses={}, products=())
        data = replace(data, constraints=data.required, misses=())
        return Contender(name, data, solution, solved, why, _predicted(solution))

    def by_hand(self) -> Iterator[Contender]:
        """The hand plans of the report, as written, the fastest by the model first."""
        for name, priced in self._hand_solutions():
            yield self.as_written(priced, f"{name} as written", "a plan by hand")

    def by_hand_pinned(self) -> Iterator[Contender]:
        """The same with their activations pinned."""
        for name, priced in self._hand_solutions():
            why = "a plan by hand, its activations pinned"
            yield self.of_solution(priced, f"{name} pinned", why)

    def names_beside(self, candidates: Mapping[str, Any]) -> Iterator[str]:
        """Names of what the user passes and of the hand plans as written."""
        for name, given in candidates.items():
            yield name if isinstance(given, PlanData) else f"{name} as written"
        for name, _ in self._hand_solutions():
            yield f"{name} as written"

    def _hand_solutions(self) -> list[tuple[str, Solution]]:
        if self._by_hand is None:
            found = self.solved.by_hand.solutions
            if not found:  # planned without them
                solution, options = self.solved.solution, self.solved.setting.options
                found = price_hand_plans(solution, self._propagation(), options).solutions
            self._by_hand = sorted(found.items(), key=lambda one: one[1].step_seconds)
        return self._by_hand

    def of_user(self, candidates: Mapping[str, Any]) -> Iterator[Contender]:
        """What the user passes: records of plans, or trees of shardings for the arguments.

        Raises:
            InputError: As `check`.
        """
        self.check(candidates)
        for name, given in candidates.items():
            if isinstance(given, PlanData):
                yield self._of_record(given, name)
            else:
                yield self._of_shardings[name]

    def check(self, candidates: Mapping[str, Any]) -> None:
        """Refuse candidates of another program or mesh, and those that cannot be had.

        Raises:
            InputError: One is of another program or mesh, is no shardings, or contradicts what was
                asked; says which one and why.
        """
        for name, given in candidates.items():
            if isinstance(given, PlanData):
                self._check_record(given, name)
            elif name not in self._of_shardings:
                self._of_shardings[name] = self._with_shardings(given, name)

    def _of_record(self, data: PlanData, name: str) -> Contender:
        if data.constraints is None:
            data = with_constraints(data, self.solved.program.traced, None)
        data = replace(data, memory_budget=self.base.memory_budget)
        return Contender(name, data, None, None, "passed by the user", data.priced_seconds)

    def _check_record(self, data: PlanData, name: str) -> None:
        data.require_feasible()
        mesh = self.base.mesh
        if data.mesh != mesh:
            raise InputError(
                f"this plan is for the mesh {format_mesh(data.mesh)}, not {format_mesh(mesh)}",
                where=f'candidates["{name}"]',
                fix="pass plans for the mesh of the plan that is refined",
            )
        if data.planned_program != self.base.planned_program:
            raise InputError(
                "this plan was made for another program",
                where=f'candidates["{name}"]: a plan for {data.function}',
                fix=f"pass plans of the program that is refined, {self.function}",
            )

    def _with_shardings(self, given: Any, name: str) -> Contender:
        solution, options = self.solved.solution, self.solved.setting.options
        found = solution_with(solution, self._layouts(given, name), self._propagation(), options)
        if found is None:
            raise InputError(
                "these shardings contradict what the program or its caller fixes",
                where=f'candidates["{name}"]',
                fix="leave it out, or plan without what is fixed",
            )
        return self.as_written(found, f"{name} as written", "passed by the user")

    def _layouts(self, given: Any, name: str) -> list[Layout]:
        """Layouts of all arguments; what is left free is replicated."""
        program, parts = self.solved.program, self.solved.solution.encoded.parts
        traced = program.traced
        devices = self.solved.setting.choice.readings[program.mesh][2]
        prefix = tuple(given) if isinstance(given, list) else given
        option = f'candidates["{name}"]'
        said = read_shardings(
            (prefix, None),
            traced.in_tree,
            DeviceOrder.of(program.mesh, devices),
            traced.in_names,
            [aval.shape for aval in traced.in_avals],
            option,
        )
        shapes = [program.graph.values[op.results[0]].shape for op in program.graph.arguments]
        captured: list[Sharding | None] = [None] * (len(shapes) - len(said))
        layouts: list[Layout] = []
        for shape, sharding in zip(shapes, [*captured, *said], strict=True):
            whole: Layout = ((),) * len(shape)
            try:
                layouts.append(whole if sharding is None else parts.to_layout(sharding))
            except ShardingError as error:
                raise InputError(error.what, where=option, fix=error.fix) from error
        return layouts

    def _data(self, solved: Solved) -> PlanData:
        data = plan_data(self.function, solved)
        base = self.base
        return replace(
            data,
            solver=replace(data.solver, status=data.solver.status if data.is_feasible else _USABLE),
            donate_argnums=base.donate_argnums,
            static_argnums=base.static_argnums,
            target=base.target,
            notes=base.notes,
            stage_seconds=base.stage_seconds,
        )

    def _price(self, solution: Solution) -> Callable[[Mapping[str, Sharding]], float | None]:
        return lambda changes: seconds_with(solution, changes, self.solved.setting.options)

    def _propagation(self) -> Propagate:
        if self._propagate is None:
            program = self.solved.program
            propagator, first = (
                propagator_for(program.traced, program.mesh),
                program.graph.num_captured,
            )
            self._propagate = lambda inputs, outputs: propagator.propagate(inputs[first:], outputs)
        return self._propagate


def _predicted(solution: Solution) -> float:
    return solution.step_seconds + solution.correction_seconds


def named_candidates(candidates: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """Candidates by name: `candidate 1`, ... where the user gives none."""
    if isinstance(candidates, Mapping):
        return dict(candidates)
    return {f"candidate {number}": one for number, one in enumerate(candidates, start=1)}
