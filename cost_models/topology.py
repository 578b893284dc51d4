"""How the axes of a logical mesh lie on the physical links of a machine.

A machine is a list of physical dimensions, outermost first: the network between slices or nodes,
then the dimensions of a torus (and the devices of one chip), or one switch. A mesh axis takes
parts of them. On a torus the axes are matched to whole dimensions where that can be done, as
JAX's own device order does; behind switches devices are numbered row by row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from cost_models.errors import CostModelError
from cost_models.hardware import Hardware, Link, Torus

LinkKind: TypeAlias = Literal["ring", "line", "switch", "network"]


@dataclass(frozen=True, slots=True)
class LinkDim:
    """One physical dimension of the machine.

    Attributes:
        index: Its place in the machine's list, outermost first.
        kind: What joins the devices along it.
        size: Devices along it.
        bytes_per_second: Usable, in one direction of one link of one device.
        latency_seconds: Of one hop, or one message through a switch or network.
    """

    index: int
    kind: LinkKind
    size: int
    bytes_per_second: float
    latency_seconds: float


@dataclass(frozen=True, slots=True)
class DimPart:
    """Part of a physical dimension: `size` positions after an outer part of `pre_size`."""

    dim: LinkDim
    pre_size: int
    size: int


@dataclass(frozen=True, slots=True)
class GroupDim:
    """What a group of devices finds along one physical dimension, other groups at work beside it.

    Attributes:
        kind: What joins the devices.
        size: Devices of the group along the dimension.
        gather_bytes_per_second: What one device can receive, all its links on the dimension
            together.
        steps: Hops, or messages one after another, until the farthest device is heard.
        latency_seconds: Of one step.
        exchange_seconds_per_byte: All-to-all: per byte of one device's operand.
        permute_seconds_per_byte: A permutation of the group's devices: per byte of one's operand.
    """

    kind: LinkKind
    size: int
    gather_bytes_per_second: float
    steps: int
    latency_seconds: float
    exchange_seconds_per_byte: float
    permute_seconds_per_byte: float


@dataclass(frozen=True, slots=True)
class AxisLink:
    """A mesh axis on the machine.

    Attributes:
        size: Devices along the axis.
        parts: The parts of physical dimensions it takes, outermost first.
    """

    size: int
    parts: tuple[DimPart, ...]

    @property
    def group(self) -> tuple[GroupDim, ...]:
        """The whole axis as one group of devices."""
        return group_dims([(self, 1, self.size)])

    @property
    def kind(self) -> LinkKind:
        """The slowest kind of link in the axis; an axis over several torus dims is a ring."""
        kinds = [dim.kind for dim in self.group]
        for kind in ("network", "switch"):
            if kind in kinds:
                return kind
        return "ring" if "ring" in kinds or len(kinds) > 1 else "line"

    @property
    def wrap(self) -> bool:
        """True when the axis closes on itself: a ring, or a switch that reaches every device."""
        return self.kind != "line"

    @property
    def bandwidth_bytes_per_second(self) -> float:
        """What one device receives while the whole axis gathers; inf for a single device.

        Source: `gather_seconds_per_byte`.
        """
        seconds = gather_seconds_per_byte(self.group)
        return (1 - 1 / self.size) / seconds if seconds else math.inf

    @property
    def latency_seconds(self) -> float:
        """Latency of one step, the slowest of the dimensions'; 0 for a single device."""
        return max((dim.latency_seconds for dim in self.group), default=0.0)


def layout_mesh(
    hardware: Hardware,
    axis_sizes: tuple[int, ...],
    *,
    slice_shape: tuple[int, ...] | None = None,
    num_slices: int | None = None,
) -> tuple[AxisLink, ...]:
    """Lays mesh axes on the links of a machine.

    Args:
        hardware: The machine.
        axis_sizes: Devices along each axis, major to minor.
        slice_shape: Torus machines: chips along each dimension of one slice. None: the shape of
            the family that suits the axes best.
        num_slices: Torus machines: slices joined by the network, the outermost part of the mesh.
            None: as few as hold all devices.

    Returns:
        One link per axis, in order.

    Raises:
        CostModelError: A size below 1, a shape the machine cannot have, more devices than fit.
    """
    for index, size in enumerate(axis_sizes):
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise CostModelError(
                f"mesh axis {index} has size {size!r}; expected a whole number from 1 up",
                where=f"mesh {axis_sizes}",
                fix="give every axis the number of devices along it",
            )
    return _layout(hardware, axis_sizes, slice_shape, num_slices)


@lru_cache(maxsize=256)
def _layout(
    hardware: Hardware,
    axis_sizes: tuple[int, ...],
    slice_shape: tuple[int, ...] | None,
    num_slices: int | None,
) -> tuple[AxisLink, ...]:
    if hardware.torus is not None:
        return _torus_layout(hardware, hardware.torus, axis_sizes, slice_shape, num_slices)
    if slice_shape is not None or num_slices is not None:
        raise CostModelError(
            "a slice shape or a number of slices is given for a machine that has no slices",
            where=f'hardware "{hardware.name}"',
            fix="leave both out: nodes follow from the size of the switch domain",
        )
    return _switch_layout(hardware, axis_sizes)


# --- switched machines -------------------------------------------------------------------------


def _switch_layout(hardware: Hardware, axis_sizes: tuple[int, ...]) -> tuple[AxisLink, ...]:
    switch = hardware.switch
    assert switch is not None
    num_devices = math.prod(axis_sizes)
    domain = max(size for size in range(1, switch.domain_size + 1) if num_devices % size == 0)
    dims = []
    if num_devices > domain:
        dims.append(_network_dim(hardware, num_devices // domain))
    if domain > 1:
        dims.append(_link_dim(len(dims), "switch", domain, switch.link))
    links = []
    outer = 1
    for size in axis_sizes:
        links.append(AxisLink(size, _row_major_parts(dims, outer, size)))
        outer *= size
    return tuple(links)


def _row_major_parts(dims: list[LinkDim], outer: int, size: int) -> tuple[DimPart, ...]:
    """The parts that positions `outer` .. `outer * size` of a row-major numbering take.

    An axis whose border falls inside a dimension without dividing it reaches across nodes in an
    uneven way; it is laid on the outermost dimension, the slowest.
    """
    parts = []
    begin, end = outer, outer * size
    low = 1
    for dim in dims:
        high = low * dim.size
        first, last = max(low, begin), min(high, end)
        if first < last:
            if first % low or last % first or high % last:
                return (DimPart(dims[0], 1, size),)
            parts.append(DimPart(dim, first // low, last // first))
        low = high
    return tuple(parts)


def _link_dim(index: int, kind: LinkKind, size: int, link: Link) -> LinkDim:
    return LinkDim(index, kind, size, link.usable_bytes_per_second, link.latency_seconds)


def _network_dim(hardware: Hardware, size: int) -> LinkDim:
    if hardware.network is None:
        raise CostModelError(
            f"the mesh needs {size} nodes or slices, but the machine has no network",
            where=f'hardware "{hardware.name}"',
            fix="use a smaller mesh, or describe the machine's `network`",
        )
    return _link_dim(0, "network", size, hardware.network)


# --- torus machines ----------------------------------------------------------------------------


def _torus_layout(
    hardware: Hardware,
    torus: Torus,
    axis_sizes: tuple[int, ...],
    slice_shape: tuple[int, ...] | None,
    num_slices: int | None,
) -> tuple[AxisLink, ...]:
    num_devices = math.prod(axis_sizes)
    slices, shapes = _slices(hardware, torus, num_devices, slice_shape, num_slices)
    in_slice, across = _take_outermost(axis_sizes, slices)
    best: tuple[tuple[object, ...], tuple[LinkDim, ...], tuple[tuple[int, ...], ...]] | None = None
    for shape in shapes:
        dims = _slice_dims(torus, shape, num_devices // slices)
        key, factors = _best_factors(dims, in_slice)
        if best is None or key < best[0]:
            best = (key, dims, factors)
    assert best is not None
    _, dims, factors = best
    network = _network_dim(hardware, slices) if slices > 1 else None
    links = []
    used = [1] * len(dims)
    used_slices = 1
    for size, from_network, row in zip(axis_sizes, across, factors, strict=True):
        parts = []
        if network is not None and from_network > 1:
            parts.append(DimPart(network, used_slices, from_network))
            used_slices *= from_network
        for place, (dim, factor) in enumerate(zip(dims, row, strict=True)):
            if factor > 1:
                parts.append(DimPart(dim, used[place], factor))
                used[place] *= factor
        links.append(AxisLink(size, tuple(parts)))
    return tuple(links)


def _slices(
    hardware: Hardware,
    torus: Torus,
    num_devices: int,
    slice_shape: tuple[int, ...] | None,
    num_slices: int | None,
) -> tuple[int, list[tuple[int, ...]]]:
    """Number of slices and the shapes one of them may have, in chips."""
    where = f'{num_devices} devices of hardware "{hardware.name}"'
    if num_slices is not None and (num_slices < 1 or num_devices % num_slices):
        raise CostModelError(
            f"{num_slices} slices do not divide {num_devices} devices",
            where=where,
            fix="make the number of slices a divisor of the number of devices",
        )
    if slice_shape is not None:
        per_slice = math.prod(slice_shape) * torus.devices_per_chip
        slices = num_slices or max(1, num_devices // per_slice)
        if len(slice_shape) != torus.num_dims or min(slice_shape) < 1:
            raise CostModelError(
                f"slice shape {slice_shape} is not one of {torus.num_dims} sizes from 1 up",
                where=where,
                fix=f"write it like {torus.slice_shapes[-1]}",
            )
        if slices * per_slice != num_devices:
            raise CostModelError(
                f"{slices} slices of shape {slice_shape} have {slices * per_slice} devices",
                where=where,
                fix="make the mesh, the slice shape and the number of slices agree",
            )
        return slices, [slice_shape]
    largest = max(math.prod(shape) for shape in torus.slice_shapes) * torus.devices_per_chip
    slices = num_slices or next(
        count
        for count in range(1, num_devices + 1)
        if num_devices % count == 0 and num_devices // count <= largest
    )
    chips = _num_chips(torus, num_devices // slices)
    shapes = [shape for shape in torus.slice_shapes if math.prod(shape) == chips]
    if not shapes:
        inside = _shape_inside(torus, chips)
        if inside is None:
            legal = sorted({math.prod(shape) for shape in torus.slice_shapes})
            raise CostModelError(
                f"no slice of this family holds {chips} chips in a grid",
                where=where,
                fix=f"use slices of {', '.join(map(str, legal))} chips",
            )
        shapes = [inside]
    return slices, shapes


def _num_chips(torus: Torus, num_devices: int) -> int:
    """Chips that hold so many devices; devices that fill no whole chip sit one on a chip."""
    per_chip = torus.devices_per_chip
    return num_devices // per_chip if num_devices % per_chip == 0 else num_devices


def _shape_inside(torus: Torus, num_chips: int) -> tuple[int, ...] | None:
    """The most compact grid of so many chips that lies inside a legal slice."""
    grids = [
        grid
        for grid in _factorizations(num_chips, torus.num_dims)
        if list(grid) == sorted(grid)
        and any(
            all(a <= b for a, b in zip(grid, sorted(shape), strict=True))
            for shape in torus.slice_shapes
        )
    ]
    return min(grids, key=lambda grid: (sum(grid), grid), default=None)


def _slice_dims(torus: Torus, shape: tuple[int, ...], num_devices: int) -> tuple[LinkDim, ...]:
    wraps = torus.wraps(shape)
    dims = [
        _link_dim(index + 1, "ring" if wrap else "line", size, torus.link)
        for index, (size, wrap) in enumerate(zip(shape, wraps, strict=True))
    ]
    on_chip = num_devices // math.prod(shape)
    if on_chip > 1:
        assert torus.chip_link is not None
        dims.append(_link_dim(len(dims) + 1, "line", on_chip, torus.chip_link))
    return tuple(dims)


def _take_outermost(
    axis_sizes: tuple[int, ...], count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Splits `count` off the outermost axes: what remains of each, and what was taken."""
    remains, taken = [], []
    for size in axis_sizes:
        factor = math.gcd(size, count)
        count //= factor
        remains.append(size // factor)
        taken.append(factor)
    return tuple(remains), tuple(taken)


def _best_factors(
    dims: tuple[LinkDim, ...], axis_sizes: tuple[int, ...]
) -> tuple[tuple[object, ...], tuple[tuple[int, ...], ...]]:
    """The best way to cut physical dimensions into mesh axes, and its key (smaller is better).

    First as few dimensions as possible are shared by several axes; then the innermost axis gets
    the fastest links, then the next one out.

    Returns:
        The key and factors[axis][dim], whose products are the axis sizes and the dim sizes.
    """

    def key(rows: tuple[tuple[int, ...], ...]) -> tuple[object, ...]:
        shared = sum(
            max(0, sum(factor > 1 for factor in column) - 1) for column in zip(*rows, strict=True)
        )
        speeds = []
        used = [1] * len(dims)
        for row in rows:
            parts = tuple(
                DimPart(dim, outer, factor)
                for dim, outer, factor in zip(dims, used, row, strict=True)
                if factor > 1
            )
            used = [outer * factor for outer, factor in zip(used, row, strict=True)]
            axis = AxisLink(math.prod(row), parts)
            speeds.append(gather_seconds_per_byte(axis.group))
        return (shared, tuple(reversed(speeds)), rows)

    sizes = tuple(dim.size for dim in dims)
    return min((key(rows), rows) for rows in _factor_tables(axis_sizes, sizes))


def _factor_tables(
    axis_sizes: tuple[int, ...], dim_sizes: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], ...]]:
    if not axis_sizes:
        if all(size == 1 for size in dim_sizes):
            yield ()
        return
    for row in _factorizations(axis_sizes[0], len(dim_sizes)):
        if all(size % factor == 0 for size, factor in zip(dim_sizes, row, strict=True)):
            rest = tuple(size // factor for size, factor in zip(dim_sizes, row, strict=True))
            for rows in _factor_tables(axis_sizes[1:], rest):
                yield (row, *rows)


def _factorizations(number: int, num_factors: int) -> Iterator[tuple[int, ...]]:
    """Every ordered way to write `number` as a product of so many factors."""
    if num_factors == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            for rest in _factorizations(number // first, num_factors - 1):
                yield (first, *rest)


# --- groups ------------------------------------------------------------------------------------


def group_dims(parts: Iterable[tuple[AxisLink, int, int]]) -> tuple[GroupDim, ...]:
    """The physical dimensions that a group of devices spans.

    Args:
        parts: Each an axis, the size of what lies outside in that axis, and the size of the part.

    Returns:
        One entry per physical dimension with more than one device of the group, outermost first.
    """
    by_dim: dict[LinkDim, list[tuple[int, int]]] = {}
    for axis, pre_size, size in parts:
        for part in _axis_parts(axis, pre_size, size):
            by_dim.setdefault(part.dim, []).append((part.pre_size, part.size))
    return tuple(
        _group_dim(dim, math.prod(size for _, size in spans), min(pre for pre, _ in spans))
        for dim, spans in sorted(by_dim.items(), key=lambda item: item[0].index)
    )


def _axis_parts(axis: AxisLink, pre_size: int, size: int) -> Iterator[DimPart]:
    """The parts of physical dimensions that a part of an axis takes."""
    if size == 1:
        return
    found = []
    begin, end = pre_size, pre_size * size
    low = 1
    for part in axis.parts:
        high = low * part.size
        first, last = max(low, begin), min(high, end)
        if first < last:
            if first % low or last % first or high % last:
                yield from _uneven_parts(axis, size)
                return
            found.append(DimPart(part.dim, part.pre_size * (first // low), last // first))
        low = high
    yield from found


def _uneven_parts(axis: AxisLink, size: int) -> Iterator[DimPart]:
    """A part whose border cuts through a dimension unevenly: laid on the axis' slowest one."""
    slowest = min((part.dim for part in axis.parts), key=lambda dim: dim.bytes_per_second)
    kind: LinkKind = slowest.kind if slowest.kind in ("switch", "network") else "line"
    yield DimPart(
        LinkDim(slowest.index, kind, axis.size, slowest.bytes_per_second, slowest.latency_seconds),
        1,
        size,
    )


def _group_dim(dim: LinkDim, size: int, pre_size: int) -> GroupDim:
    """A group of `size` devices inside blocks of `dim.size / pre_size` neighbours.

    Where a block has more devices than the group, other groups lie between and share its links:
    each gets its part of the bandwidth. A block that is not the whole ring is a line.

    Source: bisection and receive bounds of rings and lines, Chan, Heimlich, Purkayastha and van
    de Geijn (2007), Collective communication: theory, practice, and experience.
    """
    if dim.kind in ("switch", "network"):
        return GroupDim(
            kind=dim.kind,
            size=size,
            gather_bytes_per_second=dim.bytes_per_second,
            steps=math.ceil(math.log2(size)),
            latency_seconds=dim.latency_seconds,
            exchange_seconds_per_byte=(1 - 1 / size) / dim.bytes_per_second,
            permute_seconds_per_byte=1 / dim.bytes_per_second,
        )
    block = dim.size // pre_size
    sharing = block / size
    closed = dim.kind == "ring" and pre_size == 1
    directions = 2 if closed else 1
    return GroupDim(
        kind="ring" if closed else "line",
        size=size,
        gather_bytes_per_second=directions * dim.bytes_per_second / sharing,
        steps=block // 2 if closed else block - 1,
        latency_seconds=dim.latency_seconds,
        exchange_seconds_per_byte=block / (4 * directions * dim.bytes_per_second),
        permute_seconds_per_byte=max(1.0, sharing / directions, block / (4 * directions))
        / dim.bytes_per_second,
    )


def gather_seconds_per_byte(dims: tuple[GroupDim, ...]) -> float:
    """Seconds per gathered byte of an all-gather over the group, without latency.

    Across the network each device first fetches its part of the shards, so that the network
    interfaces of all inner devices work; then the inner devices share. On a torus all dimensions
    work at once: for every set of dimensions, a block of devices that they do not span must
    receive everything from outside over them, and the slowest such cut is the time.

    Source: Chan et al. (2007), sections on hypercubes and multidimensional meshes.
    """
    inner = [dim for dim in dims if dim.kind != "network"]
    inner_size = math.prod(dim.size for dim in inner)
    seconds = 0.0
    outer_size = inner_size
    for dim in dims:
        if dim.kind == "network":
            seconds += (1 - 1 / dim.size) / dim.gather_bytes_per_second / outer_size
            outer_size *= dim.size
    cuts = (
        (1 - 1 / math.prod(dim.size for dim in chosen))
        * math.prod(dim.size for dim in chosen)
        / inner_size
        / sum(dim.gather_bytes_per_second for dim in chosen)
        for count in range(1, len(inner) + 1)
        for chosen in itertools.combinations(inner, count)
    )
    return seconds + max(cuts, default=0.0)
