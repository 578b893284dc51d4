"""Temporaries that lie in memory on the chip, and what is moved before it is transposed."""

from __future__ import annotations

import pytest

from autoshard.backend_habits import on_chip_bytes
from autoshard.encoding.encode import PICOSECONDS, Wishes
from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import Rule
from autoshard.planning.planner import Solution
from cost_models import get_hardware
from tests.planner.graphs import Program, parts_of, plan

ON_CHIP = on_chip_bytes(get_hardware("tpu-v5e"))
MIB = 2**20


def of_two_products(side: int) -> Graph:
    program = Program()
    x, w = program.argument(side, side), program.argument(side, side)
    return program.graph(program.matmul(program.matmul(x, w), w))


def kept_whole(side: int, limit: int | None = None, hardware: str = "tpu-v5e") -> Solution:
    graph = of_two_products(side)
    whole = parts_of("x=4").to_sharding(((), ()))
    made = {op.results[0]: whole for op in graph.ops if op.name == "dot_general"}
    wishes = Wishes(arguments=[whole] * 2, results=[whole], values=made)
    return plan(graph, "x=4", wishes, limit, hardware)


def test_temporaries_for_which_the_chip_has_room_take_no_device_memory() -> None:
    memory = kept_whole(2048).account.memory  # tensors of 16 MiB: two arguments, two products
    assert memory.peak_bytes == memory.argument_bytes == 2 * 16 * MIB
    assert memory.on_chip_bytes == ON_CHIP


def test_what_the_chip_has_no_room_for_is_in_device_memory() -> None:
    memory = kept_whole(8192).account.memory
    assert memory.peak_bytes == 4 * 256 * MIB - ON_CHIP
    assert max(held for _, held in memory.timeline) == memory.peak_bytes


def test_a_machine_of_which_nothing_is_known_has_no_such_memory() -> None:
    memory = kept_whole(2048, hardware="h100").account.memory
    assert (memory.peak_bytes, memory.on_chip_bytes) == (4 * 16 * MIB, 0)


@pytest.mark.parametrize(("side", "least"), [(2048, 32 * MIB), (8192, 1024 * MIB - ON_CHIP)])
def test_a_budget_is_met_exactly_and_missed_by_one_byte(side: int, least: int) -> None:
    assert kept_whole(side, least).is_feasible
    missed = kept_whole(side, least - 1)
    assert not missed.is_feasible
    assert missed.account.memory.peak_bytes == least


def cost_of_moving(hardware: str, *, is_first: bool) -> int:
    """A value made in pieces, read transposed and whole; moved before or after it is transposed."""
    program = Program()
    made = program.elementwise(program.argument(512, 256), name="sine")
    rule = Rule((512, 256), (((0,), (1,)),), (((1,), (0,)),))
    (turned,) = program.compute("transpose", (made,), [(256, 512)], rule, OpClass.COPY)
    last = program.elementwise(turned, name="cosine")
    parts = parts_of("x=4")
    pieces, whole = parts.to_sharding(((0,), ())), parts.to_sharding(((), ()))
    between = whole if is_first else parts.to_sharding(((), (0,)))
    wishes = Wishes(
        arguments=[pieces],
        results=[whole],
        values={made: pieces, turned: between, last: whole},
    )
    cost = plan(program.graph(last), "x=4", wishes, None, hardware).result.cost
    assert cost is not None
    return cost


def test_on_a_tpu_a_value_is_better_moved_after_it_is_transposed() -> None:
    first, after = (cost_of_moving("tpu-v5e", is_first=first) for first in (True, False))
    copied_seconds = 2 * 512 * 256 * 4 / get_hardware("tpu-v5e").memory.bytes_per_second
    assert first - after >= int(copied_seconds * PICOSECONDS)


def test_elsewhere_it_makes_next_to_no_difference() -> None:
    first, after = (cost_of_moving("h100", is_first=first) for first in (True, False))
    assert first == pytest.approx(after, rel=1e-3)
