"""What choosing residuals is worth where memory binds: steps of programs nothing was fitted on.

    python experiments/memory_planning.py [--only NAME] [--compile]

Each cell is a program on a machine with a memory budget, planned three ways: as it is written
without `jax.checkpoint`, with `jax.checkpoint` around every layer, and with the residuals that
`optimize(remat="auto")` chooses for the first. `--compile` adds what the compiler makes of plans.
Writes `experiments/results/memory_planning.md`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import autoshard
from experiments.results_table import markdown_table, write_page
from experiments.workloads.gpt import GptConfig
from experiments.workloads.gpt import build as gpt
from experiments.workloads.llama import LlamaConfig
from experiments.workloads.llama import build as llama

_WAYS = ("as written", "full remat", "chosen")
_TIME_LIMIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Cell:
    """A program, where it runs, and what a device may hold.

    Args:
        name: Of the program.
        build: Builds it from its sizes.
        config: Its sizes, without rematerialisation.
        mesh: Of the machine.
        hardware: The machine.
        topology: To compile for.
        budget: As `optimize` takes it.
    """

    name: str
    build: Any
    config: Any
    mesh: str
    hardware: str
    topology: str
    budget: str


_LLAMA = LlamaConfig(
    layers=32,
    d_model=4096,
    heads=32,
    num_kv_heads=8,
    d_ff=14336,
    vocab=128256,
    seq=2048,
    batch=32,
    scan=True,
    compute_dtype="bfloat16",
)
_GPT = GptConfig(
    layers=24,
    d_model=2048,
    heads=16,
    d_ff=8192,
    vocab=50304,
    seq=1024,
    batch=32,
    scan=True,
    compute_dtype="bfloat16",
)
_ON_16, _ON_8 = ("data=4,model=4", "tpu-v5e", "v5e:4x4"), ("data=4,model=2", "tpu-v5e", "v5e:2x4")

CELLS = (
    Cell("llama 8B, scanned", llama, _LLAMA, *_ON_16, budget="auto"),
    Cell("gpt 1.3B, scanned", gpt, _GPT, *_ON_8, budget="auto"),
)


def planned(cell: Cell, way: str) -> tuple[autoshard.Plan, float]:
    """The plan of a cell, and how long planning took."""
    workload = cell.build(cell.name, replace(cell.config, remat=way == "full remat"))
    start = time.perf_counter()
    plan = autoshard.optimize(
        workload.step,
        workload.state,
        workload.batch,
        mesh=cell.mesh,
        hardware=cell.hardware,
        memory_budget=cell.budget,
        donate_argnums=workload.donate_argnums,
        time_limit_seconds=_TIME_LIMIT_SECONDS,
        baselines=False,
        remat="auto" if way == "chosen" else "keep",
    )
    return plan, time.perf_counter() - start


def rows(cell: Cell, *, compiles: bool) -> Iterator[dict[str, str]]:
    """One row for each way to treat the residuals of a cell."""
    for way in _WAYS:
        plan, seconds = planned(cell, way)
        data = plan.data
        print(cell.name, cell.budget, way, data.solver.status, f"{seconds:.0f} s", flush=True)
        row = {
            "program": cell.name,
            "devices": f"{cell.hardware}, {cell.mesh}",
            "budget": f"{(data.memory_budget or 0) / 1e9:.2f} GB",
            "residuals": _residuals(data, way),
            "fits": "yes" if data.is_feasible else "no",
            "step": f"{1e3 * data.priced_seconds:,.1f} ms" if data.is_feasible else "",
            "peak": f"{data.memory.peak_bytes / 1e9:.2f} GB",
            "planned in": f"{seconds:.0f} s",
        }
        if compiles:
            row |= _compiled(plan, cell)
        yield row


def _residuals(data: Any, way: str) -> str:
    chosen = data.residuals
    if chosen is None:
        return way
    kept = sum(one.is_kept for one in chosen.residuals)
    return f"{way}: {kept} of {len(chosen.residuals)} kept"


def _compiled(plan: autoshard.Plan, cell: Cell) -> dict[str, str]:
    if not plan.data.is_feasible:
        return {"compiled step": "", "compiled peak": ""}
    found = plan.verify(cell.topology)
    if found.memory is None or found.time is None:
        return {"compiled step": found.status, "compiled peak": ""}
    return {
        "compiled step": f"{1e3 * found.time.overlapped_seconds:,.1f} ms",
        "compiled peak": f"{found.memory.compiled_bytes / 1e9:.2f} GB",
    }


def main() -> None:
    """Plan all cells, or some, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cells whose program's name holds this")
    parser.add_argument("--compile", action="store_true", help="compile the plans too")
    options = parser.parse_args()
    found: list[dict[str, str]] = []
    for cell in (cell for cell in CELLS if options.only in cell.name):
        found += rows(cell, compiles=options.compile)
        text = f"{_ABOUT}\n{markdown_table(found)}"
        write_page("memory_planning", "Residuals where memory binds", text)


_ABOUT = """\
Each program is planned three ways within a budget per device: as it is written without
`jax.checkpoint`, with `jax.checkpoint` around every layer, and with the residuals that
`optimize(remat="auto")` chooses. Nothing in the choice was fitted to these programs. Where a step
does not fit, its peak is the least found. The choice of residuals is an outer one, with shardings
inside: it has no bound. Planning was timed on a machine with other work on it.
"""


if __name__ == "__main__":
    main()
