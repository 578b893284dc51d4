"""Moves of values between the memory of a device and that of its host, as equations."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn, Var


def on_host(aval: Any) -> Any:
    """The type of the same array in host memory."""
    return aval.update(memory_space=jax.memory.Space.Host)


def moved(source: Var, result: Var, like: JaxprEqn) -> JaxprEqn:
    """The equation that brings an array to the memory that its result is in.

    Args:
        source: The array.
        result: The same in the other memory.
        like: An equation to take the source line from.
    """
    space: Any = result.aval
    traced = jax.make_jaxpr(lambda x: jax.device_put(x, space.memory_space))(np.zeros(()))
    (template,) = traced.jaxpr.eqns
    return template.replace(
        invars=[source], outvars=[result], source_info=like.source_info, ctx=like.ctx
    )
