"""What the summary of compiled plans counts: bands, ranks, best plans."""

from __future__ import annotations

import math
from typing import Any

import pytest

from experiments.bench_compiled import MESHES, PLANS, TOPOLOGY, row_of
from experiments.compiled_order import best_first
from experiments.compiled_page import page_text
from experiments.compiled_point import CompiledPoint
from experiments.compiled_summary import (
    ALL_CHIPS,
    best_against_best,
    counted,
    difference,
    geometric_mean,
    misses,
    optimized_over_hand,
    optimized_over_written,
    rank_correlations,
    share_within,
)
from experiments.evaluation import CELLS, HARDWARE, SIZES
from experiments.workloads import get_workload


def row(plan: str, predicted: float, compiled: float, **figures: Any) -> dict[str, Any]:
    return {
        "workload": "mlp",
        "mesh": "data=8",
        "chip": "v5e",
        "plan": plan,
        "windowed": False,
        "status": "compiled",
        "commit": "abc1234",
        "predicted_seconds": predicted,
        "compiled_seconds": compiled,
        "predicted_bytes": 0.0,
        "compiled_bytes": 0.0,
        "largest_misses": [],
        **figures,
    }


ROWS = [
    row("optimized", 1.0, 10.0, predicted_bytes=104.0, compiled_bytes=100.0),
    row("fsdp", 2.0, 9.0, predicted_bytes=80.0, compiled_bytes=100.0),
    row("replicated", 3.0, 30.0),
    row("megatron", 4.0, 8.0, fits=False, predicted_bytes=1.0),
]


def test_a_difference_is_predicted_over_compiled_less_one() -> None:
    assert difference(ROWS[0], "bytes") == pytest.approx(0.04)
    assert difference(ROWS[2], "bytes") == 0.0
    assert difference(ROWS[3], "bytes") == math.inf
    assert difference(ROWS[0], "memory") is None


def test_bands_count_those_within_and_misses_those_beyond() -> None:
    assert share_within(ROWS, "bytes", 0.06) == (2, 4)
    assert [found["plan"] for found in misses(ROWS, "bytes", 0.06)] == ["megatron", "fsdp"]
    assert counted((2, 4)) == "2 of 4 (50 %)"
    assert counted((0, 0)) == "none"


def test_ranks_are_correlated_within_a_model() -> None:
    assert rank_correlations(ROWS, "compiled_seconds") == {("mlp", "v5e"): pytest.approx(-0.4)}
    assert rank_correlations(ROWS[:2], "compiled_seconds") == {}
    elsewhere = [{**found, "chip": "v5p"} for found in ROWS[:2]]
    both = rank_correlations([*ROWS, *elsewhere], "compiled_seconds")
    assert set(both) == {("mlp", "v5e"), ("mlp", ALL_CHIPS)}


def test_what_is_compiled_overlapped_is_held_against_what_is_predicted_so() -> None:
    rows = [
        {**found, "overlapped_seconds": seconds, "predicted_overlapped": seconds - 5.0}
        for found, seconds in zip(ROWS, (8.0, 9.0, 7.0, 6.0), strict=True)
    ]
    assert rank_correlations(rows, "overlapped_seconds") == {("mlp", "v5e"): pytest.approx(1.0)}
    (best,) = best_against_best(rows, "overlapped_seconds")
    assert (best["predicted best"], best["compiled best"]) == ("megatron", "megatron")
    assert rank_correlations(ROWS, "overlapped_seconds") == {}


def test_best_plans_are_compared_by_what_was_compiled() -> None:
    (best,) = best_against_best(ROWS, "compiled_seconds")
    assert (best["predicted best"], best["compiled best"]) == ("optimized", "megatron")
    assert best["ratio"] == 10 / 8
    (ours,) = optimized_over_hand(ROWS, "compiled_seconds")
    assert (ours["best by hand"], ours["ratio"]) == ("fsdp", 10 / 9)  # megatron does not fit
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def way(pins: bool, seconds: float, *, fits: bool = True) -> dict[str, Any]:
    return {
        "pins": pins,
        "status": "compiled",
        "compiled_bytes": 1e6,
        "compiled_memory": 2e6,
        "compiled_seconds": seconds,
        "overlapped_seconds": seconds,
        "fits": fits,
    }


def test_the_best_plan_as_written_is_one_that_fits_pinned_or_not() -> None:
    written = {"as_written": [way(False, 40.0), way(True, 20.0), way(False, 1.0, fits=False)]}
    crashed = {"as_written": [{"pins": False, "status": "crashed", "fits": False}]}
    rows = [ROWS[0], {**ROWS[1], **written}, {**ROWS[2], **crashed}]
    (found,) = optimized_over_written(rows, "compiled_seconds")
    assert (found["best as written"], found["ratio"]) == ("fsdp, pinned", 10 / 20)
    assert optimized_over_written(ROWS, "compiled_seconds") == []
    text = page_text(rows, None)
    assert "as written: geometric mean 0.500, worst 0.500, over 1." in text
    assert "| mlp | data=8 | v5e | replicated | no | crashed | no |" in text
    assert optimized_over_written([{**ROWS[0], "fits": False}, *rows[1:]], "compiled_seconds") == []


def test_the_page_tells_of_misses_and_of_what_did_not_compile() -> None:
    failed = {**row("data_parallel", 1, 1), "status": "crashed"}
    del failed["compiled_bytes"]
    text = page_text([*ROWS, failed], None)
    assert "4 plans compiled, 1 not." in text
    assert "Measured at: abc1234 for v5e." in text
    assert "| bytes within 5 % | 2 of 4 (50 %) | 2 of 4 (50 %) |" in text
    assert "| mlp | data=8 | v5e | data_parallel | crashed |" in text


def test_what_is_written_by_hand_fits_or_not_as_the_plan_itself() -> None:
    point = CompiledPoint(
        workload="mlp",
        mesh="data=8",
        topology="v5e:2x4",
        hardware="tpu-v5e",
        plan="fsdp",
        windowed_einsum=False,
    )
    ways = [{"pins": False, "compiled_memory": 10**6}, {"pins": True, "compiled_memory": 10**12}]
    found = row_of(point, {"compiled_memory": 10**6, "as_written": [*ways, {"pins": True}]})
    assert found["fits"]
    assert [one["fits"] for one in found["as_written"]] == [True, False, False]


def test_every_size_is_one_of_its_model_and_every_mesh_has_its_topologies() -> None:
    assert len(SIZES) >= 12
    for name, sizes in SIZES.items():
        assert get_workload(name, **sizes).name == name
    for chip, mesh in CELLS:
        sizes_of_mesh = [int(axis.partition("=")[2]) for axis in MESHES[mesh].split(",")]
        assert (chip, math.prod(sizes_of_mesh)) in TOPOLOGY
        assert chip in HARDWARE


def every_point() -> list[CompiledPoint]:
    return [
        CompiledPoint(
            workload=workload,
            mesh=mesh,
            topology="",
            hardware=hardware,
            plan=plan,
            windowed_einsum=False,
        )
        for mesh in MESHES.values()
        for hardware in HARDWARE.values()
        for workload in SIZES
        for plan in PLANS
    ]


def test_the_order_of_points_leaves_none_out() -> None:
    points = every_point()
    ordered = best_first(points)
    assert sorted(p.key for p in ordered) == sorted(p.key for p in points)
    assert best_first(reversed(ordered)) != best_first(points)  # of equals, the first given


@pytest.mark.parametrize("count", [8, 16, 24, 48])
def test_a_run_that_is_cut_short_has_covered_all_evenly(count: int) -> None:
    measured = best_first(every_point())[:count]
    for what, all_of in (("workload", SIZES), ("mesh", MESHES), ("hardware", HARDWARE)):
        seen = [getattr(point, what) for point in measured]
        counts = [seen.count(one) for one in (MESHES.values() if what == "mesh" else set(seen))]
        assert max(counts) - min(counts) <= 8
        assert len(set(seen)) == min(len(all_of), count // 4)


def test_what_is_compared_is_measured_together() -> None:
    ordered = best_first(every_point())
    for cell in (ordered[at : at + 4] for at in range(0, 32, 4)):
        assert sorted(p.plan for p in cell) == ["data_parallel", "fsdp", "megatron", "optimized"]
        assert len({(point.workload, point.mesh, point.hardware) for point in cell}) == 1


def test_a_tight_plan_says_whether_it_fits_and_is_compared_with_no_other() -> None:
    memory = {"predicted_memory": 9e6, "compiled_memory": 9.9e6, "budget": 9.5e6, "fits": False}
    rows = [*ROWS, row("tight", 0.5, 0.5, **memory)]
    assert best_against_best(rows, "compiled_seconds") == best_against_best(
        ROWS, "compiled_seconds"
    )
    text = page_text(rows, None)
    assert "0 of 1 fit when compiled." in text
    assert "| mlp | data=8 | v5e | tight | 9.5 | 9.0 | 9.9 | no |" in text
