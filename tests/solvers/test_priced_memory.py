"""Memory as a price in the place of a limit, against the limit."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers import FORBIDDEN, Problem, class_search, evaluate, least_use, solve, with_priced_memory
from solvers.memory_rows import at_times
from tests.solvers.instances import LayeredShape, layered_problem, small_problems


@given(small_problems(), st.dictionaries(st.integers(0, 12), st.sampled_from([0.5, 1.0, 3.0])))
def test_choices_pay_for_what_they_hold_at_times_with_a_price(
    problem: Problem, prices: dict[int, float]
) -> None:
    paying = with_priced_memory(problem, prices)
    assert paying.memory_limit is None
    terms = len(problem.node_memory) + len(problem.edge_memory)
    for choices in itertools.product(*(range(len(costs)) for costs in problem.node_costs)):
        cost = evaluate(problem, choices).cost
        if cost >= FORBIDDEN:
            continue
        held = {at: evaluate(at_times(problem, [at]), choices).peak for at in prices}
        paid = evaluate(paying, choices).cost - cost
        due = sum(prices[at] * held[at] for at in prices)
        assert due - terms - 1e-6 <= paid <= due  # each term is rounded down


def test_a_search_tells_the_prices_at_which_memory_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_search, "LEAST_COLUMNS", 0)
    monkeypatch.setattr(sys.modules["solvers.solve"], "WORTH_A_PROCESS", 0)
    problem = layered_problem(LayeredShape(num_layers=6, ops_per_layer=6))
    whole = solve(problem, relative_gap=0.02)
    assert whole.peak is not None
    problem = replace(problem, memory_limit=(2 * least_use(problem)[0] + whole.peak) // 3)
    found = solve(problem, relative_gap=0.02)
    assert found.cost is not None
    assert found.memory_prices
    cheapest = solve(with_priced_memory(problem, found.memory_prices))
    without_limit = solve(with_priced_memory(problem, {}))
    assert cheapest.choices is not None
    assert without_limit.choices is not None
    paid = evaluate(problem, cheapest.choices)
    free = evaluate(problem, without_limit.choices)
    assert not free.is_allowed
    assert paid.peak < free.peak
