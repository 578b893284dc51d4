"""What the user pinned is read, checked, and kept by every plan."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.errors import ConstraintError
from autoshard.graph.program import Graph, OpKind
from autoshard.graph.rule import Rule
from autoshard.layouts import Layout
from autoshard.sharding import format_sharding, parse_sharding
from autoshard.wishes.pinned import read_pin
from autoshard.wishes.wishes import Wishes
from tests.planner.graphs import Program, encoder_for, parts_of, plan, wishes_for

PARTS = parts_of("x=2,y=4")


def mlp() -> Graph:
    program = Program()
    x, w1, w2 = (program.argument(*s) for s in ((64, 32), (32, 128), (128, 32)))
    hidden = program.elementwise(program.matmul(x, w1), name="tanh")
    return program.graph(program.matmul(hidden, w2))


def error_of(sharding: str, shape: tuple[int, ...] = (30, 16)) -> str:
    with pytest.raises(ConstraintError) as caught:
        read_pin(parse_sharding(sharding), PARTS, shape, "argument w: f32[30, 16]")
    return str(caught.value)


def test_a_dimension_that_does_not_divide_is_refused() -> None:
    assert error_of('<@mesh, [{"y"}, {}]>') == (
        "dimension 0 has size 30, which 4 shards do not divide\n"
        "  where: argument w: f32[30, 16]\n"
        "  fix: pad it to 32, or shard another dimension"
    )


def test_an_axis_that_the_mesh_does_not_have_is_refused() -> None:
    assert error_of('<@mesh, [{}, {"z"}]>') == (
        'the sharding uses axis "z", which the mesh does not have\n'
        "  where: argument w: f32[30, 16]\n"
        "  fix: use one of x, y, or add it to the mesh"
    )


def test_an_axis_used_twice_is_refused() -> None:
    assert error_of('<@mesh, [{"x"}, {"x"}]>') == (
        'the sharding uses axis "x" twice\n'
        "  where: argument w: f32[30, 16]\n"
        "  fix: an axis cuts one dimension of a tensor at most"
    )


def test_another_number_of_dimensions_is_refused() -> None:
    assert error_of('<@mesh, [{"x"}]>') == (
        "the sharding has 1 dimensions, the tensor has 2\n"
        "  where: argument w: f32[30, 16]\n"
        "  fix: give one dimension sharding per tensor dimension"
    )


def test_a_sum_left_to_be_taken_is_refused() -> None:
    assert error_of('<@mesh, [{}, {}], unreduced={"x"}>') == (
        'the sharding leaves a sum over "x" to be taken, which no plan does\n'
        "  where: argument w: f32[30, 16]\n"
        "  fix: ask for the reduced tensor"
    )


def layout_of(graph: Graph, sharding: str, mesh: str = "x=2,y=4") -> Layout:
    """Layout of the first argument when it alone is pinned."""
    solution = plan(graph, mesh, wishes_for(graph, {0: parse_sharding(sharding)}))
    return solution.decoded.layouts[0]


@pytest.mark.parametrize(
    ("sharding", "layout"),
    [
        ("<@mesh, [{}, {}]>", ((), ())),
        ('<@mesh, [{"x"}, {}]>', ((0,), ())),
        ('<@mesh, [{}, {"y", "x"}]>', ((), (1, 0))),
        ('<@mesh, [{"x", "y"}, {}]>', ((0, 1), ())),
    ],
)
def test_closed_dimensions_are_kept_as_they_are(sharding: str, layout: Layout) -> None:
    assert layout_of(mlp(), sharding) == layout


@pytest.mark.parametrize("sharding", ['<@mesh, [{?}, {"x"}]>', '<@mesh, [{"y", ?}, {?}]>'])
def test_open_dimensions_are_only_extended(sharding: str) -> None:
    graph = mlp()
    pin = parse_sharding(sharding)
    encoded = encoder_for(graph, "x=2,y=4", wishes_for(graph, {0: pin})).encode()
    offered = {c.results[0] for c in encoded.candidates[0]}
    asked = PARTS.to_layout(pin)
    assert asked in offered
    assert len(offered) > 1
    for layout in offered:
        for have, want, dim in zip(layout, asked, pin.dims, strict=True):
            assert have[: len(want)] == want
            assert dim.is_open or have == want


def test_axes_asked_to_hold_copies_cut_nothing() -> None:
    graph = mlp()
    pin = parse_sharding('<@mesh, [{?}, {?}], replicated={"y"}>')
    encoded = encoder_for(graph, "x=2,y=4", wishes_for(graph, {0: pin})).encode()
    used = {p for c in encoded.candidates[0] for dim in c.results[0] for p in dim}
    assert used == {0}


def test_an_odd_order_of_axes_is_followed_by_the_whole_program() -> None:
    program = Program()
    x = program.argument(64, 64)
    graph = program.graph(program.elementwise(program.elementwise(x, name="tanh"), name="negate"))
    odd = parse_sharding('<@mesh, [{"z", "y", "x"}, {}]>')
    solution = plan(graph, "x=2,y=2,z=2", wishes_for(graph, {0: odd}, {0: odd}))
    assert set(solution.decoded.layouts) == {((2, 1, 0), ())}
    assert solution.account.communication_seconds == 0


def test_sub_axes_of_the_user_are_kept_and_followed() -> None:
    graph = mlp()
    pin = parse_sharding('<@mesh, [{"x":(2)4}, {}]>')
    solution = plan(graph, "x=8", wishes_for(graph, {0: pin}, {0: pin}))
    parts = solution.encoded.parts
    assert parts.sizes == (2, 4)
    assert solution.decoded.layouts[0] == ((1,), ())
    product = next(op for op in graph.ops if op.name == "dot_general")
    assert solution.decoded.layouts[product.results[0]][0] == (1,)


def test_two_sub_axes_cut_two_dimensions() -> None:
    graph = mlp()
    pin = parse_sharding('<@mesh, [{"x":(2)4}, {"x":(1)2}]>')
    assert layout_of(graph, format_sharding(pin), "x=8") == ((1,), (0,))


def test_a_value_inside_can_be_pinned() -> None:
    graph = mlp()
    hidden = next(op.results[0] for op in graph.ops if op.name == "tanh")
    wishes = Wishes(
        arguments=[None] * 3,
        results=[None],
        values={hidden: parse_sharding('<@mesh, [{}, {"y"}]>')},
    )
    assert plan(graph, "x=2,y=4", wishes).decoded.layouts[hidden] == ((), (1,))


def test_a_pin_on_a_second_result_is_read_for_that_result() -> None:
    program = Program()
    x = program.argument(8, 4)
    rule = Rule((8, 4), (((0,), (1,)),), (((0,),), ((0,), (1,))))
    first, second = program.compute("pair", (x,), [(8,), (8, 4)], rule)
    graph = program.graph(first, second)
    wishes = Wishes(
        arguments=[None],
        results=[None, None],
        values={second: parse_sharding('<@mesh, [{}, {"x"}]>')},
    )
    layouts = plan(graph, "x=4", wishes).decoded.layouts
    assert (layouts[first], layouts[second]) == (((),), ((), (0,)))


def test_a_value_that_its_op_cannot_make_so_is_refused() -> None:
    program = Program()
    x = program.argument(8, 4)
    rule = Rule((8, 4), (((0,), (1,)),), (((0,), (1,)),), need_replication=frozenset({1}))
    made = program.compute("custom_call", (x,), [(8, 4)], rule)[0]
    graph = program.graph(made)
    wishes = Wishes(
        arguments=[None], results=[None], values={made: parse_sharding('<@mesh, [{}, {"x"}]>')}
    )
    with pytest.raises(ConstraintError) as caught:
        plan(graph, "x=4", wishes)
    assert str(caught.value) == (
        'no sharding of custom_call ends in <@mesh, [{}, {"x"}]>\n'
        "  where: value made at step.py:1 (step): f32[8, 4]\n"
        "  fix: put a sharding constraint after it, which may reshard"
    )


def test_a_constraint_in_the_program_may_reshard() -> None:
    program = Program()
    x = program.argument(64, 64)
    pinned = program.constraint(x, '#sdy.sharding<@mesh, [{}, {"x"}]>')
    graph = program.graph(pinned)
    rows = parse_sharding('<@mesh, [{"x"}, {}]>')
    solution = plan(graph, "x=4", wishes_for(graph, {0: rows}))
    assert solution.decoded.layouts[0] == ((0,), ())
    assert solution.decoded.layouts[pinned] == ((), (0,))
    assert [c.kind for c in solution.account.collectives] == ["all-to-all"]


def test_a_constraint_on_another_mesh_names_its_line() -> None:
    program = Program()
    x = program.argument(64, 64)
    text = '#sdy.sharding<mesh<["x"=8]>, [{"x"}, {}]>'
    graph = program.graph(program.constraint(x, text))
    with pytest.raises(ConstraintError) as caught:
        plan(graph, "x=4")
    assert str(caught.value) == (
        "the sharding is on mesh (x=8) of 8 devices, the plan is for mesh (x=4) of 4\n"
        "  where: sharding constraint at step.py:1 (step)\n"
        "  fix: use meshes over the same devices"
    )


def test_a_constraint_that_does_not_divide_names_its_line() -> None:
    program = Program()
    x = program.argument(30, 64)
    graph = program.graph(program.constraint(x, '#sdy.sharding<@mesh, [{"x"}, {}]>'))
    with pytest.raises(ConstraintError) as caught:
        plan(graph, "x=4")
    assert str(caught.value) == (
        "dimension 0 has size 30, which 4 shards do not divide\n"
        "  where: sharding constraint at step.py:1 (step): f32[30, 64]\n"
        "  fix: pad it to 32, or shard another dimension"
    )


CUTS = ["{}", '{"x"}', '{"y"}', '{"x", "y"}', '{"y", "x"}', "{?}", '{"x", ?}', '{"y", ?}']


@settings(max_examples=30, deadline=None)
@given(rows=st.sampled_from(CUTS), columns=st.sampled_from(CUTS), place=st.integers(0, 1))
def test_whatever_is_asked_is_what_the_plan_says(rows: str, columns: str, place: int) -> None:
    if any(axis in rows and axis in columns for axis in ('"x"', '"y"')):
        return
    graph = mlp()
    asked = parse_sharding(f"<@mesh, [{rows}, {columns}]>")
    wishes = wishes_for(graph, {0: asked}) if place else wishes_for(graph, results={0: asked})
    solution = plan(graph, "x=2,y=4", wishes)
    assert solution.is_feasible
    op = graph.arguments[0] if place else graph.results[0]
    candidate = solution.decoded.candidates[op.index]
    layout = (candidate.results or candidate.operands)[0]
    pin = read_pin(asked, PARTS, (64, 32), "here")
    assert pin.admits(layout)
    if asked.is_fully_closed:
        assert solution.encoded.parts.to_sharding(layout).dims == asked.dims


def test_free_arguments_stay_free() -> None:
    graph = mlp()
    encoded = encoder_for(graph, "x=2,y=4").encode()
    kinds = {graph.ops[op].kind for op in encoded.ops}
    assert kinds == {OpKind.ARGUMENT, OpKind.COMPUTE, OpKind.RESULT}
    assert all(len(c) > 1 for c in encoded.candidates)
