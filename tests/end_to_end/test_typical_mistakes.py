"""What a new user meets first: whole messages, and what is taken as it is meant."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.commands.accelerators import use_host_where_nothing_else
from autoshard.errors import InputError
from autoshard.plans.plan_diff import diff_plans

PARAMS = {"w": np.ones((32, 64), np.float32), "v": np.ones((64, 32), np.float32)}
X = np.ones((16, 32), np.float32)


def step(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"]) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def planned(fn: Any = step, *args: Any, mesh: str = "data=2,model=4") -> autoshard.Plan:
    return autoshard.optimize(
        fn,
        *(args or (PARAMS, X)),
        mesh=mesh,
        hardware="cpu-host",
        baselines=False,
        donate_argnums=0 if fn is step else (),
    )


@pytest.mark.parametrize(
    ("tree", "argument", "expected"),
    [
        (
            {**PARAMS, "w": np.ones((3, 64))},
            0,
            "`tree['w']` has shape (3, 64), and the plan is for shape (32, 64)\n"
            "  where: plan for step\n"
            "  fix: pass the arrays of the argument that was planned, or plan for these",
        ),
        (
            {"w": PARAMS["w"]},
            0,
            "`tree['v']` is not in the tree\n"
            "  where: plan for step\n"
            "  fix: pass a tree like the argument, and its number: plan.shard(tree, argument=1)",
        ),
        (
            X,
            0,
            "`tree['v']` is not in the tree\n"
            "  where: plan for step\n"
            "  fix: pass a tree like the argument, and its number: plan.shard(tree, argument=1)",
        ),
        (
            X[:4],
            1,
            "`tree` has shape (4, 32), and the plan is for shape (16, 32)\n"
            "  where: plan for step\n"
            "  fix: pass the arrays of the argument that was planned, or plan for these",
        ),
    ],
    ids=["wrong shape", "missing", "another argument", "another batch"],
)
def test_arrays_other_than_planned_are_not_placed(tree: Any, argument: int, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        planned().shard(tree, argument)
    assert str(caught.value) == expected


def test_donation_that_an_outer_jit_loses_is_told() -> None:
    plan = planned()
    told = re.escape(
        "`step` donates arguments (0,) and is called inside another jax.jit, where JAX gives up no"
        " buffer: donate them there, and call plan.wrap()"
    )
    with pytest.warns(UserWarning, match=f"^{told}$"):
        jax.jit(plan.jit())(plan.shard(PARAMS), X)
    state = plan.shard(PARAMS)
    jax.jit(plan.wrap(), donate_argnums=0)(state, X)  # as told: no warning, which is an error here
    assert state["w"].is_deleted()


def test_a_plan_for_cpus_says_nothing_of_lowering_for_tpus() -> None:
    plan = planned(lambda a: jnp.abs(jnp.linalg.eigvals(a)), np.ones((8, 4, 4), np.float32))
    assert plan.data.notes == ()


def test_plans_on_two_meshes_are_of_one_program() -> None:
    def masked(x: Any) -> Any:
        return jnp.where(x > 0, x, jnp.zeros_like(x)) + jnp.full_like(x, 2.0)

    changes = diff_plans(planned(masked, X).data, planned(masked, X, mesh="data=8").data).program
    assert [change.name for change in changes] == ["mesh"]


def test_a_plan_that_misses_its_budget_says_by_how_much() -> None:
    plan = autoshard.optimize(
        step, PARAMS, X, mesh="data=8", hardware="cpu-host", memory_budget=3000, baselines=False
    )
    with pytest.raises(autoshard.PlanError) as caught:
        plan.jit()
    peak = plan.data.memory
    assert caught.value.what == (
        f"no plan to apply (infeasible); the least peak found, {peak.peak_bytes:,} bytes at"
        f" {peak.peak_where}, exceeds the budget of 3,000 by {peak.peak_bytes - 3000:,}"
    )


def test_commands_look_for_no_accelerator_where_there_is_none(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    use_host_where_nothing_else(environment, tmp_path)
    assert environment == {"JAX_PLATFORMS": "cpu"}
    given = {"JAX_PLATFORMS": "tpu"}
    use_host_where_nothing_else(given, tmp_path)
    assert given == {"JAX_PLATFORMS": "tpu"}
    (tmp_path / "accel0").touch()
    with_chip: dict[str, str] = {}
    use_host_where_nothing_else(with_chip, tmp_path)
    assert with_chip == {}


def test_commands_look_for_accelerators_before_they_import_jax() -> None:
    code = (
        "import sys; from autoshard import cli\n"
        "cli.use_host_where_nothing_else = lambda: print('jax' in sys.modules)\n"
        "cli.main(['plan', '--help'])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[0] == "False"


def test_the_compiler_logs_nothing_where_autoshard_is_imported_before_jax() -> None:
    code = "from autoshard import optimize; import jax; jax.devices()"  # 10 lines of PjRt before
    environment = {
        name: text for name, text in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"
    }
    shown = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert shown.stderr == ""
