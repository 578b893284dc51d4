"""Tensors that must end alike, and errors that name both sides when they cannot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoshard.errors import ConstraintError
from autoshard.graph.program import Graph
from autoshard.graph.rule import Rule, identity_rule
from autoshard.sharding import parse_sharding
from autoshard.wishes.ties import constrained_arguments, unequal
from autoshard.wishes.wishes import AlikeWish
from tests.planner.graphs import Program, plan, wishes_for

ROWS = parse_sharding('<@mesh, [{"x"}, {}]>')
COLUMNS = parse_sharding('<@mesh, [{}, {"x"}]>')
FIX = (
    "  fix: ask for one sharding for all of them, or leave the others free (None, or"
    " P.UNCONSTRAINED dimensions)"
)


def three_arguments(*group: int) -> Graph:
    program = Program()
    values = [program.argument(64, 64, name=name) for name in ("a", "b", "c")]
    return program.graph(*values, groups=(group,))


def test_members_of_a_group_end_alike() -> None:
    graph = three_arguments(0, 1, 2)
    solution = plan(graph, "x=4", wishes_for(graph, {2: COLUMNS}))
    assert set(solution.decoded.layouts) == {((), (0,))}


def test_a_donated_argument_and_what_replaces_it_end_alike() -> None:
    program = Program()
    state = program.argument(64, 64)
    new = program.elementwise(state, name="tanh")
    graph = program.graph(new, donated=(0,))
    solution = plan(graph, "x=4", wishes_for(graph, results={0: COLUMNS}, alike=[(0, 0)]))
    assert solution.decoded.layouts[state] == ((), (0,))


def test_two_pins_in_one_group_are_both_named() -> None:
    graph = three_arguments(0, 1)
    with pytest.raises(ConstraintError) as caught:
        plan(graph, "x=4", wishes_for(graph, {0: ROWS, 1: COLUMNS}))
    assert str(caught.value) == (
        "tensors that must be sharded alike have no sharding in common:"
        ' argument a: f32[64, 64] is asked to be <@mesh, [{"x"}, {}]>;'
        ' argument b: f32[64, 64] is asked to be <@mesh, [{}, {"x"}]>\n'
        "  where: one shard_alike group\n" + FIX
    )


def test_two_pins_that_meet_through_a_free_member_are_both_named() -> None:
    graph = three_arguments(0, 1, 2)
    with pytest.raises(ConstraintError) as caught:
        plan(graph, "x=4", wishes_for(graph, {0: ROWS, 2: COLUMNS}))
    assert str(caught.value) == (
        "tensors that must be sharded alike have no sharding in common:"
        ' argument a: f32[64, 64] is asked to be <@mesh, [{"x"}, {}]>;'
        ' argument c: f32[64, 64] is asked to be <@mesh, [{}, {"x"}]>\n'
        "  where: one shard_alike group\n" + FIX
    )


def test_a_state_pinned_differently_in_and_out_names_argument_and_result() -> None:
    program = Program()
    state = program.argument(64, 64, name="state['w']")
    graph = program.graph(program.elementwise(state, name="tanh"), donated=(0,))
    with pytest.raises(ConstraintError) as caught:
        plan(graph, "x=4", wishes_for(graph, {0: ROWS}, {0: COLUMNS}, alike=[(0, 0)]))
    assert str(caught.value) == (
        "tensors that must be sharded alike have no sharding in common:"
        " argument state['w']: f32[64, 64] is asked to be <@mesh, [{\"x\"}, {}]>;"
        ' result result[0]: f32[64, 64] is asked to be <@mesh, [{}, {"x"}]>\n'
        "  where: an argument given up (donated) and the result that replaces it\n" + FIX
    )


def test_two_pins_clash_through_a_group_and_a_donated_argument() -> None:
    program = Program()
    state, other = program.argument(64, 64, name="state"), program.argument(64, 64, name="other")
    new = program.elementwise(state, name="tanh")
    graph = program.graph(new, groups=((state, other),), donated=(0,))
    with pytest.raises(ConstraintError) as caught:
        plan(graph, "x=4", wishes_for(graph, {1: ROWS}, {0: COLUMNS}, alike=[(0, 0)]))
    error = caught.value
    assert "argument other" in error.what
    assert "result result[0]" in error.what
    assert error.where == (
        "one shard_alike group; an argument given up (donated) and the result that replaces it"
    )


def test_open_pins_that_leave_nothing_in_common_are_all_named() -> None:
    graph = three_arguments(0, 1, 2)
    pins = {
        0: parse_sharding('<@mesh, [{"x", ?}, {?}]>'),
        1: parse_sharding('<@mesh, [{?}, {"y", ?}]>'),
        2: parse_sharding('<@mesh, [{"x", "y", ?}, {?}]>'),
    }
    with pytest.raises(ConstraintError) as caught:
        plan(graph, "x=2,y=2", wishes_for(graph, pins))
    assert "argument b" in caught.value.what
    assert "argument c" in caught.value.what
    assert "argument a" not in caught.value.what  # it agrees with either


def test_three_pins_of_which_each_two_agree_are_all_named() -> None:
    graph = three_arguments(0, 1, 2)
    pins = {
        0: parse_sharding('<@mesh, [{?}, {?}], replicated={"x"}>'),
        1: parse_sharding('<@mesh, [{?}, {?}], replicated={"y"}>'),
        2: parse_sharding('<@mesh, [{"x", ?}, {?}]>'),
    }
    with pytest.raises(ConstraintError) as caught:
        plan(graph, "x=2,y=2", wishes_for(graph, pins))
    assert "argument a" in caught.value.what
    assert "argument c" in caught.value.what


def test_a_member_whose_op_cannot_follow_the_pin_is_named() -> None:
    program = Program()
    x, pinned = program.argument(8, 4, name="x"), program.argument(8, 4, name="pinned")
    rule = Rule((8, 4), (((0,), (1,)),), (((0,), (1,)),), need_replication=frozenset({1}))
    made = program.compute("custom_call", (x,), [(8, 4)], rule)[0]
    graph = program.graph(made, groups=((made, pinned),))
    with pytest.raises(ConstraintError) as caught:
        plan(graph, "x=4", wishes_for(graph, {1: COLUMNS}))
    assert caught.value.what == (
        "tensors that must be sharded alike have no sharding in common:"
        " custom_call at step.py:2 (step): f32[8, 4] can be sharded in 2 ways;"
        ' argument pinned: f32[8, 4] is asked to be <@mesh, [{}, {"x"}]>'
    )


def test_two_results_of_one_op_in_a_group_end_alike() -> None:
    program = Program()
    x, y = program.argument(8, 8), program.argument(8, 8)
    rule = Rule(
        (8, 8, 8, 8),
        (((0,), (1,)), ((2,), (3,))),
        (((0,), (1,)), ((2,), (3,))),
    )
    first, second = program.compute("pair", (x, y), [(8, 8), (8, 8)], rule)
    graph = program.graph(first, second, groups=((first, second),))
    solution = plan(graph, "x=2,y=2", wishes_for(graph, results={0: ROWS}))
    assert solution.decoded.layouts[first] == solution.decoded.layouts[second]


def test_a_group_with_a_constant_leaves_the_constant_to_follow() -> None:
    program = Program()
    x = program.argument(64, 64)
    zeros = program.zeros(64, 64)
    graph = program.graph(program.elementwise(x, zeros), groups=((x, zeros),))
    assert plan(graph, "x=4", wishes_for(graph, {0: ROWS})).is_feasible


def test_ties_forbid_exactly_the_unequal_pairs() -> None:
    first, second = ((0,), ()), ((), (0,))
    found = unequal([first, second], [second, second, first], 7)
    np.testing.assert_array_equal(found, [[7, 7, 0], [0, 0, 7]])
    assert identity_rule((8, 8)).operands[0] == ((0,), (1,))


def test_tensors_that_constraints_group_end_alike_results_included() -> None:
    program = Program()
    a = program.argument(64, 64, name="a")
    b = program.argument(64, 64, name="b")
    graph = program.graph(program.elementwise(a, name="tanh"), b)
    result = graph.results[0]
    group = AlikeWish(((b, b), (result.index, result.operands[0])), "group 'g'")
    wishes = replace(wishes_for(graph, {1: COLUMNS}), groups=[group])
    free = plan(graph, "x=4", wishes_for(graph, {1: COLUMNS}))
    solution = plan(graph, "x=4", wishes)
    assert free.decoded.candidates[result.index].operands[0] != ((), (0,))
    assert solution.decoded.candidates[result.index].operands[0] == ((), (0,))


def test_a_group_of_constraints_that_cannot_be_names_who_asks() -> None:
    program = Program()
    a = program.argument(64, 64, name="a")
    rows = program.constraint(a, '<@mesh, [{"x"}, {}]>')
    graph = program.graph(rows, program.argument(64, 64, name="b"))
    b = graph.arguments[1]
    members = ((graph.values[rows].op, rows), (b.index, b.results[0]))
    group = AlikeWish(members, "group 'g'")
    with pytest.raises(ConstraintError) as caught:
        plan(graph, "x=4", replace(wishes_for(graph, {1: COLUMNS}), groups=[group]))
    assert caught.value.where == "group 'g'; the sharding constraint that alone reads a"
    assert '<@mesh, [{"x"}, {}]>' in caught.value.what
    assert '<@mesh, [{}, {"x"}]>' in caught.value.what


def test_an_argument_only_a_constraint_reads_ends_like_it_unless_it_is_asked_otherwise() -> None:
    program = Program()
    a = program.argument(64, 64, name="a")
    graph = program.graph(program.constraint(a, '<@mesh, [{}, {"x"}]>'))
    assert plan(graph, "x=4", wishes_for(graph)).decoded.layouts[a] == ((), (0,))
    assert plan(graph, "x=4", wishes_for(graph, {0: ROWS})).decoded.layouts[a] == ((0,), ())


def test_an_argument_with_another_reader_is_not_tied_to_a_constraint() -> None:
    program = Program()
    a = program.argument(64, 64, name="a")
    kept = program.constraint(a, '<@mesh, [{}, {"x"}]>')
    graph = program.graph(kept, program.elementwise(a, name="tanh"))
    assert list(constrained_arguments(graph, wishes_for(graph))) == []
