"""Rows of the report for plans written by hand, and what it says of those without a row."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from autoshard.candidates.op_candidates import read_pins
from autoshard.planning.hand_prices import HandPrices
from autoshard.planning.solution import Solution
from autoshard.planning.stages import Stages
from autoshard.plans.plan import Baseline

_LOGGER = logging.getLogger("autoshard")


class HandBaselines(Sequence[Baseline]):
    """Rows of the report for the hand plans that were priced, which are lowered on first use.

    An interrupt while they are lowered ends that, and so does the end of the time for planning:
    rows that are not there yet are left out.
    Once the rows are there, the planning problem is let go.

    Args:
        prices: The hand plans.
        budget: Bytes per device allowed, or None.
        stages: Where to count the time.
    """

    def __init__(self, prices: HandPrices, budget: int | None, stages: Stages) -> None:
        self._priced, self._budget, self._stages = dict(prices.priced), budget, stages
        self._num_rows = len(self._priced)

    @cached_property
    def _rows(self) -> tuple[Baseline, ...]:
        rows = []
        try:
            with self._stages.time("baselines"):
                for name, one in self._priced.items():
                    if self._stages.is_over:
                        break
                    rows.append(self._row(name, one.solution))
        except KeyboardInterrupt:
            pass
        if left_out := ", ".join(list(self._priced)[len(rows) :]):
            _LOGGER.warning("planning is over: rows of plans by hand left out: %s", left_out)
        self._num_rows = len(rows)
        self._priced.clear()
        return tuple(rows)

    def _row(self, name: str, solution: Solution) -> Baseline:
        peak = solution.peak_bytes
        return Baseline(
            name=name,
            seconds=solution.estimate.blocking_seconds,
            collective_bytes=solution.estimate.collective_bytes,
            peak_bytes=peak,
            fits=self._budget is None or peak <= self._budget,
            overlapped_seconds=solution.overlapped_seconds,
        )

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __eq__(self, other: object) -> bool:
        return self._rows == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._rows)

    def __repr__(self) -> str:
        return repr(self._rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold the rows alone."""
        return tuple, (self._rows,)


def hand_plan_notes(solution: Solution, prices: HandPrices) -> tuple[str, ...]:
    """Notes on the hand plans that were not priced; none where all were."""
    notes = []
    if prices.refused:
        names = ", ".join(prices.refused)
        reason = "under what was asked" if _is_asked(solution) else "in this program"
        notes.append(f"not possible {reason}, and so not compared with: {names}")
    if prices.late:
        notes.append(
            f"not compared with {', '.join(prices.late)}: the time for plans written by hand was"
            " up; raise time_limit_seconds"
        )
    if "megatron" not in {*prices.priced, *prices.refused, *prices.late}:
        notes.append(
            "not compared with megatron: the program has no pair of weights to shard by columns and"
            " then by rows, in a size that the model axis divides"
        )
    return tuple(notes)


def _is_asked(solution: Solution) -> bool:
    """True where the user fixed the sharding of anything, or asked for any to be alike."""
    graph, wishes = solution.graph, solution.encoder.wishes
    return bool(read_pins(graph, solution.encoded.parts, wishes) or wishes.groups or graph.groups)
