"""A machine's numbers from measured times: what was measured is fitted, the rest kept and marked.

Times are those of one device while all of them do the same, as in a sharded program.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from cost_models.calibrate_collectives import fit_collectives, measured_group
from cost_models.calibrate_ops import fit_ops
from cost_models.errors import CostModelError
from cost_models.hardware import Backend, Hardware
from cost_models.measured import CollectiveKind, CollectiveSample, Kept, Measured, OpSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What was measured, where and when.

    Attributes:
        backend: The XLA backend of the devices.
        capacity_bytes: Memory of one device, as it reports it; None where it does not.
        collectives: Samples by kind of collective.
        ops: Samples by op class and dtype.
        skipped: Numbers that were not measured, each with the reason.

    The others are those of `Measured`.
    """

    date: str
    backend: Backend
    platform: str
    device_kind: str
    num_devices: int
    host: str
    versions: str
    capacity_bytes: int | None
    collectives: dict[CollectiveKind, tuple[CollectiveSample, ...]]
    ops: dict[tuple[str, str], tuple[OpSample, ...]]
    skipped: tuple[Kept, ...] = ()


def check_base(base: Hardware, backend: str, num_devices: int, device_kind: str) -> None:
    """Raises a CostModelError where the base is of another backend, or its nodes are too small."""
    if base.backend != backend:
        raise CostModelError(
            f'the base "{base.name}" is a {base.backend} machine, and the devices are {backend}',
            where=f"{num_devices} x {device_kind}",
            fix=f"give a base of backend {backend}",
        )
    if num_devices > 1:
        measured_group(base, num_devices, num_devices)


def calibrate_hardware(base: Hardware, measurements: Measurements, *, name: str) -> Hardware:
    """The base machine with the numbers that the measurements tell.

    Args:
        base: Where numbers that were not measured are from, and the kind of links.
        measurements: Times of collectives and ops.
        name: Of the new machine.

    Raises:
        CostModelError: The base is of another backend or too small, or no fit makes sense.
    """
    check_base(base, measurements.backend, measurements.num_devices, measurements.device_kind)
    source = (
        f"measured {measurements.date} on {measurements.num_devices} x "
        f"{measurements.device_kind}, {measurements.versions}; see `measured`"
    )
    machine, op_fits, ops_kept = fit_ops(base, measurements.ops, source)
    machine, collective_fits, collectives_kept = fit_collectives(
        machine, measurements.collectives, measurements.num_devices, source
    )
    kept = [*measurements.skipped, *ops_kept, *collectives_kept]
    if not op_fits and not collective_fits:
        reasons = "".join(f"\n  - {item.numbers}: {item.reason}" for item in kept)
        raise CostModelError(
            f"nothing could be fitted:{reasons}",
            where=f"{measurements.num_devices} x {measurements.device_kind}",
            fix="measure longer, with nothing else running",
        )
    machine, unknown = _with_capacity(machine, measurements.capacity_bytes, source)
    if machine.network is not None:
        unknown = (*unknown, Kept(numbers="network", reason="one node or slice was measured"))
    return dataclasses.replace(
        machine,
        name=name,
        measured=Measured(
            date=measurements.date,
            base=base.name,
            platform=measurements.platform,
            device_kind=measurements.device_kind,
            num_devices=measurements.num_devices,
            host=measurements.host,
            versions=measurements.versions,
            collectives=collective_fits,
            ops=op_fits,
            kept=(*kept, *unknown),
        ),
    )


def _with_capacity(
    machine: Hardware, capacity_bytes: int | None, source: str
) -> tuple[Hardware, tuple[Kept, ...]]:
    if capacity_bytes is None:
        reason = "the devices do not report their memory"
        return machine, (Kept(numbers="memory.capacity_bytes", reason=reason),)
    memory = dataclasses.replace(
        machine.memory,
        capacity_bytes=capacity_bytes,
        reserved_bytes=0,
        source=f"{source}; capacity: what the runtime offers programs",
    )
    return dataclasses.replace(machine, memory=memory), ()
