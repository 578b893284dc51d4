"""A step over microbatches computes what it computes over the batch, or is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, JaxprEqn

from autoshard.accumulation.accumulated import accumulated
from autoshard.accumulation.choice import Microbatches
from autoshard.errors import InputError
from autoshard.frontend.jaxpr_paths import bodies
from tests.accumulation.steps import (
    CLASSES,
    ROWS,
    WIDTH,
    f32,
    logits,
    over,
    require_equal,
    state,
    trained,
    weights,
)

LABELS = jnp.asarray(np.arange(ROWS) % CLASSES, jnp.int32)
X = f32(ROWS, WIDTH)


def the_loop(closed: ClosedJaxpr, count: int = 3) -> JaxprEqn:
    (found,) = (
        eqn
        for eqn in closed.jaxpr.eqns
        if eqn.primitive.name == "scan" and eqn.params["length"] == count
    )
    return found


def cross_entropy(w: Any, x: jax.Array, y: jax.Array) -> Any:
    log_probs = jax.nn.log_softmax(logits(w, x))
    return -jnp.mean(jnp.take_along_axis(log_probs, y[:, None], 1))


def test_gradients_of_a_mean_are_added_up_and_the_optimizer_runs_once() -> None:
    found = require_equal(trained(cross_entropy), (state(), X, LABELS), (1, 2))
    loop = the_loop(found)
    inside = {eqn.primitive.name for _, body in bodies(loop) for eqn in body.eqns}
    assert "dot_general" in inside
    assert "sqrt" not in inside
    outside = [eqn.primitive.name for eqn in found.jaxpr.eqns]
    assert "dot_general" not in outside
    assert outside.count("sqrt") == 2
    # Two gradients and the loss.
    assert loop.params["num_carry"] == 3


def test_what_examples_share_is_not_computed_before_the_loop_unless_it_reads_it() -> None:
    found = require_equal(trained(cross_entropy), (state(), X, LABELS), (1, 2))
    names = [eqn.primitive.name for eqn in found.jaxpr.eqns]
    assert names.index("scan") < names.index("sqrt")
    moments = [eqn for eqn in found.jaxpr.eqns if eqn.outvars[0].aval.shape == (WIDTH, CLASSES)]
    starts = [eqn for eqn in moments if eqn.primitive.name == "broadcast_in_dim"]
    before = found.jaxpr.eqns[: names.index("scan")]
    assert [eqn for eqn in before if eqn in moments] == starts


def test_a_mean_over_the_examples_that_count_divides_by_all_of_them() -> None:
    mask = jnp.asarray(np.arange(ROWS) < 7, jnp.float32)

    def loss(w: Any, x: jax.Array, y: jax.Array, counts: jax.Array) -> Any:
        losses = -jax.nn.log_softmax(logits(w, x))[:, 0] * y
        return jnp.sum(losses * counts) / jnp.sum(counts)

    require_equal(trained(loss), (state(), X, LABELS, mask), (1, 2, 3))


def test_labels_are_looked_up_for_each_example_by_its_number() -> None:
    def loss(w: Any, x: jax.Array, y: jax.Array) -> Any:
        return -jnp.mean(jax.nn.log_softmax(logits(w, x))[jnp.arange(ROWS), y])

    require_equal(trained(loss), (state(), X, LABELS), (1, 2))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_dropout_has_the_masks_of_the_whole_batch(impl: str) -> None:
    def loss(w: Any, x: jax.Array, key: jax.Array) -> Any:
        keep = jax.random.bernoulli(key, 0.7, x.shape)
        noise = jax.random.normal(key, (2, *x.shape)).transpose(1, 0, 2).reshape(ROWS, -1)
        return jnp.mean(logits(w, jnp.where(keep, x, 0.0) + noise[:, :WIDTH]) ** 2)

    key = jax.random.key(7, impl=impl)
    require_equal(trained(loss), (state(), X, key), (1,))


def test_dropout_within_layers_has_the_masks_of_the_whole_batch() -> None:
    keys = jax.random.split(jax.random.key(3), 2)

    def loss(w: Any, x: jax.Array, keys: jax.Array) -> Any:
        def layer(x: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
            keep = jax.random.bernoulli(key, 0.7, x.shape)
            return jnp.tanh(jnp.where(keep, x, 0.0) @ w["up"]), None

        return jnp.mean(jax.lax.scan(jax.checkpoint(layer), x, keys)[0] ** 2)

    require_equal(trained(loss), (state(), X, keys), (1,))


def test_one_gradient_of_many_uses_is_added_up_once() -> None:
    def loss(w: Any, x: jax.Array) -> Any:
        for _ in range(3):
            x = jnp.tanh(x @ w["up"])
        return jnp.mean((x @ w["down"]) ** 2)

    assert the_loop(require_equal(trained(loss), (state(), X), (1,))).params["num_carry"] == 3


def test_gradients_of_few_bits_are_added_up_in_float32() -> None:
    def loss(w: Any, x: jax.Array) -> Any:
        w = jax.tree.map(lambda one: one.astype(jnp.bfloat16), w)
        return jnp.mean(logits(w, x.astype(jnp.bfloat16)).astype(jnp.float32) ** 2)

    loop = the_loop(over(jax.grad(loss), (weights(), X), (1,), 3))
    assert {var.aval.dtype for var in loop.outvars} == {jnp.dtype(jnp.float32)}


def test_results_for_single_examples_are_put_back_in_their_places() -> None:
    def step(w: Any, x: jax.Array) -> Any:
        found = logits(w, x)
        return found, jnp.argmax(found, 1), jnp.repeat(found, 2, axis=0), found.T

    require_equal(step, (weights(), X), (1,))


def test_metrics_over_the_batch_are_those_of_the_batch() -> None:
    def step(w: Any, x: jax.Array, y: jax.Array) -> Any:
        found = logits(w, x)
        right = jnp.argmax(found, 1) == y
        losses = jnp.sum(found**2, 1)
        return {
            "accuracy": jnp.mean(right),
            "right": jnp.sum(right),
            "all": jnp.all(right),
            "any": jnp.any(right),
            "largest": jnp.max(found),
            "least": jnp.min(losses),
            "median": jnp.median(losses),
            "spread": jnp.mean(losses**2) - jnp.mean(losses) ** 2,
        }

    require_equal(step, (weights(), X, LABELS), (1, 2))


def test_a_table_that_is_looked_up_gets_the_gradients_of_all_examples() -> None:
    ids = jnp.asarray(np.arange(ROWS * 4).reshape(ROWS, 4) % 7, jnp.int32)

    def loss(table: jax.Array, ids: jax.Array) -> Any:
        return jnp.mean(jnp.tanh(table[ids] @ table.T) ** 2)

    found = require_equal(jax.value_and_grad(loss), (f32(7, WIDTH), ids), (1,))
    assert the_loop(found).params["num_carry"] == 2


def test_tokens_of_all_examples_in_a_row_stay_apart() -> None:
    x = f32(ROWS, 4, WIDTH)

    def loss(w: Any, x: jax.Array) -> Any:
        flat = x.reshape(ROWS * 4, WIDTH)
        back = logits(w, flat).reshape(ROWS, 4, CLASSES)
        places = jnp.arange(ROWS * 4, dtype=jnp.float32)[:, None] / 10
        return jnp.mean(back.transpose(1, 0, 2) ** 2) + jnp.mean(flat * places)

    require_equal(trained(loss), (state(), x), (1,))


def test_images_go_through_convolutions_and_pools() -> None:
    images, kernel = f32(6, 8, 8, 3), f32(3, 3, 3, 4, seed=5)

    def loss(kernel: jax.Array, images: jax.Array) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        out = jax.lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", dimension_numbers=numbers
        )
        pooled = jax.lax.reduce_window(
            out, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
        return jnp.mean(jax.image.resize(pooled, (6, 8, 8, 4), "bilinear") ** 2)

    require_equal(jax.value_and_grad(loss), (kernel, images), (1,))


def test_loops_and_branches_that_examples_do_not_decide_stay() -> None:
    def loss(w: Any, x: jax.Array, turns: jax.Array) -> Any:
        x = jax.lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ w["up"]) + i, x)
        x = jax.lax.cond(turns > 2, lambda x: x * 2.0, jnp.ones_like, x)
        return jnp.mean(x**2)

    require_equal(jax.value_and_grad(loss), (weights(), X, jnp.int32(3)), (1,))


def test_one_microbatch_is_the_program_as_written() -> None:
    closed = jax.make_jaxpr(trained(cross_entropy))(state(), X, LABELS)
    assert accumulated(closed, None) is closed
    assert accumulated(closed, Microbatches(count=1, dims=())) is closed


def batch_norm(w: Any, x: jax.Array) -> Any:
    hidden = x @ w["up"]
    hidden = hidden - jnp.mean(hidden, 0)  # the batch norm
    return jnp.mean((hidden @ w["down"]) ** 2)


def contrastive(w: Any, x: jax.Array) -> Any:
    found = logits(w, x)
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(found @ found.T)))


def ranked(w: Any, x: jax.Array) -> Any:
    return jnp.sum(jnp.sort(logits(w, x)[:, 0]) * jnp.arange(ROWS))


REFUSED = {
    "batch_norm": (batch_norm, "`reduce_sum` takes examples of the batch together", "batch_norm"),
    "contrastive": (contrastive, "`dot_general` multiplies each example with every", "contrastive"),
    "ranked": (ranked, "`sort` takes examples of the batch together", "ranked"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_takes_examples_together_is_refused_with_its_line(name: str) -> None:
    loss, what, function = REFUSED[name]
    with pytest.raises(InputError, match="the step cannot run over microbatches") as caught:
        over(trained(loss), (state(), X), (1,), 3)
    assert what in caught.value.what
    assert caught.value.where.endswith(f"({function})")
    assert "test_accumulated.py:" in caught.value.where


def test_layers_that_take_examples_together_are_refused_with_the_line_within() -> None:
    def loss(w: Any, x: jax.Array) -> Any:
        def layer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            hidden = x @ w["up"]
            return hidden / jnp.std(hidden, 0), None

        return jnp.mean(jax.lax.scan(layer, x, None, length=2)[0] ** 2)

    with pytest.raises(InputError, match="the step cannot run over microbatches") as caught:
        over(trained(loss), (state(), X), (1,), 3)
    assert caught.value.where.endswith("(layer)")


def test_two_indices_beside_the_own_number_of_an_example_are_kept() -> None:
    x = f32(ROWS, 3, CLASSES)
    places = jnp.asarray(np.arange(ROWS) % 3, jnp.int32)

    def loss(x: jax.Array, places: jax.Array, y: jax.Array) -> Any:
        return jnp.sum(x[jnp.arange(ROWS), places, y] ** 2)

    require_equal(jax.value_and_grad(loss), (x, places, LABELS), (0, 1, 2))


def test_functions_with_derivatives_of_their_own_run_as_they_are_traced() -> None:
    doubled = jax.custom_vjp(lambda x: 2 * x)
    doubled.defvjp(lambda x: (doubled(x), x), lambda x, ct: (3 * ct + 0 * x,))

    def step(w: Any, x: jax.Array) -> Any:
        value = jnp.sum(doubled(jax.nn.relu(logits(w, x))))
        return value, jax.grad(lambda w: jnp.sum(doubled(jax.nn.relu(logits(w, x)))))(w)

    require_equal(step, (weights(), X), (1,))


def test_a_callback_of_single_examples_is_refused_and_one_of_a_total_runs_once() -> None:
    def seen(_: Any) -> None: ...

    def of_rows(w: Any, x: jax.Array) -> Any:
        jax.debug.callback(seen, logits(w, x))
        return jnp.sum(logits(w, x))

    def of_total(w: Any, x: jax.Array) -> Any:
        total = jnp.sum(logits(w, x))
        jax.debug.callback(seen, total)
        return total

    with pytest.raises(InputError, match="has effects, which a loop over microbatches"):
        over(of_rows, (weights(), X), (1,), 3)
    outside = over(of_total, (weights(), X), (1,), 3).jaxpr.eqns
    assert [eqn.primitive.name for eqn in outside].count("debug_callback") == 1
