"""Slices of a torus machine: how many a mesh needs, their shapes and their dimensions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from cost_models.errors import CostModelError
from cost_models.hardware import Hardware, Link, Torus
from cost_models.links import LinkDim, LinkKind

DIM_NAMES = ("x", "y", "z")


def slice_text(shape: tuple[int, ...]) -> str:
    """A slice's shape as the families' documentation writes it: "4x4"."""
    return "x".join(map(str, shape))


def with_slices(hardware: Hardware, shape: tuple[int, ...] | None, count: int | None) -> Hardware:
    """The machine cut to slices of one shape, and so many of them.

    A mesh must then have exactly as many devices as they have; without a count, one slice.

    Args:
        hardware: The machine.
        shape: Chips along each dimension; behind switches, one size: devices of a node. None: any.
        count: Slices, or nodes. None: one where a shape is given.

    Raises:
        CostModelError: The machine has no such slice, or no network to join several.
    """
    name = hardware.name if count is None else f"{count}x {hardware.name}"
    if count is not None and (count < 1 or (count > 1 and hardware.network is None)):
        raise CostModelError(
            f"{count} slices or nodes of {hardware.name} are asked for",
            where=f'hardware "{name}"',
            fix="ask for 1" if hardware.network is None else "ask for 1 or more",
        )
    torus, switch = hardware.torus, hardware.switch
    if shape is not None:
        name = f"{name}:{slice_text(shape)}"
        if torus is not None:
            check_slice_shape(torus, shape, where=f'hardware "{name}"')
            torus = dataclasses.replace(torus, slice_shapes=(shape,))
        elif switch is not None:
            if len(shape) != 1 or not 1 <= shape[0] <= switch.domain_size:
                raise CostModelError(
                    f"a node of {hardware.name} is no {slice_text(shape)}",
                    where=f'hardware "{name}"',
                    fix=f"give the devices of a node, 1 to {switch.domain_size}",
                )
            switch = dataclasses.replace(switch, domain_size=shape[0])
    return dataclasses.replace(
        hardware, name=name, torus=torus, switch=switch, num_slices=1 if count is None else count
    )


def check_slice_shape(torus: Torus, shape: tuple[int, ...], *, where: str) -> None:
    """Raises a CostModelError unless a slice of that shape can be had.

    The shapes listed can, also turned, and those of whole blocks that close into rings in every
    dimension and fit into the largest one.
    """
    if len(shape) != torus.num_dims or min(shape) < 1:
        raise CostModelError(
            f"slice shape {shape} is not one of {torus.num_dims} sizes from 1 up",
            where=where,
            fix=f"write it like {torus.slice_shapes[-1]}",
        )
    listed = {tuple(sorted(legal)) for legal in torus.slice_shapes}
    largest = sorted(max(torus.slice_shapes, key=math.prod))
    is_whole = all(size % torus.wrap_multiple == 0 for size in shape) and all(
        size <= most for size, most in zip(sorted(shape), largest, strict=True)
    )
    if tuple(sorted(shape)) not in listed and not is_whole:
        raise CostModelError(
            f"there is no slice of shape {slice_text(shape)}",
            where=where,
            fix=f"use one of {', '.join(map(slice_text, torus.slice_shapes))}",
        )


def slices_for(
    hardware: Hardware,
    torus: Torus,
    num_devices: int,
    slice_shape: tuple[int, ...] | None,
    num_slices: int | None,
) -> tuple[int, list[tuple[int, ...]]]:
    """Number of slices and the shapes one of them may have, in chips.

    Raises:
        CostModelError: Slices and devices do not agree, or no slice holds the devices.
    """
    where = f'{num_devices} devices of hardware "{hardware.name}"'
    num_slices = num_slices if num_slices is not None else hardware.num_slices
    if slice_shape is None and hardware.num_slices is not None and len(torus.slice_shapes) == 1:
        slice_shape = torus.slice_shapes[0]
    if num_slices is not None and (num_slices < 1 or num_devices % num_slices):
        raise CostModelError(
            f"{num_slices} slices do not divide {num_devices} devices",
            where=where,
            fix="make the number of slices a divisor of the number of devices",
        )
    if slice_shape is not None:
        if slice_shape not in torus.slice_shapes:
            check_slice_shape(torus, slice_shape, where=where)
        per_slice = math.prod(slice_shape) * torus.devices_per_chip
        slices = num_slices or max(1, num_devices // per_slice)
        if slices * per_slice != num_devices:
            have = "slice has" if slices == 1 else "slices have"
            raise CostModelError(
                f"{slices} {have} {slices * per_slice} devices: shape {slice_text(slice_shape)}",
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
    return slices, _shapes_of(torus, _num_chips(torus, num_devices // slices), where)


def _shapes_of(torus: Torus, num_chips: int, where: str) -> list[tuple[int, ...]]:
    shapes = [shape for shape in torus.slice_shapes if math.prod(shape) == num_chips]
    if shapes:
        return shapes
    inside = _shape_inside(torus, num_chips)
    if inside is None:
        legal = sorted({math.prod(shape) for shape in torus.slice_shapes})
        raise CostModelError(
            f"no slice of this family holds {num_chips} chips in a grid",
            where=where,
            fix=f"use slices of {', '.join(map(str, legal))} chips",
        )
    return [inside]


def _num_chips(torus: Torus, num_devices: int) -> int:
    """Chips that hold so many devices; devices that fill no whole chip sit one on a chip."""
    per_chip = torus.devices_per_chip
    return num_devices // per_chip if num_devices % per_chip == 0 else num_devices


def _shape_inside(torus: Torus, num_chips: int) -> tuple[int, ...] | None:
    """The most compact grid of so many chips that lies inside a legal slice."""
    grids = [
        grid
        for grid in factorizations(num_chips, torus.num_dims)
        if list(grid) == sorted(grid)
        and any(
            all(a <= b for a, b in zip(grid, sorted(shape), strict=True))
            for shape in torus.slice_shapes
        )
    ]
    return min(grids, key=lambda grid: (sum(grid), grid), default=None)


def slice_dims(torus: Torus, shape: tuple[int, ...], num_devices: int) -> tuple[LinkDim, ...]:
    """The dimensions of one slice; where a chip has several devices, their link is the last."""
    wraps = torus.wraps(shape)
    names = DIM_NAMES if len(shape) <= len(DIM_NAMES) else tuple(f"d{i}" for i in range(len(shape)))
    dims = [
        link_dim(index + 1, "ring" if wrap else "line", size, torus.link, names[index])
        for index, (size, wrap) in enumerate(zip(shape, wraps, strict=True))
    ]
    on_chip = num_devices // math.prod(shape)
    if on_chip > 1:
        assert torus.chip_link is not None
        dims.append(link_dim(len(dims) + 1, "line", on_chip, torus.chip_link, "chip"))
    return tuple(dims)


def link_dim(index: int, kind: LinkKind, size: int, link: Link, name: str) -> LinkDim:
    """A dimension of so many devices joined by one kind of link."""
    return LinkDim(index, kind, size, link.usable_bytes_per_second, link.latency_seconds, name=name)


def network_dim(hardware: Hardware, size: int) -> LinkDim:
    """The network between so many slices or nodes.

    Raises:
        CostModelError: The machine has none.
    """
    if hardware.network is None:
        raise CostModelError(
            f"the mesh needs {size} nodes or slices, but the machine has no network",
            where=f'hardware "{hardware.name}"',
            fix="use a smaller mesh, or describe the machine's `network`",
        )
    return link_dim(0, "network", size, hardware.network, "network")


def factorizations(number: int, num_factors: int) -> Iterator[tuple[int, ...]]:
    """Every ordered way to write `number` as a product of so many factors."""
    if num_factors == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            for rest in factorizations(number // first, num_factors - 1):
                yield (first, *rest)
