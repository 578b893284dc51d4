"""A machine as numbers: peaks, memory and links of one device, each with unit and source.

A device is what JAX calls one: a TPU chip (half a chip on TPU7x), a GPU, or one of the host's
CPU devices. `catalog` holds the known machines, `hardware_file` reads one's own.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from cost_models.errors import CostModelError
from cost_models.measured import Measured, verify_measured
from cost_models.quantities import (
    Bytes,
    BytesPerSecond,
    CapacityBytes,
    Count,
    ElementsPerSecond,
    FlopsPerSecond,
    Fraction,
    Hertz,
    Index,
    Quantity,
    Seconds,
    SmallFraction,
    quantity_problem,
)

Backend: TypeAlias = Literal["cpu", "tpu", "gpu"]
SliceShape: TypeAlias = tuple[Count, ...]
AlgorithmName: TypeAlias = Literal["levels", "ring", "tree", "doubling", "in-switch"]
"""Ways to run a collective; see `cost_models.algorithms`."""


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
class ElementPasses:
    """Elements that pass through a vector unit per second, beside the bytes of a kernel.

    Attributes:
        read_bytes: Bytes, read from VMEM.
        kept: Of 4 bytes, written to VMEM.
        narrowed: Written in less than 4 bytes, to VMEM or HBM, or taken up by the reductions of one
            kernel.
        plain_reduced: Taken up by one reduction of what lies in memory as it is.
        product_narrowed: Written by matmuls in less than 4 bytes, to HBM; None where as many as are
            `narrowed`.
        product_kept: The same to VMEM.
        written: Of 4 bytes and more, written to HBM by what is no matmul; None where memory is
            always slower.
    """

    read_bytes: BytesPerSecond
    kept: ElementsPerSecond
    narrowed: ElementsPerSecond
    plain_reduced: ElementsPerSecond
    product_narrowed: ElementsPerSecond | None = None
    product_kept: ElementsPerSecond | None = None
    written: ElementsPerSecond | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """What one device computes.

    Attributes:
        matmul: Peaks of matrix units.
        vector: Peaks of everything that is not a matrix product.
        matmul_tile: (m, n, k) elements that a matrix unit works on at once; a local matmul is
            padded up to it. (1, 1, 1) where padding does not matter.
        kernel_launch_seconds: Fixed price of one kernel or fused op.
        clock_hertz: Clock of the matrix units, which a TPU compiler's cycles count; None where it
            is not known or nothing counts in it.
        passes: What the vector unit takes at most; None where memory is always slower.
        source: Where the numbers are from.
    """

    matmul: PeakFlops
    vector: PeakFlops
    matmul_tile: tuple[Count, Count, Count]
    kernel_launch_seconds: Seconds
    clock_hertz: Hertz | None = None
    passes: ElementPasses | None = None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatteredAccess:
    """Share of the memory bandwidth that ops with scattered accesses reach."""

    gather: SmallFraction
    scatter: SmallFraction
    sort: SmallFraction


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedAccess:
    """Share of the memory bandwidth that ops reach which go through memory in order.

    Attributes:
        products: Matrix products and convolutions, with what is computed with them.
        elementwise: Ops element by element, and reductions.
        copies: Copies, also into another order of dimensions.
        conversions: Conversions to narrower elements that nothing is computed with.
        fills: Writing one number everywhere.
        row_copies: Copies of rows that do not fill their lanes into lanes of their own, of elements
            of 4 bytes and more; None: as all copies.
        held_row_copies: The same where these lie in on-chip memory; None: as `row_copies`.
    """

    products: SmallFraction
    elementwise: SmallFraction
    copies: SmallFraction
    conversions: SmallFraction
    fills: SmallFraction
    row_copies: SmallFraction | None = None
    held_row_copies: SmallFraction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Main memory of one device.

    Attributes:
        capacity_bytes: What the device has.
        reserved_bytes: What the runtime keeps for itself; a program cannot use it.
        bytes_per_second: Peak of reads and writes together.
        source: Where the numbers are from.
        scattered: What gathers, scatters and sorts reach; None for the roofline's own shares.
        streamed: What all other ops reach; None where that is the whole bandwidth.
    """

    capacity_bytes: CapacityBytes
    reserved_bytes: Bytes
    bytes_per_second: BytesPerSecond
    source: str
    scattered: ScatteredAccess | None = None
    streamed: StreamedAccess | None = None


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
class Host:
    """The memory of a host as one of its devices sees it.

    Attributes:
        capacity_bytes: A device's share of it.
        bytes_per_second: Each way, with all devices of the host at once.
        source: Where the numbers are from.
    """

    capacity_bytes: CapacityBytes
    bytes_per_second: BytesPerSecond
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RingOrder:
    """How JAX numbers the devices of one small slice: not row by row, but round a ring.

    Attributes:
        shape: Of the slice, in chips.
        devices: devices[i] is the place of mesh device i, counted with the devices of a chip
            fastest, then the first dimension, then the second, then the third.
        only_whole: True where it is used for meshes of one axis alone.
    """

    shape: SliceShape
    devices: tuple[Index, ...]
    only_whole: bool


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
        ring_orders: Slices whose devices JAX numbers round a ring.
        source: Where the rules are from.
    """

    link: Link
    num_dims: Count
    slice_shapes: tuple[SliceShape, ...]
    wrap_multiple: Count
    wrap_needs_every_dim: bool
    devices_per_chip: Count
    chip_link: Link | None
    ring_orders: tuple[RingOrder, ...] = ()
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
        reduction_efficiency: Fraction of the link that an all-reduce reaches whose sums the switch
            itself makes, so that each device sends and receives every byte once; None where
            the switch does not add.
        source: Where the numbers are from.
    """

    link: Link
    domain_size: Count
    reduction_efficiency: Fraction | None = None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One kind of machine.

    Attributes:
        name: As users write it: "tpu-v5p".
        backend: The XLA backend that compiles for it.
        compiler: Name of the model of what that compiler makes of programs on this chip; None: the
            generic model of the backend.
        has_reduce_scatter: False where the compiler leaves an all-reduce and a slice.
        collective_launch_seconds: Fixed price of one collective, before any hop.
        compute: Peaks.
        memory: Memory.
        torus: Links of a torus machine; it has no `switch` then.
        switch: Links of a switched machine; it has no `torus` then.
        network: One device's share of the network between slices or nodes, if there is one.
        host: Host memory that residuals may be offloaded to; None: no offload is offered.
        num_slices: Slices or nodes of the machine; None: as many as a mesh needs. Given, a mesh
            must have as many devices as the machine.
        algorithms: How the backend's library can run collectives; the fastest is taken.
        measured: What was measured on it, if it was calibrated; its collectives come first.

    Raises:
        CostModelError: Numbers out of range or at odds with one another; every one is named.
    """

    name: str
    backend: Backend
    compiler: str | None = None
    has_reduce_scatter: bool
    collective_launch_seconds: Seconds
    compute: Compute
    memory: Memory
    torus: Torus | None
    switch: Switch | None
    network: Link | None
    host: Host | None = None
    num_slices: Count | None = None
    algorithms: tuple[AlgorithmName, ...] = ("levels",)
    measured: Measured | None = None

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
    if (hardware.num_slices or 1) > 1 and hardware.network is None:
        problems.append(f"`network` is null; expected a link between {hardware.num_slices} slices")
    if not hardware.algorithms:
        problems.append("`algorithms` is empty; expected at least one")
    if hardware.torus is not None:
        problems.extend(_torus_problems(hardware.torus))
    if hardware.measured is not None:
        problems.extend(verify_measured(hardware.measured))
    return tuple(problems)


def _torus_problems(torus: Torus) -> Iterator[str]:
    for index, shape in enumerate(torus.slice_shapes):
        if len(shape) != torus.num_dims:
            yield (
                f"`torus.slice_shapes[{index}]` has {len(shape)} dimensions; "
                f"expected `torus.num_dims`, {torus.num_dims}"
            )
    if not torus.slice_shapes:
        yield "`torus.slice_shapes` is empty; expected at least one shape"
    if torus.devices_per_chip > 1 and torus.chip_link is None:
        yield (
            f"`torus.chip_link` is null; expected a link, since "
            f"`torus.devices_per_chip` is {torus.devices_per_chip}"
        )
    for index, order in enumerate(torus.ring_orders):
        num_devices = math.prod(order.shape) * torus.devices_per_chip
        if len(order.shape) != torus.num_dims or sorted(order.devices) != list(range(num_devices)):
            yield (
                f"`torus.ring_orders[{index}]` does not name each device of a slice of shape "
                f"{list(order.shape)} once"
            )


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
