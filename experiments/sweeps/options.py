"""What a sweep can be told on the command line: dataclasses, given to Hydra as they are."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from experiments.sweeps.folder import SweepFolder
from experiments.sweeps.job import Again
from experiments.sweeps.point import PlanOptions, Point, with_tuples
from experiments.workloads import WORKLOADS


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions(PlanOptions):
    """How one point is planned, and where its row goes.

    Attributes:
        workload: A name of the registry, and the sizes under it.
        folder: The sweep's folder; a relative one lies in the current folder.
        again: Which finished points are run once more.
        limit_seconds: When a point is given up; null for never.
    """

    workload: Any = MISSING
    folder: str = "sweep"
    again: Again = Again.none
    limit_seconds: float | None = None


def register_options() -> None:
    """Tell Hydra the options, and every workload with its sizes and their types."""
    store = ConfigStore.instance()
    store.store(name="options", node=_open(SweepOptions))
    for name, preset in WORKLOADS.items():
        node = {"name": name, "sizes": _open(preset.config)}
        store.store(group="workload", name=name, node=node)


def point_of(config: DictConfig) -> Point:
    """The point that a resolved config asks for."""
    sizes = OmegaConf.to_container(config.workload.sizes, resolve=True)
    assert isinstance(sizes, dict)
    return Point(
        workload=config.workload.name,
        sizes=with_tuples({str(name): size for name, size in sizes.items()}),
        options=PlanOptions(**{f.name: config[f.name] for f in fields(PlanOptions)}),
    )


def folder_of(config: DictConfig) -> SweepFolder:
    """The folder that a resolved config asks for."""
    return SweepFolder(Path(config.folder))


def _open(options: Any) -> DictConfig:
    """A frozen dataclass as a config that may still be overridden."""
    config: DictConfig = OmegaConf.structured(options)
    OmegaConf.set_readonly(config, False)
    return config
