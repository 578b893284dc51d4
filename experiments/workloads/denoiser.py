"""A diffusion U-Net that draws latent images from text, with an average of its parameters.

Below full resolution each residual block is followed by attention of pixels to one another and to
the states of a text, and a gated MLP; images as NHWC, AdamW.

Source: Rombach et al. (2022), with the velocity of Salimans and Ho (2022) as the target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import optax

from experiments.workloads import unet
from experiments.workloads.attention import full_attention
from experiments.workloads.gemma import geglu
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import group_norm, layer_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.training import training_workload
from experiments.workloads.unet import NUM_TIMESTEPS, UnetConfig, init_norm, predict_noise
from experiments.workloads.workload import PyTree, Workload

KEPT = 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoiserConfig(UnetConfig):
    """Sizes of the model.

    Attributes:
        image_size: Height and width of a latent image.
        image_channels: Channels of a latent image.
        heads: Attention heads; divides the channels of every resolution but the full one.
        d_text: Width of a text's states.
        tokens: States of a text.
        compute_dtype: Type of activations, convolutions and matmuls.
    """

    image_size: int = 8
    image_channels: int = 4
    heads: int = 8
    d_text: int = 32
    tokens: int = 8
    compute_dtype: str = "float32"


def init_attention(key: jax.Array, channels: int, d_source: int, heads: int) -> PyTree:
    q_key, k_key, v_key, o_key = jax.random.split(key, 4)
    head_dim = channels // heads
    return {
        "norm": init_norm(channels),
        "q": scaled_normal(q_key, (channels, heads, head_dim), channels),
        "k": scaled_normal(k_key, (d_source, heads, head_dim), d_source),
        "v": scaled_normal(v_key, (d_source, heads, head_dim), d_source),
        "o": scaled_normal(o_key, (heads, head_dim, channels), channels),
    }


def init_transformer(key: jax.Array, channels: int, config: DenoiserConfig) -> PyTree:
    keys = jax.random.split(key, 5)
    return {
        "norm": init_norm(channels),
        "own": init_attention(keys[0], channels, channels, config.heads),
        "text": init_attention(keys[1], channels, config.d_text, config.heads),
        "mlp_norm": init_norm(channels),
        "mlp": {
            "gate": scaled_normal(keys[2], (channels, 4 * channels), channels),
            "up": scaled_normal(keys[3], (channels, 4 * channels), channels),
            "down": scaled_normal(keys[4], (4 * channels, channels), 4 * channels),
        },
    }


def init_params(key: jax.Array, config: DenoiserConfig) -> PyTree:
    """The parameters of a U-Net, with a transformer at every resolution but the full one."""
    unet_key, down_key, up_key = jax.random.split(key, 3)
    params = unet.init_params(unet_key, config)
    for levels, levels_key, widths in (
        (params["down"], down_key, config.widths),
        (params["up"], up_key, config.widths[::-1]),
    ):
        keys = jax.random.split(levels_key, len(widths))
        for level, level_key, width in zip(levels, keys, widths, strict=True):
            if width != config.widths[0]:
                level["transformer"] = init_transformer(level_key, width, config)
    return params


def attend(x: jax.Array, params: PyTree, source: jax.Array | None) -> jax.Array:
    """Attend from pixels [batch, pixels, channels] to a source, or to one another."""
    normal = layer_norm(x, **params["norm"])
    source = normal if source is None else source
    q = jnp.einsum("bpc,che->bphe", normal, params["q"])
    k, v = (jnp.einsum("bsd,dhe->bshe", source, params[name]) for name in ("k", "v"))
    return pinned(x + jnp.einsum("bphe,hec->bpc", full_attention(q, k, v), params["o"]))


def transformer(x: jax.Array, params: PyTree, text: jax.Array, groups: int) -> jax.Array:
    batch, height, width, channels = x.shape
    normal = group_norm(x, **params["norm"], num_groups=groups)
    pixels = attend(normal.reshape(batch, height * width, channels), params["own"], None)
    pixels = attend(pixels, params["text"], text)
    pixels = pixels + geglu(layer_norm(pixels, **params["mlp_norm"]), params["mlp"])
    return pinned(x + pixels.reshape(x.shape))


def loss_fn(params: PyTree, batch: PyTree, config: DenoiserConfig) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    text = batch["text"].astype(dtype)

    def with_text(x: jax.Array, level: PyTree) -> jax.Array:
        if "transformer" not in level:
            return x
        return transformer(x, level["transformer"], text, config.groups)

    angle = (0.5 * math.pi / NUM_TIMESTEPS) * batch["timestep"][:, None, None, None]
    noisy = jnp.cos(angle) * batch["image"] + jnp.sin(angle) * batch["noise"]
    velocity = jnp.cos(angle) * batch["noise"] - jnp.sin(angle) * batch["image"]
    found = predict_noise(params, noisy.astype(dtype), batch["timestep"], config, with_text)
    return jnp.mean(jnp.square(found.astype(jnp.float32) - velocity))


def make_batch(key: jax.Array, config: DenoiserConfig) -> PyTree:
    images_key, text_key = jax.random.split(key)
    shape = (config.batch, config.tokens, config.d_text)
    return {
        **unet.make_batch(images_key, config),
        "text": jax.random.normal(text_key, shape),
    }


MEGATRON = {
    **unet.MEGATRON,
    "['q']": (None, "model", None),
    "['k']": (None, "model", None),
    "['v']": (None, "model", None),
    "['o']": ("model", None, None),
    "['mlp']['gate']": (None, "model"),
    "['mlp']['up']": (None, "model"),
    "['mlp']['down']": ("model", None),
}
"""Heads and MLP width cut, beside the channels that a U-Net cuts."""


def build(name: str, config: DenoiserConfig) -> Workload:
    """Build the U-Net's training workload; the average of its parameters is part of the state."""
    trained = training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: make_batch(key, config),
        megatron=rule_by_path_end(MEGATRON),
        optimizer=optax.adamw(1e-4, weight_decay=0.01),
    )

    def init(key: jax.Array) -> PyTree:
        state = trained.init(key)
        return {**state, "average": jax.tree.map(jnp.copy, state["params"])}

    def step(state: PyTree, batch: PyTree) -> tuple[PyTree, jax.Array]:
        after, loss = trained.step(state, batch)
        average = optax.incremental_update(after["params"], state["average"], 1 - KEPT)
        return {**after, "average": average}, loss

    return replace(trained, step=step, init=init)
