"""toulbar2, branch and bound over cost functions: an optional extra, strong on small wide problems.

Costs are functions of one and two variables as they stand; memory rows are added when violated, as
linear constraints over choices (where pairs hold memory, over a variable for the pair).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from solvers.engines.lazy_rows import Outcome, solve_lazily
from solvers.engines.protocol import Answer, Request
from solvers.errors import EngineError
from solvers.evaluate import evaluate
from solvers.problem import Edge, IntArray, Problem
from solvers.saturating import FORBIDDEN_FROM

_LARGEST_EXACT = 2**52  # costs cross as floating point


@dataclass(frozen=True, slots=True)
class Toulbar2:
    """Solves a problem as a cost function network."""

    @property
    def name(self) -> str:
        return "toulbar2"

    @property
    def is_polling(self) -> bool:
        return False

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Solves, adds violated memory rows, and solves again until none is violated.

        Raises:
            EngineError: `pytoulbar2` is not installed, or costs are too large for it.
        """
        return solve_lazily(problem, request, _Toulbar2Engine)


class _Toulbar2Engine:
    def __init__(self, problem: Problem) -> None:
        try:
            import pytoulbar2
            from pytoulbar2 import pytb2
        except ImportError as error:
            raise EngineError(
                "pytoulbar2 is not installed",
                where="engine toulbar2",
                fix='pip install "autoshard[toulbar2]"',
            ) from error
        self.module: Any = pytoulbar2
        self.library: Any = pytb2
        self.problem = problem
        self.rows: list[int] = []
        tables = [*problem.node_costs, *(edge.costs for edge in problem.edges)]
        largest = sum(int(t[t < FORBIDDEN_FROM].max(initial=0)) for t in tables)
        if largest >= _LARGEST_EXACT:
            raise EngineError(
                f"costs may add up to {largest}, expected less than {_LARGEST_EXACT}",
                where="engine toulbar2",
                fix='choose engine="auto"',
            )

    @property
    def size(self) -> str:
        return f"network of {self.problem.num_nodes} variables, {len(self.problem.edges)} functions"

    def add_rows(self, rows: Sequence[int]) -> None:
        self.rows += rows

    def solve(self, request: Request, hint: tuple[int, ...] | None) -> Outcome:
        """Builds the network anew, as toulbar2 solves one only once."""
        most = None if hint is None else evaluate(self.problem, hint).cost
        self.library.init()  # its options are global and start out undefined
        network = self.module.CFN(ubinit=most, seed=request.seed % 2**31 + 1, verbose=-1)
        try:
            self._fill(network)
        except network.Contradiction:
            return Outcome(is_infeasible=True, log="toulbar2: contradiction")
        seconds = request.seconds_left()
        limit = 0 if seconds is None else max(1, int(seconds - 0.5))
        began = time.process_time()
        try:
            found = network.Solve(timeLimit=limit)
        except network.SolverOut:
            found = None
        is_finished = not limit or time.process_time() - began < limit - 0.1
        bound = network.GetDDualBound()
        lower_bound = max(0, round(bound)) if np.isfinite(bound) and bound < 2**60 else 0
        listed = network.GetSolutions()
        if not listed:
            line = "toulbar2: nothing cheaper" if is_finished else "toulbar2: out of time"
            return Outcome(is_infeasible=is_finished, lower_bound=lower_bound, log=line)
        values = found[0] if found is not None else listed[-1][1]
        choices = tuple(int(value) for value in values[: self.problem.num_nodes])
        return Outcome(
            choices=choices,
            lower_bound=lower_bound,
            is_proven=is_finished,
            log=f"toulbar2: {'optimal' if is_finished else 'out of time'}",
        )

    def _fill(self, network: Any) -> None:
        problem = self.problem
        for i, costs in enumerate(problem.node_costs):
            network.AddVariable(f"x{i}", range(len(costs)))
        for i, costs in enumerate(problem.node_costs):
            network.AddFunction([i], _as_floats(costs, network.Top))
        floats: dict[int, list[float]] = {}
        for edge in problem.edges:
            if id(edge.costs) not in floats:
                floats[id(edge.costs)] = _as_floats(edge.costs, network.Top)
            network.AddFunction([edge.u, edge.v], floats[id(edge.costs)])
        pair_variables: dict[int, int] = {}
        for row in self.rows:
            held: dict[int, IntArray] = {}
            for term in problem.node_memory:
                if term.start <= row < term.stop:
                    held[term.node] = held.get(term.node, 0) + term.usage
            for pair_term in problem.edge_memory:
                if pair_term.start <= row < pair_term.stop:
                    e = pair_term.edge
                    if e not in pair_variables:
                        pair_variables[e] = _add_pair_variable(network, e, problem.edges[e])
                    at = pair_variables[e]
                    held[at] = held.get(at, 0) + pair_term.usage.ravel()
            tuples = [
                (variable, value, usage)
                for variable, usages in sorted(held.items())
                for value, usage in enumerate(usages.tolist())
            ]
            network.AddGeneralizedLinearConstraint(tuples, "<=", problem.memory_limit)


def _add_pair_variable(network: Any, e: int, edge: Edge) -> int:
    """Adds a variable whose value is a pair of choices, tied to both."""
    num_u, num_v = edge.costs.shape
    at = int(network.GetNbVars())
    network.AddVariable(f"pair{e}", range(num_u * num_v))
    pairs = np.arange(num_u * num_v)
    for node, count, choice in ((edge.u, num_u, pairs // num_v), (edge.v, num_v, pairs % num_v)):
        differs = choice[:, None] != np.arange(count)[None, :]
        costs = np.where(differs, network.Top, 0.0).ravel().tolist()
        network.AddFunction([at, node], costs)
    return at


def _as_floats(costs: IntArray, top: float) -> list[float]:
    listed: list[float] = np.where(costs >= FORBIDDEN_FROM, top, costs).ravel().tolist()
    return listed
