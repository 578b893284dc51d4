"""The parts of the models that are easy to get subtly wrong."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from experiments.workloads.attention import causal_attention, grouped_causal_attention
from experiments.workloads.llama import rotary_angles, rotate
from experiments.workloads.moe import route
from experiments.workloads.normalization import group_norm, layer_norm, rms_norm

KEYS = jax.random.split(jax.random.key(0), 3)


def test_a_position_does_not_see_later_ones() -> None:
    q, k, v = (jax.random.normal(key, (2, 6, 2, 4)) for key in KEYS)
    before = causal_attention(q, k, v)
    after = causal_attention(q, k.at[:, 4:].add(1.0), v.at[:, 4:].add(1.0))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert not np.allclose(before[:, 4:], after[:, 4:])


def test_grouped_attention_is_attention_with_repeated_keys_and_values() -> None:
    q = jax.random.normal(KEYS[0], (2, 6, 8, 4))
    k, v = (jax.random.normal(key, (2, 6, 4, 4)) for key in KEYS[1:])
    repeated = causal_attention(q, jnp.repeat(k, 2, axis=2), jnp.repeat(v, 2, axis=2))
    np.testing.assert_allclose(grouped_causal_attention(q, k, v), repeated, rtol=1e-5, atol=1e-6)


def test_rotated_products_depend_on_the_distance_alone() -> None:
    q, k = (jnp.tile(jax.random.normal(key, (1, 1, 1, 8)), (1, 10, 1, 1)) for key in KEYS[:2])
    angles = rotary_angles(10, 8, 100.0)
    products = jnp.einsum("bqhd,bkhd->qk", rotate(q, *angles), rotate(k, *angles))
    for distance in range(4):
        diagonal = np.diagonal(products, offset=-distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-4, atol=1e-5)
    assert abs(products[0, 0] - products[3, 0]) > 1e-2


def test_no_place_at_an_expert_is_held_by_two_tokens() -> None:
    logits = jax.random.normal(KEYS[0], (3, 16, 4))
    dispatch, combine, _ = route(logits, top_k=2, capacity=5)
    assert float(jnp.max(jnp.sum(dispatch, axis=1))) == 1.0
    assert dispatch.shape == (3, 16, 4, 5)
    np.testing.assert_array_equal(combine > 0, dispatch > 0)


def test_with_room_for_all_each_token_reaches_its_experts_with_weights_that_sum_to_one() -> None:
    logits = jax.random.normal(KEYS[0], (3, 16, 4))
    dispatch, combine, _ = route(logits, top_k=2, capacity=16)
    np.testing.assert_array_equal(jnp.sum(dispatch, axis=(2, 3)), jnp.full((3, 16), 2.0))
    np.testing.assert_allclose(jnp.sum(combine, axis=(2, 3)), jnp.ones((3, 16)), rtol=1e-6)


def test_a_full_expert_keeps_first_choices_before_second_ones_and_drops_the_rest() -> None:
    # Token 0 wants expert 1 then 0; tokens 1 and 2 want expert 0 then 1.
    logits = jnp.asarray([[[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]])
    dispatch, _, _ = route(logits, top_k=2, capacity=2)
    held = jnp.sum(dispatch, axis=-1)[0]
    np.testing.assert_array_equal(held, [[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])


def test_even_routing_has_balance_one_and_crowding_more() -> None:
    even = 20.0 * jnp.tile(jnp.eye(4), (1, 4, 1))
    crowded = 20.0 * jnp.tile(jnp.eye(4)[:1], (1, 16, 1))
    np.testing.assert_allclose(route(even, 1, 16)[2], 1.0, rtol=1e-4)
    np.testing.assert_allclose(route(crowded, 1, 16)[2], 4.0, rtol=1e-4)


def test_norms_give_unit_scale() -> None:
    x = 3.0 + 5.0 * jax.random.normal(KEYS[0], (2, 4, 4, 16))
    one, zero = jnp.ones(16), jnp.zeros(16)
    layer = layer_norm(x, one, zero)
    np.testing.assert_allclose(jnp.mean(layer, axis=-1), 0.0, atol=1e-5)
    np.testing.assert_allclose(jnp.std(layer, axis=-1), 1.0, rtol=1e-3)
    rms = rms_norm(x, one)
    np.testing.assert_allclose(jnp.mean(jnp.square(rms), axis=-1), 1.0, rtol=1e-3)
    group = group_norm(x, one, zero, 4).reshape(2, 16, 4, 4)
    np.testing.assert_allclose(jnp.mean(group, axis=(1, 3)), 0.0, atol=1e-5)
    np.testing.assert_allclose(jnp.std(group, axis=(1, 3)), 1.0, rtol=1e-3)
