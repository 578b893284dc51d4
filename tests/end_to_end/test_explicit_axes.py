"""Programs for Explicit and mixed meshes: traced as under `jax.set_mesh`, planned, run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import autoshard

contracts_a_sharded_dimension = pytest.mark.skipif(
    jax.__version_info__ < (0, 10, 2), reason="JAX refuses the gradient of a matmul with it"
)
EXPLICIT = jax.make_mesh((2, 4), ("data", "model"))
MIXED = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit, AxisType.Auto))
THREE = jax.make_mesh(
    (2, 2, 2),
    ("data", "sequence", "model"),
    axis_types=(AxisType.Explicit, AxisType.Explicit, AxisType.Auto),
)
MESHES = pytest.mark.parametrize(
    "mesh", [EXPLICIT, MIXED, THREE], ids=["explicit", "mixed", "three axes"]
)
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((16, 32)).astype(np.float32)
W = RANDOM.standard_normal((32, 64)).astype(np.float32) / 8
V = RANDOM.standard_normal((64, 32)).astype(np.float32) / 8


def planned(fn: Any, *args: Any, mesh: Any = EXPLICIT, **options: Any) -> autoshard.Plan:
    return autoshard.optimize(fn, *args, mesh=mesh, hardware="tpu-v5e", baselines=False, **options)


def named(spec: P, shape: tuple[int, ...], mesh: Any = EXPLICIT) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))


def train_step(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        hidden = jnp.einsum("bi,ij->bj", x, params["w"], out_sharding=P("data", None))
        return jnp.mean((jnp.tanh(hidden) @ params["v"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def einsum(x: Any, w: Any) -> Any:
    return jnp.einsum("bi,ij->bj", x, w, out_sharding=P("data", None))


def reshard(x: Any, w: Any) -> Any:
    return jnp.tanh(jax.sharding.reshard(x @ w, P("data", None)))


def makers(x: Any, w: Any) -> Any:
    noise = jax.random.normal(jax.random.key(0), (16, 32), out_sharding=P("data"))
    rows = x.at[jnp.arange(16)].get(out_sharding=P("data", None))
    return ((rows + noise) @ w).reshape(4, 4, 64, out_sharding=P("data"))


def scan(x: Any, w: Any) -> Any:
    def body(carry: Any, _: Any) -> Any:
        return jax.sharding.reshard(jnp.tanh(carry @ w @ w.T), P("data", None)), None

    return jax.lax.scan(body, jax.sharding.reshard(x, P("data", None)), None, length=3)[0]


def auto_region(x: Any, w: Any) -> Any:
    inner = jax.sharding.auto_axes(lambda x, w: jnp.tanh(x @ w), axes="data")
    return jax.nn.softmax(inner(x, w, out_sharding=P("data", None)))


def shard_map(x: Any, w: Any) -> Any:
    def local(x: Any, w: Any) -> Any:
        return jax.lax.psum(x @ w, "data") * jnp.ones((16, 1))

    return jax.shard_map(
        local, in_specs=(P(None, "data"), P("data")), out_specs=P(), axis_names={"data"}
    )(jax.sharding.reshard(x, P(None, "data")), jax.sharding.reshard(w, P("data")))


@MESHES
@pytest.mark.parametrize("fn", [einsum, reshard, makers, scan, auto_region, shard_map])
def test_code_for_explicit_axes_traces_and_gives_the_same_numbers(fn: Any, mesh: Any) -> None:
    with jax.set_mesh(mesh):
        expected = jax.jit(fn)(X, W)
    found = planned(fn, X, W, mesh=mesh).jit()(X, W)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert found.sharding.mesh.axis_types == mesh.axis_types


@pytest.mark.parametrize("fn", [einsum, reshard, makers, scan, auto_region])
def test_the_type_of_a_result_is_kept(fn: Any) -> None:
    with jax.set_mesh(EXPLICIT):
        expected = jax.typeof(jax.jit(fn)(X, W))
    assert jax.typeof(planned(fn, X, W).jit()(X, W)) == expected


@contracts_a_sharded_dimension
@MESHES
def test_a_training_state_goes_round(mesh: Any) -> None:
    params = {"w": jnp.asarray(W), "v": jnp.asarray(V)}
    with jax.set_mesh(mesh):
        expected = params
        for _ in range(2):
            expected, loss = jax.jit(train_step)(expected, X)
    plan = planned(train_step, params, X, mesh=mesh, donate_argnums=0)
    step, state = plan.jit(), plan.shard(params)
    for _ in range(2):
        state, found = step(state, X)
        assert state["w"].sharding.mesh.axis_types == mesh.axis_types
    np.testing.assert_allclose(found, loss, rtol=1e-5)
    np.testing.assert_allclose(state["w"], expected["w"], rtol=1e-4, atol=1e-6)


@contracts_a_sharded_dimension
def test_weights_without_axes_in_their_types_are_free() -> None:
    big = {
        "w": jax.ShapeDtypeStruct((2048, 8192), jnp.float32),
        "v": jax.ShapeDtypeStruct((8192, 2048), jnp.float32),
    }
    x = jax.ShapeDtypeStruct((64, 2048), jnp.float32)
    plan = planned(train_step, big, x, donate_argnums=0)
    assert all(tensor.local_bytes < tensor.num_bytes for tensor in plan.data.arguments[:2])


def test_axes_in_the_types_of_arguments_are_kept() -> None:
    params = {"w": named(P(None, "model"), (32, 64)), "v": named(P("model"), (64, 32))}
    plan = planned(train_step, params, named(P("data"), (16, 32)))
    found = [plan.in_shardings[0]["w"], plan.in_shardings[0]["v"], plan.in_shardings[1]]
    assert [sharding.spec for sharding in found] == [
        P(None, "model"),
        P("model", None),
        P("data", None),
    ]
    assert not [note for note in plan.data.notes if "not taken as constraints" in note]


def test_on_a_mixed_mesh_a_type_leaves_the_auto_axes_free() -> None:
    def layer(x: Any, w: Any) -> Any:
        return jax.lax.with_sharding_constraint(
            jax.sharding.reshard(x, P("data", None)) @ w, P(None, "model")
        )

    plan = planned(layer, named(P("data"), (16, 32), MIXED), W, mesh=MIXED)
    assert plan.out_shardings.spec == P("data", "model")
    assert plan.in_shardings[0].spec[0] in ("data", ("data", "model"))


def test_a_reshard_to_no_axes_gathers() -> None:
    def gathered(x: Any) -> Any:
        return jax.sharding.reshard(jnp.tanh(x), P()) + 1.0

    plan = planned(gathered, named(P("data", "model"), (2048, 2048)), out_shardings=P("data"))
    assert "all-gather" in [found.kind for found in plan.data.collectives]


def test_what_is_made_of_nothing_under_a_written_sharding_without_axes_traces() -> None:
    def numbered(x: Any) -> Any:
        return x + jnp.arange(32.0, out_sharding=P())

    plan = planned(numbered, X)
    np.testing.assert_array_equal(plan.jit()(X), X + np.arange(32.0, dtype=np.float32))


def test_a_gradient_that_jax_reshards_to_the_type_of_a_free_weight_stays_sharded() -> None:
    def grads(x: Any, w: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.sum(jnp.tanh(x @ jax.sharding.reshard(w, P(None, "model"))) ** 2)

        return jax.grad(loss)(w)

    w = jax.ShapeDtypeStruct((2048, 8192), jnp.float32)
    plan = planned(grads, jax.ShapeDtypeStruct((64, 2048), jnp.float32), w)
    assert plan.data.results[0].local_bytes < w.size * 4


def test_code_for_auto_axes_is_taken_on_a_mesh_with_explicit_ones() -> None:
    def constrained(x: Any, w: Any) -> Any:
        auto = jax.sharding.Mesh(EXPLICIT.devices, EXPLICIT.axis_names)
        hidden = jax.lax.with_sharding_constraint(x, NamedSharding(auto, P("data"))) @ w
        return jax.lax.with_sharding_constraint(hidden, NamedSharding(auto, P("data", "model")))

    plan = planned(constrained, X, W)
    assert plan.data.program.explicit_axes == ()
    found = plan.jit()(X, W)
    np.testing.assert_allclose(found, X @ W, rtol=1e-4, atol=1e-5)
    assert found.sharding.spec == P("data", "model")


def test_code_for_explicit_axes_is_taken_on_a_mesh_of_text() -> None:
    plan = planned(einsum, X, W, mesh="data=2,model=4")
    assert plan.data.program.explicit_axes == ("data", "model")
    np.testing.assert_allclose(plan.jit()(X, W), X @ W, rtol=1e-4, atol=1e-5)


@contracts_a_sharded_dimension
def test_a_plan_from_a_file_traces_its_function_under_the_same_types(tmp_path: Path) -> None:
    plan = planned(train_step, {"w": W, "v": V}, named(P("data"), X.shape))
    plan.save(tmp_path / "plan.json")
    again = autoshard.load_plan(tmp_path / "plan.json", train_step)
    assert again.data == plan.data
    with jax.set_mesh(EXPLICIT):
        _, expected = jax.jit(train_step)({"w": W, "v": V}, X)
    np.testing.assert_allclose(again.jit()({"w": W, "v": V}, X)[1], expected, rtol=1e-5)


@contracts_a_sharded_dimension
@pytest.mark.parametrize("is_set", [True, False], ids=["set", "not set"])
def test_a_planned_function_runs_inside_a_jit_for_explicit_axes(is_set: bool) -> None:
    plan = planned(train_step, {"w": W, "v": V}, X)
    state = plan.shard({"w": W, "v": V})

    def twice(fn: Any, state: Any) -> Any:
        return fn(fn(state, X)[0], X)

    once = plan.jit()
    expected, _ = once(once(state, X)[0], X)
    for fn in (plan.wrap(), plan.jit()):
        if is_set:
            with jax.set_mesh(EXPLICIT):
                found, _ = jax.jit(lambda state, fn=fn: twice(fn, state))(state)
        else:
            found, _ = jax.jit(lambda state, fn=fn: twice(fn, state))(state)
        np.testing.assert_allclose(found["w"], expected["w"], rtol=1e-5, atol=1e-6)
        assert found["w"].sharding == expected["w"].sharding
