"""The entries of a `PartitionSpec`, in every JAX that is supported."""

from __future__ import annotations

from typing import Any

from jax.sharding import PartitionSpec


def spec_entries(spec: PartitionSpec) -> tuple[Any, ...]:
    """Entries by dimension, of specs with reduced axes too, which cannot be iterated.

    `PartitionSpec.partitions` is theirs from JAX 0.10.2 on.
    """
    return tuple(spec[place] for place in range(len(spec)))
