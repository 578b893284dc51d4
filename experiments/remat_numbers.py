"""Steps that compute residuals again beside the same steps as written: numbers and temporaries.

    python -m experiments.remat_numbers [--only NAME,NAME] [--minutes N]

Every small workload that trains is planned for 8 host CPU devices within a share of the temporaries
that it takes at least where nothing is computed again, then compiled, and run beside the step as it
is written on one device. Rows are kept in `experiments/results/remat_numbers.jsonl` as they are
found: a run goes on where the last one ended. The page is written from them.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean, median
from typing import Any

import jax
import numpy as np

import autoshard
from autoshard.hlo.compiled import read_compiled
from experiments.results_table import RESULTS, markdown_table, provenance, write_page
from experiments.workloads import Workload, get_workload
from experiments.workloads.dropout_gpt import build as dropout_gpt
from experiments.workloads.gpt import GptConfig
from experiments.workloads.registry import FURTHER_WORKLOADS, SMALL_WORKLOADS

FOUND = RESULTS / "remat_numbers.jsonl"
MESH = "data=2,model=4"
SHARE = 0.7
"""Of the least temporaries with everything kept: the budget, if that fits."""
_ROOMY = 1.1
"""Times the least peak with everything kept: a budget for it."""
KEEPS_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}
"""XLA for CPU removes barriers, finds what is computed again equal, and keeps it instead."""
_DROPOUT = {"dropout_gpt": GptConfig(), "dropout_gpt_scan": GptConfig(scan=True)}


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest differences between the results of two runs.

    Args:
        relative: Of gradients' moments and the loss, in the worst array: the largest difference
            over the largest number, or over a thousandth of the largest of all arrays.
        of_parameters: The largest difference of a parameter: Adam makes steps of the size of the
            learning rate of gradients that are zero but for rounding.
        integers: Numbers of integer arrays that differ.
    """

    relative: float
    of_parameters: float
    integers: int


def workloads() -> dict[str, Workload]:
    """All that train, by name, without `jax.checkpoint`."""
    named = {name: dropout_gpt(name, config) for name, config in _DROPOUT.items()}
    for name, preset in {**SMALL_WORKLOADS, **FURTHER_WORKLOADS}.items():
        plain = {"remat": False} if getattr(preset.config, "remat", False) else {}
        named[name] = get_workload(name, **plain)
    return {name: one for name, one in named.items() if "opt" in one.state}


def planned(workload: Workload, budget: int, remat: str) -> tuple[autoshard.Plan, float]:
    """A plan, and seconds of the processor that it took."""
    start = sum(os.times()[:4])
    plan = autoshard.optimize(
        workload.step,
        workload.state,
        workload.batch,
        mesh=MESH,
        hardware="cpu-host",
        donate_argnums=workload.donate_argnums,
        memory_budget=budget,
        remat=remat,
        baselines=False,
        relative_gap=0.05,
        time_limit_seconds=60.0,
    )
    return plan, sum(os.times()[:4]) - start


def difference(ours: Any, theirs: Any) -> Difference:
    """Of two `(state, loss)`, both on the host."""
    apart: dict[str, list[tuple[float, float]]] = {"parameters": [], "others": []}
    integers = 0
    pairs = zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(theirs), strict=True)
    for (path, one), other in pairs:
        if not np.issubdtype(other.dtype, np.inexact):
            integers += int(np.sum(one != other))
            continue
        wide, reference = one.astype(np.float64), other.astype(np.float64)
        found = float(np.max(np.abs(wide - reference), initial=0.0))
        group = "parameters" if jax.tree_util.keystr(path).startswith("[0]['params']") else "others"
        apart[group].append((found, float(np.max(np.abs(reference), initial=0.0))))
    least = max(1e-3 * largest for _, largest in apart["others"][:-1])  # the loss comes last
    return Difference(
        max(found / max(largest, least) for found, largest in apart["others"]),
        max(found for found, _ in apart["parameters"]),
        integers,
    )


def run_beside(workload: Workload, plan: autoshard.Plan, compiled: Any) -> Difference:
    """Of one step under the plan, and as it is written on one device, from the same start."""
    state = jax.tree.map(np.asarray, jax.jit(workload.init)(jax.random.key(0)))
    batch = jax.tree.map(np.asarray, workload.make_batch(jax.random.key(1)))
    ours = compiled(plan.shard(state, 0), plan.shard(batch, 1))
    theirs = jax.jit(workload.step)(state, batch)
    return difference(*(jax.tree.map(np.asarray, one) for one in (ours, theirs)))


def row(name: str, workload: Workload) -> dict[str, Any]:
    """The line that tells of a workload."""
    everything = planned(workload, 1, "keep")[0].data.memory
    own = everything.peak_bytes - everything.argument_bytes
    budget = everything.argument_bytes + int(SHARE * own)
    plan, seconds = planned(workload, budget, "auto")
    peak = plan.data.memory.peak_bytes
    if not plan.data.is_feasible and peak < 0.98 * everything.peak_bytes:
        budget = (peak + everything.peak_bytes) // 2
        plan, seconds = planned(workload, budget, "auto")
    chosen, memory = plan.data.residuals, plan.data.memory
    told = {
        "workload": name,
        "least_peak_bytes": everything.peak_bytes,
        "share": (budget - everything.argument_bytes) / own,
        "budget_bytes": budget,
        "fits": plan.data.is_feasible,
        "kept": 0 if chosen is None else sum(one.is_kept for one in chosen.residuals),
        "residuals": 0 if chosen is None else len(chosen.residuals),
    }
    if not plan.data.is_feasible:
        return told
    written, written_seconds = planned(workload, budget, "keep")
    _, roomy_seconds = planned(workload, int(_ROOMY * everything.peak_bytes), "keep")
    lowered = plan.jit().lower(workload.state, workload.batch)
    compiled = lowered.compile(compiler_options=KEEPS_BARRIERS)
    sizes = [read_compiled(one, plan.data.mesh).peak_bytes for one in (compiled, lowered.compile())]
    return {
        **told,
        "written_fits": written.data.is_feasible,
        "planning_ratio": seconds / written_seconds,
        "planning_over_fitting": seconds / roomy_seconds,
        "predicted_bytes": memory.peak_bytes - memory.argument_bytes,
        "compiled_bytes": sizes[0] - memory.argument_bytes,
        "without_barriers_bytes": sizes[1] - memory.argument_bytes,
        **asdict(run_beside(workload, plan, compiled)),
    }


def _cells(found: Mapping[str, Any]) -> dict[str, str]:
    """The row of the page."""
    cells = {
        "workload": found["workload"],
        "budget": f"{found['budget_bytes'] / 1e3:,.0f} kB ({found['share']:.2f})",
        "fits": "yes" if found["fits"] else "no",
        "kept, computed again": f"{found['kept']}, {found['residuals'] - found['kept']}",
        "commit": found["commit"],
    }
    if not found["fits"]:
        return cells
    return cells | {
        "fits as written": "yes" if found["written_fits"] else "no",
        "largest difference": f"{found['relative']:.1e}",
        "of parameters": f"{found['of_parameters']:.1e}",
        "integers that differ": str(found["integers"]),
        "temporaries planned": f"{found['predicted_bytes'] / 1e3:,.0f} kB",
        "compiled": _beside(found, "compiled_bytes"),
        "without barriers": _beside(found, "without_barriers_bytes"),
        "planning time over keep": f"{found['planning_ratio']:.1f}",
        "where keep fits": _rounded(found.get("planning_over_fitting")),
    }


def _rounded(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f}"


def _beside(found: Mapping[str, Any], key: str) -> str:
    num_bytes = found[key]
    return f"{num_bytes / 1e3:,.0f} kB ({num_bytes / found['predicted_bytes']:.2f})"


def page(rows: Sequence[Mapping[str, Any]], num_workloads: int) -> str:
    """What was found, and the table."""
    cells = sorted(map(_cells, rows), key=lambda one: -len(one))
    lines = [_ABOUT, *_summary(rows, num_workloads), "", markdown_table(cells)]
    return "\n".join(lines)


def _summary(rows: Sequence[Mapping[str, Any]], num_workloads: int) -> Iterator[str]:
    ran = [one for one in rows if one["fits"]]
    again = [one for one in ran if one["residuals"] > one["kept"]]
    yield f"* {len(rows)} of {num_workloads} workloads; {len(ran)} fit, and {len(again)} of those"
    yield "  compute residuals again."
    if not again:
        return
    worst = max(again, key=lambda one: one["relative"])
    ratios = [one["compiled_bytes"] / one["predicted_bytes"] for one in again]
    times = [one["planning_ratio"] for one in again]
    yield f"* Of these, the largest difference is {worst['relative']:.1e} ({worst['workload']}),"
    yield f"  and {sum(one['integers'] for one in again)} integers differ."
    within = sum(one <= 1.1 for one in ratios), sum(abs(one - 1) <= 0.1 for one in ratios)
    yield f"* Compiled temporaries are at most 1.1 of the plan's in {within[0]}, and within 10 % of"
    yield f"  them in {within[1]}; median {median(ratios):.2f}, from {min(ratios):.2f} to"
    yield f"  {max(ratios):.2f}."
    yield f"* Planning takes {geometric_mean(times):.1f} times as long as with `keep` (geometric"
    yield f"  mean; from {min(times):.1f} to {max(times):.1f}), which ends where nothing fits."
    fitting = [one["planning_over_fitting"] for one in again if "planning_over_fitting" in one]
    if fitting:
        mean, ends = geometric_mean(fitting), (min(fitting), max(fitting))
        yield f"* Over `keep` within {_ROOMY} of what it takes at least: {mean:.1f} times"
        yield f"  ({len(fitting)} of them; from {ends[0]:.1f} to {ends[1]:.1f})."


_ABOUT = f"""\
Each workload, without `jax.checkpoint`, is planned for 8 host CPU devices ({MESH}). The budget is
its arguments and {SHARE} of the temporaries that it takes at least where nothing is computed
again; where that does not fit, halfway between the leanest peak and the one with nothing computed
again. The plan is compiled and run for a step, beside the step as it is written on one device. The
largest difference is that of the loss and of the optimizer's moments, which are gradients after one
step: over the largest number of the same array, or over a thousandth of the largest of all moments.
In `gpt` that is the gradient of the keys' bias, which is zero but for rounding.
Parameters are compared as they are: Adam with a rate of 1e-3 makes steps of that size of gradients
that are zero but for rounding. Temporaries are all but the arguments, donated ones counted once.

XLA for CPU removes optimization barriers and takes recomputation of unrolled layers back. What is
run and what is called "compiled" keeps them:
`plan.jit().lower(...).compile(compiler_options={KEEPS_BARRIERS})`.

Known: of layers under `scan` less is compiled than planned, as little as 0.62. Of unrolled layers
more is, up to 2.75: in the schedule of `gpt`, sums of small gradients of all layers are one call at
the end, and the matmuls of these gradients run right before it; what they read is held until then,
also what was computed again for them. Where nothing fits, computing all again lowers the least peak
by less than 2 %.

Planning time is that of the processor, beside `remat="keep"` within the same budget, and within
{_ROOMY} of the least peak with everything kept.
"""


def main() -> None:
    """Measure what was not measured yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of workloads")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no workload after these")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    every, commit = workloads(), provenance()["commit"]
    rows = [json.loads(line) for line in FOUND.read_text().splitlines()] if FOUND.exists() else []
    done = {one["workload"] for one in rows}
    asked = options.only.split(",") if options.only else every
    for name in asked:
        if name in done:
            continue
        if time.monotonic() > end:
            break
        rows.append({**row(name, every[name]), "commit": commit})
        with FOUND.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(rows[-1], flush=True)
        jax.clear_caches()
    write_page("remat_numbers", "Steps that compute residuals again", page(rows, len(every)))


if __name__ == "__main__":
    main()
