"""Walks over a graph."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoshard.graph.dataflow import source_of, spread, trace_back, trace_forward
from autoshard.graph.op_traits import TRANSPARENT
from autoshard.graph.program import Graph, Op, OpKind
from tests.planner.graphs import Program

SIDE = 8


def diamond() -> tuple[Graph, list[int]]:
    """An argument, two ops of it, and an op that reads both."""
    program = Program()
    x = program.argument(SIDE, SIDE)
    left, right = (program.elementwise(x, name=name) for name in ("tanh", "negate"))
    joined = program.elementwise(left, right, name="add")
    return program.graph(joined), [x, left, right, joined]


def is_computed(op: Op, _: int) -> bool:
    return op.kind is OpKind.COMPUTE


def test_a_value_that_two_ways_lead_to_is_met_once() -> None:
    graph, (x, left, right, joined) = diamond()
    met = trace_back(graph, [joined], is_computed)
    assert sorted(met.inner) == [left, right, joined]
    assert met.frontier == (x,)


def test_a_walk_stops_where_an_op_does_not_pass() -> None:
    graph, (x, left, right, joined) = diamond()
    met = trace_back(graph, [joined], lambda op, _: op.name in ("add", "tanh"))
    assert sorted(met.inner) == [left, joined]
    assert sorted(met.frontier) == [x, right]


def test_a_walk_may_follow_some_operands_alone() -> None:
    graph, (x, left, _, joined) = diamond()
    met = trace_back(graph, [joined], is_computed, lambda op: op.operands[:1])
    assert met.inner == (joined, left)
    assert met.frontier == (x,)


def test_a_source_is_at_the_end_of_the_first_operands() -> None:
    graph, (x, left, _, joined) = diamond()
    assert source_of(graph, joined, is_computed) == x
    assert source_of(graph, joined, lambda op, _: op.name == "add") == left
    assert source_of(graph, x, is_computed) == x


def test_readers_behind_passing_ops_are_found_and_the_passing_ops_are_not() -> None:
    graph, (x, left, right, joined) = diamond()
    ends = trace_forward(graph, x, lambda op: op.name in ("tanh", "negate"))
    assert [op.results for op in ends] == [(joined,)]
    assert [op.results for op in trace_forward(graph, x, lambda _: False)] == [(left,), (right,)]


@given(names=st.lists(st.sampled_from(["tanh", "convert"]), max_size=8))
def test_readers_of_a_chain_lie_behind_its_transparent_start(names: list[str]) -> None:
    program = Program()
    x = value = program.argument(SIDE)
    for name in names:
        value = program.elementwise(value, name=name)
    ends = trace_forward(program.graph(value), x, lambda op: op.name in TRANSPARENT)
    first = next((name for name in names if name == "tanh"), "")
    assert [op.name if op.kind is OpKind.COMPUTE else "" for op in ends] == [first]


def test_a_walk_in_both_directions_meets_what_is_read_and_made_beside_a_value() -> None:
    graph, (x, left, right, joined) = diamond()
    beside = spread(graph, [left], lambda op: op.name == "add", lambda *_: True)
    assert beside == {left: left, right: left, joined: left}
    assert x in spread(graph, [left], lambda _: True, lambda *_: True)
    assert not spread(graph, [left], lambda _: True, lambda *_: False)
