"""One process of a program that runs in several: it loads a plan, and plans under a shared cache.

python -m tests.end_to_end.one_of_many_processes FOLDER BUDGET PORT NUMBER COUNT

The folder holds the plan, the cache, and what each process finds under the loaded plan. The budget
in bytes is for a step whose residuals are chosen.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

import autoshard
from tests.end_to_end.shared_step import batch, init, train_step
from tests.remat.programs import arguments, scanned

ROWS, MESH = 512, "data=2,model=4"


def main(folder: str, budget: str, port: str, number: str, count: str) -> None:
    jax.distributed.initialize(
        coordinator_address=f"127.0.0.1:{port}",
        num_processes=int(count),
        process_id=int(number),
        initialization_timeout=60,
    )
    run_loaded(Path(folder) / "plan.json", Path(folder) / f"{number}.npz")
    run_two_steps(Path(folder) / "plans")
    run_within(int(budget), Path(folder) / "plans")


def run_loaded(plan_file: Path, out: Path) -> None:
    shapes = jax.eval_shape(init, jax.random.key(0))
    plan = autoshard.load_plan(plan_file, train_step, shapes, batch(0))
    state = plan.init(init)(jax.random.key(0))
    step = plan.jit()
    losses = []
    for seed in range(2):
        state, loss = step(state, plan.shard(batch(seed), argument=1))
        losses.append(float(loss))
    whole = multihost_utils.process_allgather(state, tiled=True)
    local = [shard.data.shape for shard in state["params"]["w1"].addressable_shards]
    np.savez(
        out,
        losses=np.array(losses),
        w1=whole["params"]["w1"],
        moment=whole["moments"]["w2"],
        num_local=len(local),
        num_devices=jax.device_count(),
        local_shape=np.array(local[0]),
    )


def run_two_steps(cache: Path) -> None:
    step = autoshard.jit(train_step, mesh=MESH, hardware="cpu-host", donate_argnums=0, cache=cache)
    plan = step.plan(jax.eval_shape(init, jax.random.key(0)), batch(0))
    state = plan.init(init)(jax.random.key(0))
    for seed in range(2):
        state, loss = step(state, plan.shard(batch(seed), argument=1))
        print(f"step {float(loss):.6f}")
    print("planned", "solve" in plan.data.stage_seconds)


def run_within(budget: int, cache: Path) -> None:
    *given, key = arguments(ROWS)
    step = autoshard.jit(
        scanned(), mesh=MESH, hardware="cpu-host", memory_budget=budget, cache=cache
    )
    plan = step.plan(*given, key)
    on_host = jax.tree.map(np.asarray, given)
    state, rows = (plan.shard(one, argument=place) for place, one in enumerate(on_host))
    print(f"loss {float(step(state, rows, key)[1]):.6f}")
    assert plan.data.residuals is not None
    again = [one.name for one in plan.data.residuals.residuals if not one.is_kept]
    print("kept", *(plan.data.kept_residuals or ()))
    print("again", *again)
    print("planned", "solve" in plan.data.stage_seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
