from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import FORBIDDEN, Problem, evaluate
from solvers.memory_rows import num_rows_of
from solvers.scalable.annealer import Annealer
from solvers.scalable.block_moves import move_regions
from solvers.scalable.clock import Effort
from solvers.scalable.layout import Layout, lay_out
from solvers.scalable.profile import peak_of, profile_of
from solvers.scalable.region_factors import make_tables
from solvers.scalable.tree_moves import Walk, cost_of_walk, start_walk
from tests.solvers.instances import LayeredShape, layered_problem
from tests.solvers.scalable.reduced_problems import best_cost, lane_problems, random_choices


def never() -> bool:
    return False


def assert_walk_is_right(layout: Layout, walk: Walk) -> None:
    """What a walk says of itself is what its choices give."""
    profile = profile_of(layout.memory, layout.num_choices, walk.choices)
    assert peak_of(profile) == peak_of(walk.profile) == walk.counts[3]
    cost = cost_of_walk(layout.graph, walk.choices)
    if cost < FORBIDDEN // 2:
        assert cost == pytest.approx(walk.costs[0], abs=64)  # forbidden costs passed round it
    if np.isfinite(walk.costs[1]) and walk.costs[1] < FORBIDDEN // 2:
        found = evaluate(layout.problem, walk.best.tolist())
        assert found.is_allowed
        assert found.cost == pytest.approx(walk.costs[1], abs=64)


@settings(max_examples=60, deadline=None)
@given(problem=lane_problems(), seed=st.integers(0, 1000), temperature=st.sampled_from([0.0, 3.0]))
def test_tree_moves_keep_their_books_and_never_raise_a_peak_above_the_limit(
    problem: Problem, seed: int, temperature: float
) -> None:
    layout = lay_out(problem, num_rows_of(problem))
    annealer = Annealer(layout, seed, never)
    walk = annealer.start(random_choices(problem, seed))
    before = max(int(walk.counts[3]), layout.memory.limit)
    for _ in range(5):
        annealer.move(walk, layout.graph.costs, layout.graph.tables, 5, temperature)
        assert_walk_is_right(layout, walk)
        assert walk.counts[3] <= before
        before = max(int(walk.counts[3]), layout.memory.limit)


@settings(max_examples=60, deadline=None)
@given(problem=lane_problems(), seed=st.integers(0, 1000))
def test_a_tree_move_without_noise_never_raises_the_cost(problem: Problem, seed: int) -> None:
    layout = lay_out(replace(problem, memory_limit=None), num_rows_of(problem))
    annealer = Annealer(layout, seed, never)
    walk = annealer.start(random_choices(problem, seed))
    cost = cost_of_walk(layout.graph, walk.choices)
    for _ in range(10):
        annealer.move(walk, layout.graph.costs, layout.graph.tables, 1)
        after = cost_of_walk(layout.graph, walk.choices)
        assert after <= cost + (0 if cost < FORBIDDEN // 2 else 64)  # forbidden costs round it
        cost = after


@settings(max_examples=60, deadline=None)
@given(problem=lane_problems(), seed=st.integers(0, 1000))
def test_a_region_of_all_nodes_without_a_limit_is_solved_to_the_optimum(
    problem: Problem, seed: int
) -> None:
    free = replace(problem, memory_limit=None)
    layout = lay_out(free, num_rows_of(free))
    best = best_cost(free)
    walk = start_walk(layout, random_choices(free, seed), seed)
    tables = make_tables(layout, 10_000)
    roots = np.arange(free.num_nodes, dtype=np.int64)
    graph, memory = layout.graph, layout.memory
    # Parts of the graph that no edge joins are reached from roots of their own.
    num_held = move_regions(
        graph, memory, graph.costs, graph.tables, walk, tables, roots, 60, 0.0, 100, 10_000
    )
    assert num_held == 0
    if best is not None:
        assert evaluate(free, walk.choices.tolist()).cost == best


@settings(max_examples=60, deadline=None)
@given(
    problem=lane_problems(),
    seed=st.integers(0, 1000),
    most_entries=st.sampled_from([4, 9, 30]),
    temperature=st.sampled_from([0.0, 3.0]),
)
def test_regions_with_held_nodes_keep_their_books_and_the_limit(
    problem: Problem, seed: int, most_entries: int, temperature: float
) -> None:
    layout = lay_out(problem, num_rows_of(problem))
    walk = start_walk(layout, random_choices(problem, seed), seed)
    tables = make_tables(layout, most_entries)
    roots = np.arange(problem.num_nodes, dtype=np.int64)
    graph, memory = layout.graph, layout.memory
    before = max(int(walk.counts[3]), memory.limit)
    for size in (1, 3, 100):
        move_regions(
            graph,
            memory,
            graph.costs,
            graph.tables,
            walk,
            tables,
            roots,
            3,
            temperature,
            size,
            most_entries,
        )
        assert_walk_is_right(layout, walk)
        assert walk.counts[3] <= before
        before = max(int(walk.counts[3]), memory.limit)


def test_annealing_by_moves_is_the_same_for_the_same_seed() -> None:
    problem = replace(layered_problem(LayeredShape(num_layers=2)), memory_limit=None)
    layout = lay_out(problem, num_rows_of(problem))
    costs = []
    for _ in range(2):
        annealer = Annealer(layout, 3, never)
        walk = annealer.start(np.zeros(problem.num_nodes, dtype=np.int64))
        energies = (layout.graph.costs, layout.graph.tables)
        annealer.anneal(walk, energies, 1e6, 1e4, Effort(seconds=None, moves=4000))
        costs.append((float(walk.costs[1]), walk.best.tolist()))
    assert costs[0] == costs[1]
