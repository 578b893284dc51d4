"""Which mesh axes are planned in parts."""

from __future__ import annotations

import pytest

from autoshard.errors import ConstraintError
from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import Rule
from autoshard.sharding import AxisRef, parse_mesh_sizes
from autoshard.wishes.mesh_parts import choose_splits, parts_for
from tests.planner.graphs import Program, wishes_for


def heads_program(heads: int) -> Graph:
    """A batched matmul `[h, i, k] x [h, k, j]` over `heads`."""
    program = Program()
    left, right = program.argument(heads, 64, 64), program.argument(heads, 64, 64)
    rule = Rule(
        (heads, 64, 64, 64),
        (((0,), (1,), (3,)), ((0,), (3,), (2,))),
        (((0,), (1,), (2,)),),
        frozenset({3}),
    )
    made = program.compute("dot_general", (left, right), [(heads, 64, 64)], rule)
    return program.graph(*made)


def test_an_axis_that_its_heads_divide_only_in_part_is_split_there() -> None:
    assert choose_splits(heads_program(4), {"x": 8, "y": 2}) == {"x": (4, 2)}


def test_of_axes_that_one_split_would_serve_alike_the_last_is_split() -> None:
    assert choose_splits(heads_program(4), {"x": 8, "y": 8, "z": 2}) == {"y": (4, 2)}
    assert choose_splits(heads_program(4), {"y": 8, "x": 16}) == {"x": (4, 4)}


def test_axes_that_divide_the_heads_stay_whole() -> None:
    assert choose_splits(heads_program(16), {"x": 8, "y": 2}) == {}


def test_a_common_divisor_counts_where_neither_divides_the_other() -> None:
    assert choose_splits(heads_program(12), {"x": 8}) == {"x": (4, 2)}


def test_sub_axes_that_the_user_wrote_split_their_axis_and_no_other() -> None:
    written = [AxisRef("x", 2, 2)]
    assert choose_splits(heads_program(4), {"x": 8, "y": 8}, written) == {
        "x": (2, 2, 2),
        "y": (4, 2),
    }


def test_sub_axes_of_sharding_constraints_count_as_written() -> None:
    program = Program()
    value = program.argument(8, 8)
    graph = program.graph(program.constraint(value, '#sdy.sharding<@mesh, [{"x":(1)2}, {}]>'))
    parts = parts_for(graph, parse_mesh_sizes("x=8"), wishes_for(graph))
    assert parts.splits == (("x", (2, 4)),)


def test_sub_axes_that_no_splitting_holds_both_are_refused() -> None:
    written = [AxisRef("x", 1, 2), AxisRef("x", 1, 3)]
    with pytest.raises(ConstraintError) as caught:
        choose_splits(heads_program(6), {"x": 6}, written)
    assert str(caught.value) == (
        '"x":(1)2 and "x":(1)3 cannot be parts of one splitting of axis "x" of size 6\n'
        "  where: sub-axes in in_shardings, out_shardings and sharding constraints\n"
        "  fix: use sub-axes that begin and end at places which divide one another"
    )


def images_program(batch: int) -> Graph:
    """Images of 16 x 16 x 3, convolved."""
    program = Program()
    image, kernel = program.argument(batch, 16, 16, 3), program.argument(3, 3, 3, 8)
    rule = Rule(
        (batch, 16, 16, 3, 8, 3, 3),
        (((0,), (1,), (2,), (3,)), ((5,), (6,), (3,), (4,))),
        (((0,), (1,), (2,), (4,)),),
        frozenset({3}),
    )
    shape = (batch, 16, 16, 8)
    made = program.compute("convolution", (image, kernel), [shape], rule, OpClass.CONVOLUTION)
    return program.graph(*made)


@pytest.mark.parametrize(
    ("batch", "mesh", "splits"),
    [
        (64, {"x": 4, "y": 4}, {"y": (2, 2)}),
        (64, {"x": 8, "y": 2}, {}),  # none in part: the first leaves eight
        (32, {"x": 8}, {"x": (4, 2)}),
        (128, {"x": 4, "y": 4}, {}),
        (8, {"x": 4}, {}),
        (64, {"x": 2, "y": 2, "z": 4}, {"z": (2, 2)}),
    ],
)
def test_an_axis_that_leaves_too_few_images_is_split(
    batch: int, mesh: dict[str, int], splits: dict[str, tuple[int, ...]]
) -> None:
    assert choose_splits(images_program(batch), mesh, least_images=8) == splits
    assert choose_splits(images_program(batch), mesh) == {}


def test_none_is_split_for_images_where_more_work_is_in_matrix_products() -> None:
    program = Program()
    image, kernel = program.argument(64, 16, 16, 3), program.argument(3, 3, 3, 8)
    rule = next(op.rule for op in images_program(64).ops if op.name == "convolution")
    assert rule is not None
    shape = [(64, 16, 16, 8)]
    program.compute("convolution", (image, kernel), shape, rule, OpClass.CONVOLUTION)
    wide = program.argument(4096, 4096)
    graph = program.graph(program.matmul(wide, wide))
    assert choose_splits(graph, {"x": 4, "y": 4}, least_images=8) == {}
