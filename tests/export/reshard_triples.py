"""Random (from, to, mesh) triples with sub-axes, and Shardy's own way between them."""

from __future__ import annotations

import random

from autoshard.export.module_cost import module_cost
from autoshard.mlir_modules import (
    module_context,
    module_text,
    parse_module,
    run_passes,
)
from autoshard.sharding import Mesh, MeshAxis, Sharding, format_mesh, format_sharding
from tests.export.generated_modules import random_sharding

MESHES = (
    Mesh((MeshAxis("x", 8),)),
    Mesh((MeshAxis("x", 4), MeshAxis("y", 2))),
    Mesh((MeshAxis("x", 2), MeshAxis("y", 4))),
    Mesh((MeshAxis("x", 2), MeshAxis("y", 2), MeshAxis("z", 2))),
    Mesh((MeshAxis("x", 6),)),
    Mesh((MeshAxis("x", 2), MeshAxis("y", 3))),
)
SIZES = (4, 6, 8, 12, 24)


def reshard_triple(seed: int) -> tuple[Mesh, tuple[int, ...], Sharding, Sharding]:
    """A mesh of at most 8 devices, a shape, and two shardings that divide it evenly."""
    rng = random.Random(seed)
    mesh = rng.choice(MESHES)
    shape = tuple(rng.choice(SIZES) for _ in range(rng.randint(1, 4)))
    return (
        mesh,
        shape,
        random_sharding(rng, mesh, shape),
        random_sharding(rng, mesh, shape),
    )


def shardys_bytes(mesh: Mesh, shape: tuple[int, ...], before: Sharding, after: Sharding) -> float:
    """Bytes a device receives in the sequence that Shardy's reshard-to-collectives makes."""
    kind = f"tensor<{''.join(f'{size}x' for size in shape)}f32>"
    text = (
        f"sdy.mesh @mesh = {format_mesh(mesh)}\n"
        f"func.func @main(%arg0: {kind} {{sdy.sharding = #sdy.sharding{format_sharding(before)}}})"
        f" -> {kind} {{\n"
        f"  %0 = sdy.reshard %arg0 {format_sharding(after)} : {kind}\n"
        f"  return %0 : {kind}\n"
        "}"
    )
    with module_context():
        module = parse_module(text)
        run_passes(module, "func.func(sdy-reshard-to-collectives)", step="Shardy's own pass")
        return module_cost(module_text(module)).communication
