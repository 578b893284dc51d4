"""Ops that run in one kernel though each writes a result of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.backends import get_backend
from autoshard.graph.buffers import Buffers, find_buffers
from autoshard.graph.program import Graph
from tests.planner.traced import exported


def found(function: Any, *shapes: tuple[int, ...], chip: str = "tpu-v5e") -> tuple[Graph, Buffers]:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    graph, _ = exported(function, *arguments, mesh="x=1")
    return graph, find_buffers(graph, get_backend(chip))


def adam(params: Any, mean: Any, square: Any, x: Any) -> Any:
    slopes = jax.grad(lambda p: jnp.sum(jnp.tanh(jnp.tanh(x @ p["a"]) @ p["b"])))(params)
    mean = jax.tree.map(lambda m, g: 0.9 * m + g, mean, slopes)
    square = jax.tree.map(lambda s, g: 0.99 * s + g * g, square, slopes)
    step = jax.tree.map(lambda p, m, s: p - m / jnp.sqrt(s + 1e-8), params, mean, square)
    return step, mean, square


def test_the_moments_of_a_parameter_and_the_parameter_are_written_by_one_kernel() -> None:
    state = {
        "a": jax.ShapeDtypeStruct((64, 128), jnp.float32),
        "b": jax.ShapeDtypeStruct((128, 64), jnp.float32),
    }
    x = jax.ShapeDtypeStruct((256, 64), jnp.float32)
    graph, _ = exported(adam, state, state, state, x, mesh="x=1")
    buffers = find_buffers(graph, get_backend("tpu-v5e"))
    kernels: dict[int, list[str]] = {}
    for op in (graph.maker(one.operands[0]) for one in graph.results):
        kernel = buffers.updated_with.get(op.index, op.index)
        kernels.setdefault(kernel, []).append(graph.values[op.results[0]].type_text)
    assert sorted(kernels.values()) == [["f32[128, 64]"] * 3, ["f32[64, 128]"] * 3]


def cross_entropy(x: Any, weight: Any) -> Any:
    def loss(weight: Any) -> Any:
        logits = x @ weight
        return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - logits[:, 0])

    return jax.value_and_grad(loss)(weight)


def test_a_cross_entropy_is_summed_where_the_gradient_of_its_log_sum_exp_is_computed() -> None:
    graph, buffers = found(cross_entropy, (256, 64), (64, 512))
    (summed,) = {*buffers.beside_sums.values()}
    op = graph.ops[summed]
    assert op.name == "reduce"
    assert graph.values[op.results[0]].shape == ()
    assert all(one > summed for one in buffers.beside_sums)
    assert {graph.values[graph.ops[one].results[0]].shape for one in buffers.beside_sums} == {
        (256,)
    }


def scaled_by_its_sum(x: Any) -> Any:
    return x / jnp.sum(x)


@pytest.mark.parametrize("chip", ["tpu-v5e", "cpu"])
def test_what_reads_a_sum_is_not_computed_beside_it(chip: str) -> None:
    _, buffers = found(scaled_by_its_sum, (256, 64), chip=chip)
    assert buffers.beside_sums == {}
