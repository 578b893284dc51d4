"""Checkmate's integer program against schedules that can be counted by hand."""

from __future__ import annotations

import pytest

from experiments.checkmate_milp import StepGraph, solve

FORWARD, BACKWARD = 4, 4


def chain(size: int = 1) -> StepGraph:
    """Layers and their gradients: that of layer `i` reads layer `i - 1`, or the batch."""
    layers = [tuple(range(i - 1, i)) if i else () for i in range(FORWARD)]
    gradients = [
        (FORWARD + i - 1, *((FORWARD - 2 - i,) if i < FORWARD - 1 else ())) for i in range(BACKWARD)
    ]
    num = FORWARD + BACKWARD
    return StepGraph((1.0,) * num, (size,) * num, (0,) * num, (*layers, *gradients), 10)


def test_where_everything_fits_nothing_is_computed_again() -> None:
    graph = chain()
    found = solve(graph, graph.peak_keeping_all(), time_limit_seconds=20)
    assert found.seconds == pytest.approx(FORWARD + BACKWARD)


def test_one_value_less_is_paid_with_what_it_is_computed_from() -> None:
    graph = chain()
    found = solve(graph, graph.peak_keeping_all() - 1, time_limit_seconds=20)
    assert found.seconds == pytest.approx(FORWARD + BACKWARD + 1)
    assert found.bound == pytest.approx(found.seconds, rel=1e-3)


def test_less_than_an_op_and_what_it_reads_is_proven_not_to_fit() -> None:
    graph = chain()
    assert solve(graph, 10 + 2, time_limit_seconds=20).is_infeasible


def test_what_an_op_takes_meanwhile_counts() -> None:
    graph = chain()
    more = StepGraph(graph.costs, graph.sizes, (0, 0, 0, 0, 2, 0, 0, 0), graph.operands, 10)
    assert more.peak_keeping_all() == graph.peak_keeping_all() + 2
    found = solve(more, more.peak_keeping_all() - 1, time_limit_seconds=20)
    assert found.seconds == pytest.approx(FORWARD + BACKWARD + 1)
