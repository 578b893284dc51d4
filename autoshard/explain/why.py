"""Why a tensor of a plan is sharded as it is: the plan made again with it held to each alternative.

The problem is the one the plan solves, memory limit and all, but for the choices of the op that
decides the tensor: only those that give it the other sharding stay. Everything else may follow.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.explain.account_changes import account_changes
from autoshard.explain.decided_tensor import DecidedTensor
from autoshard.explain.explanation import Alternative, Estimate, Explanation
from autoshard.explain.neighbourhood import Neighbourhood
from autoshard.explain.refusals import asked_pin, asked_text, clash_text, refusals_of
from autoshard.layouts import Layout
from autoshard.planning.pricing import solve_again
from autoshard.planning.searches import SolveOptions
from autoshard.planning.solution import Solution
from autoshard.plans.source_names import SourceNames
from solvers import FORBIDDEN, evaluate

_RELATIVE_GAP = 1e-4
_LEAST_SECONDS = 1.0  # for each alternative, where those before it took too long

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def explain_tensor(
    solution: Solution,
    path: str,
    *,
    name: str = "",
    num_alternatives: int = 8,
    time_limit_seconds: float = 60.0,
    asked: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Explanation:
    """Why the tensor at a path is sharded as it is.

    Args:
        solution: The plan, in the planner's terms.
        path: `in.3` of an argument, `out<2` of a result, a value path otherwise.
        name: What the user calls it, if not by its own name.
        num_alternatives: How many other shardings to plan with, the most promising first.
        time_limit_seconds: For all of them together.
        asked: Terms of the user's constraints that are about it.
        notes: What else there is to say.

    Raises:
        InputError: The program has no such path.
    """
    tensor = DecidedTensor.at(solution.graph, path)
    chosen = tensor.planned(solution)
    ways = _Ways.of(solution, tensor)
    alternatives = ways.alternatives(num_alternatives, time_limit_seconds)
    tried = {other.sharding for other in alternatives}
    parts, account = solution.encoded.parts, solution.account
    pin = asked_pin(solution, tensor)
    said = tuple(asked) if asked or pin is None else (asked_text(pin, tensor),)
    found = Explanation(
        name=name or tensor.name,
        path=path,
        type_text=tensor.value.type_text,
        chosen=parts.to_sharding(chosen),
        local_bytes=tensor.value.num_bytes // parts.num_pieces(chosen),
        seconds=solution.step_seconds,
        peak_bytes=account.memory.peak_bytes,
        memory_budget=solution.encoder.memory_limit,
        gap=solution.result.gap,
        num_shardings=ways.num_shardings,
        asked=said,
        alike=tensor.alike(solution),
        reads=tensor.reads(solution),
        alternatives=alternatives,
        estimates=tuple(one for one in ways.estimates() if one.sharding not in tried),
        refusals=refusals_of(solution, tensor, ways.layouts, ways.clashes, said)
        if ways.layouts
        else (),
        notes=(*_remarks(solution, tensor, alternatives), *notes),
    )
    return _with_short_sources(found, solution)


def _remarks(
    solution: Solution, tensor: DecidedTensor, alternatives: Sequence[Alternative]
) -> list[str]:
    found = []
    if not tensor.value.shape:
        found.append("a scalar has no dimension to cut")
    elif tensor.op.index not in solution.encoded.node_by_op:
        found.append("every device can make its own piece of it, so that its sharding is free")
    cheaper = [o for o in alternatives if o.extra_seconds is not None and o.extra_seconds < 0]
    if cheaper and solution.result.gap > 0:
        found.append(
            "an alternative is cheaper than the plan, which is proven within"
            f" {100 * solution.result.gap:.2g} % of the best alone: plan again with a smaller"
            " relative_gap"
        )
    elif cheaper:
        found.append(
            "an alternative that the solver takes for no better comes out cheaper where reshards"
            " are counted one by one: to the model the two are as good as equal"
        )
    if solution.encoder.costing.overlaps and any(other.changes for other in alternatives):
        found.append(
            "a line is told with all that it sends, a step with what of that is left to wait for"
        )
    if solution.rounds:
        found.append("alternatives are among the plans that extend what earlier rounds decided")
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Ways:
    """The layouts that a tensor can have.

    Args:
        solution: The plan.
        tensor: The tensor.
        layouts: By layout, the choices of its node that give it; empty where it has no node.
        clashes: Layouts that another tensor forbids, with how it does.
        costs: float64[num_choices]: of the plan with another choice of the node, in picoseconds,
            where its neighbours choose anew and all other nodes stay.
        answers: By neighbour, int64[num_choices]: what it chooses then.
    """

    solution: Solution
    tensor: DecidedTensor
    layouts: Mapping[Layout, IntArray]
    clashes: dict[Layout, str]
    costs: FloatArray
    answers: Mapping[int, IntArray]

    @staticmethod
    def of(solution: Solution, tensor: DecidedTensor) -> _Ways:
        encoded = solution.encoded
        node = encoded.node_by_op.get(tensor.op.index)
        if node is None or not tensor.value.shape:
            return _Ways(solution, tensor, {}, {}, np.zeros(0), {})
        choices_by_layout: dict[Layout, list[int]] = {}
        for choice, candidate in enumerate(encoded.candidates[node]):
            if encoded.problem.node_costs[node][choice] < FORBIDDEN:
                choices_by_layout.setdefault(tensor.layout(candidate), []).append(choice)
        layouts = {layout: np.array(c, dtype=np.int64) for layout, c in choices_by_layout.items()}
        around = Neighbourhood(encoded.problem)
        clashes = {}
        for layout, choices in layouts.items():
            against = around.clash(node, choices)
            if against is not None:
                op = encoded.maker(against)
                clashes[layout] = clash_text(solution, DecidedTensor.by(solution.graph, op))
        costs, answers = around.costs(node, solution.choices)
        return _Ways(solution, tensor, layouts, clashes, costs, answers)

    @property
    def node(self) -> int:
        return self.solution.encoded.node_by_op[self.tensor.op.index]

    @property
    def num_shardings(self) -> int:
        """How many it can have; those that differ in the order of axes alone count as one."""
        return len({_cut(layout) for layout in self.layouts if layout not in self.clashes})

    def ranked(self) -> list[tuple[float, Layout]]:
        """The other layouts, cheapest first, with what each seems to cost more, in seconds.

        Of those that differ in the order of axes alone, the cheapest.
        """
        if not self.layouts:
            return []
        now = self.costs[self.solution.choices[self.node]]
        found = sorted(
            (float(self.costs[choices].min() - now) / PICOSECONDS, layout)
            for layout, choices in self.layouts.items()
            if layout not in self.clashes
        )
        chosen = self.tensor.planned(self.solution)
        distinct = {_cut(chosen): (0.0, chosen)}
        for extra, layout in found:
            distinct.setdefault(_cut(layout), (extra, layout))
        return list(distinct.values())[1:]

    def estimates(self) -> list[Estimate]:
        """Seeming costs of other layouts, of those that neighbours can follow by themselves."""
        parts = self.solution.encoded.parts
        return [
            Estimate(sharding=parts.to_sharding(layout), extra_seconds=extra)
            for extra, layout in self.ranked()
            if extra * PICOSECONDS < FORBIDDEN
        ]

    def alternatives(self, count: int, time_limit_seconds: float) -> tuple[Alternative, ...]:
        """The most promising layouts, each planned with; the cheapest plan first."""
        deadline = time.monotonic() + time_limit_seconds
        found = []
        promising = self.ranked()[:count]
        for number, (_, layout) in enumerate(promising):
            left = (deadline - time.monotonic()) / (len(promising) - number)
            found.append(self._planned_with(layout, max(left, _LEAST_SECONDS)))
        return tuple(
            sorted(found, key=lambda a: np.inf if a.extra_seconds is None else a.extra_seconds)
        )

    def _planned_with(self, layout: Layout, seconds: float) -> Alternative:
        solution, node = self.solution, self.node
        problem = solution.encoded.problem
        held = np.full_like(problem.node_costs[node], FORBIDDEN)
        held[self.layouts[layout]] = problem.node_costs[node][self.layouts[layout]]
        costs = (*problem.node_costs[:node], held, *problem.node_costs[node + 1 :])
        options = SolveOptions(time_limit_seconds=seconds, relative_gap=_RELATIVE_GAP)
        result, again = solve_again(
            solution, replace(problem, node_costs=costs), options, self._hint(layout)
        )
        bound = (result.lower_bound - evaluate(problem, solution.choices).cost) / PICOSECONDS
        sharding = solution.encoded.parts.to_sharding(layout)
        if again is None or not result.status.has_choices:
            return Alternative(
                sharding=sharding,
                status=result.status.value,
                extra_seconds=None,
                least_extra_seconds=bound,
                peak_bytes=0 if again is None else again.account.memory.peak_bytes,
                changes=(),
            )
        return Alternative(
            sharding=sharding,
            status=result.status.value,
            extra_seconds=again.step_seconds - solution.step_seconds,
            least_extra_seconds=bound,
            peak_bytes=again.account.memory.peak_bytes,
            changes=account_changes(solution.account, again.account),
        )

    def _hint(self, layout: Layout) -> list[int]:
        """The plan's choices, but for those of the node and of its neighbours."""
        choices = self.layouts[layout]
        choice = int(choices[self.costs[choices].argmin()])
        hint = list(self.solution.choices)
        hint[self.node] = choice
        for neighbour, answers in self.answers.items():
            hint[neighbour] = int(answers[choice])
        return hint


def _cut(layout: Layout) -> tuple[frozenset[int], ...]:
    """What cuts each dimension, whatever the order."""
    return tuple(map(frozenset, layout))


def _with_short_sources(found: Explanation, solution: Solution) -> Explanation:
    """The same with source lines as the plan's report shows them."""
    shorten = SourceNames(op.source for op in solution.graph.ops).shorten
    return replace(
        found,
        name=shorten(found.name),
        asked=tuple(map(shorten, found.asked)),
        alike=tuple(
            replace(one, name=shorten(one.name), reason=shorten(one.reason)) for one in found.alike
        ),
        reads=tuple(replace(read, op=shorten(read.op)) for read in found.reads),
        alternatives=tuple(
            replace(
                other,
                changes=tuple(replace(one, op=shorten(one.op)) for one in other.changes),
            )
            for other in found.alternatives
        ),
        refusals=tuple(replace(one, reason=shorten(one.reason)) for one in found.refusals),
    )
