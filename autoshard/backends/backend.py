"""A model of one compiler for one chip: five policies, each number with what shows it."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from autoshard.backends.chip_data import POLICIES, ChipData, chip_error
from autoshard.backends.collectives import CollectivePolicy
from autoshard.backends.fusion import FusionPolicy
from autoshard.backends.layout import LayoutPolicy
from autoshard.backends.memory import MemoryPolicy
from autoshard.backends.probed import Probed
from autoshard.backends.schedule import SchedulePolicy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Backend:
    """The model of one compiler for one chip, as probes showed.

    Args:
        name: As `Hardware.compiler` has it: `tpu-v5e`.
        platform: The XLA backend: `cpu`, `gpu` or `tpu`.
        title: Of the generic model: `generic TPU`.
        chip: `v5e`; None for a generic model.
        is_probed: Probes were compiled for this chip; otherwise numbers are those of the model that
            it replaces fields of.
        fusion: Which ops one kernel computes.
        layout: Widths, tiles and dimension orders.
        collectives: What sharded ops and reshards become.
        memory: Where buffers lie.
        schedule: What runs when, and beside what.
        records: By `policy.field`, the number with its unit, probe, compiler and date.
    """

    name: str
    platform: str
    title: str
    chip: str | None
    is_probed: bool
    fusion: FusionPolicy
    layout: LayoutPolicy
    collectives: CollectivePolicy
    memory: MemoryPolicy
    schedule: SchedulePolicy
    records: Mapping[str, Probed]

    @property
    def compiler(self) -> str:
        """The compilers whose behaviour was recorded: `libtpu 0.0.42, 0.0.52`."""
        versions: dict[str, set[str]] = {}
        for record in self.records.values():
            if record.compiler is not None:
                program, _, version = record.compiler.rpartition(" ")
                versions.setdefault(program, set()).add(version)
        return "; ".join(f"{name} {', '.join(sorted(versions[name]))}" for name in sorted(versions))

    @property
    def lowering_platform(self) -> str:
        """The platform whose lowering rules of JAX a program is read in; GPUs are read as TPUs."""
        return "cpu" if self.platform == "cpu" else "tpu"

    def describe(self, machine: str) -> str:
        """The name of the model in reports: `libtpu 0.0.42 for v5e`.

        Args:
            machine: Name of the machine planned for, where the model names no chip.
        """
        if self.is_probed:
            return f"{self.compiler} for {self.chip}"
        return f"{self.title}, not probed for {self.chip or machine}"


Model: TypeAlias = Callable[[], Backend]
"""A backend that is read when it is first asked for."""


def generic(platform: str, data: ChipData) -> Backend:
    """A model from a file that has every field of every policy.

    Raises:
        InputError: A field is missing, or the title.
    """
    problems = [
        f"`{section}.{field.name}` is missing"
        for section, policy in POLICIES.items()
        for field in dataclasses.fields(policy)
        if f"{section}.{field.name}" not in data.records
    ]
    if data.title is None:
        problems.append("`title` is null; expected how reports call the generic model")
    if problems or data.title is None:
        raise chip_error(problems, data.name)
    return _model(platform, data.title, data, data.records)


def replace(base: Backend, data: ChipData) -> Backend:
    """The model of a chip: a base, with the fields that the chip's file has.

    Args:
        base: The model whose fields hold where the file has none.
        data: The chip's file.
    """
    records = types.MappingProxyType({**base.records, **data.records})
    return _model(base.platform, data.title or base.title, data, records)


def _model(platform: str, title: str, data: ChipData, records: Mapping[str, Probed]) -> Backend:
    """The model of a file in which these records hold, one for every field."""
    policies: dict[str, Any] = {
        section: policy(
            **{
                field.name: records[f"{section}.{field.name}"].value
                for field in dataclasses.fields(policy)
            }
        )
        for section, policy in POLICIES.items()
    }
    return Backend(
        name=data.name,
        platform=platform,
        title=title,
        chip=data.chip,
        is_probed=data.is_probed,
        records=records,
        **policies,
    )
