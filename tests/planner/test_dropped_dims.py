"""What products write where a device has one element along a dimension of their result."""

from __future__ import annotations

from dataclasses import replace

from autoshard.graph.program import OpClass
from autoshard.graph.rule import Rule
from autoshard.wishes.wishes import Wishes
from tests.planner.graphs import Program, parts_of, plan

MESH = "x=4"
WIDTH = 4096


def held_of_rows(num_rows: int, *names: str) -> int:
    """Bytes per row that the last of the ops named takes, on a v5p, rows cut over `x`.

    They follow a product in elements of 16 bits, one after the other, and a sort reads the last.
    """
    program = Program()
    made = program.matmul(program.argument(num_rows, 8), program.argument(8, WIDTH))
    program.values[made] = replace(program.values[made], bits=16, dtype="bf16")
    for name in names:
        made = program.elementwise(made, name=name)
    rule = Rule((num_rows, WIDTH), (((0,), (1,)),), (((0,), (1,)),), permutation=frozenset({1}))
    (ordered,) = program.compute("sort", (made,), [(num_rows, WIDTH)], rule, OpClass.SORT)
    graph = program.graph(program.sum(ordered))
    parts = parts_of(MESH)
    by_rows = parts.to_sharding(((0,), ()))
    values = {v.index: by_rows for v in graph.values if v.shape == (num_rows, WIDTH)}
    whole = parts.to_sharding(((), ()))
    ends = [parts.to_sharding(((0,),))]
    wishes = Wishes(arguments=[by_rows, whole], results=ends, values=values)
    held = plan(graph, MESH, wishes, None, "tpu-v5p").account.memory.held
    return sum(t.local_bytes for t in held if t.name == names[-1]) // (num_rows // 4)


def test_a_product_goes_on_with_what_follows_unless_a_device_has_one_row() -> None:
    assert held_of_rows(8, "convert", "tanh") == 4 * WIDTH
    assert held_of_rows(4, "convert", "tanh") == 2 * WIDTH


def test_what_it_makes_wider_is_on_the_chip_where_a_device_has_one_row() -> None:
    assert held_of_rows(8, "convert") == 4 * WIDTH
    assert held_of_rows(4, "convert") == 0
