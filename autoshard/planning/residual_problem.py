"""A choice problem with a node of three states for every forward op, and its answer read back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.remat.choice import Residual
from autoshard.remat.forward_op import ForwardOp, ForwardResult
from solvers import FORBIDDEN, Problem

IntArray = npt.NDArray[np.int64]

KEEP, AGAIN, DROP = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class ResidualProblem:
    """A choice problem with a node for every forward op.

    Args:
        problem: The nodes of the forward ops come last.
        ops: The forward ops.
        kept_bytes: Per op, what keeping it takes, by node that decides.
        again_costs: Per op, picoseconds of computing it again, likewise.
        lean_choices: By node, its choice in a plan of the program that keeps the least.
    """

    problem: Problem
    ops: tuple[ForwardOp, ...]
    kept_bytes: tuple[tuple[tuple[int, IntArray], ...], ...]
    again_costs: tuple[tuple[tuple[int, IntArray], ...], ...]
    lean_choices: Mapping[int, int]

    def as_lean(self) -> Problem:
        """The problem with shardings of the plan that keeps the least: residuals are left."""
        costs = list(self.problem.node_costs)
        for node, choice in self.lean_choices.items():
            held = np.full_like(costs[node], FORBIDDEN)
            held[choice] = costs[node][choice]
            costs[node] = held
        return replace(self.problem, node_costs=tuple(costs))

    def keeping(self, choices: Sequence[int], kept: Collection[str]) -> tuple[int, ...]:
        """The same choices with these residuals kept."""
        states = [DROP] * len(self.ops)
        needed = {position for position, op in enumerate(self.ops) if op.is_required}
        for position in reversed(range(len(self.ops))):
            op = self.ops[position]
            if any(one.name in kept for one in op.results):
                states[position] = KEEP
            elif position in needed:
                states[position] = AGAIN
                needed.update(op.operands)
        return (*choices[: len(choices) - len(self.ops)], *states)

    def kept(self, choices: Sequence[int]) -> tuple[str, ...]:
        """Names of all that is kept."""
        return tuple(one.name for one in self._kept_results(self._states(choices)))

    def residuals(self, choices: Sequence[int]) -> tuple[Residual, ...]:
        """The values that backward passes read, or compute from, each kept or computed again."""
        states = self._states(choices)
        kept = {one.name for one in self._kept_results(states)}
        found = []
        for position, op in enumerate(self.ops):
            num_bytes = _total(self.kept_bytes[position], choices)
            seconds = _total(self.again_costs[position], choices) / PICOSECONDS
            for one in op.results:
                is_kept = one.name in kept
                if not num_bytes or not (is_kept or one.is_required):
                    continue
                found.append(
                    Residual(
                        name=one.name,
                        what=one.what,
                        is_named=one.is_named,
                        source=one.source,
                        type_text=one.type_text,
                        is_kept=is_kept,
                        local_bytes=num_bytes,
                        seconds=seconds,
                    )
                )
        return tuple(found)

    def recomputed_seconds(self, choices: Sequence[int]) -> float:
        """Of all that is computed again in one step."""
        states = self._states(choices)
        spent = (
            _total(costs, choices)
            for costs, state in zip(self.again_costs, states, strict=True)
            if state == AGAIN
        )
        return sum(spent) / PICOSECONDS

    def _states(self, choices: Sequence[int]) -> tuple[int, ...]:
        return tuple(choices[len(choices) - len(self.ops) :])

    def _kept_results(self, states: Sequence[int]) -> Iterator[ForwardResult]:
        read = {
            u
            for op, state in zip(self.ops, states, strict=True)
            for u in op.operands
            if state == AGAIN
        }
        for position, (op, state) in enumerate(zip(self.ops, states, strict=True)):
            if state == KEEP:
                yield from (one for one in op.results if one.is_required or position in read)


def _total(terms: Sequence[tuple[int, IntArray]], choices: Sequence[int]) -> int:
    return sum(int(usage[choices[node]]) for node, usage in terms)
