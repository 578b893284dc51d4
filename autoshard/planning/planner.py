"""From a program graph to a decided plan on one mesh: the rooms walked through in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from autoshard.backends import Backend, LayoutPolicy, backend_for
from autoshard.candidates.candidate import Candidate
from autoshard.candidates.manual_borders import with_borders_on
from autoshard.candidates.op_candidates import read_pins
from autoshard.candidates.rounds import Round, rounds_of
from autoshard.costing.cost_term import OpTermKind
from autoshard.costing.costing import Costing, cost_model_for
from autoshard.costing.op_terms import OP_TERMS
from autoshard.encoding.corrections import Corrections, corrected
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Encoded
from autoshard.encoding.shared_reads import SharedRead
from autoshard.errors import ConstraintError
from autoshard.graph.buffers import Buffers, find_buffers
from autoshard.graph.program import Graph, Value
from autoshard.planning.followed import (
    LEANEST_GAP,
    at_end,
    followed,
    followed_and_simpler,
    leanest_as_lowered,
)
from autoshard.planning.hand_prices import best_by_hand
from autoshard.planning.least_memory import solved_from_leanest
from autoshard.planning.pricing import cautious
from autoshard.planning.searches import SHORT, Searches, SolveOptions
from autoshard.planning.simpler import simpler
from autoshard.planning.solution import (
    DecidedRound,
    Solution,
    TooLargeError,
    as_answer,
    solution_of,
)
from autoshard.planning.spread_layouts import Propagate
from autoshard.planning.stages import COSTS, SEARCH, Stages
from autoshard.planning.warm_start import WarmStart
from autoshard.sharding import Mesh
from autoshard.wishes.mesh_parts import parts_for
from autoshard.wishes.other_meshes import carried_on_other_meshes
from autoshard.wishes.wishes import Wishes
from cost_models import Hardware
from solvers import Problem, Progress, Result, Status

_LEAST_SHARE = 0.25  # of its even share of the time, for a round where others took too long
_SCARCE = 2.5
"""Memory is scarce below so many times the least use that any choices could have.

Plans of seven programs at 1.1 times the least peak of any stood at 1.06 to 2.1 times that bound.
"""


def plan_graph(
    graph: Graph,
    mesh: Mesh,
    hardware: Hardware,
    wishes: Wishes,
    memory_limit: int | None,
    options: SolveOptions,
    *,
    streamable: frozenset[str] = frozenset(),
    propagate: Propagate | None = None,
    start: WarmStart | None = None,
    stages: Stages | None = None,
    progress: Callable[[Progress], None] | None = None,
    compiler: Backend | None = None,
    op_terms: tuple[OpTermKind, ...] = OP_TERMS,
    is_scarce: bool = False,
    must_fit: bool = False,
) -> Solution:
    """Choose a layout for every value of a program, round by round where the user gave priorities.

    The memory limit binds in the last round alone: until then a program need not fit. The
    `dot_general` equations at the paths `streamable` may run in steps, if there is one round only.
    Where the search is cut short and there is one round only, it goes on from the best plan written
    by hand that fits, as `propagate` spreads it, and no worse one is returned. The first round
    starts from an earlier plan if there is one. A plan of one round is made simpler, as far as the
    options allow. Ablations give another compiler model than the
    machine's own, or other cost terms. Where memory is known to be scarce, every copy
    counts at once. Where only a plan that fits is of use, no search is for the leanest.

    Raises:
        ConstraintError: The user's wishes contradict one another, or no candidate meets them.
        TooLargeError: The program `must_fit`, and nothing that was found does.
    """
    clock, backend = stages or Stages(), compiler or backend_for(hardware)
    graph, buffers, wishes, costing = prepared(
        graph, mesh, hardware, wishes, options, backend, clock
    )
    parts = costing.parts
    pins = read_pins(graph, parts, wishes)
    rounds = rounds_of(graph, pins, parts, wishes)
    seconds_left = options.time_limit_seconds
    least_seconds = seconds_left * _LEAST_SHARE / len(rounds)
    solution: Solution | None = None
    decided: list[DecidedRound] = []
    for number, found in enumerate(rounds, start=1):
        now = found if solution is None else replace(found, decided=solution.decoded.candidates)
        limit = memory_limit if number == len(rounds) else None
        with _naming_round(rounds[:number]), clock.time(COSTS):
            encoder = Encoder(
                graph,
                buffers,
                costing,
                wishes,
                limit,
                round=now,
                streamable=streamable,
                corrections=options.corrections,
                op_terms=op_terms,
            )
            if is_scarce and limit is not None:
                encoder = _for_scarce_memory(encoder)
        fair = max(seconds_left / (len(rounds) - number + 1), least_seconds)
        share = replace(options, time_limit_seconds=fair)
        spent = clock.seconds.get(SEARCH, 0.0)
        searches = Searches(share, clock, progress)
        with _naming_round(rounds[:number]):
            by_hand = propagate if len(rounds) == 1 else None
            is_last = number == len(rounds)
            solution = _solve_round(
                encoder, searches, by_hand, start, must_fit=must_fit, is_last=is_last
            )
        seconds_left -= clock.seconds[SEARCH] - spent
        flat = tuple(pin for of_op in pins.values() for pin in of_op.values())
        decided.append(DecidedRound(now, flat, solution.decoded, solution.estimate))
    assert solution is not None
    return solution if len(rounds) == 1 else replace(solution, rounds=tuple(decided))


def prepared(
    graph: Graph,
    mesh: Mesh,
    hardware: Hardware,
    wishes: Wishes,
    options: SolveOptions,
    backend: Backend,
    clock: Stages,
) -> tuple[Graph, Buffers, Wishes, Costing]:
    """A program as the compiler keeps it, its storage, its wishes on the mesh, and its prices."""
    with clock.time("buffers"):
        graph = with_borders_on(_as_kept(graph, backend.layout), mesh)
        buffers = find_buffers(graph, backend)
    wishes = carried_on_other_meshes(wishes, mesh)
    parts = parts_for(graph, mesh, wishes, backend.layout.min_conv_batch)
    overlaps = options.overlap and backend.schedule.overlaps
    costing = Costing(cost_model_for(hardware, parts), parts, overlaps, backend)
    return graph, buffers, wishes, costing


def encode_scarce(
    graph: Graph,
    mesh: Mesh,
    hardware: Hardware,
    wishes: Wishes,
    memory_limit: int | None,
    options: SolveOptions,
    *,
    streamable: frozenset[str] = frozenset(),
    stages: Stages,
) -> tuple[Encoder, Encoded]:
    """The choice problem of a program whose residuals are chosen too, all priorities at once.

    No weight gradient waits there: memory schedulers run it as soon as that frees what it reads,
    and else keeping a residual and computing it again would take the same memory.
    """
    backend = backend_for(hardware)
    backend = replace(backend, schedule=replace(backend.schedule, deferred_past_matmuls=0))
    graph, buffers, wishes, costing = prepared(
        graph, mesh, hardware, wishes, options, backend, stages
    )
    with stages.time(COSTS):
        usual = Encoder(
            graph,
            buffers,
            costing,
            wishes,
            memory_limit,
            streamable=streamable,
            has_residuals_to_choose=True,
        )
        encoder = usual if memory_limit is None else _for_scarce_memory(usual)
        return encoder, encoder.encode()


def plan_further(
    solution: Solution,
    options: SolveOptions,
    *,
    stages: Stages | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """Search on where time cut a plan short; of a plan in rounds, in the last one.

    Args:
        solution: What was found so far; it stays where nothing is found that costs no more.
        options: For the rest of the search.
        stages: Where to count the time.
        progress: Told of a long solve.
    """
    searches = Searches(options, stages or Stages(), progress)
    result = searches.first(solution.encoded.problem, solution.choices)
    if result.choices is None:
        return at_end(solution, searches)
    with searches.stages.time("account"):
        found = solution_of(solution.encoder, solution.encoded, result)
    cheaper = _cheaper(followed(found, searches), solution, options.relative_gap)
    return _in_last_round(at_end(cheaper, searches), solution)


def simplified(
    solution: Solution,
    options: SolveOptions,
    *,
    stages: Stages,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """The plan made simpler, as far as the options allow; of a plan in rounds, the last one."""
    searches = Searches(options, stages, progress)
    return _in_last_round(simpler(solution, searches, options.simplicity), solution)


def with_least_peak(
    solution: Solution,
    options: SolveOptions,
    *,
    stages: Stages,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """Of a program that does not fit, the plan that tells by how much, searched for longer."""
    searches = Searches(options, stages, progress)
    found = leanest_as_lowered(solution, searches, LEANEST_GAP, SHORT)
    return _in_last_round(found, solution)


def plan_corrected(
    solution: Solution,
    corrections: Corrections,
    memory_limit: int | None,
    options: SolveOptions,
    *,
    known: Sequence[Sequence[int]] = (),
    margin: float = 0.0,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """Plan again at corrected costs, from the choices of an earlier plan; of rounds, the last one.

    Args:
        solution: The earlier plan.
        corrections: What was learnt from compiled plans; those it was made with are replaced.
        memory_limit: Bytes that a device may hold by the corrected model.
        options: For the search.
        known: Choices of plans that were compiled, beside the earlier plan's.
        margin: Of the costs, what differs from those counts more: as `cautious`.
        progress: Told of a long solve.

    Raises:
        NoPlanInTimeError: Time was up before any choices were found.
    """
    searches = Searches(options, Stages(), progress)
    limit, beside = solution.encoder.memory_limit, solution.encoded.problem.memory_limit
    encoder = solution.encoder.within(memory_limit, corrections)
    encoded = corrected(solution.encoded, corrections, encoder.node_costs)
    if memory_limit is not None:
        tables = 0 if limit is None or beside is None else limit - beside
        left = max(memory_limit - tables, 0)
        encoded = replace(encoded, problem=replace(encoded.problem, memory_limit=left))
    whole = encoded
    if margin:
        problem = cautious(encoded.problem, solution.choices, known, margin)
        encoded = replace(encoded, problem=problem)
    result = searches.first(encoded.problem, solution.choices)
    if result.status is Status.NO_SOLUTION:
        result = solved_from_leanest(encoded.problem, result, searches)
    found = at_end(followed(solution_of(encoder, encoded, result), searches), searches)
    if margin and found.is_feasible:  # nothing is proven at the prices themselves
        unproven = replace(found.result, lower_bound=0, bound_without_limit=0)
        found = replace(found, encoded=whole, result=unproven)
        result = as_answer(found, found.result, found.choices, options.relative_gap)
        found = replace(found, result=result)
    return _in_last_round(found, solution)


def _in_last_round(found: Solution, before: Solution) -> Solution:
    """A plan that takes the place of what the last round of an earlier one decided."""
    if not before.rounds:
        return found
    last = replace(before.rounds[-1], decoded=found.decoded, estimate=found.estimate)
    return replace(found, rounds=(*before.rounds[:-1], last))


def _cheaper(found: Solution, before: Solution, relative_gap: float) -> Solution:
    """The cheaper of two plans of one problem; what was proven for either holds."""
    if not before.is_feasible or (found.is_feasible and found.cost <= before.cost):
        return found
    proven = max(before.result.lower_bound, found.result.lower_bound)
    known = replace(before, result=replace(before.result, lower_bound=proven))
    return replace(known, result=as_answer(known, before.result, before.choices, relative_gap))


def _encoded(encoder: Encoder, *, must_fit: bool) -> tuple[Encoder, Encoded]:
    """A problem, and what encoded it: with every copy where memory is scarce.

    Raises:
        TooLargeError: It `must_fit`, and does not even with VMEM full of what is alive.
    """
    limit = encoder.memory_limit
    if limit is not None and not encoder.is_scarce:
        least = encoder.least_bytes()
        if must_fit and least - encoder.costing.backend.memory.vmem_bytes > limit:
            raise TooLargeError(least)
        if limit < _SCARCE * least:
            encoder = _for_scarce_memory(encoder)
    return encoder, encoder.encode()


def _require_room(encoder: Encoder, problem: Problem, result: Result) -> None:
    """Refuses a program of which a search found nothing that fits.

    Raises:
        TooLargeError: The leanest choices found do not fit with VMEM full of what is alive.
    """
    limit, beside_tables = encoder.memory_limit, problem.memory_limit
    if limit is None or beside_tables is None or result.least_peak is None:
        return
    if result.least_peak - encoder.costing.backend.memory.vmem_bytes > beside_tables:
        raise TooLargeError(result.least_peak + limit - beside_tables)


def _for_scarce_memory(encoder: Encoder) -> Encoder:
    """The same with what counts where memory is scarce, if that is anything."""
    if not encoder.costing.backend.memory.cse_reshards:
        return encoder
    return encoder.for_scarce_memory()


def _solve_round(
    encoder: Encoder,
    searches: Searches,
    propagate: Propagate | None,
    start: WarmStart | None,
    *,
    must_fit: bool,
    is_last: bool,
) -> Solution:
    with searches.stages.time(COSTS):
        encoder, encoded = _encoded(encoder, must_fit=must_fit)
    decided = encoder.round.decided
    hint: Sequence[int] | None = _as_decided(encoded, decided) if decided else None
    if start is not None and hint is None:
        with searches.stages.time(SEARCH):
            hint = start.choices(encoded, searches.options)
    result = searches.first(
        encoded.problem, hint, alike_must_fit=must_fit, seeks_leanest=encoder.is_scarce
    )
    if result.status is Status.NO_SOLUTION:
        result = solved_from_leanest(encoded.problem, result, searches)
    if must_fit:
        _require_room(encoder, encoded.problem, result)
    settled = searches.stages.settled
    solution = settled(lambda: _decided(encoder, encoded, result, searches, propagate))
    if not is_last:
        return settled(lambda: at_end(followed(solution, searches), searches))
    return settled(lambda: followed_and_simpler(solution, searches))


def _decided(
    encoder: Encoder,
    encoded: Encoded,
    result: Result,
    searches: Searches,
    propagate: Propagate | None,
) -> Solution:
    """The plan of the first search: what was found, or a plan written by hand, mended."""
    is_short = result.status is Status.FEASIBLE and not searches.stages.is_over
    by_hand = None
    if propagate is not None and (is_short or result.status is Status.NO_SOLUTION):
        with searches.stages.time("baselines"):
            by_hand = best_by_hand(encoder, encoded, propagate, searches.options, searches.stages)
    if by_hand is not None:
        result = searches.from_floor(encoded.problem, result, by_hand[1])
    elif searches.is_over and result.choices is None and result.least_peak_choices is None:
        result = searches.last(encoded.problem)
    with searches.stages.time("account"):
        solution = solution_of(encoder, encoded, result, is_lowered=False)
    if by_hand is not None and solution.choices == by_hand[1]:
        return replace(solution, hand_plan=by_hand[0])
    return solution


def _as_decided(encoded: Encoded, decided: Mapping[int, Candidate]) -> list[int]:
    """The choices of an earlier round where they are still offered, else the first ones."""
    choices = [
        candidates.index(decided[op]) if decided.get(op) in candidates else 0
        for op, candidates in zip(encoded.ops, encoded.candidates, strict=True)
    ]
    return choices + [_as_made(encoded, read, choices) for read in encoded.reads]


def _as_made(encoded: Encoded, read: SharedRead, choices: Sequence[int]) -> int:
    """The choice of a shared read that moves nothing."""
    maker = encoded.graph.maker(read.value)
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


def _as_kept(graph: Graph, layout: LayoutPolicy) -> Graph:
    """The program with intermediates as wide as the compiler keeps them; its borders stay."""
    border = {op.results[0] for op in graph.arguments} | {op.operands[0] for op in graph.results}

    def as_kept(value: Value) -> Value:
        bits = layout.intermediate_bits(value.dtype, value.bits)
        is_same = bits == value.bits or value.index in border
        return value if is_same else replace(value, bits=bits)

    return replace(graph, values=tuple(map(as_kept, graph.values)))
