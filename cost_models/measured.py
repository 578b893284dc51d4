"""What was measured on a machine: samples, what was fitted to them, and how well it fits.

A machine that was calibrated carries one `Measured`, the optional section `measured` of its file.
Its collectives replace the textbook's prices; the other numbers stand where every machine has them.
"""

from __future__ import annotations

import datetime
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from cost_models.quantities import Bytes, Count, Quantity, Seconds

CollectiveKind: TypeAlias = Literal[
    "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"
]

COLLECTIVE_KINDS: tuple[CollectiveKind, ...] = typing.get_args(CollectiveKind)
"""Every kind of collective that has a price."""

Duration = Annotated[float, Quantity("seconds", 1e-12, 1e5, "1.0e-3")]
SecondsPerByte = Annotated[float, Quantity("seconds per byte", 0.0, 1e-3, "1.0e-9")]
Work = Annotated[float, Quantity("an amount", 0.0, 1e21, "2.0e+9")]
Ratio = Annotated[float, Quantity("a ratio", 0.0, 1e9, "0.05")]
Explained = Annotated[float, Quantity("a share of 1 or less", -1e9, 1.0, "0.98")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSample:
    """How long a collective took, all groups of the machine at work at once.

    Attributes:
        num_devices: Of one group.
        full_bytes: Of one device, the larger side: gathered result, or operand.
        seconds: Of one collective, the median of the repeats.
        spread: Median distance of the repeats from it, as a share of it.
    """

    num_devices: Count
    full_bytes: Bytes
    seconds: Duration
    spread: Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSample:
    """How long an op took, all devices of the machine at work at once.

    Attributes:
        flops: Of one device.
        bytes_accessed: Of one device, read and written.
        matmul_dims: (m, n, k) of a product of matrices, else null.
        seconds: Of one op, the median of the repeats.
        spread: Median distance of the repeats from it, as a share of it.
    """

    flops: Work
    bytes_accessed: Work
    matmul_dims: tuple[Count, Count, Count] | None
    seconds: Duration
    spread: Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """How far the prices are from the samples they were fitted to.

    Attributes:
        median_error: Median of |price - sample| / sample.
        max_error: Largest of them.
        r_squared: Share of the variance of the samples' logarithms that the prices explain.
    """

    median_error: Ratio
    max_error: Ratio
    r_squared: Explained


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFit:
    """Price of one kind of collective, inside a node or slice.

    `launch + steps * step + bytes_factor * (what the links alone take) + local * bytes`

    Attributes:
        kind: Of collective.
        launch_seconds: Fixed price.
        step_seconds: Of one step of the group, hop or message.
        bytes_factor: 1 where the links are used as the textbook says, above where less well.
        local_seconds_per_byte: Per byte of the larger side on one device, however many devices
            the group has: copies and sums in its own memory.
        residuals: Against `samples`.
        samples: What it was fitted to.
    """

    kind: CollectiveKind
    launch_seconds: Seconds
    step_seconds: Seconds
    bytes_factor: Ratio
    local_seconds_per_byte: SecondsPerByte
    residuals: Residuals
    samples: tuple[CollectiveSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFit:
    """Numbers of the machine that were fitted to one kind of op.

    Attributes:
        op_class: As the roofline has it.
        dtype: Of the operands.
        numbers: Field paths of the numbers fitted: `memory.bytes_per_second`.
        residuals: Against `samples`.
        samples: What they were fitted to.
    """

    op_class: str
    dtype: str
    numbers: tuple[str, ...]
    residuals: Residuals
    samples: tuple[OpSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Numbers that were not fitted and are those of the base machine, or scaled from them."""

    numbers: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Where the numbers of a calibrated machine are from.

    Attributes:
        date: Of the measurement: `2026-11-22`.
        base: Name of the machine that numbers not measured are from.
        platform: Of the devices, as JAX names it.
        device_kind: Likewise.
        num_devices: That were at work at once.
        host: Kind of system and number of cores; no name.
        versions: Of JAX and jaxlib.
        collectives: What collectives cost; one entry per kind at most.
        ops: What ops were measured for which numbers.
        kept: What was not measured, or could not be fitted, and why.
    """

    date: str
    base: str
    platform: str
    device_kind: str
    num_devices: Count
    host: str
    versions: str
    collectives: tuple[CollectiveFit, ...]
    ops: tuple[OpFit, ...]
    kept: tuple[Kept, ...]

    def collective(self, kind: CollectiveKind) -> CollectiveFit | None:
        """What was fitted for that kind of collective, if it was."""
        return next((fit for fit in self.collectives if fit.kind == kind), None)


def verify_measured(measured: Measured) -> Iterator[str]:
    """What no single number shows: the date, and kinds given twice."""
    try:
        datetime.date.fromisoformat(measured.date)
    except ValueError:
        yield f'`measured.date` is "{measured.date}"; expected a date such as 2026-11-22'
    kinds = [fit.kind for fit in measured.collectives]
    for kind in sorted({kind for kind in kinds if kinds.count(kind) > 1}):
        yield f'`measured.collectives` has "{kind}" twice; expected each kind once'
