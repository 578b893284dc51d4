"""Conversions of arguments that are sent narrower than they lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.backends import backend_for
from autoshard.costing.convert_motion import narrowed_argument
from autoshard.encoding.encode import Encoder
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph
from autoshard.layouts import Layout
from cost_models import get_hardware
from tests.planner.graphs import Program, encoder_for
from tests.planner.objective import check_objective_is_account

ROWS, WIDTH = 512, 1024
WEIGHT = WIDTH * WIDTH * 4


def weights_in(bits: int) -> Graph:
    """`x @ convert(w)`, where the converted weights have elements of so many bits."""
    program = Program()
    x, w = program.argument(ROWS, WIDTH), program.argument(WIDTH, WIDTH)
    narrow = program.elementwise(w, name="convert")
    graph = program.graph(program.matmul(x, narrow))
    dtype = {16: "bf16", 32: "f32"}[bits]
    values = [replace(v, bits=bits, dtype=dtype) if v.index == narrow else v for v in graph.values]
    return replace(graph, values=tuple(values))


def found(graph: Graph, op_name: str, bits: int) -> int | None:
    """The argument that the result of the (first) op of a name is narrowed from."""
    buffers = find_buffers(graph, backend_for(get_hardware("tpu-v5e")))
    made = next(op.results[0] for op in graph.ops if op.name == op_name)
    argument = narrowed_argument(graph, buffers, made, bits)
    return None if argument is None else argument.index


def test_weights_that_the_program_narrows_are_narrowed_before_they_are_sent() -> None:
    assert found(weights_in(16), "convert", 16) == 1


def test_so_are_arguments_that_the_compiler_narrows() -> None:
    graph = weights_in(32)
    assert found(graph, "argument", 16) == 0
    assert found(graph, "argument", 32) is None  # it lies there as it is sent


def test_what_is_computed_of_arguments_is_narrowed_with_that() -> None:
    program = Program()
    x, y = (program.argument(WIDTH, WIDTH) for _ in range(2))
    added = program.elementwise(x, y, name="tanh")
    graph = program.graph(program.matmul(added, program.argument(WIDTH, ROWS)))
    assert found(graph, "tanh", 16) is None


def encoded_weights(hardware: str) -> tuple[Encoder, Graph]:
    graph = weights_in(16)
    return encoder_of(graph, "x=4", hardware), graph


def encoder_of(graph: Graph, mesh: str, hardware: str) -> Encoder:
    """One that computes with products what the machine's compiler does."""
    encoder = encoder_for(graph, mesh, hardware=hardware)
    encoder.encode()
    return encoder


@pytest.mark.parametrize("hardware", ["tpu-v5e", "tpu-v5p"])
def test_a_conversion_takes_the_time_of_its_piece(hardware: str) -> None:
    encoder, graph = encoded_weights(hardware)
    product = next(op for op in graph.ops if op.name == "dot_general")
    seconds = encoder.read_costs.narrowing_seconds(product, 1)
    assert seconds is not None
    machine = get_hardware(hardware)
    assert machine.memory.streamed is not None
    speed = machine.memory.bytes_per_second * machine.memory.streamed.conversions
    cut: Layout = ((0,), ())
    table = encoder.tables.of(product.operands[1])
    spent = seconds[table.index[cut]] - machine.compute.kernel_launch_seconds
    assert spent == pytest.approx(1.5 * WEIGHT / 4 / speed / 2)  # half, as it is small


@pytest.mark.parametrize(("hardware", "most"), [("tpu-v5e", 21 * 2**18), ("tpu-v5p", 21 * 2**19)])
def test_up_to_a_size_conversions_are_twice_as_fast(hardware: str, most: int) -> None:
    costing = encoded_weights(hardware)[0].costing
    launch = 1.2e-6
    small, large = costing.conversion_seconds(np.array([most, most + 2.0])) - launch
    assert large == pytest.approx(2 * small, rel=1e-5)


@pytest.mark.parametrize("hardware", ["h100", "cpu-host"])
def test_elsewhere_nothing_is_narrowed_to_send_it(hardware: str) -> None:
    encoder, graph = encoded_weights(hardware)
    product = next(op for op in graph.ops if op.name == "dot_general")
    assert encoder.read_costs.narrowing_seconds(product, 1) is None


def test_a_way_sends_from_where_it_is_cut_no_further() -> None:
    encoder, graph = encoded_weights("tpu-v5e")
    table = encoder.tables.of(graph.ops[-1].operands[0])
    starts, lasts = table.sent_from, table.cut_from
    for begin, before in enumerate(table.layouts):
        for end, after in enumerate(table.layouts):
            chain = table.chain(before, after)
            assert table.num_steps[begin, end] == min(len(chain), 2)
            sends = [s for s in chain if s.kind.value != "slice"]
            expected = table.index[sends[0].before] if sends else -1
            assert starts[begin, end] == expected
            ends = table.index[sends[-1].after] if sends else begin
            assert lasts[begin, end] == ends


@given(data=st.data())
def test_the_objective_is_what_the_account_says(data: st.DataObject) -> None:
    hardware = data.draw(st.sampled_from(["tpu-v5e", "tpu-v5p", "h100"]))
    check_objective_is_account(encoder_of(weights_in(16), "data=2,model=2", hardware), data)
