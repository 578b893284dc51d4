"""A choice problem with a node of four states for every forward op, and its answer read back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.remat.choice import ON_HOST, Residual
from autoshard.remat.forward_op import ForwardOp, ForwardResult
from solvers import Evaluation, MemoryLimit, Problem, Restricted, evaluate, restrict

IntArray = npt.NDArray[np.int64]

KEEP, AGAIN, DROP, HOST = range(4)


@dataclass(frozen=True, slots=True, eq=False)
class ResidualProblem:
    """A choice problem with a node for every forward op.

    Args:
        problem: The nodes of the forward ops come last.
        host_limits: Of host memory, and of the link to it: at times after those of the program.
        ops: The forward ops.
        kept_bytes: Per op, what keeping it takes, by node that decides.
        again_costs: Per op, picoseconds of computing it again, likewise.
        lean_choices: By node, its choice in a plan of the program that keeps the least.
        fused: Per op, whether its readers compute it: it is kept where its operands are.
    """

    problem: Problem
    host_limits: tuple[MemoryLimit, ...]
    ops: tuple[ForwardOp, ...]
    kept_bytes: tuple[tuple[tuple[int, IntArray], ...], ...]
    again_costs: tuple[tuple[tuple[int, IntArray], ...], ...]
    lean_choices: Mapping[int, int]
    fused: tuple[bool, ...]

    def within(self, memory_limit: int | None) -> Problem:
        """The problem where a device may hold so many bytes; None for no limit."""
        if not self.host_limits:
            return replace(self.problem, memory_limit=memory_limit)
        first = min(limit.start for limit in self.host_limits)
        own = () if memory_limit is None else (MemoryLimit(0, first, memory_limit),)
        return replace(self.problem, memory_limit=None, memory_limits=(*own, *self.host_limits))

    def device_bytes(self, choices: Sequence[int]) -> int:
        """The most bytes that a device holds at one time."""
        first = min((limit.start for limit in self.host_limits), default=None)
        if first is None:
            return evaluate(self.problem, choices).peak
        on_device = replace(
            self.problem,
            node_memory=tuple(one for one in self.problem.node_memory if one.stop <= first),
            edge_memory=tuple(one for one in self.problem.edge_memory if one.stop <= first),
        )
        return evaluate(on_device, choices).peak

    def as_lean(self, memory_limit: int | None) -> Restricted:
        """Likewise with the shardings of the plan that keeps the least: residuals are left."""
        keep = [np.ones(len(costs), np.bool_) for costs in self.problem.node_costs]
        for node, choice in self.lean_choices.items():
            keep[node][:] = False
            keep[node][choice] = True
        return restrict(self.within(memory_limit), keep)

    def keeping(self, choices: Sequence[int], kept: Collection[str]) -> tuple[int, ...]:
        """The same choices with these residuals kept, waiting for the host as long as it takes."""
        num_waits = max(len(self.host_limits) - 1, 0)
        first_wait = len(choices) - len(self.ops) - num_waits
        costs = self.problem.node_costs[first_wait : first_wait + num_waits]
        is_sent = any(name.endswith(ON_HOST) for name in kept)
        waits = (len(one) - 1 if is_sent else 0 for one in costs)
        states = [DROP] * len(self.ops)
        needed = {position for position, op in enumerate(self.ops) if op.is_required}
        for position in reversed(range(len(self.ops))):
            op = self.ops[position]
            if position not in needed:
                continue
            if any(one.name + ON_HOST in kept for one in op.results):
                states[position] = HOST
            elif any(one.name in kept for one in op.results):
                states[position] = KEEP
                needed.update(op.operands if self.fused[position] else ())
            else:
                states[position] = AGAIN
                needed.update(op.operands)
        return (*choices[:first_wait], *waits, *states)

    def cheapest(
        self, limited: Problem, choices: Sequence[int], sets: Iterable[Collection[str]]
    ) -> tuple[tuple[int, ...], Evaluation]:
        """Choices, or the same that keep one of these sets: what is allowed and costs least.

        Args:
            limited: The problem within a limit.
            choices: One index per node.
            sets: Names of residuals.
        """
        every = (tuple(choices), *(self.keeping(choices, kept) for kept in sets))
        priced = ((one, evaluate(limited, one)) for one in every)
        return min(priced, key=lambda one: (not one[1].is_allowed, one[1].cost))

    def kept(self, choices: Sequence[int]) -> tuple[str, ...]:
        """Names of all that is kept, in the memory where it is."""
        return tuple(
            one.name + ON_HOST * (state == HOST)
            for one, state in self._kept_results(self._states(choices))
        )

    def residuals(self, choices: Sequence[int]) -> tuple[Residual, ...]:
        """The values that backward passes read, or compute from, and what becomes of each."""
        states = self._states(choices)
        kept = {one.name for one, _ in self._kept_results(states)}
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
                        is_offloaded=is_kept and states[position] == HOST,
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

    def _kept_results(self, states: Sequence[int]) -> Iterator[tuple[ForwardResult, int]]:
        read = {
            u
            for op, state in zip(self.ops, states, strict=True)
            for u in op.operands
            if state == AGAIN
        }
        for position, (op, state) in enumerate(zip(self.ops, states, strict=True)):
            if state in (KEEP, HOST):
                kept = (one for one in op.results if one.is_required or position in read)
                yield from ((one, state) for one in kept)


def _total(terms: Sequence[tuple[int, IntArray]], choices: Sequence[int]) -> int:
    return sum(int(usage[choices[node]]) for node, usage in terms)
