"""Manual computations: parts of a program written for one device, and how data enters them."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.sharding.sharding import Sharding

Shape = tuple[int | None, ...] | None
"""Sizes of a tensor, None for those not known; None alone is a token, which has no shape."""


@dataclass(frozen=True, slots=True)
class ManualComputation:
    """The border of a region that is written for one device along some axes.

    Inside, tensors have their local shape along the manual axes, and only the other axes, the
    free ones, may still shard them.

    Args:
        in_shardings: One for each operand.
        out_shardings: One for each result.
        manual_axes: Names of the axes the region is written for.
    """

    in_shardings: tuple[Sharding, ...] = ()
    out_shardings: tuple[Sharding, ...] = ()
    manual_axes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualShapes:
    """What is known of the values at the border of a manual computation.

    Args:
        operands: Shapes outside, one for each operand.
        results: Shapes outside, one for each result.
        local_operands: Shapes of the region's arguments.
        local_results: Shapes of what the region returns.
    """

    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    local_operands: tuple[Shape, ...]
    local_results: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class ManualRegion:
    """A manual computation in a program, with what its region says about shardings.

    Args:
        computation: The border.
        shardings: Those on operations and constraints inside, but not in the nested regions.
        nested: The manual computations inside.
    """

    computation: ManualComputation
    shardings: tuple[Sharding, ...] = ()
    nested: tuple[ManualRegion, ...] = ()
