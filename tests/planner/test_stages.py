"""Stages of planning: their seconds, who is told, and the log."""

from __future__ import annotations

import gc
import logging
import math
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from autoshard.planning import stages as stages_module
from autoshard.planning.stages import SEARCH, StageProgress, Stages, TimeLimit, collecting
from solvers import Progress


def test_whoever_is_told_hears_of_every_stage_and_of_the_end() -> None:
    told: list[StageProgress] = []
    stages = Stages(told.append)
    with stages.time("graph"):
        stages.tell("half")
    assert [(sign.stage, sign.note) for sign in told] == [
        ("graph", ""),
        ("graph", "half"),
        ("", ""),
    ]
    assert [*stages.seconds] == ["graph"]


def test_a_stage_within_a_stage_gives_the_word_back() -> None:
    told: list[str] = []
    stages = Stages(lambda sign: told.append(sign.stage))
    with stages.time("mesh search"), stages.time("graph"):
        pass
    assert told == ["mesh search", "graph", "mesh search", ""]


def test_costs_of_a_solve_are_told_in_seconds() -> None:
    told: list[StageProgress] = []
    stages = Stages(told.append)
    with stages.time("solve"):
        stages.tell_solve(Progress(seconds=1.0, stage="bounds", cost=2 * 10**9, lower_bound=10**9))
    sign = told[1]
    assert (sign.note, sign.step_seconds, sign.least_step_seconds) == ("bounds", 2e-3, 1e-3)


def test_stages_are_logged_under_autoshard(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="autoshard"), Stages().time("graph"):
        pass
    (record,) = caplog.records
    assert record.name == "autoshard"
    assert record.getMessage().startswith("graph took 0.0")


def test_stages_count_against_the_limit_and_what_lies_between_them_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(stages_module, "time", SimpleNamespace(perf_counter=lambda: now))
    stages = Stages(limit_seconds=10.0)
    now = 100.0
    assert stages.seconds_left == 10.0
    with stages.time("mesh search"), stages.time("graph"):
        now += 4.0
        assert stages.seconds_left == 6.0
    now += 100.0
    assert (stages.seconds_left, stages.is_over) == (6.0, False)
    with stages.time("graph"):
        now += 7.0
    assert (stages.seconds_left, stages.is_over) == (0.0, True)


def test_what_a_command_spent_before_planning_is_part_of_its_limit() -> None:
    limit = TimeLimit.of(10.0, 4.0)
    assert limit == 10.0
    assert Stages(limit_seconds=limit).seconds_left == pytest.approx(6.0)
    assert Stages(limit_seconds=limit + 1).seconds_left == pytest.approx(11.0)


def test_an_interrupt_ends_a_step_with_what_is_known_and_a_second_one_ends_it_all() -> None:
    stages, calls = Stages(), []

    def step() -> str:
        calls.append(stages.is_over)
        if len(calls) != 2:
            raise KeyboardInterrupt
        return "known"

    assert stages.settled(step) == "known"
    assert calls == [False, True]
    with pytest.raises(KeyboardInterrupt):
        stages.settled(step)


def _until(is_over: Callable[[], bool], seconds: float) -> bool:
    """True where something becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not is_over():
        time.sleep(0.01)
    return is_over()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_step_that_looks_hears_of_an_interrupt_and_goes_on(number: signal.Signals) -> None:
    """Its work was thrown away and done again."""
    stages, calls = Stages(), []

    def step() -> str:
        calls.append(stages.is_over)
        signal.raise_signal(number)
        return "known" if _until(lambda: stages.is_over, 10) else "late"

    stop = signal.default_int_handler
    before = [signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        assert stages.settled(step) == "known"
        assert calls == [False]
        with pytest.raises(KeyboardInterrupt):
            stages.settled(step)
        assert {signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)} == {stop}
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


def test_a_step_that_does_not_look_is_broken_off_and_done_again() -> None:
    stages, calls = Stages(), []

    def step() -> str:
        calls.append(stages.is_over)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)
            time.sleep(30)
        return "known"

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        began = time.monotonic()
        assert stages.settled(step) == "known"
        assert time.monotonic() - began < 20
        assert calls == [False, True]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_search_is_interrupted_at_once_and_a_second_interrupt_ends_a_step() -> None:
    stages = Stages()

    def searched() -> str:
        with stages.time(SEARCH):
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                return "best so far"
        return "whole"

    def insisted() -> str:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return "whole"

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert stages.settled(searched) == "best so far"
        assert not stages.is_interrupted  # the search says so
        with pytest.raises(KeyboardInterrupt):
            stages.settled(insisted)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_stage_is_over_after_its_seconds_or_by_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(stages_module, "time", SimpleNamespace(perf_counter=lambda: now))
    stages = Stages(limit_seconds=8.0)
    is_over = stages.is_over_in(0.4)
    now = 0.3
    assert not is_over()
    now = 0.5
    assert is_over()
    assert not Stages().is_over_in(math.inf)()
    stages.is_interrupted = True
    assert stages.is_over_in(math.inf)()


def test_cycles_are_looked_for_seldom_in_a_long_stage_and_never_in_another() -> None:
    before = gc.get_threshold()
    with Stages().time("graph"):
        assert not gc.isenabled()
    with Stages().time("solve"):
        assert gc.isenabled()
        assert gc.get_threshold()[0] >= 100 * before[0]
        with Stages().time("account"):
            assert not gc.isenabled()
        assert gc.isenabled()
    assert gc.isenabled()
    assert gc.get_threshold() == before


def test_what_stages_made_is_frozen_until_the_plan_is_made() -> None:
    with collecting(never=False):
        with Stages().time("graph"):
            made = [[number] for number in range(1000)]
        assert gc.get_freeze_count() >= len(made)
    assert gc.get_freeze_count() == 0
    with Stages().time("graph"):
        made = [[number] for number in range(1000)]
    assert gc.get_freeze_count() == 0


def test_what_the_process_froze_itself_stays_frozen() -> None:
    gc.freeze()
    try:
        with collecting(never=False), Stages().time("graph"):
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_plans_made_at_once_leave_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    for name in ("graph", "solve"):
        first, second = Stages().time(name), Stages().time(name)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert gc.isenabled() is (name == "solve")
        second.__exit__(None, None, None)
        assert gc.isenabled()
        assert gc.get_threshold() == before
