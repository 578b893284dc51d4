"""A diffusion U-Net that predicts the noise in an image.

Residual blocks with group norm, strided convolutions down, nearest-neighbour resize up, skip
connections across, the time step added to every block.

Source: Ho, Jain and Abbeel (2020), without attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from experiments.workloads.initializers import scaled_normal
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import group_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload

NUM_TIMESTEPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class UnetConfig:
    """Sizes of the model.

    Attributes:
        image_size: Height and width of an image; halved `len(multipliers) - 1` times.
        image_channels: Channels of an image.
        channels: Channels at full resolution, a multiple of `2 * groups`.
        multipliers: Channels at each resolution, full one first, as multiples of `channels`.
        groups: Groups of a group norm.
        batch: Images in one step.
    """

    image_size: int = 16
    image_channels: int = 3
    channels: int = 32
    multipliers: tuple[int, ...] = (1, 2)
    groups: int = 8
    batch: int = 16

    def __post_init__(self) -> None:
        halvings = len(self.multipliers) - 1
        if self.image_size % 2**halvings:
            raise ValueError(f"image_size={self.image_size} cannot be halved {halvings} times")
        if self.channels % (2 * self.groups):
            raise ValueError(
                f"channels={self.channels} is not an even multiple of groups={self.groups}"
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels at each resolution."""
        return tuple(self.channels * multiplier for multiplier in self.multipliers)


def init_conv(key: jax.Array, size: int, channels_in: int, channels_out: int) -> PyTree:
    shape = (size, size, channels_in, channels_out)
    kernel = scaled_normal(key, shape, size * size * channels_in)
    return {"kernel": kernel, "bias": jnp.zeros(channels_out)}


def init_dense(key: jax.Array, width_in: int, width_out: int) -> PyTree:
    return {"w": scaled_normal(key, (width_in, width_out), width_in), "b": jnp.zeros(width_out)}


def init_norm(channels: int) -> PyTree:
    return {"scale": jnp.ones(channels), "bias": jnp.zeros(channels)}


def init_resnet(key: jax.Array, channels_in: int, channels_out: int, time_width: int) -> PyTree:
    first_key, time_key, second_key, skip_key = jax.random.split(key, 4)
    params = {
        "norm1": init_norm(channels_in),
        "conv1": init_conv(first_key, 3, channels_in, channels_out),
        "time": init_dense(time_key, time_width, channels_out),
        "norm2": init_norm(channels_out),
        "conv2": init_conv(second_key, 3, channels_out, channels_out),
    }
    if channels_in != channels_out:
        params["skip"] = init_conv(skip_key, 1, channels_in, channels_out)
    return params


def init_params(key: jax.Array, config: UnetConfig) -> PyTree:
    widths, channels = config.widths, config.channels
    time_width = 4 * channels
    keys = iter(jax.random.split(key, 5 + 4 * len(widths)))
    down = []
    previous = channels
    for level, width in enumerate(widths):
        params = {"resnet": init_resnet(next(keys), previous, width, time_width)}
        if level + 1 < len(widths):
            params["downsample"] = init_conv(next(keys), 3, width, width)
        down.append(params)
        previous = width
    middle = init_resnet(next(keys), previous, previous, time_width)
    up = []
    for level, width in reversed(list(enumerate(widths))):
        params = {"resnet": init_resnet(next(keys), previous + width, width, time_width)}
        if level > 0:
            params["upsample"] = init_conv(next(keys), 3, width, width)
        up.append(params)
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


def conv(x: jax.Array, params: PyTree, stride: int = 1, *, groups: int = 1) -> jax.Array:
    y = jax.lax.conv_general_dilated(
        x,
        params["kernel"],
        window_strides=(stride, stride),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )
    return y + params["bias"]


def dense(x: jax.Array, params: PyTree) -> jax.Array:
    return x @ params["w"] + params["b"]


def time_embedding(timestep: jax.Array, width: int) -> jax.Array:
    """Give each time step its sines and cosines at geometrically spaced wavelengths.

    Args:
        timestep: int32[batch].
        width: An even number.

    Returns:
        float32[batch, width].
    """
    half = width // 2
    frequencies = jnp.exp(-math.log(10_000.0) * jnp.arange(half, dtype=jnp.float32) / half)
    angles = timestep.astype(jnp.float32)[:, None] * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def resnet(x: jax.Array, time: jax.Array, params: PyTree, groups: int) -> jax.Array:
    h = conv(jax.nn.silu(group_norm(x, **params["norm1"], num_groups=groups)), params["conv1"])
    h = h + dense(jax.nn.silu(time), params["time"])[:, None, None, :]
    h = conv(jax.nn.silu(group_norm(h, **params["norm2"], num_groups=groups)), params["conv2"])
    return pinned(h + (conv(x, params["skip"]) if "skip" in params else x))


def upsample(x: jax.Array) -> jax.Array:
    batch, height, width, channels = x.shape
    return jax.image.resize(x, (batch, 2 * height, 2 * width, channels), method="nearest")


def predict_noise(
    params: PyTree,
    noisy: jax.Array,
    timestep: jax.Array,
    config: UnetConfig,
    after_block: Callable[[jax.Array, PyTree], jax.Array] = lambda x, _: x,
) -> jax.Array:
    """Run the U-Net.

    Args:
        params: What `init_params` returned.
        noisy: Images [batch, height, width, image_channels].
        timestep: int32[batch].
        config: Sizes of the model.
        after_block: What follows the residual block of a level, given the level's parameters.

    Returns:
        The noise in the images, of their shape.
    """
    first, second = params["time_mlp"]
    embedded = time_embedding(timestep, config.channels).astype(noisy.dtype)
    time = dense(jax.nn.silu(dense(embedded, first)), second)
    x = pinned(conv(noisy, params["stem"]))
    skips = []
    for level in params["down"]:
        x = after_block(resnet(x, time, level["resnet"], config.groups), level)
        skips.append(x)
        if "downsample" in level:
            x = pinned(conv(x, level["downsample"], stride=2))
    x = resnet(x, time, params["middle"], config.groups)
    for level in params["up"]:
        x = jnp.concatenate([x, skips.pop()], axis=-1)
        x = after_block(resnet(x, time, level["resnet"], config.groups), level)
        if "upsample" in level:
            x = pinned(conv(upsample(x), level["upsample"]))
    x = jax.nn.silu(group_norm(x, **params["out_norm"], num_groups=config.groups))
    return conv(x, params["out"])


def loss_fn(params: PyTree, batch: PyTree, config: UnetConfig) -> jax.Array:
    # Cosine schedule: how much of the image is left at this time step.
    left = jnp.square(jnp.cos(0.5 * math.pi * batch["timestep"] / NUM_TIMESTEPS))
    left = left[:, None, None, None]
    noisy = jnp.sqrt(left) * batch["image"] + jnp.sqrt(1.0 - left) * batch["noise"]
    predicted = predict_noise(params, noisy, batch["timestep"], config)
    return jnp.mean(jnp.square(predicted - batch["noise"]))


def make_batch(key: jax.Array, config: UnetConfig) -> PyTree:
    image_key, noise_key, time_key = jax.random.split(key, 3)
    shape = (config.batch, config.image_size, config.image_size, config.image_channels)
    return {
        "image": jax.random.normal(image_key, shape),
        "noise": jax.random.normal(noise_key, shape),
        "timestep": jax.random.randint(
            time_key, (config.batch,), 0, NUM_TIMESTEPS, dtype=jnp.int32
        ),
    }


MEGATRON = {
    "['conv1']['kernel']": (None, None, None, "model"),
    "['conv1']['bias']": ("model",),
    "['time']['w']": (None, "model"),
    "['time']['b']": ("model",),
    "['norm2']['scale']": ("model",),
    "['norm2']['bias']": ("model",),
    "['conv2']['kernel']": (None, None, "model", None),
    "['time_mlp'][0]['w']": (None, "model"),
    "['time_mlp'][0]['b']": ("model",),
    "['time_mlp'][1]['w']": ("model", None),
}
"""Channels between a block's two convolutions cut, as the width inside an MLP would be."""


def build(name: str, config: UnetConfig) -> Workload:
    """Build the U-Net's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: make_batch(key, config),
        megatron=rule_by_path_end(MEGATRON),
    )
