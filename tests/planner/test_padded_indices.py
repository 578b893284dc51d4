"""Indices of rows that devices gather, in one slice of a TPU or over two."""

from __future__ import annotations

import pytest

from autoshard.graph.program import OpClass
from autoshard.graph.rule import Rule
from autoshard.layouts import Layout
from autoshard.planning.solution import Solution
from autoshard.wishes.wishes import Wishes
from tests.planner.graphs import Program, parts_of, plan

BAGS, LANES = 4096, 128
MESH = "slice=2,data=2,model=2"
ONE_SLICE, TWO_SLICES = "tpu-v5p:2x2x2", "2x tpu-v5p:2x2x1"


def looked_up(bag: int, hardware: str, rows: Layout = ((), ())) -> Solution:
    """A plan in which the indices come from 8 devices to look up rows, so many in each bag."""
    program = Program()
    table, indices = program.argument(64, 8 * LANES), program.argument(BAGS, bag)
    rule = Rule((64, BAGS, bag, 8 * LANES), (((0,), (3,)), ((1,), (2,))), (((1,), (2,), (3,)),))
    shape = (BAGS, bag, 8 * LANES)
    (made,) = program.compute("gather", (table, indices), [shape], rule, OpClass.GATHER)
    graph = program.graph(program.sum(made))
    parts = parts_of(MESH)
    left = tuple(part for part in range(3) if not any(part in dim for dim in rows))
    wishes = Wishes(
        arguments=[parts.to_sharding(((), left)), parts.to_sharding(((0, 1, 2), ()))],
        results=[parts.to_sharding(((), ()))],
        values={made: parts.to_sharding((*rows, left))},
    )
    return plan(graph, MESH, wishes, None, hardware)


def copied_indices(solution: Solution) -> int:
    """Bytes of the indices on one device."""
    (copy,) = (t for t in solution.account.memory.held if t.name == "copy of arg1 for gather")
    return copy.local_bytes


@pytest.mark.parametrize("bag", [2, 4])
def test_those_gathered_over_slices_lie_in_whole_lanes(bag: int) -> None:
    assert copied_indices(looked_up(bag, ONE_SLICE)) == BAGS * bag * 4
    assert copied_indices(looked_up(bag, TWO_SLICES)) == BAGS * LANES * 4


def test_rows_that_are_cut_are_as_long_as_the_lanes_too() -> None:
    assert copied_indices(looked_up(4, TWO_SLICES, ((), (2,)))) == BAGS * LANES * 4


def test_the_solver_counts_what_the_account_counts() -> None:
    found = looked_up(4, TWO_SLICES)
    problem = found.encoded.problem
    used = [term.usage.max() for term in problem.edge_memory]
    assert copied_indices(found) in used


def test_a_vector_has_no_rows_to_pad() -> None:
    assert copied_indices(looked_up(1, TWO_SLICES)) == copied_indices(looked_up(1, ONE_SLICE))
