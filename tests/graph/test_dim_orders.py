"""Orders of dimensions, followed from products to where two of them meet."""

from __future__ import annotations

import pytest

from autoshard.backends import backend_for
from autoshard.graph.buffers import Buffers, find_buffers
from autoshard.graph.dim_orders import find_turned
from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import Rule
from cost_models import get_hardware
from tests.planner.graphs import Program

BATCH, LEFT, GROUP, RIGHT, SUMMED = 4, 32, 2, 64, 16


def grouped_product(program: Program) -> int:
    """`([b, m, n], [b, l, g, n]) -> ([b, m, l, g])`: scores of groups of queries."""
    keys = program.argument(BATCH, RIGHT, SUMMED)
    queries = program.argument(BATCH, LEFT, GROUP, SUMMED)
    sizes = (BATCH, RIGHT, LEFT, GROUP, SUMMED)
    operands = (((0,), (1,), (4,)), ((0,), (2,), (3,), (4,)))
    rule = Rule(sizes, operands, (((0,), (1,), (2,), (3,)),), frozenset({4}))
    shape = (BATCH, RIGHT, LEFT, GROUP)
    return program.compute("dot_general", (keys, queries), [shape], rule)[0]


def transposed(program: Program, value: int, *order: int) -> int:
    """With dimension `order[d]` as dimension `d`."""
    shape = program.shape(value)
    dims = tuple((dim,) for dim in range(len(shape)))
    rule = Rule(shape, (dims,), (tuple(dims[dim] for dim in order),))
    made = [tuple(shape[dim] for dim in order)]
    return program.compute("transpose", (value,), made, rule, OpClass.COPY)[0]


def reader(program: Program, value: int) -> int:
    """A product of a tensor of four dimensions, summed over the last one."""
    shape = program.shape(value)
    dims = tuple((dim,) for dim in range(4))
    rule = Rule((*shape, 8), (dims, ((3,), (4,))), ((*dims[:3], (4,)),), frozenset({3}))
    other = program.argument(shape[3], 8)
    return program.compute("dot_general", (value, other), [(*shape[:3], 8)], rule)[0]


def plain_product(program: Program, shape: tuple[int, ...]) -> int:
    """`([a, b, c, n], [d, n]) -> ([a, b, c, d])`."""
    dims = tuple((dim,) for dim in range(4))
    rule = Rule((*shape, SUMMED), ((*dims[:3], (4,)), ((3,), (4,))), (dims,), frozenset({4}))
    operands = program.argument(*shape[:3], SUMMED), program.argument(shape[3], SUMMED)
    return program.compute("dot_general", operands, [shape], rule)[0]


def softmax_like(*order: int) -> tuple[Graph, dict[str, int]]:
    """Scores that are reordered, weights made of them, and a gradient that meets the scores."""
    program = Program()
    scores = grouped_product(program)
    wide = program.elementwise(transposed(program, scores, *order), name="convert")
    weights = program.elementwise(wide, wide, name="multiply")
    out = reader(program, weights)
    back = plain_product(program, program.shape(weights))
    late = reader(program, weights)
    gradient = program.elementwise(back, name="convert")
    scaled = program.elementwise(gradient, name="negate")
    met = program.elementwise(scaled, wide, name="subtract")
    names = {"wide": wide, "weights": weights, "late": late, "gradient": gradient, "met": met}
    return program.graph(out, late, met), names


def on_h100(graph: Graph) -> Buffers:
    return find_buffers(graph, backend_for(get_hardware("h100")))


SWAPPED, MIXED = (0, 2, 3, 1), (0, 3, 2, 1)  # of batch, keys, queries and groups


def test_what_is_computed_lies_as_its_product_was_made() -> None:
    graph, made = softmax_like(*MIXED)
    turned = find_turned(graph, on_h100(graph).is_stored)
    assert turned.orders[made["wide"]] == turned.orders[made["met"]] == (0, 3, 2, 1)
    assert turned.is_turned(made["weights"])


def test_a_product_makes_its_rows_or_its_columns_outermost() -> None:
    graph, made = softmax_like(*SWAPPED)
    turned = find_turned(graph, on_h100(graph).is_stored)
    assert turned.orders[made["wide"]] == (0, 1, 2, 3)
    assert not turned.written


@pytest.mark.parametrize(("order", "is_written"), [(SWAPPED, False), (MIXED, True)])
def test_what_meets_another_order_is_written_in_it_as_soon_as_it_is_computed(
    order: tuple[int, ...], *, is_written: bool
) -> None:
    graph, made = softmax_like(*order)
    buffers = on_h100(graph)
    assert buffers.is_stored[made["gradient"]] == is_written
    if is_written:
        start, stop = buffers.intervals[made["gradient"]]
        assert start == graph.values[made["gradient"]].op
        assert stop >= graph.values[made["met"]].op


@pytest.mark.parametrize(("order", "is_made_again"), [(SWAPPED, False), (MIXED, True)])
def test_what_products_want_in_another_order_is_made_again_for_the_last_of_them(
    order: tuple[int, ...], *, is_made_again: bool
) -> None:
    graph, made = softmax_like(*order)
    start, _ = on_h100(graph).intervals[made["weights"]]
    maker, last = graph.values[made["weights"]].op, graph.values[made["late"]].op
    assert start == (last if is_made_again else maker)


def test_elsewhere_nothing_is_written_for_its_order() -> None:
    graph, made = softmax_like(*MIXED)
    for machine in ("cpu-host", "tpu-v5p"):
        buffers = find_buffers(graph, backend_for(get_hardware(machine)))
        assert not buffers.is_stored[made["gradient"]]
