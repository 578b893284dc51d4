"""Random problems: small ones brute force can check, and layered ones shaped like autoshard's."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from solvers import FORBIDDEN, Edge, EdgeMemory, NodeMemory, Problem
from solvers.problem import IntArray


def random_problem(
    seed: int,
    *,
    most_nodes: int = 6,
    most_choices: int = 3,
    forbidden_share: float = 0.15,
    has_memory: bool = True,
) -> Problem:
    """A few nodes, parallel and turned edges, forbidden entries, and a limit that often binds."""
    rng = np.random.default_rng(seed)
    num_nodes = int(rng.integers(1, most_nodes + 1))
    sizes = [int(rng.integers(1, most_choices + 1)) for _ in range(num_nodes)]

    def table(*shape: int) -> IntArray:
        costs = rng.integers(0, 12, shape).astype(np.int64)
        costs[rng.random(shape) < 0.3] = 0
        costs[rng.random(shape) < forbidden_share * (len(shape) - 1)] = FORBIDDEN
        if len(shape) == 2 and rng.random() < 0.2:
            costs = (np.arange(shape[0])[:, None] * 2 + np.arange(shape[1])).astype(np.int64)
        return costs

    edges = []
    for _ in range(int(rng.integers(0, 2 * num_nodes + 1)) if num_nodes > 1 else 0):
        u, v = (int(end) for end in rng.choice(num_nodes, 2, replace=False))
        edges.append(Edge(u, v, table(sizes[u], sizes[v])))
    node_memory: list[NodeMemory] = []
    edge_memory: list[EdgeMemory] = []
    limit = None
    if has_memory:
        for _ in range(int(rng.integers(0, 2 * num_nodes + 1))):
            node = int(rng.integers(num_nodes))
            start = int(rng.integers(0, 8))
            stop = start + int(rng.integers(0, 5))
            usage = rng.integers(0, 9, sizes[node]).astype(np.int64)
            node_memory.append(NodeMemory(node, start, stop, usage))
        for e in range(len(edges)):
            if rng.random() < 0.3:
                start = int(rng.integers(0, 8))
                usage = rng.integers(0, 9, edges[e].costs.shape).astype(np.int64)
                edge_memory.append(EdgeMemory(e, start, start + 1, usage))
        limit = int(rng.integers(0, 6 * num_nodes))
    return Problem(
        node_costs=tuple(table(size) for size in sizes),
        edges=tuple(edges),
        node_memory=tuple(node_memory),
        edge_memory=tuple(edge_memory),
        memory_limit=limit,
        name=f"random {seed}",
    )


def small_problems(*, has_memory: bool = True) -> st.SearchStrategy[Problem]:
    """Random problems that brute force solves in milliseconds."""
    return st.integers(0, 2**32 - 1).map(lambda seed: random_problem(seed, has_memory=has_memory))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayeredShape:
    """How large a layered problem is.

    Args:
        num_layers: Equal layers, forward and backward.
        ops_per_layer: Operations in the forward half of a layer.
        num_choices: Choices of a typical value.
        limit_share: The memory limit, between the least (0) and the unconstrained (1) peak.
    """

    num_layers: int = 4
    ops_per_layer: int = 20
    num_choices: int = 12
    seed: int = 0


@dataclass(slots=True)
class _Builder:
    rng: np.random.Generator
    costs: list[IntArray] = field(default_factory=list)
    cuts: list[IntArray] = field(default_factory=list)
    bytes_whole: list[int] = field(default_factory=list)
    last_use: list[int] = field(default_factory=list)
    born: list[int] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    tables: dict[tuple[int, int, int], IntArray] = field(default_factory=dict)

    def add(self, costs: IntArray, cuts: IntArray, size: int, operands: list[int]) -> int:
        node = len(self.costs)
        self.costs.append(costs)
        self.cuts.append(cuts)
        self.bytes_whole.append(size)
        self.born.append(node)
        self.last_use.append(node)
        for operand in operands:
            self.last_use[operand] = node
            self.edges.append(Edge(operand, node, self._reshard(operand, node)))
        return node

    def _reshard(self, producer: int, user: int) -> IntArray:
        """Zero between like cuts, else the time to move the producer's bytes."""
        have, want = self.cuts[producer], self.cuts[user]
        key = (id(have), id(want), self.bytes_whole[producer])
        if key not in self.tables:
            same = (have[:, None, :] == want[None, :, :]).all(axis=2)
            ways = np.maximum(have.prod(axis=1)[:, None], want.prod(axis=1)[None, :])
            change = (have[:, None, :] != want[None, :, :]).sum(axis=2)
            seconds = self.bytes_whole[producer] * (1 + change) // ways + 1_000_000
            self.tables[key] = np.where(same, 0, seconds).astype(np.int64)
        return self.tables[key]


def layered_problem(shape: LayeredShape, *, memory_limit: int | None = None) -> Problem:
    """Layers of operations forward, the same backward with saved values, then an update.

    Every node is cut along up to three dimensions by some of the mesh's axes; a choice's work
    falls with the ways it is cut, edges pay for cuts that differ. All layers share their tables.
    Parameters are held all the time, saved values from forward to backward.
    """
    rng = np.random.default_rng(shape.seed)
    all_cuts = np.array(
        [
            (a, b, c)
            for a in (1, 2, 4, 8)
            for b in (1, 2, 4, 8)
            for c in (1, 2, 4, 8)
            if a * b * c <= 32
        ],
        dtype=np.int64,
    )
    templates = []
    for _ in range(shape.ops_per_layer):
        count = int(rng.integers(max(1, shape.num_choices // 2), shape.num_choices * 3 // 2 + 1))
        at = np.sort(rng.choice(len(all_cuts), min(count, len(all_cuts)), replace=False))
        at[0] = 0
        cuts = all_cuts[at]
        work = int(rng.integers(1, 200)) * 10_000_000
        ways = cuts.prod(axis=1)  # beyond a few ways, talking costs more than is saved
        jitter = rng.integers(0, 50, len(cuts)) * 10_000
        costs = (work // np.minimum(ways, 8) + work // 100 * ways + jitter).astype(np.int64)
        is_matmul = rng.random() < 0.3
        size = int(rng.integers(1, 64)) * 1_000_000
        offsets = sorted({1, int(rng.integers(1, 4))})
        templates.append((costs, cuts, size, offsets, is_matmul))
    builder = _Builder(rng)
    shared = builder.add(templates[0][0], templates[0][1], 1_000_000, [])
    params: list[list[tuple[int, int]]] = []
    saved: list[list[int]] = []
    previous = shared
    for _ in range(shape.num_layers):
        layer: list[int] = []
        layer_params: list[tuple[int, int]] = []
        for k, (costs, cuts, size, offsets, is_matmul) in enumerate(templates):
            operands = [layer[k - back] for back in offsets if k - back >= 0] or [previous]
            if k == shape.ops_per_layer // 2:
                operands.append(shared)
            if is_matmul:
                weight = builder.add(np.zeros(len(cuts), dtype=np.int64), cuts, 8 * size, [])
                operands.append(weight)
                layer_params.append((k, weight))
            layer.append(builder.add(costs, cuts, size, sorted(set(operands))))
        params.append(layer_params)
        saved.append(layer)
        previous = layer[-1]
    updates: list[int] = []
    for depth in reversed(range(shape.num_layers)):
        gradient = previous
        weights = dict(params[depth])
        for k in reversed(range(shape.ops_per_layer)):
            costs, cuts, size, _, is_matmul = templates[k]
            operands = [gradient, saved[depth][k]]
            gradient = builder.add(2 * costs, cuts, size, sorted(set(operands)))
            if is_matmul:
                weight_gradient = builder.add(costs, cuts, 8 * size, [gradient])
                updates.append(
                    builder.add(
                        np.zeros(len(cuts), dtype=np.int64),
                        cuts,
                        8 * size,
                        [weight_gradient, weights[k]],
                    )
                )
        previous = gradient
    end = len(builder.costs)
    weights_held = {weight for layer in params for _, weight in layer} | set(updates)
    memory = []
    usages: dict[tuple[int, int], IntArray] = {}
    for node in range(end):
        key = (id(builder.cuts[node]), builder.bytes_whole[node])
        if key not in usages:
            usages[key] = builder.bytes_whole[node] // builder.cuts[node].prod(axis=1)
        if node in weights_held:
            memory.append(NodeMemory(node, 0, end, usages[key]))
        else:
            memory.append(
                NodeMemory(node, builder.born[node], builder.last_use[node] + 1, usages[key])
            )
    return Problem(
        node_costs=tuple(builder.costs),
        edges=tuple(builder.edges),
        node_memory=tuple(memory),
        memory_limit=memory_limit,
        name=f"layered {shape.num_layers}x{shape.ops_per_layer}",
    )
