"""Results without elements can be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autoshard

pytestmark = pytest.mark.usefixtures("compiled_here")

MESH = "data=4,model=2"


@pytest.mark.parametrize("fn", [lambda x: x[:0], lambda x: x[:, :0]], ids=["rows", "columns"])
@pytest.mark.parametrize("spec", [P(None, "data"), P("data", None)], ids=str)
def test_what_has_no_elements_comes_back_as_it_does_without_a_plan(
    fn: Callable[[jax.Array], jax.Array], spec: P
) -> None:
    x = jnp.ones((64, 128))
    plan = autoshard.optimize(
        fn, x, mesh=MESH, hardware="cpu-host", in_shardings=(spec,), baselines=False
    )
    assert np.asarray(plan.jit()(x)).shape == fn(x).shape


def test_a_given_up_argument_that_the_user_cuts_keeps_its_sharding() -> None:
    x = jnp.ones((0, 128))
    plan = autoshard.optimize(
        lambda x: x * 2.0,
        x,
        mesh=MESH,
        hardware="cpu-host",
        in_shardings=(P(None, "data"),),
        donate_argnums=0,
        baselines=False,
    )
    assert plan.out_shardings.spec == P(None, "data")


def test_what_is_computed_for_a_result_without_elements_alone_is_not_paid_for() -> None:
    x = jax.ShapeDtypeStruct((1024, 128), np.dtype(np.float32))
    plan = autoshard.optimize(
        lambda x: jnp.sort(x, axis=0)[:0],
        x,
        mesh=MESH,
        hardware="cpu-host",
        in_shardings=(P("data"),),
        baselines=False,
    )
    found = plan.verify("local")
    assert found.predicted_bytes == found.compiled_bytes == 0


def test_what_is_sent_for_a_result_without_elements_alone_is_not_paid_for() -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def fn(x: jax.Array) -> Any:
        rows = jax.shard_map(
            lambda rows: jax.lax.ppermute(rows, "data", [(i, (i + 1) % 4) for i in range(4)]),
            mesh=mesh,
            in_specs=P("data"),
            out_specs=P("data"),
        )(x)
        return jnp.max(rows[:0], axis=1)

    x = jax.ShapeDtypeStruct((1024, 128), np.dtype(np.float32))
    plan = autoshard.optimize(fn, x, mesh=mesh, hardware="cpu-host", baselines=False)
    found = plan.verify("local")
    assert found.predicted_bytes == found.compiled_bytes == 0
