"""A diffusion U-Net with self-attention where images are small, trained with clipped gradients.

Residual blocks at every level, attention over the pixels of the lowest resolution, images as NHWC.

Source: Ho, Jain and Abbeel (2020), appendix B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.initializers import scaled_normal
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import group_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.training import training_workload
from experiments.workloads.unet import (
    MEGATRON,
    NUM_TIMESTEPS,
    UnetConfig,
    conv,
    dense,
    init_conv,
    init_dense,
    init_norm,
    init_resnet,
    make_batch,
    resnet,
    time_embedding,
    upsample,
)
from experiments.workloads.workload import PyTree, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class UnetAttentionConfig(UnetConfig):
    """Sizes of the model.

    Attributes:
        blocks: Residual blocks of a level, down and up.
        heads: Attention heads; divides the channels of the lowest resolution.
        compute_dtype: Type of activations, convolutions and matmuls.
    """

    blocks: int = 1
    heads: int = 4
    compute_dtype: str = "float32"


def init_attention(key: jax.Array, channels: int, heads: int) -> PyTree:
    qkv_key, out_key = jax.random.split(key)
    return {
        "norm": init_norm(channels),
        "qkv": scaled_normal(qkv_key, (channels, 3, heads, channels // heads), channels),
        "out": scaled_normal(out_key, (heads, channels // heads, channels), channels),
    }


def init_params(key: jax.Array, config: UnetAttentionConfig) -> PyTree:
    widths, channels = config.widths, config.channels
    time_width = 4 * channels
    keys = iter(jax.random.split(key, 8 + 2 * (1 + config.blocks) * len(widths)))

    def blocks(previous: int, width: int, number: int) -> list[PyTree]:
        inputs = [previous, *[width] * (number - 1)]
        return [init_resnet(next(keys), before, width, time_width) for before in inputs]

    down, previous = [], channels
    for width in widths:
        down.append(
            {
                "blocks": blocks(previous, width, config.blocks),
                "downsample": init_conv(next(keys), 3, width, width),
            }
        )
        previous = width
    middle = {
        "blocks": blocks(previous, previous, 2),
        "attention": init_attention(next(keys), previous, config.heads),
    }
    up = []
    for width in reversed(widths):
        up.append(
            {
                "upsample": init_conv(next(keys), 3, previous, width),
                "blocks": blocks(2 * width, width, config.blocks),
            }
        )
        previous = width
    return {
        "time_mlp": [
            init_dense(next(keys), channels, time_width),
            init_dense(next(keys), time_width, time_width),
        ],
        "stem": init_conv(next(keys), 3, config.image_channels, channels),
        "down": down,
        "middle": middle,
        "up": up,
        "out_norm": init_norm(previous),
        "out": init_conv(next(keys), 3, previous, config.image_channels),
    }


def attention(x: jax.Array, params: PyTree, groups: int) -> jax.Array:
    """Attend from every pixel of an image [batch, height, width, channels] to all of it."""
    batch, height, width, channels = x.shape
    pixels = group_norm(x, **params["norm"], num_groups=groups).reshape(batch, -1, channels)
    q, k, v = jnp.moveaxis(jnp.einsum("bpc,cthe->bpthe", pixels, params["qkv"]), 2, 0)
    scores = jnp.einsum("bqhe,bkhe->bhqk", q, k).astype(jnp.float32) / math.sqrt(q.shape[-1])
    mixed = jnp.einsum("bhqk,bkhe->bqhe", jax.nn.softmax(scores, axis=-1).astype(x.dtype), v)
    out = jnp.einsum("bqhe,hec->bqc", mixed, params["out"])
    return x + out.reshape(batch, height, width, channels)


def predict_noise(
    params: PyTree, noisy: jax.Array, timestep: jax.Array, config: UnetAttentionConfig
) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    first, second = params["time_mlp"]
    embedded = time_embedding(timestep, config.channels).astype(dtype)
    time = dense(jax.nn.silu(dense(embedded, first)), second)
    x = pinned(conv(noisy.astype(dtype), params["stem"]))
    skips = []
    for level in params["down"]:
        for block in level["blocks"]:
            x = resnet(x, time, block, config.groups)
        skips.append(x)
        x = pinned(conv(x, level["downsample"], stride=2))
    before, after = params["middle"]["blocks"]
    x = resnet(x, time, before, config.groups)
    x = pinned(attention(x, params["middle"]["attention"], config.groups))
    x = resnet(x, time, after, config.groups)
    for level in params["up"]:
        x = pinned(conv(upsample(x), level["upsample"]))
        x = jnp.concatenate([x, skips.pop()], axis=-1)
        for block in level["blocks"]:
            x = resnet(x, time, block, config.groups)
    x = jax.nn.silu(group_norm(x, **params["out_norm"], num_groups=config.groups))
    return conv(x, params["out"])


def loss_fn(params: PyTree, batch: PyTree, config: UnetAttentionConfig) -> jax.Array:
    angle = (0.5 * math.pi / NUM_TIMESTEPS) * batch["timestep"][:, None, None, None]
    noisy = jnp.cos(angle) * batch["image"] + jnp.sin(angle) * batch["noise"]
    predicted = predict_noise(params, noisy, batch["timestep"], config)
    return jnp.mean(jnp.square(predicted.astype(jnp.float32) - batch["noise"]))


ATTENTION = {
    "['qkv']": (None, None, "model", None),
    "['attention']['out']": ("model", None, None),
}
"""Heads cut, beside the channels that a U-Net cuts."""


def build(name: str, config: UnetAttentionConfig) -> Workload:
    """Build the training workload of the U-Net with attention."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: make_batch(key, config),
        megatron=rule_by_path_end({**MEGATRON, **ATTENTION}),
        optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4)),
    )
