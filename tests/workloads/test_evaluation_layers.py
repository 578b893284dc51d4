"""The parts of the evaluation list's models that are easy to get subtly wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.workloads import conformer, expert_choice, get_workload
from experiments.workloads.attention import full_attention
from experiments.workloads.baselines import baseline_specs
from experiments.workloads.clip import contrastive_loss, normalized
from experiments.workloads.dropless import mixture as dropless_mixture
from experiments.workloads.expert_choice import ChoiceConfig
from experiments.workloads.experts import init_experts
from experiments.workloads.float8_gpt import DTYPES, delayed_matmul, init_scaling
from experiments.workloads.gat import segment_softmax
from experiments.workloads.griffin import banded_attention, gated_recurrence
from experiments.workloads.llama import swiglu
from experiments.workloads.mixer import float8_matmul
from experiments.workloads.muon import orthogonalized
from experiments.workloads.parallel_ssm import fading_sums
from experiments.workloads.resnet import KEPT
from experiments.workloads.t5 import distance_buckets
from experiments.workloads.two_tower import rowwise_adagrad, sampled_softmax_loss

pytestmark = pytest.mark.slow
KEYS = jax.random.split(jax.random.key(0), 4)


def quick(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled without optimising: these programs take longer to compile than to run."""
    compiled: Callable[..., Any] = jax.jit(
        fn, compiler_options={"xla_backend_optimization_level": 0}
    )
    return compiled


def test_prefilling_in_a_chunk_gives_the_cache_and_the_logits_of_token_by_token() -> None:
    chunk = 4
    whole = get_workload("serve", chunk=chunk, batch=3, seq=48)
    single = get_workload("serve", batch=3, seq=48)
    state = quick(whole.init)(KEYS[0])
    tokens = whole.make_batch(KEYS[1])["tokens"]
    at_once, expected = quick(whole.step)(state, {"tokens": tokens})
    step, logits = quick(single.step), expected
    for place in range(chunk):
        state, logits = step(state, {"tokens": tokens[:, place : place + 1]})
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    for one, other in zip(state["cache"], at_once["cache"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(state["position"], at_once["position"])


def test_sent_to_all_experts_a_token_gets_their_answers_by_their_weights() -> None:
    config = ChoiceConfig(experts=4, top_k=4)
    x = jax.random.normal(KEYS[0], (2, 6, 8))
    params = init_experts(KEYS[1], 4, 8, 16)
    weights = jax.nn.softmax(x @ params["router"], axis=-1)
    answers = [
        swiglu(x, {name: params[name][expert] for name in ("gate", "up", "down")})
        for expert in range(4)
    ]
    expected = jnp.einsum("ebsd,bse->bsd", jnp.stack(answers), weights)
    # With as many places as tokens, experts that choose choose everything.
    for mixture in (dropless_mixture, expert_choice.mixture):
        np.testing.assert_allclose(mixture(x, params, config), expected, rtol=1e-4, atol=1e-5)


def test_weights_within_a_segment_sum_to_one() -> None:
    segments = jnp.asarray([0, 0, 2, 2, 2, 0])
    weights = segment_softmax(jax.random.normal(KEYS[0], (6, 3)), segments, 3)
    sums = jax.ops.segment_sum(weights, segments, 3)
    np.testing.assert_allclose(sums, [[1.0] * 3, [0.0] * 3, [1.0] * 3], rtol=1e-5)


def test_an_associative_scan_is_its_recurrence() -> None:
    fade = jax.random.uniform(KEYS[0], (2, 7, 3, 1, 1))
    taken = jax.random.normal(KEYS[1], (2, 7, 3, 4, 5))
    found, state = fading_sums(fade, taken), np.zeros((2, 3, 4, 5))
    for place in range(7):
        state = np.asarray(fade[:, place]) * state + np.asarray(taken[:, place])
        np.testing.assert_allclose(found[:, place], state, rtol=1e-4, atol=1e-5)


def test_near_distances_have_buckets_of_their_own_and_both_ways_differ() -> None:
    buckets = np.asarray(distance_buckets(64, 16))
    assert (buckets.min(), buckets.max()) == (0, 15)
    np.testing.assert_array_equal(buckets[8, 4:13], [4, 3, 2, 1, 0, 9, 10, 11, 12])
    assert (buckets[0, 63], buckets[63, 0]) == (15, 7)


def test_orthogonalized_matrices_have_singular_values_near_one() -> None:
    for shape in ((3, 8, 16), (3, 16, 8)):
        found = np.linalg.svd(orthogonalized(jax.random.normal(KEYS[0], shape)), compute_uv=False)
        assert found.min() > 0.3
        assert found.max() < 1.4


def test_a_float8_matmul_and_its_gradients_are_near_the_exact_ones() -> None:
    x, w = jax.random.normal(KEYS[0], (2, 8, 32)), jax.random.normal(KEYS[1], (32, 16))
    out = jax.random.normal(KEYS[2], (2, 8, 16))
    exact, exact_back = jax.vjp(lambda x, w: jnp.einsum("bnd,df->bnf", x, w), x, w)
    found, back = jax.vjp(float8_matmul, x, w)
    for mine, theirs in [(found, exact), *zip(back(out), exact_back(out), strict=True)]:
        error = jnp.linalg.norm(mine - theirs) / jnp.linalg.norm(theirs)
        assert 1e-4 < error < 0.1  # float8, and not better


def test_batch_statistics_move_towards_those_of_the_batch() -> None:
    workload = get_workload("resnet")
    state = quick(workload.init)(KEYS[0])
    after, _ = quick(workload.step)(state, workload.make_batch(KEYS[1]))
    for (path, before), new in zip(
        jax.tree_util.tree_leaves_with_path(state["stats"]),
        jax.tree.leaves(after["stats"]),
        strict=True,
    ):
        assert np.all(new >= KEPT * before - 1e-6) or "mean" in jax.tree_util.keystr(path)
        assert np.any(before != new)


def test_factors_of_a_moment_stay_whole_and_whole_moments_are_cut_as_their_parameters() -> None:
    specs, _ = baseline_specs(get_workload("t5"), "fsdp", {"data": 2, "model": 4})
    factors = specs["opt"][0]
    whole = jax.sharding.PartitionSpec()
    assert specs["params"]["head"] != whole
    assert factors.v_row["head"] == factors.v_col["head"] == whole
    assert factors.v["bias"]["encoder"] == specs["params"]["bias"]["encoder"]


def test_accumulators_of_rows_are_cut_as_the_rows_are() -> None:
    workload = get_workload("two_tower")
    specs, _ = baseline_specs(workload, "megatron", {"data": 2, "model": 4})
    by_rows = jax.sharding.PartitionSpec("model")
    assert workload.state["opt"]["tables"]["item"].shape == (1024, 1)
    assert specs["params"]["tables"]["item"] == specs["opt"]["tables"]["item"] == by_rows


def test_an_accumulator_of_a_row_is_the_mean_of_its_squares() -> None:
    grads = {"tables": {"item": jnp.asarray([[3.0, 4.0], [0.0, 0.0]])}, "w": jnp.asarray([2.0])}
    optimizer = rowwise_adagrad(1.0)
    before = optimizer.init(grads)
    steps, after = optimizer.update(grads, before)
    np.testing.assert_allclose(
        after["tables"]["item"] - before["tables"]["item"], np.asarray([[12.5], [0.0]])
    )
    np.testing.assert_allclose(after["w"] - before["w"], [4.0])
    assert np.all(steps["tables"]["item"][1] == 0.0)


def test_what_is_beyond_the_end_of_a_recording_changes_no_loss() -> None:
    config = conformer.ConformerConfig(batch=2, layers=1)
    params = quick(lambda key: conformer.init_params(key, config))(KEYS[0])
    batch = {**conformer.make_batch(KEYS[1], config), "num_frames": jnp.asarray([32, 64])}
    loss = quick(lambda frames: conformer.loss_fn(params, {**batch, "frames": frames}, config))
    # The strided convolutions look at a few frames beyond the end.
    changed = [loss(batch["frames"].at[0, place].add(1.0)) for place in (8, 48)]
    assert changed[0] != loss(batch["frames"])
    np.testing.assert_allclose(changed[1], loss(batch["frames"]), rtol=1e-6)


def test_equal_pairs_are_found_by_chance_and_own_pairs_with_ease() -> None:
    own = jnp.eye(8)
    hard = contrastive_loss(normalized(jnp.ones((8, 8))), own, jnp.log(jnp.asarray(50.0)))
    np.testing.assert_allclose(hard, np.log(8), rtol=1e-5)
    assert contrastive_loss(own, own, jnp.log(jnp.asarray(50.0))) < 1e-6


def test_an_item_drawn_twice_is_no_negative_of_itself_and_popular_ones_count_less() -> None:
    users = normalized(jax.random.normal(KEYS[0], (2, 4)))
    twice = sampled_softmax_loss(users, users[:1].repeat(2, 0), jnp.zeros(2, int), jnp.zeros(2))
    np.testing.assert_allclose(twice, 0.0, atol=1e-6)
    ids, same = jnp.arange(2), users[:1].repeat(2, 0)
    fair = sampled_softmax_loss(users, same, ids, jnp.zeros(2))
    np.testing.assert_allclose(fair, np.log(2), rtol=1e-5)
    popular = sampled_softmax_loss(users, same, ids, jnp.log(jnp.asarray([0.75, 0.25])))
    np.testing.assert_allclose(popular, -(np.log(0.25) + np.log(0.75)) / 2, rtol=1e-5)


def test_attention_chunk_by_chunk_is_attention_under_a_band() -> None:
    q = jax.random.normal(KEYS[0], (2, 12, 3, 4))
    k, v = (jax.random.normal(key, (2, 12, 4)) for key in KEYS[1:3])
    back = jnp.arange(12)[:, None] - jnp.arange(12)
    expected = full_attention(
        q, k[:, :, None].repeat(3, 2), v[:, :, None].repeat(3, 2), (back >= 0) & (back < 4)
    )
    np.testing.assert_allclose(banded_attention(q, k, v, 4), expected, rtol=1e-4, atol=1e-5)


def test_gates_fade_each_channel_and_take_in_what_is_left() -> None:
    gate = {"w": jnp.zeros((2, 2, 2)), "b": jnp.zeros(4)}
    fade = jnp.asarray([-4.0, -1.0, 0.0, 2.0])
    x = jax.random.normal(KEYS[0], (2, 5, 4))
    found = gated_recurrence(x, {"forget": gate, "input": gate, "fade": fade})
    left, state = np.exp(-4.0 * np.log1p(np.exp(np.asarray(fade)))), np.zeros((2, 4))
    for place in range(5):
        state = left * state + np.sqrt(1 - left**2) * 0.5 * np.asarray(x[:, place])
        np.testing.assert_allclose(found[:, place], state, rtol=1e-4, atol=1e-5)


def test_a_delayed_scale_is_the_largest_entry_of_the_steps_before() -> None:
    scaling, sizes = init_scaling(2), (4.0, 1.0, 1.0)
    x, w = jax.random.normal(KEYS[0], (2, 8, 32)), jax.random.normal(KEYS[1], (32, 16))

    def total(scaling: Any, x: jax.Array) -> Any:
        return jnp.sum(delayed_matmul(x, w, scaling))

    largest = []
    for size in sizes:
        scaling = jax.grad(total)(scaling, size * x)
        largest.append(float(scaling["x"]["scale"]) * float(jnp.finfo(DTYPES["x"]).max))
    top = float(jnp.max(jnp.abs(x)))
    np.testing.assert_allclose(largest, [4 * top, 4 * top, top], rtol=1e-5)
    np.testing.assert_allclose(scaling["grad"]["largest"], 1.0)
    error = delayed_matmul(x, w, scaling) - x @ w
    assert 1e-4 < jnp.linalg.norm(error) / jnp.linalg.norm(x @ w) < 0.1
