"""The one entry point: reduce, pick who solves, let them work side by side, restore, recheck."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from solvers.catalog import AUTO, engine_by_name, pick_solver
from solvers.class_search import solve_by_class
from solvers.collector import no_collections
from solvers.compile_ahead import compiler
from solvers.engines.apart import Apart
from solvers.engines.elimination import Elimination
from solvers.engines.protocol import Engine, Request
from solvers.evaluate import evaluate
from solvers.exact_lane import ExactLane, run_engine
from solvers.few_rows import solve_at_few_rows
from solvers.first_moves import best_of_answers, moved_on
from solvers.grounded import Grounded
from solvers.incumbent import Incumbent
from solvers.lanes import POLL_SECONDS, Lane, run_lanes
from solvers.memory_limits import OneLimit, with_one_limit
from solvers.memory_rows import least_use
from solvers.own_process import OwnProcess
from solvers.presolve import reduce_fully
from solvers.problem import Problem
from solvers.result import Progress, Result
from solvers.run import Run
from solvers.scalable import run_scalable
from solvers.smallest_peak import find_smallest_peak, seek_leanest
from solvers.verify_problem import require_problem

TIGHT_LIMIT = 2
"""A limit below this many times the least use of memory any choices could have will bind."""

SHARE_AT_FEW_ROWS = 0.8
"""Of the time left: how long to look with the limit at a few times only, where a gap is allowed."""

SHARE_WITHOUT_LIMIT = 0.05
"""Of the time limit: how long to go on without the memory limit while answers do not fit it."""

HEAD_START_SHARE, MOST_HEAD_START_SECONDS = 0.05, 2.0
"""Of the time limit: what bounds get alone where no memory row can bind; most are done by then."""

PATIENT_HEAD_START_SHARE, MOST_PATIENT_HEAD_START_SECONDS = 0.2, 20.0
"""The same where a gap is allowed: bounds nearly always meet it, and a second lane slows them."""

MOST_WHOLE_COLUMNS = 10**9
"""Of a problem that is solved whole too after its copies chose alike: 8 GB, if no two of its tables
were equal. A choice; 126 layers of a 405B Llama on 256 devices have 1.9e9."""

PATIENCE_SECONDS = 10.0
"""What the exact lane gets, where a gap is allowed and memory binds, before another lane's proof
ends the search. Sooner its answer decides, which no clock has a say in."""

WORTH_A_PROCESS = 200_000
"""Columns of an original from which a process for the exact lane is started at once."""


def solve(
    problem: Problem,
    *,
    engine: str = AUTO,
    time_limit_seconds: float | None = None,
    seed: int = 0,
    relative_gap: float = 0.0,
    hint: Sequence[int] | None = None,
    hints: Sequence[Sequence[int]] = (),
    lower_bound: int = 0,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    by_class: bool = True,
    copies_alike: bool = False,
    alike_must_fit: bool = False,
    seeks_leanest: bool = False,
) -> Result:
    """Finds the cheapest choices that fit the memory limit, and proves how good they are.

    With "auto" a problem whose limit looks loose is first solved without it, which reduces far
    better; only where that answer does not fit, the limit comes in. With the limit, an exact and a
    scalable lane work side by side. They tell each other what they find, unless a gap is allowed:
    then the exact lane's answer stands where it meets the gap, so that equal seeds give equal
    answers. Where a gap is allowed and the problem repeats itself, it is first solved with one
    choice for all copies of a part; `solvers.class_search` bounds all other answers.

    Args:
        problem: What to solve.
        engine: "auto" or the name of an engine in `solvers.catalog.CATALOG`.
        time_limit_seconds: Wall time; None for no limit.
        seed: Equal seeds give equal costs as long as the time limit does not cut.
        relative_gap: Stop once ``(cost - lower_bound) / cost`` is at most this.
        hint: Choices to start from; they need not be allowed.
        hints: More of them.
        lower_bound: A cost that no answer is known to be below, as of a search with a higher limit.
        progress: Called now and then while solving.
        stop: Set it, from any thread or signal handler, to get the best so far. An interrupt
            (`KeyboardInterrupt`) in the calling thread does the same.
        by_class: Look for copies of parts first, with "auto".
        copies_alike: Where that finds them, only answers in which copies choose alike; the lower
            bound is on these.
        alike_must_fit: Where that finds them and none of these answers fits, no others are looked
            for: all copies as lean as one can be are nearly always the leanest.
        seeks_leanest: Where the cheapest choices do not fit, find those with the smallest peak
            before any others, with "auto". They are mostly found sooner than any others near the
            limit, and moves from them towards cheaper choices are found at once.

    Raises:
        ProblemError: `verify_problem` finds faults, or a hint does not match the problem.
        EngineError: The engine is unknown, cannot run, or refuses the problem.
    """
    began = time.monotonic()
    require_problem(problem)
    all_hints = (*(() if hint is None else (hint,)), *hints)
    for given in all_hints:
        evaluate(problem, given)  # Raises where it does not match.
    if problem.memory_limits:
        one = with_one_limit(problem)
        found = solve(
            one.problem,
            engine=engine,
            time_limit_seconds=time_limit_seconds,
            seed=seed,
            relative_gap=relative_gap,
            hints=[one.extend(given) for given in all_hints],
            lower_bound=lower_bound,
            progress=progress,
            stop=stop,
            by_class=by_class,
            copies_alike=copies_alike,
            alike_must_fit=alike_must_fit,
            seeks_leanest=seeks_leanest,
        )
        return _of_original(problem, one, found)
    chosen = None if engine == AUTO else engine_by_name(engine)
    run = Run(
        problem=problem,
        deadline=None if time_limit_seconds is None else began + time_limit_seconds,
        seed=seed,
        relative_gap=relative_gap,
        progress=progress,
        stop=threading.Event() if stop is None else stop,
        seeks_leanest=seeks_leanest,
        began=began,
        lower_bound=lower_bound,
    )
    for given in all_hints:
        run.offer(given)
    try:
        if chosen is None:
            is_tied, is_large = False, problem.num_columns > MOST_WHOLE_COLUMNS
            if by_class and relative_gap > 0 and not run.is_done():
                is_tied = solve_by_class(run, _solve_auto, tied_alone=copies_alike, is_all=is_large)
            is_alone = copies_alike or is_large
            is_enough = is_tied and (is_alone or (alike_must_fit and run.cost is None))
            if not is_enough and not run.is_done() and not run.is_over():
                _solve_auto(run)
        else:
            _solve_with(run, chosen, use_memory=True)
    except KeyboardInterrupt:
        run.stop.set()
    run.is_interrupted = run.stop.is_set()
    if run.is_interrupted:
        run.log.append("interrupted: this is the best so far")
    return run.result()


def _of_original(problem: Problem, one: OneLimit, found: Result) -> Result:
    """Leaves out what stood for the lower limits; peaks become those of the original."""
    if found.choices is not None:
        choices = one.restore(found.choices)
        told = evaluate(problem, choices)
        leanest = None if found.leanest is None else one.restore(found.leanest)
        return replace(
            found,
            choices=choices,
            peak=told.peak,
            peak_time=told.peak_time,
            leanest=leanest,
            memory_prices={},
        )
    found = replace(found, memory_prices={})
    if found.least_peak_choices is None:
        return found
    choices = one.restore(found.least_peak_choices)
    told = evaluate(problem, choices)
    return replace(
        found,
        least_peak_choices=choices,
        least_peak=told.peak,
        least_peak_time=told.peak_time,
        least_peak_bound=0,
        leanest=None if found.leanest is None else choices,
    )


def _solve_auto(run: Run) -> None:
    limit = run.problem.memory_limit
    if limit is None:
        _solve_without_memory(run)
        return
    least, at = least_use(run.problem)
    if limit < least:
        run.is_infeasible = True
        run.least_peak_bound, run.clashing_times = least, (at,)
        run.log.append(f"the least usages add up to {least} at time {at}, the limit is {limit}")
        find_smallest_peak(run)
        return
    has_few_rows = run.relative_gap > 0 and run.problem.num_columns >= WORTH_A_PROCESS
    if run.knows_cheapest():
        run.log.append("what is cheapest is known, and does not fit: the memory limit comes in")
    elif limit >= TIGHT_LIMIT * least or has_few_rows:
        run.log.append(f"the limit {limit} is above the least use {least}: first without it")
        fits = _solve_without_memory(run)
        if run.is_done() or run.is_over():
            return
        end = "no cheapest choices were found" if fits else "the cheapest choices do not fit"
        run.log.append(f"{end}: the memory limit comes in")
    else:
        run.log.append(
            f"the limit {limit} is below {TIGHT_LIMIT} times the least use {least}: it will bind"
        )
    seek_leanest(run)
    if has_few_rows:
        _move_on(run, best_of_answers)
        _solve_at_few_rows(run)
        if run.is_done() or run.is_over():
            return
    _move_on(run, moved_on)
    _solve_within_memory(run)


def _move_on(run: Run, make: Callable[..., list[tuple[int, ...]]]) -> None:
    """Makes what it can of answers that fit, where a gap is allowed."""
    if run.relative_gap == 0 or run.cost is None or run.is_over():
        return
    before = run.cost
    request = Request(
        deadline=run.deadline, seed=run.seed, relative_gap=run.relative_gap, stop=run.stop.is_set
    )
    with run.stage("moves"):
        for choices in make(run.problem, run.hints, request):
            run.offer(choices)
    run.log.append(f"moves from answers that fit: from {before} to {run.cost}")


def _reduce(run: Run, *, use_memory: bool) -> Grounded | None:
    """Presolves; returns None where forbidden costs leave nothing."""
    suffix = "" if use_memory else " without memory"
    with run.stage(f"presolve{suffix}"), no_collections():
        reduced = reduce_fully(run.problem, use_memory=use_memory, is_over=run.is_over)
    run.reduced_nodes = reduced.problem.num_nodes
    run.reduced_columns = reduced.problem.num_columns
    run.log.append(
        f"presolve{suffix}: {run.problem.num_nodes} nodes, {run.problem.num_columns} columns "
        f"became {run.reduced_nodes} nodes, {run.reduced_columns} columns, "
        f"{len(reduced.row_times)} memory rows"
    )
    if reduced.is_infeasible:
        run.is_infeasible = True
        run.log.append("forbidden costs leave no choices")
        if use_memory and run.problem.memory_limit is not None:
            find_smallest_peak(run)
        return None
    return Grounded.of(reduced)


def _solve_without_memory(run: Run) -> bool:
    """Solves as if there were no limit; returns whether the answer is allowed."""
    is_of_limit = run.lower_bound > run.bound_without_limit
    is_allowed = _solve_with(run, None, use_memory=False)
    if not is_of_limit:
        run.bound_without_limit = run.lower_bound
    return is_allowed


def _solve_with(run: Run, engine: Engine | None, *, use_memory: bool) -> bool:
    """Lets one engine solve; returns whether its answer is allowed."""
    grounded = _reduce(run, use_memory=use_memory)
    if grounded is None:
        return False
    is_wide = False
    if engine is None:
        pick = pick_solver(grounded.reduced.problem)
        is_wide = not isinstance(pick.engine, Elimination)
        engine = Apart(pick.engine)
        run.log.append(f"picked {engine.name}: {pick.why}")
    run.engine = engine.name
    incumbent = run.incumbent_for(grounded)
    hints = tuple(grounded.reduce(hint) for hint in run.hints)
    lanes = [Lane(engine.name, run_engine(engine, hints), incumbent)]
    if is_wide:
        lanes.append(
            _scalable_lane(
                run,
                grounded,
                incumbent,
                head_start=_head_start(run),
            )
        )
    name = f"solve{'' if use_memory else ' without memory'}"
    until = None
    if not use_memory and run.problem.memory_limit is not None and run.deadline is not None:
        until = time.monotonic() + SHARE_WITHOUT_LIMIT * (run.deadline - run.began)
    with run.stage(name):
        return _run(run, grounded, lanes, name, until)


def _head_start(run: Run) -> float:
    """Seconds that bounds get alone where no memory row can bind."""
    if run.relative_gap > 0:
        return run.share_of_limit(PATIENT_HEAD_START_SHARE, MOST_PATIENT_HEAD_START_SECONDS)
    return run.share_of_limit(HEAD_START_SHARE, MOST_HEAD_START_SECONDS)


def _solve_at_few_rows(run: Run) -> None:
    """Looks for the gap allowed with the limit at a few times only; see `solvers.few_rows`."""
    incumbent = Incumbent(
        deadline=run.deadline,
        seed=run.seed,
        relative_gap=run.relative_gap,
        lower_bound=run.lower_bound,
    )
    if run.deadline is not None:
        left = max(0.0, run.deadline - time.monotonic())
        incumbent.deadline = time.monotonic() + SHARE_AT_FEW_ROWS * left
    hints = tuple(run.hints)
    name = "few rows"
    lane = Lane(name, lambda problem, shared: solve_at_few_rows(problem, shared, hints), incumbent)
    run.engine = name
    with run.stage(name):
        try:
            run_lanes(
                run.problem,
                [lane],
                is_settled=lambda: run.is_over() or incumbent.is_over(),
                watch=lambda: run.watch(name, 0, [incumbent]),
                grace_seconds=run.grace_seconds(),
            )
        finally:
            run.log += incumbent.log()
            run.lower_bound = max(run.lower_bound, incumbent.bound())
            run.prices = incumbent.prices()
            for _, choices in (incumbent.least_peak(), incumbent.best()):
                if choices is not None:
                    run.offer(choices)
            run.report(name, run.cost, run.lower_bound)


def _solve_within_memory(run: Run) -> None:
    """Lets the exact and the scalable lane work side by side."""
    with ExitStack() as stack:
        is_large = run.problem.num_columns >= WORTH_A_PROCESS
        if is_large:
            compiler().start()
        process = stack.enter_context(OwnProcess()) if is_large else None
        grounded = _reduce(run, use_memory=True)
        if grounded is None:
            return
        if grounded.problem.memory_limit is None:
            process = None
        exact = ExactLane(tuple(grounded.reduce(hint) for hint in run.hints), process)
        run.engine = "lanes"
        run.log.append(
            f"memory rows can bind: {exact.describe(grounded.problem)} on one core, message "
            "passing and moves on the other"
        )
        shared = run.incumbent_for(grounded)
        lanes = [
            Lane("exact lane", exact, shared),
            _scalable_lane(run, grounded, shared, head_start=0.0),
        ]
        with run.stage("solve"):
            _run(run, grounded, lanes, "solve")


def _scalable_lane(run: Run, grounded: Grounded, shared: Incumbent, *, head_start: float) -> Lane:
    """Message passing and moves; with an incumbent of its own where a gap is allowed.

    Args:
        run: The solve.
        grounded: What the lane works on.
        shared: The exact lane's.
        head_start: Seconds it waits for the exact lane to be done.
    """

    def lane(problem: Problem, incumbent: Incumbent) -> None:
        began = time.monotonic()
        while time.monotonic() < began + head_start:
            if incumbent.is_over():
                return
            time.sleep(POLL_SECONDS)
        run_scalable(problem, incumbent)

    own = shared if run.relative_gap == 0 else run.incumbent_for(grounded)
    return Lane("scalable lane", lane, own)


def _run(
    run: Run, grounded: Grounded, lanes: list[Lane], stage: str, until: float | None = None
) -> bool:
    """Runs lanes and takes over what they found; returns whether the first one's is allowed.

    The first lane decides: once it returns with the gap met the others' answers are not asked for.
    Where memory binds it has `PATIENCE_SECONDS`; then another lane's proof ends the search.

    Args:
        run: Keeps what is found.
        grounded: What the lanes work on.
        lanes: Run at the same time.
        stage: For progress.
        until: `time.monotonic` value from which on an answer that is not allowed ends the search.
    """
    incumbents = list({id(lane.incumbent): lane.incumbent for lane in lanes}.values())
    first = lanes[0].incumbent
    patient_until = time.monotonic() + PATIENCE_SECONDS

    def is_proven_elsewhere() -> bool:
        """Whether another lane met the gap within memory, and the first had its time."""
        return (
            grounded.problem.memory_limit is not None
            and time.monotonic() >= patient_until
            and any(incumbent.is_over() for incumbent in incumbents[1:])
        )

    def is_settled() -> bool:
        is_at_end = run.deadline is None and lanes[0].seconds is not None
        is_found = first.best()[0] is not None
        if until is not None and time.monotonic() >= until and is_found and not does_fit():
            return True
        return run.is_over() or first.is_over() or is_at_end or is_proven_elsewhere()

    judged: dict[int | None, bool] = {None: True}
    is_relaxed = run.problem.memory_limit is not None and grounded.problem.memory_limit is None

    def does_fit() -> bool:
        if not is_relaxed:
            return True
        cost, choices = first.best()
        if choices is not None and cost not in judged:
            judged[cost] = evaluate(run.problem, grounded.restore(choices)).is_allowed
        return judged[cost]

    try:
        run_lanes(
            grounded.problem,
            lanes,
            is_settled=is_settled,
            watch=lambda: run.watch(stage, grounded.constant, incumbents, does_fit=does_fit()),
            grace_seconds=run.grace_seconds(),
        )
    finally:
        if is_relaxed:  # all of them, not only those that were the best at a look
            for choices in first.kept():
                run.offer(grounded.restore(choices))
        is_allowed = run.take(grounded, first)
        if not run.is_done():
            for incumbent in incumbents[1:]:
                run.take(grounded, incumbent)
        run.report(stage, run.cost, run.lower_bound)
    is_peak_unknown = run.leanest is None or grounded.reduced.has_dropped_unfitting
    if run.is_infeasible and is_peak_unknown and grounded.problem.memory_limit is not None:
        find_smallest_peak(run)
    return is_allowed
