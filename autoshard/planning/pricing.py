"""What other plans of a problem cost: someone else's, one with a change, one at other costs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Encoded, decode
from autoshard.errors import ShardingError
from autoshard.graph.program import Op, OpKind
from autoshard.layouts import Layout
from autoshard.lowering.least_seconds import least_seconds
from autoshard.planning.searches import Searches, SolveOptions
from autoshard.planning.solution import Solution, solution_of
from autoshard.planning.stages import Stages
from autoshard.sharding import Sharding
from solvers import FORBIDDEN, Problem, Result, evaluate, settle, solve
from solvers.saturating import as_valid

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class PricedLayouts:
    """Choices that hold values to their layouts; lowered on first use.

    Args:
        encoder: Of the problem.
        encoded: The problem, without a memory limit.
        result: The choices, and their cost by the problem.
    """

    encoder: Encoder
    encoded: Encoded
    result: Result

    @property
    def least_seconds(self) -> float:
        """A bound on the step time of the plan; it is not lowered for that."""
        assert self.result.choices is not None
        return least_seconds(self.encoder, self.encoded, decode(self.encoded, self.result.choices))

    @cached_property
    def solution(self) -> Solution:
        """The plan of these choices."""
        return solution_of(self.encoder, self.encoded, self.result)


def price_layouts(
    solution: Solution,
    layouts: Sequence[Layout | None],
    options: SolveOptions,
    *,
    in_steps: bool = False,
    relative_gap: float = 0.0,
) -> PricedLayouts | None:
    """Price a plan someone else made: every value is held to its layout, where it has one.

    Ops take their operands as they are where that gives what is asked, else the cheapest way.
    Values whose layout is no candidate are left free. None where no choice is allowed.

    Args:
        solution: The planning problem to price it in.
        layouts: Per value, the layout it must have, or None.
        options: For the small solve that is left.
        in_steps: Whether products may run in steps, which a sharding by hand does not ask for.
        relative_gap: How near the cheapest is near enough, for the choices that are left.
    """
    encoder, encoded = solution.every_way
    result = nearest_choices(
        encoded, layouts, options, in_steps=in_steps, relative_gap=relative_gap
    )
    if result.choices is None:
        return None
    held = replace(encoded, problem=replace_costs(encoded.problem, encoded.problem.node_costs))
    return PricedLayouts(encoder, held, result)


def nearest_choices(
    encoded: Encoded,
    layouts: Sequence[Layout | None],
    options: SolveOptions,
    *,
    in_steps: bool = False,
    relative_gap: float = 0.0,
) -> Result:
    """The cheapest choices in which every value has its layout, whatever memory they take.

    Args:
        encoded: The planning problem.
        layouts: As for `price_layouts`, like all that follow.
        options: For the small solve that is left.
        in_steps: Whether products may run in steps.
        relative_gap: How near the cheapest is near enough.
    """
    problem = encoded.problem
    every = {size: np.ones(size, dtype=np.bool_) for size in set(map(len, problem.node_costs))}
    keep = [every[len(costs)] for costs in problem.node_costs]
    known: dict[Hashable, BoolArray | None] = {}
    graph, asked = encoded.graph, list(layouts)
    for op in (op for op in graph.ops if op.kind is OpKind.FREE):
        for value in op.results:  # which every reader makes as it takes it
            asked[value] = None
    for node, op_index in enumerate(encoded.ops):
        op = graph.ops[op_index]
        admitted = _admitted(op, encoded.candidates[node], asked, known, in_steps)
        if admitted is not None:
            keep[node] = admitted
    settled = settle(problem, keep)
    result = solve(
        settled.problem,
        engine=options.engine,
        time_limit_seconds=options.time_limit_seconds,
        seed=options.seed,
        relative_gap=relative_gap,
    )
    if result.choices is None:
        return result
    choices = settled.restore(result.choices)
    told = evaluate(problem, choices)
    return replace(result, choices=choices, peak=told.peak, peak_time=told.peak_time)


def _admitted(
    op: Op,
    candidates: Sequence[Candidate],
    layouts: Sequence[Layout | None],
    known: dict[Hashable, BoolArray | None],
    in_steps: bool,
) -> BoolArray | None:
    """Which candidates make what is asked; only those that take operands as they are, if any do.

    None where no candidate does.

    Args:
        op: The op.
        candidates: Of the op.
        layouts: Per value, the layout it must have, or None.
        known: Answers for ops that share candidates and are asked for the same, filled here.
        in_steps: Candidates that run in steps are among them.
    """
    made = tuple([layouts[value] for value in op.results])
    read = tuple([layouts[value] for value in op.operands])
    key = (id(candidates), made, read)
    if key not in known:
        by_result = [_matches(made, candidate.results) for candidate in candidates]
        as_they_are = [
            does_make and _matches(read, candidate.operands)
            for does_make, candidate in zip(by_result, candidates, strict=True)
        ]
        admitted = as_they_are if any(as_they_are) else by_result
        if not in_steps:
            plain = [candidate.streamed is None for candidate in candidates]
            without_steps = [a and b for a, b in zip(admitted, plain, strict=True)]
            admitted = without_steps if any(without_steps) else plain
        known[key] = np.array(admitted) if any(admitted) else None
    return known[key]


def _matches(wanted: Sequence[Layout | None], have: Sequence[Layout]) -> bool:
    return all(w is None or w == h for w, h in zip(wanted, have, strict=True))


def seconds_with(
    solution: Solution, changes: Mapping[str, Sharding], options: SolveOptions
) -> float | None:
    """Predicted seconds of a plan in which some values are sharded otherwise.

    Args:
        solution: The plan.
        changes: Shardings by path of a value.
        options: For the small solve.

    Returns:
        Seconds; None where a change cannot be said in the plan's mesh parts, or where no candidate
        of the op that makes the value ends in it: nobody can tell then.
    """
    layouts: list[Layout | None] = list(solution.decoded.layouts)
    changed = [solution.graph.value_by_path[path] for path in changes]
    for value, sharding in zip(changed, changes.values(), strict=True):
        try:
            layouts[value] = solution.encoded.parts.to_layout(sharding)
        except ShardingError:
            return None
    found = price_layouts(solution, layouts, options, in_steps=True)
    if found is None:
        return None
    priced = found.solution
    if any(priced.decoded.layouts[value] != layouts[value] for value in changed):
        return None
    return priced.step_seconds


def solve_again(
    solution: Solution, problem: Problem, options: SolveOptions, hint: Sequence[int] | None = None
) -> tuple[Result, Solution | None]:
    """Solve the problem of a plan again with other costs, its memory limit included.

    Args:
        solution: The plan.
        problem: Its problem with other costs.
        options: For the solve.
        hint: Choices to start from.

    Returns:
        How the solve ended, and the plan found; the leanest one where none fits; None: no choices
        at all.
    """
    result = Searches(options, Stages()).first(problem, hint)
    if result.choices is None and result.least_peak_choices is None:
        return result, None
    return result, solution_of(solution.encoder, replace(solution.encoded, problem=problem), result)


def cautious(
    problem: Problem, best: Sequence[int], known: Sequence[Sequence[int]], margin: float
) -> Problem:
    """The same problem, in which what differs from a known answer costs more by a margin.

    A choice that no known answer makes costs more by the margin, and so does a pair of choices of
    an edge. Any choice but the best answer's costs the margin of a node's mean share besides: what
    is cut otherwise changes how its neighbours are compiled, too.

    Args:
        problem: With costs that hold for the known answers.
        best: Choices of all nodes, of the best known answer.
        known: Of all known answers.
        margin: As a fraction of the costs.
    """
    answers = np.array([best, *known], dtype=np.int64)
    share = round(margin * evaluate(problem, best).cost / max(problem.num_nodes, 1))
    costs = []
    for node, own in enumerate(problem.node_costs):
        chosen = answers[:, node]
        dearer = _dearer(own, margin)
        dearer[chosen] = own[chosen]
        dearer = as_valid(np.where(dearer < FORBIDDEN, dearer + share, dearer))
        dearer[best[node]] = own[best[node]]
        costs.append(dearer)
    tables: dict[tuple[int, bytes], npt.NDArray[np.int64]] = {}
    edges = []
    for edge in problem.edges:
        u, v = answers[:, edge.u], answers[:, edge.v]
        key = id(edge.costs), u.tobytes() + v.tobytes()
        if key not in tables:
            table = _dearer(edge.costs, margin)
            table[u, v] = edge.costs[u, v]
            tables[key] = table
        edges.append(replace(edge, costs=tables[key]))
    return replace(problem, node_costs=tuple(costs), edges=tuple(edges))


def _dearer(costs: npt.NDArray[np.int64], margin: float) -> npt.NDArray[np.int64]:
    more = np.rint(np.where(costs < FORBIDDEN, costs, 0) * margin).astype(np.int64)
    return as_valid(costs + more)


def replace_costs(problem: Problem, node_costs: tuple[npt.NDArray[np.int64], ...]) -> Problem:
    """The same problem with other node costs and no memory limit."""
    return replace(problem, node_costs=node_costs, memory_limit=None)
