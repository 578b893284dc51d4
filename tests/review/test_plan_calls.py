"""What a plan says of single arguments and of shardings it cannot price."""

from __future__ import annotations

import math
from pathlib import Path
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
        hardware="cpu-host",
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
    assert plan.price({path: half}) is None
    assert plan.price({path: plan.data.values[path]}) == pytest.approx(plan.data.seconds)


def test_a_plan_whose_misses_nobody_can_price_is_saved_and_read_back(tmp_path: Path) -> None:
    def through_host(x: Any) -> Any:
        return jax.pure_callback(np.sin, X, x) * 2  # XLA runs it on one device, whole

    plan = autoshard.optimize(through_host, X, mesh="data=8", hardware="cpu-host")
    plan.save(tmp_path / "plan.json")
    assert [miss.extra_seconds for miss in plan.data.misses] == [None]
    loaded = autoshard.load_plan(tmp_path / "plan.json")
    assert loaded.data.misses == plan.data.misses
    assert "unknown" in loaded.report()


def test_a_python_scalar_in_place_of_an_array_is_refused_by_its_name() -> None:
    rate = jax.ShapeDtypeStruct((), np.dtype(np.float32))
    plan = autoshard.optimize(lambda x, rate: x * rate, X, rate, mesh="data=8", hardware="cpu-host")
    with pytest.raises(
        PlanError,
        match=r"argument `rate` is float32\[\] of a Python scalar, the plan was made for float32",
    ):
        plan.jit()(jnp.ones((64, 32)), 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hardware": "abacus"}, 'no hardware is named "abacus"'),
        ({"hardware": "abacus.yaml"}, "the file cannot be read"),
        ({"hardware": None}, "expected a machine, found NoneType"),
        ({"solver": "oracle"}, "there is no solver called 'oracle'"),
        ({"relative_gap": -0.1}, "relative_gap is -0.1, which is no amount"),
        ({"time_limit_seconds": math.nan}, "time_limit_seconds is nan, which is no amount"),
        ({"mesh": "a=100,b=100", "hardware": "tpu-v5p"}, "no slice of this family holds"),
    ],
)
def test_an_option_nobody_can_use_is_an_input_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        autoshard.optimize(
            lambda x: x * 2, X, **{"mesh": "data=8", "hardware": "cpu-host", **options}
        )


def test_donated_arguments_may_be_counted_from_the_end() -> None:
    def step(x: Any, w: Any) -> Any:
        return x + 1, jnp.sum(w)

    sizes = [
        autoshard.optimize(step, X, W, mesh="data=8", hardware="cpu-host", donate_argnums=number)
        .jit()
        .lower(X, W)
        .compile()
        .memory_analysis()
        .alias_size_in_bytes
        for number in (0, -2)
    ]
    assert sizes[0] == sizes[1] > 0
