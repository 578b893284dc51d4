"""The program that computes all again that frees memory, beside `jax.checkpoint` of its layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.planning.solution import Solution
from autoshard.remat_search import RematSearch
from experiments.workloads.registry import WORKLOADS
from experiments.workloads.workload import Workload


class _FoundError(Exception):
    """The leanest program is planned."""


def planned(of: Workload, budget: int, remat: str) -> autoshard.Plan:
    return autoshard.optimize(
        of.step,
        of.state,
        of.batch,
        mesh="data=2,model=4",
        hardware="cpu-host",
        memory_budget=budget,
        donate_argnums=of.donate_argnums,
        baselines=False,
        schedules="none",
        remat=remat,
    )


def leanest(of: Workload, budget: int, monkeypatch: pytest.MonkeyPatch) -> Solution:
    found: list[Solution | None] = []

    def told(search: RematSearch, *_: Any) -> Any:
        found.append(search._tried[0].solution)
        raise _FoundError

    monkeypatch.setattr(RematSearch, "_walk", told)
    with pytest.raises(_FoundError):
        planned(of, budget, "auto")
    assert found[0] is not None
    return found[0]


def mlp_under_a_head(*, remat: bool) -> Workload:
    """Scanned layers under a head as large as all of them."""

    def loss(weights: Any, x: jax.Array) -> Any:
        def body(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            return x + jnp.tanh(x @ w["up"]) @ w["down"], None

        out, _ = jax.lax.scan(jax.checkpoint(body) if remat else body, x, weights["layers"])
        return jnp.mean(jax.nn.logsumexp(out @ weights["head"], axis=-1))

    def step(weights: Any, x: jax.Array) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x))

    def init(_: jax.Array) -> Any:
        layers = {"up": jnp.zeros((4, 128, 512)), "down": jnp.zeros((4, 512, 128))}
        return {"layers": layers, "head": jnp.zeros((128, 16384))}

    return Workload(name="mlp", step=step, init=init, make_batch=lambda _: jnp.zeros((4096, 128)))


def workload(name: str, *, remat: bool) -> Workload:
    if name == "mlp under a head":
        return mlp_under_a_head(remat=remat)
    preset = WORKLOADS[name]
    return preset.build(name, replace(preset.config, remat=remat))


@pytest.mark.parametrize(
    "name",
    [
        "mlp under a head",
        *(pytest.param(f"{one}_scan", marks=pytest.mark.slow) for one in ("gpt", "llama", "ssm")),
    ],
)
def test_it_is_no_larger_and_no_slower_than_checkpointed_layers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head is kept: the backward pass begins with it, so that nothing is freed meanwhile."""
    checkpointed, written = (workload(name, remat=remat) for remat in (True, False))
    least = planned(checkpointed, 1000, "keep").data.memory.peak_bytes
    assert leanest(written, 1000, monkeypatch).peak_bytes <= 1.01 * least
    budget = int(1.1 * least)
    found = leanest(written, budget, monkeypatch)
    assert found.is_feasible
    monkeypatch.undo()
    assert found.step_seconds <= 1.001 * planned(checkpointed, budget, "keep").data.priced_seconds
