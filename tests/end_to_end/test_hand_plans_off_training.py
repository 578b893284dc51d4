"""Plans by hand of programs that are no training steps, and of those that carry shardings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.layouts import Layout
from autoshard.planning.hand_plans import hand_plans

MESH = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
ROWS: Layout = ((0,), ())


def planned(fn: Any, *args: Any, **options: Any) -> autoshard.Plan:
    return autoshard.optimize(fn, *args, mesh=MESH, hardware="cpu-host", **options)


def layouts(plan: autoshard.Plan) -> dict[str, tuple[Layout, ...]]:
    assert plan.solution is not None
    parts = plan.solution.encoded.parts
    assert len(parts.axes) == 1
    encoder = plan.solution.encoder
    return hand_plans(plan.solution.graph, parts, encoder.wishes.alike)


def shape(*sizes: int, **options: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32, **options)


def rollout(params: Any, observations: Any, key: Any) -> Any:
    def loss(params: Any) -> Any:
        hidden = jnp.tanh(observations @ params["w"])
        noise = jax.random.normal(key, (256, 2))
        return jnp.mean((hidden @ params["p"] + noise) ** 2)

    params = jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))
    return params, jnp.tanh(observations @ params["w"]) @ params["w"].T


def test_environments_that_are_given_back_are_a_batch() -> None:
    params = {"w": shape(16, 128), "p": shape(128, 2)}
    plan = planned(rollout, params, shape(256, 16), jax.random.key(0), donate_argnums=(0, 1))
    whole: Layout = ((), ())
    assert layouts(plan)["data parallel"][:3] == (whole, whole, ROWS)
    assert layouts(plan)["fsdp"][2] == ROWS


def test_a_simulation_without_weights_is_cut_along_its_first_dimension() -> None:
    def move(positions: Any, velocities: Any) -> Any:
        forces = jnp.sum(positions[:, None] - positions[None], axis=1)
        return positions + velocities, velocities - forces

    plan = planned(move, shape(512, 3), shape(512, 3), donate_argnums=(0, 1))
    assert layouts(plan)["data parallel"] == (ROWS, ROWS)
    rows = {row.name: row for row in plan.data.baselines}
    assert rows["data parallel"].seconds < rows["replicated"].seconds


def mlp(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"]) @ params["v"]


def test_shardings_that_arguments_carry_are_a_plan_of_their_own() -> None:
    on = NamedSharding(MESH, P("data", None))
    params = {"w": shape(512, 512, sharding=on), "v": shape(512, 512)}
    plan = planned(mlp, params, shape(64, 512))
    assert [row.name for row in plan.data.baselines][-1] == "yours"
    assert plan.data.priced_seconds <= min(map(plan.data.priced_seconds_of, plan.data.baselines))
    free = planned(mlp, {"w": shape(512, 512), "v": shape(512, 512)}, shape(64, 512))
    assert "yours" not in {row.name for row in free.data.baselines}


def test_a_random_key_carries_no_sharding() -> None:
    """The words of a key stay together, which is nobody's annotation."""

    def noisy(params: Any, x: Any, key: Any) -> Any:
        return mlp(params, x + jax.random.normal(key, x.shape))

    params = {"w": shape(512, 512), "v": shape(512, 512)}
    plan = planned(noisy, params, shape(64, 512), jax.random.key(0))
    assert "yours" not in {row.name for row in plan.data.baselines}


def test_what_flax_notes_of_its_variables_is_yours_too() -> None:
    nnx = pytest.importorskip("flax.nnx")

    def model(names: tuple[str | None, ...]) -> Any:
        init = nnx.with_partitioning(nnx.initializers.lecun_normal(), names)
        return nnx.eval_shape(
            lambda: nnx.Linear(512, 512, use_bias=False, kernel_init=init, rngs=nnx.Rngs(0))
        )

    def names(plan: autoshard.Plan) -> set[str]:
        return {row.name for row in plan.data.baselines}

    def apply(model: Any, x: Any) -> Any:
        return model(x)

    with nnx.use_eager_sharding(False):
        assert "yours" in names(planned(apply, model((None, "data")), shape(64, 512)))
        assert "yours" not in names(planned(apply, model((None, "embed")), shape(64, 512)))


def test_where_nothing_was_asked_no_note_says_so() -> None:
    plan = planned(mlp, {"w": shape(7, 5), "v": shape(5, 3)}, shape(3, 7))
    assert not [note for note in plan.data.notes if "under what was asked" in note]
