"""The compiled loops in the order a solve needs them; run as a program it compiles them all.

Numba keeps what it compiled in a folder, from which every later process reads it. So whoever
compiles them first spares all others the seconds that takes. The program writes the name of each
stage once that is done, and ends when its input does.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import numpy as np

from solvers.class_bound import ClassBound
from solvers.compile_ahead import BOUND, PRICED_BOUND, REGIONS, WALK, mark
from solvers.dual_ascent import DualAscent
from solvers.presolve.alike import alike
from solvers.problem import Edge, NodeMemory, Problem
from solvers.scalable.annealer import Annealer
from solvers.scalable.block_moves import move_regions
from solvers.scalable.layout import lay_out
from solvers.scalable.priced_ascent import PricedAscent
from solvers.scalable.region_factors import make_tables

_TWO = np.array([1, 2])
_EXAMPLE = Problem(
    node_costs=(_TWO, _TWO),
    edges=(Edge(0, 1, np.array([[0, 1], [1, 0]])),),
    node_memory=(NodeMemory(0, 0, 1, _TWO),),
    memory_limit=5,
)
_CHOICES = np.zeros(2, dtype=np.int64)


def _walk() -> None:
    """Moves of trees: what the first answer takes."""
    layout = lay_out(_EXAMPLE, 1)
    annealer = Annealer(layout, 0, lambda: False)
    annealer.move(annealer.start(_CHOICES), layout.graph.costs, layout.graph.tables, 1)


def _priced_bound() -> None:
    """Message passing with prices."""
    ascent = PricedAscent(lay_out(_EXAMPLE, 1), 3.0)
    ascent.sweep()
    ascent.energies()


def _bound() -> None:
    """Message passing without memory, by node and by class, and moves of forests."""
    ascent = DualAscent(_EXAMPLE)
    choices = ascent.descended(ascent.candidates()[0])
    ascent.approximate_cost(ascent.moved_forest(choices, np.random.default_rng(0)))
    ClassBound(_EXAMPLE, alike(_EXAMPLE, 1)).sweep()


def _regions() -> None:
    """Moves of regions."""
    layout = lay_out(_EXAMPLE, 1)
    graph, size = layout.graph, 16
    walk = Annealer(layout, 0, lambda: False).start(_CHOICES)
    tables = make_tables(layout, size)
    roots = np.arange(2, dtype=np.int64)
    move_regions(
        graph, layout.memory, graph.costs, graph.tables, walk, tables, roots, 1, 0.0, 2, size
    )


STAGES: dict[str, Callable[[], None]] = {
    WALK: _walk,
    PRICED_BOUND: _priced_bound,
    BOUND: _bound,
    REGIONS: _regions,
}


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


def main() -> None:
    """Compiles stage after stage."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    for name, run in STAGES.items():
        run()
        print(name, flush=True)
    mark().touch()


if __name__ == "__main__":
    main()
