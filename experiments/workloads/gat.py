"""A graph network that rates whole graphs: attention over edges, sums and maxima by segment.

Many graphs lie in one list of nodes and one of edges; edges have states of their own.

Source: Brody, Alon and Yahav (2021), GATv2, with updated edges.
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
class GatConfig:
    """Sizes of the graphs and of the model.

    Attributes:
        graphs: Graphs in one step.
        nodes: Nodes of all graphs.
        edges: Directed edges of all graphs.
        node_features: Numbers per node.
        edge_features: Numbers per edge.
        hidden: Width of node and edge states.
        heads: Attention heads; divides `hidden`.
        layers: Rounds of messages.
    """

    graphs: int = 8
    nodes: int = 64
    edges: int = 256
    node_features: int = 16
    edge_features: int = 8
    hidden: int = 64
    heads: int = 4
    layers: int = 2

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"hidden={self.hidden} is not a multiple of heads={self.heads}")


def init_layer(key: jax.Array, config: GatConfig) -> PyTree:
    hidden, head_dim = config.hidden, config.hidden // config.heads
    keys = jax.random.split(key, 6)
    by_head = (hidden, config.heads, head_dim)
    return {
        "sender": scaled_normal(keys[0], by_head, hidden),
        "receiver": scaled_normal(keys[1], by_head, hidden),
        "edge": scaled_normal(keys[2], by_head, hidden),
        "score": scaled_normal(keys[3], (config.heads, head_dim), head_dim),
        "out": scaled_normal(keys[4], (config.heads, head_dim, hidden), hidden),
        "edge_out": scaled_normal(keys[5], (config.heads, head_dim, hidden), hidden),
        "norm": {"scale": jnp.ones(hidden), "bias": jnp.zeros(hidden)},
    }


def init_params(key: jax.Array, config: GatConfig) -> PyTree:
    node_key, edge_key, out_key, layers_key = jax.random.split(key, 4)
    hidden = config.hidden
    return {
        "nodes": scaled_normal(node_key, (config.node_features, hidden), config.node_features),
        "edges": scaled_normal(edge_key, (config.edge_features, hidden), config.edge_features),
        "layers": [init_layer(k, config) for k in jax.random.split(layers_key, config.layers)],
        "out": scaled_normal(out_key, (hidden, 1), hidden),
    }


def segment_softmax(scores: jax.Array, segments: jax.Array, num_segments: int) -> jax.Array:
    """Weights that sum to 1 within each segment.

    Args:
        scores: float32[edges, heads].
        segments: int32[edges].
        num_segments: Number of segments.

    Returns:
        float32[edges, heads].
    """
    highest = jax.ops.segment_max(jax.lax.stop_gradient(scores), segments, num_segments)
    raised = jnp.exp(scores - highest[segments])
    return raised / jax.ops.segment_sum(raised, segments, num_segments)[segments]


def layer(h: jax.Array, e: jax.Array, params: PyTree, batch: PyTree) -> tuple[jax.Array, ...]:
    senders, receivers = batch["senders"], batch["receivers"]
    normal = layer_norm(h, **params["norm"])
    sent = jnp.einsum("nd,dhe->nhe", normal, params["sender"])[senders]
    taken = jnp.einsum("nd,dhe->nhe", normal, params["receiver"])[receivers]
    states = sent + taken + jnp.einsum("nd,dhe->nhe", e, params["edge"])
    states = pinned(jax.nn.leaky_relu(states, 0.2))
    weights = segment_softmax(
        jnp.einsum("nhe,he->nh", states, params["score"]), receivers, h.shape[0]
    )
    received = jax.ops.segment_sum(weights[..., None] * sent, receivers, h.shape[0])
    h = pinned(h + jnp.einsum("nhe,hed->nd", received, params["out"]))
    return h, pinned(e + jnp.einsum("nhe,hed->nd", states, params["edge_out"]))


def loss_fn(params: PyTree, batch: PyTree) -> jax.Array:
    h = pinned(batch["nodes"] @ params["nodes"])
    e = pinned(batch["edges"] @ params["edges"])
    for layer_params in params["layers"]:
        h, e = layer(h, e, layer_params, batch)
    h = h + jax.ops.segment_sum(e, batch["receivers"], h.shape[0])
    graphs = jax.ops.segment_sum(jax.nn.silu(h), batch["graph"], batch["rating"].shape[0])
    return jnp.mean(optax.huber_loss((graphs @ params["out"])[:, 0], batch["rating"]))


def make_batch(key: jax.Array, config: GatConfig) -> PyTree:
    keys = jax.random.split(key, 5)
    num_nodes, num_edges = config.nodes, config.edges
    return {
        "nodes": jax.random.normal(keys[0], (num_nodes, config.node_features)),
        "edges": jax.random.normal(keys[1], (num_edges, config.edge_features)),
        "senders": jax.random.randint(keys[2], (num_edges,), 0, num_nodes, dtype=jnp.int32),
        "receivers": jax.random.randint(keys[3], (num_edges,), 0, num_nodes, dtype=jnp.int32),
        "graph": jnp.arange(num_nodes, dtype=jnp.int32) * config.graphs // num_nodes,
        "rating": jax.random.normal(keys[4], (config.graphs,)),
    }


MEGATRON = {
    "['sender']": (None, "model", None),
    "['receiver']": (None, "model", None),
    "['edge']": (None, "model", None),
    "['score']": ("model", None),
    "['out']": ("model", None, None),
    "['edge_out']": ("model", None, None),
}
"""Heads cut."""


def build(name: str, config: GatConfig) -> Workload:
    """Build the graph network's training workload."""

    def megatron(path: str, shape: tuple[int, ...]) -> tuple[str | None, ...] | None:
        return rule_by_path_end(MEGATRON)(path, shape) if "['layers']" in path else None

    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=loss_fn,
        make_batch=lambda key: make_batch(key, config),
        megatron=megatron,
        optimizer=optax.lamb(1e-3),
    )
