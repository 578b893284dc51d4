"""What a TPU may hold besides where memory is scarce."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.encoding.encode import Encoder
from autoshard.graph.program import OpClass
from autoshard.graph.rule import Rule
from tests.planner.graphs import Program, encoder_for

ROWS, TAKEN, WIDTH = 4096, 512, 64


def gradients(*taken: int, is_measured: bool = False) -> Program:
    """Of tables, each of which is looked up so many times; their updates, or a sum of them."""
    program = Program()
    made = []
    for number in taken:
        table, places = program.argument(ROWS, WIDTH), program.argument(number, 1)
        updates, zeros = program.argument(number, WIDTH), program.zeros(ROWS, WIDTH)
        large, small = ((0,), (2,)), ((1,), (2,))
        rule = Rule((ROWS, number, WIDTH, 1), (large, ((1,), (3,)), small), (large,))
        operands = (zeros, places, updates)
        (gradient,) = program.compute("scatter", operands, [(ROWS, WIDTH)], rule, OpClass.SCATTER)
        made.append((gradient, table))
    for gradient, table in made:
        program.elementwise(gradient, table)
        if is_measured:
            program.sum(gradient)
    return program


def encoder_of(
    *taken: int, is_measured: bool = False, is_scarce: bool = True, machine: str = "tpu-v5p"
) -> Encoder:
    program = gradients(*taken, is_measured=is_measured)
    last = [op.results[0] for op in program.ops if op.name in ("add", "reduce")]
    graph = program.graph(*last)
    return encoder_for(graph, "x=8", hardware=machine, is_scarce=is_scarce)


def scatters(encoder: Encoder) -> list[int]:
    return [op.index for op in encoder.graph.ops if op.name == "scatter"]


def test_what_the_largest_scatter_for_updates_takes_lies_beside_all_that_is_held() -> None:
    encoder = encoder_of(TAKEN, 2 * TAKEN)
    encoded = encoder.encode()
    first, second = scatters(encoder)
    assert encoder.room.at_any_time == second
    starts = {
        op: {
            term.start
            for term in encoded.problem.node_memory
            if term.node == encoded.node_by_op[op] and term.stop == op + 1
        }
        for op in (first, second)
    }
    assert starts == {first: {first}, second: {0}}


@pytest.mark.parametrize(
    ("is_measured", "is_scarce", "machine"),
    [(True, True, "tpu-v5p"), (False, False, "tpu-v5p"), (False, True, "h100")],
)
def test_not_where_more_reads_it_or_there_is_room_or_gaps_are_filled(
    *, is_measured: bool, is_scarce: bool, machine: str
) -> None:
    encoder = encoder_of(TAKEN, is_measured=is_measured, is_scarce=is_scarce, machine=machine)
    assert encoder.room.at_any_time is None


@pytest.mark.parametrize("is_scarce", [False, True])
def test_weights_that_a_loop_reads_wait_on_the_chip_unless_memory_is_scarce(
    *, is_scarce: bool
) -> None:
    program = Program()
    x, w = program.argument(WIDTH, WIDTH), program.argument(WIDTH, WIDTH)
    held, carried = program.carry(w), program.carry(x)
    program.open_loop(4.0)
    program.loop_back(carried, program.matmul(carried, held))
    program.close_loop()
    graph = program.graph(carried)
    room = encoder_for(graph, "x=8", hardware="tpu-v5p", is_scarce=is_scarce).room
    assert room.vmem.loop_reads == ({graph.values[held].op} if not is_scarce else set())


@pytest.mark.parametrize(("is_scarce", "bits"), [(False, 16), (True, 32)])
def test_where_memory_is_scarce_a_table_moved_to_be_looked_up_is_as_wide_as_it_lies(
    bits: int, *, is_scarce: bool
) -> None:
    program = Program()
    table, places = program.argument(ROWS, WIDTH), program.argument(TAKEN, 1)
    rule = Rule(
        (TAKEN, WIDTH, ROWS), (((2,), (1,)), ((0,), ())), (((0,), (1,)),), reduction=frozenset({2})
    )
    (found,) = program.compute("gather", (table, places), [(TAKEN, WIDTH)], rule, OpClass.GATHER)
    made = program.elementwise(found, name="convert")
    program.values[made] = replace(program.values[made], dtype="bf16", bits=16)
    encoder = encoder_for(program.graph(made), "x=8", hardware="tpu-v5p", is_scarce=is_scarce)
    held = [int(copy.usage.max()) for copy in encoder.encode().problem.edge_memory]
    whole = ROWS * WIDTH * bits // 8
    assert max(held) == int(whole * encoder.room.overhead)
