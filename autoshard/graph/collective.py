"""Collectives: those the user wrote, and those a plan expects in the compiled program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WrittenCollective:
    """Communication the user wrote, in a `shard_map` body.

    Args:
        kind: As in `PredictedCollective`.
        groups: Devices that communicate, as places in the order the program runs in; of a permute,
            pairs of sender and receiver.
    """

    kind: str
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class PredictedCollective:
    """One kind of communication at one place of the program.

    Args:
        kind: `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all`, `collective-permute`,
            `collective-broadcast`.
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

    @property
    def moved_bytes(self) -> float:
        """Bytes per device of all its runs."""
        return self.bytes_per_device * self.count
