"""Collectives beside computing, from `optimize` to the report and the file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.plans.plan import PlanData
from autoshard.plans.plan_json import dump_plan, parse_plan
from autoshard.report import format_report

SIZE = 4096
WEIGHTS = [jax.ShapeDtypeStruct((SIZE, SIZE), jnp.bfloat16) for _ in range(3)]
X = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.bfloat16)


def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    def loss(weights: list[jax.Array]) -> jax.Array:
        value = x
        for weight in weights:
            value = jnp.tanh(value @ weight)
        mean: jax.Array = jnp.mean(value.astype(jnp.float32) ** 2)
        return mean

    gradients = jax.grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


def planned(hardware: str, overlap: str = "auto") -> PlanData:
    return autoshard.optimize(
        step,
        WEIGHTS,
        X,
        mesh="x=8",
        hardware=hardware,
        memory_budget=None,
        donate_argnums=0,
        overlap=overlap,
    ).data


def overlapped(plan: PlanData) -> float:
    assert plan.overlapped_seconds is not None
    return plan.overlapped_seconds


def test_a_plan_made_for_overlap_is_faster_with_it_than_one_that_was_not() -> None:
    beside, alone = planned("tpu-v5e"), planned("tpu-v5e", overlap="none")
    assert overlapped(beside) < overlapped(alone) <= alone.seconds
    assert beside.compute_seconds <= overlapped(beside) <= beside.seconds
    by_hand = {b.name: b for b in beside.baselines}
    assert all(
        b.overlapped_seconds is not None and b.overlapped_seconds <= b.seconds
        for b in by_hand.values()
    )
    assert overlapped(beside) <= (by_hand["fsdp"].overlapped_seconds or 0) * (1 + 1e-6)


def test_the_report_says_what_overlap_gains_and_the_file_keeps_it() -> None:
    plan = planned("tpu-v5e")
    line = next(row for row in format_report(plan).splitlines() if row.startswith("overlapped"))
    assert line.endswith("of them hidden")
    assert parse_plan(dump_plan(plan)) == plan


def test_where_the_backend_waits_for_collectives_nothing_is_said_of_overlap() -> None:
    plan = planned("cpu-host")
    assert plan.overlapped_seconds is None
    assert all(baseline.overlapped_seconds is None for baseline in plan.baselines)
    assert "overlapped" not in format_report(plan)


def test_a_file_from_before_is_read_without_it(tmp_path: Path) -> None:
    plan = planned("tpu-v5e")
    members = json.loads(dump_plan(plan))
    del members["overlapped_seconds"]
    for baseline in members["baselines"]:
        del baseline["overlapped_seconds"]
    (tmp_path / "plan.json").write_text(json.dumps(members))
    loaded = autoshard.load_plan(tmp_path / "plan.json").data
    assert loaded == replace(
        plan,
        overlapped_seconds=None,
        baselines=tuple(replace(b, overlapped_seconds=None) for b in plan.baselines),
    )


def test_another_word_for_overlap_is_refused() -> None:
    with pytest.raises(autoshard.InputError) as caught:
        planned("tpu-v5e", overlap="always")
    assert str(caught.value) == (
        "overlap is 'always', which is no way to price collectives\n"
        "  where: overlap='always'\n"
        '  fix: use "auto" or "none"'
    )
