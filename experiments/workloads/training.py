"""A full training step around a model's loss, with Adam or another optimizer."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.workload import MegatronRule, PyTree, Workload


def training_workload(
    *,
    name: str,
    init_params: Callable[[jax.Array], PyTree],
    loss_fn: Callable[[PyTree, PyTree], jax.Array],
    make_batch: Callable[[jax.Array], PyTree],
    megatron: MegatronRule | None = None,
    optimizer: optax.GradientTransformation | None = None,
    batch_dim: int = 0,
    microbatches: int = 1,
) -> Workload:
    """Wrap a loss into the workload that trains it; nothing is allocated.

    Args:
        name: The workload's name.
        init_params: `init_params(key) -> params`.
        loss_fn: `loss_fn(params, batch) -> loss`, a scalar.
        make_batch: `make_batch(key) -> batch`.
        megatron: The model's tensor-parallel rule.
        optimizer: What turns gradients into updates; Adam with steps of 1e-3 if None.
        batch_dim: The dimension of every leaf of the batch that data parallelism cuts.
        microbatches: Parts of the batch along dimension 0, scanned one after the other, that loss
            and gradients are averaged over.

    Returns:
        The workload, with shapes found by abstract evaluation.
    """
    moved_by = optimizer or optax.adam(1e-3)
    gradients = jax.value_and_grad(loss_fn)
    if microbatches > 1:
        gradients = _averaged(gradients, microbatches)

    def init(key: jax.Array) -> PyTree:
        params = init_params(key)
        return {"params": params, "opt": moved_by.init(params)}

    def train_step(state: PyTree, batch: PyTree) -> tuple[PyTree, jax.Array]:
        params = state["params"]
        loss, grads = gradients(params, batch)
        updates, opt = moved_by.update(grads, state["opt"], params)
        return {"params": optax.apply_updates(params, updates), "opt": opt}, loss

    return Workload(
        name=name,
        step=train_step,
        init=init,
        make_batch=make_batch,
        megatron=megatron,
        batch_dim=batch_dim,
    )


def _averaged(
    gradients: Callable[[PyTree, PyTree], PyTree], microbatches: int
) -> Callable[[PyTree, PyTree], PyTree]:
    """Loss and gradients as the mean over equal parts of a batch, one part at a time."""

    def averaged(params: PyTree, batch: PyTree) -> PyTree:
        parts = jax.tree.map(lambda x: x.reshape(microbatches, -1, *x.shape[1:]), batch)

        def add(total: PyTree, part: PyTree) -> tuple[PyTree, None]:
            return jax.tree.map(jnp.add, total, gradients(params, part)), None

        start = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        total, _ = jax.lax.scan(add, start, parts)
        return jax.tree.map(lambda x: x / microbatches, total)

    return averaged
