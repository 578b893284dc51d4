"""Products that are summed whole and written as something that comes after the sum."""

from __future__ import annotations

from autoshard.backends import backend_for
from autoshard.costing.costing import Costing, cost_model_for
from autoshard.encoding.encode import Encoder
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph
from cost_models import get_hardware
from tests.planner.graphs import Program, free_wishes, parts_of

SIDE = 256
WHOLE = SIDE * SIDE * 4


def added_to() -> tuple[Graph, int]:
    """A product, and something added to it; with the op of the product."""
    program = Program()
    x, w, z = (program.argument(SIDE, SIDE) for _ in range(3))
    made = program.matmul(x, w)
    graph = program.graph(program.matmul(program.elementwise(made, z), w))
    return graph, graph.values[made].op


def test_the_whole_sum_is_held_until_something_is_added() -> None:
    graph, product = added_to()
    hardware, parts = get_hardware("tpu-v5p"), parts_of("x=4")
    buffers = find_buffers(graph, backend_for(hardware))
    assert not buffers.is_stored[graph.ops[product].results[0]]
    costing = Costing(cost_model_for(hardware, parts), parts)
    encoded = Encoder(graph, buffers, costing, free_wishes(graph), None).encode()
    node = encoded.node_by_op[product]
    (summed,) = (
        number
        for number, candidate in enumerate(encoded.candidates[node])
        if candidate.reduced and candidate.results[0] == ((), ())
    )
    held = sum(
        int(term.usage[summed])
        for term in encoded.problem.node_memory
        if term.node == node and term.start <= product < term.stop
    )
    assert held == WHOLE
