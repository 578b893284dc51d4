"""Every algorithm on the grids it is tested on, with the formula for its words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import jax
import numpy as np

from autoshard import schedules
from autoshard.loops import closed_forms
from autoshard.loops.closed_forms import Volume
from autoshard.schedules import ScheduledMatmul

Sizes: TypeAlias = tuple[int, int, int]

SQUARE: Sizes = (32, 32, 32)
OBLONG: Sizes = (16, 64, 32)


@dataclass(frozen=True)
class Case:
    """One algorithm on one grid.

    Args:
        name: For the test's id.
        grid: Sizes of the mesh.
        make: From a mesh.
        volume: The words it moves, for rows, columns and summed range.
    """

    name: str
    grid: tuple[int, ...]
    make: Callable[[jax.sharding.Mesh], ScheduledMatmul]
    volume: Callable[[int, int, int], Volume]

    def __str__(self) -> str:
        return f"{self.name} on {'x'.join(map(str, self.grid))}"

    def mesh(self) -> jax.sharding.Mesh:
        return mesh_of(self.grid)


def mesh_of(grid: tuple[int, ...]) -> jax.sharding.Mesh:
    """A mesh of Auto axes x, y, z over the first devices."""
    devices = np.array(jax.devices()[: math.prod(grid)]).reshape(grid)
    return jax.sharding.Mesh(devices, tuple("xyz"[: len(grid)]))


def in_panels(grid: tuple[int, int], panel: int) -> Case:
    """SUMMA that gathers this many values of the summed dimension in each step."""
    return Case(
        "summa in panels",
        grid,
        partial(schedules.summa, panel=panel),
        lambda m, n, k: closed_forms.summa_volume(m, n, k, grid, panel),
    )


def plane_cases(grid: tuple[int, int]) -> list[Case]:
    """Those for two dimensions."""
    cases = [
        Case(
            "summa",
            grid,
            schedules.summa,
            lambda m, n, k: closed_forms.summa_volume(m, n, k, grid),
        ),
        in_panels(grid, 8),
        Case(
            "pumma",
            grid,
            schedules.pumma,
            lambda m, n, k: closed_forms.pumma_volume(m, n, k, grid),
        ),
    ]
    if grid[0] == grid[1]:
        cases.append(
            Case(
                "cannon",
                grid,
                schedules.cannon,
                lambda m, n, k: closed_forms.cannon_volume(m, n, k, grid),
            )
        )
    return cases


def cube_cases(grid: tuple[int, int, int]) -> list[Case]:
    """Those for three dimensions."""
    cases = [
        Case(
            "johnson",
            grid,
            schedules.johnson,
            lambda m, n, k: closed_forms.johnson_volume(m, n, k, grid),
        ),
        Case(
            "cosma",
            grid,
            lambda mesh: schedules.cosma(mesh, panel=4),
            lambda m, n, k: closed_forms.cosma_volume(m, n, k, grid, 4),
        ),
    ]
    if grid[0] == grid[1] and grid[0] % grid[2] == 0:
        cases.append(
            Case(
                "solomonik",
                grid,
                schedules.solomonik,
                lambda m, n, k: closed_forms.solomonik_volume(m, n, k, grid),
            )
        )
    return cases


def ring_cases(num: int) -> list[Case]:
    """Those for one dimension."""
    cases = []
    for both_ways in (False, True):
        way = "both ways" if both_ways else "one way"
        cases.append(
            Case(
                f"all-gather-matmul {way}",
                (num,),
                partial(schedules.all_gather_matmul, both_ways=both_ways),
                lambda m, n, k: closed_forms.all_gather_matmul_volume(m, n, k, num),
            )
        )
        cases.append(
            Case(
                f"matmul-reduce-scatter {way}",
                (num,),
                partial(schedules.matmul_reduce_scatter, both_ways=both_ways),
                lambda m, n, k: closed_forms.matmul_reduce_scatter_volume(m, n, k, num),
            )
        )
    return cases
