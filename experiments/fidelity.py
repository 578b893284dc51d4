"""What plans predict beside what XLA compiles, for every small workload on three meshes.

    python experiments/fidelity.py [--workloads mlp,gpt] [--meshes data=8;data=2,model=4]

Compiles on 8 host CPU devices and writes `experiments/results/fidelity.md`.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
).strip()

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import numpy as np

from experiments.planned_run import compiled_baseline_bytes, plan_and_compile, run_both
from experiments.results_table import markdown_table, write_page
from experiments.workloads import BASELINES, SMALL_WORKLOADS, get_workload

MESHES = "data=8;data=2,model=4;data=2,fsdp=2,model=2"


def measure(name: str, mesh: str) -> dict[str, Any]:
    """One row of the table."""
    workload = get_workload(name)
    run = plan_and_compile(workload, mesh, baselines=True)
    data = run.plan.data
    ours, alone = run_both(run)
    worst = max(
        float(np.max(np.abs(a.astype(np.float64) - b))) for a, b in zip(ours, alone, strict=True)
    )
    sizes = dict(part.split("=") for part in mesh.split(","))
    devices = jax.make_mesh(
        tuple(int(s) for s in sizes.values()),
        tuple(sizes),
        axis_types=(jax.sharding.AxisType.Auto,) * len(sizes),
    )
    by_hand = {}
    for kind in BASELINES[1:]:
        try:
            moved = compiled_baseline_bytes(workload, kind, devices)
            by_hand[kind] = f"{moved / 1e3:.0f}"
        except Exception as error:  # a hand plan that XLA refuses is a finding, not a failure
            by_hand[kind] = type(error).__name__
    times = {b.name: b.seconds / data.seconds for b in data.baselines}
    return {
        "workload": name,
        "mesh": mesh,
        "gap %": f"{100 * data.solver.gap:.2f}",
        "constraints": f"{len(run.plan.constraints)} of {len(data.values)}",
        "misses": len(data.misses),
        "kB planned": f"{run.comparison.predicted_bytes / 1e3:.1f}",
        "kB compiled": f"{run.comparison.compiled_bytes / 1e3:.1f}",
        "diff %": f"{run.comparison.difference_percent:+.1f}",
        "memory diff %": f"{100 * run.memory_error:+.1f}",
        "boundaries wrong": len(run.wrong_boundaries),
        "max abs diff": f"{worst:.1e}",
        **{f"{kind} kB": text for kind, text in by_hand.items()},
        **{f"{kind} time": f"{ratio:.2f}x" for kind, ratio in times.items()},
        "plan s": f"{run.seconds['plan']:.1f}",
        "constraints s": f"{run.seconds['constraints']:.1f}",
    }


def main() -> None:
    """Measure every point and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workloads", default=",".join(SMALL_WORKLOADS))
    parser.add_argument("--meshes", default=MESHES)
    options = parser.parse_args()
    rows = []
    for mesh in options.meshes.split(";"):
        for name in options.workloads.split(","):
            rows.append(measure(name, mesh))
            print(rows[-1], flush=True)
    text = markdown_table(rows) + (
        "\nkB: bytes per device through collectives in one step (larger side of each)."
        " memory diff: predicted peak over XLA's arguments + results - aliases + temporaries,"
        " less one. Hand plans: kB as XLA compiles them (arguments pinned by hand, the rest"
        " propagated), time as priced by the same cost model, relative to the plan.\n"
    )
    if options.workloads == ",".join(SMALL_WORKLOADS) and options.meshes == MESHES:
        print(f"wrote {write_page('fidelity', 'Plans beside compiled programs', text)}")


if __name__ == "__main__":
    main()
