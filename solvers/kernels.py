"""Compiled loops over a flattened problem: ascent passes, decoding, and local moves.

Every array of floats holds whole numbers below ``2**53``, so sums and differences are exact.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from solvers.problem import IntArray

FloatArray = npt.NDArray[np.float64]
_Function = TypeVar("_Function", bound=Callable[..., Any])


class FlatGraph(NamedTuple):
    """A problem in flat arrays; every edge appears as two half-edges, one at each end.

    Half-edges of node ``s`` are ``half_start[s] .. half_start[s + 1]``. The table of a half-edge
    has the far node in the rows and the own node in the columns, so that each end reads its own
    choices side by side.

    Args:
        node_start: int64[nodes + 1]: first choice of each node.
        half_start: int64[nodes + 1]: first half-edge of each node.
        half_far: int64[halves]: the node at the other end.
        half_twin: int64[halves]: the same edge seen from the other end.
        half_message: int64[halves]: first message entry, one entry per own choice.
        half_table: int64[halves]: first entry in `tables`.
        tables: float64[entries].
        costs: float64[choices].
        cap: A cost above that of any allowed answer; stands for forbidden.
    """

    node_start: IntArray
    half_start: IntArray
    half_far: IntArray
    half_twin: IntArray
    half_message: IntArray
    half_table: IntArray
    tables: FloatArray
    costs: FloatArray
    cap: float


# No NaN and no signed zero ever occurs; saying so lets minima run four entries at a time. Nothing
# is allocated or kept, so that no references need counting: that halves the time to compile.
_OPTIONS = {
    "cache": True,
    "nogil": True,
    "fastmath": {"nnan", "nsz"},
    "error_model": "numpy",
    "_nrt": False,
}


def _find_folder() -> bool:
    """Makes a folder for what is compiled where Numba finds none it may write to.

    It goes with the process; processes started by it use it too.

    Returns:
        Whether compiled loops are kept for later processes.
    """
    try:
        numba.njit(cache=True)(_find_folder)
    except RuntimeError:
        folder = tempfile.mkdtemp(prefix="numba-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["NUMBA_CACHE_DIR"] = folder
        numba.config.reload_config()
        return False
    return True


IS_KEPT = _find_folder()


def compiled(function: _Function) -> _Function:
    """Compiles a loop that allocates nothing; other threads run on while it does its work."""
    return cast("_Function", numba.njit(**_OPTIONS)(function))


def compiled_part(function: _Function) -> _Function:
    """Compiles a function that only other compiled ones call: no way in from Python, so faster."""
    inner = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast("_Function", numba.njit(**_OPTIONS, **inner)(function))


@compiled_part
def least_by_column(
    tables: npt.NDArray[np.floating[Any]],
    first: int,
    added: FloatArray,
    sign: float,
    least: FloatArray,
) -> None:
    """Sets ``least[y] = min over x of tables[x, y] + sign * added[x]``."""
    num_columns = len(least)
    for y in range(num_columns):
        least[y] = np.inf
    for x in range(len(added)):
        paid = sign * added[x]
        row = tables[first + x * num_columns : first + (x + 1) * num_columns]
        for y in range(num_columns):
            least[y] = min(least[y], row[y] + paid)


@compiled
def ascend(
    graph: FlatGraph,
    order: IntArray,
    rank: IntArray,
    slack: FloatArray,
    messages: FloatArray,
    reach: FloatArray,
    bound: float,
    work: FloatArray,
) -> float:
    """Visits the nodes in order; each gathers what lies behind it and hands on what it has.

    A node takes from every edge to an earlier node the least that edge adds to each of its choices,
    moves its own least cost into the bound, and hands an equal share of the rest to every edge to
    a later node. Costs stay the same for every answer: ``cost = bound + node slack + edge slack``,
    all of it non-negative after one pass.

    Args:
        graph: The problem.
        order: int64[nodes]: nodes in the order of the pass.
        rank: int64[nodes]: place of each node in that order.
        slack: float64[choices]: what each choice still costs beyond the bound; updated.
        messages: float64[message entries]: what each half-edge gave to its own node; updated.
        reach: float64[choices]: best bound seen for answers with that choice; updated.
        bound: Before the pass.
        work: float64[most choices]: scratch.

    Returns:
        The bound after the pass.

    Source: Kolmogorov (2006), sequential tree-reweighted message passing; the form that keeps a
    reparametrisation is that of Kolmogorov (2015), sequential reweighted message passing.
    """
    for node in order:
        start, stop = graph.node_start[node], graph.node_start[node + 1]
        own = slack[start:stop]
        fresh = work[: stop - start]
        num_choices = stop - start
        num_earlier = 0
        num_later = 0
        for half in range(graph.half_start[node], graph.half_start[node + 1]):
            far = graph.half_far[half]
            if rank[far] > rank[node]:
                num_later += 1
                continue
            num_earlier += 1
            far_first = graph.half_message[graph.half_twin[half]]
            far_choices = graph.node_start[far + 1] - graph.node_start[far]
            given = messages[graph.half_message[half] : graph.half_message[half] + num_choices]
            far_given = messages[far_first : far_first + far_choices]
            least_by_column(graph.tables, graph.half_table[half], far_given, -1.0, fresh)
            for y in range(num_choices):
                own[y] = min(own[y] + (fresh[y] - given[y]), graph.cap)
                given[y] = fresh[y]
        least = own[0]
        for y in range(num_choices):
            least = min(least, own[y])
        bound += least
        share = 1.0 / max(num_earlier, num_later, 1)
        seen = reach[start:stop]
        for y in range(num_choices):
            own[y] -= least
            seen[y] = max(seen[y], bound + own[y])
            fresh[y] = np.floor(own[y] * share)
            own[y] -= num_later * fresh[y]
        for half in range(graph.half_start[node], graph.half_start[node + 1]):
            if rank[graph.half_far[half]] > rank[node]:
                given = messages[graph.half_message[half] : graph.half_message[half] + num_choices]
                for y in range(num_choices):
                    given[y] -= fresh[y]
    return bound


@compiled
def decode(
    graph: FlatGraph,
    order: IntArray,
    rank: IntArray,
    messages: FloatArray,
    choices: IntArray,
    work: FloatArray,
) -> None:
    """Picks choices in order: exact towards earlier nodes, by message towards later ones.

    Args:
        graph: The problem.
        order: int64[nodes]: the reverse of the pass made last.
        rank: int64[nodes]: place of each node in that order.
        messages: float64[message entries].
        choices: int64[nodes]; overwritten.
        work: float64[most choices]: scratch.
    """
    for node in order:
        start, stop = graph.node_start[node], graph.node_start[node + 1]
        num_choices = stop - start
        paid = work[:num_choices]
        for y in range(num_choices):
            paid[y] = graph.costs[start + y]
        for half in range(graph.half_start[node], graph.half_start[node + 1]):
            far = graph.half_far[half]
            if rank[far] < rank[node]:
                first = graph.half_table[half] + choices[far] * num_choices
                added = graph.tables[first : first + num_choices]
            else:
                first = graph.half_message[half]
                added = messages[first : first + num_choices]
            for y in range(num_choices):
                paid[y] += added[y]
        best = 0
        for y in range(num_choices):
            if paid[y] < paid[best]:
                best = y
        choices[node] = best


@compiled_part
def _pay(
    graph: FlatGraph, node: int, inside: IntArray, choices: IntArray, paid: FloatArray
) -> None:
    """Sets ``paid[y]``: what choice y of a node costs with its neighbours that are not inside."""
    num_choices = len(paid)
    start = graph.node_start[node]
    for y in range(num_choices):
        paid[y] = graph.costs[start + y]
    for half in range(graph.half_start[node], graph.half_start[node + 1]):
        far = graph.half_far[half]
        if inside[far] == 0:
            first = graph.half_table[half] + choices[far] * num_choices
            added = graph.tables[first : first + num_choices]
            for y in range(num_choices):
                paid[y] += added[y]


@compiled_part
def _grow_forest(
    graph: FlatGraph, permutation: IntArray, inside: IntArray, leader: IntArray, seen_by: IntArray
) -> None:
    """Marks nodes in order wherever none closes a cycle among the marked ones."""
    for node in range(len(permutation)):
        leader[node] = node
        seen_by[node] = -1
    for node in permutation:
        is_tree = True
        for half in range(graph.half_start[node], graph.half_start[node + 1]):
            root = graph.half_far[half]
            if inside[root] == 0:
                continue
            while leader[root] != root:
                leader[root] = leader[leader[root]]
                root = leader[root]
            if seen_by[root] == node:
                is_tree = False
                break
            seen_by[root] = node
        if not is_tree:
            continue
        inside[node] = 1
        for half in range(graph.half_start[node], graph.half_start[node + 1]):
            root = graph.half_far[half]
            if inside[root] == 0:
                continue
            while leader[root] != root:
                root = leader[root]
            leader[root] = node


@compiled_part
def _orient_forest(
    graph: FlatGraph, permutation: IntArray, inside: IntArray, up: IntArray, queue: IntArray
) -> int:
    """Lists the forest's nodes parents first in `queue`; returns how many there are.

    ``up[node]`` becomes its half-edge to the parent, -1 at a root; it must be -2 before.
    """
    at = stop = 0
    for root in permutation:
        if inside[root] == 0 or up[root] != -2:
            continue
        up[root] = -1
        queue[stop] = root
        stop += 1
        while at < stop:
            node = queue[at]
            at += 1
            for half in range(graph.half_start[node], graph.half_start[node + 1]):
                far = graph.half_far[half]
                if inside[far] == 1 and up[far] == -2:
                    up[far] = graph.half_twin[half]
                    queue[stop] = far
                    stop += 1
    return stop


def move_forest(graph: FlatGraph, permutation: IntArray, choices: IntArray) -> None:
    """Sets the choices of a random forest to the best there is, given those of all other nodes.

    Args:
        graph: The problem.
        permutation: int64[nodes]: nodes enter the forest in this order.
        choices: int64[nodes]; updated, never to higher costs.
    """
    num_nodes = len(permutation)
    inside = np.zeros(num_nodes, dtype=np.int64)
    up = np.full(num_nodes, -2, dtype=np.int64)
    queue = np.empty(num_nodes, dtype=np.int64)
    spare = np.empty(num_nodes, dtype=np.int64)
    values = np.empty(graph.node_start[-1])
    work = np.empty(graph.node_start[-1])
    _move_forest(graph, permutation, choices, inside, up, queue, spare, values, work)


@compiled
def _move_forest(
    graph: FlatGraph,
    permutation: IntArray,
    choices: IntArray,
    inside: IntArray,
    up: IntArray,
    queue: IntArray,
    spare: IntArray,
    values: FloatArray,
    work: FloatArray,
) -> None:
    _grow_forest(graph, permutation, inside, queue, spare)
    stop = _orient_forest(graph, permutation, inside, up, queue)
    for at in range(stop):
        first = graph.node_start[queue[at]]
        own = values[first : graph.node_start[queue[at] + 1]]
        _pay(graph, queue[at], inside, choices, own)
    for at in range(stop - 1, -1, -1):
        node = queue[at]
        if up[node] >= 0:
            far = graph.half_far[up[node]]
            above = values[graph.node_start[far] : graph.node_start[far + 1]]
            least = work[: len(above)]
            below = values[graph.node_start[node] : graph.node_start[node + 1]]
            twin = graph.half_twin[up[node]]
            least_by_column(graph.tables, graph.half_table[twin], below, 1.0, least)
            for z in range(len(above)):
                above[z] += least[z]
    for at in range(stop):
        node = queue[at]
        own = values[graph.node_start[node] : graph.node_start[node + 1]]
        if up[node] >= 0:
            first = graph.half_table[up[node]] + choices[graph.half_far[up[node]]] * len(own)
            for y in range(len(own)):
                own[y] += graph.tables[first + y]
        best = choices[node]
        for y in range(len(own)):
            if own[y] < own[best]:
                best = y
        choices[node] = best


@compiled
def descend(graph: FlatGraph, choices: IntArray, inside: IntArray, work: FloatArray) -> int:
    """Moves each node once to its best choice given all others; returns how many moved.

    Args:
        graph: The problem.
        choices: int64[nodes]; updated.
        inside: int64[nodes]: all 0.
        work: float64[most choices]: scratch.
    """
    num_moved = 0
    for node in range(len(choices)):
        paid = work[: graph.node_start[node + 1] - graph.node_start[node]]
        _pay(graph, node, inside, choices, paid)
        best = choices[node]
        for y in range(len(paid)):
            if paid[y] < paid[best]:
                best = y
        if best != choices[node]:
            num_moved += 1
            choices[node] = best
    return num_moved


@compiled
def total_cost(graph: FlatGraph, choices: IntArray) -> float:
    """Adds up what choices cost, with `FlatGraph.cap` for every forbidden cost."""
    cost = 0.0
    for node in range(len(choices)):
        start = graph.node_start[node]
        num_choices = graph.node_start[node + 1] - start
        cost += graph.costs[start + choices[node]]
        for half in range(graph.half_start[node], graph.half_start[node + 1]):
            far = graph.half_far[half]
            if far < node:
                first = graph.half_table[half] + choices[far] * num_choices
                cost += graph.tables[first + choices[node]]
    return cost
