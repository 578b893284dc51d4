"""A convolutional network built as a transformer would be, that classifies images as NHWC.

Depthwise 7 x 7 convolutions, layer norm over channels, an MLP at each pixel and a learned scale of
what a block adds; strided convolutions between resolutions; AdamW with a cosine of steps.

Source: Liu et al. (2022), without dropping blocks at random.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.initializers import scaled_normal
from experiments.workloads.labelled_images import image_batch
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import layer_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.training import training_workload
from experiments.workloads.unet import conv, dense, init_conv, init_dense, init_norm
from experiments.workloads.workload import PyTree, Workload

KERNEL = 7
LAYER_SCALE = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvnextConfig:
    """Sizes of the model.

    Attributes:
        image_size: Height and width of an image.
        patch: Stride of the first convolution.
        channels: At each resolution; each but the first halves the image.
        blocks: At each resolution.
        classes: Classes of an image.
        batch: Images in one step.
        compute_dtype: Type of activations, convolutions and matmuls.
    """

    image_size: int = 32
    patch: int = 4
    channels: tuple[int, ...] = (32, 64)
    blocks: tuple[int, ...] = (1, 2)
    classes: int = 32
    batch: int = 16
    compute_dtype: str = "float32"

    def __post_init__(self) -> None:
        if len(self.channels) != len(self.blocks):
            raise ValueError(f"channels={self.channels} and blocks={self.blocks} differ in length")
        stride = self.patch * 2 ** (len(self.channels) - 1)
        if self.image_size % stride:
            raise ValueError(f"image_size={self.image_size} is not a multiple of {stride}")


def init_block(key: jax.Array, channels: int) -> PyTree:
    depthwise_key, up_key, down_key = jax.random.split(key, 3)
    shape = (KERNEL, KERNEL, 1, channels)
    return {
        "depthwise": {
            "kernel": scaled_normal(depthwise_key, shape, KERNEL * KERNEL),
            "bias": jnp.zeros(channels),
        },
        "norm": init_norm(channels),
        "up": init_dense(up_key, channels, 4 * channels),
        "down": init_dense(down_key, 4 * channels, channels),
        "layer_scale": jnp.full(channels, LAYER_SCALE, jnp.float32),
    }


def init_params(key: jax.Array, config: ConvnextConfig) -> PyTree:
    head_key, *stage_keys = jax.random.split(key, 1 + len(config.channels))
    stages: list[PyTree] = []
    before, size = 3, config.patch
    for stage_key, channels, number in zip(stage_keys, config.channels, config.blocks, strict=True):
        down_key, *block_keys = jax.random.split(stage_key, 1 + number)
        stages.append(
            {
                "downsample": init_conv(down_key, size, before, channels),
                "norm": init_norm(before if stages else channels),
                "blocks": [init_block(block_key, channels) for block_key in block_keys],
            }
        )
        before, size = channels, 2
    return {
        "stages": stages,
        "norm": init_norm(before),
        "head": init_dense(head_key, before, config.classes),
    }


def block(x: jax.Array, params: PyTree) -> jax.Array:
    mixed = conv(x, params["depthwise"], groups=x.shape[-1])
    hidden = jax.nn.gelu(dense(layer_norm(mixed, **params["norm"]), params["up"]))
    return pinned(x + params["layer_scale"] * dense(hidden, params["down"]))


def loss_fn(params: PyTree, batch: PyTree, config: ConvnextConfig) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    x = batch["image"].astype(dtype)
    first, *others = jax.tree.map(lambda leaf: leaf.astype(dtype), params["stages"])
    x = pinned(layer_norm(conv(x, first["downsample"], config.patch), **first["norm"]))
    for stage in (first, *others):
        if stage is not first:
            x = pinned(conv(layer_norm(x, **stage["norm"]), stage["downsample"], stride=2))
        for block_params in stage["blocks"]:
            x = block(x, block_params)
    pooled = layer_norm(jnp.mean(x.astype(jnp.float32), axis=(1, 2)), **params["norm"])
    logits = dense(pooled, params["head"])
    smooth = optax.smooth_labels(jax.nn.one_hot(batch["label"], config.classes), 0.1)
    return jnp.mean(optax.softmax_cross_entropy(logits, smooth))


MEGATRON = {
    "['up']['w']": (None, "model"),
    "['up']['b']": ("model",),
    "['down']['w']": ("model", None),
    "['head']['w']": (None, "model"),
    "['head']['b']": ("model",),
}
"""The MLP of each block cut, and classes; convolutions stay whole."""


def build(name: str, config: ConvnextConfig) -> Workload:
    """Build the convolutional network's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: image_batch(
            key, batch=config.batch, image_size=config.image_size, classes=config.classes
        ),
        megatron=rule_by_path_end(MEGATRON),
        optimizer=optax.adamw(optax.cosine_decay_schedule(1e-3, 10_000), weight_decay=0.05),
    )
