"""A decided plan as the program of one device, and what that takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.encoding.encoded import Encoded, decode
from autoshard.graph.program import Graph, OpClass, OpKind
from autoshard.lowering.estimate import CollectiveUse, estimate
from autoshard.lowering.least_seconds import least_seconds
from autoshard.lowering.local_program import Collective, LocalProgram, Opcode
from autoshard.lowering.lower import in_waiting_order, lower
from solvers import solve
from tests.planner.graphs import (
    Program,
    encoder_for,
    estimated,
    parts_of,
    plan,
    wishes_for,
)
from tests.planner.test_encode import PROGRAMS
from tests.planner.test_hidden import batch_and_cut_weights, chain
from tests.planner.traced import exported


def drawn_choices(encoded: Encoded, seed: int) -> tuple[int, ...]:
    drawn = np.random.default_rng(seed)
    return tuple(int(drawn.integers(len(c))) for c in encoded.problem.node_costs)


def in_a_loop() -> Graph:
    """Two weights read in every run of a loop, and a product after it."""
    program = Program()
    x, first, second = (program.argument(256, 256) for _ in range(3))
    carried = program.carry(x)
    program.open_loop(8.0)
    hidden = program.elementwise(program.matmul(carried, first), name="tanh")
    program.loop_back(carried, program.matmul(hidden, second))
    program.close_loop()
    return program.graph(program.matmul(carried, first))


ALL = {**PROGRAMS, "loop with two weights": in_a_loop}


Timed = list[tuple[Collective, CollectiveUse]]


def timed(program: LocalProgram) -> Timed:
    """The collectives of a program with what they take."""
    return list(zip(program.collectives, estimate(program).collectives, strict=True))


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(ALL)),
    hardware=st.sampled_from(["cpu-host", "tpu-v5e", "h100"]),
    seed=st.integers(0, 2**16),
)
def test_any_plan_takes_no_less_than_it_computes_or_sends_and_no_more_than_both(
    name: str, hardware: str, seed: int
) -> None:
    encoder = encoder_for(ALL[name](), "x=2,y=4", hardware=hardware)
    encoded = encoder.encode()
    found = estimated(encoder, encoded, drawn_choices(encoded, seed))
    compute, sent = found.compute_seconds, found.communication_seconds
    assert max(compute, sent) * (1 - 1e-9) <= found.seconds <= (compute + sent) * (1 + 1e-9)
    if hardware == "cpu-host":
        assert found.seconds == compute + sent


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(ALL)),
    hardware=st.sampled_from(["cpu-host", "tpu-v5e", "tpu-v5p", "h100"]),
    seed=st.integers(0, 2**16),
)
def test_no_schedule_of_a_plan_takes_less_than_its_bound(
    name: str, hardware: str, seed: int
) -> None:
    encoder = encoder_for(ALL[name](), "x=2,y=4", hardware=hardware)
    encoded = encoder.encode()
    choices = drawn_choices(encoded, seed)
    bound = least_seconds(encoder, encoded, decode(encoded, choices))
    assert 0 < bound <= estimated(encoder, encoded, choices).seconds * (1 + 1e-9)


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(sorted(ALL)),
    hardware=st.sampled_from(["tpu-v5e", "tpu-v5p", "h100"]),
    seed=st.integers(0, 2**16),
)
def test_the_same_choices_are_lowered_to_the_same_program(
    name: str, hardware: str, seed: int
) -> None:
    found = []
    for _ in range(2):
        encoder = encoder_for(ALL[name](), "x=2,y=4", hardware=hardware)
        encoded = encoder.encode()
        choices = drawn_choices(encoded, seed)
        found.append(lower(encoder, encoded, decode(encoded, choices), choices))
    assert found[0] == found[1]


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(ALL)),
    hardware=st.sampled_from(["cpu-host", "tpu-v5e", "tpu-v5p", "h100"]),
    seed=st.integers(0, 2**16),
)
def test_every_kernel_and_collective_is_issued_once_and_every_wait_follows_its_start(
    name: str, hardware: str, seed: int
) -> None:
    encoder = encoder_for(ALL[name](), "x=2,y=4", hardware=hardware)
    encoded = encoder.encode()
    choices = drawn_choices(encoded, seed)
    program = lower(encoder, encoded, decode(encoded, choices), choices)
    issued: dict[Opcode, list[int]] = {opcode: [] for opcode in Opcode}
    for index, body in enumerate(program.order):
        for opcode, target in body.instructions:
            if opcode is Opcode.KERNEL:
                assert program.kernels[target].body == index
            elif opcode is Opcode.CALL:
                assert program.order[target].parent == index
            else:
                assert program.collectives[target].body == index
            if opcode is Opcode.DONE:
                assert target in issued[Opcode.START]
            issued[opcode].append(target)
    assert sorted(issued[Opcode.KERNEL]) == list(range(len(program.kernels)))
    assert sorted(issued[Opcode.START]) == list(range(len(program.collectives)))
    assert len(set(issued[Opcode.DONE])) == len(issued[Opcode.DONE])
    assert sorted(issued[Opcode.CALL]) == list(range(1, len(program.order)))


def test_constants_that_readers_cut_alike_in_part_lie_in_layouts_that_nothing_else_has() -> None:
    """4 rows are not cut into 8 pieces, so no table has the layout; reads of it move nothing."""
    program = Program()
    hidden = program.matmul(program.argument(4, 512), program.argument(512, 4096))
    graph = program.graph(program.elementwise(hidden, program.zeros(4, 4096)))
    encoder = encoder_for(graph, "x=2,y=4", hardware="tpu-v5e")
    encoded = encoder.encode()
    choices = drawn_choices(encoded, 0)
    decoded = decode(encoded, choices)
    (constant,) = (op.results[0] for op in graph.ops if op.kind is OpKind.FREE)
    layouts = list(decoded.layouts)
    layouts[constant] = ((0, 1), ())
    assert layouts[constant] not in encoder.tables.of(constant).index
    elsewhere = replace(decoded, layouts=tuple(layouts))
    found = lower(encoder, encoded, elsewhere, choices)
    assert found.collectives == lower(encoder, encoded, decoded, choices).collectives


def gathering(graph: Graph, *gathered: int, hardware: str = "tpu-v5e") -> LocalProgram:
    """A local program whose activations are cut by rows and whose weights are fetched."""
    parts = parts_of("x=4")
    rows = parts.to_sharding(((0,), ()))
    encoder = encoder_for(
        graph,
        "x=4",
        wishes_for(graph, dict.fromkeys((0, *gathered), rows), {0: rows}),
        hardware=hardware,
    )
    encoded = encoder.encode()
    data_parallel = [
        [
            10**12 * (c.cut != 4 or bool(c.reduced or c.scattered) or any(c.operands[-1]))
            if graph.ops[op].name == "dot_general"
            else 0
            for c in candidates
        ]
        for op, candidates in zip(encoded.ops, encoded.candidates, strict=True)
    ]
    data_parallel += [[0] * len(read.layouts) for read in encoded.reads]
    costs = tuple(
        own + np.array(extra, dtype=np.int64)
        for own, extra in zip(encoded.problem.node_costs, data_parallel, strict=True)
    )
    choices = solve(replace(encoded.problem, node_costs=costs), relative_gap=0.0).choices
    assert choices is not None
    chosen = tuple(choices)
    return lower(encoder, encoded, decode(encoded, chosen), chosen)


def test_the_first_weight_is_waited_for_and_the_others_are_fetched_meanwhile() -> None:
    found = timed(gathering(chain(65536, 1024), 1, 2, 3))
    assert [one.kind for one, _ in found] == ["all-gather"] * 3
    (_, first), *others = found
    assert first.exposed_seconds > 0.75 * first.seconds  # the batch arrives meanwhile
    assert [use.exposed_seconds for _, use in others] == pytest.approx([0.0, 0.0], abs=1e-12)


def test_with_little_to_compute_most_of_every_weight_is_waited_for() -> None:
    found = estimate(gathering(chain(128, 1024), 1, 2, 3))
    assert found.overlapped_seconds < 0.3 * found.communication_seconds


def test_nothing_crosses_from_one_run_of_a_loop_into_the_next() -> None:
    found = timed(gathering(in_a_loop(), 1, 2))
    (first, waited), (second, hidden) = [pair for pair in found if pair[0].body > 0]
    assert [first.kind, second.kind] == ["all-gather", "all-gather"]
    assert waited.exposed_seconds == pytest.approx(waited.seconds)
    assert hidden.exposed_seconds < hidden.seconds


def test_a_weight_fetched_for_two_readers_is_there_once() -> None:
    program = Program()
    x, w = program.argument(4096, 512), program.argument(512, 512)
    first = program.matmul(x, w)
    graph = program.graph(program.matmul(program.elementwise(first, name="tanh"), w))
    assert [one.kind for one in gathering(graph, 1).collectives] == ["all-gather"]


def test_a_plan_is_told_what_overlap_gains() -> None:
    solution = plan(chain(16384, 1024), "x=4", batch_and_cut_weights(chain(16384, 1024)), None)
    found = solution.estimate
    assert solution.overlapped_seconds is None  # nothing overlaps on CPUs
    assert found.seconds == found.blocking_seconds
    solution = plan(
        chain(16384, 1024), "x=4", batch_and_cut_weights(chain(16384, 1024)), None, "tpu-v5e"
    )
    found = solution.estimate
    assert solution.overlapped_seconds == found.seconds < found.blocking_seconds


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_gpu_buffers_are_made_when_their_op_runs_and_the_plan_says_which_that_is(name: str) -> None:
    solution = plan(PROGRAMS[name](), "x=2,y=2", hardware="h100")
    memory, ops = solution.account.memory, solution.graph.ops
    assert sorted(memory.order) == list(range(len(ops)))
    sums = {one.op for one in solution.local_program.collectives if one.value < 0}
    for one in solution.local_program.buffers:
        starts_as_zeros = ops[one.op].name in ("scatter", "while")  # which may be there before
        if one.kind == "value" and one.op not in sums and not starts_as_zeros:
            assert memory.order[one.start] == one.op
    assert memory.peak_op in memory.order


@pytest.mark.parametrize("hardware", ["h100", "tpu-v5e"])
def test_a_large_result_is_made_after_what_its_readers_wait_for(hardware: str) -> None:
    """As the compilers have it: `experiments.probes.schedule.orders_for_memory`."""

    def step(value: jax.Array, up: jax.Array, other: jax.Array, widen: jax.Array) -> jax.Array:
        waiting, beside = value @ up, other @ widen
        sums = jnp.exp(beside - beside.max(1, keepdims=True)).sum(1, keepdims=True)
        last: jax.Array = jnp.exp(waiting - waiting.max(1, keepdims=True) * sums).sum(1)
        return last

    shapes = [(4096, 1024), (1024, 8192), (4096, 1024), (1024, 6144)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    graph, wishes = exported(step, *arguments, mesh="x=4")
    order = plan(graph, "x=4", wishes, None, hardware).account.memory.order
    large, smaller = (op.index for op in graph.ops if op.op_class is OpClass.MATMUL)
    assert order.index(smaller) < order.index(large)


def test_a_tied_embedding_is_updated_with_the_gradient_of_logits_after_that_of_rows() -> None:
    """As libtpu 0.0.52 has it for v5e, with layers in a loop or not: one kernel for the update."""

    def loss(table: jax.Array, weight: jax.Array, rows: jax.Array) -> Any:
        hidden = jnp.tanh(table[rows] @ weight)
        return jax.nn.logsumexp(hidden @ table.T, axis=-1).sum()

    def step(table: jax.Array, weight: jax.Array, rows: jax.Array) -> jax.Array:
        updated: jax.Array = table - 0.1 * jax.grad(loss)(table, weight, rows)
        return updated

    shapes = [((4096, 256), jnp.float32), ((256, 256), jnp.float32), ((1024,), jnp.int32)]
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    shardings = {"in_shardings": (jax.P("x"), jax.P(), jax.P()), "out_shardings": jax.P("x")}
    graph, wishes = exported(step, *arguments, mesh="x=4", **shardings)
    order = plan(graph, "x=4", wishes, None, "tpu-v5e").account.memory.order
    (rows,) = (op.index for op in graph.ops if op.name == "scatter")
    shape_of = {op.index: graph.values[op.results[0]].shape for op in graph.ops if op.results}
    matmuls = (op.index for op in graph.ops if op.op_class is OpClass.MATMUL)
    (gradient,) = (index for index in matmuls if shape_of[index] == (4096, 256))
    assert order.index(rows) < order.index(gradient)


def test_a_gradient_that_computes_an_update_waits_for_the_loop_that_adds_to_it() -> None:
    def loss(weight: jax.Array, rows: jax.Array) -> Any:
        hidden, _ = jax.lax.scan(lambda h, _: (jnp.tanh(h @ weight), None), rows, length=5)
        return (jnp.sin(hidden @ weight) ** 2).sum()

    def step(weight: jax.Array, rows: jax.Array) -> jax.Array:
        updated: jax.Array = weight - 0.1 * jax.grad(loss)(weight, rows)
        return updated

    shapes = [(512, 512), (128, 512)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    shardings = {"in_shardings": (jax.P("x"), jax.P()), "out_shardings": jax.P("x")}
    graph, wishes = exported(step, *arguments, mesh="x=4", **shardings)
    found = plan(graph, "x=4", wishes, None, "tpu-v5e")
    order = found.account.memory.order
    ((gradient, after),) = found.encoder.buffers.update_waits.items()
    in_loop = [op.index for op in graph.ops[:after] if op.region and op.index > gradient]
    assert order.index(gradient) > max(map(order.index, in_loop))


@pytest.mark.parametrize("hardware", ["h100", "tpu-v5e"])
def test_what_is_read_behind_a_barrier_waits_for_all_that_the_barrier_waits_for(
    hardware: str,
) -> None:
    """A recomputed layer begins with its cotangent: compilers order kernels with barriers."""

    def step(value: jax.Array, widen: jax.Array, other: jax.Array) -> tuple[jax.Array, jax.Array]:
        cotangent = other @ other
        again, cotangent = jax.lax.optimization_barrier((value, cotangent))
        return jnp.exp(again @ widen).sum(), cotangent @ other

    shapes = [(4096, 1024), (1024, 8192), (1024, 1024)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    graph, wishes = exported(step, *arguments, mesh="x=4")
    order = plan(graph, "x=4", wishes, None, hardware).account.memory.order
    cotangent, again, _ = (op.index for op in graph.ops if op.op_class is OpClass.MATMUL)
    assert order.index(cotangent) < order.index(again)


def test_rows_that_a_barrier_puts_behind_others_are_summed_apart() -> None:
    def step(rows: jax.Array, table: jax.Array, later: jax.Array) -> tuple[jax.Array, ...]:
        first = jnp.tanh(jnp.tanh(table[rows]) @ jnp.ones((256, 256)))
        again, first = jax.lax.optimization_barrier((later, first))
        return jnp.tanh(again[rows]), first

    table = jax.ShapeDtypeStruct((65536, 256), jnp.float32)
    rows = jax.ShapeDtypeStruct((128,), jnp.int32)
    shardings = {"in_shardings": (jax.P(), jax.P("x"), jax.P("x")), "out_shardings": jax.P()}
    graph, wishes = exported(step, rows, table, table, mesh="x=4", **shardings)
    account = plan(graph, "x=4", wishes, None, "tpu-v5e").account
    sums = [one.kind for one in account.collectives]
    assert sums == ["all-reduce", "all-reduce"]


def test_a_host_runs_ops_in_program_order() -> None:
    assert plan(chain(64, 64), "x=4", hardware="cpu-host").account.memory.order == ()


def test_what_joins_a_later_kernel_comes_behind_it_with_all_that_waits_for_it() -> None:
    program = Program()
    x, weight = program.argument(64, 64), program.argument(64, 64)
    early = program.elementwise(x, name="exponential")
    reader = program.elementwise(early, name="tanh")
    product = program.matmul(x, weight)
    graph = program.graph(program.elementwise(product, weight), reader)
    makers = [graph.values[value].op for value in (early, reader, product)]
    found = [op.index for op in in_waiting_order(graph, {makers[0]: makers[2]})]
    assert sorted(found) == list(range(len(graph.ops)))
    assert [op for op in found if op in makers] == [makers[2], makers[0], makers[1]]
    assert list(in_waiting_order(graph, {})) == list(graph.ops)
