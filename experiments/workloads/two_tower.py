"""A retrieval model: one tower reads a user's history, the other an item, their answers multiply.

Items of a batch are negatives for one another, corrected by how often each is drawn. Tables are
trained with one Adagrad accumulator for each row, everything else with one for each number.

Sources: Yi et al. (2019); Gupta et al. (2014), section 3, for rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.attention import MASKED
from experiments.workloads.clip import normalized
from experiments.workloads.embedding import init_mlp, megatron_rule, mlp
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.pinning import pinned
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload

TEMPERATURE = 0.05
START = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoTowerConfig:
    """Sizes of the model.

    Attributes:
        users: Rows of the table of users.
        items: Rows of the table of items, which histories are looked up in as well.
        tags: Rows of the table of tags.
        contexts: Rows of each table of what else is known about a user.
        history: Items that a user looked at, at most.
        tags_per_item: Tags of an item, on average.
        d_embed: Width of a row.
        hidden: Hidden widths of a tower.
        d_out: Width in which users and items are compared.
        batch: Pairs in one step.
    """

    users: int = 2048
    items: int = 1024
    tags: int = 256
    contexts: tuple[int, ...] = (64, 24)
    history: int = 8
    tags_per_item: int = 4
    d_embed: int = 32
    hidden: tuple[int, ...] = (128,)
    d_out: int = 32
    batch: int = 64


def init_params(key: jax.Array, config: TwoTowerConfig) -> PyTree:
    user_key, item_key, tables_key = jax.random.split(key, 3)
    named = {"user": config.users, "item": config.items, "tag": config.tags}
    named.update({f"context_{index}": rows for index, rows in enumerate(config.contexts)})
    keys = jax.random.split(tables_key, len(named))
    wide = (2 + len(config.contexts)) * config.d_embed
    return {
        "tables": {
            name: scaled_normal(table_key, (rows, config.d_embed), config.d_embed)
            for table_key, (name, rows) in zip(keys, named.items(), strict=True)
        },
        "user": init_mlp(user_key, (wide, *config.hidden, config.d_out)),
        "item": init_mlp(item_key, (2 * config.d_embed, *config.hidden, config.d_out)),
    }


def rows_of(table: jax.Array, ids: jax.Array) -> jax.Array:
    return pinned(jnp.take(table, ids, axis=0, mode="clip"))


def user_tower(params: PyTree, batch: PyTree) -> jax.Array:
    tables = params["tables"]
    is_seen = jnp.arange(batch["history"].shape[1]) < batch["num_seen"][:, None]
    seen = rows_of(tables["item"], batch["history"]) * is_seen[..., None]
    mean = jnp.sum(seen, axis=1) / jnp.maximum(batch["num_seen"], 1)[:, None]
    contexts = [
        rows_of(tables[f"context_{index}"], batch["context"][:, index])
        for index in range(batch["context"].shape[1])
    ]
    known = [rows_of(tables["user"], batch["user"]), mean, *contexts]
    return normalized(mlp(jnp.concatenate(known, axis=-1), params["user"]))


def item_tower(params: PyTree, batch: PyTree) -> jax.Array:
    tables, num_items = params["tables"], batch["item"].shape[0]
    # All tags of all items, one after the other, each beside the place of its item.
    bags = jax.ops.segment_sum(
        rows_of(tables["tag"], batch["tags"]),
        batch["tagged"],
        num_segments=num_items,
        indices_are_sorted=True,
    )
    known = [rows_of(tables["item"], batch["item"]), pinned(bags)]
    return normalized(mlp(jnp.concatenate(known, axis=-1), params["item"]))


def sampled_softmax_loss(
    users: jax.Array, items: jax.Array, ids: jax.Array, log_q: jax.Array
) -> jax.Array:
    """Cross-entropy of finding each user's item among all items of the batch.

    Args:
        users: float32[batch, d], rows of length 1.
        items: Likewise; row for row what belongs together.
        ids: int32[batch], of the items; an item that is drawn twice is no negative of itself.
        log_q: float32[batch], logarithm of how probable it is that an item is drawn.
    """
    logits = users @ items.T / TEMPERATURE - log_q
    place = jnp.arange(ids.shape[0])
    is_hit = (ids[:, None] == ids) & (place[:, None] != place)
    logits = jnp.where(is_hit, MASKED, logits)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, place))


def loss_fn(params: PyTree, batch: PyTree) -> jax.Array:
    users, items = pinned(user_tower(params, batch)), pinned(item_tower(params, batch))
    return sampled_softmax_loss(users, items, batch["item"], batch["log_q"])


def rowwise_adagrad(learning_rate: float) -> optax.GradientTransformation:
    """Adagrad, with the mean square of a row in the place of its squares for `tables`."""

    def is_table(path: jax.tree_util.KeyPath) -> bool:
        return "['tables']" in jax.tree_util.keystr(path)

    def start(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
        return jnp.full((leaf.shape[0], 1) if is_table(path) else leaf.shape, START, leaf.dtype)

    def added(path: jax.tree_util.KeyPath, grad: jax.Array, total: jax.Array) -> jax.Array:
        square = jnp.square(grad)
        return total + (jnp.mean(square, axis=1, keepdims=True) if is_table(path) else square)

    def update(grads: PyTree, totals: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        del params
        totals = jax.tree_util.tree_map_with_path(added, grads, totals)
        steps = jax.tree.map(
            lambda grad, total: -learning_rate * grad * jax.lax.rsqrt(total + 1e-10), grads, totals
        )
        return steps, totals

    return optax.GradientTransformation(
        lambda params: jax.tree_util.tree_map_with_path(start, params), update
    )


def make_batch(key: jax.Array, config: TwoTowerConfig) -> PyTree:
    keys, batch = jax.random.split(key, 8), config.batch
    num_tags = batch * config.tags_per_item

    def ids(id_key: jax.Array, shape: tuple[int, ...], rows: int | jax.Array) -> jax.Array:
        return jax.random.randint(id_key, shape, 0, rows, dtype=jnp.int32)

    return {
        "user": ids(keys[0], (batch,), config.users),
        "context": ids(
            keys[1], (batch, len(config.contexts)), jnp.asarray(config.contexts, jnp.int32)
        ),
        "history": ids(keys[2], (batch, config.history), config.items),
        "num_seen": ids(keys[3], (batch,), config.history + 1),
        "item": ids(keys[4], (batch,), config.items),
        "tags": ids(keys[5], (num_tags,), config.tags),
        "tagged": jnp.sort(ids(keys[6], (num_tags,), batch)),
        "log_q": -jax.random.uniform(keys[7], (batch,), minval=2.0, maxval=8.0),
    }


def build(name: str, config: TwoTowerConfig) -> Workload:
    """Build the retrieval model's training workload; by hand, the rows of tables are dealt out."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=loss_fn,
        make_batch=lambda key: make_batch(key, config),
        megatron=megatron_rule,
        optimizer=rowwise_adagrad(1e-2),
    )
