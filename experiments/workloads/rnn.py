"""A recurrent language model: stacked LSTMs scanned over time.

Source: Hochreiter and Schmidhuber (1997), with forget gates.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.initializers import scaled_normal
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.pinning import gathered, pinned
from experiments.workloads.tokens import token_batch
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload

NUM_GATES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RnnConfig:
    """Sizes of the model.

    Attributes:
        layers: LSTMs on top of one another.
        d_embed: Width of a token's embedding.
        hidden: Width of an LSTM's state.
        vocab: Number of token ids.
        seq: Tokens in one sequence.
        batch: Sequences in one step.
    """

    layers: int = 2
    d_embed: int = 64
    hidden: int = 128
    vocab: int = 256
    seq: int = 32
    batch: int = 16


def init_cell(key: jax.Array, width_in: int, hidden: int) -> PyTree:
    input_key, state_key = jax.random.split(key)
    return {
        "wx": scaled_normal(input_key, (width_in, NUM_GATES, hidden), width_in),
        "wh": scaled_normal(state_key, (hidden, NUM_GATES, hidden), hidden),
        "b": jnp.zeros((NUM_GATES, hidden)),
    }


def init_params(key: jax.Array, config: RnnConfig) -> PyTree:
    embed_key, head_key, cells_key = jax.random.split(key, 3)
    widths_in = [config.d_embed, *[config.hidden] * (config.layers - 1)]
    cell_keys = jax.random.split(cells_key, config.layers)
    return {
        "embed": scaled_normal(embed_key, (config.vocab, config.d_embed), config.d_embed),
        "cells": [
            init_cell(cell_key, width_in, config.hidden)
            for cell_key, width_in in zip(cell_keys, widths_in, strict=True)
        ],
        "head": {
            "w": scaled_normal(head_key, (config.hidden, config.vocab), config.hidden),
            "b": jnp.zeros(config.vocab),
        },
    }


def lstm(inputs: jax.Array, params: PyTree) -> jax.Array:
    """Run one LSTM over a sequence, from a state of zeros.

    Args:
        inputs: float32[seq, batch, width_in].
        params: What `init_cell` returned.

    Returns:
        float32[seq, batch, hidden], the state after every token.
    """
    params = gathered(params)

    def tick(
        carry: tuple[jax.Array, jax.Array], x: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = carry
        gates = jnp.einsum("bi,igh->gbh", x, params["wx"])
        gates = gates + jnp.einsum("bi,igh->gbh", h, params["wh"]) + params["b"][:, None]
        # The added 1 keeps the memory at the start of training.
        keep = jax.nn.sigmoid(gates[1] + 1.0)
        c = keep * c + jax.nn.sigmoid(gates[0]) * jnp.tanh(gates[2])
        h = jax.nn.sigmoid(gates[3]) * jnp.tanh(c)
        h = pinned(h)
        return (h, c), h

    zeros = jnp.zeros((inputs.shape[1], params["wh"].shape[0]), inputs.dtype)
    _, outputs = jax.lax.scan(tick, (zeros, zeros), inputs)
    return outputs


def loss_fn(params: PyTree, batch: PyTree) -> jax.Array:
    x = pinned(jnp.swapaxes(params["embed"][batch["tokens"]], 0, 1), batch_dim=1)
    for cell in params["cells"]:
        x = pinned(lstm(x, cell), batch_dim=1)
    logits = jnp.swapaxes(x, 0, 1) @ params["head"]["w"] + params["head"]["b"]
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]))


MEGATRON = {
    "['wx']": (None, None, "model"),
    "['wh']": (None, None, "model"),
    "['b']": ("model",),
    "['head']['w']": (None, "model"),
    "params['embed']": ("model", None),
}
"""Cells cut by state, each gate alike; vocabulary cut."""


def build(name: str, config: RnnConfig) -> Workload:
    """Build the recurrent model's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=loss_fn,
        make_batch=lambda key: token_batch(
            key, batch=config.batch, seq=config.seq, vocab=config.vocab
        ),
        megatron=rule_by_path_end(MEGATRON),
    )
