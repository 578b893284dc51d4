"""Flax NNX objects passed to a planned step are updated as they are under `nnx.jit`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.errors import InputError, PlanError

nnx = pytest.importorskip("flax.nnx", reason="Flax is not installed")
optax = pytest.importorskip("optax", reason="Optax is not installed")

MESH = "data=2,model=4"
X = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)


class Model(nnx.Module):  # type: ignore[misc, name-defined]
    def __init__(self, rngs: Any) -> None:
        self.up = nnx.Linear(16, 64, use_bias=False, rngs=rngs)  # the norm takes any bias away
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(64, 64, rngs=rngs) for _ in range(2)])
        self.down = nnx.Linear(64, 16, rngs=rngs)

    def __call__(self, x: jax.Array) -> Any:
        h = self.drop(nnx.relu(self.norm(self.up(x))))
        for block in self.blocks:
            h = h + nnx.relu(block(h))
        return self.down(h)


def make() -> tuple[Any, Any]:
    model = Model(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def loss_of(model: Any, x: jax.Array) -> Any:
    return jnp.mean((model(x) - x) ** 2)


def train_step(model: Any, optimizer: Any, x: jax.Array) -> Any:
    value, gradient = nnx.value_and_grad(loss_of)(model, x)
    optimizer.update(model, gradient)
    return value


def planned(fn: Any, *args: Any, **options: Any) -> autoshard.Plan:
    return autoshard.optimize(fn, *args, mesh=MESH, hardware="cpu-host", baselines=False, **options)


def assert_same_arrays(found: Any, expected: Any) -> None:
    def raw(leaf: Any) -> Any:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if is_key else leaf

    pairs = zip(
        jax.tree.leaves(nnx.state(found)), jax.tree.leaves(nnx.state(expected)), strict=True
    )
    for one, other in pairs:
        np.testing.assert_allclose(raw(one), raw(other), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("decorate", "donate"),
    [
        pytest.param(lambda fn: fn, (0, 1), id="plain, donated"),
        pytest.param(nnx.jit, (), id="nnx.jit, kept"),
        pytest.param(lambda fn: fn, (), id="plain, kept", marks=pytest.mark.slow),
        pytest.param(nnx.jit, (0, 1), id="nnx.jit, donated", marks=pytest.mark.slow),
    ],
)
def test_a_step_updates_its_objects_as_under_nnx_jit(decorate: Any, donate: Any) -> None:
    step = decorate(train_step)
    plan = planned(step, *nnx.eval_shape(make), X, donate_argnums=donate)
    run = plan.jit()
    found, expected = make(), make()
    losses = [float(run(*found, X)) for _ in range(5)]
    alone = nnx.jit(train_step)
    reference = [float(alone(*expected, X)) for _ in range(5)]
    np.testing.assert_allclose(losses, reference, rtol=1e-4)
    assert losses[-1] < losses[0]
    assert_same_arrays(found, expected)


def test_arrays_of_objects_have_the_names_and_the_shardings_of_the_plan() -> None:
    plan = planned(train_step, *nnx.eval_shape(make), X)
    names = [tensor.name for tensor in plan.data.arguments]
    assert {"model.blocks[0].kernel", "model.drop.rngs.count", "optimizer.step", "x"} <= {*names}
    results = [tensor.name for tensor in plan.data.results]
    assert "updated.optimizer.opt_state[0].mu.up.kernel" in results
    assert "updated.model.drop.rngs.key" not in results  # the step reads it only
    model, optimizer = plan.init(make, argument=(0, 1))()
    plan.jit()(model, optimizer, X)
    by_name = {tensor.name: tensor.sharding for tensor in plan.data.arguments}
    for tensor in plan.data.results:
        if tensor.name.startswith("updated."):
            assert tensor.sharding == by_name[tensor.name.removeprefix("updated.")]
    assert isinstance(model, Model)
    assert model.up.kernel[...].sharding == plan.in_shardings[0]["up"]["kernel"].get_value()


def test_an_optimizer_that_holds_its_model_shares_it() -> None:
    def make_shared() -> tuple[Any, Any]:
        model = Model(nnx.Rngs(0))
        return model, nnx.ModelAndOptimizer(model, optax.sgd(1e-2))

    def step(model: Any, optimizer: Any, x: jax.Array) -> Any:
        value, gradient = nnx.value_and_grad(loss_of)(model, x)
        optimizer.update(gradient)
        return value

    plan = planned(step, *nnx.eval_shape(make_shared), X)
    assert not any(".model." in tensor.name for tensor in plan.data.arguments)
    model, optimizer = plan.init(make_shared, argument=(0, 1))()
    assert optimizer.model is model
    expected = make_shared()
    for _ in range(2):
        plan.jit()(model, optimizer, X)
        nnx.jit(step)(*expected, X)
    assert_same_arrays((model, optimizer), expected)


def test_an_object_that_is_returned_is_the_argument_itself() -> None:
    def step(model: Any, optimizer: Any, x: jax.Array) -> Any:
        return {"loss": train_step(model, optimizer, x), "model": model}

    model, optimizer = make()
    plan = planned(step, model, optimizer, X)
    assert [t.name for t in plan.data.results if not t.name.startswith("updated.")] == [
        "result['loss']"
    ]
    assert plan.jit()(model, optimizer, X)["model"] is model


def test_a_wrapped_step_updates_objects_inside_nnx_jit() -> None:
    found, expected = make(), make()
    step = nnx.jit(planned(train_step, *found, X).wrap())
    for _ in range(2):
        step(*found, X)
        nnx.jit(train_step)(*expected, X)
    assert_same_arrays(found, expected)


def test_rngs_go_on_and_evaluation_updates_nothing() -> None:
    def sample(rngs: Any, x: jax.Array) -> Any:
        return x + jax.random.normal(rngs.noise(), x.shape)

    found, expected = nnx.Rngs(noise=0), nnx.Rngs(noise=0)
    run = planned(sample, found, X).jit()
    for _ in range(2):
        np.testing.assert_allclose(
            run(found, X), nnx.jit(sample)(expected, X), rtol=1e-5, atol=1e-6
        )
    assert int(found.noise.count[...]) == 2

    model = nnx.Linear(16, 16, rngs=nnx.Rngs(0))
    plan = planned(nnx.jit(lambda model, x: model(x)), model, X, donate_argnums=0)
    assert [tensor.name for tensor in plan.data.results] == ["result"]
    np.testing.assert_allclose(plan.jit()(model, X), model(X), rtol=1e-5, atol=1e-6)


def test_a_plan_from_a_file_updates_objects_too(tmp_path: Any) -> None:
    model, optimizer = make()
    plan = planned(train_step, model, optimizer, X)
    plan.save(tmp_path / "plan.json")
    run = autoshard.load_plan(tmp_path / "plan.json").jit(train_step)
    losses = [float(run(model, optimizer, X)) for _ in range(3)]
    assert losses[-1] < losses[0]


def test_a_step_of_objects_has_no_code_for_jax_jit() -> None:
    model, optimizer = make()
    with pytest.raises(PlanError) as caught:
        planned(train_step, model, optimizer, X).code()
    assert str(caught.value) == (
        "`train_step` takes Flax NNX objects, and jax.jit takes no shardings for them\n"
        "  where: plan for train_step\n"
        "  fix: run it with plan.jit(), which updates them; or plan a function of their states"
        " (nnx.split outside, nnx.merge inside), whose shardings can be written"
    )


# -- refusals --------------------------------------------------------------------------------------


def refusal(fn: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        planned(fn, *args, **options)
    return str(caught.value)


def test_attributes_that_a_step_adds_are_refused_with_the_recipe() -> None:
    def step(model: Any, x: jax.Array) -> Any:
        model.last = nnx.Intermediate(x)
        return jnp.mean(model(x))

    assert refusal(step, nnx.Linear(16, 4, rngs=nnx.Rngs(0)), X) == (
        "`step` adds, removes or sets attributes of its Flax NNX objects, of which only arrays can"
        " be updated in place\n"
        "  where: `step`\n"
        "  fix: take what it adds away again (nnx.pop(model, nnx.Intermediate)), or split and"
        " merge: pass nnx.state(model), nnx.merge(graph, state) in the function, and return what is"
        " needed of nnx.state(model)"
    )


def test_an_array_that_a_step_makes_another_shape_is_refused() -> None:
    def grow(cache: Any, x: jax.Array) -> Any:
        cache.set_value(jnp.concatenate([cache[...], x]))
        return jnp.mean(x)

    assert refusal(grow, nnx.Cache(jnp.zeros((4, 16))), X) == (
        "`grow` makes `cache` float32[36,16], which was float32[4,16]: no next call can take it\n"
        "  where: argument `cache` of `grow`\n"
        "  fix: keep its shape and type, or return the new array instead"
    )


def test_a_dict_or_list_that_is_written_is_refused_by_name() -> None:
    def step(state: Any, x: jax.Array) -> Any:
        loss = jnp.mean(x @ state["params"]["w"])
        state["params"]["w"] = state["params"]["w"] - 0.1 * jnp.mean(x)
        return loss

    def log(metrics: list[Any], x: jax.Array) -> Any:
        metrics.append(jnp.mean(x))
        return x * 2

    assert refusal(step, {"params": {"w": np.ones((16, 4), np.float32)}}, X) == (
        "`step` changes its argument in place, and traced functions do so in vain:"
        " `state['params']['w']` is written and not returned\n"
        "  where: argument `state['params']['w']` of `step`\n"
        "  fix: return the new value, or write to a copy of the argument"
    )
    assert "`metrics[0]` is written and not returned" in refusal(log, [], X)


def test_a_written_dict_that_is_returned_is_planned() -> None:
    def step(state: Any, x: jax.Array) -> Any:
        state["w"] = state["w"] - 0.1 * jnp.mean(x)
        label = state.pop("label")
        return state, jnp.mean(x) + label

    state = {"w": np.ones((16, 4), np.float32), "label": np.float32(1)}
    plan = planned(step, state, X)
    assert [tensor.name for tensor in plan.data.results] == ["result[0]['w']", "result[1]"]


def test_a_dict_may_be_written_for_what_the_step_itself_reads() -> None:
    """As under `jax.jit`: `batch["mask"] = ...` was refused."""

    def step(batch: Any, kernel: jax.Array) -> Any:
        def loss(kernel: jax.Array) -> Any:
            batch["mask"] = batch["x"] > 0
            batch["hidden"] = batch["x"] @ kernel
            return jnp.sum(jnp.where(batch["mask"], 1.0, 0.0)) + jnp.mean(batch["hidden"] ** 2)

        batch["x"] = batch["x"] - jnp.mean(batch["x"])
        return jax.grad(loss)(kernel), jnp.sum(batch["mask"])

    x, kernel = np.asarray(X), np.ones((16, 4), np.float32)
    found = planned(step, {"x": x}, kernel).jit()({"x": x}, kernel)
    for one, other in zip(found, jax.jit(step)({"x": x}, kernel), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_split_state_that_a_step_updates_and_does_not_return_is_refused() -> None:
    graph, state = nnx.split(make())

    def step(state: Any, x: jax.Array) -> Any:
        return train_step(*[*nnx.merge(graph, state), x])

    assert refusal(step, state, X).startswith(
        "`step` changes its argument in place, and traced functions do so in vain:"
        " `state[0]['blocks'][0]['bias']` is written and not returned\n"
    )


def test_a_tracer_that_is_left_in_an_object_is_refused_by_name() -> None:
    class Meter:
        def __init__(self) -> None:
            self.seen: dict[str, Any] = {"mean": 0.0}

    def step(meter: Any, x: jax.Array) -> Any:
        meter.seen["mean"] = jnp.mean(x)
        return x * 2

    expected = (
        "`step` leaves a traced array in an object: `meter.seen['mean']` is written and would hold"
        " no array after the call\n"
        "  where: argument `meter.seen['mean']` of `step`\n"
        "  fix: return the new value, and write it into the object outside"
    )
    assert refusal(step, Meter(), X) == expected
    assert refusal(step, Meter(), X, static_argnums=0) == expected
