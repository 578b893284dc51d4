"""The export steps beside jaxlib's own passes, counted by the referee; writes results/export.md.

    python -m experiments.bench_export

Reshards: 1,000 random (from, to, mesh) triples. Explicit reshards: 100 generated modules, each pass
of jaxlib in this process (the combination is one that does not crash), by bytes a device receives
and by predicted seconds.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import time
from dataclasses import dataclass

from autoshard.collectives import (
    HardwarePrices,
    ReceivedBytes,
    collective_cost,
    find_collectives,
)
from autoshard.export import run_stage, verify_module
from autoshard.export.module_cost import module_cost
from autoshard.mlir_modules import (
    first_mesh,
    module_context,
    module_text,
    parse_module,
    run_passes,
)
from cost_models import get_hardware
from experiments.results_table import write_page
from tests.export.generated_modules import sharded_module
from tests.export.reshard_triples import reshard_triple, shardys_bytes

NUM_TRIPLES = 1000
NUM_MODULES = 100
MACHINE = "tpu-v5e"
JAXLIB = (
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true}),"
    "canonicalize{enable-patterns=sdy-reshard},func.func(sdy-reshard-to-collectives),"
    "canonicalize{enable-patterns=sdy-collective}"
)


@dataclass(frozen=True, slots=True)
class Tally:
    """How two ways compare over many cases: cases and totals."""

    fewer: int
    equal: int
    more: tuple[str, ...]
    ours: float
    theirs: float

    @staticmethod
    def of(pairs: dict[str, tuple[float, float]]) -> Tally:
        """Count pairs of ours and theirs, by name of the case."""
        close = {name: abs(a - b) <= 1e-9 * max(a, b) for name, (a, b) in pairs.items()}
        return Tally(
            sum(1 for name, (a, b) in pairs.items() if a < b and not close[name]),
            sum(close.values()),
            tuple(name for name, (a, b) in pairs.items() if a > b and not close[name]),
            sum(a for a, _ in pairs.values()),
            sum(b for _, b in pairs.values()),
        )

    def row(self, name: str, unit: str) -> str:
        more = ", ".join(self.more) or "none"
        return (
            f"| {name} | {self.fewer + self.equal + len(self.more)} | {self.fewer} | {self.equal} |"
            f" {more} | {self.ours:.6g} {unit} | {self.theirs:.6g} {unit} |"
            f" {self.ours / self.theirs:.3f} |"
        )


def compare_triples() -> tuple[Tally, float]:
    """Bytes of reshards, ours and Shardy's, and the seconds ours took to find."""
    pairs, seconds = {}, 0.0
    for seed in range(NUM_TRIPLES):
        mesh, shape, before, after = reshard_triple(seed)
        start = time.perf_counter()
        steps = find_collectives(before, after, mesh, shape)
        seconds += time.perf_counter() - start
        ours = sum(collective_cost(step, mesh, shape, 32, ReceivedBytes()) for step in steps)
        pairs[f"seed {seed}"] = (ours, shardys_bytes(mesh, shape, before, after))
    return Tally.of(pairs), seconds


def compare_modules(*, on_machine: bool) -> Tally:
    """Cost of whole modules after explicit reshards and collectives."""
    pairs = {}
    for seed in range(NUM_MODULES):
        text = sharded_module(seed)
        with module_context():
            _, mesh = first_mesh(parse_module(text))
            own = parse_module(text)
            run_passes(own, JAXLIB, step="jaxlib's own passes")
            theirs = module_text(own)
        prices = HardwarePrices.of(get_hardware(MACHINE), mesh) if on_machine else ReceivedBytes()
        explicit = run_stage(text, "explicit", prices=prices)
        ours = run_stage(explicit, "collectives", prices=prices)
        assert verify_module(ours) == (), seed
        pairs[f"seed {seed}"] = (
            module_cost(ours, prices).total,
            module_cost(theirs, prices).total,
        )
    return Tally.of(pairs)


def main() -> None:
    """Run everything and write the page."""
    triples, seconds = compare_triples()
    lines = [
        "Cases in which ours is cheaper, equal and more expensive; totals over all cases. `Bytes`"
        " are those a device receives, `seconds` those predicted for " + MACHINE + ".",
        "",
        "| what | cases | cheaper | equal | more expensive | ours | jaxlib's | ratio |",
        "|---|---|---|---|---|---|---|---|",
        triples.row("reshards to collectives, bytes", "B"),
        compare_modules(on_machine=False).row("explicit reshards and collectives, bytes", "B"),
        compare_modules(on_machine=True).row("explicit reshards and collectives, seconds", "s"),
        "",
        f"Finding the collectives of a reshard took {1e3 * seconds / NUM_TRIPLES:.2f} ms on"
        " average, equal parts of searches shared.",
        "",
        "The six other steps are jaxlib's passes, run as they are: nothing to compare.",
        "",
    ]
    print(write_page("export", "Export steps beside jaxlib's own", "\n".join(lines)).read_text())


if __name__ == "__main__":
    main()
