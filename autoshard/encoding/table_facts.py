"""What a table of reshards says of its layouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np
import numpy.typing as npt

from autoshard.layouts import MeshParts
from autoshard.reshard import ReshardTable, cut_from, sent_from


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts of tables on one mesh; each is found once."""

    parts: MeshParts
    _moves: dict[int, tuple[ReshardTable, npt.NDArray[np.bool_]]] = field(default_factory=dict)
    _sent_from: dict[int, tuple[ReshardTable, npt.NDArray[np.int64]]] = field(default_factory=dict)
    _cut_from: dict[int, tuple[ReshardTable, npt.NDArray[np.int64]]] = field(default_factory=dict)
    _pieces: dict[int, tuple[ReshardTable, npt.NDArray[np.int64]]] = field(default_factory=dict)

    def moves(self, table: ReshardTable) -> npt.NDArray[np.bool_]:
        """bool[num_layouts, num_layouts]: whether a reshard is more than cutting further."""
        if id(table) not in self._moves:
            self._moves[id(table)] = table, _moves_data(table)
        return self._moves[id(table)][1]

    def sent_from(self, table: ReshardTable) -> npt.NDArray[np.int64]:
        """As of `reshard.sent_from`."""
        if id(table) not in self._sent_from:
            self._sent_from[id(table)] = table, sent_from(table)
        return self._sent_from[id(table)][1]

    def cut_from(self, table: ReshardTable) -> npt.NDArray[np.int64]:
        """As of `reshard.cut_from`."""
        if id(table) not in self._cut_from:
            self._cut_from[id(table)] = table, cut_from(table)
        return self._cut_from[id(table)][1]

    def pieces(self, table: ReshardTable) -> npt.NDArray[np.int64]:
        """int64[num_layouts]: into how many pieces each layout cuts a value."""
        if id(table) not in self._pieces:
            number = [self.parts.num_pieces(layout) for layout in table.layouts]
            self._pieces[id(table)] = table, np.array(number, dtype=np.int64)
        return self._pieces[id(table)][1]


def _moves_data(table: ReshardTable) -> npt.NDArray[np.bool_]:
    """bool[num_layouts, num_layouts]: whether a reshard is more than cutting further."""
    size = len(table.layouts)
    moved = np.ones((size, size), dtype=np.bool_)
    for end, layout in enumerate(table.layouts):
        prefixes = [[dim[:length] for length in range(len(dim) + 1)] for dim in layout]
        for coarser in product(*prefixes):
            start = table.index.get(coarser)
            if start is not None:
                moved[start, end] = False
    return moved
