"""An image tower and a text tower that learn which picture belongs to which words.

Every image is compared with every text of the whole batch, at a temperature that is learned; AdamW
decays matrices alone.

Source: Radford et al. (2021), with the mean over patches in place of a class token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.attention import causal_attention, full_attention
from experiments.workloads.dit import to_patches
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.layer_stack import apply_layers, init_layers
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import layer_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.training import training_workload
from experiments.workloads.unet import dense, init_dense, init_norm
from experiments.workloads.workload import PyTree, Workload

MAX_SCALE = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipConfig:
    """Sizes of the model.

    Attributes:
        image_size: Height and width of an image, a multiple of `patch`.
        patch: Height and width of a patch.
        image_layers: Blocks of the image tower.
        image_width: Width of its residual stream, a multiple of `head_dim`.
        text_layers: Blocks of the text tower.
        text_width: Width of its residual stream, likewise.
        head_dim: Width of a head in both towers.
        vocab: Number of token ids.
        seq: Tokens of the longest text.
        d_embed: Width in which images and texts are compared.
        batch: Pairs in one step.
        compute_dtype: Type of activations and matmuls; parameters and Adam stay float32.
    """

    image_size: int = 16
    patch: int = 4
    image_layers: int = 2
    image_width: int = 64
    text_layers: int = 1
    text_width: int = 32
    head_dim: int = 8
    vocab: int = 256
    seq: int = 8
    d_embed: int = 32
    batch: int = 16
    compute_dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("image_width", "text_width"):
            if getattr(self, name) % self.head_dim:
                raise ValueError(
                    f"{name}={getattr(self, name)} is not a multiple of head_dim={self.head_dim}"
                )


def init_block(key: jax.Array, width: int, head_dim: int) -> PyTree:
    qkv_key, out_key, up_key, down_key = jax.random.split(key, 4)
    heads = width // head_dim
    return {
        "norm1": init_norm(width),
        "qkv": scaled_normal(qkv_key, (width, 3, heads, head_dim), width),
        "out": scaled_normal(out_key, (heads, head_dim, width), width),
        "norm2": init_norm(width),
        "up": init_dense(up_key, width, 4 * width),
        "down": init_dense(down_key, 4 * width, width),
    }


def init_tower(
    key: jax.Array, width: int, layers: int, positions: int, config: ClipConfig
) -> PyTree:
    position_key, blocks_key, out_key = jax.random.split(key, 3)
    return {
        "position": 0.02 * jax.random.normal(position_key, (positions, width)),
        "blocks": init_layers(
            lambda block_key: init_block(block_key, width, config.head_dim),
            blocks_key,
            layers,
            scan=False,
        ),
        "norm": init_norm(width),
        "project": scaled_normal(out_key, (width, config.d_embed), width),
    }


def init_params(key: jax.Array, config: ClipConfig) -> PyTree:
    image_key, stem_key, text_key, embed_key = jax.random.split(key, 4)
    width, text_width = config.image_width, config.text_width
    patches, values = (config.image_size // config.patch) ** 2, 3 * config.patch**2
    return {
        "image": {
            "stem": scaled_normal(stem_key, (values, width), values),
            **init_tower(image_key, width, config.image_layers, patches, config),
        },
        "text": {
            "embed": 0.02 * jax.random.normal(embed_key, (config.vocab, text_width)),
            **init_tower(text_key, text_width, config.text_layers, config.seq, config),
        },
        "log_scale": jnp.asarray(math.log(1 / 0.07), jnp.float32),
    }


def block(x: jax.Array, params: PyTree, *, causal: bool) -> jax.Array:
    normal = layer_norm(x, **params["norm1"])
    q, k, v = jnp.einsum("bsd,dthe->tbshe", normal, params["qkv"])
    mixed = (causal_attention if causal else full_attention)(q, k, v)
    x = pinned(x + jnp.einsum("bshe,hed->bsd", mixed, params["out"]))
    hidden = dense(layer_norm(x, **params["norm2"]), params["up"])
    return pinned(x + dense(hidden * jax.nn.sigmoid(1.702 * hidden), params["down"]))


def tower(x: jax.Array, params: PyTree, *, causal: bool) -> jax.Array:
    x = apply_layers(
        lambda x, layer: block(x, layer, causal=causal),
        pinned(x + params["position"]),
        params["blocks"],
        scan=False,
        remat=False,
    )
    return layer_norm(x, **params["norm"])


def normalized(x: jax.Array) -> jax.Array:
    """Rows in float32, of length 1."""
    wide = x.astype(jnp.float32)
    return wide * jax.lax.rsqrt(jnp.sum(jnp.square(wide), axis=-1, keepdims=True) + 1e-12)


def contrastive_loss(images: jax.Array, texts: jax.Array, log_scale: jax.Array) -> jax.Array:
    """Cross-entropy of finding each image's text among all, and each text's image.

    Args:
        images: float32[batch, d], rows of length 1.
        texts: Likewise; row for row what belongs together.
        log_scale: float32[], logarithm of one over the temperature.
    """
    logits = jnp.minimum(jnp.exp(log_scale), MAX_SCALE) * (images @ texts.T)
    labels = jnp.arange(images.shape[0])
    by_image, by_text = (
        optax.softmax_cross_entropy_with_integer_labels(scores, labels)
        for scores in (logits, logits.T)
    )
    return 0.5 * (jnp.mean(by_image) + jnp.mean(by_text))


def loss_fn(params: PyTree, batch: PyTree, config: ClipConfig) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    image, text = (
        jax.tree.map(lambda leaf: leaf.astype(dtype), params[name]) for name in ("image", "text")
    )
    patches = to_patches(batch["image"].astype(dtype), config.patch)
    pooled = jnp.mean(tower(patches @ image["stem"], image, causal=False), axis=1)
    read = tower(text["embed"][batch["tokens"]], text, causal=True)
    last = jnp.take_along_axis(read, batch["end"][:, None, None], axis=1)[:, 0]
    return contrastive_loss(
        pinned(normalized(pooled @ image["project"])),
        pinned(normalized(last @ text["project"])),
        params["log_scale"],
    )


def make_batch(key: jax.Array, config: ClipConfig) -> PyTree:
    image_key, tokens_key, end_key = jax.random.split(key, 3)
    batch, size, seq = config.batch, config.image_size, config.seq
    return {
        "image": jax.random.normal(image_key, (batch, size, size, 3)),
        "tokens": jax.random.randint(tokens_key, (batch, seq), 0, config.vocab, dtype=jnp.int32),
        "end": jax.random.randint(end_key, (batch,), seq // 2, seq, dtype=jnp.int32),
    }


MEGATRON = {
    "['embed']": ("model", None),
    "['qkv']": (None, None, "model", None),
    "['out']": ("model", None, None),
    "['up']['w']": (None, "model"),
    "['up']['b']": ("model",),
    "['down']['w']": ("model", None),
}
"""Heads and MLP width of both towers cut, and the vocabulary."""


def build(name: str, config: ClipConfig) -> Workload:
    """Build the training workload of both towers."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: make_batch(key, config),
        megatron=rule_by_path_end(MEGATRON),
        optimizer=optax.adamw(
            5e-4,
            b2=0.98,
            weight_decay=0.2,
            mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params),
        ),
    )
