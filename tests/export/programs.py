"""Small programs to plan and export: a loop, branches, a shard_map body, groups, keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.shard_alike import shard_alike
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import autoshard

MESH = "x=2,y=4"


def train_step(params: Any, x: Any) -> Any:
    """A scan over layers, differentiated, with an op that Shardy has no rule for."""

    def loss(params: Any) -> Any:
        def layer(carry: Any, weight: Any) -> tuple[Any, None]:
            return jnp.tanh(carry @ weight) + jax.lax.erf(carry), None

        last, _ = jax.lax.scan(layer, x, params["w"])
        return jnp.mean((last @ params["o"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def branching(x: Any, which: Any) -> Any:
    """Branches with a matmul each, and a sort after them."""
    chosen = jax.lax.cond(which > 0, lambda v: v @ v.T, lambda v: jnp.sin(v @ v.T), x)
    return jnp.sort(chosen, axis=1)


def mapped(x: Any, w: Any) -> Any:
    """A shard_map body over one axis, between ops that are planned."""
    body = jax.shard_map(
        lambda piece: piece - jax.lax.pmean(piece, "x"),
        mesh=AbstractMesh((2, 4), ("x", "y")),
        in_specs=P("x"),
        out_specs=P("x"),
        axis_names={"x"},
    )
    return body(jnp.tanh(x @ w)) @ w.T


def grouped(x: Any, y: Any) -> tuple[Any, Any]:
    """Two tensors without a common reader that must lie alike."""
    a, b = shard_alike(x * 2.0, y + 1.0)
    return a @ a.T, b


def on_examples(x: Any) -> Any:
    """A call in which each device sorts the rows that it has, in a `shard_map` of the plan."""

    def called(rows: Any) -> tuple[Any, Any]:
        largest = jax.lax.top_k(jnp.tanh(rows), 4)[0]
        return largest, jnp.sin(largest).sum(0)

    return jax.jit(called)(x)


def convolved(x: Any) -> Any:
    """A convolution whose image is cut along space, and whose result in features too."""
    kernel = jnp.cos(jnp.arange(24.0)).reshape(3, 1, 8)
    numbers = ("NWC", "WIO", "NWC")
    return jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=numbers)


def arrays(*shapes: tuple[int, ...]) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    return tuple((rng.normal(size=shape) * 0.1).astype(np.float32) for shape in shapes)


def train_arguments(batch: int = 2048) -> tuple[Any, ...]:
    w, o, x = arrays((4, 64, 64), (64, 32), (batch, 64))
    return {"w": w, "o": o}, x


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "train": (train_step, train_arguments()),
    "branches": (branching, (*arrays((128, 64)), np.int32(1))),
    "mapped": (mapped, arrays((512, 64), (64, 64))),
    "grouped": (grouped, arrays((256, 64), (256, 64))),
    "examples": (on_examples, arrays((256, 64))),
    "convolved": (convolved, arrays((3, 8, 1))),
}


ASKED = {
    "branches": (P("x", "y"), None),
    "mapped": (P("x"), P(None, "y")),
    "grouped": (P(("x", "y")), None),
    "examples": (P(("x", "y")),),
    "convolved": (P(None, "x"),),
}
"""Asked of arguments, so that small programs too are cut."""
ASKED_BACK = {"convolved": P(None, "x", "y")}
"""Asked of results."""


def planned(name: str) -> tuple[autoshard.Plan, tuple[Any, ...]]:
    function, args = PROGRAMS[name]
    plan = autoshard.optimize(
        function,
        *args,
        mesh=MESH,
        hardware="cpu-host",
        in_shardings=ASKED.get(name),
        out_shardings=ASKED_BACK.get(name),
        baselines=False,
    )
    return plan, args
