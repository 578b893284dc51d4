"""Shardings as text: the time of parsing and verifying them, and agreement with jaxlib's Shardy.

    python experiments/bench_sharding_text.py [--shardings 100000] [--texts 10000]

Writes `experiments/results/sharding.md`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

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
SEED = 0


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


def measure_speed(num_shardings: int) -> dict[str, object]:
    """Parse and verify that many texts, one after the other."""
    draw = random.Random(SEED)
    ranks = [draw.randint(1, 5) for _ in range(num_shardings)]
    texts = [format_sharding(random_sharding(MESH, rank, draw)) for rank in ranks]
    shapes = [(64,) * rank for rank in ranks]
    start, cpu_start = time.perf_counter(), time.process_time()
    num_sound = sum(
        not verify_sharding(parse_sharding(text), MESH, shape)
        for text, shape in zip(texts, shapes, strict=True)
    )
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return {
        "shardings": num_shardings,
        "sound": num_sound,
        "wall s": f"{seconds:.2f}",
        "s of one core": f"{cpu_seconds:.2f}",
        "us each": f"{cpu_seconds / num_shardings * 1e6:.1f}",
        "for example": f"`{texts[0]}`",
    }


def measure_agreement(kind: str, num_texts: int) -> dict[str, object]:
    """Ask both sides about that many random texts."""
    from experiments.shardy_oracle import count_agreement

    agreement = count_agreement(kind, num_texts, SEED)
    for answer in [*agreement.different_verdicts, *agreement.different_texts]:
        print(f"{kind}: {answer}")
    num_alike = num_texts - len(agreement.different_verdicts) - agreement.stricter
    num_both = (
        agreement.accepted
        - agreement.stricter
        - sum(answer.theirs is not None for answer in agreement.different_verdicts)
    )
    return {
        "random": kind,
        "texts": num_texts,
        "accepted by Shardy": agreement.accepted,
        "refused by Shardy": num_texts - agreement.accepted,
        "same verdict": num_alike,
        "stricter here": agreement.stricter,
        "same canonical text": f"{num_both - len(agreement.different_texts)} of {num_both}",
    }


def main() -> None:
    from experiments.results_table import markdown_table, write_page
    from experiments.shardy_oracle import KINDS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shardings", type=int, default=100_000)
    parser.add_argument("--texts", type=int, default=10_000)
    options = parser.parse_args()
    speed = markdown_table([measure_speed(options.shardings)])
    agreement = markdown_table([measure_agreement(kind, options.texts) for kind in KINDS])
    text = (
        "Shardings parsed and verified, one after the other:\n\n"
        f"{speed}\n"
        "Random texts, sound and damaged (as values, or in their characters), put to the parser "
        "and verifier of the Shardy inside jaxlib and to ours. Manual computations come in whole "
        "programs, nested up to three deep with constraints inside; their canonical text is what "
        "is read back from the program Shardy prints.\n\n"
        f"{agreement}\n"
        "Stricter here: several symbols where one belongs, as in `reduction={ij}`, which Shardy "
        "reads as `{i}`, dropping the rest. We refuse it.\n"
    )
    print(text)
    print(f"written to {write_page('sharding', 'Shardings as text', text)}")


if __name__ == "__main__":
    main()
