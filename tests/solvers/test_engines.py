from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from hypothesis import given, settings

from solvers import EngineError, NodeMemory, Problem, Status, evaluate, solve
from solvers.catalog import AUTO, CATALOG, engine_by_name, pick_solver
from solvers.engines.brute_force import BruteForce
from solvers.engines.protocol import Engine, Request
from solvers.presolve import reduce_fully
from tests.solvers.instances import LayeredShape, layered_problem, random_problem, small_problems

EXACT = (
    "auto",
    "mathopt_highs",
    "mathopt_scip",
    "cp_sat",
    "pulp_cbc",
    "toulbar2",
    "bounds",
    "brute_force",
)

LIBRARIES = {"toulbar2": "pytoulbar2", "pulp_highs": "highspy"}
"""What optional engines need."""


def require_library(name: str) -> None:
    library = LIBRARIES.get(name)
    if library is not None and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


IN_THIS_PROCESS = [engine.name for engine in CATALOG if engine.name != "pulp_highs"]
"""Starting a process for each of many problems would take minutes."""


def optimum(problem: Problem) -> int | None:
    choices = BruteForce().solve(problem, Request()).choices
    return None if choices is None else evaluate(problem, choices).cost


@pytest.mark.parametrize("name", [AUTO, *IN_THIS_PROCESS])
@settings(max_examples=25, deadline=None)
@given(problem=small_problems())
def test_claimed_cost_is_real_and_the_bound_never_above_the_best(
    name: str, problem: Problem
) -> None:
    require_library(name)
    check_claims(name, problem)


@pytest.mark.parametrize("seed", [3, 11])
def test_highs_through_pulp_claims_what_is_real(seed: int) -> None:
    require_library("pulp_highs")
    check_claims("pulp_highs", random_problem(seed, most_nodes=6, most_choices=4), is_exact=True)


def check_claims(name: str, problem: Problem, *, is_exact: bool = False) -> None:
    best = optimum(problem)
    result = solve(problem, engine=name)
    if result.choices is not None:
        found = evaluate(problem, result.choices)
        assert found.is_allowed
        assert (found.cost, found.peak, found.peak_time) == (
            result.cost,
            result.peak,
            result.peak_time,
        )
        assert best is not None
        assert result.lower_bound <= best <= found.cost
    else:
        assert best is None or result.status is Status.NO_SOLUTION
    if is_exact or name in EXACT:
        assert result.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL)
        assert result.cost == best


@pytest.mark.parametrize(
    "engine",
    [b for b in CATALOG if b.name in EXACT and b.name not in ("bounds", "brute_force")],
    ids=lambda b: b.name,
)
@settings(max_examples=15, deadline=None)
@given(problem=small_problems())
def test_exact_engines_need_no_presolve_but_row_times(engine: Engine, problem: Problem) -> None:
    require_library(engine.name)
    plain = reduce_fully(problem, rules=())
    if plain.is_infeasible:
        return
    answer = engine.solve(plain.problem, Request())
    best = optimum(problem)
    if best is None:
        assert answer.choices is None
        assert answer.is_infeasible
    else:
        assert answer.choices is not None
        assert evaluate(plain.problem, answer.choices).cost + plain.constant == best


@pytest.mark.parametrize("name", [AUTO, "mathopt_highs", "message_passing"])
def test_one_seed_gives_one_answer(name: str) -> None:
    problem = layered_problem(LayeredShape(num_layers=2, ops_per_layer=6, num_choices=5))
    first = solve(problem, engine=name, seed=3)
    second = solve(problem, engine=name, seed=3)
    assert first.choices == second.choices
    assert first.lower_bound == second.lower_bound


def test_an_unknown_engine_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(EngineError) as caught:
        engine_by_name("gurobi")
    assert str(caught.value) == (
        'engine: no engine is called "gurobi"\n'
        "fix: one of auto, mathopt_highs, mathopt_scip, cp_sat, pulp_cbc, pulp_highs, toulbar2, "
        "bounds, message_passing, elimination, brute_force"
    )


@pytest.mark.parametrize("name", ["toulbar2", "pulp_highs"])
def test_an_optional_engine_that_is_missing_says_how_to_get_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, LIBRARIES[name], None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    problem = layered_problem(LayeredShape(num_layers=2, ops_per_layer=6, num_choices=5))
    with pytest.raises(EngineError) as caught:
        solve(problem, engine=name)
    extra = name.replace("_", "-")
    assert str(caught.value) == (
        f'engine {name}: {LIBRARIES[name]} is not installed\nfix: pip install "autoshard[{extra}]"'
    )


@pytest.mark.parametrize("name", ["mathopt_highs", "mathopt_scip", "pulp_cbc", "cp_sat"])
def test_one_byte_of_many_is_too_much(name: str) -> None:
    """Engines that count in floating point take a hundred-millionth of a row for nothing."""
    whole = 10**8
    problem = Problem(
        node_costs=(np.array([0, 7]), np.array([0, 5])),
        node_memory=(
            NodeMemory(0, 0, 1, np.array([2 * whole, whole])),
            NodeMemory(1, 0, 1, np.array([2 * whole + 3, whole + 3])),
        ),
        memory_limit=4 * whole + 2,
    )
    result = solve(problem, engine=name)
    assert (result.status, result.cost, result.lower_bound) == (Status.OPTIMAL, 5, 5)


def test_brute_force_refuses_what_it_cannot_finish() -> None:
    problem = layered_problem(LayeredShape(num_layers=1, ops_per_layer=12, num_choices=6))
    with pytest.raises(EngineError, match=r'fix: choose engine="auto"'):
        BruteForce(most_combinations=1000).solve(problem, Request())


def test_the_pick_says_why() -> None:
    free = reduce_fully(random_problem(8, has_memory=False)).problem
    assert pick_solver(free).engine.name == "elimination"
    assert pick_solver(free).why.startswith("no memory row can bind and ")
    bound = Problem(free.node_costs, free.edges, memory_limit=5)
    assert pick_solver(bound).engine.name == "bounds"
    assert pick_solver(bound).why.startswith("memory rows can bind; ")
