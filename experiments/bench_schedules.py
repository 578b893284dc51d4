"""Distributed matrix products: words and memory as predicted and as compiled.

    python -m experiments.bench_schedules

Runs on 16 host devices and writes `experiments/results/schedules.md`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16"

import jax
import jax.numpy as jnp
import numpy as np

import autoshard
from autoshard import schedules
from autoshard.apply.scheduled.received import total_received_bytes
from autoshard.loops import closed_forms, simulate
from autoshard.loops.closed_forms import Volume
from autoshard.schedules import ScheduledMatmul
from experiments.results_table import markdown_table, write_page

Sizes: TypeAlias = tuple[int, int, int]
Case: TypeAlias = tuple[str, Callable[[Any], ScheduledMatmul], Callable[..., Volume]]

SIZES: tuple[Sizes, ...] = ((256, 256, 256), (128, 256, 512))
PLANES = ((2, 2), (2, 4), (4, 4))
CUBES = ((2, 2, 2), (2, 4, 2))
PANELS = (128, 64, 32, 16)
MLP_SHAPES = ((512, 2048), (2048, 512), (1024, 512))  # weights, and a batch
BUDGETS_MB = (16, 9, 6, 4.8, 4)
CHOSEN_COLUMNS = (
    "products",
    "predicted ms",
    "collectives MB, planned",
    "received MB, compiled",
    "peak MB, planned",
    "peak MB, compiled",
    "max abs diff",
)


def cases() -> Iterator[tuple[tuple[int, ...], Case]]:
    """Grid, and name, product and formula, of everything measured."""
    for grid in PLANES:
        for panel in (None, *PANELS):
            name = "summa" if panel is None else f"summa, panels of {panel}"
            volume = partial(closed_forms.summa_volume, grid=grid, panel=panel)
            yield grid, (name, partial(schedules.summa, panel=panel), volume)
        yield grid, ("pumma", schedules.pumma, partial(closed_forms.pumma_volume, grid=grid))
        if grid[0] == grid[1]:
            volume = partial(closed_forms.cannon_volume, grid=grid)
            yield grid, ("cannon", schedules.cannon, volume)
    for cube in CUBES:
        volume = partial(closed_forms.johnson_volume, grid=cube)
        yield cube, ("johnson", schedules.johnson, volume)
        volume = partial(closed_forms.cosma_volume, grid=cube, panel=16)
        yield cube, ("cosma, panels of 16", partial(schedules.cosma, panel=16), volume)
    for layers in (1, 2):
        layered = (2, 2, layers)
        volume = partial(closed_forms.solomonik_volume, grid=layered)
        yield layered, (f"2.5-D, c = {layers}", schedules.solomonik, volume)
    for both_ways in (False, True):
        way = "both ways" if both_ways else "one way"
        volume = partial(closed_forms.all_gather_matmul_volume, num=8)
        make = partial(schedules.all_gather_matmul, both_ways=both_ways)
        yield (8,), (f"all-gather-matmul, {way}", make, volume)
        volume = partial(closed_forms.matmul_reduce_scatter_volume, num=8)
        make = partial(schedules.matmul_reduce_scatter, both_ways=both_ways)
        yield (8,), (f"matmul-reduce-scatter, {way}", make, volume)


def measure(grid: tuple[int, ...], case: Case, sizes: Sizes) -> dict[str, Any]:
    """One row: a product compiled, run and simulated."""
    name, make, formula = case
    m, n, k = sizes
    devices = np.array(jax.devices()[: math.prod(grid)]).reshape(grid)
    product = make(jax.sharding.Mesh(devices, tuple("xyz"[: len(grid)])))
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=(m, k)), draw.normal(size=(k, n))
    places = product.shardings(a.shape, b.shape)
    arrays = [jnp.asarray(x, "float32") for x in (a, b)]
    program = jax.jit(product, in_shardings=places[:2]).lower(*arrays).compile()
    value = program(*(jax.device_put(x, p) for x, p in zip(arrays, places, strict=False)))
    volume = formula(m, n, k)
    simulated = simulate(product.placed(a.shape, b.shape), a, b)
    memory = program.memory_analysis()
    assert memory is not None
    return {
        "algorithm": name,
        "grid": "x".join(map(str, grid)),
        "m, n, k": f"{m}, {n}, {k}",
        "words, formula": f"{float(volume.words):.0f}",
        "words, simulated": f"{simulated.words_per_processor:.0f}",
        "words, compiled": f"{float(total_received_bytes(program.as_text() or '')) / 4:.0f}",
        "held bytes, formula": volume.held * 4,
        "temp bytes, compiled": memory.temp_size_in_bytes,
        "result bytes": m * n * 4 // math.prod(grid),
        "max abs diff": f"{np.abs(np.asarray(value) - a @ b).max():.1e}",
    }


def mlp(params: Any, x: Any) -> Any:
    """Two layers of a transformer's feed-forward part."""
    return jax.nn.relu(x @ params["up"]) @ params["down"]


def chosen(budget_mb: float, steps: str) -> dict[str, Any]:
    """One row: an MLP planned within a budget, compiled and run on 8 devices."""
    up, down, x = (jax.ShapeDtypeStruct(s, "float32") for s in MLP_SHAPES)
    params = {"up": up, "down": down}
    plan = autoshard.optimize(
        mlp,
        params,
        x,
        mesh="data=8",
        hardware="cpu-host",
        memory_budget=int(budget_mb * 1e6),
        baselines=False,
        schedules=steps,
    )
    row = {"budget MB": budget_mb, "schedules": steps, "status": plan.data.solver.status}
    if not plan.data.is_feasible:
        return row | dict.fromkeys(CHOSEN_COLUMNS, "")
    draw = np.random.default_rng(1)
    arrays = [jnp.asarray(draw.normal(size=s) / 16, "float32") for s in MLP_SHAPES]
    given = ({"up": arrays[0], "down": arrays[1]}, arrays[2])
    program = plan.jit().lower(params, x).compile()
    memory = program.memory_analysis()
    assert memory is not None
    held = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    moved = sum(c.moved_bytes for c in plan.data.collectives)
    algorithms = [p.schedule.algorithm for p in plan.data.products if p.schedule is not None]
    difference = np.abs(np.asarray(plan.jit()(*given)) - np.asarray(mlp(*given))).max()
    values = (
        ", ".join(algorithms) or "at once",
        f"{plan.data.seconds * 1e3:.2f}",
        f"{moved / 1e6:.2f}",
        f"{float(total_received_bytes(program.as_text() or '')) / 1e6:.2f}",
        f"{plan.data.memory.peak_bytes / 1e6:.2f}",
        f"{held / 1e6:.2f}",
        f"{difference:.1e}",
    )
    return row | dict(zip(CHOSEN_COLUMNS, values, strict=True))


def main() -> None:
    """Measure everything and write the tables."""
    rows = []
    for sizes in SIZES:
        for grid, case in cases():
            rows.append(measure(grid, case, sizes))
            print(rows[-1], flush=True)
    text = markdown_table(rows) + (
        "\nWords: received per device, on average, float32. Held: beside the pieces at home, by the"
        " formula; where the steps are a loop, the program also holds the sum under way, which is"
        " as large as the result. Steps that are no loop (`summa` without panels, `pumma`): XLA's"
        " CPU backend makes copies of gathered operands in another dimension order and fetches"
        " for several steps at a time. Difference: to the product in float64.\n"
    )
    plans = [chosen(mb, steps) for mb in BUDGETS_MB for steps in ("none", "auto")]
    text += (
        "\n## What the optimizer chooses\n\nAn MLP of two products, 512 x 2048 and back, for 1024"
        " rows in float32 on 8 devices of `cpu-host`, within a budget per device. Received: all but"
        " a device's own part, so of what an all-gather makes 7/8, and of an all-reduce 7/4.\n\n"
    )
    text += markdown_table(plans)
    print(f"wrote {write_page('schedules', 'Distributed matrix products', text)}")


if __name__ == "__main__":
    main()
