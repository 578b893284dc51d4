"""A graph network that classifies nodes by passing messages along an edge list.

Source: Battaglia et al. (2018), node and edge updates.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.initializers import scaled_normal
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import layer_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class GnnConfig:
    """Sizes of the graph and of the model.

    Attributes:
        nodes: Nodes in the graph.
        edges: Directed edges in the graph.
        node_features: Numbers per node.
        edge_features: Numbers per edge.
        hidden: Width of node states and messages.
        layers: Rounds of messages.
        classes: Classes of a node.
    """

    nodes: int = 64
    edges: int = 256
    node_features: int = 32
    edge_features: int = 8
    hidden: int = 64
    layers: int = 2
    classes: int = 16


def init_dense(key: jax.Array, width_in: int, width_out: int) -> PyTree:
    return {"w": scaled_normal(key, (width_in, width_out), width_in), "b": jnp.zeros(width_out)}


def init_layer(key: jax.Array, config: GnnConfig) -> PyTree:
    hidden = config.hidden
    message_keys, update_keys = jax.random.split(key, (2, 2))
    return {
        "message": [
            init_dense(message_keys[0], 2 * hidden + config.edge_features, hidden),
            init_dense(message_keys[1], hidden, hidden),
        ],
        "update": [
            init_dense(update_keys[0], 2 * hidden, hidden),
            init_dense(update_keys[1], hidden, hidden),
        ],
        "norm": {"scale": jnp.ones(hidden), "bias": jnp.zeros(hidden)},
    }


def init_params(key: jax.Array, config: GnnConfig) -> PyTree:
    encoder_key, layers_key, decoder_key = jax.random.split(key, 3)
    return {
        "encoder": init_dense(encoder_key, config.node_features, config.hidden),
        "layers": [
            init_layer(layer_key, config)
            for layer_key in jax.random.split(layers_key, config.layers)
        ],
        "decoder": init_dense(decoder_key, config.hidden, config.classes),
    }


def dense(x: jax.Array, params: PyTree) -> jax.Array:
    return x @ params["w"] + params["b"]


def mlp(x: jax.Array, layers: PyTree) -> jax.Array:
    first, second = layers
    return dense(jax.nn.relu(dense(x, first)), second)


def loss_fn(params: PyTree, batch: PyTree) -> jax.Array:
    senders, receivers = batch["senders"], batch["receivers"]
    h = pinned(jax.nn.relu(dense(batch["nodes"], params["encoder"])))
    for layer in params["layers"]:
        edges = jnp.concatenate([h[senders], h[receivers], batch["edges"]], axis=-1)
        messages = pinned(mlp(pinned(edges), layer["message"]))
        received = pinned(jax.ops.segment_sum(messages, receivers, num_segments=h.shape[0]))
        update = mlp(jnp.concatenate([h, received], axis=-1), layer["update"])
        h = pinned(layer_norm(h + update, **layer["norm"]))
    logits = dense(h, params["decoder"])
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]))


def make_batch(key: jax.Array, config: GnnConfig) -> PyTree:
    node_key, edge_key, sender_key, receiver_key, label_key = jax.random.split(key, 5)
    num_nodes, num_edges = config.nodes, config.edges
    return {
        "nodes": jax.random.normal(node_key, (num_nodes, config.node_features)),
        "edges": jax.random.normal(edge_key, (num_edges, config.edge_features)),
        "senders": jax.random.randint(sender_key, (num_edges,), 0, num_nodes, dtype=jnp.int32),
        "receivers": jax.random.randint(receiver_key, (num_edges,), 0, num_nodes, dtype=jnp.int32),
        "labels": jax.random.randint(label_key, (num_nodes,), 0, config.classes, dtype=jnp.int32),
    }


MEGATRON = {
    "['message'][0]['w']": (None, "model"),
    "['message'][0]['b']": ("model",),
    "['message'][1]['w']": ("model", None),
    "['update'][0]['w']": (None, "model"),
    "['update'][0]['b']": ("model",),
    "['update'][1]['w']": ("model", None),
}
"""Each two-layer MLP cut by columns, then by rows."""


def build(name: str, config: GnnConfig) -> Workload:
    """Build the graph network's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=loss_fn,
        make_batch=lambda key: make_batch(key, config),
        megatron=rule_by_path_end(MEGATRON),
    )
