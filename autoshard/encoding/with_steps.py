"""Candidates of an op with those in steps beside them, as far as any of these is worth it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from autoshard.candidates.candidate import MAX_CANDIDATES, Candidate
from autoshard.candidates.streamed import StreamOffers
from autoshard.encoding.hidden_communication import hidden_in_products
from autoshard.encoding.node_costs import NodeCosts
from autoshard.graph.program import Op
from autoshard.identity_cache import IdentityCache


@dataclass(slots=True, eq=False)
class WithSteps:
    """Adds candidates in steps to plain ones; equal ops share one tuple.

    Args:
        offers: What there is; None for nothing.
        most: How many in steps an op gets at most.
    """

    offers: StreamOffers | None
    prices: NodeCosts
    most: int = MAX_CANDIDATES
    _known: IdentityCache[tuple[Candidate, ...]] = field(default_factory=IdentityCache)

    def of(self, op: Op, plain: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """The plain candidates, then those in steps that no other one beats."""
        if self.offers is None or op.equation not in self.offers.equations:
            return plain
        graph = self.offers.graph
        types = tuple(
            (graph.values[value].dtype, graph.values[value].bits)
            for value in (*op.operands, *op.results)
        )
        offers = self.offers

        def offered() -> tuple[Candidate, ...]:
            in_steps = offers.of(op, plain)
            return (*plain, *(self._unbeaten(op, in_steps, offers) if in_steps else ()))

        return self._known.get(offered, plain, key=(op.rule, op.name, types))

    def _unbeaten(
        self, op: Op, in_steps: tuple[Candidate, ...], offers: StreamOffers
    ) -> Iterator[Candidate]:
        """Those of which no other with the same layouts is as fast and as small, the best of them.

        Of too many the fastest of every way for the operands to live comes before the second one.
        """
        graph, parts = offers.graph, offers.parts
        costing, seconds = self.prices.costing, self.prices.seconds(op, in_steps)
        if costing.overlaps:
            seconds -= hidden_in_products(graph, costing, op, in_steps)
        made = graph.values[op.results[0]].num_bytes
        groups: dict[object, list[tuple[float, int, int]]] = {}
        for place, candidate in enumerate(in_steps):
            held = costing.streamed_bytes(graph, op, candidate)
            if candidate.stands_partial:
                held += made // parts.num_pieces(candidate.partial)
            group = groups.setdefault((candidate.operands, candidate.results), [])
            group.append((float(seconds[place]), held, place))
        kept = [(spent, place) for group in groups.values() for spent, place in _leaner(group)]
        faster_at_home: Counter[object] = Counter()
        ranked = []
        for spent, place in sorted(kept):
            home = in_steps[place].operands
            ranked.append((faster_at_home[home], spent, place))
            faster_at_home[home] += 1
        best = {place for _, _, place in sorted(ranked)[: self.most]}
        yield from (in_steps[place] for _, place in kept if place in best)


def _leaner(group: Iterable[tuple[float, int, int]]) -> Iterator[tuple[float, int]]:
    """Of seconds, bytes and a place each, those than which no faster one is as small."""
    least: float = float("inf")
    for spent, held, place in sorted(group):
        if held < least:
            least = held
            yield spent, place
