"""A residual network that classifies images: bottleneck blocks, batch norm, SGD with momentum.

Images are NHWC. The mean and variance of each norm are carried from step to step.

Source: He et al. (2015), with the stride in the 3 x 3 convolution.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.initializers import scaled_normal
from experiments.workloads.labelled_images import image_batch
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import EPSILON
from experiments.workloads.pinning import pinned
from experiments.workloads.workload import PyTree, Workload

EXPANSION = 4
KEPT = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class ResnetConfig:
    """Sizes of the model.

    Attributes:
        image_size: Height and width of an image.
        channels: Channels of the stem; the first blocks have `EXPANSION` times as many outside.
        blocks: Blocks at each resolution; each resolution but the first halves the image.
        classes: Classes of an image.
        batch: Images in one step.
        compute_dtype: Type of activations and convolutions.
    """

    image_size: int = 16
    channels: int = 16
    blocks: tuple[int, ...] = (1, 2)
    classes: int = 16
    batch: int = 16
    compute_dtype: str = "float32"


def init_conv(key: jax.Array, size: int, channels_in: int, channels_out: int) -> PyTree:
    shape = (size, size, channels_in, channels_out)
    return {
        "kernel": scaled_normal(key, shape, size * size * channels_in),
        "scale": jnp.ones(channels_out),
        "bias": jnp.zeros(channels_out),
    }


def init_block(key: jax.Array, channels_in: int, width: int, *, has_shortcut: bool) -> PyTree:
    keys = jax.random.split(key, 4)
    params = {
        "reduce": init_conv(keys[0], 1, channels_in, width),
        "conv": init_conv(keys[1], 3, width, width),
        "expand": init_conv(keys[2], 1, width, EXPANSION * width),
    }
    if has_shortcut:
        params["shortcut"] = init_conv(keys[3], 1, channels_in, EXPANSION * width)
    return params


def init_params(key: jax.Array, config: ResnetConfig) -> PyTree:
    stem_key, head_key, *keys = jax.random.split(key, 2 + sum(config.blocks))
    stages, channels_in, remaining = [], config.channels, iter(keys)
    for level, number in enumerate(config.blocks):
        width, stage = config.channels * 2**level, []
        for index in range(number):
            block = init_block(next(remaining), channels_in, width, has_shortcut=index == 0)
            stage.append(block)
            channels_in = EXPANSION * width
        stages.append(stage)
    return {
        "stem": init_conv(stem_key, 3, 3, config.channels),
        "stages": stages,
        "head": {
            "w": scaled_normal(head_key, (channels_in, config.classes), channels_in),
            "b": jnp.zeros(config.classes),
        },
    }


def init_stats(params: PyTree) -> PyTree:
    """Zeros for the means and ones for the variances of every norm of some parameters."""
    if isinstance(params, list):
        return [init_stats(entry) for entry in params]
    if "kernel" in params:
        return {"mean": jnp.zeros_like(params["bias"]), "var": jnp.ones_like(params["bias"])}
    return {name: init_stats(entry) for name, entry in params.items() if name != "head"}


def normed_conv(
    x: jax.Array, params: PyTree, stats: PyTree, stride: int = 1
) -> tuple[jax.Array, PyTree]:
    """Convolve and normalise each channel over the batch.

    Args:
        x: Activations [batch, height, width, channels].
        params: What `init_conv` returned.
        stats: The norm's mean and variance so far, float32[channels] each.
        stride: Of the convolution.

    Returns:
        Activations of the type of `x`, and the statistics with this batch in them.
    """
    y = jax.lax.conv_general_dilated(
        x,
        params["kernel"].astype(x.dtype),
        window_strides=(stride, stride),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    wide = y.astype(jnp.float32)
    mean, var = jnp.mean(wide, axis=(0, 1, 2)), jnp.var(wide, axis=(0, 1, 2))
    normal = (wide - mean) * jax.lax.rsqrt(var + EPSILON) * params["scale"] + params["bias"]
    found = {"mean": mean, "var": var}
    stats = jax.tree.map(lambda old, new: KEPT * old + (1 - KEPT) * new, stats, found)
    return normal.astype(x.dtype), stats


def block(x: jax.Array, params: PyTree, stats: PyTree, stride: int) -> tuple[jax.Array, PyTree]:
    kept = {}
    h, kept["reduce"] = normed_conv(x, params["reduce"], stats["reduce"])
    h, kept["conv"] = normed_conv(jax.nn.relu(h), params["conv"], stats["conv"], stride)
    h, kept["expand"] = normed_conv(jax.nn.relu(h), params["expand"], stats["expand"])
    if "shortcut" in params:
        x, kept["shortcut"] = normed_conv(x, params["shortcut"], stats["shortcut"], stride)
    return pinned(jax.nn.relu(x + h)), kept


def loss_fn(
    params: PyTree, stats: PyTree, batch: PyTree, config: ResnetConfig
) -> tuple[jax.Array, PyTree]:
    x = batch["image"].astype(jnp.dtype(config.compute_dtype))
    x, stem = normed_conv(x, params["stem"], stats["stem"])
    x, stages = pinned(jax.nn.relu(x)), []
    for level, (stage, stage_stats) in enumerate(
        zip(params["stages"], stats["stages"], strict=True)
    ):
        kept = []
        for index, of_block in enumerate(zip(stage, stage_stats, strict=True)):
            x, block_stats = block(x, *of_block, stride=2 if level and index == 0 else 1)
            kept.append(block_stats)
        stages.append(kept)
    pooled = jnp.mean(x.astype(jnp.float32), axis=(1, 2))
    logits = pooled @ params["head"]["w"] + params["head"]["b"]
    smooth = optax.smooth_labels(jax.nn.one_hot(batch["label"], config.classes), 0.1)
    loss = jnp.mean(optax.softmax_cross_entropy(logits, smooth))
    return loss, {"stem": stem, "stages": stages}


MEGATRON = {
    "['reduce']['kernel']": (None, None, None, "model"),
    "['reduce']['scale']": ("model",),
    "['reduce']['bias']": ("model",),
    "['conv']['kernel']": (None, None, None, "model"),
    "['conv']['scale']": ("model",),
    "['conv']['bias']": ("model",),
    "['expand']['kernel']": (None, None, "model", None),
    "['head']['w']": (None, "model"),
    "['head']['b']": ("model",),
}
"""Channels inside a block cut, and classes."""


def build(name: str, config: ResnetConfig) -> Workload:
    """Build the residual network's training workload."""
    optimizer = optax.sgd(0.02, momentum=0.9, nesterov=True)

    def init(key: jax.Array) -> PyTree:
        params = init_params(key, config)
        return {"params": params, "opt": optimizer.init(params), "stats": init_stats(params)}

    def train_step(state: PyTree, batch: PyTree) -> tuple[PyTree, jax.Array]:
        params = state["params"]
        (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(
            params, state["stats"], batch, config
        )
        updates, opt = optimizer.update(grads, state["opt"], params)
        params = optax.apply_updates(params, updates)
        return {"params": params, "opt": opt, "stats": stats}, loss

    return Workload(
        name=name,
        step=train_step,
        init=init,
        make_batch=lambda key: image_batch(
            key, batch=config.batch, image_size=config.image_size, classes=config.classes
        ),
        megatron=rule_by_path_end(MEGATRON),
    )
