"""Seconds of collectives in the alpha-beta model: a fixed part and a part per byte.

Every collective is run level by level here: the network between slices or nodes, then all
dimensions of a torus at once, or the switch. Other ways to run them are in `algorithms`.

`full_bytes` is per device and always the larger side: of an all-gather the gathered result, of a
reduce-scatter, all-reduce, all-to-all or permutation the operand. A group of one device costs
nothing. Amounts may be NumPy arrays.

Sources: Thakur, Rabenseifner and Gropp (2005), Optimization of collective communication
operations in MPICH; Chan, Heimlich, Purkayastha and van de Geijn (2007), Collective
communication: theory, practice, and experience (grids and tori).
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from cost_models.errors import CostModelError
from cost_models.links import GroupDim, gather_seconds_per_byte

FloatArray = NDArray[np.float64]
Amount = TypeVar("Amount", float, FloatArray)
"""A number, or an array of numbers treated one by one."""


class LinearCost(NamedTuple):
    """`seconds + seconds_per_byte * full_bytes`: alpha and beta of one collective on one group."""

    seconds: float
    seconds_per_byte: float

    def at(self, full_bytes: Amount) -> Amount:
        """Seconds for so many bytes.

        Raises:
            CostModelError: An amount is negative, infinite or not a number.
        """
        check_amount(full_bytes, "full_bytes")
        return self.seconds + self.seconds_per_byte * full_bytes


FREE = LinearCost(0.0, 0.0)
"""What a group of one device pays."""


def check_amount(amount: float | FloatArray, name: str) -> None:
    """Raises a CostModelError unless every amount is a finite number from 0 up."""
    if isinstance(amount, np.ndarray):
        wrong = ~((amount >= 0) & (amount < np.inf))
        if wrong.any():
            raise _amount_error(float(amount[wrong].flat[0]), name)
    elif not 0 <= amount < math.inf:
        raise _amount_error(amount, name)


def _amount_error(value: float, name: str) -> CostModelError:
    return CostModelError(
        f"{name} is {value}; expected a finite number from 0 up",
        where=f"argument `{name}`",
        fix="give the amount of one device",
    )


def all_gather_cost(dims: tuple[GroupDim, ...], launch_seconds: float = 0.0) -> LinearCost:
    """Every device ends with every shard.

    Source: Thakur et al. (2005), allgather: ring on rings, recursive doubling behind a switch.
    """
    if not dims:
        return FREE
    return LinearCost(launch_seconds + _steps_seconds(dims), gather_seconds_per_byte(dims))


def reduce_scatter_cost(dims: tuple[GroupDim, ...], launch_seconds: float = 0.0) -> LinearCost:
    """Every device ends with its shard of the sum: an all-gather run backwards.

    Source: Thakur et al. (2005), reduce-scatter; the additions are left out.
    """
    return all_gather_cost(dims, launch_seconds)


def all_reduce_cost(dims: tuple[GroupDim, ...], launch_seconds: float = 0.0) -> LinearCost:
    """Every device ends with the sum: a reduce-scatter and an all-gather.

    Source: Rabenseifner's algorithm, Thakur et al. (2005).
    """
    if not dims:
        return FREE
    return LinearCost(launch_seconds + 2 * _steps_seconds(dims), 2 * gather_seconds_per_byte(dims))


def all_to_all_cost(dims: tuple[GroupDim, ...], launch_seconds: float = 0.0) -> LinearCost:
    """Every device sends another piece of its operand to every other one.

    The dimensions of a torus work at once, each bound by its bisection; the network comes on top.

    Source: Thakur et al. (2005), alltoall for long messages; bisection of rings and lines.
    """
    if not dims:
        return FREE
    network = sum(dim.exchange_seconds_per_byte for dim in dims if dim.kind == "network")
    inner = max(
        (dim.exchange_seconds_per_byte for dim in dims if dim.kind != "network"), default=0.0
    )
    return LinearCost(launch_seconds + _steps_seconds(dims), network + inner)


def permute_cost(dims: tuple[GroupDim, ...], launch_seconds: float = 0.0) -> LinearCost:
    """Every device sends its operand to one other device, whichever it is.

    A shift to the neighbour costs one link; a general permutation on a long ring crosses it. A
    switch or network takes one message, however many devices it joins.
    """
    if not dims:
        return FREE
    num_steps = (1 if dim.kind in ("switch", "network") else dim.steps for dim in dims)
    return LinearCost(
        launch_seconds
        + sum(steps * dim.latency_seconds for steps, dim in zip(num_steps, dims, strict=True)),
        max(dim.permute_seconds_per_byte for dim in dims),
    )


def shift_cost(
    dims: tuple[GroupDim, ...], launch_seconds: float = 0.0, *, both_ways: bool = False
) -> LinearCost:
    """Every device sends its operand to the next one, round the group.

    A ring has two links at each device, of which one way round uses one. On a line the message from
    its end to its beginning takes all hops, against the stream of the others.

    Args:
        dims: Of the group.
        launch_seconds: Of one collective.
        both_ways: Half of the operand goes to the device before instead.
    """
    if not dims:
        return FREE
    links = (2 if dim.kind in ("ring", "scattered") and not both_ways else 1 for dim in dims)
    return LinearCost(
        launch_seconds * (2 if both_ways else 1)
        + sum(_shift_hops(dim) * dim.latency_seconds for dim in dims),
        max(n / dim.gather_bytes_per_second for n, dim in zip(links, dims, strict=True)),
    )


def _shift_hops(dim: GroupDim) -> int:
    if dim.kind == "ring":
        return dim.steps // (dim.size // 2)
    return dim.steps if dim.kind in ("line", "scattered") else 1


def _steps_seconds(dims: tuple[GroupDim, ...]) -> float:
    return sum(dim.steps * dim.latency_seconds for dim in dims)
