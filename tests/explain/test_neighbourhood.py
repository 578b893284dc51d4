"""Neighbours of a node against every assignment there is."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from autoshard.explain.neighbourhood import Neighbourhood
from solvers import FORBIDDEN, Problem, evaluate
from tests.solvers.instances import random_problem, small_problems


def allowed(problem: Problem) -> list[tuple[int, ...]]:
    """Every assignment without a forbidden cost."""
    choices = product(*(range(len(costs)) for costs in problem.node_costs))
    return [one for one in choices if evaluate(problem, one).cost < FORBIDDEN]


@given(problem=small_problems(has_memory=False), data=st.data())
def test_a_clash_means_that_no_assignment_is_left(problem: Problem, data: st.DataObject) -> None:
    node = data.draw(st.integers(0, problem.num_nodes - 1))
    choice = data.draw(st.integers(0, len(problem.node_costs[node]) - 1))
    clash = Neighbourhood(problem).clash(node, np.array([choice]))
    if clash is not None:
        assert not [one for one in allowed(problem) if one[node] == choice]


@given(seed=st.integers(0, 2**32 - 1))
def test_between_two_nodes_every_clash_is_found(seed: int) -> None:
    problem = random_problem(seed, most_nodes=2, forbidden_share=0.5, has_memory=False)
    left = {one[0] for one in allowed(problem)}
    around = Neighbourhood(problem)
    for choice in range(len(problem.node_costs[0])):
        assert (around.clash(0, np.array([choice])) is None) == (choice in left)


@given(problem=small_problems(has_memory=False), data=st.data())
def test_the_cost_of_a_choice_is_that_of_the_best_answers_to_it(
    problem: Problem, data: st.DataObject
) -> None:
    now = tuple(data.draw(st.integers(0, len(costs) - 1)) for costs in problem.node_costs)
    node = data.draw(st.integers(0, problem.num_nodes - 1))
    costs, answers = Neighbourhood(problem).costs(node, now)
    for edge in problem.edges:  # neighbours of one another would not see each other's answers
        assume(not (edge.u in answers and edge.v in answers))

    def with_choice(choice: int) -> int:
        ways = [
            range(len(problem.node_costs[other])) if other in answers else (now[other],)
            for other in range(problem.num_nodes)
        ]
        ways[node] = (choice,)
        return min(evaluate(problem, one).cost for one in product(*ways))

    best = [with_choice(choice) for choice in range(len(costs))]
    assume(max(best) < FORBIDDEN)
    assert [cost - costs[0] for cost in costs] == [cost - best[0] for cost in best]
    for choice, cost in enumerate(best):
        answered = list(now)
        answered[node] = choice
        for other, answer in answers.items():
            answered[other] = int(answer[choice])
        assert evaluate(problem, answered).cost == cost
