"""A collective the plan expects the compiler to insert."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PredictedCollective:
    """One kind of communication at one place of the program.

    Args:
        kind: `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all`, `collective-permute`.
        axes: Mesh axes (or sub-axes, as `"x":(1)2` without quotes) it works over.
        group_size: Devices in one group.
        bytes_per_device: The larger side: of an all-gather the result, of others the operand.
        count: How often it runs.
        op: The op it serves, with its source line.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    bytes_per_device: int
    count: float
    op: str
