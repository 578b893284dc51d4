"""Activations pinned to the axes of the batch, as people do by hand.

A model says which of its values it would pin; nothing is pinned unless someone asks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar

import jax
from jax.sharding import PartitionSpec

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_BATCH_AXES: ContextVar[tuple[str, ...]] = ContextVar("_BATCH_AXES", default=())


def pinned(x: jax.Array, batch_dim: int = 0) -> jax.Array:
    """The value, cut by the axes of the batch and whole otherwise, where activations are pinned.

    Args:
        x: An activation.
        batch_dim: Its dimension of examples.
    """
    axes = _BATCH_AXES.get()
    if not axes:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*[None] * batch_dim, axes))


def with_pins(
    step: Callable[_Arguments, _Result], batch_axes: tuple[str, ...]
) -> Callable[_Arguments, _Result]:
    """The step with every value pinned that its model would pin.

    Args:
        step: A workload's step; to be traced under a mesh.
        batch_axes: Mesh axes that cut the batch; none pins nothing.
    """

    @wraps(step)
    def pinned_step(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        token = _BATCH_AXES.set(batch_axes)
        try:
            return step(*args, **kwargs)
        finally:
            _BATCH_AXES.reset(token)

    return pinned_step
