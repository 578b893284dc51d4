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


def test_a_state_that_was_donated_is_not_passed_again() -> None:
    plan = planned()
    state, run = plan.shard(PARAMS), plan.jit()
    run(state, X)
    with pytest.raises(InputError) as caught:  # jaxlib 0.10.2 ends the process
        run(state, X)
    assert str(caught.value) == (
        "`params['v']` was donated to an earlier call, and its buffer is gone\n"
        "  where: `step`\n"
        "  fix: go on with what the call returns, as in state = step(state, batch); to keep the"
        " argument, plan without donating it"
    )


def test_an_array_that_lies_otherwise_than_planned_is_named() -> None:
    plan = planned(lambda x: x + 1, X)
    devices = jax.make_mesh((8,), ("all",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.P("all", None) if plan.in_shardings[0].spec == jax.P() else jax.P()
    x = jax.device_put(X, jax.NamedSharding(devices, spec))
    with pytest.raises(InputError) as caught:
        plan.jit()(x)
    assert str(caught.value) == (
        f"`x` lies on the devices as {spec}, and is planned as {plan.in_shardings[0].spec}\n"
        "  where: `<lambda>`\n"
        "  fix: place it as planned, plan.shard(tree, argument), or let calls move arguments:"
        " plan.jit(moves_arguments=True)"
    )
    np.testing.assert_array_equal(plan.jit(moves_arguments=True)(x), X + 1)


def scaled(params: Any, x: Any, times: int) -> Any:
    return jax.tree.map(lambda one: one + times * x.sum(), params)


def test_what_a_jitted_function_donates_and_holds_static_is_planned_so() -> None:
    jitted = jax.jit(scaled, donate_argnums=0, static_argnums=2)
    asked: dict[str, Any] = {"mesh": "data=8", "hardware": "cpu-host", "baselines": False}
    plan = autoshard.optimize(jitted, PARAMS, X, 3, **asked)
    assert (plan.donate_argnums, plan.static_argnums) == ((0,), (2,))
    state = plan.shard(PARAMS)
    made = plan.jit()(state, X, 3)
    np.testing.assert_allclose(made["w"], PARAMS["w"] + 3 * X.sum())
    assert state["w"].is_deleted()
    by_call = autoshard.jit(jitted, **asked)
    np.testing.assert_allclose(by_call(PARAMS, X, 3)["w"], made["w"])
    assert by_call.plans[0].donate_argnums == (0,)
    other = autoshard.optimize(jitted, PARAMS, X, 3, donate_argnums=1, **asked)
    assert other.donate_argnums == (1,)


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
