"""Stages of planning: their seconds, who is told, and the log."""

from __future__ import annotations

import logging

import pytest

from autoshard.planning.stages import StageProgress, Stages
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
