"""A speech encoder of convolutions and attention that learns to spell what it hears.

Two strided convolutions over time and mel bands, then scanned blocks of half an MLP, attention, a
depthwise convolution along time and half an MLP; connectionist temporal classification, Lion.

Sources: Gulati et al. (2020), with rotary positions and layer norm; Graves et al. (2006); Chen et
al. (2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.attention import full_attention
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.layer_stack import apply_layers, init_layers
from experiments.workloads.llama import rotary_angles, rotate
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import layer_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.training import training_workload
from experiments.workloads.unet import conv, dense, init_conv, init_dense, init_norm
from experiments.workloads.workload import PyTree, Workload

ROPE_THETA = 10_000.0
SUBSAMPLING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformerConfig:
    """Sizes of the model.

    Attributes:
        frames: Frames of the longest recording, a multiple of `SUBSAMPLING`.
        mel: Mel bands of a frame, likewise.
        channels: Of the two convolutions in front.
        layers: Number of blocks, stacked and scanned over.
        d_model: Width of the residual stream.
        heads: Attention heads; divides `d_model`.
        d_ff: Width inside an MLP.
        kernel: Positions that a block's convolution mixes.
        vocab: Number of letters, the blank among them.
        letters: In the longest text; at most `frames / SUBSAMPLING / 4`.
        batch: Recordings in one step.
        compute_dtype: Type of activations, convolutions and matmuls; the loss stays float32.
    """

    frames: int = 64
    mel: int = 16
    channels: int = 16
    layers: int = 2
    d_model: int = 64
    heads: int = 8
    d_ff: int = 128
    kernel: int = 7
    vocab: int = 32
    letters: int = 4
    batch: int = 16
    compute_dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.frames % SUBSAMPLING or self.mel % SUBSAMPLING:
            raise ValueError(
                f"frames={self.frames} and mel={self.mel} are not multiples of {SUBSAMPLING}"
            )
        if self.d_model % self.heads:
            raise ValueError(f"d_model={self.d_model} is not a multiple of heads={self.heads}")


def init_mlp(key: jax.Array, config: ConformerConfig) -> PyTree:
    up_key, down_key = jax.random.split(key)
    return {
        "norm": init_norm(config.d_model),
        "up": init_dense(up_key, config.d_model, config.d_ff),
        "down": init_dense(down_key, config.d_ff, config.d_model),
    }


def init_block(key: jax.Array, config: ConformerConfig) -> PyTree:
    d_model, heads, kernel = config.d_model, config.heads, config.kernel
    keys = jax.random.split(key, 9)
    by_head = (d_model, heads, d_model // heads)
    return {
        "first": init_mlp(keys[0], config),
        "attn": {
            "norm": init_norm(d_model),
            "q": scaled_normal(keys[1], by_head, d_model),
            "k": scaled_normal(keys[2], by_head, d_model),
            "v": scaled_normal(keys[3], by_head, d_model),
            "o": scaled_normal(keys[4], (heads, d_model // heads, d_model), d_model),
        },
        "conv": {
            "norm": init_norm(d_model),
            "gated": init_dense(keys[5], d_model, 2 * d_model),
            "kernel": scaled_normal(keys[6], (kernel, 1, d_model), kernel),
            "inner_norm": init_norm(d_model),
            "out": init_dense(keys[7], d_model, d_model),
        },
        "second": init_mlp(keys[8], config),
        "norm": init_norm(d_model),
    }


def init_params(key: jax.Array, config: ConformerConfig) -> PyTree:
    first_key, second_key, in_key, blocks_key, head_key = jax.random.split(key, 5)
    width = config.mel // SUBSAMPLING * config.channels
    return {
        "stem": [
            init_conv(first_key, 3, 1, config.channels),
            init_conv(second_key, 3, config.channels, config.channels),
        ],
        "in": init_dense(in_key, width, config.d_model),
        "blocks": init_layers(
            lambda block_key: init_block(block_key, config), blocks_key, config.layers, scan=True
        ),
        "head": init_dense(head_key, config.d_model, config.vocab),
    }


def mlp(x: jax.Array, params: PyTree) -> jax.Array:
    return dense(jax.nn.silu(dense(layer_norm(x, **params["norm"]), params["up"])), params["down"])


def attention(x: jax.Array, params: PyTree, is_heard: jax.Array) -> jax.Array:
    normal = layer_norm(x, **params["norm"])
    q, k, v = (jnp.einsum("btd,dhe->bthe", normal, params[name]) for name in ("q", "k", "v"))
    angles = rotary_angles(x.shape[1], q.shape[-1], ROPE_THETA)
    mixed = full_attention(rotate(q, *angles), rotate(k, *angles), v, is_heard[:, None, None])
    return jnp.einsum("bthe,hed->btd", mixed, params["o"])


def convolution(x: jax.Array, params: PyTree, is_heard: jax.Array) -> jax.Array:
    """Gate each channel of [batch, time, channels], then mix it along time."""
    gated = jax.nn.glu(dense(layer_norm(x, **params["norm"]), params["gated"]))
    mixed = jax.lax.conv_general_dilated(
        jnp.where(is_heard[..., None], gated, 0),
        params["kernel"],
        window_strides=(1,),
        padding="SAME",
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=x.shape[-1],
    )
    return dense(jax.nn.silu(layer_norm(mixed, **params["inner_norm"])), params["out"])


def block(x: jax.Array, params: PyTree, is_heard: jax.Array) -> jax.Array:
    x = pinned(x + 0.5 * mlp(x, params["first"]))
    x = pinned(x + attention(x, params["attn"], is_heard))
    x = pinned(x + convolution(x, params["conv"], is_heard))
    return pinned(layer_norm(x + 0.5 * mlp(x, params["second"]), **params["norm"]))


def loss_fn(params: PyTree, batch: PyTree, config: ConformerConfig) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    x = batch["frames"].astype(dtype)[..., None]
    for stem in params["stem"]:
        x = pinned(jax.nn.relu(conv(x, stem, stride=2)))
    x = pinned(dense(x.reshape(*x.shape[:2], -1), params["in"]))
    is_heard = jnp.arange(x.shape[1]) < batch["num_frames"][:, None] // SUBSAMPLING
    x = apply_layers(
        lambda x, layer: block(x, layer, is_heard), x, params["blocks"], scan=True, remat=False
    )
    logits = dense(x, params["head"]).astype(jnp.float32)
    is_letter = jnp.arange(config.letters) < batch["num_letters"][:, None]
    paddings = (1.0 - mask.astype(jnp.float32) for mask in (is_heard, is_letter))
    losses = optax.ctc_loss(logits, next(paddings), batch["letters"], next(paddings))
    return jnp.mean(losses / batch["num_letters"])


def make_batch(key: jax.Array, config: ConformerConfig) -> PyTree:
    keys, each = jax.random.split(key, 4), (config.batch,)
    frames, letters = config.frames, config.letters
    return {
        "frames": jax.random.normal(keys[0], (config.batch, frames, config.mel)),
        "num_frames": jax.random.randint(keys[1], each, frames // 2, frames + 1, dtype=jnp.int32),
        "letters": jax.random.randint(
            keys[2], (config.batch, letters), 1, config.vocab, dtype=jnp.int32
        ),
        "num_letters": jax.random.randint(keys[3], each, 1, letters + 1, dtype=jnp.int32),
    }


MEGATRON = {
    "['up']['w']": (None, "model"),
    "['up']['b']": ("model",),
    "['down']['w']": ("model", None),
    "['q']": (None, "model", None),
    "['k']": (None, "model", None),
    "['v']": (None, "model", None),
    "['o']": ("model", None, None),
}
"""MLP width and heads cut; convolutions and the few letters stay whole."""


def build(name: str, config: ConformerConfig) -> Workload:
    """Build the speech encoder's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: make_batch(key, config),
        megatron=rule_by_path_end(MEGATRON),
        optimizer=optax.lion(1e-4),
    )
