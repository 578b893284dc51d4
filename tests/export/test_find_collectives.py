from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.collectives import (
    Collective,
    HardwarePrices,
    ReceivedBytes,
    carry_out,
    check_collective,
    collective_cost,
    cut_whole,
    find_collectives,
)
from autoshard.errors import ShardingError
from autoshard.sharding import Mesh, MeshAxis, Sharding, format_sharding, parse_sharding
from cost_models import get_hardware
from tests.export.generated_modules import random_sharding
from tests.export.reshard_triples import reshard_triple, shardys_bytes
from tests.export.run_chain import run_chain

XY = Mesh((MeshAxis("x", 4), MeshAxis("y", 2)))


def _chain(before: str, after: str, shape: tuple[int, ...], mesh: Mesh = XY) -> list[str]:
    steps = find_collectives(
        parse_sharding(f"<@mesh, {before}>"), parse_sharding(f"<@mesh, {after}>"), mesh, shape
    )
    return [str(step) for step in steps]


def _bytes(steps: tuple[Collective, ...], mesh: Mesh, shape: tuple[int, ...]) -> float:
    return sum(collective_cost(step, mesh, shape, 32, ReceivedBytes()) for step in steps)


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [
        ('[{"x"}, {}]', '[{"x"}, {}]', []),
        ("[{}, {}]", '[{"x"}, {"y"}]', ['all-slice [{"x"}, {"y"}]']),
        ('[{"x"}, {"y"}]', "[{}, {}]", ['all-gather [{"x"}, {"y"}]']),
        ('[{"x"}, {}]', '[{}, {"x"}]', ['all-to-all [{"x"}: 0->1]']),
        ('[{"x", "y"}, {}]', '[{"y", "x"}, {}]', ["collective-permute"]),
        ('[{"x", "y"}, {}]', '[{"x"}, {"y"}]', ['all-to-all [{"y"}: 0->1]']),
        ('[{"x"}, {}]', '[{"x":(1)2}, {}]', ['all-gather [{"x":(2)2}, {}]']),
        ('[{"x":(1)2}, {}]', '[{"x":(2)2}, {}]', ["collective-permute"]),
        (
            '[{"x"}, {}]',
            '[{}, {"y"}]',
            ['all-slice [{}, {"y"}]', 'all-gather [{"x"}, {}]'],
        ),
    ],
)
def test_a_reshard_takes_these_steps(before: str, after: str, steps: list[str]) -> None:
    assert _chain(before, after, (16, 16)) == steps


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [
        ('[{}, {}], unreduced={"y"}', "[{}, {}]", ['all-reduce {"y"}']),
        ('[{}, {}], unreduced={"y"}', '[{"y"}, {}]', ['reduce-scatter [{"y"}, {}]']),
        (
            '[{"x"}, {}], unreduced={"y"}',
            '[{"x", "y"}, {}]',
            ['reduce-scatter [{"y"}, {}]'],
        ),
        ('[{}, {}], unreduced={"x", "y"}', '[{}, {}], unreduced={"x"}', ['all-reduce {"y"}']),
    ],
)
def test_a_sum_ends_where_it_is_wanted(before: str, after: str, steps: list[str]) -> None:
    assert _chain(before, after, (16, 16)) == steps


def test_what_is_summed_cannot_become_partial_again() -> None:
    with pytest.raises(ShardingError) as error:
        _chain("[{}, {}]", '[{}, {}], unreduced={"x"}', (16, 16))
    assert str(error.value) == (
        'axes {"x"} are left to sum after the reshard and not before it\n'
        "  fix: reshard to a sharding whose unreduced axes the tensor has"
    )


def test_two_axes_of_four_dimensions_move_in_one_all_to_all() -> None:
    assert _chain('[{"x"}, {"y"}, {}, {}]', '[{}, {}, {"x"}, {"y"}]', (8, 8, 8, 8)) == [
        'all-to-all [{"x"}: 0->2, {"y"}: 1->3]'
    ]


def test_sub_axes_that_fit_no_common_splitting_are_gathered_and_cut_again() -> None:
    six = Mesh((MeshAxis("x", 6),))
    assert _chain('[{"x":(1)2}]', '[{"x":(1)3}]', (12,), six) == [
        'all-gather [{"x":(1)2}]',
        'all-slice [{"x":(1)3}]',
    ]


def test_a_mesh_of_many_axes_is_searched_too() -> None:
    mesh = Mesh(tuple(MeshAxis(name, 2) for name in "abcdefgh"))
    before = '[{"a", "b", "c"}, {"d", "e"}]'
    assert _chain(before, '[{"b", "c"}, {"d", "e"}]', (64, 64), mesh) == [
        "collective-permute",
        'all-gather [{"a"}, {}]',
    ]


def test_on_a_machine_seconds_decide_instead_of_bytes() -> None:
    prices = HardwarePrices.of(get_hardware("tpu-v5e"), XY)
    before, after = (parse_sharding(t) for t in ('<@mesh, [{"x"}, {}]>', '<@mesh, [{}, {"x"}]>'))
    steps = find_collectives(before, after, XY, (1024, 1024), prices=prices)
    assert [step.kind.value for step in steps] == ["all-to-all"]


@st.composite
def _triples(draw: st.DrawFn) -> tuple[Mesh, tuple[int, ...], Sharding, Sharding]:
    return reshard_triple(draw(st.integers(0, 1 << 30)))


@settings(max_examples=60, deadline=None)
@given(triple=_triples())
def test_every_device_ends_with_its_piece(
    triple: tuple[Mesh, tuple[int, ...], Sharding, Sharding],
) -> None:
    mesh, shape, before, after = triple
    steps = find_collectives(before, after, mesh, shape)
    assert [fault for step in steps for fault in check_collective(step, mesh)] == []
    whole = np.arange(np.prod(shape)).reshape(shape)
    found = carry_out(cut_whole(whole, before, mesh), steps, mesh)
    for piece, wanted in zip(found, cut_whole(whole, after, mesh), strict=True):
        assert np.array_equal(piece, wanted)


@settings(max_examples=40, deadline=None)
@given(triple=_triples(), through=st.integers(0, 1 << 30))
def test_a_stop_on_the_way_never_makes_a_reshard_cheaper(
    triple: tuple[Mesh, tuple[int, ...], Sharding, Sharding], through: int
) -> None:
    mesh, shape, before, after = triple
    middle = random_sharding(random.Random(through), mesh, shape)
    direct = _bytes(find_collectives(before, after, mesh, shape), mesh, shape)
    there = _bytes(find_collectives(before, middle, mesh, shape), mesh, shape)
    on = _bytes(find_collectives(middle, after, mesh, shape), mesh, shape)
    assert direct <= there + on


def _compare(seed: int) -> None:
    mesh, shape, before, after = reshard_triple(seed)
    steps = find_collectives(before, after, mesh, shape)
    case = f"seed {seed}: {mesh} {shape} {format_sharding(before)} -> {format_sharding(after)}"
    ours, theirs = _bytes(steps, mesh, shape), shardys_bytes(mesh, shape, before, after)
    assert ours <= theirs, case


def _run(seed: int) -> None:
    mesh, shape, before, after = reshard_triple(seed)
    steps = find_collectives(before, after, mesh, shape)
    whole: np.ndarray[Any, Any] = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    found = run_chain(whole, before, after, steps, mesh)
    assert np.array_equal(np.asarray(found), whole), seed
    pieces = cut_whole(whole, after, mesh)
    for shard in found.addressable_shards:
        assert np.array_equal(np.asarray(shard.data), pieces[shard.device.id]), seed


@pytest.mark.parametrize("seed", range(80))
def test_no_sequence_takes_more_bytes_than_shardys(seed: int) -> None:
    _compare(seed)


@pytest.mark.parametrize("seed", range(12))
def test_on_devices_the_sequence_leaves_the_right_data(seed: int) -> None:
    _run(seed)


@pytest.mark.slow
def test_a_thousand_triples_take_no_more_bytes_than_shardys_and_end_right() -> None:
    for seed in range(1000):
        _compare(seed)
        _run(seed)
