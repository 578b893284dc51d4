"""The parts of the further models that are easy to get subtly wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.workloads import get_workload
from experiments.workloads.attention import grouped_causal_attention
from experiments.workloads.decode import decode_step
from experiments.workloads.dit import to_patches
from experiments.workloads.experts import apply_experts, expert_capacity, init_experts
from experiments.workloads.gemma import cap, windowed_attention
from experiments.workloads.llama import LlamaConfig, init_params, loss_fn, swiglu
from experiments.workloads.ssm import causal_conv, selective_scan
from experiments.workloads.tokens import token_batch

pytestmark = pytest.mark.slow
KEYS = jax.random.split(jax.random.key(0), 6)


def quick(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled without optimising: these programs take longer to compile than to run."""
    compiled: Callable[..., Any] = jax.jit(
        fn, compiler_options={"xla_backend_optimization_level": 0}
    )
    return compiled


def test_with_room_for_all_a_token_gets_its_experts_answers_by_their_weights() -> None:
    x = jax.random.normal(KEYS[0], (2, 6, 8))
    params = init_experts(KEYS[1], 4, 8, 16)
    mixed, _ = apply_experts(x, params, top_k=4, capacity_factor=1.0)
    weights = jax.nn.softmax(x @ params["router"], axis=-1)
    answers = [
        swiglu(x, {name: params[name][expert] for name in ("gate", "up", "down")})
        for expert in range(4)
    ]
    expected = jnp.einsum("ebsd,bse->bsd", jnp.stack(answers), weights)
    np.testing.assert_allclose(mixed, expected, rtol=1e-4, atol=1e-5)


def test_capacity_is_rounded_up() -> None:
    assert expert_capacity(seq=10, experts=4, top_k=2, factor=1.0) == 5
    assert expert_capacity(seq=10, experts=4, top_k=2, factor=1.1) == 6


def test_decoding_token_by_token_gives_the_loss_of_the_whole_text() -> None:
    config = LlamaConfig(seq=6, batch=3)
    params = quick(lambda key: init_params(key, config))(KEYS[0])
    batch = token_batch(KEYS[1], batch=3, seq=6, vocab=config.vocab)
    state = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), get_workload("decode", seq=6, batch=3).state
    )
    state = {**state, "params": params}
    step = quick(lambda state, tokens: decode_step(state, {"tokens": tokens}, config))
    losses = []
    for place in range(6):
        state, logits = step(state, batch["tokens"][:, place])
        labels = batch["targets"][:, place]
        losses.append(optax.softmax_cross_entropy_with_integer_labels(logits, labels))
    assert int(state["position"]) == 6
    np.testing.assert_allclose(
        jnp.mean(jnp.stack(losses)),
        quick(lambda params, batch: loss_fn(params, batch, config))(params, batch),
        rtol=1e-5,
    )


def test_what_the_cache_holds_beyond_the_position_does_not_matter() -> None:
    workload = get_workload("decode", seq=8, batch=2)
    step = quick(workload.step)
    state, batch = quick(workload.init)(KEYS[0]), workload.make_batch(KEYS[1])
    beyond = [{name: part.at[:, 5:].add(1.0) for name, part in c.items()} for c in state["cache"]]
    before = [{name: part.at[:, :4].add(1.0) for name, part in c.items()} for c in state["cache"]]
    logits = step(state, batch)[1]
    np.testing.assert_array_equal(step({**state, "cache": beyond}, batch)[1], logits)
    assert not np.allclose(step({**state, "cache": before}, batch)[1], logits)


def test_new_adapters_change_nothing_and_training_them_leaves_the_base() -> None:
    workload = get_workload("lora")
    state, batch = quick(workload.init)(KEYS[0]), workload.make_batch(KEYS[1])
    after, loss = quick(workload.step)(state, batch)
    base = state["params"]["base"]
    expected = quick(lambda params, batch: loss_fn(params, batch, LlamaConfig()))(base, batch)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, after["params"]["base"], base)
    ups = [layer["q"]["up"] for layer in after["params"]["adapters"]]
    assert all(float(jnp.max(jnp.abs(up))) > 0 for up in ups)


def test_a_window_that_holds_all_is_attention_to_all_before() -> None:
    # Small scores, which the cap leaves as they are.
    q = 0.1 * jax.random.normal(KEYS[0], (2, 6, 8, 4))
    k, v = (jax.random.normal(key, (2, 6, 4, 4)) for key in KEYS[1:3])
    expected = grouped_causal_attention(q, k, v)
    np.testing.assert_allclose(windowed_attention(q, k, v, 6), expected, rtol=1e-4, atol=1e-5)


def test_a_position_sees_its_window_and_no_more() -> None:
    q, k, v = (jax.random.normal(key, (1, 8, 2, 4)) for key in KEYS[:3])
    before = windowed_attention(q, k, v, 3)
    after = windowed_attention(q, k.at[:, 2].add(1.0), v.at[:, 2].add(1.0), 3)
    changed = np.any(np.asarray(before != after), axis=(0, 2, 3))
    np.testing.assert_array_equal(changed, [False, False, True, True, True, False, False, False])


def test_a_cap_bounds_large_values_and_keeps_small_ones() -> None:
    np.testing.assert_allclose(cap(jnp.asarray([1e4, -1e4]), 30.0), [30.0, -30.0])
    np.testing.assert_allclose(cap(jnp.asarray([0.1]), 30.0), [0.1], rtol=1e-4)


def test_a_selective_scan_is_its_recurrence() -> None:
    x, dt = (jax.random.normal(key, (2, 5, 3)) for key in KEYS[:2])
    b, c = (jax.random.normal(key, (2, 5, 4)) for key in KEYS[2:4])
    log_a = jax.random.normal(KEYS[4], (3, 4))
    dt = jax.nn.softplus(dt)
    found = selective_scan(x, dt, log_a, b, c)
    state = np.zeros((2, 3, 4))
    for place in range(5):
        fade = np.exp(-np.asarray(dt[:, place, :, None]) * np.exp(np.asarray(log_a)))
        taken = np.asarray(dt * x)[:, place, :, None] * np.asarray(b)[:, place, None, :]
        state = fade * state + taken
        expected = np.sum(state * np.asarray(c)[:, place, None, :], axis=-1)
        np.testing.assert_allclose(found[:, place], expected, rtol=1e-4, atol=1e-5)


def test_a_causal_convolution_looks_back_alone() -> None:
    x = jnp.arange(1.0, 6.0)[None, :, None]
    kernel = jnp.asarray([[100.0], [10.0], [1.0]])
    np.testing.assert_array_equal(causal_conv(x, kernel)[0, :, 0], [1, 12, 123, 234, 345])


@pytest.mark.parametrize("patch", [1, 2, 4])
def test_a_patch_holds_what_stands_together(patch: int) -> None:
    image = jax.random.normal(KEYS[0], (2, 8, 4, 3))
    patches = to_patches(image, patch)
    columns = 4 // patch
    assert patches.shape == (2, (8 // patch) * columns, patch * patch * 3)
    for place in range(patches.shape[1]):
        row, column = patch * (place // columns), patch * (place % columns)
        cut = image[:, row : row + patch, column : column + patch]
        np.testing.assert_array_equal(patches[:, place], cut.reshape(2, -1))
