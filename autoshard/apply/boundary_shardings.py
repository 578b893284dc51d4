"""Shardings of a program's arguments and results, as its user and its module have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoshard.apply.propagation.propagator import PlannedProgram
from autoshard.frontend.key_arrays import with_word_dims
from autoshard.plans.plan import PlanData, PlannedTensor
from autoshard.sharding import HOST_MEMORY, Mesh, Sharding, is_equivalent

Shardings = Sequence[Sharding | None]


def as_written(
    tensors: Sequence[PlannedTensor], asked: Sequence[Sharding | None] | None, mesh: Mesh
) -> list[Sharding]:
    """Planned shardings, on the mesh the user wrote one on where it says exactly the same there.

    One with the devices in another order is not one of those: JAX runs a program in one order.
    """
    plain = Mesh(mesh.axes)
    found = []
    for tensor, sharding in zip(tensors, asked or (None,) * len(tensors), strict=True):
        own = None if sharding is None else sharding.inlined_mesh
        is_exact = (
            sharding is not None
            and own is not None
            and own.device_ids is None
            and sharding.is_fully_closed
            and is_equivalent(sharding, plain, tensor.sharding, plain)
        )
        chosen = sharding if is_exact and sharding is not None else tensor.sharding
        found.append(_placed(tensor, chosen))
    return found


def _placed(tensor: PlannedTensor, sharding: Sharding) -> Sharding:
    """A sharding in the memory that the tensor is planned for."""
    return replace(sharding, memory_kind=HOST_MEMORY) if tensor.is_on_host else sharding


def in_module(
    program: PlannedProgram, arguments: Shardings, results: Shardings
) -> tuple[Shardings, Shardings]:
    """Shardings of arguments and results in the shapes that the module has: keys are words there.

    Args:
        program: Of which they are.
        arguments: In the shapes that JAX shows.
        results: Likewise.
    """
    return (
        tuple(map(with_word_dims, arguments, program.in_avals)),
        tuple(map(with_word_dims, results, program.out_avals)),
    )


def planned_in_module(program: PlannedProgram, data: PlanData) -> tuple[Shardings, Shardings]:
    """The planned shardings of arguments and results in the shapes that the module has."""
    return in_module(
        program,
        [_placed(tensor, tensor.sharding) for tensor in data.arguments],
        [_placed(tensor, tensor.sharding) for tensor in data.results],
    )
