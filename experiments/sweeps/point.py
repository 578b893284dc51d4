"""A point of a sweep: one workload planned once, with every option spelled out."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

AXIS_NAMES = (
    (),
    ("data",),
    ("data", "model"),
    ("data", "fsdp", "model"),
    ("pod", "data", "fsdp", "model"),
)
"""What the axes of a mesh written `8x8` are called, by their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What `autoshard.optimize` is told beside the program, in words that fit on a command line.

    The defaults are those of `autoshard.optimize`; only `mesh` has none there.

    Attributes:
        mesh: `2x4`, or named as in `data=2,model=4`.
        hardware: A known machine, with `_` or `-` in its name, or a YAML file.
        memory: Budget of one device: `auto`, a fraction such as 0.9, an amount such as `80GiB`, or
            null for none.
        solver: An engine, or `auto`.
        time_limit_seconds: For planning.
        relative_gap: Stop once the plan is proven this close to the best.
        seed: One seed, one plan.
        schedules: `auto` or `none`.
        overlap: `auto` or `none`.
        baselines: Price plans written by hand too.
    """

    mesh: str = "2x4"
    hardware: str = "cpu-host"
    memory: Any = "auto"
    solver: str = "auto"
    time_limit_seconds: float = 180.0
    relative_gap: float = 0.01
    seed: int = 0
    schedules: str = "auto"
    overlap: str = "auto"
    baselines: bool = True

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for `autoshard.optimize`."""
        options = asdict(self)
        memory = options.pop("memory")
        return {
            **options,
            "mesh": mesh_text(self.mesh),
            "hardware": hardware_name(self.hardware),
            "memory_budget": memory,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A workload with all its sizes, and how it is planned.

    Attributes:
        workload: A name of the registry.
        sizes: Every field of the model's config, those left at their defaults too.
        options: How it is planned.
    """

    workload: str
    sizes: Mapping[str, Any]
    options: PlanOptions = field(default_factory=PlanOptions)

    def asked(self) -> dict[str, Any]:
        """What makes this point another than its neighbours, the same however it was written.

        A machine's file counts by what it says, not by where it lies.
        """
        hardware = hardware_name(self.options.hardware)
        if is_file_name(hardware):
            digest = hashlib.sha256(Path(hardware).read_bytes()).hexdigest()[:8]
            hardware = f"{Path(hardware).name}:{digest}"
        return {
            "workload": self.workload,
            "sizes": dict(self.sizes),
            **asdict(self.options),
            "mesh": mesh_text(self.options.mesh),
            "hardware": hardware,
        }

    @property
    def identity(self) -> str:
        """Sixteen hexadecimal digits of what is asked: the same point has them on any machine.

        The commit is not part of it: a sweep that is begun again keeps what it has.
        """
        text = json.dumps(self.asked(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """One line that `point_from_json` reads."""
        return json.dumps(asdict(self))


def point_from_json(text: str) -> Point:
    """Read what `Point.to_json` wrote."""
    content = json.loads(text)
    return Point(
        workload=content["workload"],
        sizes=with_tuples(content["sizes"]),
        options=PlanOptions(**content["options"]),
    )


def with_tuples(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes as a model's config has them, tuples where JSON and YAML have lists."""
    return {name: tuple(s) if isinstance(s, list) else s for name, s in sizes.items()}


def mesh_text(mesh: str) -> str:
    """Name the axes of a mesh written in sizes alone; anything else is left for autoshard to read.

    >>> mesh_text("8x4")
    'data=8,model=4'
    """
    sizes = mesh.split("x")
    if not re.fullmatch(r"\d+(x\d+)*", mesh) or len(sizes) >= len(AXIS_NAMES):
        return mesh
    named = zip(AXIS_NAMES[len(sizes)], sizes, strict=True)
    return ",".join(f"{name}={size}" for name, size in named)


def hardware_name(hardware: str) -> str:
    """A known machine's name as the catalog has it; a file's is left alone.

    >>> hardware_name("tpu_v5p")
    'tpu-v5p'
    """
    return hardware if is_file_name(hardware) else hardware.replace("_", "-")


def is_file_name(hardware: str) -> bool:
    """Whether a machine is given by a YAML file."""
    return hardware.endswith((".yaml", ".yml"))
