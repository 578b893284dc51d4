"""Every algorithm of the library on JAX: values, words moved, memory."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from autoshard import schedules
from autoshard.errors import AutoshardError
from autoshard.hlo.compiled import read_collectives
from autoshard.loops.closed_forms import cannon_volume, summa_volume
from autoshard.schedules import ScheduledMatmul
from tests.schedules.algorithms import (
    OBLONG,
    SQUARE,
    Case,
    cube_cases,
    in_panels,
    mesh_of,
    plane_cases,
    ring_cases,
)
from tests.schedules.checking import check_case, compiled, matrices

ROOT = Path(__file__).parents[2]
CASES = [
    *plane_cases((2, 2)),
    *plane_cases((2, 4)),
    *cube_cases((2, 2, 2)),
    *ring_cases(4),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_product_in_float32_is_right_and_moves_the_words_of_its_formula(case: Case) -> None:
    check_case(case, OBLONG, "float32")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_product_in_float64_is_right_and_moves_the_words_of_its_formula(case: Case) -> None:
    with jax.enable_x64(True):
        check_case(case, SQUARE, "float64")


SIXTEEN = """
import jax
from tests.schedules.algorithms import OBLONG, SQUARE, cube_cases, plane_cases
from tests.schedules.checking import check_case

for case in [*plane_cases((4, 4)), *cube_cases((2, 4, 2))]:
    check_case(case, OBLONG, "float32")
    with jax.enable_x64(True):
        check_case(case, SQUARE, "float64")
    print(case)
"""


def test_on_sixteen_devices_values_and_words_are_right_too() -> None:
    done = run_on_sixteen(SIXTEEN)
    assert done.splitlines() == [
        "summa on 4x4",
        "summa in panels on 4x4",
        "pumma on 4x4",
        "cannon on 4x4",
        "johnson on 2x4x2",
        "cosma on 2x4x2",
    ]


def run_on_sixteen(script: str) -> str:
    """What a script prints in a process with sixteen devices."""
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=16",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (schedules.summa, [("all-gather", 1), ("all-gather", 1)]),
        (
            lambda mesh: schedules.summa(mesh, panel=8),
            [("all-gather", 4), ("all-gather", 4)],
        ),
        (
            schedules.cannon,
            [("collective-permute", 1)] * 4,
        ),
    ],
    ids=["summa", "summa in panels", "cannon"],
)
def test_where_a_tensor_is_communicated_decides_what_is_sent_how_often(
    make: Callable[[jax.sharding.Mesh], ScheduledMatmul], kinds: list[tuple[str, int]]
) -> None:
    case = Case("", (2, 2), make, lambda m, n, k: summa_volume(m, n, k, (2, 2)))
    found = read_collectives(compiled(case, SQUARE).as_text() or "")
    assert [(c.kind, c.count) for c in found] == kinds


def temp_words(case: Case, size: int) -> float:
    memory = compiled(case, (size, size, size)).memory_analysis()
    assert memory is not None
    return float(memory.temp_size_in_bytes) / 4


def test_temporary_memory_falls_with_the_panel_as_the_formula_says() -> None:
    size, grid = 256, (2, 2)
    panels = (128, 64, 32, 16)
    measured, held = [], []
    for panel in panels:
        case = in_panels(grid, panel)
        measured.append(temp_words(case, size))
        held.append(summa_volume(size, size, size, grid, panel).held)
    falls = [a - b for a, b in itertools.pairwise(measured)]
    assert falls == [a - b for a, b in itertools.pairwise(held)]
    # Beside the panels there is the sum under way, and a few counters.
    result = size * size // 4
    assert all(0 <= m - h - result < 64 for m, h in zip(measured, held, strict=True))


CANNON_MEMORY = """
from autoshard import schedules
from autoshard.loops.closed_forms import cannon_volume
from tests.schedules.algorithms import Case
from tests.schedules.checking import compiled

case = Case("cannon", (4, 4), schedules.cannon, lambda m, n, k: cannon_volume(m, n, k, (4, 4)))
print(compiled(case, (256, 256, 256)).memory_analysis().temp_size_in_bytes // 4)
"""


def test_cannon_holds_two_blocks_of_each_operand_and_the_sum_under_way() -> None:
    words = int(run_on_sixteen(CANNON_MEMORY))
    expected = cannon_volume(256, 256, 256, (4, 4)).held + 256 * 256 // 16
    assert 0 <= words - expected < 64


def test_cosma_arranges_the_devices_by_itself_within_a_memory() -> None:
    case = Case(
        "cosma",
        (8,),
        lambda mesh: schedules.cosma(mesh, memory_words=4000),
        lambda m, n, k: summa_volume(m, n, k, (2, 4)),
    )
    check_case(case, (64, 64, 16), "float32")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda mesh: schedules.cannon(mesh)(*matrices((7, 8, 8), "float32")),
            "loop i has 7 turns, which 2 parts do not divide\n"
            "  where: divide(i, io, ii, 2)\n"
            "  fix: pad it to 8, or use a divisor of 7",
        ),
        (
            lambda mesh: schedules.summa(mesh)(*matrices((8, 8, 7), "float32")),
            "dimension k has size 7, which 2 does not divide\n"
            "  where: B ik -> ik M\n"
            "  fix: pad dimension k to 8, or cut it less",
        ),
        (
            lambda mesh: schedules.cannon(mesh, ("x", "q")),
            "the mesh has no axis 'q'; its axes are: x, y\n"
            "  where: mesh {'x': 2, 'y': 2}\n"
            "  fix: name axes of the mesh",
        ),
        (
            lambda mesh: schedules.cannon(mesh, ("x", "x")),
            "cannon needs 2 different axes, found x, x\n"
            "  where: mesh {'x': 2, 'y': 2}\n"
            "  fix: name each axis once",
        ),
        (
            schedules.johnson,
            "johnson runs on 3 mesh axes, found 2\n"
            "  where: mesh {'x': 2, 'y': 2}\n"
            "  fix: give a mesh with 3 axes, or name 3",
        ),
        (
            lambda mesh: schedules.summa(mesh).placed((8, 4), (8, 4)),
            "summa multiplies two matrices, and the shapes are [8, 4] and [8, 4]\n"
            "  where: autoshard.schedules.summa\n"
            "  fix: pass [m, k] and [k, n]; as_dot_general takes any dot_general",
        ),
        (
            lambda mesh: schedules.cosma(mesh, panel=4, memory_words=100),
            "cosma chooses axes and panel by itself within memory_words\n"
            "  where: autoshard.schedules.cosma\n"
            "  fix: leave axes and panel out, or memory_words",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_a_message(
    make: Callable[[jax.sharding.Mesh], object], message: str
) -> None:
    with pytest.raises(AutoshardError) as caught:
        make(mesh_of((2, 2)))
    assert str(caught.value) == message
