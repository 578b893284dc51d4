"""What products in loops read whole in every run."""

from __future__ import annotations

import pytest

from autoshard.costing.vmem import read_whole
from autoshard.graph.program import Graph
from tests.planner.graphs import Program

SIDE = 256


def loop_over(name: str | None) -> tuple[Graph, int]:
    """A loop that multiplies with weights, as they are or through an op; how they enter it."""
    program = Program()
    x, w = program.argument(SIDE, SIDE), program.argument(SIDE, SIDE)
    held, carried = program.carry(w), program.carry(x)
    program.open_loop(4.0)
    read = held if name is None else program.elementwise(held, name=name)
    program.loop_back(carried, program.matmul(carried, read))
    program.close_loop()
    graph = program.graph(carried)
    return graph, graph.values[held].op


@pytest.mark.parametrize(
    ("name", "is_whole"),
    [(None, True), ("convert", True), ("dynamic_slice", False), ("tanh", False)],
)
def test_products_read_whole_what_no_op_takes_a_part_of(name: str | None, is_whole: bool) -> None:
    graph, held = loop_over(name)
    assert (held in read_whole(graph)) == is_whole


def test_what_goes_round_the_loop_changes() -> None:
    graph, held = loop_over(None)
    assert read_whole(graph) == {held}
