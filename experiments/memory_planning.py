"""What choosing residuals is worth where memory binds: steps of programs nothing was fitted on.

    python -m experiments.memory_planning [--only NAME] [--minutes N] [--compile]

Each cell is a program on a machine with a share of the memory of a device as budget. It is planned
as it is written without `jax.checkpoint`; with `jax.checkpoint` around every layer, keeping nothing
or what a policy of JAX saves, each with its own best shardings; and with the residuals that
`optimize(remat="auto")` chooses for the program as it is written, with host memory and without.
`--compile` adds what the compiler makes of plans. Cells come budget by budget, so that a short run
has some of every program. Rows are kept in `experiments/results/memory_planning.jsonl` as they are
found: a run goes on where the last one of the same commit ended. The page is written from them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import autoshard
from cost_models import get_hardware
from experiments.results_table import RESULTS, markdown_table, provenance, write_page
from experiments.workloads.gpt import GptConfig
from experiments.workloads.gpt import build as gpt
from experiments.workloads.llama import LlamaConfig
from experiments.workloads.llama import build as llama
from experiments.workloads.moe import MoeConfig
from experiments.workloads.moe import build as moe
from experiments.workloads.ssm import SsmConfig
from experiments.workloads.ssm import build as ssm
from experiments.workloads.unet import UnetConfig
from experiments.workloads.unet import build as unet

FOUND = RESULTS / "memory_planning.jsonl"
_TIME_LIMIT_SECONDS = 180.0
_CHOSEN, _ON_DEVICE = "chosen", "chosen, none on the host"
_AS_WRITTEN, _FULL = "as written", "full remat"
_POLICIES = ("dots_with_no_batch_dims_saveable", "dots_saveable")
_OWN = (_CHOSEN, _ON_DEVICE, _AS_WRITTEN)  # of programs without layers to rematerialise too


@dataclass(frozen=True, slots=True)
class Program:
    """A training step, written without rematerialisation.

    Args:
        name: Of the program.
        build: Builds it from its sizes.
        config: Its sizes.
    """

    name: str
    build: Any
    config: Any


@dataclass(frozen=True, slots=True)
class Machine:
    """Where programs run.

    Args:
        hardware: Its name.
        mesh: Its mesh.
        topology: To compile for.
    """

    hardware: str
    mesh: str
    topology: str


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
    batch=64,
    scan=True,
    compute_dtype="bfloat16",
)
_SSM = SsmConfig(
    layers=24,
    d_model=2048,
    inner=4096,
    states=16,
    dt_rank=128,
    vocab=50304,
    seq=2048,
    batch=64,
    scan=True,
    compute_dtype="bfloat16",
)

_MOE = MoeConfig(
    layers=4,
    d_model=2048,
    heads=16,
    experts=8,
    d_ff=8192,
    vocab=50304,
    seq=1024,
    batch=64,
    compute_dtype="bfloat16",
)
_UNET = UnetConfig(image_size=64, channels=256, multipliers=(1, 2, 4), groups=32, batch=256)

PROGRAMS = (
    Program("llama 8B, scanned", llama, _LLAMA),
    Program("gpt 1.3B, scanned", gpt, _GPT),
    Program("mamba, scanned", ssm, _SSM),
    Program("llama, 4 layers unrolled", llama, replace(_LLAMA, layers=4, scan=False)),
    Program("mixture of experts, 4 layers unrolled", moe, _MOE),
    Program("diffusion U-Net", unet, _UNET),
)
MACHINES = (
    Machine("tpu-v5e", "data=4,model=4", "v5e:4x4"),
    Machine("tpu-v5p", "data=4,model=2", "v5p:2x2x2"),
    Machine("h100:8", "data=4,model=2", "8xH100"),
)
SHARES = (0.5, 0.35, 0.7, 0.2, 1.0)
"""Of the memory of a device, those at which memory binds first."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A program on a machine within a budget, its residuals treated in one way."""

    program: Program
    machine: Machine
    share: float
    way: str

    @property
    def key(self) -> list[str]:
        return [self.program.name, self.machine.hardware, str(self.share), self.way]


def cells() -> Iterator[Cell]:
    """All cells, those of one program, machine and budget together."""
    for share in SHARES:
        for program in PROGRAMS:
            for machine in MACHINES:
                for way in _ways(program):
                    yield Cell(program, machine, share, way)


def _ways(program: Program) -> tuple[str, ...]:
    """How residuals of a program are treated; without layers of its own, by no `jax.checkpoint`."""
    return (*_OWN, _FULL, *_POLICIES) if hasattr(program.config, "remat") else _OWN


def planned(cell: Cell) -> tuple[autoshard.Plan, float]:
    """The plan of a cell, and how long planning took."""
    config = cell.program.config
    if cell.way not in _OWN:
        config = replace(config, remat=True if cell.way == _FULL else cell.way)
    machine = get_hardware(cell.machine.hardware)
    if cell.way == _ON_DEVICE:
        machine = replace(machine, host=None)
    workload = cell.program.build(cell.program.name, config)
    start = time.perf_counter()
    plan = autoshard.optimize(
        workload.step,
        workload.state,
        workload.batch,
        mesh=cell.machine.mesh,
        hardware=machine,
        memory_budget=cell.share,
        donate_argnums=workload.donate_argnums,
        time_limit_seconds=_TIME_LIMIT_SECONDS,
        baselines=False,
        remat="auto" if cell.way in (_CHOSEN, _ON_DEVICE) else "keep",
    )
    return plan, time.perf_counter() - start


def row(cell: Cell, *, compiles: bool) -> dict[str, Any]:
    """The line that tells of a cell."""
    plan, seconds = planned(cell)
    data = plan.data
    told: dict[str, Any] = {
        "cell": cell.key,
        "commit": provenance()["commit"],
        "fits": data.is_feasible,
        "budget_bytes": data.memory_budget,
        "step_seconds": data.priced_seconds if data.is_feasible else None,
        "peak_bytes": data.memory.peak_bytes,
        "planning_seconds": seconds,
    }
    if data.residuals is not None:
        told["bound_seconds"] = data.residuals.bound_seconds
        told["kept"] = sum(one.is_kept for one in data.residuals.residuals)
        told["residuals"] = len(data.residuals.residuals)
        told["offloaded"] = sum(one.is_offloaded for one in data.residuals.residuals)
        told["host_bytes"] = data.memory.host_bytes
    if compiles and data.is_feasible:
        found = plan.verify(cell.machine.topology)
        if found.memory is not None:
            told["compiled_bytes"] = found.memory.compiled_bytes
            told["compiled_host_bytes"] = found.memory.host_bytes
        if found.time is not None:
            told["compiled_seconds"] = found.time.overlapped_seconds
    return told


def page() -> str:
    """The table of all rows found so far."""
    found = [json.loads(line) for line in FOUND.read_text().splitlines()]
    table = []
    for one in found:
        name, hardware, share, way = one["cell"]
        table.append(
            {
                "program": name,
                "machine": hardware,
                "budget": f"{share} = {one['budget_bytes'] / 1e9:.1f} GB",
                "residuals": _residuals(one, way),
                "fits": "yes" if one["fits"] else "no",
                "step": _milliseconds(one.get("step_seconds")),
                "bound": _milliseconds(one.get("bound_seconds") or None),
                "peak": f"{one['peak_bytes'] / 1e9:.2f} GB",
                "compiled step": _milliseconds(one.get("compiled_seconds")),
                "compiled peak": _gigabytes(one.get("compiled_bytes")),
                "host": _gigabytes(one.get("host_bytes")),
                "compiled host": _gigabytes(one.get("compiled_host_bytes")),
                "planned in": f"{one['planning_seconds']:.0f} s",
                "commit": one["commit"],
            }
        )
    about = _ABOUT.format(len(found), sum(1 for _ in cells()), _within_budget(found))
    return f"{about}\n{markdown_table(comparison(found))}\n{markdown_table(table)}"


def comparison(found: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The chosen residuals against every other way: where both fit, and where one does."""
    by_cell: dict[tuple[str, ...], dict[str, Mapping[str, Any]]] = {}
    for one in found:
        *cell, way = one["cell"]
        by_cell.setdefault(tuple(cell), {})[way] = one
    rows = []
    for way in (_ON_DEVICE, _FULL, *_POLICIES, _AS_WRITTEN):
        pairs = [(of[_CHOSEN], of[way]) for of in by_cell.values() if {_CHOSEN, way} <= of.keys()]
        both = [(a, b) for a, b in pairs if a["fits"] and b["fits"]]
        ratios = [b["step_seconds"] / a["step_seconds"] for a, b in both]
        compiled = [
            b["compiled_seconds"] / a["compiled_seconds"]
            for a, b in both
            if a.get("compiled_seconds") and b.get("compiled_seconds")
        ]
        rows.append(
            {
                "chosen against": way,
                "budgets": str(len(pairs)),
                "both fit": str(len(both)),
                "chosen alone fits": str(sum(a["fits"] and not b["fits"] for a, b in pairs)),
                "other alone fits": str(sum(b["fits"] and not a["fits"] for a, b in pairs)),
                "time of other, geometric mean": _mean(ratios),
                "chosen is slower": str(sum(ratio < 1 - 1e-3 for ratio in ratios)),
                "both compiled": str(len(compiled)),
                "compiled time of other": _mean(compiled),
                "chosen is slower as compiled": str(sum(one < 1 - 1e-3 for one in compiled)),
            }
        )
    return rows


def _mean(ratios: Sequence[float]) -> str:
    return f"{geometric_mean(ratios):.3f}" if ratios else ""


def _within_budget(found: Sequence[Mapping[str, Any]]) -> str:
    """The number of compiled plans that take no more than 1.05 of their budget, and of all."""
    peaks = [
        one["compiled_bytes"] / one["budget_bytes"] for one in found if one.get("compiled_bytes")
    ]
    return f"{sum(peak <= 1.05 for peak in peaks)} of {len(peaks)}"


def _residuals(one: dict[str, Any], way: str) -> str:
    if "kept" not in one:
        return way
    sent = f", {one['offloaded']} on the host" if one.get("offloaded") else ""
    return f"{way}: {one['kept']} of {one['residuals']} kept{sent}"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:,.1f} ms"


def _gigabytes(num_bytes: int | None) -> str:
    return "" if num_bytes is None else f"{num_bytes / 1e9:.2f} GB"


def main() -> None:
    """Plan the cells that were not planned yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help='cells in whose text this is, as in "mamba, scanned h100:8 0.5"'
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no cell after these")
    parser.add_argument("--compile", action="store_true", help="compile the plans too")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    lines = FOUND.read_text().splitlines() if FOUND.exists() else []
    done = [json.loads(line)["cell"] for line in lines]
    for cell in cells():
        if cell.key in done or options.only not in " ".join(cell.key):
            continue
        if time.monotonic() > end:
            break
        found = row(cell, compiles=options.compile)
        with FOUND.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(found, flush=True)
    write_page("memory_planning", "Residuals where memory binds", page())


_ABOUT = """\
Each program is planned within a share of the memory of a device: as it is written without
`jax.checkpoint`; with `jax.checkpoint` around every layer, keeping the inputs of layers alone (full
remat) or what a policy of JAX saves as well; and with the residuals that `optimize(remat="auto")`
chooses for the program as it is written, some on the host where that pays or nothing else fits.
Every row has its own best shardings, and nothing in the
choice was fitted to these programs. Programs without layers of their own are not given to
`jax.checkpoint`. Where a step does not fit, its peak is the least found. The
bound is that of the joint problem of residuals and shardings. Planning was timed on a machine with
other work on it, and a slower one may have cut a search short. Rows so far: {} of {}.
Of the plans that fit and were compiled, {} take no more than 1.05 of their budget.

The first table compares, by budget, the chosen residuals with every other way: how much longer a
step takes where both fit (above 1: the chosen ones are faster), and where only one does.
"""


if __name__ == "__main__":
    main()
