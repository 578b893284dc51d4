"""Distributed matrix products by name: `autoshard.schedules.cannon(mesh)(a, b)`.

Each function takes a mesh and gives a callable on two matrices. `lower` runs any other schedule of
`autoshard.loops`, and `as_dot_general` puts a product in the place of `jax.lax.dot_general`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import numpy as np

from autoshard.apply.scheduled.lower import lower as _lower
from autoshard.apply.scheduled.lower import partition_spec
from autoshard.errors import ScheduleError
from autoshard.frontend.meshes import as_auto
from autoshard.loops import library
from autoshard.loops.cosma_strategy import cosma_strategy
from autoshard.loops.placed import Placed

AnyMesh: TypeAlias = jax.sharding.Mesh | jax.sharding.AbstractMesh
Build: TypeAlias = Callable[[int, int, int], Placed]

__all__ = [
    "ScheduledMatmul",
    "all_gather_matmul",
    "as_dot_general",
    "cannon",
    "cosma",
    "johnson",
    "lower",
    "matmul_reduce_scatter",
    "pumma",
    "solomonik",
    "summa",
]


@dataclass(frozen=True)
class Arranged:
    """A schedule and the mesh it runs on.

    Args:
        placed: The schedule, and where it wants its tensors.
        mesh: Explicit axes are taken as Auto.
        axis_names: The mesh axis of each dimension of its grid.
    """

    placed: Placed
    mesh: AnyMesh
    axis_names: tuple[str, ...]


@dataclass(frozen=True)
class ScheduledMatmul:
    """A distributed matrix product on a mesh; call it on two matrices.

    It may be jitted, differentiated and mapped. Matrices that lie otherwise than the schedule wants
    them are moved there by the compiler; `shardings` tells where that is.

    Args:
        name: Which algorithm.
        arrange: Makes the schedule for rows, columns and summed range.
    """

    name: str
    arrange: Callable[[int, int, int], Arranged]

    def __call__(
        self,
        a: jax.Array,
        b: jax.Array,
        *,
        precision: Any = None,
        preferred_element_type: Any = None,
    ) -> jax.Array:
        """`a @ b`.

        Raises:
            ScheduleError: They are no matrices that fit, or their sizes are not divided.
            ShardingError: The mesh does not divide a dimension.
        """
        made = self.arranged(np.shape(a), np.shape(b))
        function = lower(
            made.placed,
            made.mesh,
            made.axis_names,
            precision=precision,
            preferred_element_type=preferred_element_type,
        )
        return function(a, b)

    def arranged(self, a_shape: Sequence[int], b_shape: Sequence[int]) -> Arranged:
        """The schedule for matrices of these shapes, and the mesh it runs on.

        Raises:
            ScheduleError: They are no matrices that fit, or their sizes are not divided.
            ShardingError: The mesh does not divide a dimension.
        """
        if len(a_shape) != 2 or len(b_shape) != 2 or a_shape[1] != b_shape[0]:
            raise ScheduleError(
                f"{self.name} multiplies two matrices, and the shapes are {list(a_shape)} and"
                f" {list(b_shape)}",
                where=f"autoshard.schedules.{self.name}",
                fix="pass [m, k] and [k, n]; as_dot_general takes any dot_general",
            )
        return self.arrange(a_shape[0], b_shape[1], a_shape[1])

    def placed(self, a_shape: Sequence[int], b_shape: Sequence[int]) -> Placed:
        """The schedule alone; see `arranged`."""
        return self.arranged(a_shape, b_shape).placed

    def shardings(
        self, a_shape: Sequence[int], b_shape: Sequence[int]
    ) -> tuple[jax.sharding.NamedSharding, ...]:
        """Where it wants `a` and `b`, and where the product will lie."""
        made = self.arranged(a_shape, b_shape)
        placed = made.placed.spread()
        statement = placed.schedule.statement
        return tuple(
            jax.sharding.NamedSharding(
                as_auto(made.mesh), partition_spec(placed.home_of[access.tensor], made.axis_names)
            )
            for access in (*statement.operands, statement.result)
        )


def _on(name: str, mesh: AnyMesh, axis_names: tuple[str, ...], build: Build) -> ScheduledMatmul:
    """The product `build` makes, on these axes of a mesh."""
    return ScheduledMatmul(name, lambda m, n, k: Arranged(build(m, n, k), mesh, axis_names))


def summa(
    mesh: AnyMesh, axes: Sequence[str] | None = None, *, panel: int | None = None
) -> ScheduledMatmul:
    """SUMMA on two mesh axes; see `autoshard.loops.summa`.

    Args:
        mesh: With at least two axes.
        axes: Which; the first two if not given.
        panel: How many values of the summed dimension one step gathers; all if not given.

    Raises:
        ScheduleError: The mesh lacks an axis.
    """
    names, grid = _axes(mesh, axes, 2, "summa")
    return _on("summa", mesh, names, lambda m, n, k: library.summa(m, n, k, grid, panel=panel))


def pumma(mesh: AnyMesh, axes: Sequence[str] | None = None) -> ScheduledMatmul:
    """PUMMA on two mesh axes, one size dividing the other; see `autoshard.loops.pumma`."""
    names, grid = _axes(mesh, axes, 2, "pumma")
    return _on("pumma", mesh, names, lambda m, n, k: library.pumma(m, n, k, grid))


def cannon(mesh: AnyMesh, axes: Sequence[str] | None = None) -> ScheduledMatmul:
    """Cannon's algorithm on two mesh axes of one size; see `autoshard.loops.cannon`."""
    names, grid = _axes(mesh, axes, 2, "cannon")
    return _on("cannon", mesh, names, lambda m, n, k: library.cannon(m, n, k, grid))


def johnson(mesh: AnyMesh, axes: Sequence[str] | None = None) -> ScheduledMatmul:
    """Johnson's 3-D algorithm on three mesh axes; see `autoshard.loops.johnson`."""
    names, grid = _axes(mesh, axes, 3, "johnson")
    return _on("johnson", mesh, names, lambda m, n, k: library.johnson(m, n, k, grid))


def solomonik(mesh: AnyMesh, axes: Sequence[str] | None = None) -> ScheduledMatmul:
    """2.5-D on three mesh axes of sizes `g`, `g` and `c`; see `autoshard.loops.solomonik`."""
    names, grid = _axes(mesh, axes, 3, "solomonik")
    return _on("solomonik", mesh, names, lambda m, n, k: library.solomonik(m, n, k, grid))


def cosma(
    mesh: AnyMesh,
    axes: Sequence[str] | None = None,
    *,
    panel: int | None = None,
    memory_words: int | None = None,
) -> ScheduledMatmul:
    """COSMA on three mesh axes; see `autoshard.loops.cosma`.

    Args:
        mesh: With at least three axes for rows, columns and the summed range; size 1 will do. Or,
            with `memory_words`, any mesh: its devices are arranged anew for each product.
        axes: Which; the first three if not given.
        panel: How many values of the summed dimension one step gathers; all if not given.
        memory_words: Let `cosma_strategy` choose grid and panel within this many elements a device.

    Raises:
        ScheduleError: The mesh lacks an axis, or both `panel` and `memory_words` are given.
    """
    if memory_words is None:
        names, grid = _axes(mesh, axes, 3, "cosma")
        return _on("cosma", mesh, names, lambda m, n, k: library.cosma(m, n, k, grid, panel=panel))
    if panel is not None or axes is not None:
        raise ScheduleError(
            "cosma chooses axes and panel by itself within memory_words",
            where="autoshard.schedules.cosma",
            fix="leave axes and panel out, or memory_words",
        )
    num = math.prod(mesh.shape.values())

    def arrange(m: int, n: int, k: int) -> Arranged:
        strategy = cosma_strategy(m, n, k, num, memory_words)
        return Arranged(strategy.placed(), _rearranged(mesh, strategy.grid), ("m", "n", "k"))

    return ScheduledMatmul("cosma", arrange)


@lru_cache(maxsize=128)
def _rearranged(mesh: AnyMesh, grid: tuple[int, int, int]) -> AnyMesh:
    names = ("m", "n", "k")
    kinds = (jax.sharding.AxisType.Auto,) * 3
    if isinstance(mesh, jax.sharding.AbstractMesh):
        return jax.sharding.AbstractMesh(grid, names, kinds)
    return jax.sharding.Mesh(mesh.devices.reshape(grid), names, kinds)


def all_gather_matmul(
    mesh: AnyMesh, axis: str | None = None, *, both_ways: bool = False
) -> ScheduledMatmul:
    """`a` cut by rows times `b` cut by columns: rows go round a ring while products are made.

    Args:
        mesh: Any.
        axis: The ring; the first axis if not given.
        both_ways: Use both directions of the ring, half of each piece one way.

    Raises:
        ScheduleError: The mesh lacks the axis.
    """
    names, (num,) = _axes(mesh, None if axis is None else (axis,), 1, "all_gather_matmul")

    def build(m: int, n: int, k: int) -> Placed:
        return library.all_gather_matmul(m, n, k, num, both_ways=both_ways)

    return _on("all_gather_matmul", mesh, names, build)


def matmul_reduce_scatter(
    mesh: AnyMesh, axis: str | None = None, *, both_ways: bool = False
) -> ScheduledMatmul:
    """`a` and `b` cut along the summed dimension: sums go round a ring while they are made.

    Args:
        mesh: Any.
        axis: The ring; the first axis if not given.
        both_ways: Use both directions of the ring, half of each sum one way.

    Raises:
        ScheduleError: The mesh lacks the axis.
    """
    names, (num,) = _axes(mesh, None if axis is None else (axis,), 1, "matmul_reduce_scatter")

    def build(m: int, n: int, k: int) -> Placed:
        return library.matmul_reduce_scatter(m, n, k, num, both_ways=both_ways)

    return _on("matmul_reduce_scatter", mesh, names, build)


def lower(
    placed: Placed,
    mesh: AnyMesh,
    axis_names: Sequence[str] | None = None,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Callable[..., jax.Array]:
    """A function of the operands that runs any placed schedule on a mesh.

    Args:
        placed: The schedule, and where its tensors live.
        mesh: Explicit axes are taken as Auto.
        axis_names: The mesh axis of each dimension of the grid; the first ones if not given.
        precision: Of each local product, as in `jnp.einsum`.
        preferred_element_type: Of the result, as in `jnp.einsum`.

    Raises:
        ScheduleError: The mesh does not fit the grid, or the schedule has no such form.
        ShardingError: A tensor on a face cannot be spread behind it.
    """
    names, grid = _axes(mesh, axis_names, len(placed.grid), "lower")
    if grid != placed.grid:
        raise ScheduleError(
            f"the schedule is for a grid of {' x '.join(map(str, placed.grid))}, and axes"
            f" {', '.join(names)} are {' x '.join(map(str, grid))}",
            where=f"mesh {dict(mesh.shape)}",
            fix="make the schedule for these sizes, or name other axes",
        )
    return _lower(
        placed,
        as_auto(mesh),
        names,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def as_dot_general(matmul: ScheduledMatmul) -> Callable[..., jax.Array]:
    """A function with the arguments of `jax.lax.dot_general` that multiplies by a schedule.

    Batch dimensions are mapped over; contracted dimensions are flattened into one, and so are those
    left on each side. It fits where libraries take a `dot_general`, such as Flax's layers.
    """

    def dot_general(
        lhs: jax.Array,
        rhs: jax.Array,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: Any = None,
        **_: Any,
    ) -> jax.Array:
        (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
        left, left_free = _as_matrices(lhs, lhs_batch, lhs_contract, contract_last=True)
        right, right_free = _as_matrices(rhs, rhs_batch, rhs_contract, contract_last=False)

        def product(a: jax.Array, b: jax.Array) -> jax.Array:
            return matmul(a, b, precision=precision, preferred_element_type=preferred_element_type)

        batch = tuple(lhs.shape[dim] for dim in lhs_batch)
        result = (jax.vmap(product) if batch else product)(left, right)
        return result.reshape(*batch, *left_free, *right_free)

    return dot_general


def _as_matrices(
    array: jax.Array, batch: Sequence[int], contract: Sequence[int], *, contract_last: bool
) -> tuple[jax.Array, tuple[int, ...]]:
    """`[batch, free, contracted]` or `[batch, contracted, free]`, and the sizes left free."""
    free = [dim for dim in range(array.ndim) if dim not in batch and dim not in contract]
    sizes = tuple(array.shape[dim] for dim in free)
    order = [*batch, *free, *contract] if contract_last else [*batch, *contract, *free]
    num_batch = math.prod(array.shape[dim] for dim in batch)
    num_free = math.prod(sizes)
    num_contract = math.prod(array.shape[dim] for dim in contract)
    matrix = (num_free, num_contract) if contract_last else (num_contract, num_free)
    shape = (num_batch, *matrix) if batch else matrix
    return array.transpose(order).reshape(shape), sizes


def _axes(
    mesh: AnyMesh, axes: Sequence[str] | None, num: int, name: str
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and sizes of the axes to use."""
    sizes = {str(axis): size for axis, size in mesh.shape.items()}
    names = tuple(sizes)[:num] if axes is None else tuple(axes)
    where = f"mesh {sizes}"
    if len(names) != num:
        plural = "axis" if num == 1 else "axes"
        raise ScheduleError(
            f"{name} runs on {num} mesh {plural}, found {len(names)}",
            where=where,
            fix=f"give a mesh with {num} {plural}, or name {num}",
        )
    for axis in names:
        if axis not in sizes:
            raise ScheduleError(
                f"the mesh has no axis {axis!r}; its axes are: {', '.join(sizes)}",
                where=where,
                fix="name axes of the mesh",
            )
    if len(set(names)) < num:
        raise ScheduleError(
            f"{name} needs {num} different axes, found {', '.join(names)}",
            where=where,
            fix="name each axis once",
        )
    return names, tuple(sizes[axis] for axis in names)
