"""A GPT whose matmuls are in float8, with scales from the largest entries of the steps before.

Scales and the history of largest entries are part of the state. They go through the loss as
arguments whose "gradients" are their next values, so that a backward pass gives those of gradients.

Sources: Micikevicius et al. (2022); the delayed scaling of NVIDIA's Transformer Engine, stated as
Flax does in `flax.linen.fp8_ops`.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.attention import causal_attention
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.layer_stack import apply_layers, init_layers
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.mixer import scaled_einsum
from experiments.workloads.normalization import layer_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.tokens import token_batch
from experiments.workloads.unet import init_norm
from experiments.workloads.workload import PyTree, Workload

DTYPES = {"x": jnp.float8_e4m3fn, "w": jnp.float8_e4m3fn, "grad": jnp.float8_e5m2}
FIRST_SCALES = {"x": 2.0**-6, "w": 2.0**-8, "grad": 2.0**-20}


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8GptConfig:
    """Sizes of the model.

    Attributes:
        layers: Number of blocks, stacked, scanned over and computed again in the backward pass.
        d_model: Width of the residual stream.
        heads: Attention heads; divides `d_model`.
        d_ff: Width inside an MLP.
        vocab: Number of token ids; the head is the embedding's transpose.
        seq: Tokens in one sequence.
        batch: Sequences in one step.
        history: Steps whose largest entries a scale is taken from.
        compute_dtype: Type of activations between matmuls.
    """

    layers: int = 2
    d_model: int = 64
    heads: int = 8
    d_ff: int = 256
    vocab: int = 256
    seq: int = 32
    batch: int = 16
    history: int = 4
    compute_dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.d_model % self.heads:
            raise ValueError(f"d_model={self.d_model} is not a multiple of heads={self.heads}")


def init_scaling(history: int) -> PyTree:
    """The scale of each tensor of a matmul and its largest entries, float32[history]."""
    return {
        name: {"scale": jnp.asarray(scale, jnp.float32), "largest": jnp.zeros(history)}
        for name, scale in FIRST_SCALES.items()
    }


def narrowed(
    x: jax.Array, scaling: PyTree, name: str
) -> tuple[tuple[jax.Array, jax.Array], PyTree]:
    """A tensor in float8 by the scale it has, and the scale for the next step.

    Args:
        x: Any tensor; entries too large for the scale become the largest there is.
        scaling: The `scale` and the `largest` of that tensor.
        name: Its key in `DTYPES`.

    Returns:
        The tensor over its scale, with the scale; and `scaling` with this tensor in it.
    """
    dtype, most = DTYPES[name], float(jnp.finfo(DTYPES[name]).max)
    wide = x.astype(jnp.float32)
    x8 = jnp.clip(wide / scaling["scale"], -most, most).astype(dtype)
    largest = jnp.roll(scaling["largest"], 1).at[0].set(jnp.max(jnp.abs(wide)))
    bound = jnp.max(largest)
    scale = jnp.where(bound > 0.0, bound / most, scaling["scale"])
    return (x8, scaling["scale"]), {"scale": scale, "largest": largest}


def _delayed_matmul(x: jax.Array, w: jax.Array, scaling: PyTree) -> jax.Array:
    """Multiply activations [batch, rows, d] by weights [d, f] in float8.

    Args:
        x: Activations.
        w: float32 weights.
        scaling: What `init_scaling` returned; its gradient is what it is in the next step.

    Returns:
        Activations [batch, rows, f] of the type of `x`.
    """
    return _forward(x, w, scaling)[0]


def _forward(x: jax.Array, w: jax.Array, scaling: PyTree) -> tuple[jax.Array, PyTree]:
    x8, of_x = narrowed(x, scaling["x"], "x")
    w8, of_w = narrowed(w, scaling["w"], "w")
    out = scaled_einsum("bnd,df->bnf", x8, w8).astype(x.dtype)
    return out, (x8, w8, {"x": of_x, "w": of_w, "grad": scaling["grad"]})


def _backward(kept: PyTree, grad: jax.Array) -> tuple[jax.Array, jax.Array, PyTree]:
    x8, w8, scaling = kept
    grad8, of_grad = narrowed(grad, scaling["grad"], "grad")
    of_x = scaled_einsum("bnf,df->bnd", grad8, w8).astype(grad.dtype)
    of_w = scaled_einsum("bnf,bnd->df", grad8, x8)
    return of_x, of_w, {**scaling, "grad": of_grad}


delayed_matmul = jax.custom_vjp(_delayed_matmul)
delayed_matmul.defvjp(_forward, _backward)


def weight_shapes(config: Float8GptConfig) -> dict[str, tuple[int, int]]:
    """Of the float8 matmuls of a block; queries, keys and values of a head stand together."""
    d_model, d_ff = config.d_model, config.d_ff
    return {
        "qkv": (d_model, 3 * d_model),
        "out": (d_model, d_model),
        "up": (d_model, d_ff),
        "down": (d_ff, d_model),
    }


def init_block(key: jax.Array, config: Float8GptConfig) -> PyTree:
    shapes = weight_shapes(config)
    keys = jax.random.split(key, len(shapes))
    weights = {
        name: scaled_normal(k, shape, shape[0])
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    return {"norm1": init_norm(config.d_model), "norm2": init_norm(config.d_model), **weights}


def init_params(key: jax.Array, config: Float8GptConfig) -> PyTree:
    embed_key, position_key, blocks_key = jax.random.split(key, 3)
    d_model = config.d_model
    return {
        "embed": 0.02 * jax.random.normal(embed_key, (config.vocab, d_model)),
        "position": 0.02 * jax.random.normal(position_key, (config.seq, d_model)),
        "blocks": init_layers(
            lambda block_key: init_block(block_key, config), blocks_key, config.layers, scan=True
        ),
        "norm": init_norm(d_model),
    }


def init_scales(config: Float8GptConfig) -> PyTree:
    of_block = {name: init_scaling(config.history) for name in weight_shapes(config)}
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * config.layers), of_block)


def block(x: jax.Array, layer: tuple[PyTree, PyTree], heads: int) -> jax.Array:
    params, scales = layer

    def times(x: jax.Array, name: str) -> jax.Array:
        out: jax.Array = delayed_matmul(x, params[name], scales[name])
        return out

    batch, seq, d_model = x.shape
    qkv = times(layer_norm(x, **params["norm1"]), "qkv")
    qkv = qkv.reshape(batch, seq, heads, 3, d_model // heads)
    mixed = causal_attention(*(qkv[:, :, :, index] for index in range(3)))
    x = pinned(x + times(mixed.reshape(batch, seq, d_model), "out"))
    hidden = jax.nn.gelu(times(layer_norm(x, **params["norm2"]), "up"))
    return pinned(x + times(hidden, "down"))


def loss_fn(params: PyTree, scales: PyTree, batch: PyTree, config: Float8GptConfig) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    x = (params["embed"][batch["tokens"]] + params["position"]).astype(dtype)
    x = apply_layers(
        lambda x, layer: block(x, layer, config.heads),
        pinned(x),
        (params["blocks"], scales),
        scan=True,
        remat=True,
    )
    x = layer_norm(x, **params["norm"])
    logits = (x @ params["embed"].T.astype(dtype)).astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]))


MEGATRON = {
    "params['embed']": ("model", None),
    "['qkv']": (None, "model"),
    "['out']": ("model", None),
    "['up']": (None, "model"),
    "['down']": ("model", None),
}
"""Heads, MLP width and vocabulary cut."""


def build(name: str, config: Float8GptConfig) -> Workload:
    """Build the GPT's training workload; its scales are part of the state."""
    optimizer = optax.adamw(1e-3, b2=0.95, weight_decay=0.1)

    def init(key: jax.Array) -> PyTree:
        params = init_params(key, config)
        return {"params": params, "opt": optimizer.init(params), "scales": init_scales(config)}

    def train_step(state: PyTree, batch: PyTree) -> tuple[PyTree, jax.Array]:
        params = state["params"]
        loss, (grads, scales) = jax.value_and_grad(loss_fn, argnums=(0, 1))(
            params, state["scales"], batch, config
        )
        updates, opt = optimizer.update(grads, state["opt"], params)
        params = optax.apply_updates(params, updates)
        return {"params": params, "opt": opt, "scales": scales}, loss

    def make_batch(key: jax.Array) -> PyTree:
        return token_batch(key, batch=config.batch, seq=config.seq, vocab=config.vocab)

    return Workload(
        name=name,
        step=train_step,
        init=init,
        make_batch=make_batch,
        megatron=rule_by_path_end(MEGATRON),
    )
