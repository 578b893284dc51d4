"""`autoshard.jit` stands where `jax.jit` stood: same calls, same numbers, planned shardings."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

import autoshard

X = np.linspace(-1, 1, 32 * 64, dtype=np.float32).reshape(32, 64)
MESH = "data=2,model=4"
planned = partial(autoshard.jit, mesh=MESH, hardware="cpu-host", baselines=False)


def init() -> dict[str, Any]:
    first, second = jax.random.split(jax.random.key(0))
    return {
        "w1": jax.random.normal(first, (64, 128)),
        "w2": 0.1 * jax.random.normal(second, (128, 64)),
    }


def step(params: Any, x: Any, scale: Any = 1.0, *, kind: str = "tanh") -> Any:
    f = {"tanh": jnp.tanh, "sin": jnp.sin}[kind]

    def loss(params: Any) -> Any:
        return jnp.mean((f(x @ params["w1"]) @ params["w2"] - scale * x) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def concrete_mesh(kind: AxisType = AxisType.Auto) -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind, kind))


def test_one_changed_line_trains_to_the_same_numbers_with_planned_shardings() -> None:
    ours, theirs = planned(step, donate_argnums=0), jax.jit(step)
    state, alone = init(), init()
    for _ in range(3):
        state, value = ours(state, X)
        alone, wanted = theirs(alone, X)
        assert float(value) == pytest.approx(float(wanted), rel=1e-5)
    (plan,) = ours.plans
    places = jax.tree.leaves(plan.in_shardings[0])
    for array, place in zip(jax.tree.leaves(state), places, strict=True):
        assert array.sharding.is_equivalent_to(place, array.ndim)


def test_a_function_is_traced_once_for_a_signature() -> None:
    traced: list[Any] = []

    def counted(params: Any, x: Any) -> Any:
        traced.append(x.shape)
        return step(params, x)

    ours = planned(counted)
    for _ in range(2):
        ours(init(), X)
    ours.lower(init(), X)
    assert traced == [(32, 64)]
    ours(init(), X[:16])
    assert traced == [(32, 64), (16, 64)]


def test_another_shape_another_setting_or_a_scalar_instead_of_an_array_is_another_plan() -> None:
    ours = planned(step, static_argnames="kind")
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((init(), X), {}),
        ((init(), X[:16]), {}),
        ((init(), X), {"kind": "sin"}),
        ((init(), X, 2.0), {}),
        ((init(), X, jnp.float32(2.0)), {}),
    ]
    for count, (args, kwargs) in enumerate(calls, start=1):
        for _ in range(2):
            _, value = ours(*args, **kwargs)
            assert len(ours.plans) == count
        wanted = jax.jit(step, static_argnames="kind")(*args, **kwargs)[1]
        assert float(value) == pytest.approx(float(wanted), rel=1e-5)


def test_an_argument_by_name_is_the_one_by_position() -> None:
    ours = planned(step, donate_argnames="params")
    state, _ = ours(init(), X, 2.0)
    ours(params=state, scale=3.0, x=X)
    assert len(ours.plans) == 1
    assert state["w1"].is_deleted()


def test_static_arguments_by_position_name_and_default_are_one_setting() -> None:
    def power(x: Any, n: int = 2) -> Any:
        return x**n @ x.T

    ours = planned(power, static_argnums=1)
    np.testing.assert_allclose(ours(X, n=3), X**3 @ X.T, rtol=1e-4)
    np.testing.assert_allclose(ours(X, 3), X**3 @ X.T, rtol=1e-4)
    assert len(ours.plans) == 1
    np.testing.assert_allclose(ours(X), X**2 @ X.T, rtol=1e-4)
    assert len(ours.plans) == 2


def test_a_decorated_method_is_planned_once_for_each_instance() -> None:
    class Scaled:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @planned()
        def gram(self, x: Any) -> Any:
            return self.factor * x @ x.T

    one, other = Scaled(1.0), Scaled(3.0)
    for _ in range(2):
        np.testing.assert_allclose(one.gram(X), X @ X.T, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(other.gram(X), 3 * X @ X.T, rtol=1e-4, atol=1e-4)
    assert len(Scaled.gram.plans) == 2
    assert one.gram.plan(X) in Scaled.gram.plans


def test_arrays_committed_elsewhere_are_moved_to_where_the_plan_wants_them() -> None:
    ours = autoshard.jit(step, mesh=concrete_mesh(), baselines=False)
    wanted = float(jax.jit(step)(init(), X)[1])
    places = [jax.devices()[3], NamedSharding(concrete_mesh(), jax.P("model"))]
    for place in places:
        value = ours(jax.device_put(init(), place), X)[1]
        assert float(value) == pytest.approx(wanted, rel=1e-5)
    assert len(ours.plans) == 1


def test_inside_another_jit_the_plan_holds_and_its_gradient_is_right() -> None:
    def loss(params: Any, x: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ params["w1"]) @ params["w2"]) ** 2)

    ours = autoshard.jit(loss, mesh=concrete_mesh(), baselines=False)
    outer = jax.jit(jax.value_and_grad(lambda params, x: 2 * ours(params, x)))
    value, grads = outer(init(), X)
    wanted, wanted_grads = jax.value_and_grad(lambda p, x: 2 * loss(p, x))(init(), X)
    assert float(value) == pytest.approx(float(wanted), rel=1e-5)
    np.testing.assert_allclose(grads["w1"], wanted_grads["w1"], rtol=1e-3, atol=1e-6)
    asked = ours.plan(init(), X).in_shardings[0]["w1"]
    assert f"spec={asked.spec}" in str(outer.trace(init(), X).jaxpr)


def test_the_mesh_of_set_mesh_is_part_of_the_signature() -> None:
    ours = autoshard.jit(step, baselines=False)
    wanted = float(jax.jit(step)(init(), X)[1])
    line = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    for mesh in (concrete_mesh(), line, concrete_mesh(AxisType.Explicit)):
        with jax.set_mesh(mesh):
            assert float(ours(init(), X)[1]) == pytest.approx(wanted, rel=1e-5)
            inside = jax.jit(lambda params: ours(params, X)[1])
            assert float(inside(init())) == pytest.approx(wanted, rel=1e-5)
    assert len(ours.plans) == 3


def test_within_a_trace_with_explicit_axes_results_have_them_in_their_types() -> None:
    ours = autoshard.jit(step, mesh=concrete_mesh(), baselines=False)
    wanted, _ = ours(init(), X)
    with jax.set_mesh(concrete_mesh(AxisType.Explicit)):
        found, _ = jax.jit(ours)(init(), X)
    np.testing.assert_allclose(found["w1"], wanted["w1"], rtol=1e-5, atol=1e-6)
    assert set(found["w1"].sharding.mesh.axis_types) == {AxisType.Explicit}


def test_plan_trace_and_lower_need_shapes_only() -> None:
    ours = planned(step, donate_argnums=0)
    shapes = jax.eval_shape(init)
    plan = ours.plan(shapes, X)
    assert ours.plan(init(), X) is plan
    assert plan.data.is_feasible
    assert ours.trace(shapes, X).jaxpr.eqns
    memory = ours.lower(shapes, X).compile().memory_analysis()
    assert memory.alias_size_in_bytes == sum(t.local_bytes for t in plan.data.arguments[:2])


def test_a_program_that_does_not_fit_has_a_plan_that_says_so_and_no_call() -> None:
    ours = planned(step, mesh="data=8", memory_budget=1000, remat="keep")
    assert not ours.plan(init(), X).data.is_feasible
    with pytest.raises(autoshard.PlanError):
        ours(init(), X)
    ours.clear_cache()
    assert ours.plans == ()


def refused(**options: Any) -> autoshard.InputError:
    with pytest.raises(autoshard.InputError) as caught:
        autoshard.jit(step, **options)
    return caught.value


def test_options_that_nothing_takes_are_refused_where_they_are_written() -> None:
    assert "did you mean hardware?" in refused(hardwear="tpu-v5e").fix
    assert refused(kwargs={"kind": "sin"}).what == "there is no option 'kwargs'"
    assert "'sort', which is no argument of `step`" in refused(static_argnames="sort").what
    assert refused(donate_argnums=3).what == (
        "donate_argnums names argument 3, but `step` has 3 positional arguments"
    )


def test_a_setting_that_cannot_be_hashed_is_named() -> None:
    ours = planned(step, static_argnames="kind")
    with pytest.raises(autoshard.InputError) as caught:
        ours(init(), X, kind=["tanh"])
    assert caught.value.what.startswith("a static argument of `step` is a list")
