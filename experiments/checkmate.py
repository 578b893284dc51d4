"""Residuals chosen for one device beside the schedules of Checkmate's integer program.

    python -m experiments.checkmate [--seconds N]

VGG-16-like and MobileNet-like training steps are planned within shares of the temporaries that they
take as written. Beside each plan stands the best schedule of the integer program that Checkmate
solves, on the same graph, with costs and sizes of the plan as written, within the same bytes.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import time
from collections.abc import Callable
from math import isfinite
from typing import Any

import jax

import autoshard
from experiments.checkmate_graph import step_graph
from experiments.checkmate_milp import Schedule, StepGraph, solve
from experiments.conv_nets import images, init_mobilenet, init_vgg, mobilenet, train_step, vgg
from experiments.results_table import markdown_table, write_page

HARDWARE, BATCH, IMAGE_SIZE = "h100:1", 64, 224
SHARES = (1.0, 0.8, 0.65, 0.5, 0.4, 0.3)
NETS = {"VGG-16": (init_vgg, vgg), "MobileNet": (init_mobilenet, mobilenet)}


def planned(
    init: Callable[..., Any], model: Callable[..., Any], budget: int | None
) -> tuple[autoshard.Plan, float]:
    """A plan for one device, and how long planning took."""
    start = time.perf_counter()
    plan = autoshard.optimize(
        train_step(model),
        jax.eval_shape(init, jax.random.key(0)),
        images(BATCH, IMAGE_SIZE),
        mesh="data=1",
        hardware=HARDWARE,
        memory_budget=budget,
        donate_argnums=0,
        baselines=False,
    )
    return plan, time.perf_counter() - start


def rows(name: str, seconds: float) -> list[dict[str, str]]:
    """Budgets of one net, from as written down to where nothing fits."""
    written, _ = planned(*NETS[name], None)
    memory, graph = written.data.memory, step_graph(written)
    told = []
    for share in SHARES:
        first = memory.argument_bytes
        budget = first + int(share * (memory.peak_bytes - first))
        their_budget = first + int(share * (graph.peak_keeping_all() - first))
        plan, planning = planned(*NETS[name], budget)
        schedule = solve(graph, their_budget, time_limit_seconds=seconds)
        told.append(
            {
                "net": f"{name}, {graph.num_values} values",
                "share": f"{share:.2f}",
                "budget": f"{budget / 1e9:.2f} GB",
                "ours": _ours(plan, written.data.priced_seconds),
                "ours, peak": f"{plan.data.memory.peak_bytes / 1e9:.2f} GB",
                "ours, planned in": f"{planning:.0f} s",
                "Checkmate's budget": f"{their_budget / 1e9:.2f} GB",
                "Checkmate": _theirs(schedule, graph),
                "Checkmate, at least": _percent(schedule.bound / sum(graph.costs)),
                "Checkmate, solved in": f"{schedule.solve_seconds:.0f} s",
            }
        )
        print(told[-1], flush=True)
    return told


def _ours(plan: autoshard.Plan, as_written_seconds: float) -> str:
    if not plan.data.is_feasible:
        return "does not fit"
    return _percent(plan.data.priced_seconds / as_written_seconds)


def _theirs(schedule: Schedule, graph: StepGraph) -> str:
    if schedule.seconds is None:
        return "does not fit" if schedule.is_infeasible else "none found"
    return _percent(schedule.seconds / sum(graph.costs))


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):.1f} %" if isfinite(ratio) else ""


_ABOUT = """\
How much longer a step takes than as it is written, within a share of the temporaries that it takes
then: with the residuals that `optimize(remat="auto")` chooses, and by the best schedule of
Checkmate's integer program (Jain et al., 2020), solved by HiGHS for {seconds:.0f} s at most and to
a gap of 0.1 %. On one H100, {batch} images of {size} x {size}, activations in bfloat16.

The program is solved on the graph of the plan as written: a value for every convolution, matmul
and pooling, with the element-wise ops behind it, at the plan's costs and sizes. What an op takes
beside its results counts while it runs, such as 0.9 GB in the gradient of VGG's first max pool. Its
memory is the recurrence of the paper. That is less than the compiler takes: each side is given the
same share of its own temporaries as written.

Why ours computes more again:

* Checkmate may compute a value several times, between any two that read it. Here it is computed
  again once, right before the first backward op that reads of its segment, with all else of the
  segment that is needed, and held until its last reader. So the least that fits is higher, too.
* Values that cross segments are kept where what reads them is computed again.
* The plan is what is rewritten, fused and scheduled anew; a schedule adds up costs. Three sets of
  residuals are planned at most, and the joint problem misses what such a plan takes by some 10 %:
  peaks lie below their budgets.
* The least temporaries that the choice problem counts as written can be more than the plan takes:
  MobileNet at 1.00 is not found to fit as written.
"""


def main() -> None:
    """Plan and solve everything, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the solver, a budget")
    options = parser.parse_args()
    about = _ABOUT.format(seconds=options.seconds, batch=BATCH, size=IMAGE_SIZE)
    table = [row for name in NETS for row in rows(name, options.seconds)]
    print(write_page("checkmate", "Beside Checkmate", f"{about}\n{markdown_table(table)}"))


if __name__ == "__main__":
    main()
