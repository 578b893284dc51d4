"""One plan, made by the optimizer or by hand, compiled ahead of time; what both say of it.

Run as a module with a point as JSON on standard input and, if compiled programs are to be kept, a
folder as its argument; the last line printed is what was found.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax

import autoshard
from autoshard.aot.verify import VerifyOptions
from autoshard.verification.verification import Verification
from experiments.as_written import compiled_as_written
from experiments.workloads import BASELINES, Workload, baseline_specs, get_workload

OPTIMIZED = "optimized"
TIGHT = "tight"
_TIGHT_BUDGET = 1.1
"""Over the least memory of any plan."""
_NO_ROOM = 1
"""A budget in bytes that no plan fits: planning then tells the least peak there is."""
_MAX_MISSES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPoint:
    """What is planned and compiled.

    Attributes:
        workload: A name of the registry.
        sizes: Fields of the model's config that are not at their default.
        mesh: As in `data=2,model=4`.
        topology: As `Plan.verify` takes it.
        hardware: The machine planned for.
        plan: `optimized`; `tight`, optimized within 1.1 times the least memory of any plan; or a
            plan by hand: the shardings of arguments and results are those of `baseline_specs`, what
            lies between is planned.
        windowed_einsum: Whether the compiler may make windowed einsums.
        time_limit_seconds: For planning.
    """

    workload: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    mesh: str
    topology: str
    hardware: str
    plan: str
    windowed_einsum: bool
    time_limit_seconds: float = 90.0

    @property
    def key(self) -> str:
        """The same for the same point."""
        return json.dumps(asdict(self), sort_keys=True)


def planned(point: CompiledPoint) -> autoshard.Plan:
    """The plan of a point."""
    workload = get_workload(point.workload, **point.sizes)
    if point.plan == TIGHT:
        least = _optimized(point, workload, memory_budget=_NO_ROOM).data.memory.peak_bytes
        return _optimized(point, workload, memory_budget=int(_TIGHT_BUDGET * least))
    asked: dict[str, Any] = {}
    if point.plan != OPTIMIZED:
        sizes = {name: int(size) for name, size in (a.split("=") for a in point.mesh.split(","))}
        specs = baseline_specs(workload, point.plan, sizes)
        whole = jax.sharding.PartitionSpec()
        asked = {"in_shardings": specs, "out_shardings": (specs[0], whole), "memory_budget": None}
    return _optimized(point, workload, **asked)


def _optimized(point: CompiledPoint, workload: Workload, **asked: Any) -> autoshard.Plan:
    return autoshard.optimize(
        workload.step,
        workload.state,
        workload.batch,
        mesh=point.mesh,
        hardware=point.hardware,
        donate_argnums=workload.donate_argnums,
        baselines=False,
        time_limit_seconds=point.time_limit_seconds,
        **asked,
    )


def measure(point: CompiledPoint, keep_in: str | None = None) -> dict[str, Any]:
    """Plan and compile; every figure of the table by name."""
    start = time.perf_counter()
    plan = planned(point)
    row: dict[str, Any] = {"plan_seconds": time.perf_counter() - start}
    if not plan.data.is_feasible:
        return row | {"status": f"no plan: {plan.data.solver.status}"}
    options = VerifyOptions(
        topology=point.topology,
        windowed_einsum=point.windowed_einsum,
        timeout_seconds=900.0,
        max_tries=8,
        keep_in=None if keep_in is None else Path(keep_in),
    )
    found = plan.verify(
        options.topology,
        windowed_einsum=options.windowed_einsum,
        timeout_seconds=options.timeout_seconds,
        max_tries=options.max_tries,
        keep_in=options.keep_in,
    )
    if point.plan in BASELINES and found.time is not None:
        workload = get_workload(point.workload, **point.sizes)
        row["as_written"] = compiled_as_written(workload, point.plan, plan.data, options)
    return (
        row
        | figures(found)
        | {
            "gap": plan.data.solver.gap,
            "misses": len(plan.data.misses),
            "budget": plan.data.memory_budget,
        }
    )


def figures(found: Verification) -> dict[str, Any]:
    """What a verification says, flat."""
    row: dict[str, Any] = {
        "status": found.status,
        "compile_seconds": found.compile_seconds,
        "predicted_bytes": found.predicted_bytes,
        "compiled_bytes": found.compiled_bytes,
        "failures": [f"{f.status}: {f.what[:200]}" for f in found.failures],
        "notes": list(found.notes),
        "largest_misses": [
            {
                "kind": miss.kind,
                "axes": miss.axes,
                "forms": miss.forms,
                "predicted_bytes": miss.predicted_bytes,
                "compiled_bytes": miss.compiled_bytes,
                "predicted_ops": miss.predicted_ops[:_MAX_MISSES],
                "compiled_ops": miss.compiled_ops[:_MAX_MISSES],
            }
            for miss in found.collectives[:_MAX_MISSES]
        ],
    }
    if found.memory is not None:
        row |= {
            "predicted_memory": found.memory.predicted_bytes,
            "compiled_memory": found.memory.compiled_bytes,
            "predicted_arguments": found.memory.predicted_argument_bytes,
            "compiled_arguments": found.memory.argument_bytes,
            "compiled_temporaries": found.memory.temp_bytes,
        }
    if found.time is not None:
        row |= {
            "predicted_compute": found.time.predicted_compute_seconds,
            "predicted_link": found.time.predicted_link_seconds,
            "predicted_seconds": found.time.predicted_seconds,
            "predicted_overlapped": found.time.predicted_overlapped_seconds,
            "compiled_compute": found.time.compute_seconds,
            "compiled_link": found.time.link_seconds,
            "at_memory_speed_seconds": found.time.at_memory_speed_seconds + found.time.link_seconds,
            "compiled_seconds": found.time.compiled_seconds,
            "overlapped_seconds": found.time.overlapped_seconds,
        }
    return row


def main() -> None:
    """Measure the point on standard input."""
    point = CompiledPoint(**json.loads(sys.stdin.readline()))
    try:
        row = measure(point, *sys.argv[1:2])
    except Exception as error:  # it is this point's and no other's
        row = {"status": f"failed: {type(error).__name__}: {str(error).splitlines()[0]}"}
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
