"""How mesh parts that cut dimensions cut the factors of an op's sharding rule, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoshard.graph.rule import Dims
from autoshard.layouts import Layout, MeshParts, Parts

FactorCuts = Mapping[int, Parts]
"""By factor, the parts that cut it, major to minor; factors that nothing cuts may be left out."""


def factor_cuts(
    dims: Dims, layout: Layout, sizes: Sequence[int], parts: MeshParts
) -> dict[int, Parts] | None:
    """How a tensor's layout cuts its factors.

    A dimension's parts go to its factors from the major one on; the minor-most takes all that is
    left, divisible or not.

    Args:
        dims: Factors per dimension of the tensor.
        layout: Parts per dimension.
        sizes: Of every factor.
        parts: The mesh in parts.

    Returns:
        By factor; None where a part ends inside a factor that is not the minor-most one.
    """
    found: dict[int, Parts] = {}
    for factors, cut in zip(dims, layout, strict=True):
        left = list(cut)
        for place, factor in enumerate(factors):
            if place == len(factors) - 1:
                taken, left = left, []
            else:
                taken = []
                room = sizes[factor]
                while left and room % parts.sizes[left[0]] == 0 and room > 1:
                    room //= parts.sizes[left[0]]
                    taken.append(left.pop(0))
                if left and room > 1:
                    return None
            if taken:
                found[factor] = tuple(taken)
        if left:
            return None
    return found


def layout_of(
    dims: Dims, cuts: FactorCuts, sizes: Sequence[int], parts: MeshParts
) -> Layout | None:
    """The layout of a tensor whose factors are cut so.

    Returns:
        None where a factor is cut, and one more major of the same dimension not all the way.
    """
    layout = []
    for factors in dims:
        cut: list[int] = []
        is_open = True
        for factor in factors:
            own = cuts.get(factor, ())
            if own and not is_open:
                return None
            cut += own
            is_open = is_open and parts.num_shards(own) == sizes[factor]
        layout.append(tuple(cut))
    return tuple(layout)
