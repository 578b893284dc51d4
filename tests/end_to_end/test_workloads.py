"""Real training steps: planned, compiled and run on 8 CPU devices beside one device."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from experiments.planned_run import PlannedRun, plan_and_compile, run_both
from experiments.workloads import SMALL_WORKLOADS, get_workload

MESHES = ("data=2,model=4", "data=8", "data=2,fsdp=2,model=2")
QUICK = {(name, MESHES[0]) for name in SMALL_WORKLOADS if name != "llama"} | {
    ("mlp", mesh) for mesh in MESHES
}
CASES = [
    pytest.param(name, mesh, marks=[] if (name, mesh) in QUICK else [pytest.mark.slow])
    for mesh in MESHES
    for name in SMALL_WORKLOADS
]

# Float32 sums taken in another order; Adam divides by small second moments, so the first steps
# turn rounding noise of zero gradients into steps of the size of the learning rate.
RELATIVE = 2e-4
ABSOLUTE = 2e-3
LOSS_RELATIVE = 2e-5

# Two LSTM layers on three axes: the relaxation is not tight there, and the time limit ends the
# search at 3.8 %.
GAP_BY_CASE = {("rnn", "data=2,fsdp=2,model=2"): 0.05}

COLLECTIVE_BAND_PERCENT = 10.0
MEMORY_BAND = 0.15
# Known miss: a tensor whose last reader takes a piece of it is counted whole until then, where the
# compiler takes the piece at once; with less than a megabyte of state that is much of the peak.
MEMORY_BAND_BY_CASE = {
    ("gnn", "data=8"): 0.18,
    ("gnn", "data=2,model=4"): 0.18,
    ("gnn", "data=2,fsdp=2,model=2"): 0.18,
}


@functools.cache
def planned(name: str, mesh: str) -> PlannedRun:
    return plan_and_compile(get_workload(name), mesh)


@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_planned_and_unsharded_training_agree(name: str, mesh: str) -> None:
    ours, alone = run_both(planned(name, mesh), steps=2)
    for mine, theirs in zip(ours[-2:], alone[-2:], strict=True):  # the two losses
        np.testing.assert_allclose(mine, theirs, rtol=LOSS_RELATIVE)
    for mine, theirs in zip(ours, alone, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=RELATIVE, atol=ABSOLUTE)


@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_every_argument_and_result_is_sharded_as_planned(name: str, mesh: str) -> None:
    assert planned(name, mesh).wrong_boundaries == ()


@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_compiled_collectives_are_those_the_plan_lists(name: str, mesh: str) -> None:
    comparison = planned(name, mesh).comparison
    different = [
        f"{row.kind} over {row.axes}: {row.predicted_bytes:.0f} planned, "
        f"{row.compiled_bytes:.0f} compiled, for {row.predicted_ops} and {row.compiled_ops}"
        for row in comparison.rows
        if row.predicted_bytes != row.compiled_bytes
    ]
    assert abs(comparison.difference_percent) <= COLLECTIVE_BAND_PERCENT, different


@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_peak_memory_is_predicted_within_the_band(name: str, mesh: str) -> None:
    band = MEMORY_BAND_BY_CASE.get((name, mesh), MEMORY_BAND)
    assert abs(planned(name, mesh).memory_error) <= band


@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_the_plan_is_proven_within_the_gap_asked_for(name: str, mesh: str) -> None:
    solver = planned(name, mesh).plan.data.solver
    assert solver.gap <= GAP_BY_CASE.get((name, mesh), 0.01)
