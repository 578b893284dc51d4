"""What a plan says of single arguments and of shardings it cannot price."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.errors import InputError, PlanError
from autoshard.sharding import AxisRef, DimSharding, Sharding

X = jax.ShapeDtypeStruct((64, 32), np.dtype(np.float32))
W = jax.ShapeDtypeStruct((32, 16), np.dtype(np.float32))


def power(x: Any, exponent: int, w: Any) -> Any:
    return (x @ w) ** exponent


def planned() -> autoshard.Plan:
    return autoshard.optimize(
        power,
        X,
        3,
        W,
        mesh="data=8",
        static_argnums=1,
        in_shardings=(P("data", None), P(None, "data")),
    )


def test_arguments_are_counted_with_the_static_ones() -> None:
    plan = planned()
    assert plan.shard(jnp.ones((32, 16)), 2).sharding.spec == P(None, "data")
    assert plan.shard(jnp.ones((32, 16)), -1).sharding.spec == P(None, "data")
    made = plan.init(lambda: jnp.ones((64, 32)), argument=0)()
    assert made.sharding.spec == P("data", None)


@pytest.mark.parametrize("argument", [1, 3, -4])
def test_a_static_argument_has_no_sharding(argument: int) -> None:
    with pytest.raises(InputError, match=f"argument {argument} has no sharding: of 3 positional"):
        planned().shard(jnp.ones((32, 16)), argument)


def test_what_the_planner_cannot_say_has_no_price() -> None:
    plan = planned()
    assert plan.price is not None
    (path,) = [path for path, s in plan.data.values.items() if s.rank == 2][:1]
    half = Sharding((DimSharding((AxisRef("data", 1, 2),)), DimSharding()))  # data is one part here
    assert math.isnan(plan.price({path: half}))
    assert plan.price({path: plan.data.values[path]}) == pytest.approx(plan.data.seconds)


def test_a_python_scalar_in_place_of_an_array_is_refused_by_its_name() -> None:
    rate = jax.ShapeDtypeStruct((), np.dtype(np.float32))
    plan = autoshard.optimize(lambda x, rate: x * rate, X, rate, mesh="data=8")
    with pytest.raises(
        PlanError,
        match=r"argument `rate` is float32\[\] of a Python scalar, the plan was made for float32",
    ):
        plan.jit()(jnp.ones((64, 32)), 0.5)
