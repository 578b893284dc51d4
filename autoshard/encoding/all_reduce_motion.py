"""All-reduces that a compiler moves past the addition of partial sums.

The all-reduce of a partial sum that a loop accumulates moves behind the loop
(WhileLoopAllReduceCodeMotion); of two partial sums that are added only the result is reduced
(AllReduceReassociate). An op is priced with its all-reduce moved; where the choice of another op
keeps it in place, an edge between the two charges the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoshard.backends import CollectivePolicy
from autoshard.candidates.candidate import Candidate
from autoshard.encoding.node_costs import NodeCosts
from autoshard.encoding.picoseconds import picoseconds
from autoshard.graph.partial_sums import AddedSums, LoopSum, Summand, added_sums, loop_sums
from autoshard.graph.program import Graph, Op
from autoshard.identity_cache import IdentityCache
from solvers import Edge

Candidates = tuple[Candidate, ...]
BoolArray = npt.NDArray[np.bool_]


class Condition(NamedTuple):
    """The choice of another op that lets an all-reduce move.

    Args:
        op: The other op.
        key: What decides beside the candidates of both.
        is_met: bool[num_others, num_own] for candidates of the other op and of the one that makes
            the partial sum.
    """

    op: int
    key: Hashable
    is_met: Callable[[Candidates, Candidates], BoolArray]


@dataclass(frozen=True, slots=True)
class MovedAllReduce:
    """An all-reduce that may move.

    Args:
        op: The op that makes the partial sum.
        runs: Of the op that one all-reduce serves then; infinite where that of another op does.
        conditions: All of which have to be met.
    """

    op: int
    runs: float
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AllReduceMotion:
    """The all-reduces of a program that may move, by the op that makes the partial sum."""

    by_op: Mapping[int, MovedAllReduce] = field(default_factory=dict)
    _offered: IdentityCache[Candidates] = field(default_factory=IdentityCache)

    @classmethod
    def of(cls, graph: Graph, collectives: CollectivePolicy) -> AllReduceMotion:
        """Those of a program, as far as the compiler moves them."""
        in_loops = loop_sums(graph) if collectives.loop_all_reduce_motion else ()
        added = added_sums(graph) if collectives.reassociates_all_reduces else ()
        found = (*map(_out_of_loop, in_loops), *map(_behind_addition, added))
        return cls({one.op: one for one in found})

    def offered(self, op: Op, candidates: Candidates) -> Candidates:
        """The candidates of an op, their all-reduces moved where they may."""
        one = self.by_op.get(op.index)
        if one is None:
            return candidates
        moves, runs = (_is_reduced if one.runs == inf else _is_all_reduced), one.runs
        return self._offered.get(
            lambda: tuple(replace(c, runs_per_sum=runs) if moves(c) else c for c in candidates),
            candidates,
            key=runs,
        )

    def as_run(self, chosen: Mapping[int, Candidate]) -> dict[int, Candidate]:
        """Chosen candidates by op, each all-reduce where it is run."""
        found = dict(chosen)
        for one in self.by_op.values():
            own = chosen.get(one.op)
            if own is not None and not all(_holds(cond, own, chosen) for cond in one.conditions):
                (found[one.op],) = in_place((own,))
        return found

    def edges(self, prices: NodeCosts, node_by_op: Mapping[int, int]) -> Iterator[Edge]:
        """The added cost of all-reduces that stay in place."""
        more: dict[Hashable, npt.NDArray[np.int64]] = {}
        costs: dict[Hashable, npt.NDArray[np.int64]] = {}
        for one in self.by_op.values():
            op = prices.graph.ops[one.op]
            for condition in one.conditions:
                if one.op not in node_by_op or condition.op not in node_by_op:
                    continue
                own, others = prices.candidates[one.op], prices.candidates[condition.op]
                alike = prices.like(op)
                if alike not in more:
                    sums = prices.reductions
                    seconds = sums.seconds(op, in_place(own)) - sums.seconds(op, own)
                    more[alike] = picoseconds(seconds * op.repeat)
                key = (id(others), condition.key, alike)
                if key not in costs:
                    costs[key] = np.where(condition.is_met(others, own), 0, more[alike])
                yield Edge(node_by_op[condition.op], node_by_op[one.op], costs[key])


def in_place(candidates: Candidates) -> Candidates:
    """The same candidates with an all-reduce in every run."""
    return tuple(replace(c, runs_per_sum=1.0) for c in candidates)


def adds_whole(adds: Candidates, scatters: Candidates) -> BoolArray:
    """bool[num_adds, num_scatters]: a scatter is made into its addend, or nothing is reduced."""
    whole = np.array([not any(map(any, add.operands)) for add in adds])
    met: BoolArray = whole[:, None] | ~np.array([_is_reduced(c) for c in scatters])
    return met


def _out_of_loop(one: LoopSum) -> MovedAllReduce:
    """The all-reduce leaves if the loop accumulates in the layout that the op makes."""

    def is_met(adds: Candidates, own: Candidates) -> BoolArray:
        made = [tuple(c.results[0][dim] for dim in one.order) for c in own]
        stays = [c.runs_per_sum == 1 for c in own]
        wanted = [c.operands[one.position] for c in adds]
        return np.array(
            [[s or m == layout for m, s in zip(made, stays, strict=True)] for layout in wanted]
        )

    condition = Condition(one.add, (one.position, one.order), is_met)
    return MovedAllReduce(one.op, one.runs, (condition,))


def _behind_addition(one: AddedSums) -> MovedAllReduce:
    """The second all-reduce is dropped if both partial sums are reduced alike."""
    first, second = one.first, one.second
    key = (first.order, second.order, first.addend_at < 0, second.addend_at < 0)
    alike = Condition(first.op, key, partial(_are_alike, one))
    whole = (Condition(first.addend_at, None, adds_whole),) if first.addend_at >= 0 else ()
    return MovedAllReduce(second.op, inf, (alike, *whole))


def _are_alike(one: AddedSums, firsts: Candidates, seconds: Candidates) -> BoolArray:
    ways: dict[tuple[object, ...], int] = {}
    before, after = (
        np.array([ways.setdefault(_way(summand, c), len(ways)) for c in candidates])
        for summand, candidates in ((one.first, firsts), (one.second, seconds))
    )
    met: BoolArray = (before[:, None] == after) | ~np.array([_is_reduced(c) for c in seconds])
    return met


def _way(summand: Summand, candidate: Candidate) -> tuple[object, ...]:
    """The reduction of a partial sum: equal for two that are reduced as one.

    The pieces of a scatter that has an addend stay where they are made: they are not reduced.
    """
    (layout,) = candidate.results
    is_held = summand.addend_at >= 0 and any(layout)
    if not _is_reduced(candidate) or is_held:
        return (summand.op,)
    added = tuple(layout[dim] for dim in summand.order)
    return frozenset(candidate.reduced), frozenset(candidate.scattered), added


def _holds(condition: Condition, own: Candidate, chosen: Mapping[int, Candidate]) -> bool:
    other = chosen.get(condition.op)
    return other is None or bool(condition.is_met((other,), (own,))[0, 0])


def _is_reduced(candidate: Candidate) -> bool:
    """True where it ends in sums over devices in every run, or in none as another op's are."""
    has_sums = bool(candidate.reduced or candidate.scattered)
    return has_sums and candidate.streamed is None and candidate.runs_per_sum in (1.0, inf)


def _is_all_reduced(candidate: Candidate) -> bool:
    return bool(candidate.reduced) and not candidate.scattered and candidate.streamed is None
