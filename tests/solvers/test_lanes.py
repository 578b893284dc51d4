"""Lanes side by side, an engine in a process of its own, and being asked to stop."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace

import pytest

from solvers import EngineError, Problem, Status, evaluate, solve
from solvers.engines.brute_force import BruteForce
from solvers.engines.mathopt_highs import MathOptHighs
from solvers.engines.protocol import Answer, Request
from solvers.incumbent import Incumbent
from solvers.lanes import Lane, run_lanes
from solvers.own_process import OwnProcess
from solvers.presolve import reduce_fully
from tests.solvers.instances import LayeredShape, layered_problem, random_problem

SMALL = random_problem(5, has_memory=False)
LAYERED = layered_problem(LayeredShape(num_layers=3, ops_per_layer=10, num_choices=8))


def nothing() -> None:
    return None


def wait(problem: Problem, incumbent: Incumbent) -> None:
    del problem
    while not incumbent.is_over():
        time.sleep(0.01)


def test_lanes_run_until_all_return_and_share_what_they_find() -> None:
    def offer(problem: Problem, shared: Incumbent) -> None:
        shared.offer([0] * problem.num_nodes, 5)

    incumbent = Incumbent()
    lanes = [
        Lane("one", lambda _, shared: shared.offer_bound(3), incumbent),
        Lane("two", offer, incumbent),
    ]
    run_lanes(SMALL, lanes, is_settled=lambda: False, watch=nothing, grace_seconds=1)
    assert (incumbent.best()[0], incumbent.bound()) == (5, 3)
    assert all(lane.seconds is not None for lane in lanes)


def test_lanes_are_stopped_once_the_question_is_settled() -> None:
    incumbent = Incumbent()
    began = time.monotonic()
    lane = Lane("waits", wait, incumbent)
    run_lanes(SMALL, [lane], is_settled=lambda: True, watch=nothing, grace_seconds=5)
    assert time.monotonic() - began < 2
    assert incumbent.is_stopped()


def test_a_lane_that_does_not_return_is_left_behind() -> None:
    release = threading.Event()

    def stay(problem: Problem, incumbent: Incumbent) -> None:
        del problem, incumbent
        release.wait(30)

    lane = Lane("stuck", stay, Incumbent())
    began = time.monotonic()
    run_lanes(SMALL, [lane], is_settled=lambda: True, watch=nothing, grace_seconds=0.1)
    assert time.monotonic() - began < 2
    release.set()


def test_one_lane_may_fail_but_not_all() -> None:
    def fail(problem: Problem, incumbent: Incumbent) -> None:
        del problem, incumbent
        raise EngineError("broke", where="engine x")

    incumbent = Incumbent()
    one_works = [Lane("a", fail, incumbent), Lane("b", lambda *_: None, incumbent)]
    run_lanes(SMALL, one_works, is_settled=lambda: False, watch=nothing, grace_seconds=1)
    assert incumbent.log() == ("a failed: engine x: broke",)
    with pytest.raises(EngineError, match="engine x: broke"):
        run_lanes(
            SMALL,
            [Lane("a", fail, Incumbent())],
            is_settled=lambda: False,
            watch=nothing,
            grace_seconds=1,
        )


def test_a_engine_in_its_own_process_answers_as_it_does_here() -> None:
    reduced = reduce_fully(replace(LAYERED, memory_limit=10**9)).problem
    here = MathOptHighs().solve(reduced, Request())
    incumbent = Incumbent()
    with OwnProcess() as process:
        there = process.solve(MathOptHighs(), reduced, incumbent)
        again = process.solve(MathOptHighs(), reduced, Incumbent())
    assert there is not None
    assert again is not None
    assert (there.choices, there.lower_bound) == (here.choices, here.lower_bound)
    assert again.choices == here.choices
    if here.choices is not None:
        assert incumbent.best()[0] == evaluate(reduced, here.choices).cost


def test_a_refusal_crosses_from_the_other_process_as_it_was() -> None:
    with OwnProcess() as process, pytest.raises(EngineError) as caught:
        process.solve(BruteForce(most_combinations=1), LAYERED, Incumbent())
    assert str(caught.value).startswith("engine brute_force: ")
    assert str(caught.value).endswith('fix: choose engine="auto"')


@dataclass(frozen=True, slots=True)
class Sleeper:
    """Ignores every request to stop, as a library may."""

    name: str = "sleeper"
    is_polling: bool = False

    def solve(self, problem: Problem, request: Request) -> Answer:
        del problem
        request.tell("sleeper", None, None, 7)
        time.sleep(60)
        return Answer(choices=None)


@dataclass(frozen=True, slots=True)
class Dier(Sleeper):
    """Takes its process along."""

    name: str = "dier"

    def solve(self, problem: Problem, request: Request) -> Answer:
        del problem, request
        raise SystemExit(3)


def test_a_engine_that_does_not_stop_is_stopped_with_its_process() -> None:
    incumbent = Incumbent(
        deadline=time.monotonic() + 50, on_change=lambda *_: incumbent.stop()
    )  # it is heard before it is stopped
    with OwnProcess() as process:
        assert process.solve(Sleeper(), SMALL, incumbent) is None
        stopped = time.monotonic()
    assert time.monotonic() - stopped < 5
    assert incumbent.bound() == 7


def test_a_process_that_dies_is_an_error_that_names_the_engine() -> None:
    with OwnProcess() as process, pytest.raises(EngineError, match="engine dier: its process"):
        process.solve(Dier(), SMALL, Incumbent())


@pytest.mark.parametrize("last_words", [b"", b"\x80\x05\x95\xff"])
def test_a_process_ends_with_its_parent_even_in_the_middle_of_a_message(last_words: bytes) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "solvers.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    worker.communicate(last_words, timeout=30)
    assert worker.returncode == 0


def test_an_event_set_beforehand_still_gives_the_hint_back() -> None:
    stop = threading.Event()
    stop.set()
    limited = replace(LAYERED, memory_limit=10**12)
    best = solve(limited)
    assert best.choices is not None
    result = solve(limited, hint=best.choices, stop=stop)
    assert result.is_interrupted
    assert result.cost == best.cost
    assert result.log[-1] == "interrupted: this is the best so far"


def test_an_interrupt_in_the_calling_thread_returns_the_best_so_far() -> None:
    calls = []

    def interrupt(progress: object) -> None:
        calls.append(progress)
        if len(calls) == 2:
            raise KeyboardInterrupt

    hint = solve(LAYERED).choices
    result = solve(LAYERED, hint=hint, progress=interrupt)
    assert result.is_interrupted
    assert result.choices is not None
    assert result.status in (Status.FEASIBLE, Status.OPTIMAL)
