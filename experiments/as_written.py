"""Plans by hand as people write them: shardings for `jax.jit`, activations pinned or left alone.

What lies between is what the compiler's partitioner makes of it; no planning takes part.
"""

from __future__ import annotations

from typing import Any

from jax.sharding import PartitionSpec

from autoshard.apply.ahead.verify import VerifyOptions, verify_plan
from autoshard.frontend.trace import trace
from autoshard.plans.plan import PlanData
from experiments.workloads import Workload, baseline_batch_axes, baseline_specs, with_pins


def compiled_as_written(
    workload: Workload, kind: str, planned: PlanData, options: VerifyOptions
) -> list[dict[str, Any]]:
    """What a compiler makes of a plan by hand, with its activations pinned and without.

    Args:
        workload: What is trained.
        kind: One of `BASELINES`.
        planned: A plan of the same workload on the same mesh, which says where and for what; of its
            choices nothing is taken.
        options: How to compile.

    Returns:
        For each way to write it: whether it pins, and the status, and where it compiled the bytes
        through collectives, the memory and the seconds by column of the table.
    """
    sizes = planned.mesh.sizes
    specs = baseline_specs(workload, kind, sizes)
    batch_axes = baseline_batch_axes(kind, tuple(sizes))
    return [
        {"pins": bool(pins), **_compiled(workload, pins, specs, planned, options)}
        for pins in dict.fromkeys(((), batch_axes))
    ]


def _compiled(
    workload: Workload,
    pins: tuple[str, ...],
    specs: Any,
    planned: PlanData,
    options: VerifyOptions,
) -> dict[str, Any]:
    traced = trace(
        with_pins(workload.step, pins),
        (workload.state, workload.batch),
        mesh=planned.mesh,
        in_shardings=specs,
        out_shardings=(specs[0], PartitionSpec()),
        donate_argnums=workload.donate_argnums,
    )
    found = verify_plan(planned, traced, {}, traced.user_in, traced.user_out, options)
    row: dict[str, Any] = {"status": found.status}
    if found.memory is None or found.time is None:
        return row
    return row | {
        "compiled_bytes": found.compiled_bytes,
        "compiled_memory": found.memory.compiled_bytes,
        "compiled_seconds": found.time.compiled_seconds,
        "overlapped_seconds": found.time.overlapped_seconds,
        "at_memory_speed_seconds": found.time.at_memory_speed_seconds + found.time.link_seconds,
    }
