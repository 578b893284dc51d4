"""Seconds of planning, before and now, in processor seconds.

    python experiments/planning_speed.py [--before REVISION] [--points NAME ...] [--limit FACTOR]

Each point runs in a process of its own, so that memory is its own and nothing is warm; those of the
earlier revision run beside them. Seconds are of processors, which another job on the machine hardly
changes. A point ends after a multiple of the seconds asked for, and is told as that. Writes
`experiments/results/planning_speed.md`, anew after every point.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")
Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """A program that is planned, and the seconds that this may take.

    Args:
        workload: Name.
        mesh: Of TPU v5p.
        asked: Processor seconds for the whole call.
        sizes: Fields of the workload's config to change.
        times_least: The memory budget, as a multiple of the least peak; None for the machine's.
        then: What follows the plan: `constraints`, `again` (planned again with and without a
            change) or `apply` (`plan.jit()` to lowered).
    """

    workload: str
    mesh: str
    asked: float
    sizes: Mapping[str, object] = field(default_factory=dict)
    times_least: float | None = None
    then: str = ""


_2D, _WIDE = "data=4,model=8", "data=16,model=16"
POINTS: dict[str, Point] = {
    "8B Llama, 32 layers": Point("llama_7b", _2D, 5, then="constraints"),
    "8B Llama, 32 layers, 3-D": Point("llama_7b", "data=2,fsdp=4,model=4", 10),
    "405B Llama, 4 layers": Point("llama3_405b", _WIDE, 4, {"layers": 4}),
    "405B Llama, 32 layers": Point("llama3_405b", _WIDE, 6, {"layers": 32}),
    "405B Llama, 126 layers": Point("llama3_405b", _WIDE, 12),
    "405B Llama, 126 layers, 32 sequences": Point("llama3_405b", _WIDE, 12, {"batch": 32}),
    "405B Llama, 126 layers, 3-D": Point("llama3_405b", "data=8,fsdp=16,model=16", 25),
    "405B Llama, 126 layers, 4-D": Point("llama3_405b", "pod=2,data=8,fsdp=16,model=16", 60),
    "DeepSeek-V3, 3-D": Point("deepseek_v3", "data=8,expert=16,model=16", 40),
    "Gemma 3 27B, 62 layers": Point("gemma3_27b", "data=8,model=8", 25, then="constraints"),
    "7B GPT, 32 layers, 1.02 x least": Point("gpt_7b", "data=8,model=8", 20, times_least=1.02),
    "8B Llama, 32 layers, 1.3 x least": Point("llama_7b", _2D, 8, times_least=1.3),
    "8B Llama, 32 layers, 1.1 x least": Point("llama_7b", _2D, 12, times_least=1.1),
    "8B Llama, 32 layers, again": Point("llama_7b", _2D, 5, then="again"),
    "8B Llama, 32 layers, applied": Point("llama_7b", _2D, 5, then="apply"),
}
_DEPTHS = tuple(name for name in POINTS if name.startswith("405B") and name.endswith("layers"))
GAP = 0.005
MOST_SOLVE_SECONDS = 180.0
"""The time limit of `optimize` if none is given."""
MOST_BYTES = 16 * 2**30
"""Of address space for one process."""
_START_SECONDS = 15.0  # of a process that imports JAX, and may compile kernels


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
    """Plan one workload in this process, and do what follows."""
    import autoshard
    from experiments.workloads import get_workload

    program = get_workload(point.workload, **point.sizes)

    def plan_with(**options: Any) -> Any:
        given = {"relative_gap": GAP, "time_limit_seconds": MOST_SOLVE_SECONDS, **options}
        return autoshard.optimize(
            program.step,
            program.state,
            program.batch,
            mesh=point.mesh,
            hardware="tpu-v5p",
            donate_argnums=program.donate_argnums,
            **given,
        )

    options: dict[str, Any] = {}
    if point.times_least is not None:  # an infeasible plan is one of the least peak
        leanest = plan_with(memory_budget=1, baselines=False, remat="keep")
        budget = int(point.times_least * leanest.data.memory.peak_bytes)
        options = {"memory_budget": budget, "remat": "keep"}
    with tempfile.TemporaryDirectory() as folder:
        if point.then == "again":
            options["cache"] = folder
        plan, seconds = timed(lambda: plan_with(**options))
        rows, of_rows = timed(lambda: list(plan.data.baselines))
        by_hand = [one.seconds for one in rows if one.fits]
        found: Found = {
            "seconds": seconds,
            "rows_seconds": of_rows,
            "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            "stages": dict(plan.data.stage_seconds),
            "ops": plan.data.solver.num_ops,
            "status": plan.data.solver.status,
            "gap": plan.data.solver.gap,
            "step_seconds": plan.data.seconds,
            "by_hand": min(by_hand, default=None),
        }
        if point.then == "again":
            return found | {"then": _again(plan, program, lambda: plan_with(**options), seconds)}
    if point.then:
        from autoshard.report.decision_rows import constraint_rows

        constraints, seconds = timed(lambda: plan.constraints)
        num_rows = len(list(constraint_rows(plan.data)))
        found["then"] = f"{len(constraints)} constraints ({num_rows} rows) in {seconds:.1f} s"
    if point.then == "apply":

        def apply(*, retraces: bool) -> Any:
            return plan.jit(retraces=retraces).lower(program.state, program.batch)

        found["then"] += f", applied in {timed(lambda: apply(retraces=True))[1]:.1f} s"
        found["then"] += (
            f", from the plan's trace in {timed(lambda: apply(retraces=False))[1]:.1f} s"
        )
    return found


def _again(plan: Any, program: Any, same: Callable[[], Any], first: float) -> str:
    """Seconds of planning the same call again, kept, with another batch and with one more pin."""
    import jax
    from jax.sharding import PartitionSpec

    _, trace = timed(lambda: jax.jit(program.step).trace(program.state, program.batch))
    _, kept = timed(same)
    batch = jax.tree.leaves(program.batch)[0].shape[program.batch_dim]
    _, other_batch = timed(lambda: plan.replan(batch=batch // 2, cache=False))
    pin = {"batch**": PartitionSpec("data")}
    _, one_pin = timed(lambda: plan.replan(constraints=pin, cache=False))
    return (
        f"same call {kept:.1f} s, {kept / trace:.1f} x a trace by JAX; other batch"
        f" {other_batch / first:.0%}, one more pin {one_pin / first:.0%} of the first call"
    )


def timed(run: Callable[[], T]) -> tuple[T, float]:
    """The result of a function, and the processor seconds of this process and its children."""

    def spent() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    began = spent()
    return run(), spent() - began


def compile_packages(tree: Path) -> None:
    """Write the bytecode that processes load, as an installer does."""
    packages = [str(tree / name) for name in ("autoshard", "cost_models", "solvers")]
    command = [sys.executable, "-m", "compileall", "-q", *packages]
    subprocess.run(command, check=True, env=_with_bytecode())


def take_packages_of(tree: Path) -> None:
    """Let the packages that are planned with come from a tree, and experiments from this one."""
    sys.path.insert(0, str(ROOT))
    importlib.import_module("experiments")
    sys.path[0] = str(tree)


def _with_bytecode() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run_point(name: str, limit: float, tree: Path = ROOT) -> Found | str:
    """Plan a point in a process of its own, with the packages of a tree; text where it fails."""
    point = POINTS[name]
    seconds = limit * point.asked * (1 if point.times_least is None else 3) + _START_SECONDS
    flags = "--xla_force_host_platform_device_count=32"
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--point", name, "--tree", str(tree)],
            env={**_with_bytecode(), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return f"none in {seconds:.0f} s"
    if done.returncode:
        print(f"{name}: failed\n{done.stderr[-2000:]}", file=sys.stderr)
        return "failed"
    found: Found = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def second_run(name: str, limit: float, tree: Path = ROOT) -> Found | str:
    """As `run_point`, once the kernels that the point takes are compiled in that tree."""
    first = run_point(name, limit, tree)
    return first if isinstance(first, str) else run_point(name, limit, tree)


def stages_text(found: Mapping[str, Any]) -> str:
    """Shares of the wall time by stage, as far as they are worth telling."""
    total = sum(found["stages"].values())
    shares = {stage: seconds / total for stage, seconds in found["stages"].items()}
    return ", ".join(f"{stage} {share:.0%}" for stage, share in shares.items() if share >= 0.02)


def row_of(name: str, before: Found | str, now: Found | str) -> dict[str, object]:
    """A row of the table; a point that failed or ran out of time says so."""
    point = POINTS[name]

    def told(found: Found | str, text: Callable[[Found], str]) -> str:
        return found if isinstance(found, str) else text(found)

    row: dict[str, object] = {
        "program": name,
        "mesh": point.mesh,
        "asked, s": f"{point.asked:.0f}",
        "before, s": told(before, lambda found: f"{found['seconds']:.1f}"),
        "now, s": told(now, lambda found: f"{found['seconds']:.1f}"),
        "rows, s": told(now, lambda found: f"{found['rows_seconds']:.1f}"),
        "then, before": told(before, lambda found: found.get("then", "")),
        "then, now": told(now, lambda found: found.get("then", "")),
    }
    if not isinstance(now, str):
        over_hand = now["step_seconds"] / now["by_hand"] if now["by_hand"] else None
        row |= {
            "by stage": stages_text(now),
            "ops": now["ops"],
            "status": now["status"],
            "gap %": f"{100 * now['gap']:.2f}",
            "step ms": f"{1e3 * now['step_seconds']:.1f}",
            "over best by hand": "" if over_hand is None else f"{over_hand:.3f}",
            "peak GiB": f"{now['peak_gib']:.2f}",
        }
    if not isinstance(before, str):
        row["step before, ms"] = f"{1e3 * before['step_seconds']:.1f}"
    return row


COLUMNS = (
    "program",
    "mesh",
    "asked, s",
    "before, s",
    "now, s",
    "rows, s",
    "then, before",
    "then, now",
    "by stage",
    "ops",
    "status",
    "gap %",
    "step ms",
    "step before, ms",
    "over best by hand",
    "peak GiB",
)


def seconds_per_layer(found: Mapping[str, Found | str]) -> str:
    """Processor seconds for each added layer between points that differ in depth alone."""
    known = [(POINTS[name], found[name]) for name in _DEPTHS if name in found]
    measured = [
        (int(str(point.sizes.get("layers", 126))), one["seconds"])
        for point, one in known
        if not isinstance(one, str)
    ]
    steps = pairwise(measured)
    return ", ".join(
        f"{first} to {last} layers {(after - before) / (last - first):.3f} s"
        for (first, before), (last, after) in steps
    )


def main() -> None:
    """Measure every point and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--before", default="HEAD^", help="the earlier revision; none: no such")
    parser.add_argument("--points", nargs="*", default=list(POINTS), help="names, all if not given")
    parser.add_argument("--limit", type=float, default=2.0, help="of wall time, times those asked")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    parser.add_argument("--tree", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        take_packages_of(options.tree)
        print(json.dumps(measure(POINTS[options.point])))
        return
    if options.before == "none":
        measure_all(options.points, options.limit, None, "")
    else:
        with tree_at(options.before) as tree:
            measure_all(options.points, options.limit, tree, options.before)


def measure_all(names: list[str], limit: float, tree: Path | None, revision: str) -> None:
    """Write the table of these points, row by row.

    Args:
        names: Of the points.
        limit: Wall seconds of a point, times those asked for.
        tree: Of the earlier revision.
        revision: Its name.
    """
    sys.path.insert(0, str(ROOT))
    from experiments.results_table import markdown_table, write_page

    for one in (ROOT, *(() if tree is None else (tree,))):
        compile_packages(one)
    rows, before_by_name, now_by_name = [], {}, {}
    for name in names:
        before: Found | str = "not run"
        if tree is not None:
            before = second_run(name, limit, tree)
        before_by_name[name], now_by_name[name] = before, second_run(name, limit)
        row = row_of(name, before, now_by_name[name])
        rows.append({column: row.get(column, "") for column in COLUMNS})
        print(row, flush=True)
        depth = "".join(
            f"\nFor each added layer, {when}: {text}.\n"
            for when, found in (("before", before_by_name), ("now", now_by_name))
            if (text := seconds_per_layer(found))
        )
        text = markdown_table(rows) + depth
        text += (
            f"\nBefore is {revision or 'not run'}. Seconds are of processors; a gap of"
            f" {100 * GAP} % is asked for; plans by hand are priced too, and their rows of the"
            " report take the seconds of their own column once somebody reads them; constraints of"
            " equal layers share a row. Every point is a fresh"
            f" process that ends after {limit:g} times the seconds asked for, of wall time (three"
            " times that where the least peak is sought first, which does not count). It runs"
            " twice in each tree and the second run is told: Numba's kernels come from its cache"
            " on disk, as Python's bytecode does; the first plan on a machine compiles them.\n"
        )
        path = write_page("planning_speed", "Planning time, trace to plan", text)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
