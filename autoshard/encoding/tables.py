"""Reshards of every type of tensor, and where candidates stand in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.costing.convert_motion import ReadBits
from autoshard.encoding.encoded import TableKey
from autoshard.encoding.shared_reads import SharedRead
from autoshard.graph.program import Graph, Op
from autoshard.identity_cache import IdentityCache
from autoshard.layouts import Layout
from autoshard.reshard import Resharder, ReshardTable

IntArray = npt.NDArray[np.int64]


@dataclass(slots=True)
class Tables:
    """All-pairs tables by tensor type, over every layout some op may give or want.

    Args:
        read_bits: The width that elements of a read are sent in.
        resharder: Finds the way from layout to layout.

    Attributes:
        by_type: The tables; there is one more for every other width that elements are sent in.
    """

    graph: Graph
    read_bits: ReadBits
    resharder: Resharder
    by_type: dict[TableKey, ReshardTable] = field(default_factory=dict)
    _indices: IdentityCache[IntArray] = field(default_factory=IdentityCache)
    _distinct: dict[bytes, IntArray] = field(default_factory=dict)  # by content

    def make(
        self,
        nodes: Iterable[Op],
        candidates: Mapping[int, tuple[Candidate, ...]],
        of_shape: Callable[[tuple[int, ...]], Iterable[Candidate]],
    ) -> None:
        """Fill in the tables."""
        universe: dict[tuple[tuple[int, ...], int], dict[Layout, None]] = {}
        seen: set[tuple[int, bool, int, tuple[int, ...], int]] = set()
        for op in nodes:
            offered = candidates[op.index]
            for is_result, values in ((False, op.operands), (True, op.results)):
                for position, value in enumerate(values):
                    key = self.type_of(value)
                    if not key[0]:
                        continue
                    mark = (id(offered), is_result, position, *key)
                    if mark in seen:
                        continue
                    seen.add(mark)
                    layouts = universe.setdefault(key, {})
                    for candidate in offered:
                        layouts.setdefault(candidate.side(is_result=is_result)[position])
        other = self._other_widths()
        for (shape, bits), layouts in universe.items():
            for candidate in of_shape(shape):
                layouts.setdefault(candidate.results[0])
            known = tuple(sorted(layouts))
            for sent in {bits, *other.get((shape, bits), ())}:
                self.by_type[shape, bits, sent] = self.resharder.table(known, shape, sent)

    def _other_widths(self) -> dict[tuple[tuple[int, ...], int], set[int]]:
        """By tensor type, the narrower and wider widths that some of its elements are sent in."""
        found: dict[tuple[tuple[int, ...], int], set[int]] = {}
        for (op, position), bits in self.read_bits.narrowed.items():
            found.setdefault(self.type_of(self.graph.ops[op].operands[position]), set()).add(bits)
        for value, bits in self.read_bits.widened.items():
            found.setdefault(self.type_of(value), set()).add(bits)
        return found

    def of(self, value: int, bits: int | None = None) -> ReshardTable:
        """Reshards of a value; of elements as they lie, if not said otherwise."""
        shape, own = self.type_of(value)
        return self.by_type[shape, own, own if bits is None else bits]

    def type_of(self, value: int) -> tuple[tuple[int, ...], int]:
        """The shape of a value and the bits of an element."""
        found = self.graph.values[value]
        return found.shape, found.bits

    def indices(
        self, candidates: tuple[Candidate, ...], is_result: bool, position: int, value: int
    ) -> IntArray:
        """int64[num_candidates]: the place of each one's layout of a value in its table."""
        table = self.of(value)

        def places() -> IntArray:
            return self._places(table, [c.side(is_result=is_result)[position] for c in candidates])

        return self._indices.get(places, candidates, table, key=(is_result, position))

    def of_read(self, read: SharedRead) -> IntArray:
        """int64[num_choices]: the place of the layout of each choice of a shared read."""
        table = self.of(read.value)

        return self._indices.get(lambda: self._places(table, read.layouts), table, read.layouts)

    def _places(self, table: ReshardTable, layouts: Iterable[Layout]) -> IntArray:
        """int64[num_layouts]: the place of each in a table; equal places are one array."""
        found = np.array([table.index[layout] for layout in layouts], dtype=np.int64)
        return self._distinct.setdefault(found.tobytes(), found)
