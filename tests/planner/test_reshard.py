"""Reshards: single steps against what devices hold, tables as laws."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.candidates.candidate import CandidateMaker
from autoshard.costing.costing import Costing, cost_model_for
from autoshard.graph.rule import identity_rule
from autoshard.layouts import Layout, MeshParts, refines
from autoshard.reshard import (
    Resharder,
    ReshardTable,
    Step,
    StepKind,
    joins_columns,
    steps_among,
)
from autoshard.sharding import shard_slices
from cost_models import get_hardware
from tests.planner.graphs import parts_of

SHAPE = (16, 16)
MESHES = {
    "x=8": parts_of("x=8"),
    "x=2,y=4": parts_of("x=2,y=4"),
    "x=2,y=2,z=2": parts_of("x=2,y=2,z=2"),
    "x=8 in parts": parts_of("x=8", x=(2, 4)),
}
HARDWARE = ["cpu-host", "tpu-v5p", "h100"]


def layouts_of(parts: MeshParts, shape: tuple[int, ...] = SHAPE) -> tuple[Layout, ...]:
    found = CandidateMaker(parts).of_rule(identity_rule(shape))
    return tuple(dict.fromkeys(c.results[0] for c in found))


def table_of(
    parts: MeshParts,
    shape: tuple[int, ...] = SHAPE,
    bits: int = 32,
    hardware: str = "cpu-host",
) -> ReshardTable:
    costing = Costing(cost_model_for(get_hardware(hardware), parts), parts)
    return Resharder(parts, costing).table(layouts_of(parts, shape), shape, bits)


@pytest.mark.parametrize(
    ("start", "end", "steps"),
    [
        (((), ()), ((0,), ()), ["slice"]),
        (((0,), ()), ((), ()), ["all-gather"]),
        (((0, 1), ()), ((), ()), ["all-gather"]),
        (((0,), ()), ((), (0,)), ["all-to-all"]),
        (((0, 1), ()), ((), (0, 1)), ["all-to-all"]),
        (((0,), (1,)), ((0, 1), ()), ["all-to-all"]),
        (((0, 1), ()), ((1, 0), ()), ["collective-permute"]),
        (((0, 1), ()), ((1,), ()), ["collective-permute", "all-gather"]),
    ],
)
def test_the_cheapest_chain_is_the_one_a_person_would_take(
    start: Layout, end: Layout, steps: list[str]
) -> None:
    chain = table_of(MESHES["x=2,y=4"], (1024, 1024)).chain(start, end)
    assert [step.kind.value for step in chain] == steps


def test_a_reshard_to_the_same_layout_takes_no_step_and_no_time() -> None:
    table = table_of(MESHES["x=2,y=4"])
    assert all(table.chain(layout, layout) == () for layout in table.layouts)
    assert not np.diagonal(table.seconds).any()


def holdings(parts: MeshParts, layout: Layout) -> dict[int, set[tuple[int, int]]]:
    """Elements of a 16 x 16 tensor that each device holds."""
    slices = shard_slices(parts.to_sharding(layout), parts.mesh, SHAPE)
    return {
        device: {(i, j) for i in range(a.start, a.stop) for j in range(b.start, b.stop)}
        for device, (a, b) in slices.items()
    }


def coordinates(parts: MeshParts, device: int) -> tuple[int, ...]:
    """Place of a device along every part."""
    return tuple(int(c) for c in np.unravel_index(device, parts.sizes))


def group_of(parts: MeshParts, device: int, step: Step) -> list[int]:
    """Devices that differ from one along the step's parts at most."""
    own = coordinates(parts, device)
    return [
        other
        for other in range(prod(parts.sizes))
        if all(
            a == b or part in step.parts
            for part, (a, b) in enumerate(zip(own, coordinates(parts, other), strict=True))
        )
    ]


@pytest.mark.parametrize("mesh", MESHES)
def test_every_step_finds_its_data_within_its_group(mesh: str) -> None:
    parts = MESHES[mesh]
    layouts = layouts_of(parts)
    held = {layout: holdings(parts, layout) for layout in layouts}
    for step in steps_among(parts, layouts, SHAPE):
        before, after = held[step.before], held[step.after]
        for device, wanted in after.items():
            group = group_of(parts, device, step)
            at_hand = set().union(*(before[other] for other in group))
            if step.kind is StepKind.SLICE:
                assert wanted <= before[device]
            elif step.kind is StepKind.ALL_GATHER:
                assert wanted == at_hand
            elif step.kind is StepKind.ALL_TO_ALL:
                assert wanted <= at_hand
                assert len(wanted) == len(before[device])
            else:
                assert any(wanted == before[other] for other in group)


def test_cutting_further_is_one_slice_however_many_axes_and_dimensions() -> None:
    table = table_of(MESHES["x=2,y=2,z=2"])
    for start, end in product(table.layouts, repeat=2):
        if start != end and refines(end, start):
            (step,) = table.chain(start, end)
            assert step.kind is StepKind.SLICE


def test_any_exchange_of_equal_pieces_is_one_permutation() -> None:
    table = table_of(MESHES["x=2,y=2,z=2"], (1024, 1024))
    for start, end in [
        (((0, 1, 2), ()), ((1, 2, 0), ())),
        (((0,), (1,)), ((1,), (2,))),
        (((0, 1), ()), ((1, 2), ())),
        (((0, 1), (2,)), ((2, 0), (1,))),
    ]:
        (step,) = table.chain(start, end)
        assert step.kind is StepKind.PERMUTE


def test_writing_an_axis_as_three_never_makes_a_reshard_slower() -> None:
    one = table_of(MESHES["x=8"])
    three = table_of(MESHES["x=2,y=2,z=2"])
    fine = {(): (), (0,): (0, 1, 2)}
    for start, end in product(one.layouts, repeat=2):
        a, b = (tuple(fine[dim] for dim in layout) for layout in (start, end))
        seconds = one.seconds[one.index[start], one.index[end]]
        assert three.seconds[three.index[a], three.index[b]] <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("mesh", MESHES)
def test_going_through_a_third_layout_is_never_cheaper(mesh: str, hardware: str) -> None:
    seconds = table_of(MESHES[mesh], hardware=hardware).seconds
    through = (seconds[:, :, None] + seconds[None, :, :]).min(axis=1)
    assert np.all(seconds <= through * (1 + 1e-9))


@pytest.mark.parametrize("mesh", MESHES)
def test_there_is_a_way_from_every_layout_to_every_other_and_back(mesh: str) -> None:
    table = table_of(MESHES[mesh])
    assert np.isfinite(table.seconds).all()
    for start, end in product(table.layouts, repeat=2):
        for a, b in ((start, end), (end, start)):
            at = a
            for step in table.chain(a, b):
                assert step.before == at
                at = step.after
            assert at == b


@pytest.mark.parametrize("hardware", HARDWARE)
def test_a_chain_takes_as_long_as_its_steps(hardware: str) -> None:
    parts = MESHES["x=2,y=4"]
    table = table_of(parts, hardware=hardware)
    costing = Costing(cost_model_for(get_hardware(hardware), parts), parts)
    for (i, start), (j, end) in product(enumerate(table.layouts), repeat=2):
        total = 0.0
        for step in table.chain(start, end):
            gains = step.kind in (StepKind.ALL_GATHER, StepKind.SLICE)
            larger = step.after if gains else step.before
            pieces = parts.num_pieces(larger)
            num_bytes = np.array([prod(SHAPE) * 4 / pieces])
            total += float(costing.step_seconds(step.kind, step.parts, num_bytes)[0])
        assert table.seconds[i, j] == pytest.approx(total)


@settings(max_examples=20, deadline=None)
@given(
    rows=st.sampled_from([8, 16, 64]),
    factor=st.sampled_from([2, 4, 64]),
    hardware=st.sampled_from(HARDWARE),
)
def test_more_bytes_never_take_less_time(rows: int, factor: int, hardware: str) -> None:
    parts = MESHES["x=2,y=4"]
    few = table_of(parts, (rows, 16), 8, hardware)
    many = table_of(parts, (rows, 16), 8 * factor, hardware)
    assert few.layouts == many.layouts
    assert np.all(few.seconds <= many.seconds * (1 + 1e-9))


@given(mesh=st.sampled_from(sorted(MESHES)), data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_reshard_there_and_back_is_no_cheaper_than_staying(
    mesh: str, data: st.DataObject
) -> None:
    table = table_of(MESHES[mesh])
    start, end = (data.draw(st.integers(0, len(table.layouts) - 1)) for _ in range(2))
    assert table.seconds[start, end] + table.seconds[end, start] >= table.seconds[start, start]
    if start != end:
        assert table.seconds[start, end] > 0


def test_a_layout_out_of_reach_costs_infinity() -> None:
    parts = parts_of("x=2,y=4")
    costing = Costing(cost_model_for(get_hardware("cpu-host"), parts), parts)
    table = Resharder(parts, costing).table((((0,), ()), ((), (1,))), SHAPE, 32)
    assert np.isinf(table.seconds[0, 1])
    assert np.isinf(table.seconds[1, 0])


def test_equal_questions_share_one_table() -> None:
    parts = MESHES["x=2,y=4"]
    costing = Costing(cost_model_for(get_hardware("cpu-host"), parts), parts)
    resharder = Resharder(parts, costing)
    layouts = layouts_of(parts)
    assert resharder.table(layouts, SHAPE, 32) is resharder.table(layouts, SHAPE, 32)
    assert resharder.table(layouts, SHAPE, 16) is not resharder.table(layouts, SHAPE, 32)


@pytest.mark.parametrize(
    ("mesh", "start", "end", "is_joined"),
    [
        ("x=2,y=4", ((), (1,)), ((1,), ()), True),  # four pieces
        ("x=2,y=4", ((), (0, 1)), ((1,), ()), True),  # and the two of another axis gathered
        ("x=2,y=4", ((1,), ()), ((), (1,)), False),  # columns for rows
        ("x=2,y=4", ((), (1,)), ((), ()), False),  # a gather
        ("x=8", ((), (0,)), ((0,), ()), False),  # eight fill the rows of a tile
        ("x=16", ((), (0,)), ((0,), ()), True),
    ],
)
def test_rows_exchanged_for_columns_arrive_out_of_order_but_in_eight_pieces(
    mesh: str, start: Layout, end: Layout, is_joined: bool
) -> None:
    parts, shape = parts_of(mesh), (256, 256)
    found = table_of(parts, shape)
    joined = joins_columns(found, parts, shape)
    assert joined[found.index[start], found.index[end]] == is_joined
