"""What a table of predicted and compiled figures comes to: bands, ranks, best plans, misses."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from scipy.stats import spearmanr

from experiments.compiled_point import OPTIMIZED, TIGHT

Row = Mapping[str, Any]

BYTES_BANDS = (0.05, 0.15)
MEMORY_BANDS = (0.10, 0.20)
SECONDS_BANDS = (0.10, 0.20)
TOO_LOW = -0.10


def difference(row: Row, what: str) -> float | None:
    """Predicted over compiled, less one; None where one of them is not there."""
    predicted, compiled = row.get(f"predicted_{what}"), row.get(f"compiled_{what}")
    if predicted is None or compiled is None:
        return None
    if compiled == 0:
        return 0.0 if predicted == 0 else math.inf
    return float(predicted / compiled - 1)


def share_within(rows: Iterable[Row], what: str, band: float) -> tuple[int, int]:
    """How many plans differ by no more than a band, and of how many."""
    found = [d for d in (difference(row, what) for row in rows) if d is not None]
    return sum(abs(d) <= band for d in found), len(found)


def share_too_low(rows: Iterable[Row], what: str) -> tuple[int, int]:
    """How many plans are predicted lower than compiled by more than `TOO_LOW`, and of how many."""
    found = [d for d in (difference(row, what) for row in rows) if d is not None]
    return sum(d < TOO_LOW for d in found), len(found)


ALL_CHIPS = "all"


def rank_correlations(
    rows: Iterable[Row], compiled: str, *, across_meshes: bool = True
) -> dict[tuple[str, ...], float]:
    """Spearman's rank correlation of step times within each model.

    A group of fewer than three plans is left out.

    Args:
        rows: Of the table.
        compiled: The column of the compiler's estimate.
        across_meshes: Plans on all meshes of a chip count together, by workload and chip, and those
            on all chips under `ALL_CHIPS`, where there are several; else only plans on one mesh of
            a chip do, by workload, chip and mesh.
    """
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        predicted = _predicted_for(row, compiled)
        if predicted is None or row.get(compiled) is None:
            continue
        pair = (predicted, row[compiled])
        if across_meshes:
            groups[row["workload"], row["chip"]].append(pair)
            groups[row["workload"], ALL_CHIPS].append(pair)
        elif row["plan"] != TIGHT:
            groups[row["workload"], row["chip"], row["mesh"]].append(pair)
    num_chips = Counter(group[0] for group in groups)
    return {
        group: float(spearmanr(*zip(*pairs, strict=True)).statistic)
        for group, pairs in groups.items()
        if len(pairs) > 2 and not (group[1] == ALL_CHIPS and num_chips[group[0]] == 2)
    }


def best_against_best(rows: Iterable[Row], compiled: str) -> list[dict[str, Any]]:
    """For each model, mesh and chip: the plan predicted best beside the one compiled best."""
    found = []
    for (workload, mesh, chip), group in _by_setting(rows, compiled).items():
        predicted = min(group, key=lambda row: _predicted_for(row, compiled) or math.inf)
        best = min(group, key=lambda row: row[compiled])
        found.append(
            {
                "workload": workload,
                "mesh": mesh,
                "chip": chip,
                "predicted best": predicted["plan"],
                "compiled best": best["plan"],
                "ratio": predicted[compiled] / best[compiled],
            }
        )
    return found


def optimized_over_hand(rows: Iterable[Row], compiled: str) -> list[dict[str, Any]]:
    """For each model, mesh and chip: the optimized plan over the best by hand that fits."""

    def planned(row: Row) -> list[tuple[float, str]]:
        is_by_hand = row["plan"] != OPTIMIZED and row.get("fits", True)
        return [(row[compiled], row["plan"])] if is_by_hand else []

    return _optimized_over(rows, compiled, "best by hand", planned)


def optimized_over_written(rows: Iterable[Row], compiled: str) -> list[dict[str, Any]]:
    """For each model, mesh and chip: the optimized plan over the best as written that fits.

    Args:
        rows: Of the table; those of plans by hand hold what became of them as written.
        compiled: The column of the compiler's estimate.
    """

    def written(row: Row) -> list[tuple[float, str]]:
        return [
            (way[compiled], row["plan"] + (", pinned" if way["pins"] else ""))
            for way in row.get("as_written", ())
            if way["fits"] and compiled in way
        ]

    return _optimized_over(rows, compiled, "best as written", written)


def _optimized_over(
    rows: Iterable[Row],
    compiled: str,
    best: str,
    others: Callable[[Row], list[tuple[float, str]]],
) -> list[dict[str, Any]]:
    """The optimized plan, where it fits, over the shortest of others: seconds and names by row."""
    found = []
    for (workload, mesh, chip), group in _by_setting(rows, compiled).items():
        ours = [row for row in group if row["plan"] == OPTIMIZED and row.get("fits", True)]
        timed = [other for row in group for other in others(row)]
        if ours and timed:
            seconds, name = min(timed, key=itemgetter(0))
            found.append(
                {
                    "workload": workload,
                    "mesh": mesh,
                    "chip": chip,
                    best: name,
                    "ratio": ours[0][compiled] / seconds,
                }
            )
    return found


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def misses(rows: Iterable[Row], what: str, band: float) -> list[Row]:
    """Plans beyond a band, the largest difference first."""
    beyond = [row for row in rows if (d := difference(row, what)) is not None and abs(d) > band]
    return sorted(beyond, key=lambda row: -abs(difference(row, what) or 0.0))


def _predicted_for(row: Row, compiled: str) -> float | None:
    """The prediction that a column of the compiler's estimate is held against."""
    column = "predicted_overlapped" if compiled == "overlapped_seconds" else "predicted_seconds"
    found = row.get(column)
    return None if found is None else float(found)


def _by_setting(rows: Iterable[Row], compiled: str) -> dict[tuple[str, str, str], list[Row]]:
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        seconds = _predicted_for(row, compiled), row.get(compiled)
        if row["plan"] != TIGHT and None not in seconds:
            groups[row["workload"], row["mesh"], row["chip"]].append(row)
    return {key: group for key, group in groups.items() if len(group) > 1}


def counted(share: tuple[int, int]) -> str:
    """`12 of 14 (86 %)`."""
    inside, total = share
    return f"{inside} of {total} ({100 * inside / total:.0f} %)" if total else "none"
