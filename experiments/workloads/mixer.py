"""An MLP-Mixer whose matmuls are in float8, with scales from the largest entries of the moment.

Activations and weights go to e4m3, gradients to e5m2; sums, parameters and Adam stay wider.

Sources: Tolstikhin et al. (2021); Micikevicius et al. (2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.dit import to_patches
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.labelled_images import image_batch
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import layer_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerConfig:
    """Sizes of the model.

    Attributes:
        image_size: Height and width of an image.
        patch: Height and width of a patch.
        layers: Number of blocks.
        d_model: Width of a patch's state.
        d_patches: Width inside the MLP over patches.
        d_ff: Width inside the MLP over channels.
        classes: Classes of an image.
        batch: Images in one step.
        compute_dtype: Type of activations between matmuls.
    """

    image_size: int = 16
    patch: int = 4
    layers: int = 2
    d_model: int = 64
    d_patches: int = 32
    d_ff: int = 128
    classes: int = 16
    batch: int = 16
    compute_dtype: str = "float32"

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch) ** 2


def quantized(x: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """A tensor in float8, and the scale that takes it back.

    Args:
        x: Any tensor.
        dtype: A float8 type.

    Returns:
        `x` over the scale, of `dtype`; and the scale, float32[].
    """
    largest = jnp.max(jnp.abs(x)).astype(jnp.float32)
    scale = jnp.maximum(largest, 1e-12) / float(jnp.finfo(dtype).max)
    return (x.astype(jnp.float32) / scale).astype(dtype), scale


def scaled_einsum(
    spec: str, x: tuple[jax.Array, jax.Array], w: tuple[jax.Array, jax.Array]
) -> jax.Array:
    """An einsum of float8 operands, each with its scale; the result is float32."""
    (x8, x_scale), (w8, w_scale) = x, w
    return jnp.einsum(spec, x8, w8, preferred_element_type=jnp.float32) * (x_scale * w_scale)


def scaled_matmul(spec: str, x: jax.Array, w: jax.Array, x_dtype: jnp.dtype) -> jax.Array:
    """An einsum of operands brought to float8, its result scaled back to float32."""
    return scaled_einsum(spec, quantized(x, x_dtype), quantized(w, jnp.dtype(jnp.float8_e4m3fn)))


def _float8_matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    """Multiply activations [batch, rows, d] by weights [d, f] in float8.

    Returns:
        Activations [batch, rows, f] of the type of `x`.
    """
    return scaled_matmul("bnd,df->bnf", x, w, jnp.dtype(jnp.float8_e4m3fn)).astype(x.dtype)


def _forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _float8_matmul(x, w), (x, w)


def _backward(kept: tuple[jax.Array, jax.Array], grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w = kept
    of_x = scaled_matmul("bnf,df->bnd", grad, w, jnp.dtype(jnp.float8_e5m2))
    of_w = scaled_matmul("bnf,bnd->df", grad, x, jnp.dtype(jnp.float8_e5m2))
    return of_x.astype(x.dtype), of_w.astype(w.dtype)


float8_matmul = jax.custom_vjp(_float8_matmul)
float8_matmul.defvjp(_forward, _backward)


def init_mlp(key: jax.Array, width: int, hidden: int, d_model: int) -> PyTree:
    up_key, down_key = jax.random.split(key)
    return {
        "norm": {"scale": jnp.ones(d_model), "bias": jnp.zeros(d_model)},
        "up": scaled_normal(up_key, (width, hidden), width),
        "b": jnp.zeros(hidden),
        "down": scaled_normal(down_key, (hidden, width), hidden),
    }


def init_params(key: jax.Array, config: MixerConfig) -> PyTree:
    stem_key, head_key, *keys = jax.random.split(key, 2 + 2 * config.layers)
    pixels = config.patch * config.patch * 3
    return {
        "stem": scaled_normal(stem_key, (pixels, config.d_model), pixels),
        "blocks": [
            {
                "patches": init_mlp(first, config.patches, config.d_patches, config.d_model),
                "channels": init_mlp(second, config.d_model, config.d_ff, config.d_model),
            }
            for first, second in zip(keys[::2], keys[1::2], strict=True)
        ],
        "norm": {"scale": jnp.ones(config.d_model), "bias": jnp.zeros(config.d_model)},
        "head": scaled_normal(head_key, (config.d_model, config.classes), config.d_model),
    }


def mlp(x: jax.Array, params: PyTree) -> jax.Array:
    hidden = jax.nn.gelu(float8_matmul(x, params["up"]) + params["b"].astype(x.dtype))
    made: jax.Array = float8_matmul(hidden, params["down"])
    return made


def loss_fn(params: PyTree, batch: PyTree, config: MixerConfig) -> jax.Array:
    patches = to_patches(batch["image"], config.patch).astype(jnp.dtype(config.compute_dtype))
    x = pinned(patches @ params["stem"].astype(patches.dtype))
    for block in params["blocks"]:
        turned = jnp.swapaxes(layer_norm(x, **block["patches"]["norm"]), 1, 2)
        x = pinned(x + jnp.swapaxes(mlp(turned, block["patches"]), 1, 2))
        x = pinned(x + mlp(layer_norm(x, **block["channels"]["norm"]), block["channels"]))
    pooled = jnp.mean(layer_norm(x, **params["norm"]).astype(jnp.float32), axis=1)
    logits = pooled @ params["head"]
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]))


MEGATRON = {
    "['up']": (None, "model"),
    "['b']": ("model",),
    "['down']": ("model", None),
}
"""Each MLP cut by columns, then by rows."""


def build(name: str, config: MixerConfig) -> Workload:
    """Build the Mixer's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: image_batch(
            key, batch=config.batch, image_size=config.image_size, classes=config.classes
        ),
        megatron=rule_by_path_end(MEGATRON),
    )
