"""Small problems as the scalable lane is given them: reduced, in row numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from solvers import Problem, evaluate
from solvers.engines.brute_force import BruteForce
from solvers.engines.protocol import Request
from solvers.memory_rows import compress_memory
from solvers.problem import Edge, IntArray
from tests.solvers.instances import random_problem


def lane_problem(seed: int) -> Problem:
    """A random problem with at most one edge a pair and row numbers for times."""
    return compress_memory(_merged(random_problem(seed, forbidden_share=0.1)))[0]


def _merged(problem: Problem) -> Problem:
    """Adds parallel edges up where none of them holds memory; leaves the others out."""
    held = {term.edge for term in problem.edge_memory}
    kept: dict[tuple[int, int], int] = {}
    edges: list[Edge] = []
    index: dict[int, int] = {}
    for e, edge in sorted(enumerate(problem.edges), key=lambda item: item[0] not in held):
        key = (min(edge.u, edge.v), max(edge.u, edge.v))
        if key not in kept:
            kept[key] = e
            index[e] = len(edges)
            edges.append(edge)
    memory = tuple(
        replace(term, edge=index[term.edge]) for term in problem.edge_memory if term.edge in index
    )
    return replace(problem, edges=tuple(edges), edge_memory=memory)


def lane_problems() -> st.SearchStrategy[Problem]:
    """Random ones that brute force solves in milliseconds."""
    return st.integers(0, 2**32 - 1).map(lane_problem)


def best_cost(problem: Problem) -> int | None:
    """The least cost of all allowed choices; None where none are."""
    choices = BruteForce().solve(problem, Request()).choices
    return None if choices is None else evaluate(problem, choices).cost


def random_choices(problem: Problem, seed: int) -> IntArray:
    """One choice per node, at random."""
    rng = np.random.default_rng(seed)
    return np.array([rng.integers(len(costs)) for costs in problem.node_costs], dtype=np.int64)
