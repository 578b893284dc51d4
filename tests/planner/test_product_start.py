"""What products take beside their arithmetic: filling the units, memory that answers late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.backends import get_backend
from autoshard.costing.costing import Costing, cost_model_for
from autoshard.graph.program import Graph, OpClass
from cost_models import get_hardware, memory_efficiency
from tests.planner.graphs import Program, encoder_for, parts_of, plan
from tests.planner.traced import exported

SIDE = 256


def product(rows: int, *, runs: int = 1, columns: int = SIDE) -> Graph:
    program = Program()
    state, weight = program.argument(rows, SIDE), program.argument(SIDE, columns)
    if runs > 1:
        read = program.carry(weight)
        carried = program.carry(state)
        program.open_loop(runs)
        made = program.matmul(carried, read)
        program.loop_back(carried, made)
        program.close_loop()
        return program.graph(carried)
    return program.graph(program.matmul(state, weight))


def seconds(graph: Graph, hardware: str) -> float:
    """Of the last matmul: of one run on one device."""
    encoder = encoder_for(graph, "x=1", hardware=hardware)
    *_, op = (op for op in graph.ops if op.op_class is OpClass.MATMUL)
    encoded = encoder.encode()
    candidates = encoded.candidates[encoded.node_by_op[op.index]]
    return float(encoder.node_costs.seconds(op, candidates)[0])


def test_in_a_loop_of_a_v5e_nothing_comes_from_memory_first() -> None:
    machine = get_hardware("tpu-v5e")
    assert machine.compute.clock_hertz is not None
    fills = 256 / machine.compute.clock_hertz
    found = seconds(product(64, runs=4), "tpu-v5e")
    assert fills < found < machine.compute.kernel_launch_seconds


def test_on_a_v5p_it_does() -> None:
    machine = get_hardware("tpu-v5p")
    assert machine.compute.clock_hertz is not None
    fills = 256 / machine.compute.clock_hertz
    least = machine.compute.kernel_launch_seconds + fills
    assert all(seconds(product(64, runs=runs), "tpu-v5p") > least for runs in (1, 4))


@pytest.mark.parametrize("name", ["tpu-v4", "h100", "cpu"])
def test_elsewhere_a_product_starts_as_any_kernel_does(name: str) -> None:
    assert get_backend(name).layout.mxu_fill_cycles == 0


def flops(rows: int, columns: int, hardware: str) -> float:
    graph = product(rows, columns=columns)
    machine, parts = get_hardware(hardware), parts_of("x=1")
    costing = Costing(cost_model_for(machine, parts), parts)
    (op,) = [op for op in graph.ops if op.op_class is OpClass.MATMUL]
    encoded = encoder_for(graph, "x=1", hardware=hardware).encode()
    candidates = encoded.candidates[encoded.node_by_op[op.index]]
    return float(costing.padded_flops(graph, op, candidates)[0])


def test_few_rows_take_as_long_as_the_least() -> None:
    least = 32
    expected = 2.0 * least * SIDE * SIDE
    for rows in (8, 16, least):
        assert flops(rows, SIDE, "tpu-v5e") == pytest.approx(expected)
    assert flops(2 * least, SIDE, "tpu-v5e") == pytest.approx(2 * expected)


def test_so_do_few_columns() -> None:
    assert flops(SIDE, 8, "tpu-v5e") == pytest.approx(flops(8, SIDE, "tpu-v5e"))


@pytest.mark.parametrize("name", ["tpu-v5e", "tpu-v5p"])
def test_an_operand_that_a_matmul_computes_is_read_as_wide_as_it_lies_in_memory(name: str) -> None:
    program = Program()
    wide, weight = program.argument(2**20, 256), program.argument(256, 256)
    computed = program.graph(program.matmul(program.elementwise(wide, name="maximum"), weight))
    machine = get_hardware(name)
    speed = machine.memory.bytes_per_second * memory_efficiency(machine, "matmul")
    read_and_written = 2 * 4 * 2**20 * 256
    assert seconds(computed, name) == pytest.approx(read_and_written / speed, rel=0.05)


def read_again(*, is_returned: bool) -> Graph:
    """A matmul of float32 that is read by another one, much later, and perhaps returned."""
    program = Program()
    tall, weight = program.argument(2**20, 256), program.argument(256, 256)
    first = made = program.matmul(tall, weight)
    for _ in range(8):
        made = program.matmul(weight, made) if made != first else program.matmul(weight, weight)
    end = program.matmul(first, made)
    return program.graph(end, *([first] if is_returned else []))


@pytest.mark.parametrize("name", ["tpu-v5e", "tpu-v5p"])
def test_what_only_matmuls_read_is_read_in_half_the_bytes(name: str) -> None:
    machine = get_hardware(name)
    speed = machine.memory.bytes_per_second * memory_efficiency(machine, "matmul")
    whole, half = (seconds(read_again(is_returned=one), name) for one in (True, False))
    assert whole - half == pytest.approx(2 * 2**20 * 256 / speed, rel=0.05)


def test_one_row_is_multiplied_and_summed_on_vector_units() -> None:
    machine = get_hardware("tpu-v5p")
    passes = machine.compute.passes
    assert passes is not None
    one, eight = (seconds(product(rows, columns=2**16), "tpu-v5p") for rows in (1, 8))
    multiplied = SIDE * 2**16
    assert one > multiplied / passes.narrowed
    assert one > 1.5 * eight


def test_what_follows_a_convolution_runs_with_it_as_with_a_matmul() -> None:
    def convolved(images: Any, kernel: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", dimension_numbers=numbers
        )

    def seconds_of(between: Callable[[Any], Any]) -> float:
        images = jax.ShapeDtypeStruct((16, 64, 64, 256), jnp.bfloat16)
        kernel = jax.ShapeDtypeStruct((3, 3, 256, 256), jnp.bfloat16)
        graph, _ = exported(
            lambda x, w: convolved(between(convolved(x, w)), w), images, kernel, mesh="x=1"
        )
        return plan(graph, "x=1", hardware="tpu-v5e").estimate.compute_seconds

    plain = seconds_of(lambda made: made)
    assert seconds_of(lambda made: jax.nn.relu(made + 1.0) * 2.0) == pytest.approx(plain, rel=0.02)
