"""Sums over devices that are cut further by what reads them: taken whole, not scattered."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.encoding.encoded import Decoded, Encoded, decode
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.graph.program import Graph
from autoshard.layouts import Layout
from tests.planner.graphs import Program, encoder_for
from tests.planner.objective import check_objective_is_account

LONG, ROWS, COLUMNS = 2**12, 256, 2048
MESH = "data=4,model=2"
SCATTERED: Layout = ((0,), ())
FURTHER: list[Layout] = [((0, 1), ()), ((0,), (1,))]


def read_by(num_readers: int) -> Graph:
    """A product whose sum several element-wise ops read."""
    program = Program()
    made = program.matmul(program.argument(ROWS, LONG), program.argument(LONG, COLUMNS))
    return program.graph(*(program.elementwise(made, name="tanh") for _ in range(num_readers)))


def decided(graph: Graph, wanted: Layout, hardware: str = "tpu-v5e") -> tuple[Encoded, list[int]]:
    """Choices under which the product scatters rows, and all that reads them has them as wanted."""
    encoded = encoder_for(graph, MESH, hardware=hardware).encode()
    choices = []
    for index, candidates in zip(encoded.ops, encoded.candidates, strict=True):
        op = graph.ops[index]
        if op.name == "dot_general":
            found = (c.scattered == (0,) and c.results[0] == SCATTERED for c in candidates)
        elif op.name == "tanh":
            found = (c.results[0] == wanted for c in candidates)
        else:
            found = (True for _ in candidates)
        choices.append(list(found).index(True))
    return encoded, choices + [read.layouts.index(wanted) for read in encoded.reads]


def kinds(graph: Graph, hardware: str, found: Decoded) -> list[str]:
    """The collectives that sum what the product leaves."""
    costing = encoder_for(graph, MESH, hardware=hardware).costing
    (op,) = (op for op in graph.ops if op.name == "dot_general")
    return [one.kind for one in costing.sums_of(graph, op, found.candidates[op.index])]


@pytest.mark.parametrize("hardware", ["h100", "tpu-v5e"])
@pytest.mark.parametrize("num_readers", [1, 2])
@pytest.mark.parametrize("wanted", FURTHER)
def test_a_sum_that_is_cut_further_is_taken_whole(
    hardware: str, num_readers: int, wanted: Layout
) -> None:
    graph = read_by(num_readers)
    encoded, choices = decided(graph, wanted, hardware)
    assert kinds(graph, hardware, decode(encoded, choices)) == ["all-reduce"]


@pytest.mark.parametrize("num_readers", [1, 2])
@pytest.mark.parametrize("wanted", [SCATTERED, ((), ()), ((), (0,))])
def test_one_that_is_read_as_it_is_or_moved_is_scattered(num_readers: int, wanted: Layout) -> None:
    graph = read_by(num_readers)
    encoded, choices = decided(graph, wanted)
    assert kinds(graph, "tpu-v5e", decode(encoded, choices)) == ["reduce-scatter"]


def test_the_sum_is_charged_where_it_is_cut() -> None:
    graph = read_by(2)
    (encoded, choices), (_, further) = (decided(graph, one) for one in (SCATTERED, FURTHER[0]))
    encoder = encoder_for(graph, MESH, hardware="tpu-v5e")
    axes = encoder.costing.axis_parts((0,))
    model, num_bytes = encoder.costing.model, float(ROWS * COLUMNS * 4)
    more = model.all_reduce_seconds(num_bytes, axes)
    more -= model.reduce_scatter_seconds(num_bytes, axes)
    (read,) = (edge for edge in encoded.problem.edges if edge.v >= len(encoded.ops))
    assert read.costs[choices[read.u], choices[read.v]] == 0
    cut = read.costs[further[read.u], further[read.v]] / PICOSECONDS
    sliced = encoder.costing.copy_seconds(np.array([2.0 * num_bytes / 8]))[0]
    assert cut == pytest.approx(float(more) + sliced, rel=1e-3)


@given(data=st.data())
def test_the_objective_is_what_the_account_says(data: st.DataObject) -> None:
    graph = read_by(1)
    hardware = data.draw(st.sampled_from(["h100", "tpu-v5e", "cpu-host"]))
    check_objective_is_account(encoder_for(graph, MESH, hardware=hardware), data)
