"""A language model of gated linear recurrences, with attention to a band in every third block.

The recurrence is an associative scan along the sequence in float32; attention goes chunk by chunk,
to the chunk itself and the one before. Trained with Adafactor, keeping the results of matmuls.

Source: De et al. (2024), Griffin.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.attention import MASKED
from experiments.workloads.gemma import geglu
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.layer_stack import apply_layers, init_layers
from experiments.workloads.llama import rotary_angles, rotate
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import rms_norm
from experiments.workloads.parallel_ssm import fading_sums
from experiments.workloads.pinning import pinned
from experiments.workloads.ssm import causal_conv
from experiments.workloads.tokens import token_batch
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload

CONV_WIDTH = 4
FADING = 8.0
ROPE_THETA = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GriffinConfig:
    """Sizes of the model.

    Attributes:
        triples: Of two recurrent blocks and one with attention.
        d_model: Width of the residual stream.
        d_rnn: Width of a recurrence, a multiple of `heads`.
        heads: Query heads, and blocks of the recurrence's gates; divides `d_model`.
        d_ff: Width inside a gated MLP.
        vocab: Number of token ids; the head is the embedding's transpose.
        seq: Tokens in one sequence, a multiple of `window`.
        window: Tokens that attention looks back on, the query's own among them.
        batch: Sequences in one step.
        compute_dtype: Type of activations and matmuls; the recurrence stays float32.
    """

    triples: int = 1
    d_model: int = 64
    d_rnn: int = 96
    heads: int = 8
    d_ff: int = 128
    vocab: int = 256
    seq: int = 16
    window: int = 4
    batch: int = 16
    compute_dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, size, of in (
            ("d_model", "heads", self.heads),
            ("d_rnn", "heads", self.heads),
            ("seq", "window", self.window),
        ):
            if getattr(self, name) % of:
                raise ValueError(f"{name}={getattr(self, name)} is not a multiple of {size}={of}")


def init_mlp(key: jax.Array, config: GriffinConfig) -> PyTree:
    gate_key, up_key, down_key = jax.random.split(key, 3)
    d_model, d_ff = config.d_model, config.d_ff
    return {
        "gate": scaled_normal(gate_key, (d_model, d_ff), d_model),
        "up": scaled_normal(up_key, (d_model, d_ff), d_model),
        "down": scaled_normal(down_key, (d_ff, d_model), d_ff),
    }


def init_recurrence(key: jax.Array, config: GriffinConfig) -> PyTree:
    keys = jax.random.split(key, 6)
    d_model, d_rnn, narrow = config.d_model, config.d_rnn, config.d_rnn // config.heads
    by_head = (config.heads, narrow, narrow)
    return {
        "wx": scaled_normal(keys[0], (d_model, d_rnn), d_model),
        "wgate": scaled_normal(keys[1], (d_model, d_rnn), d_model),
        "conv": scaled_normal(keys[2], (CONV_WIDTH, d_rnn), CONV_WIDTH),
        "forget": {"w": scaled_normal(keys[3], by_head, narrow), "b": jnp.zeros(d_rnn)},
        "input": {"w": scaled_normal(keys[4], by_head, narrow), "b": jnp.zeros(d_rnn)},
        "fade": jnp.linspace(-4.3, -9.0, d_rnn),
        "wo": scaled_normal(keys[5], (d_rnn, d_model), d_rnn),
    }


def init_attention(key: jax.Array, config: GriffinConfig) -> PyTree:
    q_key, k_key, v_key, o_key = jax.random.split(key, 4)
    d_model, heads, head_dim = config.d_model, config.heads, config.d_model // config.heads
    return {
        "wq": scaled_normal(q_key, (d_model, heads, head_dim), d_model),
        "wk": scaled_normal(k_key, (d_model, head_dim), d_model),
        "wv": scaled_normal(v_key, (d_model, head_dim), d_model),
        "wo": scaled_normal(o_key, (heads, head_dim, d_model), d_model),
    }


def init_triple(key: jax.Array, config: GriffinConfig) -> list[PyTree]:
    return [
        {
            "norm": jnp.ones(config.d_model),
            name: init_mixer(jax.random.fold_in(key, 2 * index), config),
            "mlp_norm": jnp.ones(config.d_model),
            "mlp": init_mlp(jax.random.fold_in(key, 2 * index + 1), config),
        }
        for index, (name, init_mixer) in enumerate(
            [("rnn", init_recurrence), ("rnn", init_recurrence), ("attn", init_attention)]
        )
    ]


def init_params(key: jax.Array, config: GriffinConfig) -> PyTree:
    embed_key, triples_key = jax.random.split(key)
    return {
        "embed": 0.02 * jax.random.normal(embed_key, (config.vocab, config.d_model)),
        "triples": init_layers(
            lambda triple_key: init_triple(triple_key, config),
            triples_key,
            config.triples,
            scan=False,
        ),
        "norm": jnp.ones(config.d_model),
    }


def gated_recurrence(x: jax.Array, params: PyTree) -> jax.Array:
    """Let each channel fade as its gates say, and take in what is left of the input.

    Args:
        x: float32[batch, seq, d_rnn].
        params: `forget`, `input` and `fade` of `init_recurrence`.

    Returns:
        float32[batch, seq, d_rnn], bounded as `x` is.
    """

    def gate(of: PyTree) -> jax.Array:
        heads, narrow, _ = of["w"].shape
        by_head = x.reshape(*x.shape[:2], heads, narrow)
        return jax.nn.sigmoid(
            jnp.einsum("bshr,hrt->bsht", by_head, of["w"]).reshape(x.shape) + of["b"]
        )

    log_fade = -FADING * gate(params["forget"]) * jax.nn.softplus(params["fade"])
    taken = jnp.sqrt(-jnp.expm1(2.0 * log_fade)) * gate(params["input"]) * x
    return fading_sums(jnp.exp(log_fade), taken)


def recurrence(x: jax.Array, params: PyTree) -> jax.Array:
    gate = jax.nn.gelu(x @ params["wgate"].astype(x.dtype))
    mixed = causal_conv(x @ params["wx"].astype(x.dtype), params["conv"])
    states = pinned(gated_recurrence(mixed.astype(jnp.float32), params))
    return (gate * states.astype(x.dtype)) @ params["wo"].astype(x.dtype)


def banded_attention(q: jax.Array, k: jax.Array, v: jax.Array, window: int) -> jax.Array:
    """Attend to the last `window` positions, one chunk of queries to two of keys.

    Args:
        q: Queries [batch, seq, heads, head_dim].
        k: Keys [batch, seq, head_dim], one head for all queries; `window` divides `seq`.
        v: Values, likewise.
        window: Positions a query sees, its own among them.

    Returns:
        Mixed values [batch, seq, heads, head_dim] of the type of `v`.
    """
    batch, seq, heads, head_dim = q.shape
    chunks = seq // window

    def with_chunk_before(x: jax.Array) -> jax.Array:
        cut = x.reshape(batch, chunks, window, head_dim)
        before = jnp.pad(cut[:, :-1], ((0, 0), (1, 0), (0, 0), (0, 0)))
        return jnp.concatenate([before, cut], axis=2)

    k, v = with_chunk_before(k), with_chunk_before(v)
    q = q.reshape(batch, chunks, window, heads, head_dim)
    scores = jnp.einsum("bcqhd,bckd->bchqk", q, k).astype(jnp.float32) * head_dim**-0.5
    back = jnp.arange(window)[:, None] + window - jnp.arange(2 * window)
    # The chunk before the first is padding.
    exists = (jnp.arange(chunks)[:, None] > 0) | (jnp.arange(2 * window) >= window)
    seen = (back >= 0) & (back < window) & exists[:, None, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, MASKED), axis=-1).astype(v.dtype)
    return jnp.einsum("bchqk,bckd->bcqhd", weights, v).reshape(batch, seq, heads, head_dim)


def attention(x: jax.Array, params: PyTree, window: int) -> jax.Array:
    head_dim = params["wk"].shape[-1]
    angles = rotary_angles(x.shape[1], head_dim, ROPE_THETA)
    q = rotate(jnp.einsum("bsd,dhe->bshe", x, params["wq"].astype(x.dtype)), *angles)
    k = rotate((x @ params["wk"].astype(x.dtype))[:, :, None], *angles)[:, :, 0]
    mixed = banded_attention(q, k, x @ params["wv"].astype(x.dtype), window)
    return jnp.einsum("bshe,hed->bsd", mixed, params["wo"].astype(x.dtype))


def triple(x: jax.Array, blocks: list[PyTree], window: int) -> jax.Array:
    for params in blocks:
        normal = rms_norm(x, params["norm"])
        if "rnn" in params:
            x = pinned(x + recurrence(normal, params["rnn"]))
        else:
            x = pinned(x + attention(normal, params["attn"], window))
        x = pinned(x + geglu(rms_norm(x, params["mlp_norm"]), params["mlp"]))
    return x


def loss_fn(params: PyTree, batch: PyTree, config: GriffinConfig) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    x = apply_layers(
        lambda x, blocks: triple(x, blocks, config.window),
        pinned(params["embed"][batch["tokens"]].astype(dtype)),
        params["triples"],
        scan=False,
        remat="dots_with_no_batch_dims_saveable",
    )
    x = rms_norm(x, params["norm"])
    logits = (x @ params["embed"].T.astype(dtype)).astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]))


MEGATRON = {
    "params['embed']": ("model", None),
    "['wx']": (None, "model"),
    "['wgate']": (None, "model"),
    "['conv']": (None, "model"),
    "['forget']['w']": ("model", None, None),
    "['forget']['b']": ("model",),
    "['input']['w']": ("model", None, None),
    "['input']['b']": ("model",),
    "['fade']": ("model",),
    "['rnn']['wo']": ("model", None),
    "['wq']": (None, "model", None),
    "['attn']['wo']": ("model", None, None),
    "['mlp']['gate']": (None, "model"),
    "['mlp']['up']": (None, "model"),
    "['mlp']['down']": ("model", None),
}
"""Recurrences cut by the blocks of their gates; query heads, MLP width and vocabulary cut."""


def build(name: str, config: GriffinConfig) -> Workload:
    """Build the recurrent language model's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: token_batch(
            key, batch=config.batch, seq=config.seq, vocab=config.vocab
        ),
        megatron=rule_by_path_end(MEGATRON),
        optimizer=optax.adafactor(1e-3, min_dim_size_to_factor=32),
    )
