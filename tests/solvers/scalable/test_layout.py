from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import FORBIDDEN, Edge, Problem, evaluate
from solvers.memory_rows import RowUse, num_rows_of
from solvers.scalable.layout import lay_out
from solvers.scalable.profile import (
    BLOCK,
    Profile,
    add_to_profile,
    peak_of,
    profile_of,
    use_by_row,
)
from solvers.scalable.tree_moves import cost_of_walk, start_walk
from tests.solvers.scalable.reduced_problems import lane_problems, random_choices


@settings(deadline=None)
@given(problem=lane_problems(), seed=st.integers(0, 1000))
def test_flat_costs_and_use_are_those_of_the_problem(problem: Problem, seed: int) -> None:
    num_rows = num_rows_of(problem)
    layout = lay_out(problem, num_rows)
    choices = random_choices(problem, seed)
    found = evaluate(problem, choices.tolist())
    if found.cost < FORBIDDEN:
        assert cost_of_walk(layout.graph, choices) == found.cost
    else:
        assert cost_of_walk(layout.graph, choices) >= FORBIDDEN // 2
    use = use_by_row(layout.memory, layout.num_choices, choices)
    assert use.tolist() == RowUse(problem, num_rows).held(choices).tolist()
    walk = start_walk(layout, choices, 0)
    assert walk.counts[3] == use.max(initial=0)
    assert np.isfinite(walk.costs[1]) == (walk.counts[3] <= layout.memory.limit)


@settings(deadline=None)
@given(
    spans=st.lists(
        st.tuples(st.integers(0, 4 * BLOCK - 1), st.integers(1, 4 * BLOCK), st.integers(0, 9)),
        max_size=20,
    )
)
def test_a_profile_kept_in_blocks_is_the_plain_one(spans: list[tuple[int, int, int]]) -> None:
    num_rows = 4 * BLOCK
    plain = np.zeros(num_rows, dtype=np.int64)
    profile = Profile(plain.copy(), np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64))
    for first, length, amount in spans:
        stop = min(num_rows, first + length)
        plain[first:stop] += amount
        touched = add_to_profile(profile, first, stop, amount)
        assert plain[first:stop].max() <= touched <= plain.max()
    assert peak_of(profile) == plain.max()
    assert (profile.held + np.repeat(profile.added, BLOCK)).tolist() == plain.tolist()


def test_equal_tables_are_laid_out_once() -> None:
    table = np.arange(6, dtype=np.int64).reshape(2, 3)
    sizes = (2, 3, 2, 3)
    problem = Problem(
        node_costs=tuple(np.zeros(size, dtype=np.int64) for size in sizes),
        edges=(Edge(0, 1, table), Edge(2, 3, table.copy())),
    )
    layout = lay_out(problem, 0)
    assert layout.graph.tables.size == 2 * table.size  # once as it is, once turned


def test_a_profile_of_nothing_has_no_peak() -> None:
    problem = Problem(node_costs=(np.zeros(2, dtype=np.int64),))
    layout = lay_out(problem, 0)
    choices = np.zeros(1, dtype=np.int64)
    assert peak_of(profile_of(layout.memory, layout.num_choices, choices)) == 0
