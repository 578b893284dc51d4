"""A state space language model: Mamba-like blocks, their recurrence scanned over time.

Source: Gu and Dao (2023), with the plain recurrence in place of the fused kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.initializers import scaled_normal
from experiments.workloads.layer_stack import apply_layers, init_layers
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import rms_norm
from experiments.workloads.tokens import token_batch
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload

CONV_WIDTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SsmConfig:
    """Sizes and form of the model.

    Attributes:
        layers: Number of blocks.
        d_model: Width of the residual stream.
        inner: Channels of a block's recurrence.
        states: Numbers that each channel remembers.
        dt_rank: Width that a channel's time step is computed through.
        vocab: Number of token ids; the head is the embedding's transpose.
        seq: Tokens in one sequence.
        batch: Sequences in one step.
        scan: Stack the blocks and scan over them, else unroll.
        remat: Compute each block again in the backward pass.
        compute_dtype: Type of matmuls; the recurrence, parameters and Adam stay float32.
    """

    layers: int = 2
    d_model: int = 64
    inner: int = 128
    states: int = 8
    dt_rank: int = 8
    vocab: int = 256
    seq: int = 16
    batch: int = 16
    scan: bool = False
    remat: bool | str = False
    compute_dtype: str = "float32"


def init_block(key: jax.Array, config: SsmConfig) -> PyTree:
    d_model, inner, states, rank = config.d_model, config.inner, config.states, config.dt_rank
    x_key, gate_key, conv_key, dt_key, up_key, in_key, out_key, o_key = jax.random.split(key, 8)
    return {
        "norm": jnp.ones(d_model),
        "wx": scaled_normal(x_key, (d_model, inner), d_model),
        "wgate": scaled_normal(gate_key, (d_model, inner), d_model),
        "conv": scaled_normal(conv_key, (CONV_WIDTH, inner), CONV_WIDTH),
        "wdt_down": scaled_normal(dt_key, (inner, rank), inner),
        "wdt_up": scaled_normal(up_key, (rank, inner), rank),
        "bdt": jnp.full(inner, -2.0, jnp.float32),
        "wb": scaled_normal(in_key, (inner, states), inner),
        "wc": scaled_normal(out_key, (inner, states), inner),
        "log_a": jnp.tile(jnp.log(jnp.arange(1.0, states + 1.0)), (inner, 1)),
        "skip": jnp.ones(inner),
        "wo": scaled_normal(o_key, (inner, d_model), inner),
    }


def init_params(key: jax.Array, config: SsmConfig) -> PyTree:
    embed_key, blocks_key = jax.random.split(key)
    return {
        "embed": 0.02 * jax.random.normal(embed_key, (config.vocab, config.d_model)),
        "blocks": init_layers(
            lambda block_key: init_block(block_key, config),
            blocks_key,
            config.layers,
            scan=config.scan,
        ),
        "norm": jnp.ones(config.d_model),
    }


def causal_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Mix each channel's last few positions.

    Args:
        x: Activations [batch, seq, channels].
        kernel: float32[width, channels]; the last row is for a position itself.

    Returns:
        Activations of the shape and type of `x`.
    """
    width, seq = kernel.shape[0], x.shape[1]
    padded = jnp.pad(x, ((0, 0), (width - 1, 0), (0, 0)))
    mixed = jnp.zeros_like(x)
    for back, row in enumerate(kernel):
        mixed = mixed + padded[:, back : back + seq] * row.astype(x.dtype)
    return mixed


def selective_scan(
    x: jax.Array, dt: jax.Array, log_a: jax.Array, b: jax.Array, c: jax.Array
) -> jax.Array:
    """Let each channel remember its input in states that fade, and read it out of them.

    Args:
        x: float32[batch, seq, channels].
        dt: Time steps, likewise, above 0.
        log_a: float32[channels, states], logarithms of how fast each state fades.
        b: float32[batch, seq, states], what each state takes in.
        c: Likewise, what is read of it.

    Returns:
        float32[batch, seq, channels].
    """
    a = -jnp.exp(log_a)

    def tick(h: jax.Array, at: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        x, dt, b, c = at
        h = jnp.exp(dt[..., None] * a) * h + (dt * x)[..., None] * b[:, None, :]
        return h, jnp.einsum("bis,bs->bi", h, c)

    zeros = jnp.zeros((x.shape[0], *log_a.shape), jnp.float32)
    by_time = tuple(jnp.swapaxes(value, 0, 1) for value in (x, dt, b, c))
    _, read = jax.lax.scan(jax.checkpoint(tick), zeros, by_time)
    return jnp.swapaxes(read, 0, 1)


def block(x: jax.Array, params: PyTree) -> jax.Array:
    normal = rms_norm(x, params["norm"])
    inner = causal_conv(normal @ params["wx"].astype(x.dtype), params["conv"])
    inner = jax.nn.silu(inner).astype(jnp.float32)
    dt = jax.nn.softplus(inner @ params["wdt_down"] @ params["wdt_up"] + params["bdt"])
    read = selective_scan(inner, dt, params["log_a"], inner @ params["wb"], inner @ params["wc"])
    read = (read + params["skip"] * inner).astype(x.dtype)
    gate = jax.nn.silu(normal @ params["wgate"].astype(x.dtype))
    return x + (gate * read) @ params["wo"].astype(x.dtype)


def loss_fn(params: PyTree, batch: PyTree, config: SsmConfig) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    x = apply_layers(
        block,
        params["embed"][batch["tokens"]].astype(dtype),
        params["blocks"],
        scan=config.scan,
        remat=config.remat,
    )
    x = rms_norm(x, params["norm"])
    logits = (x @ params["embed"].T.astype(dtype)).astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]))


MEGATRON = {
    "params['embed']": ("model", None),
    "['wx']": (None, "model"),
    "['wgate']": (None, "model"),
    "['conv']": (None, "model"),
    "['wdt_down']": ("model", None),
    "['wdt_up']": (None, "model"),
    "['bdt']": ("model",),
    "['wb']": ("model", None),
    "['wc']": ("model", None),
    "['log_a']": ("model", None),
    "['skip']": ("model",),
    "['wo']": ("model", None),
}
"""Channels cut, each with all of its states; vocabulary cut."""


def build(name: str, config: SsmConfig) -> Workload:
    """Build the state space model's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: token_batch(
            key, batch=config.batch, seq=config.seq, vocab=config.vocab
        ),
        megatron=rule_by_path_end(MEGATRON),
    )
