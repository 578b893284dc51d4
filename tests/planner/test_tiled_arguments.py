"""Arguments of TPU programs lie in whole tiles."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.encoding.tiled_arguments import tiled_bytes
from tests.planner.graphs import Program, parts_of, plan, wishes_for


@pytest.mark.parametrize(
    ("shape", "bits", "held"),
    [
        ((8, 128), 32, 4096),
        ((1024, 64), 32, 1024 * 64 * 4),  # its columns are what has 1024
        ((16, 8, 64), 32, 16 * 8 * 128 * 4),
        ((16, 64, 16), 32, 16 * 16 * 128 * 4),
        ((3, 3, 8, 3), 32, 3 * 3 * 4 * 128 * 4),  # tiles of four rows
        ((8, 8), 16, 8 * 128 * 2),
        ((384,), 32, 512 * 4),
        ((4000,), 32, 4096 * 4),
        ((5000,), 32, 5 * 1024 * 4),
        ((1, 384, 1), 32, 512 * 4),
        ((16,), 32, 512),
        ((), 32, 512),
        ((0, 4096, 4096), 32, 0),
    ],
)
def test_the_dimension_order_with_the_least_padding_is_taken(
    shape: Sequence[int], bits: int, held: int
) -> None:
    assert tiled_bytes(shape, bits) == held


@given(shape=st.lists(st.integers(1, 300), max_size=4), bits=st.sampled_from([16, 32]))
def test_tiles_hold_all_and_whole_tiles_no_more(shape: list[int], bits: int) -> None:
    assert tiled_bytes(shape, bits) >= prod(shape) * bits // 8
    assert tiled_bytes(shape, bits) == tiled_bytes(shape[::-1], bits)
    whole = [8, 128, *shape]
    assert tiled_bytes(whole, 32) == prod(whole) * 4


@pytest.mark.parametrize(("machine", "held"), [("tpu-v5e", 8 * 128 * 4), ("h100", 8 * 32 * 4)])
def test_only_on_tpus_do_arguments_take_more_than_their_bytes(machine: str, held: int) -> None:
    program = Program()
    graph = program.graph(program.sum(program.argument(32, 32)))
    parts = parts_of("x=4")
    cut, end = parts.to_sharding(((0,), ())), parts.to_sharding(((),))
    wishes = wishes_for(graph, {0: cut}, {0: end})
    solution = plan(graph, "x=4", wishes, None, machine)
    assert solution.account.memory.argument_bytes == held
