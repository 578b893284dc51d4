"""Indices of rows that devices gather, in one slice of a TPU or over two."""

from __future__ import annotations

import pytest

from autoshard.encoding.encode import Wishes
from autoshard.graph.program import OpClass
from autoshard.graph.rule import Rule
from tests.planner.graphs import Program, parts_of, plan

BAGS, LANES = 4096, 128
ONE_SLICE, TWO_SLICES = "tpu-v5p:2x2x2", "2x tpu-v5p:2x2x1"


def copied_indices(bag: int, hardware: str) -> int:
    """Bytes of the indices that 8 devices gather to look up rows, so many in each bag."""
    program = Program()
    table, indices = program.argument(64, 8 * LANES), program.argument(BAGS, bag)
    rule = Rule((64, BAGS, bag, 8 * LANES), (((0,), (3,)), ((1,), (2,))), (((1,), (2,), (3,)),))
    shape = (BAGS, bag, 8 * LANES)
    (made,) = program.compute("gather", (table, indices), [shape], rule, OpClass.GATHER)
    graph = program.graph(program.sum(made))
    parts = parts_of("x=8")
    rows, columns = parts.to_sharding(((0,), ())), parts.to_sharding(((), (0,)))
    wishes = Wishes(
        arguments=[columns, rows],
        results=[parts.to_sharding(((), ()))],
        values={made: parts.to_sharding(((), (), (0,)))},
    )
    held = plan(graph, "x=8", wishes, None, hardware).account.memory.held
    (copy,) = (t for t in held if t.kind == "copy")
    return copy.local_bytes


@pytest.mark.parametrize("bag", [2, 4])
def test_those_gathered_over_slices_lie_in_whole_lanes(bag: int) -> None:
    assert copied_indices(bag, ONE_SLICE) == BAGS * bag * 4
    assert copied_indices(bag, TWO_SLICES) == BAGS * LANES * 4


def test_a_vector_has_no_rows_to_pad() -> None:
    assert copied_indices(1, TWO_SLICES) == copied_indices(1, ONE_SLICE)
