"""What products read that was brought onto the chip before they run."""

from __future__ import annotations

import pytest

from autoshard.backends import backend_for
from autoshard.candidates.candidate import CandidateMaker
from autoshard.costing.vmem import prefetched
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph, Op
from cost_models import get_hardware
from tests.planner.graphs import Program, encoder_for, narrowed, parts_of

ROWS = 8
SIDE = 2048  # 16 MiB of float32
LARGE = 8192  # 128 MiB of bfloat16: more than a v5p brings


def product(graph: Graph, place: int = -1) -> Op:
    """One of a program, the last if nothing else is said."""
    return [op for op in graph.ops if op.name == "dot_general"][place]


def brought(graph: Graph, hardware: str = "tpu-v5p") -> tuple[bool, ...]:
    buffers = find_buffers(graph, backend_for(get_hardware(hardware)))
    return prefetched(graph, buffers, product(graph))


def seconds(graph: Graph, hardware: str, place: int = -1) -> float:
    """Of a product, on every device whole."""
    encoder = encoder_for(graph, "x=8", hardware=hardware)
    op = product(graph, place)
    assert op.rule is not None
    (whole,) = (one for one in CandidateMaker(parts_of("x=8")).of_rule(op.rule) if one.cut == 1)
    return float(encoder.node_costs.seconds(op, (whole,))[0])


def with_weight(side: int, *, is_made: bool) -> Graph:
    """A few rows times a weight in `bfloat16`, which is an argument or a product of two."""
    program = Program()
    weight = program.argument(side, side)
    if is_made:
        weight = program.matmul(weight, program.argument(side, side))
    rows = program.elementwise(program.argument(ROWS, side), program.argument(ROWS, side))
    return narrowed(program.graph(program.matmul(rows, weight)), weight)


def test_arguments_are_brought_and_what_is_computed_is_not() -> None:
    assert brought(with_weight(SIDE, is_made=False)) == (False, True)
    assert brought(with_weight(SIDE, is_made=True)) == (False, False)


def test_a_weight_that_a_loop_leaves_unchanged_is_brought() -> None:
    program = Program()
    weight, state = program.argument(SIDE, SIDE), program.argument(ROWS, SIDE)
    read, carried = program.carry(weight), program.carry(state)
    program.open_loop(4)
    made = program.matmul(carried, read)
    program.loop_back(carried, made)
    program.close_loop()
    assert brought(program.graph(carried)) == (False, True)


@pytest.mark.parametrize(("hardware", "is_cheaper"), [("tpu-v5p", True), ("h100", False)])
def test_what_is_brought_is_read_at_the_speed_of_memory(hardware: str, is_cheaper: bool) -> None:
    argument, made = (seconds(with_weight(SIDE, is_made=m), hardware) for m in (False, True))
    assert (argument < made) == is_cheaper
    if is_cheaper:
        memory = get_hardware(hardware).memory
        assert memory.streamed is not None
        saved = 2 * SIDE * SIDE / memory.bytes_per_second * (1 / memory.streamed.products - 1)
        assert made - argument == pytest.approx(saved, rel=1e-6)
    else:
        assert argument == made


def test_what_has_no_room_on_the_chip_is_read_from_memory() -> None:
    argument, made = (seconds(with_weight(LARGE, is_made=m), "tpu-v5p") for m in (False, True))
    assert argument == made


def in_a_loop(*, is_made: bool, num_weights: int = 1) -> Graph:
    """A few rows times weights in every run, which are made there or wait for all of them."""
    program = Program()
    weights = [program.argument(SIDE, SIDE) for _ in range(num_weights)]
    state = program.argument(ROWS, SIDE)
    reads = [program.carry(program.elementwise(weight, weight)) for weight in weights]
    carried = made = program.carry(state)
    program.open_loop(4)
    for read in reads:
        made = program.matmul(made, program.elementwise(read, read) if is_made else read)
    program.loop_back(carried, made)
    program.close_loop()
    return program.graph(carried)


@pytest.mark.parametrize(
    ("hardware", "is_free"), [("tpu-v5e", True), ("tpu-v5p", True), ("h100", False)]
)
def test_what_waits_for_all_runs_of_a_loop_takes_no_time_on_a_tpu(
    hardware: str, is_free: bool
) -> None:
    read = 2 * SIDE * SIDE / get_hardware(hardware).memory.bytes_per_second
    assert (seconds(in_a_loop(is_made=False), hardware) < read) == is_free


def test_weights_that_have_no_room_together_are_read_from_memory_in_every_run() -> None:
    few = 112 * 2**20 // (2 * SIDE * SIDE)  # read as `bfloat16`
    alone, fitting, more = (
        seconds(in_a_loop(is_made=False, num_weights=number), "tpu-v5e")
        for number in (1, few, few + 1)
    )
    assert alone == fitting < more


def read_after(num_products: int, *, at_once: bool = False) -> Graph:
    """A product of few columns that is read after so many others, and at once if asked."""
    program = Program()
    rows = program.argument(SIDE, ROWS)
    weight, last = program.argument(ROWS, SIDE), program.argument(SIDE, ROWS)
    first = program.matmul(rows, weight)
    made = program.matmul(first, last) if at_once else rows
    for _ in range(num_products):
        made = program.matmul(made, program.argument(ROWS, ROWS))
    return program.graph(program.matmul(first, made))


@pytest.mark.parametrize(("hardware", "stays"), [("tpu-v5e", True), ("tpu-v5p", False)])
def test_a_product_that_is_read_soon_is_not_written_to_memory_on_a_v5e(
    hardware: str, stays: bool
) -> None:
    graphs = read_after(1), read_after(9), read_after(9, at_once=True)
    soon, late, both = (seconds(graph, hardware, 0) for graph in graphs)
    assert soon == both
    assert (soon < late) == stays
