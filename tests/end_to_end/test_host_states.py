"""Steps whose states lie in host memory between steps, because nothing else fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard import Offload, Recompute
from autoshard.errors import ConstraintError

LAYERS, WIDTH, HIDDEN = 2, 512, 2048
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))


def loss(params: Any, batch: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        return x + jnp.tanh(x @ w["up"]) @ w["down"], None

    x, _ = jax.lax.scan(jax.checkpoint(layer), batch, params["layers"])
    return jnp.mean((x @ params["head"]) ** 2)


def train_step(params: Any, state: Any, batch: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(params, batch)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def start() -> tuple[Any, Any, Any]:
    """Parameters, states of the optimizer, a batch; the same at each call."""
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "layers": {
            "up": 0.1 * jax.random.normal(keys[0], (LAYERS, WIDTH, HIDDEN)),
            "down": 0.1 * jax.random.normal(keys[1], (LAYERS, HIDDEN, WIDTH)),
        },
        "head": jax.random.normal(keys[2], (WIDTH, HIDDEN)),
    }
    return params, OPTIMIZER.init(params), jax.random.normal(keys[3], (16, WIDTH))


STATE_BYTES = 2 * 2 * 4 * LAYERS * WIDTH * HIDDEN // 8
"""Moments of the layers, a device's share."""


def planned(**more: Any) -> autoshard.Plan:
    return autoshard.optimize(
        train_step,
        *jax.eval_shape(start),
        mesh=jax.make_mesh((8,), ("model",)),
        hardware="tpu-v5e",
        donate_argnums=(0, 1),
        baselines=False,
        **more,
    )


@pytest.fixture(scope="module")
def tight() -> autoshard.Plan:
    free = planned(remat="keep")
    assert free.data.memory.argument_bytes > STATE_BYTES
    return planned(memory_budget=free.data.memory.argument_bytes - STATE_BYTES // 16)


def moments(data: Any, *, on_host: bool) -> list[str]:
    return [t.name for t in data.arguments if t.is_on_host == on_host and "u['" in t.name]


def test_states_go_to_the_host_where_nothing_else_fits(tight: autoshard.Plan) -> None:
    data = tight.data
    assert data.is_feasible
    assert data.memory.peak_bytes <= (data.memory_budget or 0)
    assert data.offloaded is not None
    assert set(data.offloaded.names) == set(moments(data, on_host=True))
    assert 1 <= len(data.offloaded.updates) < data.offloaded.num_candidates  # no more than needed
    assert data.memory.host_bytes == data.offloaded.local_bytes
    assert data.waiting_seconds == pytest.approx(data.offloaded.seconds)
    assert "on the host" in tight.report()


def test_numbers_are_those_of_the_function_in_every_step(tight: autoshard.Plan) -> None:
    step, plain = tight.jit(), jax.jit(train_step)
    params, state, batch = start()
    ours = tuple(tight.shard(one, place) for place, one in enumerate(start()))
    for tolerance in (1e-5, 1e-3):  # in the second step rounding has grown
        params, state, value = plain(params, state, batch)
        new_params, new_state, found = step(*ours)
        ours = new_params, new_state, ours[2]
        np.testing.assert_allclose(found, value, rtol=tolerance)
        pairs = zip(jax.tree.leaves(ours[1]), jax.tree.leaves(state), strict=True)
        for one, other in pairs:
            scale = float(jnp.max(jnp.abs(other)))
            np.testing.assert_allclose(one, other, atol=100 * tolerance * scale)
    kinds = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(ours[1]) if leaf.ndim}
    assert "pinned_host" in kinds


def test_a_saved_plan_keeps_them_there(tight: autoshard.Plan, tmp_path: Path) -> None:
    tight.save(tmp_path / "plan.json")
    again = autoshard.load_plan(tmp_path / "plan.json", train_step)
    assert again.data.offloaded == tight.data.offloaded
    arguments = start()
    expected = jax.jit(train_step)(*arguments)[2]
    found = again.jit(moves_arguments=True)(*start())[2]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_module_and_the_code_tell_the_memory(tight: autoshard.Plan) -> None:
    assert 'mhlo.memory_kind = "pinned_host"' in tight.stablehlo()
    assert "memory_kind='pinned_host'" in tight.code()
    assert "cannot compute on arguments in host memory" in tight.code()
    name = moments(tight.data, on_host=True)[0]
    why = tight.why(name, num_alternatives=0)
    assert any("in host memory" in note for note in why.notes)
    assert all(one.extra_seconds < 1.0 for one in why.estimates)  # nothing moves on the host


def test_an_array_on_the_device_is_refused_by_its_memory(tight: autoshard.Plan) -> None:
    params, state, batch = (tight.shard(one, place) for place, one in enumerate(start()))
    state = jax.tree.map(
        lambda leaf: jax.device_put(leaf, leaf.sharding.with_memory_kind("device")), state
    )
    with pytest.raises(autoshard.InputError, match="pinned_host"):
        tight.jit()(params, state, batch)


def test_what_is_asked_lies_there_without_need() -> None:
    plan = planned(constraints=[Offload("state**['up']")])
    assert plan.data.offloaded is not None
    assert len(plan.data.offloaded.names) == 2
    assert all("'up'" in name for name in plan.data.offloaded.names)


def test_what_is_asked_is_told_with_what_stays() -> None:
    plan = planned(constraints=[Offload("state**")], remat="keep")
    assert plan.data.offloaded is not None
    row = next(row for row in plan.data.asked if "offload" in row.text)
    assert {f"in.{place}" for place in plan.data.offloaded.updates[0].arguments} <= {*row.paths}
    assert any("`state[1][0].count`" in note and "host" in note for note in plan.data.notes)


def test_what_more_reads_cannot_lie_there() -> None:
    with pytest.raises(ConstraintError, match=r"\['head'\]` cannot lie .* more reads it"):
        planned(constraints=[Offload("params['head']")])


@pytest.fixture(scope="module")
def parameters_there() -> autoshard.Plan:
    """Without need, those of the layers, and what is updated with them."""
    return planned(constraints=[Offload("params['layers']**")])


def test_parameters_of_layers_lie_there_with_their_states(parameters_there: autoshard.Plan) -> None:
    data = parameters_there.data
    assert data.offloaded is not None
    assert {name for name in data.offloaded.names if name.startswith("params")} == {
        "params['layers']['down']",
        "params['layers']['up']",
    }
    assert len(data.offloaded.names) == 6
    assert data.memory.host_bytes == data.offloaded.local_bytes == 3 * STATE_BYTES // 2
    assert data.waiting_seconds >= data.offloaded.seconds  # both passes read them, too
    expected = jax.jit(train_step)(*start())
    found = parameters_there.jit(moves_arguments=True)(*start())
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-5)
    kinds = jax.tree.map(lambda leaf: leaf.sharding.memory_kind, found[0])
    assert kinds == {"layers": {"down": "pinned_host", "up": "pinned_host"}, "head": "device"}
    again = parameters_there.jit()(*found[:2], parameters_there.shard(start()[2], 2))
    plain = jax.jit(train_step)(*expected[:2], start()[2])
    np.testing.assert_allclose(again[2], plain[2], rtol=1e-3)


def test_parameters_follow_where_all_states_are_too_few() -> None:
    states = planned(constraints=[Offload("state**")])
    assert states.data.offloaded is not None
    plan = planned(memory_budget=states.data.memory.peak_bytes - STATE_BYTES // 8)
    assert plan.data.is_feasible
    assert plan.data.offloaded is not None
    assert any(name.startswith("params") for name in plan.data.offloaded.names)


def test_a_single_word_is_no_argument() -> None:
    with pytest.raises(ConstraintError, match=r"arguments are selected as `state\*\*`"):
        planned(constraints=[Offload("state")])


def momentum_step(param: Any, mean: Any, x: Any) -> tuple[Any, Any]:
    gradient = jax.grad(lambda p: jnp.mean((x @ p) ** 2))(param)
    mean = 0.9 * mean + gradient
    return param - 0.1 * mean, mean


@pytest.mark.parametrize("said", ["in_shardings", "out_shardings", "array", "pin"])
def test_the_memory_of_a_sharding_is_kept(said: str) -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    host = NamedSharding(mesh, P(None, "model"), memory_kind="pinned_host")
    given: list[Any] = [jnp.ones((2048, 2048)), jnp.ones((2048, 2048)), jnp.ones((64, 2048))]
    options: dict[str, Any] = {}
    if said == "array":
        given[1] = jax.device_put(given[1], host)
    elif said == "pin":
        options = {"constraints": {"mean": host}}
    else:
        options = {said: (None, host, None)[: 3 if said == "in_shardings" else 2]}
    plan = autoshard.optimize(
        momentum_step, *given, mesh=mesh, hardware="tpu-v5e", donate_argnums=(0, 1), **options
    )
    kinds = [one.memory_kind for one in plan.in_shardings]
    assert kinds == ["device", "pinned_host", "device"]
    assert plan.out_shardings[1] == plan.in_shardings[1]
    expected = jax.jit(momentum_step)(jnp.ones((2048, 2048)), jnp.ones((2048, 2048)), given[2])
    found = plan.jit(moves_arguments=True)(*given)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_states_that_are_cut_along_all_dimensions_are_taken_apart_piece_by_piece() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    cut = NamedSharding(mesh, P("data", "model"))
    host = cut.with_memory_kind("pinned_host")
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(2048, 2048), (2048, 2048), (64, 2048)]
    given = [jax.random.normal(*one) for one in zip(keys, shapes, strict=True)]
    plan = autoshard.optimize(
        momentum_step,
        *given,
        mesh=mesh,
        hardware="tpu-v5e",
        donate_argnums=(0, 1),
        in_shardings=(cut, host, None),
    )
    assert plan.data.offloaded is not None
    (update,) = plan.data.offloaded.updates
    assert (update.dim, update.pieces) == (0, 2)
    assert (plan.in_shardings[1].spec, plan.in_shardings[1].memory_kind) == (
        cut.spec,
        "pinned_host",
    )
    assert "all-gather" not in {one.kind for one in plan.data.collectives}  # views move nothing
    found, expected = plan.jit(moves_arguments=True)(*given), jax.jit(momentum_step)(*given)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_state_that_its_update_casts_and_the_step_reduces_is_planned() -> None:
    def step(param: Any, state: Any, x: Any) -> Any:
        gradient = jax.grad(lambda p: jnp.mean((x @ p) ** 2))(param)
        mean = state.astype(jnp.float32)
        return (
            param - 0.1 * gradient,
            (0.9 * mean + 0.1 * gradient).astype(jnp.bfloat16),
            jnp.sqrt(jnp.sum(mean) ** 2),
        )

    given = jnp.ones((2048, 2048)), jnp.ones((2048, 2048), jnp.bfloat16), jnp.ones((64, 2048))
    plan = autoshard.optimize(
        step,
        *given,
        mesh=jax.make_mesh((2, 4), ("data", "model")),
        hardware="tpu-v5e",
        donate_argnums=(0, 1),
        constraints=[Offload("state**")],
    )
    assert plan.data.offloaded is not None
    found, expected = plan.jit(moves_arguments=True)(*given), jax.jit(step)(*given)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2)


def test_states_whose_updates_wait_for_one_another_stay_on_the_device() -> None:
    def step(weights: Any, bias: Any, x: Any) -> Any:
        new_bias = 0.9 * bias
        y, _ = jax.lax.scan(lambda c, w: (jnp.tanh(c @ w + new_bias[0]), None), x, weights)
        change = 0.5 * weights
        return weights + change, new_bias + jnp.mean(change), jnp.mean(y)

    shapes = [(4, 1024, 1024), (2048, 1024), (8, 1024)]
    plan = autoshard.optimize(
        step,
        *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes),
        mesh=jax.make_mesh((2, 4), ("data", "model")),
        hardware="tpu-v5e",
        donate_argnums=(0, 1),
        constraints=[Offload("weights**"), Offload("bias**")],
    )
    assert plan.data.offloaded is None
    (note,) = [note for note in plan.data.notes if "host memory is asked for" in note]
    assert "`weights`, `bias`; no plan was found" in note


def test_another_memory_is_refused() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    other = NamedSharding(mesh, P(None, "model"), memory_kind="unpinned_host")
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in [(2048, 2048)] * 3]
    with pytest.raises(autoshard.InputError, match="not 'unpinned_host'"):
        autoshard.optimize(momentum_step, *given, mesh=mesh, in_shardings=(None, other, None))


def test_what_cannot_lie_where_its_sharding_says_is_refused() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    host = NamedSharding(mesh, P(None, "model"), memory_kind="pinned_host")
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in [(2048, 2048)] * 3]
    options: dict[str, Any] = {"mesh": mesh, "donate_argnums": (0, 1)}
    with pytest.raises(ConstraintError, match=r"`x` cannot lie in host memory.* not donated"):
        autoshard.optimize(
            momentum_step, *given, hardware="tpu-v5e", in_shardings=(None, None, host), **options
        )
    with pytest.raises(autoshard.InputError, match="described without host memory"):
        autoshard.optimize(
            momentum_step, *given, hardware="h100", in_shardings=(None, host, None), **options
        )
    with pytest.raises(ConstraintError, match="it replaces no argument"):
        autoshard.optimize(
            lambda x: 2 * x, given[0], hardware="tpu-v5e", mesh=mesh, out_shardings=host
        )


def test_states_lie_there_beside_residuals_that_are_chosen() -> None:
    """Gradients that updates convert stand in their loops, with the names of the backward pass."""

    def half_loss(params: Any, batch: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            hidden = checkpoint_name(jnp.tanh(x @ w["up"].astype(jnp.bfloat16)), "hidden")
            return x + hidden @ w["down"].astype(jnp.bfloat16), None

        x, _ = jax.lax.scan(layer, batch.astype(jnp.bfloat16), params["layers"])
        head = checkpoint_name(params["head"].astype(jnp.bfloat16), "head")
        return jnp.mean((x @ head).astype(jnp.float32) ** 2)

    optimizer = optax.adamw(1e-2)

    def step(params: Any, state: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(half_loss)(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    params, _, _ = start()
    batch = jax.random.normal(jax.random.key(9), (64, WIDTH))
    arguments = params, optimizer.init(params), batch
    plan = autoshard.optimize(
        step,
        *arguments,
        mesh=jax.make_mesh((2, 4), ("data", "model")),
        hardware="tpu-v5e",
        donate_argnums=(0, 1),
        baselines=False,
        constraints=[
            *(Offload(f"{name}**") for name in ("state", "params")),
            *(Recompute(name) for name in ("hidden", "head")),
        ],
    )
    assert plan.data.residuals is not None
    assert plan.data.offloaded is not None
    names = {*plan.data.offloaded.names}
    assert {"params['layers']['up']", "params['layers']['down']"} <= names
    assert "params['head']" not in names  # the backward pass converts it again
    assert any("`params['head']`" in note for note in plan.data.notes)
    expected = jax.jit(step)(*arguments)[2]
    np.testing.assert_allclose(plan.jit(moves_arguments=True)(*arguments)[2], expected, rtol=2e-2)
