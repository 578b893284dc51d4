"""Residuals that users ask for in host memory."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.errors import ConstraintError, InputError
from autoshard.plans.plan_diff import diff_plans
from tests.end_to_end.test_remat import MESH, ROWS, named, planned, results
from tests.remat.programs import arguments, scanned, unrolled


def test_what_users_ask_to_offload_lies_in_host_memory_and_changes_no_number(
    tmp_path: Path,
) -> None:
    step = scanned(named)
    plan, kept = (
        planned(step, memory_budget=None, hardware="tpu-v5e", constraints=asked)
        for asked in (autoshard.Offload("hidden"), autoshard.Keep("hidden"))
    )
    assert plan.data.residuals is not None
    (hidden,) = (one for one in plan.data.residuals.residuals if one.what == "hidden")
    assert hidden.is_offloaded
    assert plan.data.memory.host_bytes == hidden.local_bytes
    assert plan.data.waiting_seconds > 0
    assert "waiting for the host" in plan.report()
    assert "offloads 1 (" in plan.report()
    assert "on the host" in plan.report()
    assert any("offloaded: " in note for note in plan.why("name:hidden").notes)
    assert 'names_which_can_be_offloaded=["hidden"]' in plan.checkpoint_policy()
    changes = {
        one.name.partition(" ")[0]: (one.before, one.after)
        for one in diff_plans(kept.data, plan.data).residuals
    }
    assert changes["hidden"] == ("kept", "on the host")
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.load_plan(tmp_path / "plan.json", step, *arguments(ROWS))
    assert loaded.data.residuals == plan.data.residuals
    expected = results(jax.jit(step))
    for run in (plan.wrap(), loaded.wrap()):
        for before, after in zip(expected, results(run), strict=True):
            np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-6)


def test_a_stack_in_host_memory_takes_none_of_the_device() -> None:
    state, _, key = arguments()
    batch = jax.ShapeDtypeStruct((2**21, 16), jnp.float32)
    plan, kept = (
        autoshard.optimize(
            scanned(named), state, batch, key, mesh=MESH, hardware="tpu-v5e", constraints=asked
        )
        for asked in (autoshard.Offload("hidden"), autoshard.Keep("hidden"))
    )
    assert plan.data.memory.host_bytes > 0
    held = [[one.type_text for one in of.data.memory.held] for of in (plan, kept)]
    stacked = f"f32[4, {2**21}, 32]"
    assert held[0].count(stacked) < held[1].count(stacked)
    assert plan.data.memory.peak_bytes < kept.data.memory.peak_bytes


def test_a_machine_without_host_memory_offers_no_offload() -> None:
    with pytest.raises(InputError, match="cpu-host is described without host memory"):
        planned(scanned(named), memory_budget=None, constraints=autoshard.Offload("hidden"))


def test_what_no_scan_stacks_is_not_offloaded() -> None:
    with pytest.raises(ConstraintError, match=r"hidden at .* cannot be offloaded"):
        planned(
            unrolled(named),
            memory_budget=None,
            hardware="tpu-v5e",
            constraints=autoshard.Offload("hidden"),
        )
