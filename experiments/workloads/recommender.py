"""A recommender with many tables, the large ones narrow, crossed feature by feature.

Each feature is looked up in a table of its own and projected to one width; a low-rank cross network
lies beside an MLP. Tables and weights are trained with Adagrad.

Sources: Wang et al. (2020), DCN-v2; Ginart et al. (2019), mixed dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.embedding import init_mlp, mlp
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.pinning import pinned
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderConfig:
    """Sizes of the model.

    Attributes:
        rows: Of each table.
        widths: Of the rows of each table.
        d_model: Width that every feature is projected to.
        dense_features: Numbers per example beside the ids.
        rank: Width that a cross layer goes through.
        crosses: Cross layers.
        hidden: Hidden widths of the MLP.
        batch: Examples in one step.
    """

    rows: tuple[int, ...] = (4096, 2048, 1024, 512, 64, 24, 8)
    widths: tuple[int, ...] = (8, 8, 16, 16, 32, 32, 32)
    d_model: int = 32
    dense_features: int = 13
    rank: int = 16
    crosses: int = 2
    hidden: tuple[int, ...] = (128, 64)
    batch: int = 64


def init_params(key: jax.Array, config: RecommenderConfig) -> PyTree:
    tables_key, wide_key, dense_key, cross_key, mlp_key = jax.random.split(key, 5)
    num_tables, d_model = len(config.rows), config.d_model
    width = (num_tables + 1) * d_model
    return {
        "tables": [
            scaled_normal(k, (rows, narrow), narrow)
            for k, rows, narrow in zip(
                jax.random.split(tables_key, num_tables), config.rows, config.widths, strict=True
            )
        ],
        "widen": [
            scaled_normal(k, (narrow, d_model), narrow)
            for k, narrow in zip(jax.random.split(wide_key, num_tables), config.widths, strict=True)
        ],
        "dense": init_mlp(dense_key, (config.dense_features, d_model)),
        "cross": [
            {
                "down": scaled_normal(k, (width, config.rank), width),
                "up": scaled_normal(k, (config.rank, width), config.rank),
                "b": jnp.zeros(width),
            }
            for k in jax.random.split(cross_key, config.crosses)
        ],
        "mlp": init_mlp(mlp_key, (width, *config.hidden, 1)),
    }


def loss_fn(params: PyTree, batch: PyTree) -> jax.Array:
    looked_up = [
        pinned(jnp.take(table, batch["ids"][:, index], axis=0, mode="clip")) @ wide
        for index, (table, wide) in enumerate(zip(params["tables"], params["widen"], strict=True))
    ]
    dense = jnp.log1p(jnp.abs(batch["dense"]))
    start = pinned(jnp.concatenate([mlp(dense, params["dense"]), *looked_up], axis=-1))
    crossed = start
    for cross in params["cross"]:
        crossed = start * (crossed @ cross["down"] @ cross["up"] + cross["b"]) + crossed
    logits = mlp(pinned(crossed), params["mlp"])[:, 0]
    return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, batch["clicked"]))


def make_batch(key: jax.Array, config: RecommenderConfig) -> PyTree:
    dense_key, ids_key, clicked_key = jax.random.split(key, 3)
    bounds = jnp.asarray(config.rows, dtype=jnp.int32)
    shape = (config.batch, len(config.rows))
    return {
        "dense": jax.random.normal(dense_key, (config.batch, config.dense_features)),
        "ids": jax.random.randint(ids_key, shape, 0, bounds, dtype=jnp.int32),
        "clicked": jax.random.bernoulli(clicked_key, shape=(config.batch,)).astype(jnp.float32),
    }


def megatron_rule(path: str, shape: tuple[int, ...]) -> tuple[str | None, ...] | None:
    """Deal out the rows of the tables that have many; all else stays whole."""
    is_large = "['tables']" in path and shape[0] >= 1024
    return ("model", None) if is_large else None


def build(name: str, config: RecommenderConfig) -> Workload:
    """Build the recommender's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=loss_fn,
        make_batch=lambda key: make_batch(key, config),
        megatron=megatron_rule,
        optimizer=optax.adagrad(1e-2),
    )
