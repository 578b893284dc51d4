"""What a round leaves to later ones: dimensions whose priority is not yet due, held uncut.

The user's own tensors wait by their pins. The same dimension of the tensors they are made of or
turned into element by element (a gradient, its moments, the updated weight) waits with them: cut
now, it would stand in the way of what comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.layouts import Layout
from autoshard.wishes.pinned import Pin
from autoshard.wishes.wishes import Wishes

_IN_PLACE = (OpClass.ELEMENTWISE, OpClass.COPY, OpClass.NOTHING)
_BORDERS = (OpKind.ENTER_MANUAL, OpKind.LEAVE_MANUAL)

_Dim = tuple[int, int]  # a value and one of its dimensions


@dataclass(frozen=True, slots=True)
class Waiting:
    """What of one value is left to later rounds.

    Args:
        dims: Dimensions that nothing cuts yet.
        parts: Mesh parts that will cut them, and that cut nothing else of it until then.
    """

    dims: frozenset[int]
    parts: frozenset[int]

    def is_left_by(self, layout: Layout) -> bool:
        """Whether a layout touches none of it."""
        return not any(
            dim and (position in self.dims or not self.parts.isdisjoint(dim))
            for position, dim in enumerate(layout)
        )


def waiting_dims(
    graph: Graph,
    pins: Mapping[int, Mapping[int, Pin]],
    wishes: Wishes,
    priority: int,
) -> dict[int, Waiting]:
    """What waits in the round of a priority, by value.

    A dimension that some pin cuts by now waits for nobody, nor do the parts that it is cut by.

    Args:
        graph: The program.
        pins: By op, then by value.
        wishes: They say which tensors must end the same.
        priority: Of the round; dimensions of greater ones wait.
    """
    joined = _JoinedDims(graph, wishes)
    later: dict[_Dim, set[int]] = {}
    due: dict[_Dim, set[int]] = {}
    for of_op in pins.values():
        for pinned, pin in of_op.items():
            for place, (dim, parts) in enumerate(zip(pin.sharding.dims, pin.asked, strict=True)):
                if dim.round > priority:
                    later.setdefault(joined.root((pinned, place)), set()).update(parts)
                elif parts:
                    due.setdefault(joined.root((pinned, place)), set()).update(parts)
    found = {}
    for value in graph.values:
        roots = [joined.root((value.index, place)) for place in range(len(value.shape))]
        dims = {place for place, root in enumerate(roots) if root in later and root not in due}
        kept = {part for root in roots for part in later.get(root, ())}
        kept -= {part for root in roots for part in due.get(root, ())}
        if dims or kept:
            found[value.index] = Waiting(frozenset(dims), frozenset(kept))
    return found


@dataclass(slots=True, eq=False)
class _JoinedDims:
    """Dimensions of values that are one dimension of one tensor in several states."""

    graph: Graph
    wishes: Wishes
    _above: dict[_Dim, _Dim] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for op in self.graph.ops:
            if op.rule is not None and op.op_class in _IN_PLACE and op.kind not in _BORDERS:
                self._join(op)
        for first, *others in self._alike():
            for place in range(len(self.graph.values[first].shape)):
                for value in others:
                    self._unite((first, place), (value, place))

    def root(self, dim: _Dim) -> _Dim:
        """The one that stands for all joined with it."""
        passed = []
        while dim in self._above:
            passed.append(dim)
            dim = self._above[dim]
        for below in passed:
            self._above[below] = dim
        return dim

    def _alike(self) -> Iterator[Sequence[int]]:
        """Values that must end the same."""
        yield from self.graph.groups
        arguments, results = self.graph.arguments, self.graph.results
        for argument, result in self.wishes.alike:
            yield arguments[argument].results[0], results[result].operands[0]
        for wish in self.wishes.groups:
            yield [value for _, value in wish.members]

    def _join(self, op: Op) -> None:
        """Join what an op reads and makes, where it neither grows nor shrinks on the way."""
        assert op.rule is not None
        first: dict[tuple[int, int], _Dim] = {}  # by factor and size of the whole tensor
        dims_by_value = zip(
            (*op.operands, *op.results), (*op.rule.operands, *op.rule.results), strict=True
        )
        for value, dims in dims_by_value:
            num_elements = prod(self.graph.values[value].shape)
            for place, factors in enumerate(dims):
                if len(factors) == 1:
                    mine = (value, place)
                    self._unite(first.setdefault((factors[0], num_elements), mine), mine)

    def _unite(self, one: _Dim, other: _Dim) -> None:
        above, below = self.root(one), self.root(other)
        if above != below:
            self._above[below] = above
