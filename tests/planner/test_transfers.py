"""What a planned collective becomes: one for each level of a machine, sums for gathers."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.costing.costing import Costing, cost_model_for
from autoshard.layouts import Parts
from autoshard.reshard import StepKind
from cost_models import get_hardware
from tests.planner.graphs import Program, parts_of, plan, wishes_for

MIB = 2**20
TWO = "2x tpu-v5e:4x4"
OVER_BOTH = "s=2,x=4,y=4"


def costing_of(hardware: str, mesh: str) -> Costing:
    parts = parts_of(mesh)
    return Costing(cost_model_for(get_hardware(hardware), parts), parts)


def transfers(
    hardware: str, mesh: str, kind: str, parts: Parts, num_bytes: int = MIB
) -> list[tuple[str, str, int]]:
    """Kind, axes and how many pieces what is moved is one of."""
    found = costing_of(hardware, mesh).transfers(kind, parts, num_bytes)
    return [
        (one.kind, " ".join(f"{p.name}:({p.pre_size}){p.size}" for p in one.axes), one.pieces)
        for one in found
    ]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all-gather", [("all-gather", "s:(1)2", 16), ("all-gather", "x:(1)4 y:(1)4", 1)]),
        (
            "all-reduce",
            [
                ("reduce-scatter", "x:(1)4 y:(1)4", 1),
                ("all-reduce", "s:(1)2", 16),
                ("all-gather", "x:(1)4 y:(1)4", 1),
            ],
        ),
        ("all-to-all", [("all-to-all", "s:(1)2 x:(1)4 y:(1)4", 1)]),
        ("collective-permute", [("collective-permute", "s:(1)2 x:(1)4 y:(1)4", 1)]),
    ],
)
def test_over_two_slices_a_tpu_works_in_each_and_between_them(
    kind: str, expected: list[tuple[str, str, int]]
) -> None:
    assert transfers(TWO, OVER_BOTH, kind, (0, 1, 2)) == expected


@pytest.mark.parametrize("kind", ["all-gather", "all-reduce"])
def test_between_slices_alone_there_is_one_collective(kind: str) -> None:
    assert transfers(TWO, OVER_BOTH, kind, (0,)) == [(kind, "s:(1)2", 1)]


@pytest.mark.parametrize("kind", ["all-gather", "all-reduce", "reduce-scatter", "all-to-all"])
@pytest.mark.parametrize(("hardware", "parts"), [(TWO, (1, 2)), ("4x h100", (0, 1, 2))])
def test_within_a_slice_and_on_gpus_it_stays_as_it_is(
    hardware: str, parts: Parts, kind: str
) -> None:
    ((found, _, pieces),) = transfers(hardware, OVER_BOTH, kind, parts)
    assert (found, pieces) == (kind, 1)


def test_an_axis_over_two_slices_is_taken_apart() -> None:
    assert transfers(TWO, "x=32", "all-gather", (0,)) == [
        ("all-gather", "x:(1)2", 16),
        ("all-gather", "x:(2)16", 1),
    ]


@pytest.mark.parametrize(
    ("hardware", "mesh", "parts", "num_bytes", "kind"),
    [
        ("tpu-v5e", "x=8,y=8", (0, 1), 16 * MIB, "all-reduce"),
        ("tpu-v5e", "x=8,y=8", (0, 1), 20 * MIB, "all-gather"),
        ("tpu-v5e", "x=8,y=8", (1,), MIB, "all-gather"),
        ("tpu-v5e", "x=4,y=8", (0, 1), MIB, "all-gather"),
        ("tpu-v5e", "x=2,y=64", (1,), MIB, "all-gather"),
        ("tpu-v5p", "x=8,y=8", (0, 1), 1024 * MIB, "all-reduce"),
        ("tpu-v5p:2x4x4", "x=4,y=8", (0, 1), MIB, "all-gather"),
        ("8x h100", "x=8,y=8", (0, 1), MIB, "all-gather"),
    ],
)
def test_all_chips_of_a_large_slice_gather_by_a_sum(
    hardware: str, mesh: str, parts: Parts, num_bytes: int, kind: str
) -> None:
    ((found, _, _),) = transfers(hardware, mesh, "all-gather", parts, num_bytes)
    assert found == kind


def test_such_a_gather_costs_as_much_as_the_sum() -> None:
    costing = costing_of("tpu-v5e", "x=8,y=8")
    axes = costing.axis_parts((0, 1))
    amounts = np.array([1.0, 16.0, 17.0, 64.0]) * MIB
    took = costing.step_seconds(StepKind.ALL_GATHER, (0, 1), amounts)
    gathered = costing.model.all_gather_seconds(amounts, axes)
    summed = costing.model.all_reduce_seconds(amounts, axes)
    assert took.tolist() == [*summed[:2], *gathered[2:]]


@pytest.mark.parametrize(
    ("hardware", "parts", "is_copied"),
    [(TWO, (0, 1), True), (TWO, (0,), False), (TWO, (1, 2), False), ("4x h100", (0, 1), False)],
)
def test_what_is_gathered_between_slices_and_in_them_is_copied_into_order(
    hardware: str, parts: Parts, is_copied: bool
) -> None:
    costing = costing_of(hardware, OVER_BOTH)
    amounts = np.array([1.0, 16.0]) * MIB
    took = costing.step_seconds(StepKind.ALL_GATHER, parts, amounts)
    sent = costing.model.all_gather_seconds(amounts, costing.axis_parts(parts))
    copied = costing.copy_seconds(2.0 * amounts) if is_copied else np.zeros(2)
    assert took.tolist() == pytest.approx(sent + copied)


@pytest.mark.parametrize(
    ("hardware", "mesh", "narrowed"),
    [("tpu-v5e", "x=8", True), ("tpu-v5p", "x=64", False)],
)
def test_what_is_gathered_by_a_sum_travels_as_wide_as_it_lies(
    hardware: str, mesh: str, narrowed: bool
) -> None:
    program = Program()
    left, right = program.argument(64, 4095), program.argument(4095, 2**17)
    graph = program.graph(program.matmul(left, right))
    parts = parts_of(mesh)
    cut, rows, whole = (parts.to_sharding(layout) for layout in (((), (0,)), ((0,), ()), ((), ())))
    wishes = wishes_for(graph, {0: rows, 1: whole}, {0: cut})
    (moved,) = plan(graph, mesh, wishes, hardware=hardware).account.collectives
    assert moved.kind == ("all-gather" if narrowed else "all-reduce")
    assert moved.bytes_per_device == 64 * 4095 * (2 if narrowed else 4)
