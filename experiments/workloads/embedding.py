"""A click predictor on big embedding tables, with dot products between features.

Each categorical feature is a bag of ids looked up in its own table; the gradient of a table is a
scatter-add of the rows that were looked up.

Source: Naumov et al. (2019), DLRM.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.workloads.initializers import scaled_normal
from experiments.workloads.pinning import pinned
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    """Sizes of the model.

    Attributes:
        rows: Rows of each table.
        bag: Ids looked up in one table per example.
        d_embed: Width of a row.
        dense_features: Numbers per example beside the ids.
        bottom: Hidden widths of the MLP over the dense features.
        top: Hidden widths of the MLP over the interactions.
        batch: Examples in one step.
    """

    rows: tuple[int, ...] = (2048, 1024, 1024, 512)
    bag: int = 4
    d_embed: int = 32
    dense_features: int = 16
    bottom: tuple[int, ...] = (64,)
    top: tuple[int, ...] = (128, 64)
    batch: int = 64


def init_mlp(key: jax.Array, widths: tuple[int, ...]) -> PyTree:
    keys = jax.random.split(key, len(widths) - 1)
    return [
        {"w": scaled_normal(layer_key, (fan_in, fan_out), fan_in), "b": jnp.zeros(fan_out)}
        for layer_key, fan_in, fan_out in zip(keys, widths[:-1], widths[1:], strict=True)
    ]


def init_params(key: jax.Array, config: EmbeddingConfig) -> PyTree:
    tables_key, bottom_key, top_key = jax.random.split(key, 3)
    table_keys = jax.random.split(tables_key, len(config.rows))
    num_features = len(config.rows) + 1
    interactions = num_features * (num_features - 1) // 2
    return {
        "tables": [
            scaled_normal(table_key, (rows, config.d_embed), config.d_embed)
            for table_key, rows in zip(table_keys, config.rows, strict=True)
        ],
        "bottom": init_mlp(bottom_key, (config.dense_features, *config.bottom, config.d_embed)),
        "top": init_mlp(top_key, (config.d_embed + interactions, *config.top, 1)),
    }


def mlp(x: jax.Array, layers: PyTree) -> jax.Array:
    *hidden_layers, last = layers
    for layer in hidden_layers:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


def loss_fn(params: PyTree, batch: PyTree) -> jax.Array:
    dense = pinned(mlp(batch["dense"], params["bottom"]))
    bags = [
        pinned(jnp.sum(jnp.take(table, batch["ids"][:, index], axis=0, mode="clip"), axis=1))
        for index, table in enumerate(params["tables"])
    ]
    features = jnp.stack([dense, *bags], axis=1)
    dots = jnp.einsum("bfd,bgd->bfg", features, features)
    rows, columns = np.tril_indices(features.shape[1], k=-1)
    interactions = dots[:, rows, columns]
    logits = mlp(jnp.concatenate([dense, interactions], axis=-1), params["top"])[:, 0]
    return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, batch["clicked"]))


def make_batch(key: jax.Array, config: EmbeddingConfig) -> PyTree:
    dense_key, ids_key, clicked_key = jax.random.split(key, 3)
    # One bound per table, so that every id is a row of its own table.
    bounds = jnp.asarray(config.rows, dtype=jnp.int32)[None, :, None]
    return {
        "dense": jax.random.normal(dense_key, (config.batch, config.dense_features)),
        "ids": jax.random.randint(
            ids_key, (config.batch, len(config.rows), config.bag), 0, bounds, dtype=jnp.int32
        ),
        "clicked": jax.random.bernoulli(clicked_key, shape=(config.batch,)).astype(jnp.float32),
    }


def megatron_rule(path: str, shape: tuple[int, ...]) -> tuple[str | None, ...] | None:
    """Deal out the rows of every table; the small MLPs stay whole."""
    if "['tables']" not in path:
        return None
    return ("model", *[None] * (len(shape) - 1))


def build(name: str, config: EmbeddingConfig) -> Workload:
    """Build the click predictor's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=loss_fn,
        make_batch=lambda key: make_batch(key, config),
        megatron=megatron_rule,
    )
