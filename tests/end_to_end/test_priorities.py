"""Batch first, then Megatron, then ZeRO: rounds of priorities, planned and run on 8 devices."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from jax.ad_checkpoint import checkpoint_name

import autoshard
from autoshard.cli import main
from autoshard.sharding import parse_sharding
from autoshard.sharding.spec_text import format_spec

WIDTH, HIDDEN, ROWS = 128, 512, 64
MOMENTS = ("m", "v")


def loss(weights: dict[str, Any], x: Any, y: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ weights["up"]) @ weights["down"] - y) ** 2)


def adam_step(state: dict[str, Any], x: Any, y: Any) -> tuple[dict[str, Any], Any]:
    value, grads = jax.value_and_grad(loss)(state["w"], x, y)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], grads)
    w = jax.tree.map(lambda w, m, v: w - 0.01 * m / (jnp.sqrt(v) + 1e-6), state["w"], m, v)
    return {"w": w, "m": m, "v": v}, value


def init() -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(0))
    weights = {
        "up": 0.1 * jax.random.normal(keys[0], (WIDTH, HIDDEN)),
        "down": 0.1 * jax.random.normal(keys[1], (HIDDEN, WIDTH)),
    }
    return {"w": weights, **{name: jax.tree.map(jnp.zeros_like, weights) for name in MOMENTS}}


def batch() -> tuple[Any, Any]:
    rows = np.random.default_rng(0).normal(size=(2, ROWS, WIDTH)).astype(np.float32)
    return rows[0], rows[1]


def textbook() -> tuple[Any, Any, Any]:
    """The batch in round 0, the weights in round 1, the optimizer's moments in round 2."""
    weights = {
        "up": parse_sharding('[{}, {"model"}p1]'),
        "down": parse_sharding('[{"model"}p1, {}]'),
    }
    moments = {
        "up": parse_sharding('[{"data"}p2, {"model"}p1]'),
        "down": parse_sharding('[{"model"}p1, {"data"}p2]'),
    }
    rows = parse_sharding('[{"data"}, {}]')
    return {"w": weights, **dict.fromkeys(MOMENTS, moments)}, rows, rows


plan_step = partial(
    autoshard.optimize,
    adam_step,
    hardware="cpu-host",
    in_shardings=textbook(),
    donate_argnums=0,
    relative_gap=0.0,
)


def specs(plan: autoshard.Plan, priority: int, *words: str) -> set[str]:
    """How the values of those lines are sharded after a round that hold all the words."""
    (found,) = (found for found in plan.data.rounds if found.priority == priority)
    return {
        format_spec(sharding)
        for line, made in zip(plan.data.listing, found.shardings, strict=True)
        if all(word in line.text for word in words)
        for sharding in made
    }


@pytest.mark.parametrize("mesh", ["data=4,model=2", "data=2,model=4", "data=2,model=2,spare=2"])
def test_batch_then_megatron_then_zero(mesh: str) -> None:
    plan = plan_step(jax.eval_shape(init), *batch(), mesh=mesh)
    first, second, third = plan.data.rounds
    hidden = f"f32[{ROWS}, {HIDDEN}] = "
    assert [found.priority for found in plan.data.rounds] == [0, 1, 2]
    assert first.axes == ("data",)
    assert second.axes == ("data", "model")

    assert specs(plan, 0, "argument state") == {"P()"}
    assert specs(plan, 0, "return result[0]") == {"P()"}
    assert specs(plan, 0, hidden) == {"P('data')"}

    assert specs(plan, 1, "argument state", "['up']") == {"P(None, 'model')"}
    assert specs(plan, 1, "argument state", "['down']") == {"P('model')"}
    assert specs(plan, 1, hidden) == {"P('data', 'model')"}

    assert specs(plan, 2, "argument state['w']['up']") == {"P(None, 'model')"}
    assert specs(plan, 2, "argument state['m']['up']") == {"P('data', 'model')"}
    assert specs(plan, 2, "argument state['v']['down']") == {"P('model', 'data')"}
    assert first.peak_bytes > second.peak_bytes > third.peak_bytes
    assert third.seconds == plan.data.seconds


@pytest.mark.parametrize("mesh", ["data=4,model=2", "data=2,model=2,spare=2"])
def test_a_step_planned_in_rounds_runs_as_it_does_unsharded(mesh: str) -> None:
    x, y = batch()
    plan = plan_step(jax.eval_shape(init), x, y, mesh=mesh)
    step, state = plan.jit(), plan.init(init)()
    unsharded = init()
    for _ in range(3):
        state, value = step(state, plan.shard(x, 1), plan.shard(y, 2))
        unsharded, expected = jax.jit(adam_step)(unsharded, x, y)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), state, unsharded)
    if mesh == "data=4,model=2":
        assert state["w"]["up"].sharding.spec == jax.P(None, "model")
        assert state["m"]["up"].sharding.spec == jax.P("data", "model")
        assert plan.data.misses == ()


def layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


@pytest.mark.parametrize(
    ("rows", "columns", "spec"),
    [
        ("", "", "P(None, 'data')"),
        ("p0", "p1", "P('data')"),
        ("p1", "p0", "P(None, 'data')"),
    ],
    ids=["at once", "rows first", "columns first"],
)
def test_priorities_change_the_choice_and_swapped_ones_change_it_again(
    rows: str, columns: str, spec: str
) -> None:
    """Either the large weight is gathered or the small batch: at once, the cheaper one."""
    x = np.random.default_rng(1).normal(size=(64, 512)).astype(np.float32)
    w = 0.05 * np.random.default_rng(2).normal(size=(512, 4096)).astype(np.float32)
    asked = (
        parse_sharding(f'[{{"data"}}{rows}, {{}}]'),
        parse_sharding(f'[{{}}, {{"data"}}{columns}]'),
    )
    plan = autoshard.optimize(layer, x, w, mesh="data=8", hardware="cpu-host", in_shardings=asked)
    (result,) = plan.data.results
    assert format_spec(result.sharding) == spec
    made = plan.jit()(plan.shard(x), plan.shard(w, 1))
    np.testing.assert_allclose(made, jax.jit(layer)(x, w), rtol=1e-4, atol=1e-5)


def named_layer(x: Any, w: Any) -> Any:
    hidden = checkpoint_name(jnp.tanh(x @ w), "hidden")
    return hidden * hidden


def test_a_constraint_on_a_value_waits_for_its_round() -> None:
    x = np.random.default_rng(3).normal(size=(64, 128)).astype(np.float32)
    w = 0.1 * np.random.default_rng(4).normal(size=(128, 512)).astype(np.float32)
    plan = autoshard.optimize(
        named_layer,
        x,
        w,
        mesh="data=4,model=2",
        hardware="cpu-host",
        constraints={"x": '[{"data"}, {}]', "name:hidden": '[{"data"}, {"model"}p1]'},
    )
    assert specs(plan, 0, "tanh") == {"P('data')"}
    assert specs(plan, 1, "tanh") == {"P('data', 'model')"}
    made = plan.jit()(plan.shard(x), plan.shard(w, 1))
    np.testing.assert_allclose(made, jax.jit(named_layer)(x, w), rtol=1e-4, atol=1e-5)


def test_a_budget_that_the_last_round_misses_says_which_rounds_are_fixed() -> None:
    plan = plan_step(jax.eval_shape(init), *batch(), mesh="data=4,model=2", memory_budget=100_000)
    assert not plan.data.is_feasible
    assert (
        "What priorities 0 and 1 decided is fixed by now: give priority 2 one of these numbers, to"
        " decide both at once."
    ) in plan.data.solver.advice
    assert "Rounds of priorities" in plan.report()
    assert plan.data.memory.peak_bytes == plan.data.rounds[-1].peak_bytes > 100_000


def test_rounds_of_a_saved_plan_are_there_when_it_is_loaded(tmp_path: Path) -> None:
    x, y = batch()
    plan = plan_step(jax.eval_shape(init), x, y, mesh="data=4,model=2")
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.load_plan(tmp_path / "plan.json", adam_step, jax.eval_shape(init), x, y)
    assert loaded.data.rounds == plan.data.rounds
    assert loaded.program(after_round=1) == plan.program(after_round=1)
    shown = CliRunner().invoke(main, ["report", str(tmp_path / "plan.json"), "--round", "1"])
    assert shown.stdout == plan.program(after_round=1)
    _, value = loaded.jit()(loaded.init(init)(), loaded.shard(x, 1), loaded.shard(y, 2))
    np.testing.assert_allclose(value, jax.jit(adam_step)(init(), x, y)[1], rtol=1e-5)


def test_plans_by_hand_are_priced_alike_beside_a_plan_in_rounds() -> None:
    """They need not extend what the rounds decided."""

    def baselines(text: str) -> dict[str, float]:
        rows = (parse_sharding('[{"data"}, {}]'), parse_sharding(text))
        plan = plan_step(
            jax.eval_shape(init), *batch(), mesh="data=4,model=2", in_shardings=(None, *rows)
        )
        assert len(plan.data.rounds) == (2 if "p1" in text else 0)
        return {found.name: found.seconds for found in plan.data.baselines}

    at_once = baselines('[{"data"}, {}]')
    assert set(at_once) == {"replicated", "data parallel", "fsdp", "megatron"}
    assert baselines('[{"data"}p1, {}]') == at_once
