"""Every further workload planned on a 2 x 4 mesh: the plan fits, and runs as one device does."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from experiments.planned_run import PlannedRun, plan_and_compile, run_both
from experiments.workloads import FURTHER_WORKLOADS, get_workload

# Float32 sums taken in another order; Adam divides by small second moments, so the first steps
# turn rounding noise of zero gradients into steps of the size of the learning rate.
RELATIVE = 2e-4
ABSOLUTE = 2e-3
RESULT_RELATIVE = 2e-5

pytestmark = pytest.mark.slow


@functools.cache
def planned(name: str) -> PlannedRun:
    return plan_and_compile(get_workload(name), "data=2,model=4")


@pytest.mark.parametrize("name", FURTHER_WORKLOADS)
def test_the_plan_fits_and_every_boundary_is_as_planned(name: str) -> None:
    run = planned(name)
    assert run.plan.data.is_feasible
    assert run.wrong_boundaries == ()


@pytest.mark.parametrize("name", FURTHER_WORKLOADS)
def test_planned_and_unsharded_steps_agree(name: str) -> None:
    ours, alone = run_both(planned(name), steps=2)
    for mine, theirs in zip(ours[-2:], alone[-2:], strict=True):  # what the two steps gave
        np.testing.assert_allclose(mine, theirs, rtol=RESULT_RELATIVE, atol=RESULT_RELATIVE)
    for mine, theirs in zip(ours, alone, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=RELATIVE, atol=ABSOLUTE)
