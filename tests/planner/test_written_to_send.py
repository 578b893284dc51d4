"""Kernels that write what is sent, where it is else computed with the ops that read it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.backend_habits import fusing
from autoshard.costing.written_to_send import WrittenToSend, written_to_send
from autoshard.encoding.encode import Encoder
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import Rule
from autoshard.layouts import Layout
from autoshard.reshard import sent_from
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


def found(graph: Graph, op_name: str, bits: int, hardware: str) -> WrittenToSend | None:
    """Of what the (first) op of a name makes."""
    buffers = find_buffers(graph, fusing(get_hardware(hardware)))
    made = next(op.results[0] for op in graph.ops if op.name == op_name)
    return written_to_send(graph, buffers, made, bits)


def test_weights_that_the_program_narrows_are_read_and_written_before_they_are_sent() -> None:
    written = found(weights_in(16), "convert", 16, "tpu-v5e")
    assert written is not None
    assert (written.num_bytes, written.is_conversion) == (1.5 * WEIGHT, True)


def test_so_are_arguments_that_the_compiler_narrows() -> None:
    program = Program()
    w = program.argument(WIDTH, WIDTH)
    graph = program.graph(program.matmul(w, program.argument(WIDTH, ROWS)))
    written = found(graph, "argument", 16, "tpu-v5e")
    assert written is not None
    assert (written.num_bytes, written.is_conversion) == (1.5 * WEIGHT, True)
    assert found(graph, "argument", 32, "tpu-v5e") is None  # it lies there as it is sent


def test_what_is_computed_with_a_product_is_written_before_it_is_sent() -> None:
    program = Program()
    x, y = (program.argument(WIDTH, WIDTH) for _ in range(2))
    added = program.elementwise(x, y, name="tanh")
    graph = program.graph(program.matmul(added, program.argument(WIDTH, ROWS)))
    written = found(graph, "tanh", 32, "tpu-v5e")
    assert written == WrittenToSend(3.0 * WEIGHT, False, None)


def test_so_it_is_where_it_is_turned_in_between() -> None:
    program = Program()
    x, y = (program.argument(WIDTH, WIDTH) for _ in range(2))
    added = program.elementwise(x, y, name="tanh")
    rule = Rule((WIDTH, WIDTH), (((0,), (1,)),), (((1,), (0,)),))
    (turned,) = program.compute("transpose", (added,), [(WIDTH, WIDTH)], rule, OpClass.COPY)
    graph = program.graph(program.matmul(turned, program.argument(WIDTH, ROWS)))
    assert found(graph, "transpose", 32, "tpu-v5e") == WrittenToSend(3.0 * WEIGHT, False, None)


def test_what_is_written_anyway_takes_nothing_more() -> None:
    program = Program()
    x, w = program.argument(ROWS, WIDTH), program.argument(WIDTH, WIDTH)
    graph = program.graph(program.matmul(program.elementwise(program.matmul(x, w)), w))
    assert found(graph, "dot_general", 32, "tpu-v5e") is None
    assert found(graph, "add", 32, "tpu-v5e") is None  # in the place of the product


def encoded_weights(hardware: str) -> tuple[Encoder, Graph]:
    graph = weights_in(16)
    return encoder_of(graph, "x=4", hardware), graph


def encoder_of(graph: Graph, mesh: str, hardware: str) -> Encoder:
    """One that computes with products what the machine's compiler does."""
    encoder = encoder_for(graph, mesh, hardware=hardware)
    encoder.buffers = find_buffers(graph, fusing(get_hardware(hardware)))
    encoder.encode()
    return encoder


@pytest.mark.parametrize("hardware", ["tpu-v5e", "tpu-v5p"])
def test_a_conversion_takes_the_time_of_its_piece(hardware: str) -> None:
    encoder, graph = encoded_weights(hardware)
    product = next(op for op in graph.ops if op.name == "dot_general")
    seconds = encoder.writing_seconds(product, 1)
    assert seconds is not None
    machine = get_hardware(hardware)
    assert machine.memory.streamed is not None
    speed = machine.memory.bytes_per_second * machine.memory.streamed.conversions
    launch = machine.compute.kernel_launch_seconds
    cut: Layout = ((0,), ())
    table = encoder._table(product.operands[1])
    assert seconds[table.index[cut]] == pytest.approx(1.5 * WEIGHT / 4 / speed + launch)


def test_a_way_sends_from_where_it_is_cut_no_further() -> None:
    encoder, graph = encoded_weights("tpu-v5e")
    table = encoder._table(graph.ops[-1].operands[0])
    starts = sent_from(table)
    for begin, before in enumerate(table.layouts):
        for end, after in enumerate(table.layouts):
            sends = [s for s in table.chain(before, after) if s.kind.value != "slice"]
            expected = table.index[sends[0].before] if sends else -1
            assert starts[begin, end] == expected


@given(data=st.data())
def test_the_objective_is_what_the_account_says(data: st.DataObject) -> None:
    hardware = data.draw(st.sampled_from(["tpu-v5e", "tpu-v5p", "h100"]))
    check_objective_is_account(encoder_of(weights_in(16), "data=2,model=2", hardware), data)
