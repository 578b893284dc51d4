"""Ways to run a collective: which one wins depends on the bytes.

* `levels`: level by level, network first, then torus or switch; few steps, fewest bytes.
* `ring`: one ring through every device of the group, across nodes too.
* `tree`: all-reduce over two binary trees, each for half of the bytes; sums go up, results down.
* `doubling`: all-reduce in which whole operands are exchanged with a partner at distance 1, 2, 4
  and so on; fewest steps.
* `in-switch`: all-reduce in which the switch adds; every byte is sent and received once.

`ring`, `tree` and `doubling` are for switches and networks; on a torus `levels` is the ring
algorithm on all dimensions at once. A machine's `algorithms` says which its library has.

Sources: Thakur, Rabenseifner and Gropp (2005), Optimization of collective communication
operations in MPICH (`levels`, `ring`, `doubling`); Sanders, Speck and Traeff (2009), Two-tree
algorithms for full bandwidth broadcast, reduction and scan (`tree`); Klenk, Jiang, Thorson and
Dennison (2020), An in-network architecture for accelerating shared-memory multiprocessor
collectives (`in-switch`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from cost_models.collectives import (
    LinearCost,
    all_gather_cost,
    all_reduce_cost,
)
from cost_models.hardware import AlgorithmName
from cost_models.links import GroupDim

LEVELS: tuple[AlgorithmName, ...] = ("levels",)


class Algorithm(NamedTuple):
    """A way to run a collective on a group, and its price."""

    name: AlgorithmName
    cost: LinearCost


def all_gather_algorithms(
    dims: tuple[GroupDim, ...],
    launch_seconds: float = 0.0,
    available: tuple[AlgorithmName, ...] = LEVELS,
) -> tuple[Algorithm, ...]:
    """The ways to run an all-gather on a group, of those available; `levels` where none is.

    Reduce-scatters run backwards and cost the same.
    """
    ways = [Algorithm("levels", all_gather_cost(dims, launch_seconds))]
    if _is_switched(dims):
        ways.append(Algorithm("ring", _ring_cost(dims, launch_seconds, 1)))
    return _offered(ways, available)


reduce_scatter_algorithms = all_gather_algorithms
"""The ways to run a reduce-scatter."""


def all_reduce_algorithms(
    dims: tuple[GroupDim, ...],
    launch_seconds: float = 0.0,
    available: tuple[AlgorithmName, ...] = LEVELS,
) -> tuple[Algorithm, ...]:
    """The ways to run an all-reduce on a group, of those available; `levels` where none is."""
    ways = [Algorithm("levels", all_reduce_cost(dims, launch_seconds))]
    if _is_switched(dims):
        ways.append(Algorithm("ring", _ring_cost(dims, launch_seconds, 2)))
        ways.append(Algorithm("tree", _tree_cost(dims, launch_seconds)))
        ways.append(Algorithm("doubling", _doubling_cost(dims, launch_seconds)))
    if any(dim.reduce_bytes_per_second is not None for dim in dims):
        ways.append(Algorithm("in-switch", _in_switch_cost(dims, launch_seconds)))
    return _offered(ways, available)


def fastest(algorithms: tuple[Algorithm, ...], full_bytes: float) -> Algorithm:
    """The algorithm that wins at a size; of equal ones the first.

    Raises:
        CostModelError: The amount is negative, infinite or not a number.
    """
    return min(algorithms, key=lambda algorithm: algorithm.cost.at(full_bytes))


def lowest_lines(costs: tuple[LinearCost, ...]) -> tuple[LinearCost, ...]:
    """Those that are the least of all at some size from 0 up, the best for few bytes first."""
    lines: list[LinearCost] = []
    for line in sorted(costs):
        if lines and line.seconds_per_byte >= lines[-1].seconds_per_byte:
            continue
        while len(lines) > 1 and _crossing(lines[-2], line) <= _crossing(*lines[-2:]):
            lines.pop()
        if lines and _crossing(lines[-1], line) <= 0:
            lines.pop()
        lines.append(line)
    return tuple(lines)


def _crossing(first: LinearCost, second: LinearCost) -> float:
    """Bytes from which on the second, flatter line is the lower one."""
    return (second.seconds - first.seconds) / (first.seconds_per_byte - second.seconds_per_byte)


def _offered(ways: list[Algorithm], available: tuple[AlgorithmName, ...]) -> tuple[Algorithm, ...]:
    found = tuple(way for way in ways if way.name in available)
    return found or tuple(ways[:1])


def _is_switched(dims: tuple[GroupDim, ...]) -> bool:
    return bool(dims) and all(dim.kind in ("switch", "network") for dim in dims)


def _ring_cost(dims: tuple[GroupDim, ...], launch_seconds: float, rounds: int) -> LinearCost:
    """One or two rounds of a ring through all devices.

    A byte goes through every node once a round. As many rings run side by side as a node has
    devices of the group, each of which crosses the network with another one's interface.
    """
    num_nodes = math.prod(dim.size for dim in dims if dim.kind == "network")
    size = math.prod(dim.size for dim in dims)
    hops = size - 1
    latency = 0.0
    for dim in dims:
        if dim.kind == "network":
            crossed = min(hops, num_nodes)
            latency += crossed * dim.latency_seconds
            hops -= crossed
    latency += sum(hops * dim.latency_seconds for dim in dims if dim.kind == "switch")
    return LinearCost(
        launch_seconds + rounds * latency,
        rounds * (1 - 1 / size) * _byte_seconds(dims),
    )


def _tree_cost(dims: tuple[GroupDim, ...], launch_seconds: float) -> LinearCost:
    """Two trees: a device is an inner node of one and a leaf of the other."""
    latency = sum(dim.steps * dim.latency_seconds for dim in dims)
    return LinearCost(launch_seconds + 2 * latency, 2 * _byte_seconds(dims))


def _doubling_cost(dims: tuple[GroupDim, ...], launch_seconds: float) -> LinearCost:
    """A device exchanges its whole operand in each step."""
    latency = sum(dim.steps * dim.latency_seconds for dim in dims)
    return LinearCost(
        launch_seconds + latency, sum(dim.steps / dim.gather_bytes_per_second for dim in dims)
    )


def _in_switch_cost(dims: tuple[GroupDim, ...], launch_seconds: float) -> LinearCost:
    """The switch adds and spreads the sums; nodes sum the share of each device over the network.

    The bytes come in many pieces, some in the switch while others are on the network.
    """
    outer = tuple(dim for dim in dims if dim.reduce_bytes_per_second is None)
    across = all_reduce_cost(outer)
    inner_size = math.prod(dim.size for dim in dims) // math.prod(dim.size for dim in outer)
    latency, seconds_per_byte = across.seconds, across.seconds_per_byte / inner_size
    for dim in dims:
        if dim.reduce_bytes_per_second is not None:
            latency += 2 * dim.latency_seconds
            seconds_per_byte = max(seconds_per_byte, 1 / dim.reduce_bytes_per_second)
    return LinearCost(launch_seconds + latency, seconds_per_byte)


def _byte_seconds(dims: tuple[GroupDim, ...]) -> float:
    """Of one byte at the slower of switch and network, all interfaces of a node at work."""
    inner_size = math.prod(dim.size for dim in dims if dim.kind == "switch")
    return max(
        1 / dim.gather_bytes_per_second / (inner_size if dim.kind == "network" else 1)
        for dim in dims
    )
