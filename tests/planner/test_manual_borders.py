"""Borders of shard_map bodies: manual axes as written, free ones as the border lets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.candidates.candidate import CandidateMaker
from autoshard.candidates.manual_borders import border_candidates, with_borders_on
from autoshard.errors import ConstraintError
from autoshard.graph.program import Graph, OpKind
from autoshard.graph.rule import identity_rule
from autoshard.layouts import Layout
from autoshard.sharding import parse_mesh_sizes
from tests.planner.graphs import Program, parts_of

MESH = parse_mesh_sizes("x=2,y=4")
X, Y = 0, 1


def bordered(pinned: str, *axes: str, mesh: str = "") -> Graph:
    """One tensor that goes into a region and comes out again, local rows of 8."""
    program = Program()
    outside = program.argument(16, 16)
    rule = identity_rule((8, 16))
    inside = program.add(
        OpKind.ENTER_MANUAL, "shard_map", (outside,), [(8, 16)], rule=rule, pinned=pinned
    )
    program.open_manual(*axes)
    made = program.elementwise(*inside, name="tanh")
    program.close_manual()
    program.regions[-1] = replace(program.regions[-1], mesh=mesh)
    back = program.add(
        OpKind.LEAVE_MANUAL, "shard_map", (made,), [(16, 16)], rule=rule, pinned=pinned
    )
    return program.graph(*back)


def crossings(graph: Graph) -> set[tuple[Layout, Layout]]:
    """What a tensor may be outside and inside."""
    parts = parts_of("x=2,y=4")

    maker = CandidateMaker(parts)
    enter = next(op for op in graph.ops if op.kind is OpKind.ENTER_MANUAL)
    leave = next(op for op in graph.ops if op.kind is OpKind.LEAVE_MANUAL)
    base = maker.of_rule(identity_rule((8, 16)))
    found = {(c.operands[0], c.results[0]) for c in border_candidates(graph, parts, enter, base)}
    back = {(c.results[0], c.operands[0]) for c in border_candidates(graph, parts, leave, base)}
    assert found == back
    return found


def test_free_axes_cut_open_dimensions_below_the_manual_ones() -> None:
    found = crossings(bordered('<@mesh, [{"x", ?}, {?}]>', "x"))
    assert found == {
        (((X,), ()), ((), ())),
        (((X, Y), ()), ((Y,), ())),
        (((X,), (Y,)), ((), (Y,))),
    }


@pytest.mark.parametrize(
    ("pinned", "expected"),
    [
        ('<@mesh, [{"x"}, {?}]>', {(((X,), ()), ((), ())), (((X,), (Y,)), ((), (Y,)))}),
        ('<@mesh, [{"x"}, {}]>', {(((X,), ()), ((), ()))}),
        ('<@mesh, [{"x", "y"}, {}]>', {(((X, Y), ()), ((Y,), ()))}),
        ('<@mesh, [{"x", ?}, {?}], replicated={"y"}>', {(((X,), ()), ((), ()))}),
    ],
)
def test_closed_dimensions_and_copies_are_kept(
    pinned: str, expected: set[tuple[Layout, Layout]]
) -> None:
    assert crossings(bordered(pinned, "x")) == expected


def test_where_all_axes_are_manual_nothing_is_free() -> None:
    assert crossings(bordered('<@mesh, [{"x"}, {"y"}]>', "x", "y")) == {(((X,), (Y,)), ((), ()))}


def test_axes_of_another_mesh_become_those_of_the_plan() -> None:
    cube = '<["p"=2, "q"=2, "r"=2]>'
    graph = bordered(f'<mesh{cube}, [{{"p", ?}}, {{"r", ?}}]>', "p", "r", mesh=cube)
    found = with_borders_on(graph, MESH)
    assert found.regions[1].manual_axes == ("x", "y")  # "r" is a part of "y": all of it is taken
    assert {op.pinned for op in found.ops if op.pinned} == {'<@mesh, [{"x", ?}, {"y":(2)2, ?}]>'}


def test_a_program_without_regions_is_left_as_it_is() -> None:
    program = Program()
    graph = program.graph(program.elementwise(program.argument(8, 8)))
    assert with_borders_on(graph, MESH) is graph


def test_a_region_whose_axes_the_plan_cannot_say_is_refused() -> None:
    odd = '<["p"=2, "q"=4], device_ids=[0, 1, 2, 3, 4, 5, 7, 6]>'
    graph = bordered(f'<mesh{odd}, [{{"q"}}, {{}}]>', "q", mesh=odd)
    with pytest.raises(ConstraintError) as caught:
        with_borders_on(graph, MESH)
    assert str(caught.value) == (
        "the shard_map is on mesh (p=2, q=4; device_ids=[0, 1, 2, 3, 4, 5, 7, 6]), whose axes are"
        " none of the plan's mesh (x=2, y=4)\n"
        "  where: shard_map at unknown line\n"
        "  fix: plan for the mesh of the shard_map, or give both one order of devices"
    )
