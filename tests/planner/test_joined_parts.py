"""Products of loops put their operands together of parts that one kernel writes before."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.backends import backend_for
from autoshard.costing.kernel_writes import KernelWrites
from autoshard.graph.buffers import Buffers, find_buffers
from autoshard.graph.program import Graph
from cost_models import get_hardware
from tests.planner.graphs import encoder_for
from tests.planner.traced import exported

X = jax.ShapeDtypeStruct((8, 16, 128), jnp.float32)
W = jax.ShapeDtypeStruct((256, 128), jnp.float32)


def recurrence(x: Any, w: Any) -> Any:
    """Each run multiplies two results side by side."""

    def body(state: Any, row: Any) -> tuple[Any, None]:
        both = jnp.concatenate([state * row, state - row], axis=1)
        return state + both @ w + both[:, :128] @ w[:128], None

    return lax.scan(body, jnp.zeros((16, 128)), x)[0]


def split(x: Any, w: Any) -> Any:
    """The gradient of a sum that was taken apart is added from parts."""

    def loss(w: Any) -> Any:
        def body(state: Any, row: Any) -> tuple[Any, None]:
            gates = (state @ w.T).reshape(16, 2, 128)
            return jnp.sin(gates[:, 0]) * gates[:, 1] + row, None

        return lax.scan(body, jnp.zeros((16, 128)), x)[0].sum()

    return jax.grad(loss)(w)


def buffers_of(fn: Any, hardware: str = "tpu-v5p") -> tuple[Graph, Buffers]:
    graph = exported(fn, X, W, mesh="x=1")[0]
    return graph, find_buffers(graph, backend_for(get_hardware(hardware)))


def test_the_parts_are_written() -> None:
    graph, buffers = buffers_of(recurrence)
    names = {graph.ops[graph.values[part].op].name for part in buffers.parts}
    assert names == {"multiply", "subtract"}
    assert all(buffers.is_stored[part] for part in buffers.parts)
    assert len(set(buffers.parts.values())) == 1


def test_so_are_those_that_are_padded_and_added() -> None:
    graph, buffers = buffers_of(split)
    padded = {graph.ops[graph.values[part].op].name for part in buffers.parts}
    assert len(buffers.parts) == 2
    assert padded == {"multiply"}


@pytest.mark.parametrize("hardware", ["h100", "cpu-host"])
def test_elsewhere_they_are_computed_as_ever(hardware: str) -> None:
    assert not buffers_of(recurrence, hardware)[1].parts


def test_outside_loops_they_are_computed_with_the_product() -> None:
    def once(x: Any, w: Any) -> Any:
        return jnp.concatenate([x[0] * x[1], x[0] - x[1]], axis=1) @ w

    assert not buffers_of(once)[1].parts


def test_one_kernel_writes_all_parts() -> None:
    graph, buffers = buffers_of(recurrence)
    writes = KernelWrites(encoder_for(graph, "x=1", hardware="tpu-v5p").facts)
    makers = [graph.ops[graph.values[part].op] for part in sorted(buffers.parts)]
    joined = [writes.is_in_other_kernel(op) for op in makers]
    assert joined == [False, True]


def doubled(x: Any, w: Any) -> Any:
    """What a product reads is added to itself again and again: 2**60 ways lead to its parts."""

    def body(state: Any, row: Any) -> tuple[Any, None]:
        both = jnp.concatenate([state * row, state - row], axis=1)
        for _ in range(60):
            both = both + both
        return both @ w, None

    return lax.scan(body, jnp.zeros((16, 128)), x)[0]


def test_parts_are_found_once_however_many_ways_lead_to_them() -> None:
    assert len(buffers_of(doubled)[1].parts) == 2
