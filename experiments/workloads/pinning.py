"""What people pin by hand: activations to the axes of the batch, weights whole before a loop.

A model says which of its values it would pin; nothing is pinned unless someone asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

import jax
from jax.sharding import PartitionSpec

from experiments.workloads.workload import PyTree

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Pins:
    """What is pinned while a step is traced.

    Args:
        batch_axes: Mesh axes that cut the batch; with none, no activation is pinned.
        whole_weights: Whether weights that a loop reads are made whole before it.
    """

    batch_axes: tuple[str, ...] = ()
    whole_weights: bool = False


NOTHING = Pins()
_PINS: ContextVar[Pins] = ContextVar("_PINS", default=NOTHING)


def pinned(x: jax.Array, batch_dim: int = 0) -> jax.Array:
    """The value, cut by the axes of the batch and whole otherwise, where activations are pinned.

    As the batch itself, it is cut by as many of the leading axes as divide it.

    Args:
        x: An activation.
        batch_dim: Its dimension of examples.
    """
    axes = _PINS.get().batch_axes
    sizes = jax.sharding.get_abstract_mesh().shape
    while axes and x.shape[batch_dim] % math.prod(sizes[axis] for axis in axes):
        axes = axes[:-1]
    if not axes:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*[None] * batch_dim, axes))


def gathered(params: PyTree) -> PyTree:
    """Weights that a loop reads in every run, made whole before it where that is asked for."""
    if not _PINS.get().whole_weights:
        return params
    return jax.lax.with_sharding_constraint(params, PartitionSpec())


def with_pins(step: Callable[_Arguments, _Result], pins: Pins) -> Callable[_Arguments, _Result]:
    """The step with every value pinned that its model would pin.

    Args:
        step: A workload's step; to be traced under a mesh.
        pins: What to pin.
    """

    @wraps(step)
    def pinned_step(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        token = _PINS.set(pins)
        try:
            return step(*args, **kwargs)
        finally:
            _PINS.reset(token)

    return pinned_step
