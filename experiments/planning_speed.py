"""Seconds of planning, before and now, by layers and mesh dimensions.

    python experiments/planning_speed.py [--before REVISION] [--points NAME ...]

Each point runs in a process of its own, so that memory is its own and nothing is warm; those of the
earlier revision run beside them. Seconds are of processors, which another job on the machine hardly
changes. Writes `experiments/results/planning_speed.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")
Found = dict[str, Any]
Point = tuple[str, dict[str, object], str, str]
"""Workload, sizes to change, mesh and hardware."""

POINTS: dict[str, Point] = {
    "7B GPT, 32 layers scanned": ("gpt_7b_scan", {}, "data=8,model=8", "tpu-v5p"),
    "8B Llama, 32 layers unrolled": ("llama_7b", {}, "data=4,model=8", "tpu-v5p"),
    "8B Llama, 4 layers unrolled": ("llama_7b", {"layers": 4}, "data=4,model=8", "tpu-v5p"),
    "8B Llama, 8 layers unrolled": ("llama_7b", {"layers": 8}, "data=4,model=8", "tpu-v5p"),
    "8B Llama, 16 layers unrolled": ("llama_7b", {"layers": 16}, "data=4,model=8", "tpu-v5p"),
    "8B Llama, 4 layers, 1-D mesh": ("llama_7b", {"layers": 4}, "data=32", "tpu-v5p"),
    "8B Llama, 4 layers, 3-D mesh": (
        "llama_7b",
        {"layers": 4},
        "data=2,fsdp=4,model=4",
        "tpu-v5p",
    ),
    "Gemma 3 27B, 62 layers unrolled": ("gemma3_27b", {}, "data=8,model=8", "tpu-v5p"),
    "405B Llama, 126 layers unrolled": ("llama3_405b", {}, "data=16,model=16", "tpu-v5p"),
}
MOST_SOLVE_SECONDS = 600.0
"""Of wall time, for the solver: so long that a busy machine does not cut a search."""
MOST_BYTES = 16 * 2**30
"""Of address space for one process."""


@contextmanager
def tree_at(revision: str) -> Iterator[Path]:
    """A checkout of a revision, as long as it is used."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "-q", str(tree), revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def measure(point: Point) -> Found:
    """Plan one workload in this process, and look for its constraints."""
    import autoshard
    from experiments.workloads import get_workload

    workload, overrides, mesh, hardware = point
    program = get_workload(workload, **overrides)
    plan, seconds = timed(
        lambda: autoshard.optimize(
            program.step,
            program.state,
            program.batch,
            mesh=mesh,
            hardware=hardware,
            donate_argnums=program.donate_argnums,
            baselines=False,
            time_limit_seconds=MOST_SOLVE_SECONDS,
        )
    )
    found = {
        "seconds": seconds,
        "stages": dict(plan.data.stage_seconds),
        "ops": plan.data.solver.num_ops,
        "reduced_nodes": plan.data.solver.reduced_nodes,
        "reduced_columns": plan.data.solver.reduced_columns,
        "status": plan.data.solver.status,
        "gap": plan.data.solver.gap,
        "step_seconds": plan.data.seconds,
    }
    constraints, seconds = timed(lambda: plan.constraints)
    untried = any("may be superfluous" in note for note in plan.data.notes)
    return found | {
        "constraints": len(constraints),
        "constraint_seconds": seconds,
        "is_minimal": not untried,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def timed(run: Callable[[], T]) -> tuple[T, float]:
    """The result of a function, and the processor seconds of this process and its children."""

    def spent() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    began = spent()
    return run(), spent() - began


def run_point(point: Point, tree: Path = ROOT) -> Found | None:
    """Plan a point in a process of its own, with the packages of a tree; None where it fails."""
    done = subprocess.run(
        [sys.executable, __file__, "--point", json.dumps(point), "--tree", str(tree)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"{point}: failed\n{done.stderr[-2000:]}", file=sys.stderr)
        return None
    found: Found = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def stages_text(found: Mapping[str, Any]) -> str:
    """Shares of the wall time by stage, as far as they are worth telling."""
    total = sum(found["stages"].values())
    shares = {stage: seconds / total for stage, seconds in found["stages"].items()}
    return ", ".join(f"{stage} {share:.0%}" for stage, share in shares.items() if share >= 0.02)


def row_of(name: str, mesh: str, before: Found | None, now: Found | None) -> dict[str, object]:
    """A row of the table; what failed has no figures."""

    def told(found: Found | None, text: Callable[[Found], str]) -> str:
        return "failed" if found is None else text(found)

    def constraints(found: Found) -> str:
        unsure = "" if found["is_minimal"] else ", not known to be minimal"
        return f"{found['constraint_seconds']:.1f} s, {found['constraints']}{unsure}"

    row: dict[str, object] = {
        "program": name,
        "mesh": mesh,
        "plan before, s": told(before, lambda found: f"{found['seconds']:.1f}"),
        "plan now, s": told(now, lambda found: f"{found['seconds']:.1f}"),
        "constraints before": told(before, constraints),
        "constraints now": told(now, constraints),
        "peak GiB before": told(before, lambda found: f"{found['peak_gib']:.2f}"),
        "peak GiB now": told(now, lambda found: f"{found['peak_gib']:.2f}"),
    }
    if now is not None:
        row |= {
            "by stage": stages_text(now),
            "ops": now["ops"],
            "after presolve": f"{now['reduced_nodes']} ops, {now['reduced_columns']} columns",
            "status": now["status"],
            "gap %": f"{100 * now['gap']:.2f}",
            "predicted step ms": f"{1e3 * now['step_seconds']:.1f}",
        }
    if before is not None:
        row["predicted before, ms"] = f"{1e3 * before['step_seconds']:.1f}"
    return row


def main() -> None:
    """Measure every point and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--before", default="HEAD^", help="the earlier revision")
    parser.add_argument("--points", nargs="*", default=list(POINTS), help="names, all if not given")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    parser.add_argument("--tree", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        sys.path.insert(0, str(options.tree))
        import autoshard  # noqa: F401  (of that tree, whose workloads may be fewer)

        sys.path[0] = str(ROOT)
        print(json.dumps(measure(json.loads(options.point))))
        return
    sys.path.insert(0, str(ROOT))
    from experiments.results_table import markdown_table, write_page

    rows = []
    with tree_at(options.before) as tree:
        run_point(POINTS["8B Llama, 4 layers, 1-D mesh"], tree)  # compiles that tree's kernels
        for name in options.points:
            point = POINTS[name]
            rows.append(row_of(name, point[2], run_point(point, tree), run_point(point)))
            print(rows[-1], flush=True)
    text = markdown_table(rows) + (
        f"\nBefore is {options.before}. Seconds are of processors. Every point is a fresh process;"
        " Numba's kernels come from its cache on disk. The very first plan on a machine compiles"
        " them, which takes some seconds more.\n"
    )
    path = write_page("planning_speed", "Planning time, trace to plan", text)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
