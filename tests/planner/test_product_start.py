"""What products take beside their arithmetic: filling the units, memory that answers late."""

from __future__ import annotations

import pytest

from autoshard.backends import get_backend
from autoshard.costing.costing import Costing, cost_model_for
from autoshard.graph.program import Graph, OpClass
from cost_models import get_hardware
from tests.planner.graphs import Program, encoder_for, parts_of

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
    """Of one run on one device."""
    encoder = encoder_for(graph, "x=1", hardware=hardware)
    (op,) = [op for op in graph.ops if op.op_class is OpClass.MATMUL]
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
    return float(costing.padded_flops(op, candidates)[0])


def test_few_rows_take_as_long_as_the_least() -> None:
    least = 32
    expected = 2.0 * least * SIDE * SIDE
    for rows in (8, 16, least):
        assert flops(rows, SIDE, "tpu-v5e") == pytest.approx(expected)
    assert flops(2 * least, SIDE, "tpu-v5e") == pytest.approx(2 * expected)


def test_so_do_few_columns() -> None:
    assert flops(SIDE, 8, "tpu-v5e") == pytest.approx(flops(8, SIDE, "tpu-v5e"))


def operand(*, is_computed: bool) -> Graph:
    program = Program()
    value, weight = program.argument(8192, SIDE), program.argument(SIDE, SIDE)
    read = program.elementwise(value, name="maximum") if is_computed else value
    return program.graph(program.matmul(read, weight))


@pytest.mark.parametrize("name", ["tpu-v5e", "tpu-v5p"])
def test_a_matmul_takes_longer_for_an_operand_that_it_computes(name: str) -> None:
    clock, cycles = get_hardware(name).compute.clock_hertz, get_backend(name).layout.operand_cycles
    assert clock is not None
    more = seconds(operand(is_computed=True), name) - seconds(operand(is_computed=False), name)
    assert more == pytest.approx(cycles * 8192 * SIDE / 1024 / clock, rel=0.05)


def test_one_row_is_multiplied_and_summed_on_vector_units() -> None:
    machine = get_hardware("tpu-v5p")
    passes = machine.compute.passes
    assert passes is not None
    one, eight = (seconds(product(rows, columns=2**16), "tpu-v5p") for rows in (1, 8))
    multiplied = SIDE * 2**16
    assert one > multiplied / passes.narrowed
    assert one > 1.5 * eight
