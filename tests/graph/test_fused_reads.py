"""What an op reads from memory, through the operands that are computed with it too."""

from __future__ import annotations

from dataclasses import replace

from autoshard.backends import Backend, get_backend
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import Dims, Rule, identity_rule
from tests.planner.graphs import Program

MIB = 2**20
SHAPE = (512, 512)  # one MiB
CPU = get_backend("cpu")
WITH_MATMULS = replace(
    CPU, fusion=replace(CPU.fusion, materialized_ops=frozenset(), fuses_into_matmuls=True)
)


def reads_of(graph: Graph, name: str, backend: Backend = CPU) -> list[tuple[int, ...]]:
    buffers = find_buffers(graph, backend)
    return [
        tuple(read.num_bytes for read in buffers.reads[op.index])
        for op in graph.ops
        if op.name == name
    ]


def test_a_sum_reads_what_its_fused_operand_is_computed_from() -> None:
    program = Program()
    a, b = program.argument(*SHAPE), program.argument(*SHAPE)
    product = program.elementwise(a, b, name="multiply")
    graph = program.graph(program.sum(product))
    assert reads_of(graph, "multiply") == [(MIB, MIB)]
    assert reads_of(graph, "reduce") == [(2 * MIB,)]


def test_a_buffer_is_read_once_however_many_operands_come_from_it() -> None:
    program = Program()
    a = program.argument(*SHAPE)
    twice = program.elementwise(program.elementwise(a, name="negate"), a, name="multiply")
    graph = program.graph(program.sum(twice))
    assert reads_of(graph, "multiply") == [(MIB, 0)]
    assert reads_of(graph, "reduce") == [(MIB,)]


def test_of_what_a_fused_slice_is_taken_from_only_the_slice_is_read() -> None:
    program = Program()
    stack, row = program.argument(8, *SHAPE), program.argument()
    dims: Dims = ((0,), (1,), (2,))
    rule = Rule((8, *SHAPE), (dims, ()), (dims,))
    (taken,) = program.compute("dynamic_slice", (stack, row), [(1, *SHAPE)], rule, OpClass.COPY)
    graph = program.graph(program.sum(taken))
    assert reads_of(graph, "reduce") == [(MIB,)]


def test_what_follows_a_product_does_not_read_its_operands_again() -> None:
    program = Program()
    x, w, b = (program.argument(*SHAPE) for _ in range(3))
    graph = program.graph(program.elementwise(program.matmul(x, w), b))
    assert reads_of(graph, "add", WITH_MATMULS) == [(0, MIB)]


def test_a_reduction_of_what_a_product_writes_reads_nothing() -> None:
    program = Program()
    x, w, b = (program.argument(*SHAPE) for _ in range(3))
    made = program.elementwise(program.matmul(x, w), b)
    graph = program.graph(made, program.sum(made))
    assert reads_of(graph, "reduce", WITH_MATMULS) == [(0,)]
    assert reads_of(graph, "reduce") == [(MIB,)]


def test_an_update_does_not_read_the_moment_that_is_made_with_it() -> None:
    program = Program()
    weight, moment, gradient = (program.argument(*SHAPE) for _ in range(3))
    new_moment = program.elementwise(moment, gradient)
    new_weight = program.elementwise(weight, new_moment, name="subtract")
    graph = program.graph(new_weight, new_moment)
    assert reads_of(graph, "add") == [(MIB, MIB)]
    assert reads_of(graph, "subtract") == [(MIB, 0)]


def test_updates_of_one_state_read_their_gradient_once() -> None:
    program = Program()
    moment, square, gradient = (program.argument(*SHAPE) for _ in range(3))
    new_moment = program.elementwise(moment, gradient)
    new_square = program.elementwise(square, gradient, name="subtract")
    graph = program.graph(new_moment, new_square)
    assert reads_of(graph, "add") == [(MIB, MIB)]
    assert reads_of(graph, "subtract") == [(MIB, 0)]


def test_what_every_device_can_make_is_not_carried_into_a_loop() -> None:
    program = Program()
    mask = program.carry(program.zeros(*SHAPE))
    other = program.carry(program.argument(*SHAPE))
    program.open_loop(4)
    made = program.compute("add", (mask, other), [SHAPE], identity_rule(SHAPE, 2))[0]
    program.close_loop()
    assert reads_of(program.graph(made), "add") == [(0, MIB)]
