"""Plans one point, or sweeps over many: a row of a table for each.

    python experiments/run.py workload=gpt mesh=2x4 hardware=tpu_v5p memory=0.9
    python experiments/run.py -m workload=gpt,mlp mesh=8,2x4,4x2 folder=my_sweep
    python experiments/run.py -m +recipe=mesh_shapes hydra/launcher=joblib

The same command after a crash goes on where it ended. `docs/how-to/run-a-sweep.md` tells the rest.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hydra
from omegaconf import DictConfig

from experiments.sweeps.job import python_path, run_point
from experiments.sweeps.options import folder_of, point_of, register_options

register_options()
# For processes that launchers start: what `main` uses they import by name.
os.environ["PYTHONPATH"] = python_path()


@hydra.main(version_base="1.3", config_path="conf", config_name="sweep")
def main(config: DictConfig) -> None:
    """Bring the point into the sweep's table."""
    point, folder = point_of(config), folder_of(config)
    done = run_point(point, folder, again=config.again, limit_seconds=config.limit_seconds)
    print(f"{point.workload} on {point.options.mesh}: {done}", flush=True)


if __name__ == "__main__":
    main()
