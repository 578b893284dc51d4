"""How long planning takes, by stage, and how it grows with layers and mesh dimensions.

    python experiments/planning_speed.py [--quick]

Each point runs in a process of its own, so that memory is its own and nothing is warm. Writes
`experiments/results/planning_speed.md`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

POINTS = [
    # name, workload, overrides, mesh, hardware
    ("7B GPT, 32 layers scanned", "gpt_7b_scan", {}, "data=8,model=8", "tpu-v5p"),
    ("8B Llama, 32 layers unrolled", "llama_7b", {}, "data=4,model=8", "tpu-v5p"),
    ("8B Llama, 4 layers unrolled", "llama_7b", {"layers": 4}, "data=4,model=8", "tpu-v5p"),
    ("8B Llama, 8 layers unrolled", "llama_7b", {"layers": 8}, "data=4,model=8", "tpu-v5p"),
    ("8B Llama, 16 layers unrolled", "llama_7b", {"layers": 16}, "data=4,model=8", "tpu-v5p"),
    ("8B Llama, 4 layers, 1-D mesh", "llama_7b", {"layers": 4}, "data=32", "tpu-v5p"),
    ("8B Llama, 4 layers, 3-D mesh", "llama_7b", {"layers": 4}, "data=2,fsdp=4,model=4", "tpu-v5p"),
]


def measure(
    workload: str, overrides: dict[str, object], mesh: str, hardware: str
) -> dict[str, object]:
    """Plan one workload in this process and say what it took."""
    import autoshard
    from experiments.workloads import get_workload

    program = get_workload(workload, **overrides)
    start = time.perf_counter()
    plan = autoshard.optimize(
        program.step,
        program.state,
        program.batch,
        mesh=mesh,
        hardware=hardware,
        donate_argnums=program.donate_argnums,
        baselines=False,
    )
    wall = time.perf_counter() - start
    return {
        "wall": wall,
        "stages": dict(plan.data.stage_seconds),
        "ops": plan.data.solver.num_ops,
        "choices": plan.data.solver.num_choices,
        "reduced_nodes": plan.data.solver.reduced_nodes,
        "reduced_columns": plan.data.solver.reduced_columns,
        "status": plan.data.solver.status,
        "gap": plan.data.solver.gap,
        "step_seconds": plan.data.seconds,
        "backend": plan.data.solver.backend,
        "peak_rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def run_point(point: Sequence[Any], tree: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Plan a point in a process of its own, with the code of a tree."""
    return subprocess.run(
        [
            sys.executable,
            str(tree / "experiments" / Path(__file__).name),
            "--point",
            json.dumps(point),
        ],
        capture_output=True,
        text=True,
        check=False,
    )


def found_by(run: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What the process of a point printed."""
    found: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    return found


def stages_text(found: Mapping[str, Any]) -> str:
    """Seconds by stage, as far as they are worth telling."""
    return ", ".join(f"{k} {v:.1f}" for k, v in found["stages"].items() if v >= 0.05)


def main() -> None:
    """Measure every point and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only the first point")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(measure(*json.loads(options.point))))
        return
    from experiments.results_table import markdown_table, write_page

    rows = []
    for name, *point in POINTS[:1] if options.quick else POINTS:
        run = run_point(point)
        if run.returncode:
            print(f"{name}: failed\n{run.stderr[-2000:]}", file=sys.stderr)
            rows.append({"program": name, "mesh": point[2], "wall s": "failed"})
            continue
        found = found_by(run)
        rows.append(
            {
                "program": name,
                "mesh": point[2],
                "wall s": f"{found['wall']:.1f}",
                "by stage, s": stages_text(found),
                "ops": found["ops"],
                "choices": found["choices"],
                "after presolve": f"{found['reduced_nodes']} ops",
                "columns": found["reduced_columns"],
                "status": found["status"],
                "gap %": f"{100 * found['gap']:.2f}",
                "predicted step ms": f"{1e3 * found['step_seconds']:.1f}",
                "peak GiB": f"{found['peak_rss_gib']:.2f}",
            }
        )
        print(rows[-1], flush=True)
    if not options.quick:
        text = markdown_table(rows) + (
            "\nEvery point is a fresh process; Numba's kernels come from its cache on disk. The"
            " very first plan on a machine compiles them, which takes some seconds more.\n"
        )
        path = write_page("planning_speed", "Planning time, trace to plan", text)
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
