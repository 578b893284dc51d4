"""Time of parsing and verifying shardings on one core.

Run as `python experiments/bench_sharding_text.py [number of shardings]`.
"""

from __future__ import annotations

import random
import sys
import time

from autoshard.sharding import (
    AxisRef,
    DimSharding,
    Mesh,
    Sharding,
    format_sharding,
    parse_mesh,
    parse_sharding,
    verify_sharding,
)

MESH = parse_mesh('<["data"=16, "fsdp"=8, "tensor"=8, "expert"=4]>')


def random_sharding(mesh: Mesh, rank: int, draw: random.Random) -> Sharding:
    """A sound sharding that uses each axis whole, in part, or not at all."""
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    replicated: list[AxisRef] = []
    unreduced: list[AxisRef] = []
    for axis in mesh.axes:
        part = AxisRef(axis.name) if draw.random() < 0.6 else AxisRef(axis.name, 2, 2)
        place = draw.randrange(rank + 4)
        if place < rank:
            dims[place].append(part)
        elif place == rank:
            replicated.append(part)
        elif place == rank + 1:
            unreduced.append(part)
    return Sharding(
        tuple(
            DimSharding(tuple(axes), draw.random() < 0.5, draw.randrange(3) if axes else None)
            for axes in dims
        ),
        tuple(replicated),
        tuple(unreduced),
    )


def main(num_shardings: int) -> None:
    draw = random.Random(0)
    ranks = [draw.randint(1, 5) for _ in range(num_shardings)]
    texts = [format_sharding(random_sharding(MESH, rank, draw)) for rank in ranks]
    shapes = [(64,) * rank for rank in ranks]
    start, cpu_start = time.perf_counter(), time.process_time()
    num_sound = sum(
        not verify_sharding(parse_sharding(text), MESH, shape)
        for text, shape in zip(texts, shapes, strict=True)
    )
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    print(
        f"{num_shardings} shardings parsed and verified in {seconds:.2f} s "
        f"({cpu_seconds:.2f} s of one core, {cpu_seconds / num_shardings * 1e6:.1f} us each), "
        f"{num_sound} sound; for example {texts[0]}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
