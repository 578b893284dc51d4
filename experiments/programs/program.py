"""A program of another package: a function, its arguments, and what they are made with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A step as its package's users write it, without any sharding.

    Args:
        fn: Pure, or of Flax NNX objects.
        args: Concrete.
        donate_argnums: As for `jax.jit`.
        tolerance: Relative, of each result's norm, for equal numbers.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()
    tolerance: float = 2e-3
