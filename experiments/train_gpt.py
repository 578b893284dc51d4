"""Plan a GPT training step with Adam for 8 devices, print the plan, and train with it.

    python experiments/train_gpt.py [--mesh data=2,model=4] [--steps 5]

Runs on any machine: the 8 devices are made from the host's CPU.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
).strip()

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import numpy as np

import autoshard
from experiments.workloads import get_workload


def main() -> None:
    """Plan, report, train sharded, and compare with one device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mesh", default="data=2,model=4", help="axes and sizes; 8 devices in all")
    parser.add_argument("--steps", type=int, default=5, help="training steps to run")
    options = parser.parse_args()

    gpt = get_workload("gpt")
    plan = autoshard.optimize(
        gpt.step, gpt.state, gpt.batch, mesh=options.mesh, hardware="cpu-host", donate_argnums=0
    )
    print(plan.report())

    step = plan.jit()
    state = plan.init(gpt.init)(jax.random.key(0))
    batch = plan.shard(gpt.make_batch(jax.random.key(1)), argument=1)
    alone_step = jax.jit(gpt.step)
    alone = jax.jit(gpt.init)(jax.random.key(0))
    alone_batch = gpt.make_batch(jax.random.key(1))
    print(f"\ntraining on {jax.device_count()} devices\n  step   planned loss   one-device loss")
    for index in range(options.steps):
        state, loss = step(state, batch)
        alone, alone_loss = alone_step(alone, alone_batch)
        print(f"  {index:4}   {float(loss):12.6f}   {float(alone_loss):15.6f}")
        np.testing.assert_allclose(float(loss), float(alone_loss), rtol=1e-4)
    print("planned and unsharded training agree")


if __name__ == "__main__":
    main()
