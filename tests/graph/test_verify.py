"""Each promise of a graph, broken one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoshard.graph.program import Graph, Op, OpKind, Region, Value
from autoshard.graph.rule import Rule, aligned_rule, batched_rule, identity_rule
from autoshard.graph.verify import rule_violations, verify_graph

SHAPE = (8, 16)


def value(index: int, op: int, shape: tuple[int, ...] = SHAPE) -> Value:
    return Value(index, shape, "f32", 32, op)


def loop_graph() -> Graph:
    """`x` goes round a loop of 4 runs; its tanh is returned."""
    ops = (
        Op(0, OpKind.ARGUMENT, "argument", (), (0,), identity_rule(SHAPE, 0)),
        Op(
            1,
            OpKind.JOIN,
            "while",
            (0, 2),
            (1,),
            identity_rule(SHAPE, 2),
            operand_repeats=(1.0, 4.0),
        ),
        Op(2, OpKind.COMPUTE, "tanh", (1,), (2,), identity_rule(SHAPE), repeat=4.0, region=1),
        Op(3, OpKind.RESULT, "result", (1,), (), identity_rule(SHAPE, 1, 0)),
    )
    regions = (Region(0, "main", -1, 0, 4), Region(1, "loop", 0, 2, 3, trip_count=4.0))
    values = (value(0, 0), value(1, 1), value(2, 2))
    return Graph(values, ops, regions, value_by_path={"in.0": 0}, donated=(0,))


def with_op(place: int, /, **changes: Any) -> Graph:
    graph = loop_graph()
    ops = list(graph.ops)
    ops[place] = replace(ops[place], **changes)
    return replace(graph, ops=tuple(ops))


def with_region(place: int, /, **changes: Any) -> Graph:
    graph = loop_graph()
    regions = list(graph.regions)
    regions[place] = replace(regions[place], **changes)
    return replace(graph, regions=tuple(regions))


def test_a_sound_graph_has_no_violations() -> None:
    assert verify_graph(loop_graph()) == []


BROKEN = {
    "an op out of place": (
        with_op(2, index=7),
        "op 7 (tanh -> f32[8, 16]): stands at place 2",
    ),
    "a value nobody has": (
        with_op(2, operands=(9,)),
        "op 2 (tanh -> f32[8, 16]): no value 9; there are 3",
    ),
    "a region nobody has": (
        with_op(2, region=5),
        "op 2 (tanh -> f32[8, 16]): no region 5; there are 2",
    ),
    "a value made twice": (
        with_op(2, results=(1,)),
        "op 2 (tanh -> f32[8, 16]): value 1 is made by op 1 too",
    ),
    "an op in another region": (
        with_op(2, region=0, repeat=1.0),
        "op 2 (tanh -> f32[8, 16]): says region 0, stands in region 1",
    ),
    "a value read too early": (
        with_op(1, operands=(2,), rule=identity_rule(SHAPE), operand_repeats=()),
        "op 1 (while -> f32[8, 16]): operand 0 is made later, by op 2",
    ),
    "a value read out of a loop": (
        with_op(3, operands=(2,)),
        "op 3 (result): operand 0 is made in region 1, hidden from it",
    ),
    "an op without a rule": (
        with_op(2, rule=None),
        "op 2 (tanh -> f32[8, 16]): compute without a sharding rule",
    ),
    "a free op with a rule": (
        with_op(2, kind=OpKind.FREE),
        "op 2 (tanh -> f32[8, 16]): free with a sharding rule",
    ),
    "a rule for another shape": (
        with_op(2, rule=identity_rule((8, 4))),
        "op 2 (tanh -> f32[8, 16]): operand 0: dimension 1 has size 16, its factors make 4:"
        " ([i, j])->([i, j]) {i=8, j=4}",
    ),
    "a rule for another number of operands": (
        with_op(2, rule=identity_rule(SHAPE, 2)),
        "op 2 (tanh -> f32[8, 16]): the rule has 2 operands, the op 1:"
        " ([i, j], [i, j])->([i, j]) {i=8, j=16}",
    ),
    "a wrong number of runs": (
        with_op(2, repeat=3.0),
        "op 2 (tanh -> f32[8, 16]): repeats 3 times, the regions around it 4",
    ),
    "a negative number of runs": (
        with_op(2, repeat=-1.0),
        "op 2 (tanh -> f32[8, 16]): repeats -1.0 times",
    ),
    "infinite work": (
        with_op(2, flops=float("inf")),
        "op 2 (tanh -> f32[8, 16]): does inf floating-point operations",
    ),
    "too few operand repeats": (
        with_op(1, operand_repeats=(1.0,)),
        "op 1 (while -> f32[8, 16]): 1 operand repeats for 2 operands",
    ),
    "an argument that reads": (
        with_op(0, operands=(0,), rule=identity_rule(SHAPE)),
        "op 0 (argument -> f32[8, 16]): argument with 1 operands",
    ),
    "a constraint that says nothing": (
        with_op(2, kind=OpKind.CONSTRAINT),
        "op 2 (tanh -> f32[8, 16]): constraint without a written sharding",
    ),
    "a region that leaves its parent": (
        with_region(1, stop=9),
        "region 1 (loop): 2 to 9 is not inside its parent's 0 to 4",
    ),
    "a main region that misses ops": (
        with_region(0, stop=3),
        "region 0 (main): spans 0 to 3 of 4 ops",
    ),
    "a region without a parent": (
        with_region(1, parent=-1),
        "region 1 (loop): only the first region is main, and only it has no parent",
    ),
    "a loop that runs less than never": (
        with_region(1, trip_count=-4.0),
        "region 1 (loop): runs -4.0 times",
    ),
    "manual axes of a loop": (
        with_region(1, manual_axes=("x",)),
        "region 1 (loop): has manual axes x",
    ),
    "a group of different shapes": (
        replace(
            loop_graph(),
            values=(value(0, 0), value(1, 1), value(2, 2)),
            groups=((0, 5),),
        ),
        "group 0: values [5] do not exist",
    ),
    "a path that leads nowhere": (
        replace(loop_graph(), value_by_path={"in.0": 8}),
        "path in.0: value 8 does not exist",
    ),
    "a donated argument that is not there": (
        replace(loop_graph(), donated=(1,)),
        "donated argument 1 does not exist; the caller's are 0 to 0",
    ),
    "more captured than there are": (
        replace(loop_graph(), num_captured=2, donated=()),
        "2 arguments are captured of 1",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_promise_is_told(case: str) -> None:
    graph, violation = BROKEN[case]
    assert violation in verify_graph(graph)


def test_all_violations_are_told_at_once_with_the_source_line() -> None:
    graph = with_op(2, repeat=3.0, flops=-1.0, source="train.py:30 (loss)")
    assert verify_graph(graph) == [
        "op 2 (tanh -> f32[8, 16] at train.py:30 (loss)): does -1.0 floating-point operations",
        "op 2 (tanh -> f32[8, 16] at train.py:30 (loss)): repeats 3 times, the regions around it 4",
    ]


def test_a_loop_may_return_what_comes_from_outside_it() -> None:
    graph = with_op(1, operands=(0, 0))
    assert verify_graph(graph) == []


RULES = {
    "a factor used twice": (
        Rule((8,), (((0,), (0,)),), (((0,),),)),
        "operand 0: dimension 1 uses factors [0] again: ([i, i])->([i]) {i=8}",
    ),
    "a factor neither kept nor summed": (
        Rule((8, 8), (((0,), (1,)),), (((0,),),)),
        "factors [1] are neither kept nor summed: ([i, j])->([i]) {i=8, j=8}",
    ),
    "a summed factor that is kept": (
        Rule((8, 8), (((0,), (1,)),), (((0,),),), frozenset({0, 1})),
        "result 0 keeps summed factors [0]: ([i, j])->([i]) {i=8, j=8} reduction={i, j}",
    ),
    "a factor that does not exist": (
        Rule((8, 8), (((0,), (1,)),), (((0,),),), frozenset({1, 4})),
        "reduction names factors [4], the rule has 2",
    ),
}


@pytest.mark.parametrize("case", RULES)
def test_a_rule_that_describes_no_op_is_told(case: str) -> None:
    rule, violation = RULES[case]
    assert list(rule_violations(rule, ((8, 8),), ((8,),))) == [violation]


def test_a_dimension_made_of_several_factors_has_their_product() -> None:
    rule = Rule((4, 2, 16), (((0,), (1,), (2,)),), (((0, 1), (2,)),))
    assert list(rule_violations(rule, ((4, 2, 16),), ((8, 16),))) == []
    assert len(list(rule_violations(rule, ((4, 2, 16),), ((9, 16),)))) == 1


def test_rules_made_here_describe_their_shapes() -> None:
    shapes = (((8, 16), (), (8, 4)), ((8, 16), (8,)))
    for rule in (aligned_rule(*shapes), batched_rule(*shapes, 1), batched_rule(*shapes, 0)):
        assert list(rule_violations(rule, *shapes)) == []


def test_only_leading_dimensions_of_a_batched_rule_may_be_cut() -> None:
    rule = batched_rule(((4, 8, 8), (3,)), ((4, 8), (4,)), 1)
    assert str(rule) == (
        "([i, j, k], [l])->([i, m], [i]) {i=4, j=8, k=8, l=3, m=8} need_replication={j, k, l, m}"
    )
