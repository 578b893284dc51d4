"""Look-ups of rows that do not fill the lanes of a TPU."""

from __future__ import annotations

import pytest

from autoshard.graph.program import OpClass
from autoshard.graph.rule import Rule
from autoshard.planning.solution import Solution
from autoshard.wishes.wishes import Wishes
from tests.planner.graphs import Program, beside_arguments, parts_of, plan

TABLE_ROWS, TAKEN_ROWS = 4096, 512
LANES, F32_BYTES = 128, 4


def looked_up(name: str, width: int, hardware: str) -> Solution:
    """Of 8 devices that cut the rows of a table, each into pieces of this width."""
    program = Program()
    whole_width = 8 * width
    table, indices = program.argument(TABLE_ROWS, whole_width), program.argument(TAKEN_ROWS, 1)
    updates = program.argument(TAKEN_ROWS, whole_width)
    sizes = (TABLE_ROWS, TAKEN_ROWS, whole_width, 1)
    large, small, place = ((0,), (2,)), ((1,), (2,)), ((1,), (3,))
    if name == "gather":
        rule = Rule(sizes, (large, place), (small,))
        made = program.compute(
            name, (table, indices), [(TAKEN_ROWS, whole_width)], rule, OpClass.GATHER
        )
    else:
        rule = Rule(sizes, (large, place, small), (large,))
        operands = (table, indices, updates)
        made = program.compute(name, operands, [(TABLE_ROWS, whole_width)], rule, OpClass.SCATTER)
    (result,) = made
    graph = program.graph(program.sum(result))
    parts = parts_of("x=8")
    columns, whole = parts.to_sharding(((), (0,))), parts.to_sharding(((), ()))
    wishes = Wishes(
        arguments=[columns, whole, columns],
        results=[parts.to_sharding(((),))],
        values={result: columns},
    )
    return plan(graph, "x=8", wishes, None, hardware)


def held_beside_arguments(name: str, width: int, hardware: str) -> int:
    return beside_arguments(looked_up(name, width, hardware))


def local_bytes(rows: int, width: int) -> float:
    return rows * width * F32_BYTES


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_rows_of_one_element_are_vectors_and_lie_as_they_are(name: str) -> None:
    held = held_beside_arguments(name, 1, "tpu-v5p")
    assert held < local_bytes(2 * (TABLE_ROWS + TAKEN_ROWS), 1)


@pytest.mark.parametrize(
    ("name", "copied_rows"),
    [("gather", TABLE_ROWS + TAKEN_ROWS), ("scatter", TABLE_ROWS + TAKEN_ROWS)],
)
def test_narrow_rows_are_copied_into_whole_lanes(name: str, copied_rows: int) -> None:
    held = local_bytes(copied_rows, LANES)
    assert held_beside_arguments(name, 16, "tpu-v5p") == pytest.approx(held, rel=1e-2)


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_each_copy_lies_for_itself(name: str) -> None:
    tensors = looked_up(name, 16, "tpu-v5p").account.memory.held
    held = {tensor.local_bytes for tensor in tensors if tensor.kind != "argument"}
    assert {local_bytes(rows, LANES) for rows in (TABLE_ROWS, TAKEN_ROWS)} <= held
    assert local_bytes(TABLE_ROWS + TAKEN_ROWS, LANES) not in held


@pytest.mark.parametrize(("width", "hardware"), [(LANES, "tpu-v5p"), (16, "tpu-v5e"), (16, "h100")])
def test_rows_that_fill_their_lanes_are_not_copied_nor_those_on_the_chip_or_elsewhere(
    width: int, hardware: str
) -> None:
    result = TAKEN_ROWS * width * F32_BYTES
    assert held_beside_arguments("gather", width, hardware) < 1.2 * result


def held_by_reshape(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """Bytes beside the argument of a reshape that every device makes whole."""
    program = Program()
    x = program.argument(*before)
    rule = Rule((), (((),) * len(before),), (((),) * len(after),))
    (made,) = program.compute("reshape", (x,), [after], rule, OpClass.COPY)
    graph = program.graph(program.sum(made))
    return beside_arguments(plan(graph, "x=8", None, None, "tpu-v5p"))


def test_a_reshape_that_merges_narrow_rows_copies_them_into_whole_lanes() -> None:
    copied = held_by_reshape((1024, 128, 8), (1024 * 128, 8))
    assert copied == pytest.approx(local_bytes(1024 * 128, LANES), rel=1e-2)


def test_if_there_is_room_they_lie_on_the_chip() -> None:
    assert held_by_reshape((64, 32, 8), (64 * 32, 8)) < local_bytes(64 * 32, 8)


@pytest.mark.parametrize(
    ("before", "after"),
    [((1024, 128, 128), (1024 * 128, 128)), ((1024 * 128, 8), (1024, 128, 8))],
)
def test_other_reshapes_copy_nothing(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    assert held_by_reshape(before, after) < local_bytes(1024 * 128, 8)


def looked_up_in_pieces(
    num_look_ups: int, *, of_one_another: bool = False, num_tables: int = 1
) -> int:
    """Bytes beside the arguments of rows that are looked up in tables cut by rows, and summed."""
    program, table_rows = Program(), 16 * TABLE_ROWS  # more than is worth gathering
    sizes = (table_rows, TAKEN_ROWS, 16, 1)
    rule = Rule(sizes, (((0,), (2,)), ((1,), (3,))), (((1,), (2,)),), reduction=frozenset({0}))
    places = [program.argument(TAKEN_ROWS, 1) for _ in range(num_look_ups)]
    tables = [program.argument(table_rows, 16) for _ in range(num_tables)]
    taken: list[int] = []
    for number, place in enumerate(places):
        if of_one_another and taken:
            place = program.compute(
                "convert",
                (taken[-1],),
                [(TAKEN_ROWS, 1)],
                Rule((TAKEN_ROWS,), (((0,), ()),), (((0,), ()),)),
                OpClass.ELEMENTWISE,
            )[0]
        operands = (tables[number % num_tables], place)
        (made,) = program.compute("gather", operands, [(TAKEN_ROWS, 16)], rule, OpClass.GATHER)
        taken.append(made)
    graph = program.graph(*map(program.sum, taken))
    parts = parts_of("x=8")
    rows, whole = parts.to_sharding(((0,), ())), parts.to_sharding(((), ()))
    gathered = {op.results[0]: whole for op in graph.ops if op.name == "gather"}
    wishes = Wishes(
        arguments=[*[whole] * num_look_ups, *[rows] * num_tables],
        results=[parts.to_sharding(((),))] * num_look_ups,
        values=gathered,
    )
    return beside_arguments(plan(graph, "x=8", wishes, None, "tpu-v5p"))


def test_narrow_rows_that_are_summed_over_devices_stay_padded_until_all_of_one_call_are() -> None:
    one = local_bytes(TAKEN_ROWS, LANES)
    single, four = (looked_up_in_pieces(n) for n in (1, 4))
    assert four - single == pytest.approx(3 * one, rel=0.1)
    assert looked_up_in_pieces(4, of_one_another=True) < single + one


def test_copies_of_tables_are_all_there_before_the_first_look_up() -> None:
    table = local_bytes(2 * TABLE_ROWS, LANES)
    single, four = looked_up_in_pieces(1), looked_up_in_pieces(4, num_tables=4)
    assert four - single == pytest.approx(3 * table, rel=0.1)
