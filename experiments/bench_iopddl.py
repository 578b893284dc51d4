"""The solvers on the contest's instances and on autoshard's own problems, as two tables.

    python experiments/bench_iopddl.py [--instances G,B] [--folder ../shared/iopddl]
        [--share 1.0] [--own all|none|NAME,...] [--seed 0]

Contest instances run through `autoshard solve` at the contest's time limits (times `--share`), each
in a fresh process, reading included; the cost is recomputed here from the printed choices. Own
problems are planned as a user would, each in a fresh process. Each table has a page, written after
each row: `experiments/results/iopddl.md` where all instances were asked for at full limits,
`experiments/results/own_problems.md` where all own problems were.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

OWN = [
    # name, workload, overrides, mesh, limit: the hardware's, or that many times the least peak
    ("gpt-7b 32 layers scanned 2-D", "gpt_7b_scan", {}, "data=8,model=8", None),
    ("llama-8b 4 layers 2-D", "llama_7b", {"layers": 4}, "data=4,model=8", None),
    ("llama-8b 4 layers 3-D", "llama_7b", {"layers": 4}, "data=2,fsdp=4,model=4", None),
    ("llama-8b 32 layers 2-D", "llama_7b", {}, "data=4,model=8", None),
    ("llama-8b 32 layers 3-D", "llama_7b", {}, "data=2,fsdp=4,model=4", None),
    ("gpt-7b 32 layers 2-D", "gpt_7b", {}, "data=8,model=8", None),
    ("llama-8b 4 layers 2-D 1.3x", "llama_7b", {"layers": 4}, "data=4,model=8", 1.3),
    ("llama-8b 4 layers 2-D 1.1x", "llama_7b", {"layers": 4}, "data=4,model=8", 1.1),
    ("llama-8b 4 layers 2-D 1.02x", "llama_7b", {"layers": 4}, "data=4,model=8", 1.02),
    ("llama-8b 32 layers 2-D 1.3x", "llama_7b", {}, "data=4,model=8", 1.3),
    ("llama-8b 32 layers 2-D 1.1x", "llama_7b", {}, "data=4,model=8", 1.1),
    ("gpt-7b 32 layers 2-D 1.1x", "gpt_7b", {}, "data=8,model=8", 1.1),
    ("gpt-7b 32 layers 2-D 1.02x", "gpt_7b", {}, "data=8,model=8", 1.02),
    ("moe 2-D", "moe", {}, "data=2,model=4", None),
    ("unet 2-D", "unet", {}, "data=2,model=4", None),
    ("gnn 2-D", "gnn", {}, "data=2,model=4", None),
    ("embedding 3-D", "embedding", {}, "x=2,y=2,z=2", None),
    ("llama-8b 4 layers 3-D 1.1x", "llama_7b", {"layers": 4}, "data=2,fsdp=4,model=4", 1.1),
]

HARDWARE = "tpu-v5p"
GAP = 0.005
OWN_SECONDS = 10.0
MOST_SECONDS = 150.0
"""For one of autoshard's own problems, the search for its least peak included."""

_MODEL = re.compile(r"model of (\d+) columns")
_PROGRESS = re.compile(r"^ *(\d+\.\d) s  .*cost (\d+), bound (\d+)")


def solve_instance(path: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Runs the command on one instance and says what it printed and took."""
    command = "from autoshard.cli import main; main(prog_name='autoshard')"
    arguments = ["solve", str(path), "--timeout", str(seconds), "--seed", str(seed)]
    script = f"import sys; sys.argv[0] = 'autoshard'; {command}"
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:  # a pipe would fill up while we read progress
        process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        first = best = None
        best_cost = None
        lines = []
        for line in process.stderr:
            lines.append(line.rstrip())
            found = _PROGRESS.match(line)
            if found:
                passed, cost = float(found[1]), int(found[2])
                first = passed if first is None else first
                if best_cost is None or cost < best_cost:
                    best, best_cost = passed, cost
        process.wait()
        output.seek(0)
        printed = output.read().strip().splitlines()
    return {
        "choices": json.loads(printed[-1]) if printed else None,
        "total": time.monotonic() - began,
        "first": first,
        "best": best,
        "lines": lines,
    }


def bench_instance(folder: Path, name: str, share: float, seed: int) -> dict[str, Any]:
    """One row of the first table."""
    from solvers import evaluate
    from solvers.formats import read_iopddl

    known = json.loads((folder / "best_known.json").read_text())["instances"][name]
    path = folder / f"asplos-2025-iopddl-{name}.json.gz"
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    limit = known["timeout_s"] * share
    found = solve_instance(path, limit, seed)
    peak = max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    problem = read_iopddl(path)
    row = {
        "instance": name,
        "nodes": problem.num_nodes,
        "edges": len(problem.edges),
        "limit s": f"{limit:g}",
        "our cost": "none",
        "points": "0",
        "bound": "",
        "gap %": "",
        "first feasible s": "" if found["first"] is None else f"{found['first']:.1f}",
        "best s": "" if found["best"] is None else f"{found['best']:.1f}",
        "total s": f"{found['total']:.1f}",
        "peak GiB": f"{peak / 2**20:.2f}",
    }
    if found["choices"] is None:
        print("\n".join(found["lines"]), file=sys.stderr)
        return row
    told = evaluate(problem, found["choices"])
    summary = next(line for line in reversed(found["lines"]) if line.startswith("cost "))
    bound = int(summary.split("bound ")[1].split(",")[0])
    if not told.is_allowed:
        row["our cost"] = f"{told.cost} (not allowed)"
        return row
    row |= {
        "our cost": told.cost,
        "points": f"{known['best_known_cost'] / told.cost:.4f}",
        "bound": bound,
        "gap %": f"{100 * (told.cost - bound) / told.cost:.3f}",
    }
    return row


def bench_own(name: str) -> dict[str, Any]:
    """One row of the second table; to be run in a fresh process."""
    _, workload, overrides, mesh, times_least = next(point for point in OWN if point[0] == name)
    budget: int | str = "auto"
    if times_least is not None:  # an infeasible plan is one of the least peak
        budget = int(times_least * _plan(workload, overrides, mesh, 1).data.memory.peak_bytes)
    stages = _StageSeconds()
    plan = _plan(workload, overrides, mesh, budget, stages)
    facts = plan.data.solver
    handed = [int(found[1]) for line in facts.log if (found := _MODEL.search(line))]
    presolve = stages.of("presolve")
    return {
        "problem": name,
        "mesh": mesh,
        "ops": facts.num_ops,
        "choices": facts.num_choices,
        "limit GB": f"{plan.data.memory_budget / 1e9:.2f}",
        "peak GB": f"{plan.data.memory.peak_bytes / 1e9:.2f}",
        "after presolve": facts.reduced_nodes,
        "columns after presolve": facts.reduced_columns,
        "columns for the exact engine": max(handed, default=0),
        "presolve s": f"{presolve:.1f}",
        "solve s": f"{plan.data.stage_seconds['solve'] - presolve:.1f}",
        "status": facts.status,
        "gap %": f"{100 * facts.gap:.3f}",
    }


class _StageSeconds:
    """Told of a solve's progress, adds up the time between the start of a stage and the next."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._stage = ""
        self._since = 0.0

    def __call__(self, progress: Any) -> None:
        if progress.stage != self._stage:
            passed = progress.seconds - self._since
            self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + passed
            self._stage, self._since = progress.stage, progress.seconds

    def of(self, start: str) -> float:
        """Seconds of the stages whose names start so, the last stage left out."""
        return sum(s for stage, s in self._seconds.items() if stage.startswith(start))


def _plan(
    workload: str,
    overrides: dict[str, Any],
    mesh: str,
    budget: int | str,
    progress: _StageSeconds | None = None,
) -> Any:
    import autoshard
    from experiments.workloads import get_workload

    program = get_workload(workload, **overrides)
    return autoshard.optimize(
        program.step,
        program.state,
        program.batch,
        mesh=mesh,
        hardware=HARDWARE,
        memory_budget=budget,
        donate_argnums=program.donate_argnums,
        relative_gap=GAP,
        time_limit_seconds=OWN_SECONDS + 60,
        baselines=False,
        progress=progress,
    )


def _own_in_a_fresh_process(name: str) -> dict[str, Any]:
    try:
        run = subprocess.run(
            [sys.executable, __file__, "--own-here", name],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {
            "problem": name,
            "status": f"no answer in {MOST_SECONDS:.0f} s, least peak included",
        }
    if run.returncode:
        print(f"{name}: failed\n{run.stderr[-2000:]}", file=sys.stderr)
        return {"problem": name, "status": "failed"}
    row: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    return row


def _instance_in_a_fresh_process(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """A process between, so that peak memory is that of this instance alone."""
    arguments = ["--instance-here", name, "--folder", str(options.folder)]
    arguments += ["--share", str(options.share), "--seed", str(options.seed)]
    run = subprocess.run(
        [sys.executable, __file__, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    row: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    return row


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=ROOT.parent / "shared" / "iopddl")
    parser.add_argument("--instances", default="all", help="letters, as in G,B; all; none")
    parser.add_argument("--own", default="all", help="names, all or none")
    parser.add_argument("--share", type=float, default=1.0, help="of the contest's time limits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--own-here", help=argparse.SUPPRESS)
    parser.add_argument("--instance-here", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measures what was asked for and writes the pages."""
    options = _parse()
    if options.own_here:
        print(json.dumps(bench_own(options.own_here)))
        return
    if options.instance_here:
        row = bench_instance(options.folder, options.instance_here, options.share, options.seed)
        print(json.dumps(row))
        return
    rows: list[dict[str, Any]] = []
    own: list[dict[str, Any]] = []
    for name in _instances(options):
        rows.append(_instance_in_a_fresh_process(options, name))
        print(rows[-1], flush=True)
        _write_contest(options, rows)
    for name in _chosen(options.own, [point[0] for point in OWN]):
        own.append(_own_in_a_fresh_process(name))
        print(own[-1], flush=True)
        _write_own(options, own)


def _write_contest(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Writes what is measured so far, where all instances were asked for at their full limits."""
    from experiments.results_table import markdown_table, write_page

    if options.instances != "all" or options.share != 1.0:
        return
    text = (
        f"{markdown_table(rows)}\n"
        "Points are the best known cost over ours; 1 equals it, more is better than it. All "
        "times are from the start of the process, reading included. With the extra `toulbar2` "
        "problems of few nodes that are joined widely (V) go on in it after a fifth of the time.\n"
    )
    write_page("iopddl", "Solvers: contest instances", text)


def _write_own(options: argparse.Namespace, own: list[dict[str, Any]]) -> None:
    """Writes what is measured so far, where all own problems were asked for."""
    from experiments.results_table import markdown_table, write_page

    if options.own != "all":
        return
    text = (
        f"{markdown_table(own)}\n"
        f"Asked for: a gap of {GAP:.1%} within {OWN_SECONDS:g} s after presolve. `solve s` is what "
        "comes after the first presolve, further ones at few rows included. `1.1x` is a limit of "
        "1.1 times the least peak the solver finds; without it the limit is the hardware's.\n"
    )
    write_page("own_problems", "Solvers: our own problems", text)


def _instances(options: argparse.Namespace) -> list[str]:
    if options.instances == "none":
        return []
    known = json.loads((options.folder / "best_known.json").read_text())["instances"]
    return _chosen(options.instances, list(known))


def _chosen(asked: str, there: list[str]) -> list[str]:
    if asked == "all":
        return there
    return [] if asked == "none" else asked.split(",")


if __name__ == "__main__":
    main()
