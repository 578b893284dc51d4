"""What plans predict beside what the TPU and GPU compilers make of them.

    python experiments/bench_compiled.py [--workloads t5,clip] [--chips v5e,h100] [--meshes 4x4,2x4]
        [--plans optimized,fsdp] [--seconds 3600] [--jobs 2] [--keep-in FOLDER]
        [--quick] [--dirty] [--page-only]

Plans each program that judges the model (`experiments/evaluation.py`) on each mesh, by the
optimizer and by hand, and compiles it ahead of time (extras `autoshard[tpu]` and
`autoshard[gpu-verify]`; no accelerator is needed). Every point runs in a process of its own and is
kept with its commit in `experiments/results/compiled.jsonl`: the same command at the same commit
goes on where it was stopped. With little time (`--seconds`) the first points of a good order are
measured: workloads, chips and meshes are covered as evenly as they can be. Writes the page and the
scatter plot of what was measured at this commit. A working tree with changes is refused, or by
`--dirty` marked in every row.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cost_models import get_hardware
from experiments.compiled_order import best_first
from experiments.compiled_page import page_text, write_scatter
from experiments.compiled_point import OPTIMIZED, TIGHT, CompiledPoint
from experiments.evaluation import CELLS, HARDWARE, SIZES
from experiments.results_table import RESULTS, provenance, write_page
from experiments.workloads import BASELINES, get_workload

ROOT = Path(__file__).resolve().parent.parent
AT_START = provenance()

MESHES = {"2x4": "data=2,model=4", "4x4": "data=4,model=4"}
PLANS = (OPTIMIZED, TIGHT, *BASELINES)
TOPOLOGY = {
    ("v5e", 8): "v5e:2x4",
    ("v5e", 16): "v5e:4x4",
    ("v5p", 8): "v5p:2x2x2",
    ("v6e", 8): "v6e:2x4",
    ("v4", 8): "v4:2x2x2",
    ("tpu7x", 8): "tpu7x:2x2x1",
    ("h100", 8): "8xH100",
    ("b200", 8): "8xB200",
}
NO_ANSWER = "no answer in time"
QUICK = {"workloads": "serve,clip", "meshes": "2x4", "chips": "v5e", "plans": "optimized,fsdp"}
NAME, TITLE = "compiled", "Plans of programs that nothing was fitted on"
ROWS = RESULTS / f"{NAME}.jsonl"


def points(options: argparse.Namespace) -> Iterator[CompiledPoint]:
    """All that was asked for."""
    for chip, mesh in CELLS:
        if chip not in _asked(options.chips, HARDWARE) or mesh not in _asked(
            options.meshes, MESHES
        ):
            continue
        num_devices = _num_devices(mesh)
        for workload in _asked(options.workloads, SIZES):
            for plan in options.plans.split(","):
                if "megatron" in plan and not _has_megatron(workload):
                    continue
                yield CompiledPoint(
                    workload=workload,
                    sizes=SIZES[workload],
                    mesh=MESHES[mesh],
                    topology=TOPOLOGY[chip, num_devices],
                    hardware=HARDWARE[chip],
                    plan=plan,
                    windowed_einsum=options.windowed,
                )


def _asked(names: str | None, known: Iterable[str]) -> tuple[str, ...]:
    return tuple(known) if names is None else tuple(names.split(","))


def _num_devices(mesh: str) -> int:
    number = 1
    for size in mesh.split("x"):
        number *= int(size)
    return number


def _has_megatron(workload: str) -> bool:
    return get_workload(workload).megatron is not None


def measure_apart(
    point: CompiledPoint, seconds: float, keep_in: Path | None = None
) -> dict[str, Any]:
    """Measure a point in a process of its own."""
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "experiments.compiled_point",
                *([] if keep_in is None else [str(keep_in.resolve())]),
            ],
            input=json.dumps(asdict(point)),
            capture_output=True,
            text=True,
            timeout=seconds,
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"status": NO_ANSWER, "wall_seconds": seconds}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"status": f"exit code {done.returncode}: {done.stderr.strip()[-200:]}"}
    row: dict[str, Any] = json.loads(lines[-1])
    return row | {"wall_seconds": time.perf_counter() - start}


def known_rows(path: Path, commit: str) -> dict[str, dict[str, Any]]:
    """What was found so far at a commit, by point; of two rows the later."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return {row["point"]: row for row in rows if row["commit"] == commit}


def row_of(point: CompiledPoint, found: dict[str, Any]) -> dict[str, Any]:
    """A row of the table: the point, what was found, and whether it fits its budget."""
    chip = next(chip for chip, name in HARDWARE.items() if name in point.hardware)
    machine = get_hardware(point.hardware).memory
    room = found.get("budget") or machine.capacity_bytes - machine.reserved_bytes

    def fits(what: dict[str, Any]) -> bool:
        held = what.get("compiled_memory")
        return held is not None and held <= room

    if "as_written" in found:
        found = {**found, "as_written": [{**way, "fits": fits(way)} for way in found["as_written"]]}
    return {
        "point": point.key,
        "workload": point.workload,
        "mesh": point.mesh,
        "chip": chip,
        "plan": point.plan,
        "windowed": point.windowed_einsum,
        "fits": fits(found),
        "commit": AT_START["commit"],
        **found,
    }


def measure_missing(options: argparse.Namespace, known: dict[str, dict[str, Any]]) -> None:
    """Measure what is not known yet, several points at a time, and keep each row at once."""
    deadline = time.monotonic() + options.seconds

    def measured(point: CompiledPoint) -> dict[str, Any] | None:
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        found = measure_apart(point, min(options.point_seconds, left), options.keep_in)
        if left < options.point_seconds and found["status"] == NO_ANSWER:
            return None
        return row_of(point, found)

    missing = [
        point
        for point in best_first(points(options))
        if (before := known.get(point.key)) is None
        or (options.again and "compiled_bytes" not in before)
    ]
    with ThreadPoolExecutor(options.jobs) as jobs:
        for number, row in enumerate(jobs.map(measured, missing)):
            if row is None:
                print(f"out of time, {len(missing) - number} left; the same command goes on here")
                return
            known[row["point"]] = row
            with ROWS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(_line(row), flush=True)


def main() -> None:
    """Measure what is missing and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workloads", help="all by default")
    parser.add_argument("--meshes", help=f"of {', '.join(MESHES)}, by default those of each cell")
    parser.add_argument("--chips", help=f"of {', '.join(HARDWARE)}, by default those of each cell")
    parser.add_argument("--plans", default=",".join(PLANS))
    parser.add_argument("--windowed", action="store_true", help="leave windowed einsums on")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--jobs", type=int, default=1, help="points measured at a time")
    parser.add_argument("--keep-in", type=Path, help="a folder for compiled programs")
    parser.add_argument("--point-seconds", type=float, default=900.0)
    parser.add_argument("--quick", action="store_true", help=f"a subset: {QUICK}")
    parser.add_argument("--again", action="store_true", help="measure failed points again")
    parser.add_argument("--dirty", action="store_true", help="measure uncommitted code, marked")
    parser.add_argument("--page-only", action="store_true")
    parser.add_argument(
        "--commit",
        action="append",
        help="of the rows on the page, this one's by default; repeatable, of a point the last",
    )
    options = parser.parse_args()
    if options.quick:
        for name, value in QUICK.items():
            setattr(options, name, value)
    if not options.page_only:
        if AT_START["commit"].endswith("-dirty") and not options.dirty:
            parser.error("the working tree has changes: commit them, or pass --dirty")
        measure_missing(options, known_rows(ROWS, AT_START["commit"]))
    commits = options.commit or [AT_START["commit"]]
    last = {key: row for one in commits for key, row in known_rows(ROWS, one).items()}
    rows = [*last.values()]
    picture = RESULTS / f"{NAME}.svg"
    figure = write_scatter(rows, picture) if _can_draw() else None
    page = write_page(NAME, TITLE, page_text(rows, figure))
    print(f"wrote {page}")


def _can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def _line(row: dict[str, Any]) -> str:
    shown = [row["chip"], row["mesh"], row["workload"], row["plan"], row["status"]]
    shown += [
        f"{what} {row[f'predicted_{what}']:.4g}/{row[f'compiled_{what}']:.4g}"
        for what in ("bytes", "memory", "seconds")
        if f"compiled_{what}" in row
    ]
    return "  ".join(shown)


if __name__ == "__main__":
    main()
