"""Values that a TPU narrows before it moves them to the products that read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.backends import get_backend
from autoshard.costing.convert_motion import ReadBits
from autoshard.graph.program import Graph, OpClass, Value
from autoshard.graph.rule import Rule
from autoshard.planning.solution import Solution
from autoshard.sharding import parse_sharding
from tests.planner.graphs import Program, encoder_for, plan, wishes_for
from tests.planner.traced import exported


def products(count: int = 1, rows: int = 256) -> Graph:
    program = Program()
    x = program.argument(rows, 512)
    weights = [program.argument(512, 128) for _ in range(count)]
    return program.graph(*(program.matmul(x, w) for w in weights))


def bits_of(graph: Graph, op_name: str, backend: str = "tpu") -> list[int]:
    """Of the first operand of every op with a name."""
    found = ReadBits.of(graph, get_backend(backend))
    return [found.to(op, 0) for op in graph.ops if op.name == op_name]


def with_value(graph: Graph, index: int, **changes: object) -> Graph:
    values = [replace(v, **changes) if v.index == index else v for v in graph.values]  # type: ignore[arg-type]
    return replace(graph, values=tuple(values))


def turned(program: Program, value: int) -> int:
    rows, columns = program.shape(value)
    rule = Rule((rows, columns), (((0,), (1,)),), (((1,), (0,)),))
    return program.compute("transpose", (value,), [(columns, rows)], rule, OpClass.COPY)[0]


def exactly(graph: Graph) -> Graph:
    ops = [replace(op, is_exact=op.name == "dot_general") for op in graph.ops]
    return replace(graph, ops=tuple(ops))


@pytest.mark.parametrize(("backend", "bits"), [("tpu", 16), ("gpu", 32), ("cpu", 32)])
def test_only_a_tpu_reads_half_of_a_float32_operand(backend: str, bits: int) -> None:
    assert bits_of(products(), "dot_general", backend) == [bits]


def test_a_product_that_asks_for_precision_reads_all_bits() -> None:
    assert bits_of(exactly(products()), "dot_general") == [32]


def test_what_is_bfloat16_already_is_not_narrowed() -> None:
    graph = with_value(products(), 0, dtype="bf16", bits=16)
    assert bits_of(graph, "dot_general") == [16]
    assert not ReadBits.of(graph, get_backend("tpu")).narrowed.keys() & {
        (op.index, 0) for op in graph.ops
    }


def test_other_readers_read_all_bits() -> None:
    program = Program()
    x = program.argument(256, 512)
    graph = program.graph(program.elementwise(x, name="tanh"), program.sum(x))
    assert [*bits_of(graph, "tanh"), *bits_of(graph, "reduce")] == [32, 32]


def test_a_conversion_reads_as_many_bits_as_it_makes() -> None:
    program = Program()
    x = program.argument(256, 512)
    made = program.elementwise(x, name="convert")
    graph = with_value(program.graph(made), made, dtype="bf16", bits=16)
    assert bits_of(graph, "convert") == [16]


def test_a_transpose_reads_what_its_readers_take() -> None:
    program = Program()
    x, w = program.argument(512, 256), program.argument(512, 128)
    for_product = turned(program, x)
    for_both = turned(program, x)
    graph = program.graph(
        program.matmul(for_product, w),
        program.matmul(for_both, w),
        program.elementwise(for_both, name="tanh"),
    )
    assert bits_of(graph, "transpose") == [16, 32]


def test_a_table_that_is_converted_once_looked_up_is_read_as_narrow() -> None:
    program = Program()
    table, rows = program.argument(512, 256), program.argument(64, 1)
    rule = Rule(
        (64, 256, 512), (((2,), (1,)), ((0,), ())), (((0,), (1,)),), reduction=frozenset({2})
    )
    (found,) = program.compute("gather", (table, rows), [(64, 256)], rule, OpClass.GATHER)
    made = program.elementwise(found, name="convert")
    graph = with_value(program.graph(made), made, dtype="bf16", bits=16)
    read_bits = ReadBits.of(graph, get_backend("tpu"))
    (look_up,) = (op for op in graph.ops if op.name == "gather")
    assert [read_bits.to(look_up, position) for position in (0, 1)] == [16, 32]


def test_what_a_loop_reads_unchanged_is_sent_as_its_products_take_it() -> None:
    program = Program()
    x, w = program.argument(256, 256), program.argument(256, 256)
    held, carried = program.carry(w), program.carry(x)
    program.open_loop(4.0)
    program.loop_back(carried, program.matmul(carried, held))
    program.close_loop()
    graph = program.graph(carried)
    assert bits_of(graph, "while") == [16, 32]


@pytest.mark.parametrize("name", ["dynamic_slice", "pad", "broadcast_in_dim", "reshape"])
def test_a_rearranged_operand_of_a_product_is_sent_as_the_product_takes_it(name: str) -> None:
    program = Program()
    x, w = program.argument(256, 512), program.argument(512, 128)
    graph = program.graph(program.matmul(program.elementwise(x, name=name), w))
    assert bits_of(graph, name) == [16]


def test_a_selection_sends_both_its_choices_narrow_and_a_padding_its_first_operand() -> None:
    program = Program()
    x, w = program.argument(256, 512), program.argument(512, 128)
    chosen = program.elementwise(x, x, x, name="select")
    padded = program.elementwise(chosen, x, name="pad")
    read_bits = ReadBits.of(program.graph(program.matmul(padded, w)), get_backend("tpu"))
    ops = {op.name: op for op in read_bits.graph.ops}
    assert [read_bits.to(ops["select"], place) for place in (1, 2)] == [16, 16]
    assert [read_bits.to(ops["pad"], place) for place in (0, 1)] == [16, 32]


def test_what_a_loop_slices_for_its_products_is_sent_narrow() -> None:
    program = Program()
    x, w, stack = program.argument(256, 256), program.argument(256, 256), program.argument(256, 256)
    rows, held, carried = program.carry(stack), program.carry(w), program.carry(x)
    program.open_loop(4.0)
    row = program.elementwise(rows, name="dynamic_slice")
    product = program.matmul(row, held)
    program.loop_back(carried, program.elementwise(carried, product))
    program.close_loop()
    assert bits_of(program.graph(carried), "while") == [16, 16, 32]


@pytest.mark.parametrize(("backend", "bits"), [("h100", 32), ("tpu-v5e", 16)])
@pytest.mark.parametrize("is_scanned", [False, True])
def test_slices_of_a_stack_that_are_converted_are_sent_narrow_on_tpus_alone(
    backend: str, bits: int, is_scanned: bool
) -> None:
    def layer(x: Any, matrix: Any) -> Any:
        return x @ matrix.astype(jnp.bfloat16), None

    def program(x: Any, stack: Any) -> Any:
        stack = jax.lax.with_sharding_constraint(stack, jax.sharding.PartitionSpec())
        if is_scanned:
            return jax.lax.scan(layer, x, stack)[0]
        for place in range(2):
            x, _ = layer(x, stack[place])
        return x

    x = jax.ShapeDtypeStruct((8, 16), jnp.bfloat16)
    stack = jax.ShapeDtypeStruct((2, 16, 16), jnp.float32)
    graph, _ = exported(program, x, stack, mesh="x=2")
    (argument,) = (op for op in graph.arguments if graph.values[op.results[0]].bits == 32)
    readers = graph.consumers[argument.results[0]]
    found = ReadBits.of(graph, get_backend(backend))
    assert {found.to(graph.ops[index], 0) for index in readers} == {bits}


def test_a_sharding_constraint_reads_what_its_readers_take() -> None:
    program = Program()
    x, w = program.argument(256, 512), program.argument(512, 128)
    graph = program.graph(program.matmul(program.constraint(x, "[{}, {}]"), w))
    assert bits_of(graph, "sharding_constraint") == [16]


def gathered(graph: Graph, hardware: str) -> Solution:
    """The plan under which the first argument must be gathered by everything that reads it."""
    cut, whole = parse_sharding('[{"x"}, {}]'), parse_sharding("[{}, {}]")
    columns = parse_sharding('[{}, {"x"}]')
    results = {
        i: whole if graph.values[op.operands[0]].shape[1] == 512 else columns
        for i, op in enumerate(graph.results)
    }
    arguments = {0: cut} | dict.fromkeys(range(1, len(graph.arguments)), columns)
    return plan(graph, "x=4", wishes_for(graph, arguments, results), hardware=hardware)


def gathers(solution: Solution) -> list[int]:
    return [c.bytes_per_device for c in solution.account.collectives if c.kind == "all-gather"]


X: Value = products().values[0]


def test_a_gather_for_products_sends_half_the_bytes_on_a_tpu() -> None:
    assert gathers(gathered(products(), "h100")) == [X.num_bytes]
    assert gathers(gathered(products(), "tpu-v5e")) == [X.num_bytes // 2]
    assert gathers(gathered(products(2), "tpu-v5e")) == [X.num_bytes // 2]
    assert gathers(gathered(exactly(products()), "tpu-v5e")) == [X.num_bytes]


def both_readers() -> Graph:
    """A product and an op that runs along the rows read one value, whole."""
    program = Program()
    x, w = program.argument(256, 512), program.argument(512, 128)
    dims = ((0,), (1,))
    along = Rule((256, 512), (dims,), (dims,), need_replication=frozenset({0, 1}))
    ordered = program.compute("cumsum", (x,), [(256, 512)], along, OpClass.SORT)[0]
    return program.graph(program.matmul(x, w), ordered)


def test_a_gather_that_something_else_reads_too_travels_once_and_as_it_is() -> None:
    assert gathers(gathered(both_readers(), "tpu-v5e")) == [X.num_bytes]


def largest_copy(graph: Graph) -> int:
    """Bytes of the largest copy of the first argument that its reader may need."""
    problem = encoder_for(graph, "x=4", hardware="tpu-v5e").encode().problem
    return max(int(c.usage.max()) for c in problem.edge_memory if problem.edges[c.edge].u == 0)


def test_the_copy_of_a_narrowed_operand_is_narrow() -> None:
    graph = products(rows=2**20)  # too many to lie on the chip
    whole = largest_copy(exactly(graph))
    assert whole >= graph.values[0].num_bytes
    assert largest_copy(graph) == whole // 2


@pytest.mark.parametrize(("reader", "bits"), [("dot_general", 16), ("tanh", 32)])
def test_what_is_looked_up_is_written_as_wide_as_its_widest_reader_takes_it(
    reader: str, bits: int
) -> None:
    program = Program()
    table, rows = program.argument(512, 256), program.argument(64, 1)
    rule = Rule(
        (64, 256, 512), (((2,), (1,)), ((0,), ())), (((0,), (1,)),), reduction=frozenset({2})
    )
    (found,) = program.compute("gather", (table, rows), [(64, 256)], rule, OpClass.GATHER)
    product = program.matmul(found, program.argument(256, 128))
    other = program.elementwise(found, name="tanh") if reader == "tanh" else product
    written = ReadBits.of(program.graph(product, other), get_backend("tpu")).written(frozenset())
    assert written.get(found, 32) == bits


@pytest.mark.parametrize(("is_product", "bits"), [(True, 16), (False, 32)])
def test_what_products_write_for_products_alone_is_narrow_sums_of_it_aside(
    is_product: bool, bits: int
) -> None:
    program = Program()
    x, w = program.argument(256, 256), program.argument(256, 256)
    made = program.elementwise(program.matmul(x, w), name="tanh")
    graph = program.graph(program.matmul(made, w), program.sum(made))
    with_products = frozenset({made}) if is_product else frozenset()
    assert ReadBits.of(graph, get_backend("tpu")).written(with_products).get(made, 32) == bits


def stacks_written(reads: Callable[[Any, Any], Any], backend: str = "tpu") -> list[int]:
    """Bits of an element of each stack that a loop leaves, narrower than float32."""

    def fn(x: jax.Array, weights: jax.Array) -> Any:
        _, rows = jax.lax.scan(lambda carry, w: (jnp.tanh(carry @ w), carry), x, weights)
        return reads(rows, weights[0])

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in [(256, 128), (4, 128, 128)]]
    graph, _ = exported(fn, *shapes, mesh="x=2")
    found = ReadBits.of(graph, get_backend(backend)).written(frozenset())
    return [found[value] for value in found if graph.maker(value).name == "while"]


def multiplied(rows: Any, weight: Any) -> Any:
    return rows.reshape(-1, 128) @ weight


def converted(rows: Any, _: Any) -> Any:
    return rows.astype(jnp.bfloat16)


@pytest.mark.parametrize("reads", [multiplied, converted])
def test_a_tpu_writes_a_stack_as_narrow_as_all_its_readers_take_it(reads: Any) -> None:
    assert stacks_written(reads) == [16]
    assert stacks_written(reads, "gpu") == []


def test_a_stack_that_one_reader_takes_as_it_is_is_not_narrowed() -> None:
    assert stacks_written(lambda rows, weight: (multiplied(rows, weight), jnp.tanh(rows))) == []
