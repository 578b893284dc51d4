"""Refined plans beside the plans they started from and plans by hand, all as compiled.

    python experiments/refined.py [--cells rnn,moe] [--targets v5e:2x4] [--budgets 1.02,1.1,1.3]
        [--rounds 3] [--minutes 5] [--seconds 1800] [--keep-in FOLDER] [--page-only]

Every cell is a program on a target; what was found is kept in `experiments/results/refined.jsonl`,
and the same command goes on where it was stopped. With `--budgets`, cells that were refined without
a memory budget are refined again with so many times the least peak that any of their plans compiled
to. With `--targets measure` programs of the size of tests are run on 8 devices of this machine
(`XLA_FLAGS=--xla_force_host_platform_device_count=8`). Writes `experiments/results/refined.md`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import autoshard
from experiments.evaluation import SIZES
from experiments.results_table import RESULTS, markdown_table, provenance, write_page
from experiments.workloads import get_workload

FOUND = RESULTS / "refined.jsonl"
TOLD = RESULTS / "refined_told.md"
AT_START = provenance()
MACHINES = {"v5e:2x4": "tpu-v5e", "v5p:2x2x2": "tpu-v5p", "8xH100": "h100"}
MEASURE = "measure"
CYCLES = "compiler's cycles and links"
MESH = "data=2,model=4"
_LEAST_SHARE, _LEAST_PROGRAMS = 0.01, 3
CELLS = tuple(SIZES)


def refined_cell(
    name: str, target: str, options: argparse.Namespace, budget: int | None = None
) -> dict[str, Any]:
    """What refining one program for one target found."""
    sizes = {} if target == MEASURE else SIZES[name]
    workload = get_workload(name, **sizes)
    began = time.monotonic()
    plan = autoshard.optimize(
        workload.step,
        workload.state,
        workload.batch,
        mesh=MESH,
        hardware=MACHINES.get(target, "cpu-host"),
        donate_argnums=workload.donate_argnums,
        time_limit_seconds=90.0,
        memory_budget=budget,
    )
    planned = time.monotonic() - began
    refined = plan.refine(
        target,
        rounds=options.rounds,
        minutes=options.minutes,
        keep_in=options.keep_in,
        progress=lambda line: print(f"  {line}", file=sys.stderr, flush=True),
    )
    record = refined.data.refinement
    assert record is not None
    return {
        "cell": name,
        "target": target,
        "sizes": dict(sizes),
        "commit": AT_START["commit"],
        "plan_seconds": planned,
        "refine_seconds": time.monotonic() - began - planned,
        "record": asdict(record),
        "ops": _by_name(refined),
    }


def _by_name(plan: autoshard.Plan) -> dict[str, tuple[float, float]]:
    """By name of an op, seconds priced and compiled of all choices that were compiled."""
    assert plan.corrections is not None
    found: dict[str, tuple[float, float]] = {}
    for one in plan.corrections.corrections.choices:
        name = one.op.rpartition(":")[2].partition("#")[0]
        priced, compiled = found.get(name, (0.0, 0.0))
        found[name] = priced + one.priced, compiled + one.priced + one.seconds
    return found


def row_of(found: dict[str, Any]) -> dict[str, str]:
    """A cell as a row of the table."""
    tried = found["record"]["tried"]
    compiled = _compiled(tried)
    first = next((one for one in compiled if one["name"] == "optimized"), None)
    by_hand = _named(compiled, ("as written", "pinned"))
    chosen = found["record"]["chosen"]
    best = None if chosen is None else tried[chosen]
    return {
        "program": found["cell"],
        "target": found["target"],
        "optimized": _milliseconds(first),
        "best by hand": _milliseconds(_fastest(by_hand)),
        "refined": _milliseconds(best),
        "it is": "none" if best is None else f"{best['name']}, round {best['round']}",
        "/ by hand": _ratio(best, _fastest(by_hand)),
        "/ optimized": _ratio(best, first),
        "compiles": str(len(tried)),
        "minutes": f"{(found['refine_seconds']) / 60:.1f}",
        "ended": found["record"]["ended"],
    }


def budget_row_of(found: dict[str, Any], unlimited: dict[str, Any]) -> dict[str, str]:
    """A cell with a memory budget as a row of the table."""
    record = found["record"]
    chosen = record["chosen"]
    best = None if chosen is None else record["tried"][chosen]
    peak = None if best is None else best["compiled_bytes"] / record["memory_budget"]
    free = unlimited["record"]["tried"][unlimited["record"]["chosen"]]
    return {
        "program": found["cell"],
        "target": found["target"],
        "times the least": f"{found['times']:g}",
        "budget": f"{record['memory_budget'] / 1e6:,.0f} MB",
        "compiled peak / budget": "none fits" if peak is None else f"{peak:.3f}",
        "it is": "none" if best is None else f"{best['name']}, round {best['round']}",
        "step / without a budget": _ratio(best, free),
        "misses by": f"{record['missing_bytes'] / 1e6:,.1f} MB" if best is None else "",
    }


def _compiled(tried: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in tried if one["compiled_seconds"] is not None and one["fits"]]


def _named(tried: list[dict[str, Any]], endings: tuple[str, ...]) -> list[dict[str, Any]]:
    """Plans whose name, or that of a plan that is the same program, ends so."""
    return [
        one for one in tried if any(name.endswith(endings) for name in (one["name"], *one["also"]))
    ]


def _fastest(tried: list[dict[str, Any]]) -> dict[str, Any] | None:
    return min(tried, key=lambda one: float(one["compiled_seconds"]), default=None)


def _milliseconds(one: dict[str, Any] | None) -> str:
    return "-" if one is None else f"{1e3 * one['compiled_seconds']:.3g} ms"


def _ratio(one: dict[str, Any] | None, other: dict[str, Any] | None) -> str:
    if one is None or other is None:
        return "-"
    return f"{one['compiled_seconds'] / other['compiled_seconds']:.3f}"


def page(rows: list[dict[str, Any]]) -> str:
    """The page: the table, what it says over all cells, and every round."""
    limited = [row for row in rows if "times" in row]
    measured = [row for row in rows if row["target"] == MEASURE]
    rows = [row for row in rows if "times" not in row and row["target"] != MEASURE]
    cells = {(row["cell"], row["target"]): row for row in rows}
    table = [row_of(row) for row in rows]
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    parts = [
        f"{len(rows)} cells were run, at {commits}, of {len(CELLS) * len(MACHINES)} that the"
        " command knows. Seconds are those of one step as compiled: for TPUs the compiler's cycles"
        " over the clock and the compiled collectives on the links; for GPUs, whose compiler tells"
        " none, the planned step and the difference of the collectives on the links, as far as the"
        " plan does not hide them."
        " *By hand* is the fastest of the plans by hand of the report, as written or with"
        " activations pinned, that compiled within the memory budget. Programs that an earlier run"
        " of the same cell had compiled were kept, and took no time again.\n",
        markdown_table(list(_summary(table))),
        _not_helped(table),
        _cut(table),
        markdown_table(table),
        _told(),
        _budgets([budget_row_of(row, cells[row["cell"], row["target"]]) for row in limited]),
        _measured([measured_row_of(row) for row in measured]),
        _faults(rows),
        "\n## Round by round\n",
    ]
    for row in rows:
        parts.append(f"\n### {row['cell']} on {row['target']}\n")
        parts.append(markdown_table([_tried(one) for one in row["record"]["tried"]]))
    return "\n".join(parts)


def _summary(table: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """What the cells of each target say, and all of them."""
    for target in [*dict.fromkeys(row["target"] for row in table), "all"]:
        own = [row for row in table if target in (row["target"], "all")]
        over_hand, over_first = _ratios(own, "/ by hand"), _ratios(own, "/ optimized")
        yield {
            "target": target,
            "cells": str(len(own)),
            "nothing compiled": str(sum(row["refined"] == "-" for row in own)),
            "refined / by hand": _mean(over_hand),
            "worst": f"{max(over_hand, default=math.nan):.3f}",
            "refined / optimized": _mean(over_first),
            "faster than optimized": f"{sum(one < 0.999 for one in over_first)} of"
            f" {len(over_first)}",
            "compiles": str(sum(int(row["compiles"]) for row in own)),
            "minutes": f"{sum(float(row['minutes']) for row in own):.0f}",
        }


def _ratios(table: list[dict[str, str]], column: str) -> list[float]:
    return [float(row[column]) for row in table if row[column] != "-"]


def _not_helped(table: list[dict[str, str]]) -> str:
    """The cells that refining left as they were, and those where nothing compiled."""
    same = _cells(
        row for row in table if row["/ optimized"] != "-" and float(row["/ optimized"]) >= 0.999
    )
    none = _cells(row for row in table if row["refined"] == "-")
    return f"Not faster than the plan as it was: {same}. Nothing compiled: {none}.\n"


def _cut(table: list[dict[str, str]]) -> str:
    return f"Cut by their minutes: {_cells(row for row in table if 'were over' in row['ended'])}.\n"


def _cells(rows: Iterable[dict[str, str]]) -> str:
    return ", ".join(f"{row['program']} on {row['target']}" for row in rows) or "no cell"


def _told() -> str:
    """What was read in the rounds by somebody, with the commit that it was read at."""
    return f"\n{TOLD.read_text()}" if TOLD.exists() else ""


def _budgets(table: list[dict[str, str]]) -> str:
    if not table:
        return ""
    fit = sum(row["it is"] != "none" for row in table)
    return (
        "\n## Memory budgets\n\nThe budget is so many times the least peak that any plan of the"
        f" cell compiled to. A plan came back that fits as compiled in {fit} of {len(table)}; in"
        f" the others the result says that none was found.\n\n{markdown_table(table)}"
    )


def _faults(rows: list[dict[str, Any]]) -> str:
    """Ops that several programs take otherwise than priced, by what they add to these programs."""
    ratios: dict[tuple[str, str], list[float]] = {}
    shares: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["record"]["measure"] != CYCLES:
            continue
        whole = sum(priced for priced, _ in row.get("ops", {}).values())
        for name, (priced, compiled) in row.get("ops", {}).items():
            if priced >= _LEAST_SHARE * whole:
                key = (row["target"], name)
                ratios.setdefault(key, []).append(max(compiled, 0.0) / priced)
                shares.setdefault(key, []).append(abs(compiled - priced) / whole)
    table = [
        {
            "target": target,
            "op": name,
            "programs": str(len(found)),
            "compiled / priced, median": f"{statistics.median(found):.2f}",
            "least": f"{min(found):.2f}",
            "most": f"{max(found):.2f}",
            "of the computing, mean": f"{100 * statistics.mean(shares[target, name]):.1f} %",
        }
        for (target, name), found in ratios.items()
        if len(found) >= _LEAST_PROGRAMS and statistics.mean(shares[target, name]) >= _LEAST_SHARE
    ]
    if not table:
        return ""
    table.sort(key=lambda row: -float(row["of the computing, mean"].split()[0]))
    return (
        "\n## What repeats over programs\n\nOps that take at least a hundredth of the priced"
        f" computing of {_LEAST_PROGRAMS} programs or more: seconds as compiled over seconds as"
        " priced, and how much of the computing the difference is; what the step waits for"
        " collectives beside the plan is laid to them too. For TPUs alone: the others tell no"
        " seconds of ops. These are faults of the model.\n"
        f"\n{markdown_table(table)}"
    )


def measured_row_of(found: dict[str, Any]) -> dict[str, str]:
    """A program that was run as a row of the table."""
    tried = found["record"]["tried"]
    by_hand = _fastest(_named(_compiled(tried), ("as written",)))
    chosen = found["record"]["chosen"]
    best = None if chosen is None else tried[chosen]
    return {
        "program": found["cell"],
        "refined": _with_spread(best),
        "it is": "none" if best is None else f"{best['name']}, round {best['round']}",
        "best by hand": _with_spread(by_hand),
        "/ by hand": _ratio(best, by_hand),
        "plans run": str(len(tried)),
        "ended": found["record"]["ended"],
    }


def _with_spread(one: dict[str, Any] | None) -> str:
    return "-" if one is None else f"{_milliseconds(one)} +- {1e3 * one['spread_seconds']:.2g} ms"


def _measured(table: list[dict[str, str]]) -> str:
    if not table:
        return ""
    return (
        "\n## Run on this machine\n\nSmall programs on 8 devices of this machine's processor, which"
        " had other work: the median of 5 runs or more, and the median distance from it. A plan is"
        " called faster only beyond both spreads; of plans that are as fast the one with the fewest"
        f" constraints is returned, so a ratio above 1 is within them.\n\n{markdown_table(table)}"
    )


def _tried(one: dict[str, Any]) -> dict[str, str]:
    compiled = one["compiled_seconds"] is not None
    return {
        "round": str(one["round"]),
        "plan": one["name"],
        "predicted": f"{1e3 * one['predicted_seconds']:.3g} ms",
        "compiled": _milliseconds(one) if compiled else one["status"],
        "peak": f"{one['compiled_bytes'] / 1e6:,.0f} MB" if compiled else "-",
        "constraints": str(one["num_constraints"]),
        "why": one["why"],
    }


def _mean(ratios: list[float]) -> str:
    """The geometric mean."""
    return f"{statistics.geometric_mean(ratios):.3f}" if ratios else "-"


def _asked(
    options: argparse.Namespace, rows: list[dict[str, Any]], until: float
) -> Iterator[tuple[str, str, float | None, int | None]]:
    """Cells that were not run yet: program, target, times the least peak, memory budget."""
    known = {(row["cell"], row["target"], row.get("times")): row for row in rows}
    every = itertools.product(options.targets.split(","), options.cells.split(","))
    for target, name in every:
        unlimited = known.get((name, target, None))
        wanted: list[tuple[float | None, int | None]] = [(None, None)]
        if options.budgets and unlimited is not None:
            compiled = _compiled(unlimited["record"]["tried"])
            least = min((one["compiled_bytes"] for one in compiled), default=0)
            wanted = [(float(one), int(float(one) * least)) for one in options.budgets.split(",")]
        for times, budget in wanted:
            if options.page_only or time.monotonic() > until:
                return
            if budget != 0 and (name, target, times) not in known:
                yield name, target, times, budget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--targets", default=",".join(MACHINES))
    parser.add_argument("--budgets", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--keep-in", type=Path)
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args()
    rows = [json.loads(line) for line in FOUND.read_text().splitlines()] if FOUND.exists() else []
    for cell in _asked(options, rows, time.monotonic() + options.seconds):
        name, target, times, budget = cell
        print(f"{name} on {target}", file=sys.stderr, flush=True)
        found = refined_cell(name, target, options, budget)
        rows.append(found if times is None else {**found, "times": times})
        with FOUND.open("a") as file:
            file.write(json.dumps(rows[-1], sort_keys=True) + "\n")
    write_page("refined", "Refined plans as compiled", page(rows))


if __name__ == "__main__":
    main()
