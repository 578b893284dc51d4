"""Faults of an ill-formed choice problem, each with its path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solvers.errors import ProblemError
from solvers.flat import Flat, SharedArrays
from solvers.problem import (
    FORBIDDEN,
    LARGEST_ALLOWED_COST,
    LARGEST_TOTAL_USAGE,
    IntArray,
    Problem,
)


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
    flat = Flat.of(problem)
    costs, tables, usages = flat.costs, flat.tables, flat.usages
    arrays = (*costs.distinct, *tables.distinct, *usages.distinct)
    if not all(
        isinstance(one, np.ndarray) and one.dtype == np.int64 and one.ndim for one in arrays
    ):
        return False
    if any(one.ndim != 1 or not one.size for one in costs.distinct):
        return False
    nodes, edges = (flat.u, flat.v, flat.node_of_term), flat.edge_of_term
    if any(_is_outside(own, len(costs)) for own in nodes) or (flat.u == flat.v).any():
        return False
    if _is_outside(edges, len(tables)) or (flat.starts > flat.stops).any():
        return False
    sizes, ones = costs.last_sizes, np.ones(len(flat.node_memory), dtype=np.int64)
    rows, columns = sizes[flat.u], sizes[flat.v]
    if not _have_shapes(tables, 2, rows, columns):
        return False
    of_nodes = SharedArrays(usages.distinct, usages.index[: len(ones)])
    of_edges = SharedArrays(usages.distinct, usages.index[len(ones) :])
    if not _have_shapes(of_nodes, 1, ones, sizes[flat.node_of_term]):
        return False
    if not _have_shapes(of_edges, 2, rows[edges], columns[edges]):
        return False
    limits = (problem.memory_limit or 0, *(limit.limit for limit in problem.memory_limits))
    if min(limits) < 0 or any(limit.start > limit.stop for limit in problem.memory_limits):
        return False
    largest = max((int(usage.max(initial=0)) for usage in usages.distinct), default=0)
    is_right = all(int(array.min(initial=0)) >= 0 for array in arrays)
    is_right = is_right and not any(map(_is_between, (*costs.distinct, *tables.distinct)))
    return is_right and largest * len(usages) < LARGEST_TOTAL_USAGE


def _is_outside(indices: IntArray, size: int) -> bool:
    return bool(((indices < 0) | (indices >= size)).any())


def _have_shapes(arrays: SharedArrays, num_dims: int, rows: IntArray, columns: IntArray) -> bool:
    """True where all arrays have so many dimensions, of these sizes; one dimension has one row."""
    dims = arrays.of_each(lambda one: one.ndim)
    if (dims != num_dims).any():
        return False
    found = arrays.of_each(lambda one: one.shape[0] if one.ndim > 1 else 1)
    return bool((found == rows).all() and (arrays.last_sizes == columns).all())


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
