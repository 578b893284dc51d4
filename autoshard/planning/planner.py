"""From a program graph to a decided plan on one mesh: the rooms walked through in order."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoshard.backend_habits import (
    counts_equal_moves_once,
    fusing,
    least_images,
    overlaps_on,
    widened_bits,
)
from autoshard.candidates.candidate import Candidate
from autoshard.candidates.manual_borders import with_borders_on
from autoshard.candidates.op_candidates import read_pins
from autoshard.candidates.rounds import ONLY_ROUND, Round, rounds_of
from autoshard.costing.costing import Costing, cost_model_for
from autoshard.encoding.accounting import Account, account_for
from autoshard.encoding.encode import Encoder, Wishes
from autoshard.encoding.encoded import Decoded, Encoded, decode
from autoshard.encoding.new_states import NewStates, share_off
from autoshard.encoding.shared_reads import SharedRead
from autoshard.errors import ConstraintError, InputError, ShardingError
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph, Op, OpKind
from autoshard.layouts import Layout
from autoshard.overlap.timeline import overlapped_seconds
from autoshard.sharding import Mesh, Sharding
from autoshard.wishes.mesh_parts import parts_for
from autoshard.wishes.other_meshes import carried_on_other_meshes
from autoshard.wishes.pinned import Pin
from cost_models import Hardware
from solvers import FORBIDDEN, Problem, Progress, Result, Status, evaluate, least_use, solve

_SEARCH = "solve"
_LONG = frozenset({_SEARCH, "mesh search"})
"""Stages that may take minutes."""
_LEAST_SHARE = 0.25  # of its even share of the time, for a round where others took too long
_WORTHWHILE = 0.01  # of the time planned, for another solve
_SCARCE = 2.5
"""Memory is scarce below so many times the least use that any choices could have.

Plans of seven programs at 1.1 times the least peak of any stood at 1.06 to 2.1 times that bound.
"""
_NO_ROOM = 1
"""A limit in bytes that nothing fits: solving then finds the least there is."""
_MOST_LOWERINGS = 3  # of the memory limit, each with a solve in that share of its time


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """How hard to look for the best plan.

    Args:
        backend: A solver's name, or "auto".
        time_limit_seconds: Wall time for the solver. Where it finds nothing that fits, or what it
            finds does not fit with its gaps or not on the chip, more searches follow.
        relative_gap: Stop once the plan is proven this close to the best.
        seed: One seed, one plan.
        overlap: Whether collectives that the backend runs beside its computing cost less than those
            it waits for.
    """

    backend: str = "auto"
    time_limit_seconds: float = 60.0
    relative_gap: float = 0.01
    seed: int = 0
    overlap: bool = True


class NoPlanInTimeError(InputError):
    """Time was up before the solver had any choices."""


@dataclass(slots=True)
class Stages:
    """Wall seconds by stage of planning."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage.

        All stages but searches make objects by the million that live on: nothing looks for cycles
        among them meanwhile, which took a fifth of the time.
        """
        is_paused = name not in _LONG and gc.isenabled()
        if is_paused:
            gc.disable()
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            if is_paused:
                gc.enable()


@dataclass(frozen=True, slots=True, eq=False)
class DecidedRound:
    """What one round decided.

    Args:
        round: What it was planned under.
        pins: Everything pinned, whatever its priority.
        decoded: The program after it.
        account: What that costs.
    """

    round: Round
    pins: tuple[Pin, ...]
    decoded: Decoded
    account: Account


@dataclass(frozen=True, eq=False)
class Solution:
    """A decided plan in the planner's own terms.

    `account` is that of the least-memory choices where no plan fits the budget.

    Args:
        rounds: All rounds, the last one included; none where there was only one.
    """

    graph: Graph
    encoder: Encoder
    encoded: Encoded
    result: Result
    choices: tuple[int, ...]
    decoded: Decoded
    account: Account
    rounds: tuple[DecidedRound, ...] = ()

    @property
    def is_feasible(self) -> bool:
        return self.result.status.has_choices

    @cached_property
    def step_seconds(self) -> float:
        """Of one step, as it was priced: what runs beside the computing counts where asked for."""
        if self.encoder.costing.overlaps:
            beside = overlapped_seconds(self.encoder, self.encoded, self.decoded, self.account)
            assert beside is not None
            return beside
        return self.account.compute_seconds + self.account.communication_seconds

    @cached_property
    def every_way(self) -> tuple[Encoder, Encoded]:
        """The problem with all candidates, not only those that extend what rounds decided."""
        if self.encoder.round is ONLY_ROUND:
            return self.encoder, self.encoded
        encoder = Encoder(
            self.graph,
            self.encoder.buffers,
            self.encoder.costing,
            self.encoder.wishes,
            self.encoder.memory_limit,
            is_scarce=self.encoder.is_scarce,
        )
        return encoder, encoder.encode()


def plan_graph(
    graph: Graph,
    mesh: Mesh,
    hardware: Hardware,
    wishes: Wishes,
    memory_limit: int | None,
    options: SolveOptions,
    *,
    streamable: frozenset[str] = frozenset(),
    stages: Stages | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """Choose a layout for every value of a program, round by round where the user gave priorities.

    The memory limit binds in the last round alone: until then a program need not fit. The
    `dot_general` equations at the paths `streamable` may run in steps, if there is one round only.

    Raises:
        ConstraintError: The user's wishes contradict one another, or no candidate meets them.
    """
    clock = stages or Stages()
    graph = with_borders_on(_as_kept(graph, hardware.backend), mesh)
    with clock.time("buffers"):
        buffers = find_buffers(graph, fusing(hardware))
    wishes = carried_on_other_meshes(wishes, mesh)
    parts = parts_for(graph, mesh, wishes, least_images(hardware.backend))
    overlaps = options.overlap and overlaps_on(hardware)
    costing = Costing(cost_model_for(hardware, parts), parts, overlaps)
    pins = read_pins(graph, parts, wishes)
    rounds = rounds_of(graph, pins, parts, wishes)
    seconds_left = options.time_limit_seconds
    least_seconds = seconds_left * _LEAST_SHARE / len(rounds)
    solution: Solution | None = None
    decided: list[DecidedRound] = []
    for number, found in enumerate(rounds, start=1):
        now = found if solution is None else replace(found, decided=solution.decoded.candidates)
        limit = memory_limit if number == len(rounds) else None
        encoder = Encoder(graph, buffers, costing, wishes, limit, round=now, streamable=streamable)
        costing.states_off = _least_off(encoder)
        fair = max(seconds_left / (len(rounds) - number + 1), least_seconds)
        share = replace(options, time_limit_seconds=fair)
        spent = clock.seconds.get(_SEARCH, 0.0)
        with _naming_round(rounds[:number]):
            solution = _solve_round(encoder, share, clock, progress)
        seconds_left -= clock.seconds[_SEARCH] - spent
        flat = tuple(pin for of_op in pins.values() for pin in of_op.values())
        decided.append(DecidedRound(now, flat, solution.decoded, solution.account))
    assert solution is not None
    return solution if len(rounds) == 1 else replace(solution, rounds=tuple(decided))


def _least_off(encoder: Encoder) -> float:
    """1 if new states pass the room on the chip however they are cut: so much more they cost."""
    states = encoder.costing.new_states(encoder.graph, encoder.buffers)
    whole = sum(encoder.graph.values[value].num_bytes for value in states)
    least = whole / encoder.costing.parts.mesh.num_devices
    return 1.0 if share_off(least, encoder.room.on_chip.room) else 0.0


def plan_further(
    solution: Solution,
    options: SolveOptions,
    *,
    stages: Stages | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """Search on where time cut a plan short; of a plan in rounds, in the last one.

    Args:
        solution: What was found so far; the new plan costs no more.
        options: For the rest of the search.
        stages: Where to count the time.
        progress: Told of a long solve.
    """
    clock = stages or Stages()
    with clock.time(_SEARCH):
        result = _solved(solution.encoded.problem, options, solution.choices, progress)
    with clock.time("account"):
        found = _solution(solution.encoder, solution.encoded, result)
    if not solution.rounds:
        return found
    last = replace(solution.rounds[-1], decoded=found.decoded, account=found.account)
    return replace(found, rounds=(*solution.rounds[:-1], last))


def _solved(
    problem: Problem,
    options: SolveOptions,
    hint: Sequence[int] | None,
    progress: Callable[[Progress], None] | None,
) -> Result:
    return solve(
        problem,
        backend=options.backend,
        time_limit_seconds=options.time_limit_seconds,
        seed=options.seed,
        relative_gap=options.relative_gap,
        hint=hint,
        progress=progress,
    )


def _shortened(options: SolveOptions) -> SolveOptions:
    """For a search that follows another."""
    return replace(options, time_limit_seconds=options.time_limit_seconds * _LEAST_SHARE)


def _solved_leanest(
    problem: Problem, options: SolveOptions, progress: Callable[[Progress], None] | None
) -> Result:
    """A search for the least memory alone."""
    return _solved(replace(problem, memory_limit=_NO_ROOM), options, None, progress)


def _solved_from_leanest(
    problem: Problem,
    options: SolveOptions,
    found: Result,
    progress: Callable[[Progress], None] | None,
) -> Result:
    """Search again where time ran out before anything fitted, from what takes the least memory.

    The least memory is mostly found sooner than the first plan within a limit near it. It may take
    as long as the first search, and what starts from it a share of that.
    """
    if problem.memory_limit is None or found.is_interrupted:
        return found
    lean = _solved_leanest(problem, options, progress)
    if lean.least_peak is None or lean.least_peak > problem.memory_limit or lean.is_interrupted:
        return found if lean.least_peak is None else _with_leanest(found, lean)
    short = _shortened(options)
    return _solved(problem, short, lean.least_peak_choices, progress)


def _with_leanest(found: Result, lean: Result) -> Result:
    """A result without choices, with the least memory that another search found."""
    return replace(
        found,
        least_peak=lean.least_peak,
        least_peak_time=lean.least_peak_time,
        least_peak_choices=lean.least_peak_choices,
        least_peak_bound=max(found.least_peak_bound, lean.least_peak_bound),
        is_interrupted=found.is_interrupted or lean.is_interrupted,
    )


def _encoded(encoder: Encoder) -> tuple[Encoder, Encoded]:
    """A problem, and what encoded it: anew for the worst order of ops where memory is scarce."""
    encoded = encoder.encode()
    limit = encoder.memory_limit
    if limit is None or limit >= _SCARCE * least_use(encoded.problem)[0]:
        return encoder, encoded
    hardware = encoder.costing.model.hardware
    usual, worst = fusing(hardware), fusing(hardware).in_the_worst_order()
    if worst == usual and not counts_equal_moves_once(hardware.backend):
        return encoder, encoded
    scarce = Encoder(
        encoder.graph,
        encoder.buffers if worst == usual else find_buffers(encoder.graph, worst),
        encoder.costing,
        encoder.wishes,
        limit,
        encoder.max_candidates,
        encoder.round,
        encoder.streamable,
        is_scarce=True,
    )
    return scarce, scarce.encode()


def _solve_round(
    encoder: Encoder,
    options: SolveOptions,
    clock: Stages,
    progress: Callable[[Progress], None] | None,
) -> Solution:
    with clock.time("candidates and costs"):
        encoder, encoded = _encoded(encoder)
    decided = encoder.round.decided
    hint = _as_decided(encoded, decided) if decided else None
    with clock.time(_SEARCH):
        result = _solved(encoded.problem, options, hint, progress)
        if result.status is Status.NO_SOLUTION:
            result = _solved_from_leanest(encoded.problem, options, result, progress)
    with clock.time("account"):
        solution = _solution(encoder, encoded, result)
    found = _with_room_for_gaps(solution, options, clock, progress)
    return _with_states_in_memory(found, options, clock, progress)


def _with_states_in_memory(
    solution: Solution,
    options: SolveOptions,
    clock: Stages,
    progress: Callable[[Progress], None] | None,
) -> Solution:
    """The better plan of two, where new states are more than what the chip has room for.

    What is past that room is written to device memory, and one byte more takes all of its time. So
    one more plan is asked for in which all states are written there.
    """
    states = NewStates.of(solution.encoder, solution.decoded)
    account = solution.account
    more = sum(map(states.more_seconds, solution.graph.ops))
    planned = account.compute_seconds + account.communication_seconds
    is_over = not solution.is_feasible or solution.result.is_interrupted
    if is_over or more <= _WORTHWHILE * planned:
        return solution
    short = _shortened(options)
    problem = replace(solution.encoded.problem, node_costs=states.costs_in_memory(solution.encoded))
    with clock.time(_SEARCH):
        result = _solved(problem, short, solution.choices, progress)
    if result.choices is None:
        return _interrupted(solution, result.is_interrupted)
    with clock.time("account"):
        answer = _as_answer(solution, result, result.choices)
        other = _solution(solution.encoder, solution.encoded, answer)
    other = _with_room_for_gaps(other, options, clock, progress)
    is_better = other.is_feasible and other.step_seconds < solution.step_seconds
    return other if is_better else _interrupted(solution, other.result.is_interrupted)


def _interrupted(solution: Solution, is_interrupted: bool) -> Solution:
    """The same, told that somebody asked for the best so far in a search after it."""
    if not is_interrupted:
        return solution
    return replace(solution, result=replace(solution.result, is_interrupted=True))


def _with_room_for_gaps(
    solution: Solution,
    options: SolveOptions,
    clock: Stages,
    progress: Callable[[Progress], None] | None,
) -> Solution:
    """A plan that fits with the gaps between temporaries, if one is found in a few solves.

    The solver counts what is alive at one time: it is asked for a plan with as much less of that
    as one with its gaps takes too much, then for one with the least there is. If none of these
    fits, the budget is too small: the one that needs least tells by how much.
    """
    problem, found, hint, floor = solution.encoded.problem, solution, solution.choices, 0
    limit = problem.memory_limit
    if limit is None or not solution.is_feasible:
        return solution
    short = _shortened(options)
    leanest: Solution | None = None
    is_interrupted = solution.result.is_interrupted
    for _ in range(_MOST_LOWERINGS):
        over = found.account.memory.peak_bytes - limit
        alive = found.result.peak or 0
        lowered = max(alive - over, floor)
        if over <= 0 or lowered >= alive or is_interrupted:
            break
        with clock.time(_SEARCH):
            result = _solved(replace(problem, memory_limit=lowered), short, hint, progress)
        is_interrupted = result.is_interrupted
        if result.choices is None:
            with clock.time(_SEARCH):
                result = _leaner(problem, short, result, progress)
            if result.least_peak is None or result.least_peak_choices is None:
                break
            with clock.time("account"):
                answer = _as_answer(solution, result, result.least_peak_choices)
                leanest = _solution(found.encoder, found.encoded, answer)
            if result.least_peak <= lowered:
                break
            floor, hint = result.least_peak, result.least_peak_choices
            continue
        with clock.time("account"):
            again = _solution(found.encoder, found.encoded, result)
        if again.account.memory.peak_bytes >= found.account.memory.peak_bytes:
            break
        found, hint = again, again.choices
    tried = [found] if leanest is None else [found, leanest]
    fitting = [one for one in tried if one.account.memory.peak_bytes <= limit]
    if fitting:
        return _interrupted(fitting[0], is_interrupted)
    leanest = min(tried, key=lambda one: one.account.memory.peak_bytes)
    return _interrupted(_as_too_large(leanest), is_interrupted)


def _leaner(
    problem: Problem,
    options: SolveOptions,
    found: Result,
    progress: Callable[[Progress], None] | None,
) -> Result:
    """What holds least of two: a result without choices, and what is found with no room at all.

    A search that looks for nothing else mostly finds less in the same time.
    """
    if found.is_interrupted or found.status is Status.INFEASIBLE:
        return found
    lean = _solved_leanest(problem, options, progress)
    if lean.least_peak is None:
        return found
    is_less = found.least_peak is None or lean.least_peak < found.least_peak
    return lean if is_less else found


def _as_too_large(solution: Solution) -> Solution:
    """A plan that does not fit with its gaps, as the least that was found for a budget."""
    result = replace(
        solution.result,
        status=Status.NO_SOLUTION,
        choices=None,
        cost=None,
        peak=None,
        least_peak_choices=solution.choices,
        least_peak=solution.account.memory.peak_bytes,
    )
    return replace(solution, result=result)


def _as_answer(solution: Solution, result: Result, choices: tuple[int, ...]) -> Result:
    """Choices that were found for another limit or other costs, as an answer to the problem."""
    found = evaluate(solution.encoded.problem, choices)
    return replace(
        result,
        status=Status.FEASIBLE,
        choices=choices,
        cost=found.cost,
        peak=found.peak,
        peak_time=found.peak_time,
        lower_bound=solution.result.lower_bound,
    )


def _as_decided(encoded: Encoded, decided: Mapping[int, Candidate]) -> list[int]:
    """The choices of an earlier round where they are still offered, else the first ones."""
    choices = [
        candidates.index(decided[op]) if decided.get(op) in candidates else 0
        for op, candidates in zip(encoded.ops, encoded.candidates, strict=True)
    ]
    return choices + [_as_made(encoded, read, choices) for read in encoded.reads]


def _as_made(encoded: Encoded, read: SharedRead, choices: Sequence[int]) -> int:
    """The choice of a shared read that moves nothing."""
    maker = encoded.graph.ops[encoded.graph.values[read.value].op]
    node = encoded.node_by_op[maker.index]
    made = encoded.candidates[node][choices[node]].results[maker.results.index(read.value)]
    return read.layouts.index(made)


@contextmanager
def _naming_round(rounds: Sequence[Round]) -> Iterator[None]:
    """Errors of a round say which one it is and what comes before or after it."""
    *before, now = rounds
    try:
        yield
    except ConstraintError as error:
        if now.priority is None:
            raise
        if before:
            place = f"which keeps what {spoken_priorities(before)} decided"
            remedy = "give both one priority, or swap theirs"
        else:
            place = "in which dimensions of greater ones are held uncut"
            remedy = "give both one priority"
        raise ConstraintError(
            error.what,
            where=f"{error.where}; in the round of priority {now.priority}, {place}",
            fix=f"{remedy}; or {error.fix}",
        ) from error


def spoken_priorities(rounds: Sequence[Round]) -> str:
    """`priority 0`, `priorities 0 and 2`."""
    *first, last = [str(one.priority) for one in rounds]
    return f"priorities {', '.join(first)} and {last}" if first else f"priority {last}"


def _as_kept(graph: Graph, backend: str) -> Graph:
    """The program with intermediates as wide as the backend keeps them; its borders stay."""
    border = {op.results[0] for op in graph.arguments} | {op.operands[0] for op in graph.results}
    return replace(
        graph,
        values=tuple(
            value
            if value.index in border
            else replace(value, bits=widened_bits(backend, value.dtype, value.bits))
            for value in graph.values
        ),
    )


def _solution(encoder: Encoder, encoded: Encoded, result: Result) -> Solution:
    choices = result.choices
    if choices is None:
        choices = result.least_peak_choices
    if choices is None and result.status is Status.NO_SOLUTION:
        raise NoPlanInTimeError(
            "the solver found no plan before its time was up",
            where=f"time limit, after {sum(result.seconds_by_stage.values()):.1f} s",
            fix="raise time_limit_seconds",
        )
    limit = encoded.problem.memory_limit
    if choices is None and limit is not None and result.least_peak_bound > limit:
        raise NoPlanInTimeError(
            f"no plan fits {limit} bytes: {result.least_peak_bound} are needed at least; time was "
            "up before the leanest plan was found",
            where=f"memory_budget and time limit, after {sum(result.seconds_by_stage.values()):.1f}"
            " s",
            fix="raise memory_budget, or time_limit_seconds to see what takes the memory",
        )
    if choices is None:
        raise ConstraintError(
            "the shardings asked for contradict one another: no plan meets all of them",
            where="in_shardings, out_shardings, sharding constraints and groups together",
            fix="free one of them (None or P.UNCONSTRAINED) and plan again",
        )
    decoded = decode(encoded, choices)
    account = account_for(encoder, encoded, decoded, tuple(choices))
    return Solution(encoder.graph, encoder, encoded, result, tuple(choices), decoded, account)


def price_layouts(
    solution: Solution,
    layouts: Sequence[Layout | None],
    options: SolveOptions,
    *,
    in_steps: bool = False,
) -> Solution | None:
    """Price a plan someone else made: every value is held to its layout, where it has one.

    Ops take their operands as they are where that gives what is asked, else the cheapest way.
    Values whose layout is no candidate are left free. None where no choice is allowed.

    Args:
        solution: The planning problem to price it in.
        layouts: Per value, the layout it must have, or None.
        options: For the small solve that is left.
        in_steps: Whether products may run in steps, which a sharding by hand does not ask for.
    """
    encoder, encoded = solution.every_way
    costs = []
    for node, op_index in enumerate(encoded.ops):
        op = encoded.graph.ops[op_index]
        own = encoded.problem.node_costs[node]
        admitted = _admitted(encoded, op, encoded.candidates[node], layouts)
        if not in_steps:
            plain = [candidate.streamed is None for candidate in encoded.candidates[node]]
            admitted = [a and b for a, b in zip(admitted, plain, strict=True)]
            admitted = admitted if any(admitted) else plain
        if any(admitted) and not all(admitted):
            own = own.copy()
            own[[i for i, ok in enumerate(admitted) if not ok]] = FORBIDDEN
        costs.append(own)
    costs += encoded.problem.node_costs[len(encoded.ops) :]
    problem = replace_costs(encoded.problem, tuple(costs))
    result = solve(
        problem,
        backend=options.backend,
        time_limit_seconds=options.time_limit_seconds,
        seed=options.seed,
        relative_gap=0.0,
    )
    if result.choices is None:
        return None
    held = replace(encoded, problem=replace_costs(encoded.problem, encoded.problem.node_costs))
    return _solution(encoder, held, result)


def _admitted(
    encoded: Encoded,
    op: Op,
    candidates: Sequence[Candidate],
    layouts: Sequence[Layout | None],
) -> list[bool]:
    """Which candidates make what is asked; only those that take operands as they are, if any do."""
    graph = encoded.graph

    def matches(values: Sequence[int], have: Sequence[Layout]) -> bool:
        return all(
            layouts[value] is None
            or layouts[value] == layout
            or graph.ops[graph.values[value].op].kind is OpKind.FREE
            for value, layout in zip(values, have, strict=True)
        )

    by_result = [matches(op.results, candidate.results) for candidate in candidates]
    as_they_are = [
        made and matches(op.operands, candidate.operands)
        for made, candidate in zip(by_result, candidates, strict=True)
    ]
    return as_they_are if any(as_they_are) else by_result


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
    priced = price_layouts(solution, layouts, options, in_steps=True)
    if priced is None or any(priced.decoded.layouts[value] != layouts[value] for value in changed):
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
    result = _solved(problem, options, hint, None)
    if result.choices is None and result.least_peak_choices is None:
        return result, None
    return result, _solution(solution.encoder, replace(solution.encoded, problem=problem), result)


def replace_costs(problem: Problem, node_costs: tuple[npt.NDArray[np.int64], ...]) -> Problem:
    """The same problem with other node costs and no memory limit."""
    return replace(problem, node_costs=node_costs, memory_limit=None)
