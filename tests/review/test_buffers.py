"""Which values share a buffer: branches with their conditional, updates with what they update."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import autoshard
from autoshard.backends import get_backend
from autoshard.graph.buffers import Buffers, find_buffers
from autoshard.graph.program import Graph
from tests.frontend.exporting import export

SQUARE = jax.ShapeDtypeStruct((64, 64), np.dtype(np.float32))
FLAG = jax.ShapeDtypeStruct((), np.dtype(np.bool_))


def made_by(graph: Graph, name: str) -> list[int]:
    return [op.results[0] for op in graph.ops if op.name == name]


def read(fn: Any, *args: Any) -> tuple[Graph, Buffers]:
    graph = export(fn, *args)
    return graph, find_buffers(graph, get_backend("cpu"))


def test_branches_end_in_the_one_buffer_of_the_conditional() -> None:
    graph, buffers = read(
        lambda flag, x, w: lax.cond(flag, lambda: x @ w, lambda: w @ x), FLAG, SQUARE, SQUARE
    )
    (joined,) = made_by(graph, "case")
    products = made_by(graph, "dot_general")
    assert [buffers.owner[product] for product in products] == [joined, joined]
    start, stop = buffers.intervals[joined]
    assert start == graph.values[products[0]].op
    assert stop == len(graph.ops)


def test_an_update_lies_in_the_buffer_of_what_nobody_reads_afterwards() -> None:
    def update(a: Any, b: Any) -> Any:
        return lax.dynamic_update_slice(a @ b, jnp.ones((8, 8)), (0, 0)) @ b

    graph, buffers = read(update, SQUARE, SQUARE)
    (updated,) = made_by(graph, "dynamic_update_slice")
    assert buffers.owner[updated] == made_by(graph, "dot_general")[0]


def test_an_update_of_what_is_read_afterwards_is_a_second_buffer() -> None:
    def update(a: Any, b: Any) -> Any:
        made = a @ b
        updated = lax.dynamic_update_slice(made, jnp.ones((8, 8)), (0, 0))
        return updated @ b, made @ a

    graph, buffers = read(update, SQUARE, SQUARE)
    (updated,) = made_by(graph, "dynamic_update_slice")
    assert buffers.owner[updated] == updated


def test_two_updates_of_a_carry_lie_in_its_buffer_though_it_is_read_after_the_loop() -> None:
    def body(index: Any, carry: Any) -> Any:
        once = lax.dynamic_update_slice(carry, jnp.ones((1, 64)), (index, 0))
        return lax.dynamic_update_slice(once, jnp.ones((64, 1)), (0, index))

    graph, buffers = read(lambda x: lax.fori_loop(0, 8, body, x @ x) @ x, SQUARE)
    owners = {buffers.owner[value] for value in made_by(graph, "dynamic_update_slice")}
    assert len(owners) == 1
    (owner,) = owners
    assert graph.ops[graph.values[owner].op].name == "while"


def test_a_result_that_every_device_makes_itself_takes_memory() -> None:
    def init(seed: Any) -> Any:
        return jax.random.normal(jax.random.wrap_key_data(seed), (64, 64)), jnp.ones((64, 64))

    seed = jax.ShapeDtypeStruct((2,), np.dtype(np.uint32))
    whole = 2 * 64 * 64 * 4
    plan = autoshard.optimize(
        init, seed, mesh="data=8", hardware="cpu-host", memory_budget=whole // 2
    )
    held = sum(tensor.local_bytes for tensor in plan.data.results)
    assert held < whole
    assert plan.data.memory.peak_bytes >= held
