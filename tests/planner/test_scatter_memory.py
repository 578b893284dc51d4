"""Zeros that scatters add to: there early, and beside what something else is added to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoshard.backends import backend_for
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import Rule
from cost_models import get_hardware
from solvers import EdgeMemory, NodeMemory
from tests.planner.graphs import Program, encoder_for

ROWS, COLUMNS, TAKEN = 256, 512, 1024
WHOLE = ROWS * COLUMNS * 4


def scattered(program: Program, updates: int) -> int:
    """Rows of updates added to zeros where indices say."""
    table, taken = ((0,), (1,)), ((2,), (1,))
    rule = Rule(
        (ROWS, COLUMNS, TAKEN, 1),
        (table, ((2,), (3,)), taken),
        (table,),
        frozenset({2}),
        frozenset({3}),
    )
    operands = (program.zeros(ROWS, COLUMNS), program.argument(TAKEN, 1), updates)
    (made,) = program.compute("scatter", operands, [(ROWS, COLUMNS)], rule, OpClass.SCATTER)
    return made


def rows_added(*, to_another: bool) -> Graph:
    """A product, what a second one makes scattered, and both added or given back."""
    program = Program()
    other = program.matmul(program.argument(ROWS, 64), program.argument(64, COLUMNS))
    updates = program.matmul(program.argument(TAKEN, 64), program.argument(64, COLUMNS))
    made = scattered(program, updates)
    again = program.matmul(updates, program.argument(COLUMNS, 64))
    added = program.elementwise(other, made) if to_another else made
    return program.graph(added, again)


def of_scatter(graph: Graph) -> tuple[list[EdgeMemory], list[NodeMemory], dict[str, int]]:
    """Memory terms of what reads the scatter, and of itself; where ops are."""
    buffers = find_buffers(graph, backend_for(get_hardware("h100")))
    encoded = replace(encoder_for(graph, "x=4", hardware="h100"), buffers=buffers).encode()
    at = {op.name: op.index for op in graph.ops}
    node = encoded.node_by_op[at["scatter"]]
    problem = encoded.problem
    edges = [term for term in problem.edge_memory if problem.edges[term.edge].u == node]
    return edges, [term for term in problem.node_memory if term.node == node], at


def test_a_scatter_that_is_scattered_over_devices_holds_all_of_its_zeros_until_it_runs() -> None:
    graph = rows_added(to_another=False)
    _, terms, at = of_scatter(graph)
    filled = [op.index for op in graph.ops if op.name == "dot_general"][1]
    pieces = [term for term in terms if int(term.usage.max()) == WHOLE - WHOLE // 4]
    assert [(term.start, term.stop) for term in pieces] == [(filled, at["scatter"] + 1)]


def test_zeros_lie_beside_what_is_added_to_where_that_is_cut_and_the_scatter_summed() -> None:
    edges, terms, at = of_scatter(rows_added(to_another=True))
    assert not terms
    (zeros,) = (term for term in edges if term.stop == at["add"] + 1 and term.start < at["scatter"])
    assert set(np.unique(zeros.usage).tolist()) == {0, WHOLE}
    assert zeros.usage[:, 0].max() == 0  # the first addition is of whole tensors
