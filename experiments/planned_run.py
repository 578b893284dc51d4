"""One workload planned, compiled and run: what the plan said beside what the compiler did."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import autoshard
from autoshard.hlo.compiled import CollectiveComparison, compare_collectives, read_compiled
from experiments.workloads import Workload, baseline_specs


@dataclass(frozen=True)
class PlannedRun:
    """A planned step, compiled for the devices of this machine.

    Args:
        workload: What was planned.
        plan: The plan.
        compiled: The compiled step.
        comparison: Collectives predicted and compiled, all runs of one step.
        memory_bytes: What the compiler says one device takes: arguments, results, temporaries.
        wrong_boundaries: Arguments and results that ended in another sharding than planned.
        seconds: Wall time of planning, of choosing constraints, of compiling.
    """

    workload: Workload
    plan: autoshard.Plan
    compiled: jax.stages.Compiled
    comparison: CollectiveComparison
    memory_bytes: int
    wrong_boundaries: tuple[str, ...]
    seconds: dict[str, float]

    @property
    def memory_error(self) -> float:
        """Predicted over compiled, less one."""
        return self.plan.data.memory.peak_bytes / self.memory_bytes - 1


def plan_and_compile(workload: Workload, mesh: str, **options: Any) -> PlannedRun:
    """Plan a workload for host CPU devices and compile it under the plan."""
    start = time.perf_counter()
    plan = autoshard.optimize(
        workload.step,
        workload.state,
        workload.batch,
        mesh=mesh,
        hardware="cpu-host",
        donate_argnums=workload.donate_argnums,
        **{"baselines": False, **options},
    )
    planned = time.perf_counter()
    plan.data.require_feasible()
    _ = plan.constraints
    constrained = time.perf_counter()
    compiled = plan.jit().lower(workload.state, workload.batch).compile()
    done = time.perf_counter()
    program = read_compiled(compiled, plan.data.mesh)
    return PlannedRun(
        workload,
        plan,
        compiled,
        compare_collectives(plan.data.collectives, program.collectives),
        program.peak_bytes,
        _wrong_boundaries(plan, compiled),
        {
            "plan": planned - start,
            "constraints": constrained - planned,
            "compile": done - constrained,
        },
    )


def _wrong_boundaries(plan: autoshard.Plan, compiled: jax.stages.Compiled) -> tuple[str, ...]:
    """Names of arguments and results whose compiled sharding cuts otherwise than planned."""
    wrong = []
    for tensors, planned, found in (
        (plan.data.arguments, plan.in_shardings, compiled.input_shardings[0]),
        (plan.data.results, plan.out_shardings, compiled.output_shardings),
    ):
        compiled_to = jax.tree.leaves(found, is_leaf=lambda leaf: leaf is None)
        for tensor, want, have in zip(tensors, jax.tree.leaves(planned), compiled_to, strict=True):
            # JAX says None of an argument that the step does not read.
            if have is not None and not have.is_equivalent_to(want, len(tensor.shape)):
                wrong.append(tensor.name)
    return tuple(wrong)


def run_both(run: PlannedRun, steps: int = 2) -> tuple[Any, Any]:
    """Train under the plan and on one device from the same start.

    Returns:
        Two lists with every leaf of `(state, losses)` as NumPy arrays: planned, then alone.
    """
    workload = run.workload
    key, batch_key = jax.random.key(0), jax.random.key(1)
    state = jax.jit(workload.init)(key)
    batch = workload.make_batch(batch_key)
    planned_state = run.plan.shard(jax.tree.map(np.asarray, state), 0)
    planned_batch = run.plan.shard(jax.tree.map(np.asarray, batch), 1)
    alone = jax.jit(workload.step)
    losses: tuple[list[Any], list[Any]] = ([], [])
    for _ in range(steps):
        planned_state, planned_loss = run.compiled(planned_state, planned_batch)
        state, loss = alone(state, batch)
        losses[0].append(np.asarray(planned_loss))
        losses[1].append(np.asarray(loss))
    as_numpy = [
        [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
        for tree in ((planned_state, losses[0]), (state, losses[1]))
    ]
    return as_numpy[0], as_numpy[1]


def compiled_baseline_bytes(workload: Workload, kind: str, mesh: jax.sharding.Mesh) -> float:
    """Bytes per device through the collectives that XLA makes of a hand-written plan."""
    specs = baseline_specs(workload, kind, dict(mesh.shape))
    shardings = jax.tree.map(
        lambda spec: jax.sharding.NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda leaf: isinstance(leaf, jax.sharding.PartitionSpec),
    )
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    step = jax.jit(
        workload.step,
        in_shardings=shardings,
        out_shardings=(shardings[0], replicated),
        donate_argnums=workload.donate_argnums,
    )
    program = read_compiled(step.lower(workload.state, workload.batch).compile())
    return float(sum(c.bytes_per_device * c.count for c in program.collectives))
