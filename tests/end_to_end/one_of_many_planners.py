"""One process of a program that plans at its first call, under a cache that all of them share.

python -m tests.end_to_end.one_of_many_planners FOLDER PORT NUMBER COUNT
"""

from __future__ import annotations

import sys

import jax

import autoshard
from tests.end_to_end.shared_step import batch, init, train_step


def main(folder: str, port: str, number: str, count: str) -> None:
    jax.distributed.initialize(
        coordinator_address=f"127.0.0.1:{port}",
        num_processes=int(count),
        process_id=int(number),
        initialization_timeout=60,
    )
    step = autoshard.jit(
        train_step, mesh="data=2,model=4", hardware="cpu-host", donate_argnums=0, cache=folder
    )
    plan = step.plan(jax.eval_shape(init, jax.random.key(0)), batch(0))
    state = plan.init(init)(jax.random.key(0))
    for seed in range(2):
        state, loss = step(state, plan.shard(batch(seed), argument=1))
        print(f"loss {float(loss):.6f}")
    print("planned", "solve" in plan.data.stage_seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
