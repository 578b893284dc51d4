"""A multilayer perceptron that fits a regression target."""

from __future__ import annotations

import re
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from experiments.workloads.initializers import scaled_normal
from experiments.workloads.pinning import pinned
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig:
    """Sizes of the perceptron.

    Attributes:
        layers: Number of weight matrices.
        features: Width of inputs and outputs.
        hidden: Width between layers.
        batch: Examples in one step.
    """

    layers: int = 4
    features: int = 64
    hidden: int = 256
    batch: int = 64


def init_params(key: jax.Array, config: MlpConfig) -> PyTree:
    widths = [config.features, *[config.hidden] * (config.layers - 1), config.features]
    keys = jax.random.split(key, config.layers)
    return {
        "layers": [
            {"w": scaled_normal(layer_key, (fan_in, fan_out), fan_in), "b": jnp.zeros(fan_out)}
            for layer_key, fan_in, fan_out in zip(keys, widths[:-1], widths[1:], strict=True)
        ]
    }


def loss_fn(params: PyTree, batch: PyTree) -> jax.Array:
    x = batch["x"]
    *hidden_layers, last = params["layers"]
    for index, layer in enumerate(hidden_layers):
        x = jax.nn.gelu(x @ layer["w"] + layer["b"])
        x = pinned(x) if index % 2 else x  # between the layers of a pair it may be cut by columns
    prediction = pinned(x @ last["w"] + last["b"])
    return jnp.mean(jnp.square(prediction - batch["y"]))


def make_batch(key: jax.Array, config: MlpConfig) -> PyTree:
    x_key, y_key = jax.random.split(key)
    shape = (config.batch, config.features)
    return {"x": jax.random.normal(x_key, shape), "y": jax.random.normal(y_key, shape)}


def megatron_rule(path: str, shape: tuple[int, ...]) -> tuple[str | None, ...] | None:
    """Cut even layers by columns and odd ones by rows, so that pairs meet in one all-reduce."""
    found = re.search(r"\['layers'\]\[(\d+)\]", path)
    if found is None:
        return None
    by_columns = int(found[1]) % 2 == 0
    if len(shape) == 2:
        return (None, "model") if by_columns else ("model", None)
    return ("model",) if by_columns else None


def build(name: str, config: MlpConfig) -> Workload:
    """Build the perceptron's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=loss_fn,
        make_batch=lambda key: make_batch(key, config),
        megatron=megatron_rule,
    )
