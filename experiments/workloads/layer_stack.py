"""Equal layers one after the other: unrolled, or scanned over stacked parameters."""

from __future__ import annotations

from collections.abc import Callable

import jax

from experiments.workloads.workload import PyTree


def init_layers(
    init_layer: Callable[[jax.Array], PyTree], key: jax.Array, num_layers: int, *, scan: bool
) -> PyTree:
    """Initialise every layer from a key of its own.

    Args:
        init_layer: `init_layer(key) -> params` of one layer.
        key: A PRNG key.
        num_layers: Number of layers.
        scan: Stack the layers along a new leading dimension; else return a list of them.

    Returns:
        The parameters; both forms hold the same numbers.
    """
    keys = jax.random.split(key, num_layers)
    if scan:
        return jax.vmap(init_layer)(keys)
    return [init_layer(layer_key) for layer_key in keys]


def apply_layers(
    layer: Callable[[PyTree, PyTree], PyTree],
    x: PyTree,
    layers: PyTree,
    *,
    scan: bool,
    remat: bool | str,
) -> PyTree:
    """Send activations through every layer.

    Args:
        layer: `layer(x, params) -> x`, the same shape and type out as in.
        x: Activations, and what else is carried from layer to layer.
        layers: What `init_layers` returned for the same `scan`.
        scan: Whether `layers` is stacked.
        remat: Keep only each layer's input for the backward pass and compute the rest again; by the
            name of a policy in `jax.checkpoint_policies`, keep what that saves as well.

    Returns:
        The same after the last layer.
    """
    if remat:
        policy = getattr(jax.checkpoint_policies, remat) if isinstance(remat, str) else None
        layer = jax.checkpoint(layer, policy=policy)
    if scan:
        x, _ = jax.lax.scan(lambda carry, params: (layer(carry, params), None), x, layers)
        return x
    for params in layers:
        x = layer(x, params)
    return x
