"""What a custom call costs, as whoever wrote the kernel says."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomCost:
    """The work of one custom call, run whole, once.

    Args:
        flops: Floating-point operations on matrix units.
        vector_flops: All others.
        num_bytes: Read from memory and written to it; None for every operand and result once.

    Raises:
        InputError: An amount is negative or no number.
    """

    flops: float = 0.0
    vector_flops: float = 0.0
    num_bytes: float | None = None

    def __post_init__(self) -> None:
        for name in ("flops", "vector_flops", "num_bytes"):
            amount = getattr(self, name)
            if amount is not None and not 0 <= amount < float("inf"):
                raise InputError(
                    f"{name} is {amount}, which is no amount",
                    where=str(self),
                    fix="give 0 or more",
                )
