"""States are made and placed as planned, whole on no device."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from autoshard.apply.placing import init, shard
from autoshard.errors import InputError
from autoshard.sharding import parse_sharding

AUTO = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((2, 4), ("x", "y"))
W = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)


@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])
def test_a_state_is_placed_by_a_prefix_of_shardings(mesh: Any) -> None:
    state = {"w": W, "moments": [W * 2, W * 3], "count": 3}
    shardings = {"w": PartitionSpec("x"), "moments": PartitionSpec(None, "y"), "count": None}
    placed = shard(state, shardings, mesh)
    assert placed["w"].sharding.spec == PartitionSpec("x", None)
    assert [m.sharding.spec for m in placed["moments"]] == [PartitionSpec(None, "y")] * 2
    assert placed["count"].sharding.is_fully_replicated
    np.testing.assert_array_equal(placed["moments"][1], W * 3)


def test_every_spelling_of_a_sharding_is_taken() -> None:
    sub_axis = parse_sharding('<@mesh, [{"y":(1)2}, {}]>')
    first = shard(W, sub_axis, AUTO)
    assert first.sharding.shard_shape(W.shape) == (4, 16)
    again = shard(W, first.sharding, AUTO)
    assert again.sharding == first.sharding
    named = shard(W, NamedSharding(EXPLICIT, PartitionSpec("y")), AUTO)
    assert named.sharding.spec == PartitionSpec("y", None)


def test_typed_keys_can_be_placed() -> None:
    keys = jax.random.split(jax.random.key(0), 8)
    placed = shard(keys, PartitionSpec("x"), AUTO)
    assert placed.sharding.spec == PartitionSpec("x")
    np.testing.assert_array_equal(jax.random.key_data(placed), jax.random.key_data(keys))


def make_state(key: Any) -> Any:
    params = {"w": jax.random.normal(key, (16, 8)), "b": jnp.zeros(8)}
    return params, optax.adam(1e-3).init(params)


def test_a_state_is_born_sharded() -> None:
    made = init(make_state, PartitionSpec(), AUTO)(jax.random.key(0))
    cut = init(make_state, ({"w": PartitionSpec("x", "y"), "b": PartitionSpec("y")}, None), AUTO)(
        jax.random.key(0)
    )
    jax.tree.map(np.testing.assert_array_equal, made, cut)
    assert cut[0]["w"].sharding.spec == PartitionSpec("x", "y")
    assert cut[0]["w"].addressable_shards[0].data.shape == (8, 2)


def test_no_device_holds_a_cut_array_whole_while_it_is_made() -> None:
    made = init(lambda: jnp.ones((1024, 1024)), PartitionSpec("x", "y"), AUTO)
    before = {id(array) for array in jax.live_arrays()}
    result = made()
    new = [array for array in jax.live_arrays() if id(array) not in before]
    assert [array.sharding.shard_shape(array.shape) for array in new] == [(512, 256)]
    assert result.sharding.spec == PartitionSpec("x", "y")


def test_an_equinox_module_is_born_sharded_with_its_functions() -> None:
    make = init(lambda key: eqx.nn.MLP(16, 8, 32, 1, key=key), None, AUTO)
    model = make(jax.random.key(0))
    expected = eqx.nn.MLP(16, 8, 32, 1, key=jax.random.key(0))
    np.testing.assert_allclose(model(W[0]), expected(W[0]), rtol=1e-5)


def test_under_an_explicit_mesh_results_have_its_axes() -> None:
    with jax.set_mesh(EXPLICIT):
        made = init(make_state, PartitionSpec(), EXPLICIT)(jax.random.key(0))
        placed = shard(W, PartitionSpec("x"), EXPLICIT)
        assert jax.typeof(placed * 2).sharding.spec == PartitionSpec("x", None)
        assert made[0]["b"].sharding.mesh.axis_types == (AxisType.Explicit,) * 2


def test_a_prefix_that_does_not_match_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        shard({"w": W}, {"v": PartitionSpec("x")}, AUTO)
    assert caught.value.where == "shardings"
    assert caught.value.what.startswith("shardings does not match what it is for: ")
