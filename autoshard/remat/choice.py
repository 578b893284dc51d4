"""What was chosen to be kept for backward passes, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

ON_HOST = "@host"
"""Behind the name of a kept residual that lies in host memory between the passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A forward value that a backward pass reads or is computed from.

    Args:
        name: Of the value in the program, `0:7.0`.
        what: Its `checkpoint_name`, or the primitive that makes it; `carry` of what a loop carries.
        is_named: That is its `checkpoint_name`.
        source: `file.py:12 (function)` of the user's line, or "".
        type_text: `bf16[32, 8, 2048]`, with the dimension in which a scan stacks it.
        is_kept: Kept from the forward pass; else computed again.
        is_offloaded: Kept in host memory between the passes.
        local_bytes: Of all that one device keeps of it, or would keep.
        seconds: That computing it again takes in one step, or would, without what it is computed
            from.
    """

    name: str
    what: str
    is_named: bool
    source: str
    type_text: str
    is_kept: bool
    is_offloaded: bool = False
    local_bytes: int
    seconds: float

    @property
    def fate(self) -> str:
        """What becomes of it: `kept`, `on the host`, or `computed again`."""
        if self.is_offloaded:
            return "on the host"
        return "kept" if self.is_kept else "computed again"


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedResiduals:
    """A set of residuals that the program was planned with.

    Args:
        is_chosen: It is that of the plan.
        num_kept: Residuals that are kept on the device.
        kept_bytes: Of them on one device, as the joint problem has them.
        offloaded_bytes: Likewise of those in host memory.
        recomputed_seconds: Of all that is computed again, likewise.
        seconds: Predicted step time of the best plan found; None where none fits.
        peak_bytes: Its memory peak, or the least found where none fits; None where none was found.
    """

    is_chosen: bool
    num_kept: int
    kept_bytes: int
    offloaded_bytes: int = 0
    recomputed_seconds: float
    seconds: float | None
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualChoice:
    """What a plan keeps for backward passes, and what it computes again.

    Args:
        kept: Names of all that is kept; with the traced program they give the planned one. Those
            of what lies in host memory end in `@host`.
        residuals: What becomes of what backward passes read.
        saved_bytes: On one device, against keeping everything.
        recomputed_seconds: Of all that is computed again in one step, its operands included.
        bound_seconds: No residuals and shardings within the budget take less, as the joint problem
            prices both; None where it was not solved.
        as_written_peak_bytes: The least memory peak found for the program as it is written, or a
            bound on it that is above the budget; None where there was no time for either.
        tried: The sets that were planned, in order.
    """

    kept: tuple[str, ...]
    residuals: tuple[Residual, ...]
    saved_bytes: int
    recomputed_seconds: float
    bound_seconds: float | None
    as_written_peak_bytes: int | None
    tried: tuple[TriedResiduals, ...]

    @staticmethod
    def of_everything(kept: tuple[str, ...]) -> ResidualChoice:
        """Nothing is computed again."""
        return ResidualChoice(
            kept=kept,
            residuals=(),
            saved_bytes=0,
            recomputed_seconds=0.0,
            bound_seconds=None,
            as_written_peak_bytes=None,
            tried=(),
        )
