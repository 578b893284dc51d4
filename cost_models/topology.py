"""How the axes of a logical mesh lie on the physical links of a machine.

Behind switches devices are numbered row by row, the last mesh axis fastest. On a torus there are
three ways: in JAX's own device order, which is the default; at places that are given for every
device; or wherever the traffic of the axes is fastest, found by search.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cost_models.device_order import Factors, factor_tables, jax_factors, ring_order, ring_places
from cost_models.errors import CostModelError
from cost_models.given_places import places_of
from cost_models.hardware import Hardware, Torus
from cost_models.links import (
    AxisLink,
    DimPart,
    GroupDim,
    LinkDim,
    gather_seconds_per_byte,
    group_dims,
)
from cost_models.placed_groups import PartOfAxis, placed_axis, placed_group
from cost_models.slices import factorizations, link_dim, network_dim, slice_dims, slices_for

IntArray = NDArray[np.int64]
Places = Sequence[Sequence[int]] | IntArray
"""Per device of a mesh, last axis fastest: its slice (may be left out where there is one), its
place along each dimension of the slice, and its place on the chip where a chip has several."""


@dataclass(frozen=True, slots=True, eq=False)
class MeshLayout:
    """A mesh on a machine.

    Printed, it says what each axis got: `(4, 4): z[4], x[2] y[2]`.

    Attributes:
        axis_sizes: Of the mesh, major to minor.
        dims: Physical dimensions, outermost first.
        axes: One per mesh axis, in order.
        places: int64[num_devices, num_dims] where each device of the mesh is, last axis fastest;
            None where `axes` says it all.
    """

    axis_sizes: tuple[int, ...]
    dims: tuple[LinkDim, ...]
    axes: tuple[AxisLink, ...]
    places: IntArray | None = None

    def group(self, parts: tuple[PartOfAxis, ...]) -> tuple[GroupDim, ...]:
        """What a group of devices finds that spans parts of axes.

        Args:
            parts: Each the index of an axis, the size of what lies outside in it, and its size.
        """
        if self.places is not None:
            return placed_group(self.dims, self.places, self.axis_sizes, parts)
        return group_dims((self.axes[axis], pre_size, size) for axis, pre_size, size in parts)

    def device_places(self) -> IntArray:
        """int64[num_devices, num_dims]: where each device of the mesh is, last axis fastest.

        Raises:
            CostModelError: An axis crosses nodes unevenly, so that no device has a place of its
                own in the model.
        """
        if self.places is not None:
            return self.places
        places = np.zeros((*self.axis_sizes, len(self.dims)), np.int64)
        index_of = {dim: index for index, dim in enumerate(self.dims)}
        for axis, link in enumerate(self.axes):
            rest = np.arange(link.size).reshape([-1 if a == axis else 1 for a in self._axis_range])
            for part in reversed(link.parts):
                stride = part.dim.size // (part.pre_size * part.size)
                places[..., index_of[part.dim]] += rest % part.size * stride
                rest = rest // part.size
        flat = places.reshape(-1, len(self.dims))
        if len(np.unique(flat, axis=0)) != len(flat):
            raise CostModelError(
                "an axis crosses nodes unevenly, so the devices have no places of their own",
                where=f"mesh {self.axis_sizes}",
                fix="make the axes products of the nodes and of the devices of a node",
            )
        return flat

    @property
    def _axis_range(self) -> range:
        return range(len(self.axis_sizes))

    def __str__(self) -> str:
        return f"{self.axis_sizes}: {', '.join(map(str, self.axes))}"


def layout_mesh(
    hardware: Hardware,
    axis_sizes: tuple[int, ...],
    *,
    slice_shape: tuple[int, ...] | None = None,
    num_slices: int | None = None,
) -> tuple[AxisLink, ...]:
    """The axes of `place_mesh` in JAX's own order, one link per axis."""
    return place_mesh(hardware, axis_sizes, slice_shape=slice_shape, num_slices=num_slices).axes


def place_mesh(
    hardware: Hardware,
    axis_sizes: tuple[int, ...],
    *,
    slice_shape: tuple[int, ...] | None = None,
    num_slices: int | None = None,
    places: Places | None = None,
    traffic: tuple[float, ...] | None = None,
) -> MeshLayout:
    """Lays mesh axes on the links of a machine.

    Args:
        hardware: The machine.
        axis_sizes: Devices along each axis, major to minor.
        slice_shape: Torus machines: chips along each dimension of one slice. None: the shape of
            the family that suits the axes best.
        num_slices: Torus machines: slices joined by the network. None: as the machine says, else
            as few as hold all devices. They are the outermost part of the mesh's first axes,
            unless `places` or `traffic` say otherwise.
        places: Torus machines: where each device of the mesh is.
        traffic: Torus machines: bytes that are gathered along each axis, or any numbers in that
            proportion; the axes are laid where all of them together take the least time.

    Raises:
        CostModelError: A size below 1, a shape the machine cannot have, more devices than fit,
            places that are no grid of devices, traffic that is no amount per axis.
    """
    for index, size in enumerate(axis_sizes):
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise CostModelError(
                f"mesh axis {index} has size {size!r}; expected a whole number from 1 up",
                where=f"mesh {axis_sizes}",
                fix="give every axis the number of devices along it",
            )
    torus = hardware.torus
    if torus is None and any(
        given is not None for given in (slice_shape, num_slices, places, traffic)
    ):
        raise CostModelError(
            "a slice shape, a number of slices, places or traffic are given for a machine that "
            "has no slices",
            where=f'hardware "{hardware.name}"',
            fix="leave them out: nodes follow from the size of the switch domain",
        )
    if torus is not None and places is not None:
        if slice_shape is not None or num_slices is not None or traffic is not None:
            raise CostModelError(
                "places are given together with a slice shape, a number of slices or traffic",
                where=f"mesh {axis_sizes}",
                fix="leave the others out: they follow from the places",
            )
        return _layout_at(hardware, torus, axis_sizes, places)
    if traffic is not None:
        _check_traffic(traffic, axis_sizes)
    return _layout(hardware, axis_sizes, slice_shape, num_slices, traffic)


def _check_traffic(traffic: tuple[float, ...], axis_sizes: tuple[int, ...]) -> None:
    if len(traffic) != len(axis_sizes) or not all(0 <= amount < math.inf for amount in traffic):
        raise CostModelError(
            f"the traffic {traffic} is not an amount from 0 up for each of the "
            f"{len(axis_sizes)} mesh axes",
            where=f"mesh {axis_sizes}",
            fix="give the bytes gathered along each axis, major to minor",
        )


@lru_cache(maxsize=256)
def _layout(
    hardware: Hardware,
    axis_sizes: tuple[int, ...],
    slice_shape: tuple[int, ...] | None,
    num_slices: int | None,
    traffic: tuple[float, ...] | None,
) -> MeshLayout:
    torus = hardware.torus
    if torus is None:
        return _switch_layout(hardware, axis_sizes)
    num_devices = math.prod(axis_sizes)
    slices, shapes = slices_for(hardware, torus, num_devices, slice_shape, num_slices)
    options = [(shape, slice_dims(torus, shape, num_devices // slices)) for shape in shapes]
    network = (network_dim(hardware, slices),) if slices > 1 else ()
    if traffic is not None:
        return _fastest_layout(network, [dims for _, dims in options], axis_sizes, traffic)
    in_slice, across = _take_outermost(axis_sizes, slices)
    if len(options) == 1:
        shape, dims = options[0]
        order = ring_order(torus, shape, in_slice, num_devices // slices)
        if order is not None:
            inner = ring_places(order, tuple(dim.size for dim in dims))
            all_places = _across_slices(inner, in_slice, across, len(network))
            return _placed_layout((*network, *dims), axis_sizes, all_places)
    return min(
        (_factored_layout(network, dims, axis_sizes, across, in_slice) for _, dims in options),
        key=_suitability,
    )


# --- switched machines -------------------------------------------------------------------------


def _switch_layout(hardware: Hardware, axis_sizes: tuple[int, ...]) -> MeshLayout:
    switch = hardware.switch
    assert switch is not None
    num_devices = math.prod(axis_sizes)
    domain = max(size for size in range(1, switch.domain_size + 1) if num_devices % size == 0)
    if hardware.num_slices is not None:
        domain = switch.domain_size
        if num_devices != hardware.num_slices * domain:
            raise CostModelError(
                f"the machine has {hardware.num_slices * domain} devices, the mesh {num_devices}",
                where=f'hardware "{hardware.name}"',
                fix="make the mesh, the nodes and the devices of a node agree",
            )
    dims: list[LinkDim] = []
    if num_devices > domain:
        dims.append(network_dim(hardware, num_devices // domain))
    if domain > 1:
        whole = link_dim(len(dims), "switch", domain, switch.link, "switch")
        adding = switch.reduction_efficiency
        dims.append(
            LinkDim(
                index=whole.index,
                kind="switch",
                size=domain,
                bytes_per_second=whole.bytes_per_second,
                latency_seconds=whole.latency_seconds,
                reduce_bytes_per_second=adding and adding * switch.link.bytes_per_second,
                name="switch",
            )
        )
    axes = []
    outer = 1
    for size in axis_sizes:
        axes.append(AxisLink(size, _row_major_parts(dims, outer, size)))
        outer *= size
    return MeshLayout(axis_sizes, tuple(dims), tuple(axes))


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


# --- torus machines ----------------------------------------------------------------------------


def _factored_layout(
    network: tuple[LinkDim, ...],
    dims: tuple[LinkDim, ...],
    axis_sizes: tuple[int, ...],
    across: tuple[int, ...],
    in_slice: tuple[int, ...],
    factors: Factors | None = None,
    nesting: tuple[int, ...] | None = None,
) -> MeshLayout:
    """Axes that take parts of dimensions: of the network first, then those of a slice.

    Where axes share a dimension, the first in `nesting` takes the outermost part of it.
    """
    if factors is None:
        factors = jax_factors(tuple(dim.size for dim in dims), in_slice)
    every = (*network, *dims)
    used = [1] * len(every)
    axes = [AxisLink(size, ()) for size in axis_sizes]
    for axis in nesting or range(len(axis_sizes)):
        parts = []
        row = factors[axis]
        for place, factor in enumerate((across[axis], *row) if network else row):
            if factor > 1:
                parts.append(DimPart(every[place], used[place], factor))
                used[place] *= factor
        axes[axis] = AxisLink(axis_sizes[axis], tuple(parts))
    return MeshLayout(axis_sizes, every, tuple(axes))


def _suitability(layout: MeshLayout) -> tuple[object, ...]:
    """Smaller is better: few dimensions shared by axes, then fast links for the last axes."""
    takers = [part.dim for link in layout.axes for part in link.parts]
    return (
        len(takers) - len(set(takers)),
        tuple(gather_seconds_per_byte(link.group) for link in reversed(layout.axes)),
        tuple(dim.size for dim in layout.dims),
    )


def _fastest_layout(
    network: tuple[LinkDim, ...],
    shapes: list[tuple[LinkDim, ...]],
    axis_sizes: tuple[int, ...],
    traffic: tuple[float, ...],
) -> MeshLayout:
    """Of every way to cut slices and dimensions into axes, the one with the least gather time."""
    slices = math.prod(dim.size for dim in network)
    layouts = [
        _factored_layout(network, dims, axis_sizes, across, in_slice, factors, nesting)
        for across in factorizations(slices, len(axis_sizes))
        if all(size % part == 0 for size, part in zip(axis_sizes, across, strict=True))
        for in_slice in [tuple(s // part for s, part in zip(axis_sizes, across, strict=True))]
        for dims in shapes
        for factors in factor_tables(in_slice, tuple(dim.size for dim in dims))
        for nesting in itertools.permutations(range(len(axis_sizes)))
    ]

    def seconds(layout: MeshLayout) -> float:
        return math.fsum(
            amount * gather_seconds_per_byte(link.group)
            for amount, link in zip(traffic, layout.axes, strict=True)
        )

    return min(layouts, key=lambda layout: (seconds(layout), _suitability(layout)))


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


def _across_slices(
    inner: IntArray, in_slice: tuple[int, ...], across: tuple[int, ...], num_networks: int
) -> IntArray:
    """Places in a slice, repeated for every slice; slices are the outer part of each axis."""
    if not num_networks:
        return inner
    slices = np.arange(math.prod(across)).reshape(across)
    blocks = np.empty((*across, *in_slice, inner.shape[1] + 1), np.int64)
    blocks[..., 0] = slices.reshape(*across, *[1] * len(in_slice))
    blocks[..., 1:] = inner.reshape(*in_slice, inner.shape[1])
    rank = len(across)
    woven = [place for axis in range(rank) for place in (axis, rank + axis)]
    return blocks.transpose(*woven, 2 * rank).reshape(-1, inner.shape[1] + 1)


def _layout_at(
    hardware: Hardware, torus: Torus, axis_sizes: tuple[int, ...], places: Places
) -> MeshLayout:
    """Axes of devices whose places are given."""
    slices, shape, found = places_of(hardware, torus, math.prod(axis_sizes), places)
    dims = slice_dims(torus, shape, math.prod(axis_sizes) // slices)
    network = (network_dim(hardware, slices),) if slices > 1 else ()
    return _placed_layout((*network, *dims), axis_sizes, found)


def _placed_layout(
    dims: tuple[LinkDim, ...], axis_sizes: tuple[int, ...], places: IntArray
) -> MeshLayout:
    axes = tuple(placed_axis(dims, places, axis_sizes, axis) for axis in range(len(axis_sizes)))
    kept = places.copy()
    kept.setflags(write=False)
    return MeshLayout(axis_sizes, dims, axes, kept)
