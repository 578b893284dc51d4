"""Refined plans beside the plans they started from and plans by hand, all as compiled.

    python experiments/refined.py [--cells rnn,moe] [--targets v5e:2x4] [--rounds 3] [--minutes 5]
        [--seconds 1800] [--keep-in FOLDER] [--page-only]

Every cell is a program on a target; what was found is kept in `experiments/results/refined.jsonl`,
and the same command goes on where it was stopped. Writes `experiments/results/refined.md`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import autoshard
from experiments.bench_compiled import SIZES
from experiments.results_table import RESULTS, markdown_table, provenance, write_page
from experiments.workloads import get_workload

FOUND = RESULTS / "refined.jsonl"
AT_START = provenance()
MACHINES = {"v5e:2x4": "tpu-v5e", "v5e:4x4": "tpu-v5e", "v5p:2x2x2": "tpu-v5p", "8xH100": "h100"}
MESHES = {8: "data=2,model=4", 16: "data=4,model=4"}
NUM_DEVICES = {"v5e:2x4": 8, "v5e:4x4": 16, "v5p:2x2x2": 8, "8xH100": 8}
CELLS = ("mlp", "rnn", "moe", "embedding", "gpt", "gpt_scan", "gnn", "unet", "decode")


def refined_cell(name: str, target: str, options: argparse.Namespace) -> dict[str, Any]:
    """What refining one program for one target found."""
    workload = get_workload(name, **SIZES.get(name, {}))
    began = time.monotonic()
    plan = autoshard.optimize(
        workload.step,
        workload.state,
        workload.batch,
        mesh=MESHES[NUM_DEVICES[target]],
        hardware=MACHINES[target],
        donate_argnums=workload.donate_argnums,
        time_limit_seconds=30.0,
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
        "sizes": SIZES.get(name, {}),
        "commit": AT_START["commit"],
        "plan_seconds": planned,
        "refine_seconds": time.monotonic() - began - planned,
        "record": asdict(record),
    }


def row_of(found: dict[str, Any]) -> dict[str, str]:
    """A cell as a row of the table."""
    tried = found["record"]["tried"]
    compiled = [one for one in tried if one["compiled_seconds"] is not None and one["fits"]]
    first = next((one for one in compiled if one["name"] == "optimized"), None)
    by_hand = [one for one in compiled if one["name"].endswith(("as written", "pinned"))]
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
    table = [row_of(row) for row in rows]
    worst = [float(row["/ by hand"]) for row in table if row["/ by hand"] != "-"]
    gained = [float(row["/ optimized"]) for row in table if row["/ optimized"] != "-"]
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    parts = [
        f"{len(rows)} cells were run, at {commits}, of {len(CELLS) * len(MACHINES)} that the"
        " command knows. Seconds are those of one step as compiled: the compiler's cycles over the"
        " clock and the compiled collectives on the links. *By hand* is the fastest of the plans by"
        " hand of the report, as written or with activations pinned, that compiled within the"
        " memory budget.\n",
        f"Refined over by hand: worst {max(worst):.3f}, geometric mean {_mean(worst):.3f}. Refined"
        f" over the plan as it was: geometric mean {_mean(gained):.3f}; not faster on"
        f" {sum(one > 0.999 for one in gained)} of {len(gained)}.\n"
        if worst and gained
        else "",
        markdown_table(table),
        "\n## Round by round\n",
    ]
    for row in rows:
        parts.append(f"\n### {row['cell']} on {row['target']}\n")
        parts.append(markdown_table([_tried(one) for one in row["record"]["tried"]]))
    return "\n".join(parts)


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


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--targets", default=",".join(MACHINES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--keep-in", type=Path)
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args()
    rows = [json.loads(line) for line in FOUND.read_text().splitlines()] if FOUND.exists() else []
    known = {(row["cell"], row["target"]) for row in rows}
    until = time.monotonic() + options.seconds
    for target in options.targets.split(","):
        for name in options.cells.split(","):
            if options.page_only or (name, target) in known or time.monotonic() > until:
                continue
            print(f"{name} on {target}", file=sys.stderr, flush=True)
            rows.append(refined_cell(name, target, options))
            with FOUND.open("a") as file:
                file.write(json.dumps(rows[-1], sort_keys=True) + "\n")
    write_page("refined", "Refined plans as compiled", page(rows))


if __name__ == "__main__":
    main()
