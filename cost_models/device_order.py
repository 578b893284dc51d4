"""The order in which JAX gives the devices of a torus to a mesh.

`jax.make_mesh` and `jax.experimental.mesh_utils.create_device_mesh` give each mesh axis whole
dimensions of the slice where that can be done, the last axis first, as many dimensions as
possible; else parts of dimensions. Some small slices are numbered round a ring instead.

What is here was written after the behaviour of jax 0.10.2 and is held to it by tests.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cost_models.hardware import RingOrder, Torus
from cost_models.slices import factorizations

IntArray = NDArray[np.int64]
Factors = tuple[tuple[int, ...], ...]
"""factors[axis][dim]: how much of a dimension an axis takes; outer axes take outer parts."""


def jax_factors(dim_sizes: tuple[int, ...], axis_sizes: tuple[int, ...]) -> Factors:
    """How JAX cuts the dimensions of a slice into mesh axes; the products must be equal."""
    whole = _whole_dims(dim_sizes, axis_sizes)
    return whole if whole is not None else _split_dims(dim_sizes, axis_sizes)


def _whole_dims(dim_sizes: tuple[int, ...], axis_sizes: tuple[int, ...]) -> Factors | None:
    free = set(range(len(dim_sizes)))
    rows: list[tuple[int, ...]] = []
    for size in reversed(axis_sizes):
        taken = next(
            (
                chosen
                for count in range(len(dim_sizes), 0, -1)
                for chosen in itertools.combinations(sorted(free), count)
                if math.prod(dim_sizes[dim] for dim in chosen) == size
            ),
            (),
        )
        if size > 1 and not taken:
            return None
        free -= set(taken)
        rows.append(tuple(dim_sizes[dim] if dim in taken else 1 for dim in range(len(dim_sizes))))
    return tuple(reversed(rows))


def _split_dims(dim_sizes: tuple[int, ...], axis_sizes: tuple[int, ...]) -> Factors:
    used = [1] * len(dim_sizes)
    rows: list[tuple[int, ...]] = []
    for size in reversed(axis_sizes):
        row = max(
            (
                row
                for row in factorizations(size, len(dim_sizes))
                if all(
                    whole // taken % part == 0
                    for whole, taken, part in zip(dim_sizes, used, row, strict=True)
                )
            ),
            key=lambda row: _preference(row, dim_sizes, used),
        )
        used = [taken * part for taken, part in zip(used, row, strict=True)]
        rows.append(row)
    return tuple(reversed(rows))


def _preference(
    row: tuple[int, ...], dim_sizes: tuple[int, ...], used: list[int]
) -> tuple[int, int, int, tuple[int, ...]]:
    """Whole dimensions first, many of them, then those already cut, then the first ones."""
    whole = [part for part, size in zip(row, dim_sizes, strict=True) if part == size > 1]
    cut = [part for part, taken in zip(row, used, strict=True) if taken > 1]
    return math.prod(whole), len(whole), math.prod(cut), row


def factor_tables(axis_sizes: tuple[int, ...], dim_sizes: tuple[int, ...]) -> Iterator[Factors]:
    """Every way to cut dimensions into axes."""
    if not axis_sizes:
        if all(size == 1 for size in dim_sizes):
            yield ()
        return
    for row in factorizations(axis_sizes[0], len(dim_sizes)):
        if all(size % factor == 0 for size, factor in zip(dim_sizes, row, strict=True)):
            rest = tuple(size // factor for size, factor in zip(dim_sizes, row, strict=True))
            for rows in factor_tables(axis_sizes[1:], rest):
                yield (row, *rows)


def ring_order(
    torus: Torus, shape: tuple[int, ...], axis_sizes: tuple[int, ...], num_devices: int
) -> RingOrder | None:
    """The ring that JAX numbers a slice of that shape round under a mesh, if it does."""
    for order in torus.ring_orders:
        fits = order.shape == shape and len(order.devices) == num_devices
        if fits and (max(axis_sizes, default=1) == num_devices or not order.only_whole):
            return order
    return None


def ring_places(order: RingOrder, dim_sizes: tuple[int, ...]) -> IntArray:
    """int64[num_devices, num_dims]: where the devices of a slice are, round the ring.

    Args:
        order: The ring.
        dim_sizes: Of the slice; the devices of a chip, if several, are the last dimension.
    """
    num_dims = len(order.shape)
    fastest_first = [*range(num_dims, len(dim_sizes)), *range(num_dims)]
    places = np.zeros((len(order.devices), len(dim_sizes)), np.int64)
    rest = np.array(order.devices)
    for dim in fastest_first:
        places[:, dim] = rest % dim_sizes[dim]
        rest = rest // dim_sizes[dim]
    return places
