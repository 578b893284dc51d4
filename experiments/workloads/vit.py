"""A vision transformer that classifies images, written in Flax NNX.

Source: Dosovitskiy et al. (2020), with the mean over patches in place of a class token.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class VitConfig:
    """Sizes of the model.

    Attributes:
        image_size: Height and width of an image, a multiple of `patch`.
        patch: Height and width of a patch.
        channels: Channels of an image.
        layers: Number of blocks.
        d_model: Width of the residual stream.
        heads: Attention heads; divides `d_model`.
        d_ff: Width inside the MLP.
        classes: Classes of an image.
        batch: Images in one step.
        remat: Compute each block again in the backward pass.
        compute_dtype: Type of activations and matmuls; parameters and Adam stay float32.
    """

    image_size: int = 16
    patch: int = 4
    channels: int = 3
    layers: int = 2
    d_model: int = 64
    heads: int = 8
    d_ff: int = 256
    classes: int = 32
    batch: int = 16
    remat: bool = False
    compute_dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.image_size % self.patch:
            raise ValueError(
                f"image_size={self.image_size} is not a multiple of patch={self.patch}"
            )
        if self.d_model % self.heads:
            raise ValueError(f"d_model={self.d_model} is not a multiple of heads={self.heads}")


class Block(nnx.Module):
    """Attention and an MLP, each behind a norm and beside the residual stream."""

    def __init__(self, config: VitConfig, *, rngs: nnx.Rngs) -> None:
        dtype = jnp.dtype(config.compute_dtype)
        self.norm1 = nnx.LayerNorm(config.d_model, dtype=dtype, rngs=rngs)
        self.attn = nnx.MultiHeadAttention(
            num_heads=config.heads,
            in_features=config.d_model,
            dtype=dtype,
            decode=False,
            rngs=rngs,
        )
        self.norm2 = nnx.LayerNorm(config.d_model, dtype=dtype, rngs=rngs)
        self.up = nnx.Linear(config.d_model, config.d_ff, dtype=dtype, rngs=rngs)
        self.down = nnx.Linear(config.d_ff, config.d_model, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attn(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class VisionTransformer(nnx.Module):
    """Patches, learned positions, blocks, and a linear classifier of their mean."""

    def __init__(self, config: VitConfig, *, rngs: nnx.Rngs) -> None:
        dtype = jnp.dtype(config.compute_dtype)
        patches = (config.image_size // config.patch) ** 2
        self.remat = config.remat
        self.patches = nnx.Conv(
            config.channels,
            config.d_model,
            kernel_size=(config.patch, config.patch),
            strides=config.patch,
            padding="VALID",
            dtype=dtype,
            rngs=rngs,
        )
        noise = jax.random.normal(rngs.params(), (patches, config.d_model))
        self.position = nnx.Param(0.02 * noise)
        self.blocks = nnx.List([Block(config, rngs=rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(config.d_model, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(config.d_model, config.classes, dtype=dtype, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.patches(images)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        x = x + self.position[...].astype(x.dtype)
        for block in self.blocks:
            x = nnx.remat(Block.__call__)(block, x) if self.remat else block(x)
        return self.head(jnp.mean(self.norm(x), axis=1)).astype(jnp.float32)


def make_batch(key: jax.Array, config: VitConfig) -> PyTree:
    image_key, label_key = jax.random.split(key)
    shape = (config.batch, config.image_size, config.image_size, config.channels)
    return {
        "images": jax.random.normal(image_key, shape),
        "labels": jax.random.randint(
            label_key, (config.batch,), 0, config.classes, dtype=jnp.int32
        ),
    }


MEGATRON = {
    "['query']['kernel']": (None, "model", None),
    "['query']['bias']": ("model", None),
    "['key']['kernel']": (None, "model", None),
    "['key']['bias']": ("model", None),
    "['value']['kernel']": (None, "model", None),
    "['value']['bias']": ("model", None),
    "['attn']['out']['kernel']": ("model", None, None),
    "['up']['kernel']": (None, "model"),
    "['up']['bias']": ("model",),
    "['down']['kernel']": ("model", None),
}
"""Heads and MLP width cut, by the names NNX gives its parameters."""


def build(name: str, config: VitConfig) -> Workload:
    """Build the vision transformer's training workload; its parameters are the module's state."""

    def make(key: jax.Array) -> VisionTransformer:
        return VisionTransformer(config, rngs=nnx.Rngs(params=key))

    graph, _ = nnx.split(nnx.eval_shape(lambda: make(jax.random.key(0))))

    def loss_fn(params: PyTree, batch: PyTree) -> jax.Array:
        logits = nnx.merge(graph, params)(batch["images"])
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]))

    return training_workload(
        name=name,
        init_params=lambda key: nnx.to_pure_dict(nnx.state(make(key))),
        loss_fn=loss_fn,
        make_batch=lambda key: make_batch(key, config),
        megatron=rule_by_path_end(MEGATRON),
    )
