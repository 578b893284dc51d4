"""One process of a program that runs in several: loads a plan, runs two steps, keeps the result.

python -m tests.end_to_end.one_of_many_processes PLAN PORT NUMBER COUNT OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

import autoshard
from tests.end_to_end.shared_step import batch, init, train_step


def main(plan_file: str, port: str, number: str, count: str, out: str) -> None:
    jax.distributed.initialize(
        coordinator_address=f"127.0.0.1:{port}",
        num_processes=int(count),
        process_id=int(number),
        initialization_timeout=60,
    )
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
        Path(out),
        losses=np.array(losses),
        w1=whole["params"]["w1"],
        moment=whole["moments"]["w2"],
        num_local=len(local),
        num_devices=jax.device_count(),
        local_shape=np.array(local[0]),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
