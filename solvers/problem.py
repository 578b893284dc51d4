"""The choice problem: pick one choice per node, pay for nodes and pairs, hold memory over time.

Formula: with choice ``x[i]`` at node ``i``, minimise ::

    sum_i node_costs[i][x[i]]  +  sum_e edges[e].costs[x[u], x[v]]

such that at every time ``t`` the usages of all memory terms live at ``t`` add up to at most
``memory_limit``, and to at most each of the ``memory_limits`` that hold at ``t``. Several memories
are several limits: give each a stretch of time of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solvers.errors import ProblemError

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


def verify_problem(problem: Problem) -> list[str]:
    """Returns every violation of the rules in the class docstrings, each with its path."""
    if _is_plainly_right(problem):
        return []
    found: list[str] = []
    for i, costs in enumerate(problem.node_costs):
        found += _cost_faults(f"node_costs[{i}]", costs, None)
        if costs.ndim == 1 and costs.size == 0:
            found.append(f"node_costs[{i}]: has no choices, expected at least one")
    sizes = [int(costs.size) for costs in problem.node_costs]
    checked: dict[tuple[int, int, int], list[str]] = {}
    for e, edge in enumerate(problem.edges):
        ends = [end for end in (edge.u, edge.v) if not 0 <= end < len(sizes)]
        if ends:
            found.append(
                f"edges[{e}]: joins unknown node {ends[0]}, the problem has {len(sizes)} nodes"
            )
            continue
        if edge.u == edge.v:
            found.append(f"edges[{e}]: joins node {edge.u} to itself, expected two different nodes")
            continue
        key = (id(edge.costs), sizes[edge.u], sizes[edge.v])
        if key not in checked:
            checked[key] = _cost_faults("", edge.costs, (sizes[edge.u], sizes[edge.v]))
        found += [f"edges[{e}].costs{fault}" for fault in checked[key]]
    found += _memory_faults(problem, sizes)
    return found


def _is_plainly_right(problem: Problem) -> bool:
    """A quick look at all arrays at once: whether there is nothing to report."""
    shapes = [costs.shape if isinstance(costs, np.ndarray) else () for costs in problem.node_costs]
    num_nodes = len(shapes)
    if any(len(shape) != 1 or not shape[0] for shape in shapes):
        return False
    pairs = [(edge.u, edge.v) for edge in problem.edges]
    if any(not 0 <= u < num_nodes or not 0 <= v < num_nodes or u == v for u, v in pairs):
        return False
    node_terms, edge_terms = problem.node_memory, problem.edge_memory
    if any(not 0 <= term.node < num_nodes for term in node_terms):
        return False
    if any(not 0 <= term.edge < len(pairs) for term in edge_terms):
        return False
    tables = [(*shapes[u], *shapes[v]) for u, v in pairs]
    expected = [*shapes, *tables, *(shapes[term.node] for term in node_terms)]
    expected += [tables[term.edge] for term in edge_terms]
    terms: list[NodeMemory | EdgeMemory] = [*node_terms, *edge_terms]
    arrays = [*problem.node_costs, *(edge.costs for edge in problem.edges)]
    num_costs = len(arrays)
    arrays += [term.usage for term in terms]
    for array, shape in zip(arrays, expected, strict=True):
        if not isinstance(array, np.ndarray) or array.dtype != np.int64 or array.shape != shape:
            return False
    if any(term.start > term.stop for term in terms):
        return False
    limits = (problem.memory_limit or 0, *(limit.limit for limit in problem.memory_limits))
    if min(limits) < 0 or any(limit.start > limit.stop for limit in problem.memory_limits):
        return False
    costs, usages = _distinct(arrays[:num_costs]), _distinct(arrays[num_costs:])
    largest = max((int(usage.max(initial=0)) for usage in usages), default=0)
    is_right = all(int(array.min(initial=0)) >= 0 for array in (*costs, *usages))
    is_right = is_right and not any(map(_is_between, costs))
    return is_right and largest * len(terms) < LARGEST_TOTAL_USAGE


def _distinct(arrays: Sequence[IntArray]) -> list[IntArray]:
    """Returns all arrays, shared ones once."""
    return list({id(array): array for array in arrays}.values())


def _is_between(costs: IntArray) -> bool:
    if int(costs.max(initial=0)) < LARGEST_ALLOWED_COST:
        return False
    return bool(((costs >= LARGEST_ALLOWED_COST) & (costs < FORBIDDEN)).any())


def _memory_faults(problem: Problem, sizes: Sequence[int]) -> list[str]:
    found: list[str] = []
    total = 0
    for k, node_term in enumerate(problem.node_memory):
        path = f"node_memory[{k}]"
        found += _interval_faults(path, node_term.start, node_term.stop)
        if not 0 <= node_term.node < len(sizes):
            found.append(f"{path}: names unknown node {node_term.node}, there are {len(sizes)}")
            continue
        faults = _array_faults(f"{path}.usage", node_term.usage, (sizes[node_term.node],))
        found += faults
        total += 0 if faults else int(node_term.usage.max())
    for k, edge_term in enumerate(problem.edge_memory):
        path = f"edge_memory[{k}]"
        found += _interval_faults(path, edge_term.start, edge_term.stop)
        if not 0 <= edge_term.edge < len(problem.edges):
            found.append(
                f"{path}: names unknown edge {edge_term.edge}, there are {len(problem.edges)}"
            )
            continue
        shape = problem.edges[edge_term.edge].costs.shape
        faults = _array_faults(f"{path}.usage", edge_term.usage, shape)
        found += faults
        total += 0 if faults else int(edge_term.usage.max(initial=0))
    if total >= LARGEST_TOTAL_USAGE:
        found.append(
            f"memory: the largest usages add up to {total}, "
            f"expected less than {LARGEST_TOTAL_USAGE}"
        )
    if problem.memory_limit is not None and problem.memory_limit < 0:
        found.append(f"memory_limit: is {problem.memory_limit}, expected zero or more")
    for k, limit in enumerate(problem.memory_limits):
        found += _interval_faults(f"memory_limits[{k}]", limit.start, limit.stop)
        if limit.limit < 0:
            found.append(f"memory_limits[{k}].limit: is {limit.limit}, expected zero or more")
    return found


def _interval_faults(path: str, start: int, stop: int) -> list[str]:
    if start > stop:
        return [f"{path}: starts at {start} after it stops at {stop}, expected start <= stop"]
    return []


def _cost_faults(path: str, costs: IntArray, shape: tuple[int, ...] | None) -> list[str]:
    faults = _array_faults(path, costs, shape)
    if faults or not costs.size or int(costs.max()) < LARGEST_ALLOWED_COST:
        return faults
    between = (costs >= LARGEST_ALLOWED_COST) & (costs < FORBIDDEN)
    if not between.any():
        return []
    at = tuple(int(i) for i in np.argwhere(between)[0])
    where = "".join(f"[{i}]" for i in at)
    return [
        f"{path}{where}: is {int(costs[at])}, expected less than 10**16, or 10**17 and up for "
        "not allowed"
    ]


def _array_faults(path: str, array: IntArray, shape: tuple[int, ...] | None) -> list[str]:
    if not isinstance(array, np.ndarray) or array.dtype != np.int64:
        kind = getattr(array, "dtype", type(array).__name__)
        return [f"{path}: is {kind}, expected an int64 array"]
    if shape is None and array.ndim != 1:
        return [f"{path}: has shape {array.shape}, expected one dimension"]
    if shape is not None and array.shape != shape:
        return [f"{path}: has shape {array.shape}, expected {shape}"]
    if array.size and int(array.min()) < 0:
        at = tuple(int(i) for i in np.argwhere(array < 0)[0])
        where = "".join(f"[{i}]" for i in at)
        return [f"{path}{where}: is {int(array[at])}, expected zero or more"]
    return []


def require_problem(problem: Problem) -> None:
    """Raises `ProblemError` naming the first violations when there are any."""
    faults = verify_problem(problem)
    if faults:
        more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
        raise ProblemError(
            "; ".join(faults[:3]) + more,
            where=problem.name or "problem",
            fix="verify_problem lists every violation",
        )
