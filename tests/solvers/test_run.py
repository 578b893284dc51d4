"""Answers and hints that a solve keeps."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from solvers import NodeMemory, Problem, evaluate
from solvers.grounded import Grounded
from solvers.incumbent import Incumbent
from solvers.lanes import Lane
from solvers.presolve import reduce_fully
from solvers.run import MOST_HINTS, Run
from solvers.solve import _run
from tests.solvers.instances import LayeredShape, layered_problem


def run_of(problem: Problem) -> Run:
    stop = threading.Event()
    return Run(problem, deadline=None, seed=0, relative_gap=0.01, progress=None, stop=stop)


def test_every_answer_found_without_the_limit_is_kept_whatever_was_the_best_at_a_look() -> None:
    """A busy machine looked once, and knew no answer that fits: 15 times the work, another plan."""
    problem = layered_problem(LayeredShape(num_layers=3, ops_per_layer=10, num_choices=8))
    run = run_of(replace(problem, memory_limit=1))
    grounded = Grounded.of(reduce_fully(run.problem, use_memory=False, rules=()))
    generator = np.random.default_rng(0)
    sizes = [len(costs) for costs in grounded.problem.node_costs]
    drawn = [tuple(generator.integers(sizes).tolist()) for _ in range(4)]
    cost_by_answer = {answer: evaluate(grounded.problem, answer).cost for answer in drawn}
    dear_first = sorted(drawn, key=lambda answer: -cost_by_answer[answer])

    def offer_all(_: Problem, incumbent: Incumbent) -> None:
        for answer in dear_first:
            incumbent.offer(answer, cost_by_answer[answer])

    lane = Lane("at once", offer_all, run.incumbent_for(grounded))
    assert not _run(run, grounded, [lane], "solve without memory")
    assert run.hints == [grounded.restore(answer) for answer in reversed(dear_first)]


def test_the_cheapest_answer_that_fits_is_a_hint_however_many_come_after_it() -> None:
    costs = np.arange(20, 0, -1)
    held = NodeMemory(node=0, start=0, stop=1, usage=np.arange(20))
    run = run_of(Problem(node_costs=(costs,), edges=(), node_memory=(held,), memory_limit=1))
    for choice in (0, 1, *range(2, 20), 19):
        run.offer((choice,))
    assert run.choices == (1,)
    assert run.hints == [*((choice,) for choice in range(19, 20 - MOST_HINTS, -1)), (1,)]
