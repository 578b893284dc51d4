"""A machine as numbers: peaks, memory and links of one device, each with unit and source.

A device is what JAX calls one: a TPU chip (half a chip on TPU7x), a GPU, or one of the host's
CPU devices. `catalog` holds the known machines, `hardware_file` reads one's own.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from cost_models.errors import CostModelError
from cost_models.quantities import (
    Bytes,
    BytesPerSecond,
    CapacityBytes,
    Count,
    FlopsPerSecond,
    Fraction,
    Quantity,
    Seconds,
    quantity_problem,
)

Backend: TypeAlias = Literal["cpu", "tpu", "gpu"]
SliceShape: TypeAlias = tuple[Count, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakFlops:
    """Peak FLOP/s of one device by dtype family (one multiply-add is two FLOP)."""

    float64: FlopsPerSecond
    float32: FlopsPerSecond
    bfloat16: FlopsPerSecond
    float16: FlopsPerSecond
    float8: FlopsPerSecond
    int8: FlopsPerSecond

    def of(self, family: str) -> float:
        """Peak of a family named as the attributes are; see `roofline.dtype_family`.

        Raises:
            CostModelError: There is no such family.
        """
        families = [field.name for field in dataclasses.fields(self)]
        if family not in families:
            raise CostModelError(
                f'"{family}" is not a dtype family',
                where="argument `family`",
                fix=f"write one of {', '.join(families)}",
            )
        return float(getattr(self, family))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """What one device computes.

    Attributes:
        matmul: Peaks of matrix units.
        vector: Peaks of everything that is not a matrix product.
        matmul_tile: (m, n, k) elements that a matrix unit works on at once; a local matmul is
            padded up to it. (1, 1, 1) where padding does not matter.
        kernel_launch_seconds: Fixed price of one kernel or fused op.
        source: Where the numbers are from.
    """

    matmul: PeakFlops
    vector: PeakFlops
    matmul_tile: tuple[Count, Count, Count]
    kernel_launch_seconds: Seconds
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Main memory of one device.

    Attributes:
        capacity_bytes: What the device has.
        reserved_bytes: What the runtime keeps for itself; a program cannot use it.
        bytes_per_second: Peak of reads and writes together.
        source: Where the numbers are from.
    """

    capacity_bytes: CapacityBytes
    reserved_bytes: Bytes
    bytes_per_second: BytesPerSecond
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A physical link as one device sees it.

    Attributes:
        bytes_per_second: Nominal bandwidth in one direction; both directions run at once.
        efficiency: Fraction of it that large collectives reach.
        latency_seconds: Of one hop, or of one message through a switch.
        source: Where the numbers are from.
    """

    bytes_per_second: BytesPerSecond
    efficiency: Fraction
    latency_seconds: Seconds
    source: str

    @property
    def usable_bytes_per_second(self) -> float:
        """What a large transfer gets in one direction."""
        return self.bytes_per_second * self.efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class Torus:
    """Chips joined to their neighbours in a grid that may close into rings.

    Attributes:
        link: One link between neighbouring chips, per device of the chip.
        num_dims: Dimensions of the grid.
        slice_shapes: Shapes a slice may have, in chips, one or more per number of chips; the
            first that fits the mesh best is taken.
        wrap_multiple: A dimension closes into a ring when this divides its size.
        wrap_needs_every_dim: The rule must hold in all dimensions or none closes.
        devices_per_chip: JAX devices on one chip.
        chip_link: Between the devices of one chip; needed where there are several.
        source: Where the rules are from.
    """

    link: Link
    num_dims: Count
    slice_shapes: tuple[SliceShape, ...]
    wrap_multiple: Count
    wrap_needs_every_dim: bool
    devices_per_chip: Count
    chip_link: Link | None
    source: str

    def wraps(self, shape: tuple[int, ...]) -> tuple[bool, ...]:
        """Which dimensions of a slice of that shape (in chips) close into rings."""
        fits = tuple(size % self.wrap_multiple == 0 and size > 2 for size in shape)
        if self.wrap_needs_every_dim and not all(fits):
            return (False,) * len(shape)
        return fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Devices that all reach one another at full speed.

    Attributes:
        link: From one device into the switch.
        domain_size: Devices on one switch; beyond it the network starts.
        source: Where the number is from.
    """

    link: Link
    domain_size: Count
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One kind of machine.

    Attributes:
        name: As users write it: "tpu-v5p".
        backend: The XLA backend that compiles for it.
        has_reduce_scatter: False where the compiler leaves an all-reduce and a slice.
        collective_launch_seconds: Fixed price of one collective, before any hop.
        compute: Peaks.
        memory: Memory.
        torus: Links of a torus machine; it has no `switch` then.
        switch: Links of a switched machine; it has no `torus` then.
        network: One device's share of the network between slices or nodes, if there is one.

    Raises:
        CostModelError: Numbers out of range or at odds with one another; every one is named.
    """

    name: str
    backend: Backend
    has_reduce_scatter: bool
    collective_launch_seconds: Seconds
    compute: Compute
    memory: Memory
    torus: Torus | None
    switch: Switch | None
    network: Link | None

    def __post_init__(self) -> None:
        problems = verify_hardware(self)
        if problems:
            raise hardware_error(problems, where=f'hardware "{self.name}"')


def verify_hardware(hardware: Hardware) -> tuple[str, ...]:
    """Every number out of range and every contradiction, each with its field path."""
    problems = list(_range_problems(hardware, ""))
    if (hardware.torus is None) == (hardware.switch is None):
        problems.append("`torus`, `switch`: exactly one of them must be given, the other null")
    if hardware.memory.reserved_bytes >= hardware.memory.capacity_bytes:
        problems.append(
            f"`memory.reserved_bytes` is {hardware.memory.reserved_bytes}; expected less than "
            f"`memory.capacity_bytes`, {hardware.memory.capacity_bytes}"
        )
    torus = hardware.torus
    if torus is not None:
        problems.extend(
            f"`torus.slice_shapes[{index}]` has {len(shape)} dimensions; "
            f"expected `torus.num_dims`, {torus.num_dims}"
            for index, shape in enumerate(torus.slice_shapes)
            if len(shape) != torus.num_dims
        )
        if not torus.slice_shapes:
            problems.append("`torus.slice_shapes` is empty; expected at least one shape")
        if torus.devices_per_chip > 1 and torus.chip_link is None:
            problems.append(
                f"`torus.chip_link` is null; expected a link, since "
                f"`torus.devices_per_chip` is {torus.devices_per_chip}"
            )
    return tuple(problems)


def hardware_error(problems: tuple[str, ...] | list[str], *, where: str) -> CostModelError:
    """One error for all the problems of a machine description."""
    noun = "problem" if len(problems) == 1 else "problems"
    lines = "".join(f"\n  - {problem}" for problem in problems)
    return CostModelError(
        f"{len(problems)} {noun} in the hardware description:{lines}",
        where=where,
        fix="give every number in its base unit: bytes, bytes per second, FLOP per second, seconds",
    )


def _range_problems(value: object, path: str, quantity: Quantity | None = None) -> Iterator[str]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value), include_extras=True)
        for field in dataclasses.fields(value):
            inner = f"{path}.{field.name}" if path else field.name
            yield from _range_problems(
                getattr(value, field.name), inner, quantity_of(hints[field.name])
            )
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _range_problems(item, f"{path}[{index}]", quantity)
    elif quantity is not None and isinstance(value, (int, float)):
        problem = quantity_problem(value, quantity)
        if problem:
            yield f"`{path}` {problem}"


def quantity_of(hint: object) -> Quantity | None:
    """The quantity a type hint carries, also inside a tuple's; None for text and sections."""
    for item in getattr(hint, "__metadata__", ()):
        if isinstance(item, Quantity):
            return item
    found = (quantity_of(arg) for arg in typing.get_args(hint))
    return next((quantity for quantity in found if quantity is not None), None)
