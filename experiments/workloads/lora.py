"""Fine-tuning a Llama by low-rank adapters of queries and values; the rest stays as it is.

Source: Hu et al. (2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads import llama
from experiments.workloads.attention import grouped_causal_attention
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.layer_stack import apply_layers, init_layers
from experiments.workloads.llama import LlamaConfig, rotary_angles, rotate, swiglu
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import rms_norm
from experiments.workloads.tokens import token_batch
from experiments.workloads.workload import PyTree, Workload

LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig(LlamaConfig):
    """Sizes of a Llama and of its adapters; the Llama's parameters are of the compute type.

    Attributes:
        rank: Width of an adapter.
        alpha: An adapter counts `alpha / rank` times.
    """

    rank: int = 8
    alpha: float = 16.0


def init_adapter(key: jax.Array, d_model: int, heads: int, head_dim: int, rank: int) -> PyTree:
    return {
        "down": scaled_normal(key, (d_model, rank), d_model),
        "up": jnp.zeros((rank, heads, head_dim)),
    }


def init_adapters(key: jax.Array, config: LoraConfig) -> PyTree:
    d_model, heads, kv_heads = config.d_model, config.heads, config.num_kv_heads
    q_key, v_key = jax.random.split(key)
    head_dim = d_model // heads
    return {
        "q": init_adapter(q_key, d_model, heads, head_dim, config.rank),
        "v": init_adapter(v_key, d_model, kv_heads, head_dim, config.rank),
    }


def init_params(key: jax.Array, config: LoraConfig) -> PyTree:
    base_key, adapter_key = jax.random.split(key)
    dtype = jnp.dtype(config.compute_dtype)
    base = llama.init_params(base_key, config)
    return {
        "base": jax.tree.map(lambda leaf: leaf.astype(dtype), base),
        "adapters": init_layers(
            lambda layer_key: init_adapters(layer_key, config),
            adapter_key,
            config.layers,
            scan=config.scan,
        ),
    }


def adapted(x: jax.Array, weight: jax.Array, adapter: PyTree, scale: float) -> jax.Array:
    """Project to heads by a weight and, beside it, through its adapter.

    Args:
        x: Activations [batch, seq, d_model].
        weight: [d_model, heads, head_dim].
        adapter: `down`, float32[d_model, rank], and `up`, float32[rank, heads, head_dim].
        scale: How much the adapter counts.

    Returns:
        [batch, seq, heads, head_dim] of the type of `x`.
    """
    narrow = x @ adapter["down"].astype(x.dtype)
    change = jnp.einsum("bsr,rhe->bshe", narrow, adapter["up"].astype(x.dtype))
    return jnp.einsum("bsd,dhe->bshe", x, weight) + scale * change


def block(
    x: jax.Array, layer: PyTree, angles: tuple[jax.Array, jax.Array], scale: float
) -> jax.Array:
    params, adapters = layer["base"], layer["adapters"]
    weights, normal = params["attn"], rms_norm(x, params["attn_norm"])
    q = rotate(adapted(normal, weights["wq"], adapters["q"], scale), *angles)
    k = rotate(jnp.einsum("bsd,dhe->bshe", normal, weights["wk"]), *angles)
    v = adapted(normal, weights["wv"], adapters["v"], scale)
    mixed = grouped_causal_attention(q, k, v)
    x = x + jnp.einsum("bshe,hed->bsd", mixed, weights["wo"])
    return x + swiglu(rms_norm(x, params["mlp_norm"]), params["mlp"])


def loss_fn(adapters: PyTree, base: PyTree, batch: PyTree, config: LoraConfig) -> jax.Array:
    angles = rotary_angles(config.seq, config.d_model // config.heads, config.rope_theta)
    layers: PyTree = {"base": base["blocks"], "adapters": adapters}
    if not config.scan:
        pairs = zip(base["blocks"], adapters, strict=True)
        layers = [{"base": params, "adapters": adapter} for params, adapter in pairs]
    x = apply_layers(
        lambda x, layer: block(x, layer, angles, config.alpha / config.rank),
        base["embed"][batch["tokens"]],
        layers,
        scan=config.scan,
        remat=config.remat,
    )
    logits = (rms_norm(x, base["norm"]) @ base["head"]).astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]))


ADAPTERS = {
    "['up']": (None, "model", None),
}
"""Adapters cut by heads where they end in them, beside what a Llama cuts."""


def megatron_rule(path: str, shape: tuple[int, ...]) -> tuple[str | None, ...] | None:
    """Cut the base as a Llama, and adapters by heads."""
    is_adapter = path.startswith("params['adapters']")
    rule = rule_by_path_end(ADAPTERS if is_adapter else llama.MEGATRON)
    return rule(path.replace("params['base']", "params"), shape)


def build(name: str, config: LoraConfig) -> Workload:
    """Build the fine-tuning workload: Adam moves the adapters alone."""
    optimizer = optax.adam(LEARNING_RATE)

    def init(key: jax.Array) -> PyTree:
        params = init_params(key, config)
        return {"params": params, "opt": optimizer.init(params["adapters"])}

    def train_step(state: PyTree, batch: PyTree) -> tuple[PyTree, jax.Array]:
        base, adapters = state["params"]["base"], state["params"]["adapters"]
        loss, grads = jax.value_and_grad(loss_fn)(adapters, base, batch, config)
        updates, opt = optimizer.update(grads, state["opt"], adapters)
        params = {"base": base, "adapters": optax.apply_updates(adapters, updates)}
        return {"params": params, "opt": opt}, loss

    def make_batch(key: jax.Array) -> PyTree:
        return token_batch(key, batch=config.batch, seq=config.seq, vocab=config.vocab)

    return Workload(
        name=name,
        step=train_step,
        init=init,
        make_batch=make_batch,
        megatron=megatron_rule,
        trained="adapters",
    )
