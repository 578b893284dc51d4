"""Values of TPU programs lie in whole tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.backends import get_backend
from autoshard.costing.tiles import shared_order, tiled_bytes
from autoshard.graph.moved_parts import MovedParts
from autoshard.graph.program import Graph, OpClass, OpKind
from autoshard.graph.stacks import written_stacks
from solvers import evaluate
from tests.planner.graphs import (
    Program,
    beside_arguments,
    encoder_for,
    estimated,
    parts_of,
    plan,
    wishes_for,
)
from tests.planner.traced import exported

TILING = get_backend("tpu").layout


@pytest.mark.parametrize(
    ("shape", "bits", "held"),
    [
        ((8, 128), 32, 4096),
        ((1024, 64), 32, 1024 * 64 * 4),  # its columns are what has 1024
        ((16, 8, 64), 32, 16 * 8 * 128 * 4),
        ((16, 64, 16), 32, 16 * 16 * 128 * 4),
        ((3, 3, 8, 3), 32, 3 * 3 * 4 * 128 * 4),  # tiles of four rows
        ((8, 8), 16, 8 * 128 * 2),
        ((384,), 32, 512 * 4),
        ((4000,), 32, 4096 * 4),
        ((5000,), 32, 5 * 1024 * 4),
        ((1, 384, 1), 32, 384 * 4),  # one row, which is no vector
        ((1, 5, 300), 32, 5 * 384 * 4),  # tiles of one row
        ((1, 300), 16, 2 * 384 * 2),  # two rows of 16 bits share words
        ((2, 300), 8, 4 * 384),  # and four of 8 bits
        ((12, 300), 8, 16 * 384),
        ((3, 5, 300), 4, 3 * 8 * 384 // 2),
        ((900,), 4, 1024 // 2),
        ((384,), 8, 512),
        ((16,), 32, 512),
        ((), 32, 512),
        ((0, 4096, 4096), 32, 0),
    ],
)
def test_the_dimension_order_with_the_least_padding_is_taken(
    shape: Sequence[int], bits: int, held: int
) -> None:
    assert tiled_bytes(tuple(shape), bits, TILING) == held


def halves(*shape: int, times: int) -> MovedParts:
    """A tensor, and one half after the other along its second dimension."""
    batch, steps, *rest = shape
    return MovedParts(tuple(((batch, steps >> n, *rest), 1) for n in range(times + 1)))


@pytest.mark.parametrize(
    ("parts", "lanes"),
    [
        # The dimension that libtpu 0.0.52 put in lanes for a v5e.
        (halves(4, 128, 16, 64, 16, times=1), 1),
        (halves(4, 128, 16, 64, 16, times=2), 3),
        (halves(4, 128, 16, 64, 16, times=7), 3),
        (halves(4, 1024, 16, 16, times=5), 1),
        (halves(4, 512, 64, 16, times=9), 2),
        (halves(8, 64, 512, times=6), 2),
        (MovedParts((((4, 128, 16, 64, 16), 1), ((4, 129, 16, 64, 16), 1))), 1),
    ],
)
def test_parts_of_a_tensor_lie_in_the_order_that_suits_most_of_them(
    parts: MovedParts, lanes: int
) -> None:
    cut = (1,) * len(parts.shapes[0][0])
    assert shared_order(parts, cut, 32, TILING)[1] == lanes


@pytest.mark.parametrize(("head", "lanes"), [(64, 1), (128, 3), (256, 3)])
def test_columns_of_a_matmul_that_fill_the_lanes_lie_along_them(head: int, lanes: int) -> None:
    shapes = ((4, 1024, 16, head // 2), 4), ((4, 1024, 16, head), 1)
    assert shared_order(MovedParts(shapes, head), (1, 1, 1, 1), 16, TILING)[1] == lanes


def test_of_parts_what_a_device_holds_decides() -> None:
    parts = halves(8, 512, 256, times=2)
    assert shared_order(parts, (1, 1, 1), 32, TILING)[1] == 2
    assert shared_order(parts, (1, 1, 8), 32, TILING)[1] == 1


@given(shape=st.lists(st.integers(1, 300), max_size=4), bits=st.sampled_from([4, 8, 16, 32]))
def test_tiles_hold_all_and_whole_tiles_no_more(shape: list[int], bits: int) -> None:
    held = tiled_bytes(tuple(shape), bits, TILING)
    assert held >= prod(shape) * bits // 8
    assert held == tiled_bytes(tuple(shape[::-1]), bits, TILING)
    whole = (8, 128, *shape)
    assert tiled_bytes(whole, 32, TILING) == prod(whole) * 4


@pytest.mark.parametrize(("machine", "held"), [("tpu-v5e", 8 * 128 * 4), ("h100", 8 * 32 * 4)])
def test_only_on_tpus_do_arguments_take_more_than_their_bytes(machine: str, held: int) -> None:
    program = Program()
    graph = program.graph(program.sum(program.argument(32, 32)))
    parts = parts_of("x=4")
    cut, end = parts.to_sharding(((0,), ())), parts.to_sharding(((),))
    wishes = wishes_for(graph, {0: cut}, {0: end})
    solution = plan(graph, "x=4", wishes, None, machine)
    assert solution.account.memory.argument_bytes == held


@pytest.mark.parametrize(("machine", "rows", "lanes"), [("tpu-v5p", 197, 256), ("h100", 197, 197)])
def test_temporaries_and_their_copies_lie_in_whole_tiles_too(
    machine: str, rows: int, lanes: int
) -> None:
    program = Program()
    x = program.argument(16, 197, 197)
    graph = program.graph(program.sum(program.elementwise(x)))
    encoder = encoder_for(graph, "x=4", hardware=machine)
    room = encoder.room
    value = graph.values[x]
    whole, cut = ((), (), ()), ((0,), (), ())
    assert room.held_bytes(value, whole) == 16 * rows * lanes * 4
    assert room.held_bytes(value, cut) == 4 * rows * lanes * 4
    assert room.held_bytes(value, cut, 16) == 4 * rows * lanes * 2
    assert room.local_bytes(value, cut) == int(4 * rows * lanes * 4 * room.overhead)
    encoded = encoder.encode()
    held = {int(b) for term in encoded.problem.node_memory for b in term.usage}
    moved = {int(b) for term in encoded.problem.edge_memory for b in term.usage.ravel()}
    assert 4 * rows * lanes * 4 in held
    assert 16 * rows * lanes * 4 in moved or machine == "h100"  # which adds to temporaries
    assert (4 * 197 * 197 * 4 in held | moved) == (lanes == 197)


def with_narrow_arguments() -> Graph:
    """Arguments of 64 rows and columns, which 16 devices only cut into pieces below a tile."""
    program = Program()
    x, w = program.argument(64, 64), program.argument(64, 64)
    return program.graph(program.sum(program.matmul(x, w)))


def least_of_all(graph: Graph, mesh: str, machine: str) -> int:
    """The least peak that any choices have where memory is scarce, all of them tried."""
    solution = plan(graph, mesh, None, 1, machine)
    encoder, encoded = solution.encoder, solution.encoded
    problem = replace(encoded.problem, memory_limit=None)
    offered = (range(len(costs)) for costs in problem.node_costs)
    every = (c for c in product(*offered) if evaluate(problem, c).is_allowed)
    return min(estimated(encoder, encoded, choices).memory.peak_bytes for choices in every)


@pytest.mark.parametrize("machine", ["tpu-v5e", "tpu-v5p", "h100", "cpu-host"])
def test_the_least_peak_that_a_budget_names_is_the_least_and_is_enough(machine: str) -> None:
    graph, mesh = with_narrow_arguments(), "x=16"
    least = least_of_all(graph, mesh, machine)
    nothing = plan(graph, mesh, None, 1, machine)
    assert nothing.peak_bytes == least
    assert plan(graph, mesh, None, least, machine).is_feasible
    if machine == "cpu-host":  # others count larger gaps where memory is scarce, as at its least
        below = plan(graph, mesh, None, least - 1, machine)
        assert not below.is_feasible
        assert below.peak_bytes == least


def test_what_the_solver_counts_for_a_tpu_is_all_but_the_tables_of_pointers() -> None:
    graph = with_narrow_arguments()
    solution = plan(graph, "x=16", None, 10**9, "tpu-v5e")
    limit = solution.encoded.problem.memory_limit
    assert limit is not None
    assert 0 < 10**9 - limit <= solution.peak_bytes - solution.alive_bytes
    assert (
        beside_arguments(solution) == solution.alive_bytes - solution.account.memory.argument_bytes
    )


@pytest.mark.parametrize(
    ("shape", "held"),
    [
        # As libtpu 0.0.52 lays out convolutions for a v5e: the batch or the channels in the lanes.
        ((32, 64, 64, 32), 64 * 64 * 32 * 128 * 4),
        ((128, 40, 40, 16), 40 * 40 * 128 * 16 * 4),
        ((64, 16, 16, 256), 64 * 16 * 16 * 256 * 4),
    ],
)
def test_tiles_of_images_hold_batch_and_channels(shape: tuple[int, ...], held: int) -> None:
    assert tiled_bytes(shape, 32, TILING, ((0, 3), (3, 0))) == held
    assert tiled_bytes(shape, 32, TILING) <= held


@pytest.mark.parametrize(
    ("machine", "slices", "held"),
    [
        ("tpu-v5e", (4, 64, 64), 512 * 4 * 64 * 128),  # not 512 along the lanes
        ("tpu-v5e", (512, 64), 512 * 512 * 64),
        ("tpu-v5e", (64,), 512 * 128),
        ("h100", (4, 64, 64), 512 * 4 * 64 * 64),
    ],
)
def test_slices_of_a_stack_that_a_loop_writes_lie_one_after_the_other(
    machine: str, slices: tuple[int, ...], held: int
) -> None:
    def step(state: jax.Array) -> Any:
        def loss(state: jax.Array) -> Any:
            last, _ = jax.lax.scan(lambda s, _: (jnp.tanh(s) * jnp.sin(s), None), state, length=512)
            return (last**2).sum()

        return jax.grad(loss)(state)

    graph, wishes = exported(step, jax.ShapeDtypeStruct(slices, jnp.float32), mesh="x=4")
    room = encoder_for(graph, "x=4", wishes, hardware=machine).room
    kept = [v for v in written_stacks(graph) if graph.maker(v).kind is OpKind.JOIN]
    assert len(kept) > 1
    whole = ((),) * (len(slices) + 1)
    assert {room.held_bytes(graph.values[value], whole) for value in kept} == {4 * held}


@pytest.mark.parametrize(("machine", "rows", "lanes"), [("tpu-v5p", 56, 128), ("h100", 49, 49)])
def test_no_batch_of_a_matmul_fills_the_lanes_of_its_result(
    machine: str, rows: int, lanes: int
) -> None:
    """As libtpu 0.0.52 has the scores of 512 windows of 49 pixels."""

    def scores(queries: jax.Array, keys: jax.Array) -> Any:
        return jnp.tanh(jnp.einsum("wqe,wke->wqk", queries, keys)).sum(0)

    windows = jax.ShapeDtypeStruct((512, 49, 32), jnp.float32)
    graph, wishes = exported(scores, windows, windows, mesh="x=4")
    (product,) = (op for op in graph.ops if op.op_class is OpClass.MATMUL)
    room = encoder_for(graph, "x=4", wishes, hardware=machine).room
    value = graph.values[product.results[0]]
    assert room.held_bytes(value, ((), (), ())) == 512 * rows * lanes * 4
