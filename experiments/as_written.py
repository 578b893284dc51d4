"""Plans by hand as people write them: shardings for `jax.jit`, activations pinned or left alone.

What lies between is what the compiler's partitioner makes of it; no planning takes part, so this
goes past `Plan.verify` to what it is made of.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jax.sharding import PartitionSpec

from autoshard.aot.program import ShardedProgram
from autoshard.aot.verify import VerifyOptions, verify_plan
from autoshard.frontend.trace import trace
from autoshard.plans.plan import PlanData
from experiments.workloads import Pins, Workload, baseline_batch_axes, baseline_specs, with_pins

_WHOLE_BEFORE_LOOPS = ("fsdp",)
"""Plans by hand that, pinned, gather what a loop reads in every run before it."""


def ways_to_write(kind: str, axes: tuple[str, ...]) -> tuple[Pins, ...]:
    """With nothing pinned, and with what people pin.

    Args:
        kind: One of `BASELINES`.
        axes: Of the mesh.
    """
    batch_axes = baseline_batch_axes(kind, axes)
    written = (Pins(), Pins(batch_axes, whole_weights=kind in _WHOLE_BEFORE_LOOPS))
    return tuple(dict.fromkeys(written))


def compiled_as_written(
    workload: Workload, kind: str, planned: PlanData, options: VerifyOptions
) -> list[dict[str, Any]]:
    """What a compiler makes of a plan by hand, with its activations pinned and without.

    Args:
        workload: What is trained.
        kind: One of `BASELINES`.
        planned: A plan of the same workload: for which mesh and machine. Of its choices nothing is
            taken.
        options: How to compile.

    Returns:
        For each way to write it: whether it pins, and the status, and where it compiled the bytes
        through collectives, the memory and the seconds by column of the table.
    """
    specs = baseline_specs(workload, kind, planned.mesh.sizes)
    where = replace(planned, products=(), memory_budget=None)
    found = []
    for pins in ways_to_write(kind, tuple(planned.mesh.sizes)):
        try:
            row = _compiled(workload, pins, specs, where, options)
        except Exception as error:  # of this way alone
            row = {"status": f"failed: {type(error).__name__}: {str(error).splitlines()[0]}"}
        found.append({"pins": pins != Pins(), **row})
    return found


def _compiled(
    workload: Workload, pins: Pins, specs: Any, where: PlanData, options: VerifyOptions
) -> dict[str, Any]:
    traced = trace(
        with_pins(workload.step, pins),
        (workload.state, workload.batch),
        mesh=where.mesh,
        in_shardings=specs,
        out_shardings=(specs[0], PartitionSpec()),
        donate_argnums=workload.donate_argnums,
    )
    program = ShardedProgram(where, traced, {}, traced.user_in, traced.user_out)
    found = verify_plan(program, options)
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
