"""Shardings pinned on another mesh over the same devices: said on the plan's, or permuted to."""

from __future__ import annotations

import pytest

from autoshard.errors import ConstraintError
from autoshard.graph.program import Graph
from autoshard.planning.solution import Solution
from autoshard.sharding import format_sharding, parse_mesh_sizes, parse_sharding
from autoshard.wishes.mesh_parts import parts_for
from autoshard.wishes.other_meshes import on_mesh
from tests.planner.graphs import Program, plan, wishes_for

SWAPPED = '<["p"=4, "q"=2], device_ids=[0, 1, 2, 3, 4, 5, 7, 6]>'
"""The mesh a=4,b=2 with its last two devices swapped: its "q" is no axis of a=4,b=2."""


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ('<mesh<["x"=2, "y"=4]>, [{"x"}, {?}]>', '<@mesh, [{"x"}, {?}]>'),
        ('<mesh<["x"=2, "a"=2, "b"=2]>, [{"a"}, {"x", ?}]>', '<@mesh, [{"y":(1)2}, {"x", ?}]>'),
        ('<mesh<["x"=2, "a"=2, "b"=2]>, [{"b"}, {}]>', '<@mesh, [{"y":(2)2}, {}]>'),
        ('<mesh<["x"=2, "a"=2, "b"=2]>, [{"a", "b"}p2, {}]>', '<@mesh, [{"y"}p2, {}]>'),
        ('<mesh<["one"=1, "rows"=2, "y"=4]>, [{"one", "rows"}, {}]>', '<@mesh, [{"x"}, {}]>'),
        ('<mesh<["devices"=8]>, [{"devices"}, {}]>', '<@mesh, [{"x", "y"}, {}]>'),
        ('<mesh<["devices"=8]>, [{"devices":(2)4}, {}]>', '<@mesh, [{"y"}, {}]>'),
        ('<mesh<["x"=4, "y"=2]>, [{"x"}, {"y"}]>', '<@mesh, [{"x", "y":(1)2}, {"y":(2)2}]>'),
        (
            '<mesh<["y"=4, "x"=2], device_ids=[0, 4, 1, 5, 2, 6, 3, 7]>, [{"x"}, {"y", ?}]>',
            '<@mesh, [{"x"}, {"y", ?}]>',
        ),
        (
            '<mesh<["r"=8], device_ids=[0, 4, 1, 5, 2, 6, 3, 7]>, [{?}, {?}], replicated={"r"}>',
            '<@mesh, [{?}, {?}], replicated={"x", "y"}>',
        ),
    ],
)
def test_what_the_axes_of_the_plan_can_say_is_said_in_them(sharding: str, expected: str) -> None:
    found = on_mesh(parse_sharding(sharding), parse_mesh_sizes("x=2,y=4"), "here")
    assert format_sharding(found) == expected


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ('[{"p"}, {}]', '<@mesh, [{"a"}, {}]>'),  # the devices swapped hold the same piece
        ('[{"p"}, {?}]', '<@mesh, [{"a"}, {?}]>'),
        ('[{"p", ?}, {?}], replicated={"q"}', '<@mesh, [{"a"}, {}]>'),
        ('[{"q", ?}p1, {?}], replicated={"p"}', f'<mesh{SWAPPED}, [{{"q"}}p1, {{}}]>'),
    ],
)
def test_what_they_cannot_say_stays_on_its_mesh_and_closed(sharding: str, expected: str) -> None:
    given = parse_sharding(f"<mesh{SWAPPED}, {sharding}>")
    assert format_sharding(on_mesh(given, parse_mesh_sizes("a=4,b=2"), "here")) == expected


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        (
            '<mesh<["x"=4]>, [{"x"}, {}]>',
            "the sharding is on mesh (x=4) of 4 devices, the plan is for mesh (a=4, b=2) of 8\n"
            "  where: argument w\n"
            "  fix: use meshes over the same devices",
        ),
        (
            "<mesh<[]>, [{}, {}]>",
            "the sharding is on an empty mesh, which says nothing about devices\n"
            "  where: argument w\n"
            "  fix: write it on mesh (a=4, b=2) or another mesh over its devices, or leave it out",
        ),
        (
            "<mesh<[], device_ids=[3]>, []>",
            "the sharding puts the whole tensor on device 3 alone, which a plan cannot\n"
            "  where: argument w\n"
            "  fix: replicate it, closed with no axes, so that every device holds it; or move it to"
            " one device outside of the program",
        ),
        (
            '<mesh<["x"=8]>, [{"z"}, {}]>',
            'the mesh has no axis "z"; its axes are: "x"\n'
            "  where: argument w\n"
            "  fix: use one of its axes, or add this one to the mesh",
        ),
    ],
)
def test_a_mesh_of_other_devices_is_refused(sharding: str, message: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        on_mesh(parse_sharding(sharding), parse_mesh_sizes("a=4,b=2"), "argument w")
    assert str(caught.value) == message


def through(pinned: str, before: str, after: str) -> Solution:
    """`after(constraint(before(x)))` on the mesh a=4,b=2, both ends pinned."""
    program = Program()
    x = program.argument(64, 64)
    graph = program.graph(program.constraint(x, f"#sdy.sharding{pinned}"))
    wishes = wishes_for(graph, {0: parse_sharding(before)}, {0: parse_sharding(after)})
    return plan(graph, "a=4,b=2", wishes)


def moves(solution: Solution) -> list[tuple[str, tuple[str, ...], int, int]]:
    return [
        (c.kind, c.axes, c.group_size, c.bytes_per_device) for c in solution.account.collectives
    ]


QUARTER = 64 * 64 * 4 // 8


def test_a_tensor_is_permuted_to_another_mesh_and_back() -> None:
    pinned = f'<mesh{SWAPPED}, [{{"p"}}, {{"q"}}]>'
    solution = through(pinned, '<@mesh, [{"a"}, {"b"}]>', '<@mesh, [{"a"}, {"b"}]>')
    assert moves(solution) == [("collective-permute", ("b",), 2, QUARTER)] * 2
    assert solution.account.communication_seconds > 0


def test_a_tensor_cut_otherwise_becomes_the_twin_first() -> None:
    pinned = f'<mesh{SWAPPED}, [{{"q"}}, {{"p"}}]>'
    solution = through(pinned, '<@mesh, [{"a"}, {"b"}]>', '<@mesh, [{"a"}, {"b"}]>')
    kinds = sorted(kind for kind, *_ in moves(solution))
    assert kinds == ["all-to-all", "all-to-all", "collective-permute", "collective-permute"]


def test_a_replicated_tensor_is_only_cut_for_another_mesh() -> None:
    pinned = f'<mesh{SWAPPED}, [{{"q", "p"}}, {{}}]>'
    solution = through(pinned, "<@mesh, [{}, {}]>", "<@mesh, [{}, {}]>")
    assert moves(solution) == [("all-gather", ("a", "b"), 8, 64 * 64 * 4)]


def two_layers(pinned: str | None) -> Graph:
    """`tanh(x @ w1) @ w2`, what is between them pinned."""
    program = Program()
    x, w1, w2 = (program.argument(*s) for s in ((64, 32), (32, 128), (128, 32)))
    hidden = program.elementwise(program.matmul(x, w1), name="tanh")
    if pinned is not None:
        hidden = program.constraint(hidden, f"#sdy.sharding{pinned}")
    return program.graph(program.matmul(hidden, w2))


def test_every_value_pinned_on_another_mesh_ends_as_asked_and_the_rest_of_the_plan_follows() -> (
    None
):
    pinned = f'<mesh{SWAPPED}, [{{"q"}}, {{"p"}}]>'
    graph = two_layers(pinned)
    solution = plan(graph, "a=4,b=2")
    parts = solution.encoded.parts
    constraint = next(op for op in graph.ops if op.name == "sharding_constraint")
    asked = solution.decoded.layouts[constraint.results[0]]
    assert format_sharding(parts.to_sharding(asked)) == pinned
    assert parts.sizes == (2, 2, 2, 4, 2)  # "a" in two, for a twin in 2x4; "b", "p" and "q"
    assert parts.num_shards(asked[0]) == 2
    free = plan(two_layers(None), "a=4,b=2")
    assert solution.account.communication_seconds > free.account.communication_seconds


@pytest.mark.parametrize("end", ["argument", "result"])
def test_an_argument_or_result_pinned_on_another_mesh_is_moved(end: str) -> None:
    pin = parse_sharding(f'<mesh{SWAPPED}, [{{"p"}}, {{"q"}}]>')
    other = parse_sharding('<@mesh, [{"a"}, {"b"}]>')
    program = Program()
    graph = program.graph(program.elementwise(program.argument(64, 64), name="tanh"))
    is_argument = end == "argument"
    wishes = wishes_for(
        graph, {0: pin if is_argument else other}, {0: other if is_argument else pin}
    )
    solution = plan(graph, "a=4,b=2", wishes)
    assert moves(solution) == [("collective-permute", ("b",), 2, QUARTER)]


def test_the_twin_of_a_layout_on_another_mesh_is_found_by_splitting_axes() -> None:
    program = Program()
    value = program.argument(64, 64)
    text = (
        '#sdy.sharding<mesh<["p"=2, "q"=4], device_ids=[0, 1, 2, 3, 4, 5, 7, 6]>, [{"q"}, {"p"}]>'
    )
    graph = program.graph(program.constraint(value, text))
    parts = parts_for(graph, parse_mesh_sizes("d=8"), wishes_for(graph))
    assert parts.splits == (("d", (4, 2)),)  # rows into 4, columns into 2
    foreign = parts.to_layout(parse_sharding(text.removeprefix("#sdy.sharding")))
    assert foreign == ((3,), (2,))
    assert parts.twin(foreign) == ((0,), (1,))
