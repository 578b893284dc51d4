"""A language model with attention beside the MLP and one key head, trained with Muon.

Sources: Wang and Komatsuzaki (2021) for parallel blocks; Shazeer (2019) for one key head; Jordan et
al. (2024) for the optimizer, with the update of other leaves divided by its size.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.attention import grouped_causal_attention
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.layer_stack import apply_layers, init_layers
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import layer_norm, rms_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.tokens import token_batch
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.775, 2.0315)


@dataclass(frozen=True, slots=True, kw_only=True)
class MuonConfig:
    """Sizes of the model.

    Attributes:
        layers: Number of blocks, stacked and scanned over.
        d_model: Width of the residual stream.
        heads: Query heads; divides `d_model`.
        d_ff: Width inside an MLP.
        vocab: Number of token ids.
        seq: Tokens in one sequence.
        batch: Sequences in one step.
        compute_dtype: Type of activations and matmuls.
    """

    layers: int = 2
    d_model: int = 64
    heads: int = 8
    d_ff: int = 256
    vocab: int = 256
    seq: int = 32
    batch: int = 16
    compute_dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.d_model % self.heads:
            raise ValueError(f"d_model={self.d_model} is not a multiple of heads={self.heads}")


def init_block(key: jax.Array, config: MuonConfig) -> PyTree:
    d_model, d_ff = config.d_model, config.d_ff
    q_key, k_key, v_key, o_key, up_key, down_key = jax.random.split(key, 6)
    head_dim = d_model // config.heads
    return {
        "norm": {"scale": jnp.ones(d_model), "bias": jnp.zeros(d_model)},
        "wq": scaled_normal(q_key, (d_model, d_model), d_model),
        "wk": scaled_normal(k_key, (d_model, head_dim), d_model),
        "wv": scaled_normal(v_key, (d_model, head_dim), d_model),
        "wo": scaled_normal(o_key, (d_model, d_model), d_model),
        "up": scaled_normal(up_key, (d_model, d_ff), d_model),
        "down": scaled_normal(down_key, (d_ff, d_model), d_ff),
    }


def init_params(key: jax.Array, config: MuonConfig) -> PyTree:
    embed_key, blocks_key = jax.random.split(key)
    return {
        "embed": 0.1 * jax.random.normal(embed_key, (config.vocab, config.d_model)),
        "blocks": init_layers(
            lambda block_key: init_block(block_key, config), blocks_key, config.layers, scan=True
        ),
        "norm": jnp.ones(config.d_model),
    }


def block(x: jax.Array, params: PyTree, heads: int) -> jax.Array:
    batch, seq, d_model = x.shape
    normal = layer_norm(x, **params["norm"])
    q, k, v = (normal @ params[name].astype(x.dtype) for name in ("wq", "wk", "wv"))
    q = q.reshape(batch, seq, heads, d_model // heads)
    ones = jnp.ones(d_model // heads)
    mixed = grouped_causal_attention(
        rms_norm(q, ones), rms_norm(k, ones)[:, :, None], v[:, :, None]
    )
    hidden = jnp.square(jax.nn.relu(normal @ params["up"].astype(x.dtype)))
    attended = mixed.reshape(batch, seq, d_model) @ params["wo"].astype(x.dtype)
    return pinned(x + attended + hidden @ params["down"].astype(x.dtype))


def loss_fn(params: PyTree, batch: PyTree, config: MuonConfig) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    x = apply_layers(
        lambda x, layer: block(x, layer, config.heads),
        pinned(params["embed"][batch["tokens"]].astype(dtype)),
        params["blocks"],
        scan=True,
        remat=True,
    )
    x = rms_norm(x, params["norm"])
    logits = (x @ params["embed"].T.astype(dtype)).astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]))


def orthogonalized(matrices: jax.Array) -> jax.Array:
    """Bring the singular values of each matrix near 1 by Newton-Schulz iterations.

    Args:
        matrices: float32[..., rows, columns].

    Returns:
        The same shape; the iterations run in bfloat16.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = jnp.swapaxes(matrices, -1, -2) if is_tall else matrices
    norm = jnp.sqrt(jnp.sum(jnp.square(x), axis=(-2, -1), keepdims=True))
    x = (x / (norm + 1e-7)).astype(jnp.bfloat16)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ jnp.swapaxes(x, -1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = x.astype(jnp.float32)
    return jnp.swapaxes(x, -1, -2) if is_tall else x


def muon(learning_rate: float) -> optax.GradientTransformation:
    """Momentum, orthogonalized for the matrices of blocks and divided by its size elsewhere."""

    def update_of(path: jax.tree_util.KeyPath, moment: jax.Array) -> jax.Array:
        if "blocks" in jax.tree_util.keystr(path) and moment.ndim > 2:
            return -learning_rate * orthogonalized(moment)
        return -learning_rate * moment / (jnp.sqrt(jnp.mean(jnp.square(moment))) + 1e-8)

    def update(grads: PyTree, moments: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        del params
        moments = jax.tree.map(lambda old, new: MOMENTUM * old + new, moments, grads)
        return jax.tree_util.tree_map_with_path(update_of, moments), moments

    return optax.GradientTransformation(lambda params: jax.tree.map(jnp.zeros_like, params), update)


MEGATRON = {
    "params['embed']": ("model", None),
    "['wq']": (None, "model"),
    "['wo']": ("model", None),
    "['up']": (None, "model"),
    "['down']": ("model", None),
}
"""Query heads, MLP width and vocabulary cut; the one key head is whole."""


def build(name: str, config: MuonConfig) -> Workload:
    """Build the training workload of the model and its optimizer."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: token_batch(
            key, batch=config.batch, seq=config.seq, vocab=config.vocab
        ),
        megatron=rule_by_path_end(MEGATRON),
        optimizer=muon(1e-3),
    )
