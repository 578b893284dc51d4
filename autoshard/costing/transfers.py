"""The collectives that a planned one becomes: by level of the machine, gathers as sums."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoshard.backends import Backend
from cost_models import AxisPart

if TYPE_CHECKING:
    from cost_models import CostModel

Axes = tuple[AxisPart, ...]
_SUMS = ("all-reduce", "reduce-scatter")


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective as it is run.

    Args:
        kind: As of the planned one, or another.
        axes: The parts of mesh axes that it works over.
        pieces: Of the bytes of the planned one it moves one in so many.
        is_narrowed: Whether elements travel as narrow as their readers take them.
    """

    kind: str
    axes: Axes
    pieces: int = 1
    is_narrowed: bool = True


def transfers_of(
    model: CostModel, backend: Backend, slice_size: int, kind: str, axes: Axes, num_bytes: float
) -> Iterator[Transfer]:
    """The collectives that a planned one becomes, in the order in which they run."""
    across, inside = between_and_inside(model, axes)
    pieces = _size(inside)
    is_summed = num_bytes <= backend.collectives.gather_by_sum_bytes(pieces, slice_size)
    gathered = Transfer("all-reduce" if is_summed else "all-gather", inside, 1, not is_summed)
    if not across or not backend.collectives.is_hierarchical:
        yield gathered if kind == "all-gather" and not across else Transfer(kind, axes)
    elif kind == "all-gather":
        yield Transfer(kind, across, pieces, is_narrowed=False)
        yield from (gathered,) if inside else ()
    elif kind in _SUMS:
        yield from (Transfer("reduce-scatter", inside),) if inside else ()
        yield Transfer("all-reduce", across, pieces)
        yield from (gathered,) if inside else ()
    else:
        yield Transfer(kind, axes, is_narrowed=False)


def between_and_inside(model: CostModel, axes: Sequence[AxisPart]) -> tuple[Axes, Axes]:
    """The parts of axes that join slices or nodes, and those that lie within one."""
    across, inside = [], []
    for part in axes:
        slices = model.slices_spanned((part,))
        across.append(AxisPart(part.name, part.pre_size, slices))
        inside.append(AxisPart(part.name, part.pre_size * slices, part.size // slices))
    return _wide(across), _wide(inside)


def _wide(axes: Sequence[AxisPart]) -> Axes:
    return tuple(part for part in axes if part.size > 1)


def _size(axes: Axes) -> int:
    return math.prod(part.size for part in axes)
