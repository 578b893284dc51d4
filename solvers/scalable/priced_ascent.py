"""Lower bounds with the memory limit priced: message passing, and prices that follow its answers.

Formula: for prices ``p[r] >= 0`` per byte and row, every allowed answer x has ::

    cost(x)  >=  min_y (cost(y) + sum_r p[r] * held[r](y))  -  sum_r p[r] * limit

The minimum over y is bounded by `solvers.kernels.ascend`. All of it is whole numbers: costs times
a power of two, prices times usages rounded down, the limit's share rounded up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solvers.kernels import FlatGraph, FloatArray, ascend, compiled, decode
from solvers.problem import IntArray
from solvers.saturating import FORBIDDEN_FROM
from solvers.scalable.layout import FlatMemory, Layout

CAP = 2.0**47
"""Costs from here up are lowered to it: an answer with one is beyond all that are looked for."""

SCALE_BITS = 43
"""The expected cost of an answer is scaled to this many bits."""

_SAFE = 1 - 2.0**-44  # makes up for the roundings of a product of three doubles


@dataclass(frozen=True, slots=True, eq=False)
class AscentState:
    """Where an ascent stood, to go on from there.

    Args:
        prices: float64[rows].
        base_costs: float64[choices]: scaled, without prices; `CAP` where a choice was taken out.
        costs: float64[choices]: with prices.
        slack: float64[choices].
        messages: float64[message entries].
        constant: Moved into the bound so far.
    """

    prices: FloatArray
    base_costs: FloatArray
    costs: FloatArray
    slack: FloatArray
    messages: FloatArray
    constant: float

    @property
    def num_bytes(self) -> int:
        arrays = (self.prices, self.base_costs, self.costs, self.slack, self.messages)
        return sum(array.nbytes for array in arrays)


class PricedAscent:
    """A problem's costs and prices, redistributed so far, and the bound that proves.

    Args:
        layout: The problem.
        expected_cost: About what answers cost; only the resolution depends on it.

    Attributes:
        prices: float64[rows]: cost per byte.
        bound: No allowed answer costs less; 0 before the first sweep.
    """

    def __init__(self, layout: Layout, expected_cost: float) -> None:
        self.layout = layout
        self.bound = 0
        self.prices = np.zeros(layout.memory.num_rows)
        graph = layout.graph
        self._shift = SCALE_BITS - max(1, math.ceil(math.log2(max(2.0, expected_cost))))
        self._base_costs = self._scaled(graph.costs)
        self._base_tables = self._scaled(graph.tables)
        self._price_of_limit = 0
        self._constant = 0.0
        self._slack = self._base_costs.copy()
        self._messages = np.zeros(int(layout.num_choices[_owners(graph)].sum()))
        self._reach = np.zeros(len(self._slack))
        self._work = np.zeros(int(layout.num_choices.max(initial=1)))
        order = np.arange(len(layout.num_choices), dtype=np.int64)
        self._directions = ((order, order), (order[::-1].copy(), order[::-1].copy()))
        self._graph = graph._replace(
            costs=self._base_costs.copy(), tables=self._base_tables.copy(), cap=CAP
        )

    def _scaled(self, costs: FloatArray) -> FloatArray:
        scaled = np.minimum(np.floor(np.ldexp(costs, self._shift)), CAP)
        scaled[costs >= FORBIDDEN_FROM] = CAP
        return scaled

    def set_prices(self, prices: FloatArray) -> None:
        """Takes other prices, rounded so that sums of them are exact; messages are kept."""
        memory = self.layout.memory
        total = float(prices.sum())
        bits = 50 - (math.ceil(math.log2(total)) if total > 0 else 0)
        units = np.floor(np.ldexp(np.maximum(prices, 0.0), bits))
        self.prices = np.ldexp(units, -bits)
        summed = np.concatenate(([0.0], np.cumsum(units)))
        costs = self._base_costs.copy()
        tables = self._graph.tables
        if (memory.half >= 0).any():
            tables[:] = self._base_tables
        unit = math.ldexp(_SAFE, self._shift - bits)
        add_prices(self.layout.graph, memory, summed, unit, costs, tables)
        np.minimum(costs, CAP, out=costs)
        self._slack += costs - self._graph.costs
        self._graph.costs[:] = costs
        product = int(units.sum()) * memory.limit
        power = self._shift - bits
        self._price_of_limit = product << power if power >= 0 else -(-product >> -power)

    def energies(self, share: float = 1.0) -> tuple[FloatArray, FloatArray]:
        """Returns node and edge costs, unscaled, with a share of the prices in them."""
        graph, memory = self.layout.graph, self.layout.memory
        summed = np.concatenate(([0.0], np.cumsum(self.prices))) * share
        costs, tables = graph.costs.copy(), graph.tables
        if (memory.half >= 0).any():
            tables = tables.copy()
        add_prices(graph, memory, summed, 1.0, costs, tables)
        return costs, tables

    def sweep(self) -> list[IntArray]:
        """Passes over all nodes there and back; returns the answers read off after each pass."""
        found = []
        for (order, rank), (back, back_rank) in (self._directions, self._directions[::-1]):
            self._constant = ascend(
                self._graph,
                order,
                rank,
                self._slack,
                self._messages,
                self._reach,
                self._constant,
                self._work,
            )
            choices = np.zeros(len(order), dtype=np.int64)
            decode(self._graph, back, back_rank, self._messages, choices, self._work)
            found.append(choices)
        self.bound = max(self.bound, self.current_bound())
        return found

    def state(self) -> AscentState:
        """Copies what the next sweeps start from."""
        return AscentState(
            self.prices.copy(),
            self._base_costs.copy(),
            self._graph.costs.copy(),
            self._slack.copy(),
            self._messages.copy(),
            self._constant,
        )

    def go_back(self, state: AscentState) -> None:
        """Goes on from a state."""
        self._base_costs = state.base_costs.copy()
        self._graph.costs[:] = state.costs
        self._slack[:] = state.slack
        self._messages[:] = state.messages
        self._constant = state.constant
        self.set_prices(state.prices)

    def take_out(self, is_out: npt.NDArray[np.bool_]) -> None:
        """Forbids choices from here on: bounds then hold for answers without them."""
        self._base_costs = np.where(is_out, CAP, self._base_costs)
        self.set_prices(self.prices)

    def is_in(self) -> npt.NDArray[np.bool_]:
        """Returns bool[choices]: those not forbidden and not taken out."""
        return self._base_costs < CAP

    def beyond(self, cost: float) -> npt.NDArray[np.bool_]:
        """Sweeps twice; returns bool[choices]: no answer with that choice costs `cost` or less."""
        self.sweep()  # Reach counts only once all slack is non-negative at the present prices.
        self._reach[:] = -np.inf
        self.sweep()
        most = math.ldexp(cost, self._shift) + self._price_of_limit
        return self._reach > most * (1 + 2.0**-40) + 1.0

    def current_bound(self) -> int:
        """The bound at the present prices."""
        scaled = int(self._constant) - self._price_of_limit
        return -(-scaled >> self._shift) if self._shift >= 0 else scaled << -self._shift


def _owners(graph: FlatGraph) -> IntArray:
    return np.repeat(np.arange(len(graph.half_start) - 1), np.diff(graph.half_start))


@compiled
def add_prices(
    graph: FlatGraph,
    memory: FlatMemory,
    summed: FloatArray,
    unit: float,
    costs: FloatArray,
    tables: FloatArray,
) -> None:
    """Adds what usages cost to node and edge costs.

    Args:
        graph: For where choices and tables begin.
        memory: The usages.
        summed: float64[rows + 1]: prices of all rows before each.
        unit: What a price is multiplied by; 1 for no rounding, else products are rounded down.
        costs: float64[choices]; updated.
        tables: float64[entries]; updated where pairs hold memory.
    """
    for node in range(len(graph.node_start) - 1):
        start = graph.node_start[node]
        num_choices = graph.node_start[node + 1] - start
        for term in range(memory.term_start[node], memory.term_start[node + 1]):
            weight = (summed[memory.stop_row[term]] - summed[memory.first_row[term]]) * unit
            if weight <= 0.0:
                continue
            first = memory.usage_start[term]
            far = memory.far[term]
            if far < 0:
                for y in range(num_choices):
                    costs[start + y] += _rounded(weight * memory.usages[first + y], unit)
            else:
                at = graph.half_table[memory.half[term]]
                for k in range(num_choices * (graph.node_start[far + 1] - graph.node_start[far])):
                    tables[at + k] += _rounded(weight * memory.usages[first + k], unit)


@compiled
def _rounded(price: float, unit: float) -> float:
    return price if unit == 1.0 else np.floor(price)
