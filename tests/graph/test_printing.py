"""The text of a graph."""

from __future__ import annotations

from dataclasses import replace

from autoshard.graph.printing import format_graph
from autoshard.graph.program import OpClass, OpKind
from autoshard.graph.rule import Rule
from tests.graph.test_verify import loop_graph


def test_regions_are_indented_and_say_how_often_they_run() -> None:
    assert format_graph(loop_graph()) == (
        "%0: f32[8, 16] = argument \n"
        "%1: f32[8, 16] = while %0 %2\n"
        "loop 4 times:\n"
        "  %2: f32[8, 16] = tanh %1\n"
        "return result %1\n"
        "donated: 0\n"
    )


def test_an_op_shows_rule_work_note_and_source_where_it_has_them() -> None:
    graph = loop_graph()
    rule = Rule((8, 16), (((0,), (1,)),), (((0,), (1,)),), need_replication=frozenset({1}))
    op = replace(
        graph.ops[2],
        rule=rule,
        op_class=OpClass.CUSTOM,
        flops=128.0,
        note="kept whole",
        source="train.py:3 (step)",
    )
    graph = replace(graph, ops=(*graph.ops[:2], op, graph.ops[3]), groups=((0, 1),), notes=("so",))
    lines = format_graph(graph).splitlines()
    assert lines[3] == (
        "  %2: f32[8, 16] = tanh %1  ([i, j])->([i, j]) {i=8, j=16} need_replication={j}"
        "  flops=128  (kept whole)  @ train.py:3 (step)"
    )
    assert lines[-3:] == ["alike: %0 %1", "donated: 0", "note: so"]
    assert "train.py" not in format_graph(graph, sources=False)


def test_a_loop_of_guessed_length_is_marked() -> None:
    graph = loop_graph()
    loop = replace(graph.regions[1], is_trip_count_known=False)
    text = format_graph(replace(graph, regions=(graph.regions[0], loop)))
    assert "loop 4 times?:\n" in text


def test_what_is_free_says_so() -> None:
    graph = loop_graph()
    free = replace(graph.ops[2], kind=OpKind.FREE, rule=None, operands=(), name="iota")
    text = format_graph(replace(graph, ops=(*graph.ops[:2], free, graph.ops[3])))
    assert "  %2: f32[8, 16] = free iota\n" in text
