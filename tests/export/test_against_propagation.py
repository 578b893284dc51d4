from __future__ import annotations

from typing import Any

import jax
import pytest

import autoshard
from autoshard.report.propagation_text import format_comparison
from tests.export.programs import train_arguments, train_step

MESH = "x=2,y=4"


@pytest.fixture(scope="module")
def plan() -> autoshard.Plan:
    return autoshard.optimize(
        train_step, *train_arguments(), mesh=MESH, hardware="tpu-v5e", baselines=False
    )


def test_every_difference_is_one(plan: autoshard.Plan) -> None:
    found = plan.against_propagation()
    assert found.num_differences > 0
    for decision in found.decisions:
        for difference in decision.differences:
            assert difference.planned == plan.data.values[difference.path]
            assert [d.axes for d in difference.planned.dims] != [
                d.axes for d in difference.propagated.dims
            ]


def test_a_value_follows_the_constraint_it_is_put_down_to(plan: autoshard.Plan) -> None:
    found = plan.against_propagation()
    assert {decision.path for decision in found.decisions} <= set(plan.constraints)


def test_propagation_alone_is_never_predicted_faster_than_an_optimal_plan(
    plan: autoshard.Plan,
) -> None:
    found = plan.against_propagation("program")
    assert plan.data.solver.status in ("optimal", "within gap")
    assert found.saved_seconds is not None
    assert found.saved_seconds >= -plan.data.seconds * plan.data.solver.gap


def test_a_plan_that_follows_propagation_has_no_differences() -> None:
    def double(x: Any) -> Any:
        return x * 2

    one = autoshard.optimize(
        double, jax.ShapeDtypeStruct((64, 64), "float32"), mesh=MESH, hardware="cpu-host"
    )
    found = one.against_propagation()
    assert (found.num_differences, found.saved_seconds) == (0, 0.0)
    assert format_comparison(found).splitlines()[0] == (
        "Shardy's propagation alone, from the plan's arguments and results: 0 of"
        f" {found.num_values} values lie elsewhere"
    )


def test_other_inputs_are_refused(plan: autoshard.Plan) -> None:
    with pytest.raises(autoshard.InputError) as error:
        plan.against_propagation("nothing")
    assert str(error.value) == (
        "propagation cannot start from 'nothing'\n"
        "  where: inputs='nothing'\n"
        "  fix: use one of plan, program"
    )
