"""A GPT with dropout, whose state holds a key and counts its steps.

In no list of workloads: its numbers depend on the key, which every run of a step replaces.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.gpt import GptConfig, attention, init_params, linear
from experiments.workloads.layer_stack import apply_layers
from experiments.workloads.normalization import layer_norm
from experiments.workloads.tokens import token_batch
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload

_KEPT = 0.9


def _dropped(x: jax.Array, key: jax.Array) -> jax.Array:
    keep = jax.random.bernoulli(key, _KEPT, x.shape)
    return jnp.where(keep, x / _KEPT, 0.0)


def _block(x: jax.Array, layer: PyTree, config: GptConfig) -> jax.Array:
    params, (first, second) = layer["params"], layer["keys"]
    mixed = attention(layer_norm(x, **params["ln1"]), params["attn"], config.heads)
    x = x + _dropped(mixed, first)
    mlp = params["mlp"]
    hidden = jax.nn.gelu(linear(layer_norm(x, **params["ln2"]), mlp["w1"], mlp["b1"]))
    return x + _dropped(linear(hidden, mlp["w2"], mlp["b2"]), second)


def _loss(params: PyTree, batch: PyTree, key: jax.Array, config: GptConfig) -> jax.Array:
    keys = jax.random.split(key, (config.layers, 2))
    blocks = params["blocks"]
    layers = (
        {"params": blocks, "keys": keys}
        if config.scan
        else [{"params": one, "keys": pair} for one, pair in zip(blocks, keys, strict=True)]
    )
    x = apply_layers(
        lambda x, layer: _block(x, layer, config),
        params["embed"][batch["tokens"]] + params["position"],
        layers,
        scan=config.scan,
        remat=config.remat,
    )
    logits = layer_norm(x, **params["ln_f"]) @ params["head"]
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]))


def build(name: str, config: GptConfig) -> Workload:
    """Build the training workload; its state has a `key` (uint32[2]) and `steps` (int32)."""
    plain = training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: _loss(params, batch, batch["key"], config),
        make_batch=lambda key: token_batch(
            key, batch=config.batch, seq=config.seq, vocab=config.vocab
        ),
    )

    def init(key: jax.Array) -> PyTree:
        words = jax.random.key_data(key)
        return {**plain.init(key), "key": words, "steps": jnp.zeros((), jnp.int32)}

    def step(state: PyTree, batch: PyTree) -> tuple[PyTree, jax.Array]:
        key, used = jax.random.split(jax.random.wrap_key_data(state["key"]))
        trained = {"params": state["params"], "opt": state["opt"]}
        trained, loss = plain.step(trained, {**batch, "key": used})
        words = jax.random.key_data(key)
        return {**trained, "key": words, "steps": state["steps"] + 1}, loss

    return Workload(name=name, step=step, init=init, make_batch=plain.make_batch)
