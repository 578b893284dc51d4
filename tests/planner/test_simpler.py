"""Plans that are easier to review."""

from __future__ import annotations

import pytest

import autoshard
from autoshard.errors import InputError
from autoshard.planning.simpler import num_reshards
from experiments.workloads.registry import SMALL_WORKLOADS

PRESET = SMALL_WORKLOADS["embedding"]
WORKLOAD = PRESET.build("embedding", PRESET.config)


def planned(simplicity: float | None, relative_gap: float = 0.01) -> autoshard.Plan:
    return autoshard.optimize(
        WORKLOAD.step,
        WORKLOAD.state,
        WORKLOAD.batch,
        mesh="data=2,model=4",
        hardware="cpu-host",
        donate_argnums=0,
        baselines=False,
        simplicity=simplicity,
        relative_gap=relative_gap,
    )


@pytest.fixture(scope="module")
def fastest() -> autoshard.Plan:
    return planned(0)


def test_a_simpler_plan_has_fewer_constraints_and_gives_up_no_more_than_was_allowed(
    fastest: autoshard.Plan,
) -> None:
    simpler = planned(0.02)
    assert len(simpler.data.wanted_uses) < len(fastest.data.wanted_uses)
    assert fastest.data.priced_seconds < simpler.data.priced_seconds
    assert simpler.data.priced_seconds <= 1.02 * fastest.data.priced_seconds
    assert simpler.data.solver.bound_seconds == fastest.data.solver.bound_seconds


def test_by_default_the_plan_stays_within_the_gap(fastest: autoshard.Plan) -> None:
    usual = planned(None)
    assert usual.data.solver.gap <= 0.01
    assert usual.solution is not None
    assert fastest.solution is not None
    assert num_reshards(usual.solution) <= num_reshards(fastest.solution)


def test_who_asks_for_the_best_plan_gets_it(fastest: autoshard.Plan) -> None:
    assert planned(None, relative_gap=0.0).data.priced_seconds == fastest.data.priced_seconds


def test_a_negative_simplicity_is_no_amount() -> None:
    with pytest.raises(InputError, match="simplicity is -1, which is no amount"):
        planned(-1)
