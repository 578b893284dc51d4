"""The cost of an op is the sum of terms, each a mechanism of a compiler."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.costing.op_terms import OP_TERMS
from autoshard.costing.reductions import Reductions
from autoshard.encoding.encode import Encoder
from autoshard.encoding.node_costs import NodeCosts
from autoshard.graph.program import Graph, OpKind
from tests.planner.graphs import encoder_for
from tests.planner.traced import exported

WIDTH = 64


def step(weights: Any, table: Any, rows: Any, batch: Any) -> Any:
    """Two equal layers, a look-up and a scan, with gradients and updates."""

    def loss(weights: Any) -> Any:
        hidden = batch + table[rows]
        for weight in weights:
            hidden = jnp.tanh(hidden @ weight)
        carried, _ = jax.lax.scan(lambda c, _: (jnp.tanh(c @ weights[0]), None), hidden, length=4)
        return jnp.sum(carried)

    return [w - g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]


def traced() -> Graph:
    def of(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    arguments = ([of(WIDTH, WIDTH)] * 2, of(512, WIDTH), of(32, dtype=jnp.int32), of(32, WIDTH))
    return exported(step, *arguments, mesh="x=4")[0]


def encoded(hardware: str) -> Encoder:
    encoder = encoder_for(traced(), "x=4", hardware=hardware)
    encoder.encode()
    return encoder


@pytest.mark.parametrize("hardware", ["cpu-host", "h100", "tpu-v5e", "tpu-v5p"])
def test_ops_that_are_alike_to_every_term_cost_the_same(hardware: str) -> None:
    encoder = encoded(hardware)
    prices = encoder.node_costs
    alike: dict[object, list[int]] = {}
    for index in prices.candidates:
        alike.setdefault(prices.like(encoder.graph.ops[index]), []).append(index)
    assert any(len(indices) > 1 for indices in alike.values())
    for indices in alike.values():
        first, *others = (
            prices.seconds(encoder.graph.ops[index], prices.candidates[index]) for index in indices
        )
        for other in others:
            np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("hardware", ["cpu-host", "tpu-v5e"])
def test_a_cost_without_a_term_is_less_by_that_term(hardware: str) -> None:
    encoder = encoded(hardware)
    others = tuple(kind for kind in OP_TERMS if kind is not Reductions)
    without = NodeCosts(encoder.facts, encoder.node_costs.candidates, others)
    charged = 0
    for index, candidates in encoder.node_costs.candidates.items():
        op = encoder.graph.ops[index]
        whole, left = (prices.seconds(op, candidates) for prices in (encoder.node_costs, without))
        reduced = Reductions(encoder.facts).seconds(op, candidates)
        if op.kind is not OpKind.COMPUTE:
            reduced = np.zeros_like(reduced)
        np.testing.assert_allclose(whole - left, reduced, rtol=1e-9, atol=1e-15)
        charged += bool(reduced.any())
    assert charged


def test_what_is_sent_and_what_is_computed_are_the_whole_cost() -> None:
    encoder = encoded("tpu-v5e")
    for index, candidates in encoder.node_costs.candidates.items():
        op = encoder.graph.ops[index]
        for candidate, seconds in zip(
            candidates, encoder.node_costs.seconds(op, candidates), strict=True
        ):
            computed, sent = encoder.node_costs.seconds_of(op, candidate)
            assert computed + sent == pytest.approx(float(seconds), rel=1e-9, abs=1e-15)
