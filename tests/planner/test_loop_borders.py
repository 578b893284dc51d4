"""What is done once before a loop: stacks that are filled, weights that are converted."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.costing.loop_borders import LoopBorders
from autoshard.graph.program import Graph, OpClass, OpKind
from autoshard.graph.rule import Dims, Rule
from cost_models import get_hardware
from tests.planner.graphs import Program, encoder_for

ROWS, WIDTH, TRIPS = 256, 512, 8
STACK_BYTES = TRIPS * ROWS * WIDTH * 4


def stacked(*, in_order: bool) -> Graph:
    """Every run of a loop writes its row of a stack, from the first on or from the last."""
    program = Program()
    counter = program.carry(program.zeros())
    stack = program.carry(program.zeros(TRIPS, ROWS, WIDTH))
    row = program.carry(program.argument(1, ROWS, WIDTH))
    program.open_loop(TRIPS)
    place = counter if in_order else program.elementwise(counter, name="subtract")
    dims: Dims = ((0,), (1,), (2,))
    rule = Rule((TRIPS, ROWS, WIDTH), (dims, dims, ()), (dims,), need_replication=frozenset({0}))
    (written,) = program.compute(
        "dynamic_update_slice", (stack, row, place), [program.shape(stack)], rule, OpClass.COPY
    )
    program.loop_back(stack, written)
    program.loop_back(counter, program.elementwise(counter))
    program.close_loop()
    return program.graph(stack)


def looped_product() -> Graph:
    """A loop multiplies what it carries by a weight that it reads unchanged."""
    program = Program()
    weight = program.carry(program.argument(WIDTH, WIDTH))
    carried = program.carry(program.argument(ROWS, WIDTH))
    program.open_loop(TRIPS)
    program.loop_back(carried, program.matmul(carried, weight))
    program.close_loop()
    return program.graph(carried)


def borders(graph: Graph, hardware: str = "tpu-v5p") -> LoopBorders:
    return LoopBorders(encoder_for(graph, "x=4", hardware=hardware).facts)


def test_a_stack_of_zeros_is_filled_unless_it_is_written_from_the_first_row_on() -> None:
    assert list(borders(stacked(in_order=False)).filled.values()) == [STACK_BYTES]
    assert not borders(stacked(in_order=True)).filled


@pytest.mark.parametrize(("hardware", "expected"), [("tpu-v5p", [WIDTH * WIDTH * 6]), ("h100", [])])
def test_a_tpu_converts_before_a_loop_what_products_in_it_read(
    hardware: str, expected: list[int]
) -> None:
    assert list(borders(looped_product(), hardware).converted.values()) == expected


def test_filling_takes_as_long_as_a_device_takes_to_write_its_piece() -> None:
    graph = stacked(in_order=False)
    encoder = encoder_for(graph, "x=4", hardware="tpu-v5p")
    machine = get_hardware("tpu-v5p")
    assert machine.memory.streamed is not None
    speed = machine.memory.bytes_per_second * machine.memory.streamed.fills
    encoded = encoder.encode()
    (carry,) = borders(graph).filled
    candidates = encoded.candidates[encoded.node_by_op[carry]]
    op = graph.ops[carry]
    assert op.kind is OpKind.JOIN
    found = encoder.node_costs.seconds(op, candidates)
    pieces = np.array([encoder.costing.parts.num_shards(sum(c.results[0], ())) for c in candidates])
    launch = machine.compute.kernel_launch_seconds
    assert set(pieces.tolist()) == {1, 4}
    assert found == pytest.approx(STACK_BYTES / pieces / speed + launch)
