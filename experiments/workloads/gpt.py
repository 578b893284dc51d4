"""A GPT: learned positions, pre-norm blocks of attention and a GELU MLP, with biases.

Source: Radford et al. (2019), without dropout.
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
from experiments.workloads.normalization import layer_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.tokens import token_batch
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class GptConfig:
    """Sizes and form of the model.

    Attributes:
        layers: Number of blocks.
        d_model: Width of the residual stream.
        heads: Attention heads; divides `d_model`.
        d_ff: Width inside the MLP.
        vocab: Number of token ids.
        seq: Tokens in one sequence.
        batch: Sequences in one step.
        scan: Stack the blocks and scan over them, else unroll.
        remat: Compute each block again in the backward pass.
        compute_dtype: Type of activations and matmuls; parameters and Adam stay float32.
        tied_head: Project to the vocabulary with the embedding's transpose.
        microbatches: Parts of the batch, scanned one after the other, that gradients are averaged
            over.
    """

    layers: int = 2
    d_model: int = 64
    heads: int = 8
    d_ff: int = 256
    vocab: int = 256
    seq: int = 32
    batch: int = 16
    scan: bool = False
    remat: bool | str = False
    compute_dtype: str = "float32"
    tied_head: bool = False
    microbatches: int = 1

    def __post_init__(self) -> None:
        if self.d_model % self.heads:
            raise ValueError(f"d_model={self.d_model} is not a multiple of heads={self.heads}")


def init_norm(width: int) -> PyTree:
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}


def init_block(key: jax.Array, config: GptConfig) -> PyTree:
    d_model, d_ff = config.d_model, config.d_ff
    q_key, k_key, v_key, o_key, up_key, down_key = jax.random.split(key, 6)
    return {
        "ln1": init_norm(d_model),
        "attn": {
            "wq": scaled_normal(q_key, (d_model, d_model), d_model),
            "bq": jnp.zeros(d_model),
            "wk": scaled_normal(k_key, (d_model, d_model), d_model),
            "bk": jnp.zeros(d_model),
            "wv": scaled_normal(v_key, (d_model, d_model), d_model),
            "bv": jnp.zeros(d_model),
            "wo": scaled_normal(o_key, (d_model, d_model), d_model),
            "bo": jnp.zeros(d_model),
        },
        "ln2": init_norm(d_model),
        "mlp": {
            "w1": scaled_normal(up_key, (d_model, d_ff), d_model),
            "b1": jnp.zeros(d_ff),
            "w2": scaled_normal(down_key, (d_ff, d_model), d_ff),
            "b2": jnp.zeros(d_model),
        },
    }


def init_params(key: jax.Array, config: GptConfig) -> PyTree:
    embed_key, position_key, head_key, blocks_key = jax.random.split(key, 4)
    params = {
        "embed": 0.02 * jax.random.normal(embed_key, (config.vocab, config.d_model)),
        "position": 0.02 * jax.random.normal(position_key, (config.seq, config.d_model)),
        "blocks": init_layers(
            lambda block_key: init_block(block_key, config),
            blocks_key,
            config.layers,
            scan=config.scan,
        ),
        "ln_f": init_norm(config.d_model),
    }
    if not config.tied_head:
        shape = (config.d_model, config.vocab)
        params["head"] = scaled_normal(head_key, shape, config.d_model)
    return params


def linear(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    return x @ weight.astype(x.dtype) + bias.astype(x.dtype)


def attention(x: jax.Array, params: PyTree, heads: int) -> jax.Array:
    batch, seq, d_model = x.shape
    by_head = (batch, seq, heads, d_model // heads)
    q = linear(x, params["wq"], params["bq"]).reshape(by_head)
    k = linear(x, params["wk"], params["bk"]).reshape(by_head)
    v = linear(x, params["wv"], params["bv"]).reshape(by_head)
    mixed = causal_attention(q, k, v).reshape(batch, seq, d_model)
    return linear(mixed, params["wo"], params["bo"])


def block(x: jax.Array, params: PyTree, config: GptConfig) -> jax.Array:
    x = pinned(x + attention(layer_norm(x, **params["ln1"]), params["attn"], config.heads))
    mlp = params["mlp"]
    hidden = jax.nn.gelu(linear(layer_norm(x, **params["ln2"]), mlp["w1"], mlp["b1"]))
    return pinned(x + linear(hidden, mlp["w2"], mlp["b2"]))


def loss_fn(params: PyTree, batch: PyTree, config: GptConfig) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    x = pinned((params["embed"][batch["tokens"]] + params["position"]).astype(dtype))
    x = apply_layers(
        lambda x, block_params: block(x, block_params, config),
        x,
        params["blocks"],
        scan=config.scan,
        remat=config.remat,
    )
    x = layer_norm(x, **params["ln_f"])
    head = params["embed"].T if config.tied_head else params["head"]
    logits = (x @ head.astype(dtype)).astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]))


MEGATRON = {
    "params['embed']": ("model", None),
    "params['head']": (None, "model"),
    "['attn']['wq']": (None, "model"),
    "['attn']['wk']": (None, "model"),
    "['attn']['wv']": (None, "model"),
    "['attn']['bq']": ("model",),
    "['attn']['bk']": ("model",),
    "['attn']['bv']": ("model",),
    "['attn']['wo']": ("model", None),
    "['mlp']['w1']": (None, "model"),
    "['mlp']['b1']": ("model",),
    "['mlp']['w2']": ("model", None),
}
"""Heads, MLP width and vocabulary cut. Source: Shoeybi et al. (2019), section 3."""


def build(name: str, config: GptConfig) -> Workload:
    """Build the GPT's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: token_batch(
            key, batch=config.batch, seq=config.seq, vocab=config.vocab
        ),
        megatron=rule_by_path_end(MEGATRON),
        microbatches=config.microbatches,
    )
