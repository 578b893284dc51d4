"""VGG-16-like and MobileNet-like training steps, as the literature of rematerialisation has them.

Sources: Simonyan and Zisserman (2014), column D, with a narrow head; Howard et al. (2017), with
fewer blocks of 512 channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.initializers import scaled_normal

PyTree = Any
VGG = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and 3 x 3 convolutions of each resolution."""
MOBILENET = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))
"""Channels and strides of depthwise separable blocks."""
CLASSES, WIDE_HEAD, STEM = 1000, 512, 32
RATE = 1e-3


def conv(x: jax.Array, kernel: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """Convolve images [batch, height, width, channels] with padding."""
    return jax.lax.conv_general_dilated(
        x,
        kernel.astype(x.dtype),
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def _kernel(key: jax.Array, size: int, fan: int, channels: int) -> PyTree:
    shape = (size, size, fan, channels)
    return {"kernel": scaled_normal(key, shape, size * size * fan), "bias": jnp.zeros(channels)}


def _dense(key: jax.Array, fan: int, width: int) -> PyTree:
    return {"kernel": scaled_normal(key, (fan, width), fan), "bias": jnp.zeros(width)}


def init_vgg(key: jax.Array) -> PyTree:
    """Kernels and biases of 13 convolutions and two dense layers."""
    keys = iter(jax.random.split(key, 16))
    fan, layers = 3, []
    for channels, number in VGG:
        for _ in range(number):
            layers.append(_kernel(next(keys), 3, fan, channels))
            fan = channels
    return {
        "convs": layers,
        "dense": [_dense(next(keys), fan, WIDE_HEAD), _dense(next(keys), WIDE_HEAD, CLASSES)],
    }


def vgg(params: PyTree, x: jax.Array) -> jax.Array:
    """Logits of images."""
    layers = iter(params["convs"])
    for _, number in VGG:
        for _ in range(number):
            layer = next(layers)
            x = jax.nn.relu(conv(x, layer["kernel"]) + layer["bias"].astype(x.dtype))
        window = (1, 2, 2, 1)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
    first, last = params["dense"]
    x = jnp.mean(x, axis=(1, 2)).astype(jnp.float32)
    return jax.nn.relu(x @ first["kernel"] + first["bias"]) @ last["kernel"] + last["bias"]


def init_mobilenet(key: jax.Array) -> PyTree:
    """Kernels and biases of the stem, of a depthwise and a pointwise convolution a block."""
    keys = iter(jax.random.split(key, 2 * len(MOBILENET) + 2))
    fan, blocks = STEM, []
    stem = _kernel(next(keys), 3, 3, STEM)
    for channels, _ in MOBILENET:
        deep = _kernel(next(keys), 3, 1, fan)
        blocks.append({"deep": deep, "point": _kernel(next(keys), 1, fan, channels)})
        fan = channels
    return {"stem": stem, "blocks": blocks, "dense": _dense(next(keys), fan, CLASSES)}


def mobilenet(params: PyTree, x: jax.Array) -> jax.Array:
    """Logits of images."""

    def layer(x: jax.Array, one: PyTree, stride: int, groups: int) -> jax.Array:
        made = conv(x, one["kernel"], stride, groups) + one["bias"].astype(x.dtype)
        return jnp.clip(made, 0.0, 6.0)

    x = layer(x, params["stem"], 2, 1)
    for (_, stride), block in zip(MOBILENET, params["blocks"], strict=True):
        x = layer(layer(x, block["deep"], stride, x.shape[-1]), block["point"], 1, 1)
    x = jnp.mean(x, axis=(1, 2)).astype(jnp.float32)
    return x @ params["dense"]["kernel"] + params["dense"]["bias"]


def train_step(
    model: Callable[[PyTree, jax.Array], jax.Array], dtype: Any = jnp.bfloat16
) -> Callable[[PyTree, PyTree], Any]:
    """A step of gradient descent: `step(params, batch) -> (params, loss)`."""

    def loss_of(params: PyTree, batch: PyTree) -> jax.Array:
        logits = model(params, batch["image"].astype(dtype))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return jnp.mean(losses)

    def step(params: PyTree, batch: PyTree) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, batch)
        return jax.tree.map(lambda p, g: p - RATE * g, params, grads), loss

    return step


def images(batch: int, size: int) -> PyTree:
    """Shapes of a batch."""
    return {
        "image": jax.ShapeDtypeStruct((batch, size, size, 3), jnp.bfloat16),
        "label": jax.ShapeDtypeStruct((batch,), jnp.int32),
    }
