"""An activation that one matmul reads whole and another in a slice is stored for both."""

from __future__ import annotations

import pytest

from autoshard.encoding.copy_memory import SLICED
from autoshard.encoding.encoded import decode
from autoshard.graph.program import Graph
from autoshard.layouts import Layout
from autoshard.lowering.local_program import Buffer
from autoshard.lowering.lower import lower
from tests.planner.graphs import Program, encoder_for

SIDE, BF16_BYTES = 8192, 2
WHOLE, COLUMNS, ROWS = ((), ()), ((), (0,)), ((0,), ())


def activation(num_readers: int) -> Graph:
    """Read by matmuls one after another; at last what it was made of is read again."""
    program = Program()
    x, *weights = (program.argument(SIDE, SIDE) for _ in range(num_readers + 1))
    before = program.matmul(x, weights[0])
    made = program.elementwise(before, name="maximum")
    total = x
    for weight in weights[1:]:
        total = program.matmul(made, program.matmul(total, weight))
    return program.graph(program.elementwise(program.matmul(made, total), before))


def sliced_bytes(num_readers: int, hardware: str) -> int:
    """The most bytes that are stored for a slice, whatever is chosen."""
    problem = encoder_for(activation(num_readers), "x=4", hardware=hardware).encode().problem
    sliced = (one for one in problem.edge_memory if one.tag == SLICED)
    return max((int(one.usage.max()) for one in sliced), default=0)


@pytest.mark.parametrize(
    ("num_readers", "hardware", "share"),
    [(2, "tpu-v5e", 1), (2, "tpu-v5p", 1), (1, "tpu-v5p", 0), (2, "h100", 0)],
)
def test_it_is_stored_for_a_slice_where_another_matmul_reads_it_too(
    num_readers: int, hardware: str, share: int
) -> None:
    assert sliced_bytes(num_readers, hardware) == share * SIDE * SIDE * BF16_BYTES


def stored_activation(first: Layout, second: Layout) -> list[Buffer]:
    """Its buffers where the last matmul reads it and another tensor like this, all else whole."""
    graph = activation(2)
    encoder = encoder_for(graph, "x=4", hardware="tpu-v5p")
    encoded = encoder.encode()
    last = max(op.index for op in graph.ops if op.name == "dot_general")
    wanted = {last: (first, second)}
    choices = [0] * len(encoded.problem.node_costs)
    for node, index in enumerate(encoded.ops):
        candidates = [one.operands for one in encoded.candidates[index]]
        choices[node] = candidates.index(wanted.get(index, (WHOLE,) * len(candidates[0])))
    program = lower(encoder, encoded, decode(encoded, choices), tuple(choices))
    (made,) = next(op.results for op in graph.ops if op.name == "maximum")
    return [one for one in program.buffers if one.value == made]


def test_it_is_there_until_the_slice_is_read() -> None:
    (stored,) = stored_activation(COLUMNS, ROWS)
    assert stored.num_bytes == SIDE * SIDE * BF16_BYTES
    assert stored.stop > stored.start + 1  # the other matmul runs in between


def test_it_is_not_stored_where_all_read_it_whole() -> None:
    assert stored_activation(WHOLE, WHOLE) == []
