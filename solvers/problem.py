"""The choice problem: pick one choice per node, pay for nodes and pairs, hold memory over time.

Formula: with choice ``x[i]`` at node ``i``, minimise ::

    sum_i node_costs[i][x[i]]  +  sum_e edges[e].costs[x[u], x[v]]

such that at every time ``t`` the usages of all memory terms live at ``t`` add up to at most
``memory_limit``, and to at most each of the ``memory_limits`` that hold at ``t``. Several memories
are several limits: give each a stretch of time of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

FORBIDDEN = 10**17
"""A cost of this much or more means "not allowed"."""

LARGEST_ALLOWED_COST = 10**16
"""Allowed costs stay below this, so that sums of them are told apart from forbidden ones."""

LARGEST_TOTAL_USAGE = 2**62
"""Memory sums stay below this, so that they fit 64 bits whatever is chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """A cost paid by the pair of choices of two different nodes.

    Args:
        u: The node the rows belong to. Neither order nor uniqueness of pairs is required.
        v: The node the columns belong to.
        costs: int64[num_choices_u, num_choices_v]. May be shared between edges; never written to.
    """

    u: int
    v: int
    costs: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class NodeMemory:
    """Bytes a node holds while ``start <= t < stop``; an empty interval holds none.

    Args:
        node: Whose choice decides.
        start: First time the bytes are held.
        stop: First time they are not.
        usage: int64[num_choices].
        tag: Name of what is held, for the caller; solvers ignore it.
    """

    node: int
    start: int
    stop: int
    usage: IntArray
    tag: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class EdgeMemory:
    """Bytes a pair of choices holds while ``start <= t < stop`` (the copy a reshard makes).

    Args:
        edge: Index into `Problem.edges`.
        start: First time the bytes are held.
        stop: First time they are not.
        usage: int64[num_choices_u, num_choices_v].
        tag: Name of what is held, for the caller; solvers ignore it.
    """

    edge: int
    start: int
    stop: int
    usage: IntArray
    tag: str = ""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The most bytes while ``start <= t < stop``."""

    start: int
    stop: int
    limit: int


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Problem:
    """Nodes with choices, pair costs, and memory over half-open intervals.

    Args:
        node_costs: int64[num_choices] per node, non-negative; `FORBIDDEN` and up is not allowed.
        edges: Pair costs.
        node_memory: Terms decided by one node; a node may have several.
        edge_memory: Terms decided by an edge's two nodes.
        memory_limit: The most bytes at any time; None for no limit.
        name: For messages only.
        memory_limits: More limits, each for some times only.
    """

    node_costs: tuple[IntArray, ...]
    edges: tuple[Edge, ...] = ()
    node_memory: tuple[NodeMemory, ...] = ()
    edge_memory: tuple[EdgeMemory, ...] = ()
    memory_limit: int | None = None
    name: str = ""
    memory_limits: tuple[MemoryLimit, ...] = ()

    @property
    def num_nodes(self) -> int:
        return len(self.node_costs)

    @property
    def num_columns(self) -> int:
        """Columns of the node-edge model: one per choice and one per pair of choices."""
        nodes = sum(len(costs) for costs in self.node_costs)
        return nodes + sum(edge.costs.size for edge in self.edges)
