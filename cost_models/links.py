"""Physical links as mesh axes and groups of devices find them.

A machine is a list of physical dimensions, outermost first: the network between slices or nodes,
then the dimensions of a torus (and the devices of one chip), or one switch. A mesh axis takes
parts of them; a group of devices spans some of those parts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

LinkKind: TypeAlias = Literal["ring", "line", "switch", "network", "scattered"]


@dataclass(frozen=True, slots=True)
class LinkDim:
    """One physical dimension of the machine.

    Attributes:
        index: Its place in the machine's list, outermost first.
        kind: What joins the devices along it.
        size: Devices along it.
        bytes_per_second: Usable, in one direction of one link of one device.
        latency_seconds: Of one hop, or one message through a switch or network.
        reduce_bytes_per_second: What one device sends and receives while the switch adds; None
            where nothing on the way adds.
        name: As a layout is printed: "x", "network".
    """

    index: int
    kind: LinkKind
    size: int
    bytes_per_second: float
    latency_seconds: float
    reduce_bytes_per_second: float | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class DimPart:
    """Part of a physical dimension: `size` positions after an outer part of `pre_size`."""

    dim: LinkDim
    pre_size: int
    size: int

    def __str__(self) -> str:
        name = self.dim.name or self.dim.kind
        if self.size == self.dim.size:
            return f"{name}[{self.size}]"
        return f"{name}[({self.pre_size}){self.size} of {self.dim.size}]"


@dataclass(frozen=True, slots=True)
class GroupDim:
    """What a group of devices finds along one physical dimension, other groups at work beside it.

    Attributes:
        kind: What joins the devices; "scattered" for a group that lies in no regular pattern,
            which has this one entry for all dimensions.
        size: Devices of the group along the dimension.
        gather_bytes_per_second: What one device can receive, all its links on the dimension
            together.
        steps: Hops, or messages one after another, until the farthest device is heard.
        latency_seconds: Of one step.
        exchange_seconds_per_byte: All-to-all: per byte of one device's operand.
        permute_seconds_per_byte: A permutation of the group's devices: per byte of one's operand.
        reduce_bytes_per_second: As of `LinkDim`.
    """

    kind: LinkKind
    size: int
    gather_bytes_per_second: float
    steps: int
    latency_seconds: float
    exchange_seconds_per_byte: float
    permute_seconds_per_byte: float
    reduce_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class AxisLink:
    """A mesh axis on the machine.

    Attributes:
        size: Devices along the axis.
        parts: The parts of physical dimensions it takes, outermost first.
        scattered: What its devices find that lie in no regular pattern; `parts` is empty then.
    """

    size: int
    parts: tuple[DimPart, ...]
    scattered: GroupDim | None = None

    @property
    def group(self) -> tuple[GroupDim, ...]:
        """The whole axis as one group of devices."""
        if self.scattered is not None:
            return (self.scattered,)
        return group_dims([(self, 1, self.size)])

    @property
    def kind(self) -> LinkKind:
        """The slowest kind of link in the axis; an axis over several torus dims is a ring."""
        kinds = [dim.kind for dim in self.group]
        slowest: tuple[LinkKind, ...] = ("network", "switch", "scattered")
        for kind in slowest:
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

    def __str__(self) -> str:
        if self.scattered is not None:
            return "scattered"
        return " ".join(map(str, self.parts)) or "one device"


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
        group_dim(dim, math.prod(size for _, size in spans), min(pre for pre, _ in spans))
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


def group_dim(dim: LinkDim, size: int, pre_size: int) -> GroupDim:
    """A group of `size` devices inside blocks of `dim.size / pre_size` neighbours.

    Where a block has more devices than the group, other groups lie between and share its links:
    each gets its part of the bandwidth. A block that is not the whole ring is a line.

    An all-to-all is bound by the links that carry most: of a ring each carries 1/8 of the operands
    of all devices (both ways used, an odd ring a little less), of a line the middle one 1/4.

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
            reduce_bytes_per_second=dim.reduce_bytes_per_second,
        )
    stride = dim.size // (pre_size * size)
    closed = dim.kind == "ring" and pre_size == 1
    directions = 2 if closed else 1
    crossing = stride * (size * size - size % 2) / (4 * directions * size)
    return GroupDim(
        kind="ring" if closed else "line",
        size=size,
        gather_bytes_per_second=directions * dim.bytes_per_second / stride,
        steps=stride * (size // 2 if closed else size - 1),
        latency_seconds=dim.latency_seconds,
        exchange_seconds_per_byte=crossing / dim.bytes_per_second,
        permute_seconds_per_byte=max(1.0, stride / directions, crossing) / dim.bytes_per_second,
    )


def gather_seconds_per_byte(dims: tuple[GroupDim, ...]) -> float:
    """Seconds per gathered byte of an all-gather over the group, without latency.

    Across the network each device first fetches its part of the shards, so that the network
    interfaces of all inner devices work; then the inner devices share. On a torus all dimensions
    work at once: for every set of dimensions, a block of devices that they do not span must
    receive everything from outside over them, and the slowest such cut is the time.

    Source: Chan et al. (2007), sections on hypercubes and multidimensional meshes. That a schedule
    reaches the bound is shown by simulation in the tests.
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
