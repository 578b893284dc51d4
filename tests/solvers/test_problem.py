from __future__ import annotations

import numpy as np
import pytest

from solvers import Edge, EdgeMemory, NodeMemory, Problem, ProblemError, solve, verify_problem
from solvers.problem import IntArray


def ints(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def square(value: int = 0) -> IntArray:
    return np.full((2, 2), value, dtype=np.int64)


@pytest.mark.parametrize(
    ("problem", "faults"),
    [
        (Problem((ints(1, 2),)), []),
        (Problem((ints(),)), ["node_costs[0]: has no choices, expected at least one"]),
        (
            Problem((ints(3, 2 * 10**16, 10**17),)),
            [
                "node_costs[0][1]: is 20000000000000000, expected less than 10**16, "
                "or 10**17 and up for not allowed"
            ],
        ),
        (Problem((ints(3, -4),)), ["node_costs[0][1]: is -4, expected zero or more"]),
        (
            Problem((np.array([0.5]),)),
            ["node_costs[0]: is float64, expected an int64 array"],
        ),
        (
            Problem((ints(1, 2), ints(1, 2)), (Edge(0, 2, square()),)),
            ["edges[0]: joins unknown node 2, the problem has 2 nodes"],
        ),
        (
            Problem((ints(1, 2),), (Edge(0, 0, square()),)),
            ["edges[0]: joins node 0 to itself, expected two different nodes"],
        ),
        (
            Problem((ints(1, 2), ints(1)), (Edge(0, 1, square()),)),
            ["edges[0].costs: has shape (2, 2), expected (2, 1)"],
        ),
        (
            Problem((ints(1, 2), ints(1, 2)), (Edge(0, 1, square(-1)),)),
            ["edges[0].costs[0][0]: is -1, expected zero or more"],
        ),
        (
            Problem((ints(1),), node_memory=(NodeMemory(0, 3, 2, ints(1)),)),
            ["node_memory[0]: starts at 3 after it stops at 2, expected start <= stop"],
        ),
        (
            Problem((ints(1),), node_memory=(NodeMemory(0, 0, 2, ints(1, 2)),)),
            ["node_memory[0].usage: has shape (2,), expected (1,)"],
        ),
        (
            Problem((ints(1),), edge_memory=(EdgeMemory(0, 0, 1, square()),)),
            ["edge_memory[0]: names unknown edge 0, there are 0"],
        ),
        (
            Problem((ints(1),), memory_limit=-1),
            ["memory_limit: is -1, expected zero or more"],
        ),
        (
            Problem((ints(1),), node_memory=(NodeMemory(0, 0, 1, ints(2**62)),)),
            [f"memory: the largest usages add up to {2**62}, expected less than {2**62}"],
        ),
    ],
)
def test_every_violation_is_told_with_its_path(problem: Problem, faults: list[str]) -> None:
    assert verify_problem(problem) == faults


def test_all_violations_are_told_at_once() -> None:
    problem = Problem((ints(-1), ints()), (Edge(0, 5, square()),), memory_limit=-3)
    assert len(verify_problem(problem)) == 4


def test_solving_a_wrong_problem_raises_with_the_paths() -> None:
    with pytest.raises(ProblemError) as caught:
        solve(Problem((ints(-1),), name="toy"))
    assert str(caught.value) == (
        "toy: node_costs[0][0]: is -1, expected zero or more\n"
        "fix: verify_problem lists every violation"
    )


def test_the_column_count_is_choices_plus_pairs() -> None:
    problem = Problem((ints(1, 2), ints(1, 2)), (Edge(0, 1, square()),))
    assert problem.num_columns == 2 + 2 + 4
