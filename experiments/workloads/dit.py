"""A diffusion transformer that predicts the noise in a latent image, written in Equinox.

Source: Peebles and Xie (2022), with the usual random start where theirs sets modulations to 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp

from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.training import training_workload
from experiments.workloads.unet import NUM_TIMESTEPS, time_embedding
from experiments.workloads.workload import PyTree, Workload

NUM_MODULATIONS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class DitConfig:
    """Sizes of the model.

    Attributes:
        image_size: Height and width of a latent image, a multiple of `patch`.
        patch: Height and width of a patch.
        channels: Channels of a latent image.
        layers: Number of blocks.
        d_model: Width of the residual stream.
        heads: Attention heads; divides `d_model`.
        d_ff: Width inside the MLP.
        classes: Classes an image is asked for by.
        batch: Images in one step.
        remat: Compute each block again in the backward pass.
    """

    image_size: int = 8
    patch: int = 2
    channels: int = 4
    layers: int = 2
    d_model: int = 64
    heads: int = 8
    d_ff: int = 256
    classes: int = 16
    batch: int = 16
    remat: bool = False

    def __post_init__(self) -> None:
        if self.image_size % self.patch:
            raise ValueError(
                f"image_size={self.image_size} is not a multiple of patch={self.patch}"
            )
        if self.d_model % self.heads:
            raise ValueError(f"d_model={self.d_model} is not a multiple of heads={self.heads}")

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch) ** 2


class Block(eqx.Module):
    """Attention and an MLP, shifted, scaled and gated by the time step and the class."""

    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    modulation: eqx.nn.Linear

    def __init__(self, config: DitConfig, *, key: jax.Array) -> None:
        width = config.d_model
        attention_key, up_key, down_key, modulation_key = jax.random.split(key, 4)
        self.attention = eqx.nn.MultiheadAttention(config.heads, width, key=attention_key)
        self.norm = eqx.nn.LayerNorm(width, use_weight=False, use_bias=False)
        self.up = eqx.nn.Linear(width, config.d_ff, key=up_key)
        self.down = eqx.nn.Linear(config.d_ff, width, key=down_key)
        self.modulation = eqx.nn.Linear(width, NUM_MODULATIONS * width, key=modulation_key)

    def __call__(self, x: jax.Array, condition: jax.Array) -> jax.Array:
        """Change the patches [patches, d_model] of one image, given its condition [d_model]."""
        shift1, scale1, gate1, shift2, scale2, gate2 = jnp.split(
            self.modulation(jax.nn.silu(condition)), NUM_MODULATIONS
        )
        normal = jax.vmap(self.norm)(x) * (1 + scale1) + shift1
        x = x + gate1 * self.attention(normal, normal, normal)
        normal = jax.vmap(self.norm)(x) * (1 + scale2) + shift2
        hidden = jax.nn.gelu(jax.vmap(self.up)(normal))
        return x + gate2 * jax.vmap(self.down)(hidden)


class DiffusionTransformer(eqx.Module):
    """Patches, positions, the condition, blocks, and a linear way back to patches."""

    stem: eqx.nn.Linear
    position: jax.Array
    time: eqx.nn.MLP
    label: eqx.nn.Embedding
    blocks: list[Block]
    norm: eqx.nn.LayerNorm
    out: eqx.nn.Linear
    remat: bool = eqx.field(static=True)

    def __init__(self, config: DitConfig, *, key: jax.Array) -> None:
        width, values = config.d_model, config.channels * config.patch**2
        stem_key, position_key, time_key, label_key, out_key, blocks_key = jax.random.split(key, 6)
        self.stem = eqx.nn.Linear(values, width, key=stem_key)
        self.position = 0.02 * jax.random.normal(position_key, (config.patches, width))
        self.time = eqx.nn.MLP(width, width, width, 1, jax.nn.silu, key=time_key)
        self.label = eqx.nn.Embedding(config.classes, width, key=label_key)
        block_keys = jax.random.split(blocks_key, config.layers)
        self.blocks = [Block(config, key=block_key) for block_key in block_keys]
        self.norm = eqx.nn.LayerNorm(width, use_weight=False, use_bias=False)
        self.out = eqx.nn.Linear(width, values, key=out_key)
        self.remat = config.remat

    def __call__(self, patches: jax.Array, time: jax.Array, label: jax.Array) -> jax.Array:
        """Predict the noise in the patches [patches, values] of one image.

        Args:
            patches: The noisy image, patch by patch.
            time: The embedded time step, [d_model].
            label: int32[], the class.
        """
        condition = self.time(time) + self.label(label)
        x = jax.vmap(self.stem)(patches) + self.position
        for block in self.blocks:
            x = (eqx.filter_checkpoint(block) if self.remat else block)(x, condition)
        return jax.vmap(self.out)(jax.vmap(self.norm)(x))


def to_patches(image: jax.Array, patch: int) -> jax.Array:
    """Cut images [batch, height, width, channels] into [batch, patches, patch * patch * channels].

    Patches are in rows, the first row first.
    """
    batch, height, width, channels = image.shape
    rows, columns = height // patch, width // patch
    cut = image.reshape(batch, rows, patch, columns, patch, channels)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows * columns, -1)


def loss_fn(model: DiffusionTransformer, batch: PyTree, config: DitConfig) -> jax.Array:
    # Cosine schedule: how much of the image is left at this time step.
    left = jnp.square(jnp.cos(0.5 * math.pi * batch["timestep"] / NUM_TIMESTEPS))
    left = left[:, None, None]
    image, noise = (to_patches(batch[name], config.patch) for name in ("image", "noise"))
    noisy = jnp.sqrt(left) * image + jnp.sqrt(1.0 - left) * noise
    time = time_embedding(batch["timestep"], config.d_model)
    predicted = jax.vmap(model)(noisy, time, batch["label"])
    return jnp.mean(jnp.square(predicted - noise))


def make_batch(key: jax.Array, config: DitConfig) -> PyTree:
    image_key, noise_key, time_key, label_key = jax.random.split(key, 4)
    shape = (config.batch, config.image_size, config.image_size, config.channels)
    each = (config.batch,)
    return {
        "image": jax.random.normal(image_key, shape),
        "noise": jax.random.normal(noise_key, shape),
        "timestep": jax.random.randint(time_key, each, 0, NUM_TIMESTEPS, dtype=jnp.int32),
        "label": jax.random.randint(label_key, each, 0, config.classes, dtype=jnp.int32),
    }


# Equinox keeps a matrix as [width out, width in].
MEGATRON = {
    ".query_proj.weight": ("model", None),
    ".key_proj.weight": ("model", None),
    ".value_proj.weight": ("model", None),
    ".output_proj.weight": (None, "model"),
    ".up.weight": ("model", None),
    ".up.bias": ("model",),
    ".down.weight": (None, "model"),
}
"""Heads and MLP width cut, by the names Equinox gives its parameters."""


def build(name: str, config: DitConfig) -> Workload:
    """Build the diffusion transformer's training workload; its parameters are the module itself."""

    def make(key: jax.Array) -> DiffusionTransformer:
        return DiffusionTransformer(config, key=key)

    # What is no array (activation functions) stays outside of the state.
    abstract = eqx.filter_eval_shape(make, jax.eval_shape(lambda: jax.random.key(0)))
    _, fixed = eqx.partition(abstract, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    return training_workload(
        name=name,
        init_params=lambda key: eqx.filter(make(key), eqx.is_array),
        loss_fn=lambda params, batch: loss_fn(eqx.combine(params, fixed), batch, config),
        make_batch=lambda key: make_batch(key, config),
        megatron=rule_by_path_end(MEGATRON),
    )
