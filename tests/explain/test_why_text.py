"""Explanations as text, against a golden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autoshard.explain.explanation import (
    AlikeTensor,
    Alternative,
    CollectiveChange,
    Estimate,
    Explanation,
    OpChange,
    Read,
    Refusal,
)
from autoshard.explain.why_text import format_explanation
from autoshard.sharding import parse_sharding

CheckGolden = Callable[[str, str], None]

GATE = "dot_general at mlp.py:12 (mlp)"
DOWN = "dot_general at mlp.py:14 (mlp)"


def explanation() -> Explanation:
    rows, columns, both, neither = map(
        parse_sharding,
        ('[{"model"}, {}]', '[{}, {"model"}]', '[{"data"}, {"model"}]', "[{}, {}]"),
    )
    return Explanation(
        name="params['blocks'][0]['w1']",
        path="in.3",
        type_text="f32[510, 2048]",
        chosen=columns,
        local_bytes=1_044_480,
        seconds=12.3e-3,
        peak_bytes=5_030_000_000,
        memory_budget=16_000_000_000,
        gap=0.004,
        num_shardings=6,
        asked=("pin `params**`: [{?}, {?}]",),
        alike=(
            AlikeTensor(
                name="result[0]['blocks'][0]['w1']",
                reason="the result that replaces this donated argument",
            ),
        ),
        reads=(
            Read(op=GATE, wanted=columns, steps=(), seconds=0.0),
            Read(op=GATE, wanted=columns, steps=(), seconds=0.0),
            Read(
                op="multiply at adam.py:3 (update)",
                wanted=neither,
                steps=("all-to-all over model", "all-gather over data, model"),
                seconds=2.5e-4,
            ),
        ),
        alternatives=(
            Alternative(
                sharding=both,
                status="optimal",
                extra_seconds=984e-6,
                least_extra_seconds=983e-6,
                peak_bytes=4_930_000_000,
                changes=(
                    OpChange(
                        op=GATE,
                        before_seconds=3.36e-3,
                        after_seconds=4.38e-3,
                        collectives=(
                            CollectiveChange(
                                kind="all-gather",
                                axes=("data",),
                                before_bytes=0.0,
                                after_bytes=262_144.0,
                            ),
                        ),
                    ),
                    OpChange(op=DOWN, before_seconds=1.0e-4, after_seconds=6.4e-5, collectives=()),
                ),
            ),
            Alternative(
                sharding=neither,
                status="feasible",
                extra_seconds=9.1e-3,
                least_extra_seconds=5.0e-3,
                peak_bytes=9_930_000_000,
                changes=(),
            ),
            Alternative(
                sharding=rows,
                status="infeasible",
                extra_seconds=None,
                least_extra_seconds=0.0,
                peak_bytes=17_000_000_000,
                changes=(),
            ),
        ),
        estimates=(Estimate(sharding=parse_sharding('[{"data"}, {}]'), extra_seconds=1.2e-2),),
        refusals=(Refusal(dimension=0, axes=("model",), reason="510 is no multiple of 4"),),
        notes=("train:train_step was planned again to price this",),
    )


@pytest.mark.parametrize("width", [60, 100])
def test_an_explanation_reads_as_its_golden_does(check_golden: CheckGolden, width: int) -> None:
    check_golden(f"why_{width}.txt", format_explanation(explanation(), width))


def test_an_explanation_prints_itself() -> None:
    assert str(explanation()) == format_explanation(explanation())


def test_what_is_not_there_has_no_section() -> None:
    bare = replace(
        explanation(),
        asked=(),
        alike=(),
        reads=(),
        alternatives=(),
        estimates=(),
        refusals=(),
        notes=(),
        memory_budget=None,
        gap=0.0,
    )
    assert format_explanation(bare) == (
        "params['blocks'][0]['w1']: f32[510, 2048]\n"
        "sharding  P(None, 'model'), 1.04 MB per device\n"
        "plan      12.3 ms a step (proven the best), memory peak 5.03 GB\n"
    )


def test_the_best_alternative_is_the_cheapest_that_there_is_a_plan_for() -> None:
    found = explanation()
    assert found.best_alternative == found.alternatives[0]
    assert replace(found, alternatives=found.alternatives[2:]).best_alternative is None
