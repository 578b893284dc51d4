"""A recurrent language model of an LSTM below a GRU, their inputs projected before the loop.

Source: Cho et al. (2014) for the GRU; Press and Wolf (2016) for the head that is the embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.initializers import scaled_normal
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import layer_norm
from experiments.workloads.pinning import gathered, pinned
from experiments.workloads.tokens import token_batch
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class GruConfig:
    """Sizes of the model.

    Attributes:
        d_model: Width of embeddings and of what a cell gives.
        hidden: Width of a cell's state.
        vocab: Number of token ids; the head is the embedding's transpose.
        seq: Tokens in one sequence.
        batch: Sequences in one step.
    """

    d_model: int = 64
    hidden: int = 128
    vocab: int = 256
    seq: int = 24
    batch: int = 16


def init_cell(key: jax.Array, gates: int, config: GruConfig) -> PyTree:
    input_key, state_key, out_key = jax.random.split(key, 3)
    d_model, hidden = config.d_model, config.hidden
    return {
        "wx": scaled_normal(input_key, (d_model, gates * hidden), d_model),
        "b": jnp.zeros(gates * hidden),
        "wh": scaled_normal(state_key, (hidden, gates * hidden), hidden),
        "wo": scaled_normal(out_key, (hidden, d_model), hidden),
        "norm": {"scale": jnp.ones(d_model), "bias": jnp.zeros(d_model)},
    }


def init_params(key: jax.Array, config: GruConfig) -> PyTree:
    embed_key, lstm_key, gru_key = jax.random.split(key, 3)
    return {
        "embed": 0.1 * jax.random.normal(embed_key, (config.vocab, config.d_model)),
        "lstm": init_cell(lstm_key, 4, config),
        "gru": init_cell(gru_key, 3, config),
    }


def lstm_tick(
    carry: tuple[jax.Array, jax.Array], x: jax.Array, wh: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    h, c = carry
    take, keep, show, new = jnp.split(x + h @ wh, 4, axis=-1)
    c = jax.nn.sigmoid(keep + 1.0) * c + jax.nn.sigmoid(take) * jnp.tanh(new)
    h = pinned(jax.nn.sigmoid(show) * jnp.tanh(c))
    return (h, c), h


def gru_tick(h: jax.Array, x: jax.Array, wh: jax.Array) -> tuple[jax.Array, jax.Array]:
    x_reset, x_update, x_new = jnp.split(x, 3, axis=-1)
    h_reset, h_update, h_new = jnp.split(h @ wh, 3, axis=-1)
    update = jax.nn.sigmoid(x_update + h_update)
    new = jnp.tanh(x_new + jax.nn.sigmoid(x_reset + h_reset) * h_new)
    h = pinned(update * h + (1.0 - update) * new)
    return h, h


def layer(x: jax.Array, params: PyTree, tick: Callable[..., PyTree], start: PyTree) -> jax.Array:
    """Run a cell over float32[seq, batch, d_model] and add what it says.

    Args:
        x: The sequence, times first.
        params: What `init_cell` returned.
        tick: `tick(carry, x, wh) -> (carry, h)`.
        start: The first carry.

    Returns:
        Of the shape of `x`.
    """
    wh = gathered(params["wh"])
    projected = pinned(layer_norm(x, **params["norm"]) @ params["wx"] + params["b"], batch_dim=1)
    _, states = jax.lax.scan(lambda carry, at: tick(carry, at, wh), start, projected)
    return x + states @ params["wo"]


def loss_fn(params: PyTree, batch: PyTree, config: GruConfig) -> jax.Array:
    x = pinned(jnp.swapaxes(params["embed"][batch["tokens"]], 0, 1), batch_dim=1)
    zeros = jnp.zeros((x.shape[1], config.hidden), x.dtype)
    x = pinned(layer(x, params["lstm"], lstm_tick, (zeros, zeros)), batch_dim=1)
    x = pinned(layer(x, params["gru"], gru_tick, zeros), batch_dim=1)
    logits = jnp.einsum("sbd,vd->bsv", x, params["embed"])
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]))


MEGATRON = {
    "['wo']": ("model", None),
    "params['embed']": ("model", None),
}
"""What cells give cut by their state; vocabulary cut. Fused gates stay whole."""


def build(name: str, config: GruConfig) -> Workload:
    """Build the recurrent model's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: token_batch(
            key, batch=config.batch, seq=config.seq, vocab=config.vocab
        ),
        megatron=rule_by_path_end(MEGATRON),
        optimizer=optax.rmsprop(3e-4, momentum=0.5),
    )
