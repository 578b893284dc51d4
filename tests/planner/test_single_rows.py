"""Products of loops of which cuts leave a device one row, column or term."""

from __future__ import annotations

import pytest

from autoshard.backends import get_backend
from autoshard.candidates.candidate import Candidate
from autoshard.encoding.single_rows import SingleRows
from tests.planner.graphs import Program, encoder_for, parts_of

ROWS, COLUMNS, SUMMED = 8, 64, 32


def ways(
    machine: str, rows: int = ROWS, *, in_loop: bool = True, is_scarce: bool = True
) -> tuple[Candidate, ...]:
    """To cut a product over 8 devices."""
    program = Program()
    x, w = program.argument(rows, SUMMED), program.argument(SUMMED, COLUMNS)
    start = program.argument(rows, COLUMNS)
    if in_loop:
        program.open_loop(4)
    carried = program.carry(start) if in_loop else start
    made = program.matmul(x, w)
    last = program.elementwise(carried, made)
    if in_loop:
        program.loop_back(carried, last)
        program.close_loop()
    encoder = encoder_for(program.graph(last), "x=8", hardware=machine, is_scarce=is_scarce)
    encoded = encoder.encode()
    return encoded.candidates[encoded.node_by_op[program.values[made].op]]


def cut_rows(candidates: tuple[Candidate, ...]) -> list[Candidate]:
    return [candidate for candidate in candidates if candidate.operands[0][0]]


@pytest.mark.parametrize(
    ("machine", "is_offered"), [("tpu-v5p", False), ("h100", False), ("tpu7x", True)]
)
def test_one_row_for_each_device_is_not_offered_where_it_is_no_matmul(
    machine: str, *, is_offered: bool
) -> None:
    found = ways(machine)
    assert bool(cut_rows(found)) == is_offered
    assert len(found) > 1


def test_two_rows_are_offered_and_one_outside_loops_or_where_there_is_room() -> None:
    assert cut_rows(ways("tpu-v5p", 2 * ROWS))
    assert cut_rows(ways("tpu-v5p", in_loop=False))
    assert cut_rows(ways("tpu-v5p", is_scarce=False))


def test_one_row_is_offered_in_a_region_that_is_no_loop() -> None:
    program = Program()
    x, w = program.argument(ROWS, SUMMED), program.argument(SUMMED, COLUMNS)
    program.open_manual()
    made = program.matmul(x, w)
    program.close_manual()
    encoder = encoder_for(program.graph(made), "x=8", hardware="tpu-v5p", is_scarce=True)
    encoded = encoder.encode()
    assert cut_rows(encoded.candidates[encoded.node_by_op[program.values[made].op]])


def test_what_has_one_row_uncut_is_offered_all() -> None:
    assert len(ways("tpu-v5p", 1)) > 1


def test_what_is_no_product_is_offered_all() -> None:
    program = Program()
    made = program.elementwise(program.argument(ROWS, COLUMNS), name="tanh")
    encoder = encoder_for(program.graph(made), "x=8", hardware="tpu-v5p")
    op = program.ops[program.values[made].op]
    offered = encoder.encode().candidates[encoder.encode().node_by_op[op.index]]
    rows = SingleRows(encoder.graph, parts_of("x=8"), get_backend("tpu").fusion, is_scarce=True)
    assert rows.offered(op, offered) is offered
    assert any(candidate.results[0][0] for candidate in offered)
