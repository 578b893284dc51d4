"""Bounds of floating-point engines as integers: never above the truth, sharp where possible."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from solvers import FORBIDDEN, Edge, Problem, Status, evaluate, solve
from solvers.engines.brute_force import BruteForce
from solvers.engines.mathopt_highs import MathOptHighs
from solvers.engines.mathopt_scip import MathOptScip
from solvers.engines.protocol import Engine, Request
from solvers.engines.pulp_cbc import PulpCbc
from solvers.float_bound import PER_COLUMN, RELATIVE, CostGrid, proven_bound
from solvers.presolve import presolve
from solvers.problem import IntArray
from tests.solvers.instances import random_problem, small_problems

FLOAT_ENGINES = (MathOptHighs(), MathOptScip(), PulpCbc())


@settings(max_examples=300)
@given(
    optimum=st.integers(0, 2**60),
    scale=st.floats(1.0, 1e12),
    num_columns=st.integers(0, 10**6),
    share_per_column=st.floats(-1, 1),
    share_relative=st.floats(-0.99, 0.99),
)
def test_a_bound_off_by_no_more_than_the_tolerances_is_never_above_the_optimum(
    optimum: int, scale: float, num_columns: int, share_per_column: float, share_relative: float
) -> None:
    off = Fraction(share_per_column) * PER_COLUMN * num_columns
    told = float(
        (Fraction(optimum) / Fraction(scale)) * (1 + Fraction(share_relative) * RELATIVE) + off
    )
    assert proven_bound(told, scale, num_columns) <= optimum


@given(optimum=st.integers(0, 10**8), num_columns=st.integers(0, 10**5))
def test_unscaled_costs_are_proven_to_the_unit(optimum: int, num_columns: int) -> None:
    assert proven_bound(float(optimum) + 1e-7, 1.0, num_columns) == optimum


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), float("-inf"), -5.0])
def test_what_is_no_bound_proves_nothing(bound: float) -> None:
    assert proven_bound(bound, 1.0, 3) == 0


@settings(max_examples=60, deadline=None)
@given(problem=small_problems(), step=st.sampled_from((1, 6, 1000)), bound=st.integers(0, 40_000))
def test_every_answer_costs_what_is_on_the_grid_and_rounding_skips_none(
    problem: Problem, step: int, bound: int
) -> None:
    rows = presolve(problem, rules=()).problem
    tables = [
        np.where(t >= FORBIDDEN, FORBIDDEN, t * step + 7)
        for t in (*rows.node_costs, *(edge.costs for edge in rows.edges))
    ]
    num_nodes = rows.num_nodes
    stepped = replace(
        rows,
        node_costs=tuple(tables[:num_nodes]),
        edges=tuple(
            Edge(edge.u, edge.v, table)
            for edge, table in zip(rows.edges, tables[num_nodes:], strict=True)
        ),
    )
    grid = CostGrid.of(tables)
    assert grid.step % step == 0
    for choices in itertools.product(*(range(len(costs)) for costs in stepped.node_costs)):
        cost = evaluate(stepped, choices).cost
        if cost < FORBIDDEN:
            assert grid.round_up(cost) == cost
            assert (grid.round_up(bound) <= cost) == (bound <= cost)


def with_large_costs(problem: Problem, factor: int) -> Problem:
    """Costs so large, and so near to each other, that double precision does not tell them apart."""

    def large(costs: IntArray) -> IntArray:
        return np.where(costs >= FORBIDDEN, FORBIDDEN, costs + factor)

    return replace(
        problem,
        node_costs=tuple(large(costs) for costs in problem.node_costs),
        edges=tuple(Edge(edge.u, edge.v, large(edge.costs)) for edge in problem.edges),
    )


@pytest.mark.parametrize("engine", FLOAT_ENGINES, ids=lambda engine: engine.name)
@settings(max_examples=25, deadline=None)
@given(problem=small_problems(), factor=st.sampled_from((0, 10**9, 10**13, 10**15)))
@example(problem=random_problem(528459), factor=0)  # SCIP's presolve lost its optimum
def test_an_engine_claims_no_bound_above_the_optimum_however_large_the_costs(
    engine: Engine, problem: Problem, factor: int
) -> None:
    reduced = presolve(with_large_costs(problem, factor), rules=()).problem
    best = BruteForce().solve(reduced, Request()).choices
    answer = engine.solve(reduced, Request())
    assert answer.is_infeasible == (best is None)
    if best is not None:
        assert answer.lower_bound <= evaluate(reduced, best).cost


@settings(max_examples=25, deadline=None)
@given(problem=small_problems(), factor=st.sampled_from((10**13, 10**15)))
def test_a_gap_too_small_to_close_ends_the_search_and_is_not_called_optimal(
    problem: Problem, factor: int
) -> None:
    large = with_large_costs(problem, factor)
    best = BruteForce().solve(presolve(large, rules=()).problem, Request()).choices
    result = solve(large, engine="mathopt_highs", time_limit_seconds=60)
    if best is None:
        assert result.status is Status.INFEASIBLE
        return
    assert result.cost is not None
    assert result.status in (Status.OPTIMAL, Status.WITHIN_GAP)
    if result.status is Status.OPTIMAL:
        assert result.cost == solve(large, engine="brute_force").cost
