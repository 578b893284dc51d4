from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers import (
    FORBIDDEN,
    Edge,
    EdgeMemory,
    Evaluation,
    NodeMemory,
    Problem,
    ProblemError,
    evaluate,
)

PROBLEM = Problem(
    node_costs=(np.array([1, 20]), np.array([3, 40])),
    edges=(Edge(1, 0, np.array([[0, 5], [6, FORBIDDEN]])), Edge(0, 1, np.array([[7, 0], [0, 9]]))),
    node_memory=(
        NodeMemory(0, 0, 4, np.array([10, 1])),
        NodeMemory(0, 6, 8, np.array([2, 2])),
        NodeMemory(1, 3, 9, np.array([4, 5])),
        NodeMemory(1, 5, 5, np.array([1000, 1000])),
    ),
    edge_memory=(EdgeMemory(0, 3, 4, np.array([[100, 200], [300, 400]])),),
    memory_limit=114,
)


def test_parallel_and_turned_edges_add_up() -> None:
    assert evaluate(PROBLEM, (0, 0)).cost == 1 + 3 + 0 + 7
    assert evaluate(PROBLEM, (1, 0)).cost == 20 + 3 + 5 + 0


def test_the_peak_counts_node_terms_and_the_copy_of_an_edge_while_they_are_held() -> None:
    assert evaluate(PROBLEM, (0, 0)) == Evaluation(11, 10 + 4 + 100, 3, True)


def test_one_byte_above_the_limit_is_not_allowed() -> None:
    tight = replace(PROBLEM, memory_limit=113)
    assert not evaluate(tight, (0, 0)).is_allowed
    assert evaluate(PROBLEM, (0, 0)).is_allowed


def test_a_forbidden_pair_is_not_allowed_and_its_cost_is_still_exact() -> None:
    unlimited = replace(PROBLEM, memory_limit=None)
    found = evaluate(unlimited, (1, 1))
    assert found.cost == 20 + 40 + FORBIDDEN + 9
    assert not found.is_allowed


def test_sums_beyond_64_bits_stay_exact() -> None:
    huge = np.array([2**62], dtype=np.int64)
    assert evaluate(Problem((huge, huge, huge)), (0, 0, 0)).cost == 3 * 2**62


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ((0,), "choices: 1 choices given, expected one per node: 2"),
        ((0, 2), "choices[1]: is 2, node 1 has 2 choices"),
        ((-1, 0), "choices[0]: is -1, node 0 has 2 choices"),
    ],
)
def test_choices_that_do_not_match_the_problem_are_refused(
    choices: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ProblemError) as caught:
        evaluate(PROBLEM, choices)
    assert str(caught.value) == message
