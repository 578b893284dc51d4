"""Sums over devices that two ops decide together, as edges of the choice problem."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autoshard.encoding.joined_sums import JoinedSums
from autoshard.encoding.node_costs import NodeCosts
from autoshard.encoding.picoseconds import picoseconds
from autoshard.encoding.sums_after_loops import SumsAfterLoops
from autoshard.graph.added_sums import AddedSums
from autoshard.graph.program import Op
from solvers import Edge

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SumEdges:
    """Builds the edges that charge a sum where it is not taken with others.

    Args:
        prices: What candidates cost by themselves; equal sums share one array.
        node_by_op: The node of each op that has a choice, by its index.
    """

    prices: NodeCosts
    node_by_op: Mapping[int, int]
    _known: dict[Hashable, IntArray] = field(default_factory=dict)

    def in_loops(self, sums: SumsAfterLoops) -> Iterator[Edge]:
        """What sums cost more that stay in their loop, as they are added up in another layout."""
        reductions, graph = self.prices.reductions, self.prices.graph
        for one in sums:
            if one.op not in self.node_by_op or one.add not in self.node_by_op:
                continue
            op = graph.ops[one.op]
            made, added = self.prices.candidates[one.op], self.prices.candidates[one.add]
            after = reductions.seconds(op, made)
            inside = reductions.seconds(op, sums.in_loop(made))
            more = picoseconds((inside - after) * op.repeat)
            costs = np.where(~sums.leaves(one, made, added), more[:, None], 0)
            yield Edge(self.node_by_op[one.op], self.node_by_op[one.add], costs)

    def apart(self, joined: JoinedSums) -> Iterator[Edge]:
        """What sums cost that are not taken with those of the result they are added to."""
        for one in joined:
            first, second = (self.node_by_op.get(end.op) for end in (one.first, one.second))
            if first is None or second is None:
                continue
            yield Edge(first, second, self._unjoined_costs(joined, one))
            addition = self.node_by_op.get(one.first.addend_at)
            if addition is not None:
                adds = self.prices.candidates[one.first.addend_at]
                are_whole = joined.are_whole(adds, self.prices.candidates[one.second.op])
                yield Edge(addition, second, np.where(are_whole, 0, self._own_costs(joined, one)))

    def _unjoined_costs(self, joined: JoinedSums, one: AddedSums) -> IntArray:
        """int64[num_firsts, num_seconds]: what the second sum costs where it is not joined."""
        op = self.prices.graph.ops[one.second.op]
        firsts, seconds = (self.prices.candidates[end.op] for end in (one.first, one.second))
        key = (
            "joined",
            id(firsts),
            one.first.order,
            one.second.order,
            one.first.addend_at < 0,
            one.second.addend_at < 0,
            *self.prices.like(op),
        )
        if key not in self._known:
            are_joined = joined.are_joined(one, firsts, seconds)
            self._known[key] = np.where(are_joined, 0, self._own_costs(joined, one))
        return self._known[key]

    def _own_costs(self, joined: JoinedSums, one: AddedSums) -> IntArray:
        """int64[num_seconds]: what the second sum costs by itself."""
        op: Op = self.prices.graph.ops[one.second.op]
        key = self.prices.like(op)
        if key not in self._known:
            apart = joined.apart(self.prices.candidates[op.index])
            seconds = self.prices.reductions.seconds(op, apart)
            self._known[key] = picoseconds(seconds * op.repeat)
        return self._known[key]
