"""Prices of collectives as they were measured, on groups that were not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from cost_models.collectives import (
    FREE,
    LinearCost,
    all_gather_cost,
    all_reduce_cost,
    all_to_all_cost,
    permute_cost,
    reduce_scatter_cost,
)
from cost_models.links import GroupDim
from cost_models.measured import CollectiveFit, CollectiveKind

CostFunction = Callable[[tuple[GroupDim, ...], float], LinearCost]

COST_BY_KIND: dict[CollectiveKind, CostFunction] = {
    "all-gather": all_gather_cost,
    "reduce-scatter": reduce_scatter_cost,
    "all-reduce": all_reduce_cost,
    "all-to-all": all_to_all_cost,
    "collective-permute": permute_cost,
}
"""What the textbook says of each kind, launch apart."""


class Units(NamedTuple):
    """What a collective on a group is made of.

    Attributes:
        num_steps: Of the dimensions inside a node or slice.
        seconds_per_byte: Of their links.
        network: What the network between nodes or slices adds, as the textbook has it.
    """

    num_steps: float
    seconds_per_byte: float
    network: LinearCost


def collective_units(kind: CollectiveKind, dims: tuple[GroupDim, ...]) -> Units:
    """Splits the textbook's price into what can be measured in one node or slice, and the rest."""
    cost_of = COST_BY_KIND[kind]
    inner = tuple(dim for dim in dims if dim.kind != "network")
    near = cost_of(inner, 0.0) if inner else FREE
    whole = cost_of(dims, 0.0)
    counting = tuple(dataclasses.replace(dim, latency_seconds=1.0) for dim in inner)
    return Units(
        num_steps=cost_of(counting, 0.0).seconds,
        seconds_per_byte=near.seconds_per_byte,
        network=LinearCost(
            whole.seconds - near.seconds, whole.seconds_per_byte - near.seconds_per_byte
        ),
    )


def fitted_cost(fit: CollectiveFit, dims: tuple[GroupDim, ...]) -> LinearCost:
    """The price of a collective on a group under what was measured; a single device is free."""
    if not dims:
        return FREE
    units = collective_units(fit.kind, dims)
    return LinearCost(
        fit.launch_seconds + units.num_steps * fit.step_seconds + units.network.seconds,
        units.seconds_per_byte * fit.bytes_factor
        + fit.local_seconds_per_byte
        + units.network.seconds_per_byte,
    )
