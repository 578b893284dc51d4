"""One process of a program that plans at its first call, under a cache that all of them share.

python -m tests.end_to_end.one_of_many_planners FOLDER PORT NUMBER COUNT [BUDGET]

With a budget in bytes the step is one whose residuals are chosen.
"""

from __future__ import annotations

import sys

import jax
import numpy as np

import autoshard
from tests.end_to_end.shared_step import batch, init, train_step
from tests.remat.programs import arguments, scanned

ROWS, MESH = 512, "data=2,model=4"


def main(folder: str, port: str, number: str, count: str, budget: str = "") -> None:
    jax.distributed.initialize(
        coordinator_address=f"127.0.0.1:{port}",
        num_processes=int(count),
        process_id=int(number),
        initialization_timeout=60,
    )
    if budget:
        run_within(int(budget), folder)
    else:
        run_two_steps(folder)


def run_within(budget: int, folder: str) -> None:
    *given, key = arguments(ROWS)
    step = autoshard.jit(
        scanned(), mesh=MESH, hardware="cpu-host", memory_budget=budget, cache=folder
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


def run_two_steps(folder: str) -> None:
    step = autoshard.jit(train_step, mesh=MESH, hardware="cpu-host", donate_argnums=0, cache=folder)
    plan = step.plan(jax.eval_shape(init, jax.random.key(0)), batch(0))
    state = plan.init(init)(jax.random.key(0))
    for seed in range(2):
        state, loss = step(state, plan.shard(batch(seed), argument=1))
        print(f"loss {float(loss):.6f}")
    print("planned", "solve" in plan.data.stage_seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
