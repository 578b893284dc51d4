"""Plans one point in this process and prints what it found, as `experiments.sweeps.job` reads it.

Standard input holds the point, one line of JSON. It stays open as long as somebody waits for the
answer: when it ends, so does this process.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import threading
import time
from typing import Any

import jax

import autoshard
from experiments.sweeps.point import Point, point_from_json
from experiments.workloads import get_workload


def plan_point(point: Point) -> dict[str, Any]:
    """Plan a point; what was found, by column of the table.

    A plan that fits no budget has no cost; its peak is the least that was found.

    Raises:
        ValueError: Sizes that do not fit together.
        AutoshardError: What cannot be planned.
    """
    workload = get_workload(point.workload, **point.sizes)
    start = time.perf_counter()
    plan = autoshard.optimize(
        workload.step,
        workload.state,
        workload.batch,
        donate_argnums=workload.donate_argnums,
        **point.options.arguments(),
    )
    plan_seconds = time.perf_counter() - start
    data = plan.data
    leaves = jax.tree.leaves(workload.state["params"])
    row = {
        "parameters": sum(math.prod(leaf.shape) for leaf in leaves),
        "devices": math.prod(axis.size for axis in data.mesh.axes),
        "status": data.solver.status,
        "bound_seconds": data.solver.bound_seconds,
        "budget_bytes": data.memory_budget,
        "peak_bytes": data.memory.peak_bytes,
        "argument_bytes": data.memory.argument_bytes,
        "num_ops": data.solver.num_ops,
        "num_choices": data.solver.num_choices,
        "reduced_nodes": data.solver.reduced_nodes,
        "reduced_columns": data.solver.reduced_columns,
        "backend": data.solver.backend,
        "plan_seconds": plan_seconds,
        "peak_rss_bytes": _peak_rss_bytes(),
        **{_column(stage, "seconds"): s for stage, s in data.stage_seconds.items()},
    }
    if data.is_feasible:
        row |= {
            "cost_seconds": data.solver.seconds,
            "gap": data.solver.gap,
            "step_seconds": data.seconds,
            "compute_seconds": data.compute_seconds,
            "communication_seconds": data.communication_seconds,
            "collective_bytes": data.collective_bytes,
            "num_collectives": sum(c.count for c in data.collectives),
            **{_column(b.name, "step_seconds"): b.seconds for b in data.baselines},
            **{_column(b.name, "peak_bytes"): b.peak_bytes for b in data.baselines},
        }
    return row


def _column(name: str, what: str) -> str:
    return f"{name.replace(' ', '_').replace(',', '')}_{what}"


def _peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def end_with_parent() -> None:
    """Wait for the end of standard input, then end this process at once."""
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Plan the point on standard input; what was found, or the error, is the last line printed."""
    point = point_from_json(sys.stdin.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        found = plan_point(point)
    except Exception as error:  # whatever it is, it is this point's and no other's
        lines = [line.strip() for line in str(error).splitlines()]
        message = " / ".join(line for line in lines if line)
        found = {"status": "failed", "error": f"{type(error).__name__}: {message}"}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
