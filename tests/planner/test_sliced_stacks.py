"""Loops that slice stacks: turned ones, and those of the loop before."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from autoshard.backends import backend_for
from autoshard.costing.sliced_stacks import SlicedStacks
from autoshard.costing.stack_slices import StackSlices
from autoshard.encoding.encode import Encoder
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph, OpKind
from cost_models import get_hardware
from tests.planner.graphs import encoder_for
from tests.planner.objective import check_objective_is_account
from tests.planner.traced import exported

V5P = get_hardware("tpu-v5p")
RUNS = 8
X = jax.ShapeDtypeStruct((16, RUNS, 32), jnp.float32)
W = jax.ShapeDtypeStruct((32, 32), jnp.float32)


def recurrence(x: Any, w: Any) -> Any:
    """Each run multiplies a slice of a stack that is computed before, and turned."""

    def body(state: Any, row: Any) -> tuple[Any, None]:
        return jnp.tanh(state + row @ w), None

    rows = jnp.swapaxes(jnp.cumsum(x, axis=0), 0, 1)
    return lax.scan(body, jnp.zeros((16, 32)), rows)[0]


def encoder_of(hardware: str, fn: Any = recurrence, *weights: Any) -> Encoder:
    graph = exported(fn, X, W, *weights, mesh="x=2")[0]
    encoder = encoder_for(graph, "x=2", hardware=hardware)
    encoder.encode()
    return encoder


def stacks_of(fn: Any) -> tuple[Graph, SlicedStacks]:
    graph = exported(fn, X, W, mesh="x=1")[0]
    return graph, SlicedStacks.of(graph, find_buffers(graph, backend_for(V5P)))


def added(x: Any, w: Any) -> Any:
    """Each run adds a slice of a stack that is computed before, and turned."""
    rows = jnp.cumsum(x, axis=0).swapaxes(0, 1)
    return lax.scan(lambda s, row: (s @ w + row, None), jnp.zeros((16, 32)), rows)[0]


def added_products(x: Any, w: Any) -> Any:
    """Each run adds a slice of what a matmul makes."""
    return lax.scan(lambda s, row: (jnp.tanh(s + row), None), jnp.zeros((RUNS, 32)), x @ w)[0]


def layer(rows: Any, w: Any) -> Any:
    """A recurrence that stacks its states."""

    def body(state: Any, row: Any) -> tuple[Any, Any]:
        state = jnp.tanh(state + row @ w)
        return state, state

    return lax.scan(body, jnp.zeros((16, 32)), rows)[1]


def two_layers(x: Any, w: Any, between: Any = lambda states, _: states) -> Any:
    """Of a recurrence, the second one reading what the first one stacks."""
    return layer(between(layer(x.swapaxes(0, 1), w), w), w)


def two_layers_of_two(x: Any, first: Any, second: Any) -> Any:
    """The same with weights of their own: no two loops read the same moved."""
    return layer(layer(x.swapaxes(0, 1), first), second)


def test_a_stack_that_is_turned_is_sliced_apart_where_no_product_reads_the_slices() -> None:
    graph, stacks = stacks_of(added)
    ((stack, times),) = stacks.turned.items()
    assert graph.ops[graph.values[stack].op].name == "transpose"
    assert times == RUNS
    assert not stacks_of(recurrence)[1].turned


def test_a_stack_that_is_not_turned_is_sliced_with_what_reads_it() -> None:
    def in_order(x: Any, w: Any) -> Any:
        rows = jnp.cumsum(x, axis=0)
        return lax.scan(lambda s, row: (s @ w + row, None), jnp.zeros((RUNS, 32)), rows)[0]

    assert not stacks_of(in_order)[1].turned


def test_slicing_apart_takes_a_kernel_in_each_run() -> None:
    encoder = encoder_of("tpu-v5p", added)
    term, graph = StackSlices(encoder.facts), encoder.graph
    (stack,) = encoder.facts.stacks.turned
    op, encoded = graph.maker(stack), encoder.encode()
    found = term.seconds(op, encoded.candidates[encoded.node_by_op[op.index]])
    assert (found > RUNS * V5P.compute.kernel_launch_seconds).all()
    assert (found < 2 * RUNS * V5P.compute.kernel_launch_seconds).all()


def projected(num_slices: int, num_rows: int, width: int = 2048, *, turned: bool = False) -> float:
    """Seconds for slices of what a matmul makes, on one device of a v5p."""

    def fn(x: Any, w: Any) -> Any:
        rows = (x.swapaxes(0, 1) if turned else x) @ w + 1.0
        return lax.scan(lambda s, row: (jnp.tanh(s + row), None), rows[0] * 0, rows)[0]

    shape = (num_rows, num_slices, 8) if turned else (num_slices, num_rows, 8)
    arguments = (jax.ShapeDtypeStruct(one, jnp.float32) for one in (shape, (8, width)))
    graph = exported(fn, *arguments, mesh="x=1")[0]
    encoder = encoder_for(graph, "x=1", hardware="tpu-v5p")
    encoder.encode()
    ((carry, times),) = encoder.facts.stacks.of_rows.items()
    (stack,) = graph.ops[carry].operands
    found = encoder.read_costs.orders.seconds(graph.ops[carry], stack)
    assert times == num_slices
    return 0.0 if found is None else float(found[0, 0])


@pytest.mark.parametrize("turned", [False, True])
def test_what_a_matmul_makes_lies_with_slices_as_rows_that_fill_lanes(turned: bool) -> None:
    assert projected(128, 16, turned=turned) == projected(128, 16) > 0
    assert projected(256, 130, turned=turned) > 0
    for num_slices, num_rows in ((64, 16), (130, 16), (256, 128), (128, 256)):
        assert projected(num_slices, num_rows, turned=turned) == 0


def test_slices_of_it_take_cycles_by_row() -> None:
    # libtpu 0.0.52 takes 8,617 cycles for 64 rows of 2,048 float32, with what launching takes
    launch, clock = V5P.compute.kernel_launch_seconds, V5P.compute.clock_hertz
    assert clock is not None
    few, many = ((projected(128, rows) / 128 - launch) * clock for rows in (32, 64))
    assert many == pytest.approx(2 * few)
    assert 0.7 < many / 8617 < 1.0


def test_what_a_loop_stacks_is_waited_for_by_the_products_of_the_next() -> None:
    graph, stacks = stacks_of(two_layers)
    ((carry, times),) = stacks.as_stacked.items()
    assert graph.values[graph.ops[carry].operands[0]].shape == (RUNS, 16, 32)
    assert times == RUNS


def test_not_if_a_product_runs_between_them() -> None:
    def with_product(x: Any, w: Any) -> Any:
        return two_layers(x, w, lambda states, w: states + (w @ w)[0])

    def beside(x: Any, w: Any) -> Any:
        stacked = two_layers(x, w)
        return two_layers(stacked.swapaxes(0, 1), w @ w)

    assert stacks_of(with_product)[1].as_stacked == {}
    assert sum(stacks_of(beside)[1].as_stacked.values()) >= 2 * RUNS


@pytest.mark.parametrize(("hardware", "waits"), [("tpu-v5p", RUNS), ("tpu-v5e", 0), ("h100", 0)])
def test_a_v5p_waits_for_what_loops_stack(hardware: str, waits: int) -> None:
    encoder = encoder_of(hardware, two_layers)
    term, launch = StackSlices(encoder.facts), encoder.costing.launch_seconds
    joins = [op for op in encoder.graph.ops if op.kind is OpKind.JOIN]
    encoded = encoder.encode()
    found = sum(
        float(term.seconds(op, encoded.candidates[encoded.node_by_op[op.index]])[0])
        for op in joins
        if op.index in encoded.node_by_op
    )
    assert found == pytest.approx(waits * launch)


@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_the_objective_is_what_the_account_says(data: st.DataObject) -> None:
    programs = [(recurrence,), (added,), (added_products,), (two_layers_of_two, W)]
    fn, *weights = data.draw(st.sampled_from(programs))
    check_objective_is_account(encoder_of("tpu-v5p", fn, *weights), data)
