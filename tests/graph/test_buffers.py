"""From when to when values take memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.backends import backend_for
from autoshard.graph.buffers import Buffers, find_buffers
from autoshard.graph.program import Graph, OpClass
from cost_models import get_hardware
from tests.planner.graphs import Program
from tests.planner.traced import exported


def buffers_of(graph: Graph, machine: str = "h100") -> Buffers:
    return find_buffers(graph, backend_for(get_hardware(machine)))


def test_what_a_loss_is_summed_from_is_not_held_until_the_loss_is_given_back() -> None:
    program = Program()
    x, w = program.argument(64, 64), program.argument(64, 64)
    made = program.matmul(x, w)
    loss = program.sum(program.sum(made))
    last = program.matmul(w, w)
    graph = program.graph(program.elementwise(loss, name="negate"), last)
    start, stop = buffers_of(graph).intervals[made]
    assert (start, stop) == (graph.values[made].op, graph.values[made].op + 2)


def loop_over(initial: str) -> tuple[Graph, int]:
    """A loop that adds what it reads unchanged to its carry."""
    program = Program()
    x = program.argument(64, 64)
    read = program.zeros(64, 64) if initial == "zeros" else program.elementwise(x, name="tanh")
    held, carried = program.carry(read), program.carry(x)
    program.open_loop(4.0)
    program.loop_back(carried, program.elementwise(carried, held))
    program.close_loop()
    return program.graph(carried), held


@pytest.mark.parametrize("machine", ["cpu-host", "h100", "tpu-v5p"])
@pytest.mark.parametrize(("initial", "is_held"), [("zeros", False), ("tanh", True)])
def test_a_loop_makes_constants_in_each_run(machine: str, initial: str, *, is_held: bool) -> None:
    graph, held = loop_over(initial)
    assert buffers_of(graph, machine).is_stored[held] == is_held


def step(*, waits: bool) -> tuple[Graph, int]:
    """A gradient that two states are updated with; maybe scaled by what a later product makes."""
    program = Program()
    x, dy = program.argument(64, 64), program.argument(64, 64)
    weights, moment = program.argument(64, 64), program.argument(64, 64)
    gradient = program.matmul(x, dy)
    scale = program.matmul(dy, x) if waits else dy
    moved = program.elementwise(program.elementwise(gradient, scale, name="multiply"), moment)
    graph = program.graph(
        program.elementwise(weights, moved, name="subtract"), moved, donated=(2, 3)
    )
    return graph, gradient


@pytest.mark.parametrize(
    ("machine", "waits", "is_with_update"),
    [
        ("tpu-v5e", False, True),
        ("tpu-v5p", False, True),
        ("tpu-v5p", True, False),
        ("h100", False, False),
    ],
)
def test_a_tpu_computes_an_update_with_the_product_that_is_its_gradient(
    machine: str, *, waits: bool, is_with_update: bool
) -> None:
    graph, gradient = step(waits=waits)
    assert (gradient in buffers_of(graph, machine).unless_summed) == is_with_update


def with_a_sum(x: jax.Array, dy: jax.Array, weights: jax.Array) -> jax.Array:
    gradient, late = x @ dy, dy @ x
    return weights - (gradient + late.sum(1))


def with_a_product(x: jax.Array, dy: jax.Array, weights: jax.Array) -> jax.Array:
    gradient, late = x @ dy, dy @ x
    return weights - (gradient + late)


@pytest.mark.parametrize(
    ("update", "computes", "waits_for"), [(with_a_sum, 0, "reduce"), (with_a_product, 1, None)]
)
def test_the_last_product_of_an_update_computes_it_and_waits_for_what_else_it_reads(
    update: Callable[..., jax.Array], computes: int, waits_for: str | None
) -> None:
    graph, _ = exported(update, *[jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 3, mesh="x=4")
    buffers = buffers_of(graph, "tpu-v5e")
    products = [op for op in graph.ops if op.op_class is OpClass.MATMUL]
    assert buffers.unless_summed == {products[computes].results[0]}
    waits = {op: graph.ops[last].name for op, last in buffers.update_waits.items()}
    assert waits == ({products[computes].index: waits_for} if waits_for else {})


def test_a_product_that_another_reads_too_is_written() -> None:
    program = Program()
    x, w = program.argument(64, 64), program.argument(64, 64)
    made = program.matmul(x, w)
    graph = program.graph(program.elementwise(made, w), program.matmul(made, w))
    assert made not in buffers_of(graph, "tpu-v5p").unless_summed


def test_a_gradient_that_is_a_result_itself_is_written() -> None:
    program = Program()
    x, w = program.argument(64, 64), program.argument(64, 64)
    made = program.matmul(x, w)
    graph = program.graph(program.elementwise(made, w), made)
    assert buffers_of(graph, "tpu-v5p").unless_summed == frozenset()


def late_update() -> tuple[Graph, int, int, int]:
    """A gradient that weight decay is added to when the backward pass is over."""
    program = Program()
    x, dy, weights = (program.argument(64, 64) for _ in range(3))
    read = program.sum(program.elementwise(x, name="tanh"))
    kept = program.matmul(x, dy)
    gradient = program.matmul(kept, dy)
    last = program.matmul(program.matmul(dy, dy), x)
    decayed = program.elementwise(gradient, weights)
    moment = program.elementwise(decayed, program.argument(64, 64), name="multiply")
    graph = program.graph(read, last, decayed, moment)
    return graph, kept, gradient, decayed


@pytest.mark.parametrize("machine", ["tpu-v5e", "tpu-v5p"])
def test_what_a_product_goes_on_with_runs_with_it_however_late_the_program_has_it(
    machine: str,
) -> None:
    graph, kept, gradient, decayed = late_update()
    buffers = buffers_of(graph, machine)
    runs = graph.values[gradient].op
    assert not buffers.is_stored[gradient]
    assert buffers.intervals[decayed][0] == runs
    assert buffers.intervals[kept][1] == runs + 1


@pytest.mark.parametrize("is_read_after", [False, True])
def test_rows_are_scattered_into_a_slice_of_a_cache_where_it_is_unless_it_is_read_after(
    *, is_read_after: bool
) -> None:
    def decode(caches: Any, rows: Any, places: Any) -> Any:
        def layer(carry: Any, cache: Any) -> Any:
            new = cache.at[jnp.arange(8), places].set(rows)
            return carry + (new * (cache if is_read_after else 2.0)).sum(1), new

        return jax.lax.scan(layer, jnp.zeros((8, 128)), caches)

    caches, rows = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 8, 64, 128), (8, 128)))
    graph, _ = exported(decode, caches, rows, jax.ShapeDtypeStruct((8,), jnp.int32), mesh="x=2")
    (scatter,) = (op for op in graph.ops if op.name == "scatter")
    owner = buffers_of(graph, "tpu-v5e").owner
    is_in_place = owner[scatter.results[0]] == owner[scatter.operands[0]]
    assert is_in_place != is_read_after


@pytest.mark.parametrize(("machine", "at_once"), [("h100", True), ("tpu-v5p", False)])
def test_on_gpus_stacks_of_one_shape_are_there_from_the_first_loop_on(
    machine: str, *, at_once: bool
) -> None:
    def fn(x: Any, rows: Any) -> Any:
        _, first = jax.lax.scan(lambda c, row: (jnp.tanh(c + row), c), x, rows)
        _, second = jax.lax.scan(lambda c, row: (jnp.sin(c * row), c), x, first)
        return second.sum()

    shapes = ((64, 128), (8, 64, 128))
    graph, _ = exported(fn, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes), mesh="x=2")
    buffers = buffers_of(graph, machine)
    starts = {
        buffers.intervals[op.results[0]][0]
        for op in graph.ops
        if op.name == "while" and graph.values[op.results[0]].shape == shapes[1] and op.operands[1:]
    }
    assert (len(starts) == 1) == at_once


@pytest.mark.parametrize(
    ("goes_on", "is_read", "num_caches"), [(True, False, 1), (True, True, 2), (False, False, 2)]
)
def test_an_inner_loop_that_goes_on_with_a_carry_updates_it_where_it_is(
    *, goes_on: bool, is_read: bool, num_caches: int
) -> None:
    def decode(cache: Any) -> Any:
        def layer(index: Any, cache: Any) -> Any:
            return jax.lax.dynamic_update_slice(cache, jnp.ones((1, 128)), (index, 0))

        def token(_: Any, carry: Any) -> Any:
            cache, total = carry
            start = cache if goes_on else jnp.sort(cache, axis=0)
            made = jax.lax.fori_loop(0, 8, layer, start)
            return made, total + (cache if is_read else made).sum()

        return jax.lax.fori_loop(0, 4, token, (cache, 0.0))

    graph, _ = exported(decode, jax.ShapeDtypeStruct((8, 128), jnp.float32), mesh="x=2")
    owner = buffers_of(graph, "tpu-v5e").owner
    caches = {
        owner[op.results[0]]
        for op in graph.ops
        if op.name == "while" and graph.values[op.results[0]].shape == (8, 128)
    }
    assert len(caches) == num_caches


def test_a_tpu_writes_gradients_of_fused_projections_in_the_order_of_their_stack() -> None:
    def loss(x: Any, weight: Any) -> Any:
        q, k, v = jnp.moveaxis(jnp.einsum("btd,dche->btche", x, weight), 2, 0)
        scores = jax.nn.softmax(jnp.einsum("bqhe,bkhe->bhqk", q, k), -1)
        return jnp.square(jnp.einsum("bhqk,bkhe->bqhe", scores, v)).sum()

    shapes = ((4, 128, 256), (256, 3, 4, 64))
    args = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    graph, _ = exported(jax.grad(loss, (0, 1)), *args, mesh="x=2")
    buffers = buffers_of(graph, "tpu-v5e")
    padded = [op.operands[0] for op in graph.ops if op.name == "pad"]
    assert [buffers.is_stored[value] for value in padded] == [True] * 3
    owners = [graph.maker(buffers.owner[value]) for value in padded]
    assert [owner.op_class for owner in owners] == [OpClass.MATMUL] * 3
