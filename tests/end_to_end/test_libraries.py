"""Steps of Flax Linen, Haiku, Equinox and Optax as their users write them, on 8 CPU devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

optax = pytest.importorskip("optax", reason="Optax is not installed")

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (32, 64))
Step = tuple[Callable[..., Any], tuple[Any, ...]]


def trained(apply: Callable[..., Any], params: Any, optimizer: Any) -> Step:
    def step(params: Any, state: Any, x: Any) -> Any:
        grads = jax.grad(lambda p: jnp.mean((apply(p, x) - 1.0) ** 2))(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step, (params, optimizer.init(params), X)


def linen(optimizer: Any) -> Step:
    nn = pytest.importorskip("flax.linen", reason="Flax is not installed")
    model = nn.Sequential([nn.Dense(256), nn.LayerNorm(), nn.gelu, nn.Dense(64)])
    return trained(model.apply, model.init(KEY, X), optimizer)


def haiku(optimizer: Any) -> Step:
    hk = pytest.importorskip("haiku", reason="Haiku is not installed")

    def forward(x: Any) -> Any:
        return hk.nets.MLP([256, 64])(x)

    net = hk.without_apply_rng(hk.transform(forward))
    return trained(net.apply, net.init(KEY, X), optimizer)


def equinox(optimizer: Any) -> Step:
    eqx = pytest.importorskip("equinox", reason="Equinox is not installed")
    params, static = eqx.partition(eqx.nn.MLP(64, 64, 256, 2, key=KEY), eqx.is_array)
    return trained(lambda params, x: jax.vmap(eqx.combine(params, static))(x), params, optimizer)


OPTIMIZERS = {
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=16),
    "muon": lambda: optax.contrib.muon(1e-2),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2)),
}


@pytest.mark.parametrize(
    ("library", "name"), [(linen, "adafactor"), (haiku, "chain"), (equinox, "muon")]
)
def test_a_step_of_a_library_gives_the_numbers_of_jax_jit(
    library: Callable[[Any], Step], name: str
) -> None:
    step, args = library(OPTIMIZERS[name]())
    plan = autoshard.optimize(
        step,
        *args,
        mesh="data=2,model=4",
        hardware="cpu-host",
        donate_argnums=(0, 1),
        time_limit_seconds=20,
    )
    assert plan.data.is_feasible
    assert plan.data.priced_seconds <= min(map(plan.data.priced_seconds_of, plan.data.baselines))
    run = plan.jit(donate_argnums=())
    found, expected = args, args
    for _ in range(2):
        found = (*run(*found), X)
        expected = (*jax.jit(step)(*expected), X)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)
