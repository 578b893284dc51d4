"""Dimensions that are the same wherever they turn up."""

from __future__ import annotations

from autoshard.graph.dimension_classes import dimension_classes
from autoshard.graph.program import OpClass, OpKind
from autoshard.graph.rule import Rule
from tests.planner.graphs import Program


def test_a_product_joins_rows_columns_and_what_it_sums_up() -> None:
    program = Program()
    x, w = program.argument(8, 16), program.argument(16, 32)
    y = program.matmul(x, w)
    classes = dimension_classes(program.graph(y))
    (rows, summed), (also_summed, columns) = classes[x], classes[w]
    assert summed == also_summed
    assert classes[y] == (rows, columns)
    assert len({rows, summed, columns}) == 3


def test_a_merged_dimension_goes_with_its_major_part() -> None:
    program = Program()
    split = program.argument(8, 4, 16)
    merge = Rule((8, 4, 16), (((0,), (1,), (2,)),), (((0,), (1, 2)),))
    merged = program.compute("reshape", (split,), [(8, 64)], merge, OpClass.COPY)[0]
    classes = dimension_classes(program.graph(merged))
    batch, heads, width = classes[split]
    assert classes[merged] == (batch, heads)
    assert width not in classes[merged]


def test_a_part_of_size_1_is_not_the_major_one() -> None:
    program = Program()
    split = program.argument(1, 64)
    merge = Rule((1, 64), (((0,), (1,)),), (((0, 1),),))
    merged = program.compute("reshape", (split,), [(64,)], merge, OpClass.COPY)[0]
    classes = dimension_classes(program.graph(merged))
    assert classes[merged] == classes[split][1:]


def test_a_loop_carries_its_dimensions_around() -> None:
    program = Program()
    start = program.argument(8, 16)
    carried = program.carry(start)
    program.open_loop(4)
    turned = program.elementwise(carried)
    program.loop_back(carried, turned)
    program.close_loop()
    classes = dimension_classes(program.graph(carried))
    assert classes[start] == classes[carried] == classes[turned]


def test_what_every_device_makes_itself_has_the_dimensions_of_what_it_is_made_from() -> None:
    program = Program()
    value = program.argument(8, 16)
    classes = dimension_classes(program.graph(program.widened(value)))
    assert classes[value] == classes[value + 1]
    assert [op.kind for op in program.ops[:2]] == [OpKind.ARGUMENT, OpKind.FREE]


def test_so_has_what_is_made_with_a_second_result() -> None:
    program = Program()
    value = program.argument(8, 16)
    one, other = program.add(OpKind.FREE, "sort", (value, value), [(8, 16), (8, 16)])
    classes = dimension_classes(program.graph(one, other))
    assert classes[value] == classes[one] == classes[other]


def test_tensors_that_read_one_fill_have_dimensions_of_their_own() -> None:
    program = Program()
    one, other = program.argument(8, 16), program.argument(8, 16)
    (zero,) = program.add(OpKind.FREE, "constant", (), [()])
    (fill,) = program.add(OpKind.FREE, "broadcast_in_dim", (zero,), [(8, 16)])
    made = [program.elementwise(value, fill) for value in (one, other)]
    classes = dimension_classes(program.graph(*made))
    assert classes[one] == classes[made[0]]
    assert classes[other] == classes[made[1]]
    assert {*classes[one]}.isdisjoint(classes[other])
