"""Ways to run one matrix product with pieces passed round rings of devices.

Such a candidate is a plain one that holds no tensor whole: an operand lives cut further than the
product needs it, and its pieces go round a mesh axis while all devices multiply (a collective
matmul); both operands do, on two axes of one size (Cannon's algorithm); or the sums that a plain
candidate scatters go round, and each device adds its share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from autoshard.candidates.candidate import Candidate, Streamed
from autoshard.graph.rule import Rule
from autoshard.layouts import Layout, MeshParts

RESULT = 0  # place of the result in `Streamed.moved`; those of the operands are 1 and 2


@dataclass(frozen=True, slots=True)
class RingOffers:
    """The candidates with rings of one product.

    Args:
        parts: The mesh parts of this plan.
        rule: Of the product, one factor to a dimension.
        is_heavy: Whether a tensor (by place: 0 the result, 1 and 2 the operands) is worth steps
            where a device would hold it in a layout.
    """

    parts: MeshParts
    rule: Rule
    is_heavy: Callable[[int, Layout], bool]

    def of(self, plain: Candidate) -> Iterator[Candidate]:
        """All that differ from a plain candidate in what goes round."""
        for place in (1, 2):
            yield from self._operand_rings(plain, place)
        yield from self._cannon(plain)
        yield from self._result_rings(plain)

    def _operand_rings(self, plain: Candidate, place: int) -> Iterator[Candidate]:
        needed = plain.operands[place - 1]
        if not self.is_heavy(place, needed):
            return
        for part in self._lacking(needed):
            for dim, (factor,) in enumerate(self.rule.operands[place - 1]):
                home = self._cut_further(needed, dim, factor, part)
                if home is not None:
                    operands = list(plain.operands)
                    operands[place - 1] = home
                    yield from self._both_directions(
                        replace(plain, operands=tuple(operands)),
                        Streamed(
                            needs=plain.operands,
                            over=factor,
                            panel=self._piece(factor, home[dim]),
                            num_steps=self.parts.sizes[part],
                            rings=(part,),
                            moved=(place,),
                        ),
                    )

    def _cannon(self, plain: Candidate) -> Iterator[Candidate]:
        left, right = plain.operands
        if not (self.is_heavy(1, left) or self.is_heavy(2, right)):
            return
        summed = [f for (f,) in self.rule.operands[0] if f in self.rule.reduction]
        for column in self._lacking(left):
            for row in self._lacking(right):
                if row == column or self.parts.sizes[row] != self.parts.sizes[column]:
                    continue
                for factor in summed:
                    dims = [dims.index((factor,)) for dims in self.rule.operands[:2]]
                    first = self._cut_further(left, dims[0], factor, column)
                    second = self._cut_further(right, dims[1], factor, row)
                    if first is not None and second is not None:
                        streamed = Streamed(
                            needs=plain.operands,
                            over=factor,
                            panel=self._piece(factor, first[dims[0]]),
                            num_steps=self.parts.sizes[row],
                            rings=(row, column),
                            moved=(1, 2),
                        )
                        yield replace(plain, operands=(first, second), streamed=streamed)

    def _result_rings(self, plain: Candidate) -> Iterator[Candidate]:
        if len(plain.scattered) != 1 or not self.is_heavy(RESULT, plain.partial):
            return
        (part,) = plain.scattered
        (made,) = plain.results
        dim = next(dim for dim, parts in enumerate(made) if part in parts)
        (factor,) = self.rule.results[0][dim]
        yield from self._both_directions(
            plain,
            Streamed(
                needs=plain.operands,
                over=factor,
                panel=self._piece(factor, made[dim]),
                num_steps=self.parts.sizes[part],
                rings=(part,),
                moved=(RESULT,),
            ),
        )

    def _both_directions(self, candidate: Candidate, streamed: Streamed) -> Iterator[Candidate]:
        yield replace(candidate, streamed=streamed)
        if streamed.panel % 2 == 0 and streamed.num_steps > 2:  # of two, each is the next to both
            yield replace(candidate, streamed=replace(streamed, both_ways=True))

    def _lacking(self, layout: Layout) -> list[int]:
        return [p for p in range(len(self.parts.axes)) if not any(p in dim for dim in layout)]

    def _cut_further(self, layout: Layout, dim: int, factor: int, part: int) -> Layout | None:
        """The layout with one dimension cut once more; None where that does not divide it."""
        longer = (*layout[dim], part)
        if self.rule.factor_sizes[factor] % self.parts.num_shards(longer):
            return None
        return (*layout[:dim], longer, *layout[dim + 1 :])

    def _piece(self, factor: int, cut: tuple[int, ...]) -> int:
        return self.rule.factor_sizes[factor] // self.parts.num_shards(cut)
