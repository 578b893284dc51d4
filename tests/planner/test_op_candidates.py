"""What each op of a program is offered."""

from __future__ import annotations

import pytest

from autoshard.backends import get_backend
from autoshard.candidates.op_candidates import OpCandidates
from autoshard.graph.program import Graph, OpClass, OpKind
from autoshard.graph.rule import Rule, identity_rule
from autoshard.layouts import Layout
from autoshard.sharding import parse_sharding
from autoshard.wishes.wishes import Wishes
from tests.planner.graphs import Program, free_wishes, parts_of, wishes_for

MESH = "x=2,y=4"


def offers(
    graph: Graph, wishes: Wishes | None = None, backend: str = "tpu", mesh: str = MESH
) -> OpCandidates:
    collectives = get_backend(backend).collectives
    return OpCandidates(graph, parts_of(mesh), wishes or free_wishes(graph), collectives, 400)


def custom(name: str) -> Graph:
    program = Program()
    x = program.argument(8, 8)
    rule = identity_rule((8, 8))
    return program.graph(*program.compute(name, (x,), [(8, 8)], rule, OpClass.CUSTOM))


def test_an_op_that_a_backend_keeps_whole_is_offered_no_cut_there() -> None:
    graph = custom("top_k")
    on_cpu, elsewhere = (
        offers(graph, backend=backend).of(graph.ops[1]) for backend in ("cpu", "gpu")
    )
    assert [c.cut for c in on_cpu] == [1]
    assert max(c.cut for c in elsewhere) == 8


def look_up() -> Graph:
    """Rows of a table by index."""
    program = Program()
    table, indices = program.argument(64, 8), program.argument(16, 1)
    rule = Rule((64, 16, 8, 1), (((0,), (2,)), ((1,), (3,))), (((1,), (2,)),), frozenset({0}))
    return program.graph(
        *program.compute("gather", (table, indices), [(16, 8)], rule, OpClass.GATHER)
    )


@pytest.mark.parametrize("columns", [{()}, {(), (0,)}])
@pytest.mark.parametrize(("mesh", "missing"), [("x=2,y=2,z=2", {(1, 2), (2, 1)}), (MESH, set())])
def test_no_look_up_is_offered_that_leaves_rows_and_indices_whole_along_the_first_axis(
    mesh: str, missing: set[tuple[int, int]], columns: set[tuple[int, ...]]
) -> None:
    graph = look_up()
    found = OpCandidates(
        graph, parts_of(mesh), free_wishes(graph), get_backend("tpu").collectives, 400
    ).of(graph.ops[2])
    cut = {(c.operands[0][0], c.operands[1][0]) for c in found if c.operands[0][1] in columns}
    axes = range(len(mesh.split(",")))
    both = {(a, b) for a in axes for b in axes if a != b}
    assert {(a, b) for a, b in both if ((a,), (b,)) not in cut} == missing


def scatter() -> Graph:
    """Rows added to those of a table by index."""
    program = Program()
    table, indices, rows = (program.argument(*shape) for shape in ((64, 8), (16, 1), (16, 8)))
    large, small = ((0,), (2,)), ((1,), (2,))
    rule = Rule((64, 16, 8, 1), (large, ((1,), (3,)), small), (large,), frozenset({1}))
    operands = (table, indices, rows)
    return program.graph(*program.compute("scatter", operands, [(64, 8)], rule, OpClass.SCATTER))


def test_nor_is_a_scatter_that_leaves_the_first_axis_over() -> None:
    graph, mesh = scatter(), "x=2,y=2,z=2"
    found = OpCandidates(
        graph, parts_of(mesh), free_wishes(graph), get_backend("tpu").collectives, 400
    ).of(graph.ops[3])
    cut = {(c.operands[0][0], c.operands[1][0]) for c in found if not c.operands[0][1]}
    both = {(a, b) for a in range(3) for b in range(3) if a != b}
    assert {(a, b) for a, b in both if ((a,), (b,)) not in cut} == {(1, 2), (2, 1)}


def test_no_look_up_for_cut_indices_is_offered_that_cuts_the_sum_along_what_they_do_not_cut() -> (
    None
):
    graph = look_up()
    found = OpCandidates(
        graph, parts_of(MESH), free_wishes(graph), get_backend("tpu").collectives, 400
    ).of(graph.ops[2])
    cut = {(bool(c.operands[1][0]), c.results[0]) for c in found if c.scattered == (1,)}
    assert (True, ((0, 1), ())) in cut
    assert (True, ((0,), (1,))) not in cut
    assert (False, ((), (1,))) in cut


def test_constants_and_scalars_have_nothing_to_choose() -> None:
    program = Program()
    scalar = program.argument()
    zeros = program.zeros(8)
    graph = program.graph(scalar, zeros)
    found = offers(graph)
    choosing = [op.name for op in graph.ops if found.has_choice(op)]
    assert choosing == ["result[1]"]


def test_ops_pinned_alike_share_their_candidates() -> None:
    program = Program()
    arguments = [program.argument(8, 8) for _ in range(3)]
    graph = program.graph(*arguments)
    rows = parse_sharding('<@mesh, [{"x", ?}, {}]>')
    found = offers(graph, wishes_for(graph, {0: rows, 1: rows}))
    first, second, free = (found.of(op) for op in graph.arguments)
    assert first is second
    assert first is not free


def shard_map_program() -> Graph:
    """A body over axis x: 8 rows outside, 4 inside."""
    program = Program()
    x = program.argument(8, 8)
    text = '#sdy.sharding<@mesh, [{"x", ?}, {?}]>'
    inside = program.add(
        OpKind.ENTER_MANUAL, "shard_map", (x,), [(4, 8)], rule=identity_rule((4, 8)), pinned=text
    )[0]
    program.open_manual("x")
    made = program.elementwise(inside, name="tanh")
    program.close_manual()
    outside = program.add(
        OpKind.LEAVE_MANUAL, "shard_map", (made,), [(8, 8)], rule=identity_rule((4, 8)), pinned=text
    )[0]
    return program.graph(outside)


@pytest.mark.parametrize("border", [1, 3])
def test_at_the_border_of_a_shard_map_free_axes_follow_the_manual_ones(border: int) -> None:
    graph = shard_map_program()
    pairs: set[tuple[Layout, Layout]] = set()
    for candidate in offers(graph).of(graph.ops[border]):
        sides = (candidate.operands[0], candidate.results[0])
        pairs.add(sides if border == 1 else sides[::-1])
    assert pairs == {
        (((0,), ()), ((), ())),
        (((0, 1), ()), ((1,), ())),
        (((0,), (1,)), ((), (1,))),
    }


def test_inside_a_shard_map_its_axes_are_not_used() -> None:
    graph = shard_map_program()
    found = {c.results[0] for c in offers(graph).of(graph.ops[2])}
    assert found == {((), ()), ((1,), ()), ((), (1,))}


def test_ops_of_a_manual_region_are_offered_whole_axes_alone() -> None:
    program = Program()
    outside = program.argument(16, 16)
    program.open_manual("x")
    inside = program.elementwise(outside, name="tanh")
    program.close_manual()
    graph = program.graph(program.elementwise(inside, name="sine"))
    parts = parts_of("x=2,y=8", y=(2, 4))
    collectives = get_backend("tpu").collectives
    found = OpCandidates(graph, parts, free_wishes(graph), collectives, 400)
    of_body, after = (
        {
            ref.is_whole
            for candidate in found.of(graph.maker(value))
            for ref in parts.to_sharding(candidate.results[0]).axis_refs()
        }
        for value in (inside, graph.ops[-2].results[0])
    )
    assert of_body == {True}
    assert after == {True, False}
