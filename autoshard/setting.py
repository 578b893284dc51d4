"""What a program is planned for, and how: the options of users, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autoshard.argument_types import check_types
from autoshard.backends import backend_for
from autoshard.errors import InputError
from autoshard.mesh_search.request import MeshChoice, MeshRequest, mesh_choice
from autoshard.planning.memory_budget import parse_memory_budget
from autoshard.planning.searches import SolveOptions
from autoshard.planning.stages import Stages
from autoshard.sharding import Mesh
from cost_models import AlphaBetaModel, CostModelError, Hardware, get_hardware, load_hardware
from solvers import CATALOG


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What a program is planned for, and how.

    Args:
        choice: The mesh, or those to choose from.
        machine: That the devices are.
        budget: Bytes that one device may hold; None for no limit.
        options: How hard to look.
        stages: Where to count the time.
        baselines: Whether plans written by hand are priced too.
    """

    choice: MeshChoice
    machine: Hardware
    budget: int | None
    options: SolveOptions
    stages: Stages
    baselines: bool

    @staticmethod
    def of(
        request: MeshRequest,
        named: Mapping[str, str],
        hardware: str | Path | Hardware,
        memory_budget: str | float | None,
        options: SolveOptions,
        stages: Stages,
        baselines: bool,
    ) -> Setting:
        """With the machine found, the meshes it can have, and the budget in bytes.

        Args:
            request: The mesh that is asked for.
            named: What names axes, by what it calls them, where a mesh is searched.
            hardware: As for `optimize`.
            memory_budget: Likewise.
            options: How hard to look.
            stages: Where to count the time.
            baselines: Whether plans written by hand are priced too.

        Raises:
            InputError: No such machine or compiler model, or it has no such mesh; or the budget
                cannot be read.
        """
        machine = _hardware(hardware)
        choice = mesh_choice(request, machine, named)
        device_bytes = _device_bytes(machine, choice.meshes[0])
        budget = parse_memory_budget(memory_budget, device_bytes)
        return Setting(choice, machine, budget, options, stages, baselines)


def read_solve_options(
    solver: str, time_limit_seconds: float, relative_gap: float, seed: int, overlap: str
) -> SolveOptions:
    """How hard to look; what no solver takes is refused before the program is traced.

    Raises:
        InputError: An option that cannot be used.
    """
    known = ("auto", *(backend.name for backend in CATALOG))
    if solver not in known:
        raise InputError(
            f"there is no solver called {solver!r}",
            where=f"solver={solver!r}",
            fix=f"use one of {', '.join(known)}",
        )
    check_types(time_limit_seconds=time_limit_seconds, relative_gap=relative_gap, seed=seed)
    amounts = {"time_limit_seconds": time_limit_seconds, "relative_gap": relative_gap}
    for name, number in amounts.items():
        if not number >= 0:  # nan is not
            raise InputError(
                f"{name} is {number}, which is no amount",
                where=f"{name}={number!r}",
                fix="give 0 or more",
            )
    return SolveOptions(
        backend=solver,
        time_limit_seconds=time_limit_seconds,
        relative_gap=relative_gap,
        seed=seed,
        overlap=is_auto("overlap", overlap, "price collectives"),
    )


def is_auto(option: str, said: str, purpose: str) -> bool:
    """Whether an option is `auto`, and not `none`.

    Raises:
        InputError: It is neither; says that this is no way to serve its purpose.
    """
    if said not in ("auto", "none"):
        raise InputError(
            f"{option} is {said!r}, which is no way to {purpose}",
            where=f"{option}={said!r}",
            fix='use "auto" or "none"',
        )
    return said == "auto"


def _hardware(given: str | Path | Hardware) -> Hardware:
    if not isinstance(given, (str, Path, Hardware)):
        raise InputError(
            f"expected a machine, found {type(given).__name__}",
            where=f"hardware={given!r}",
            fix="give the name of a known machine, a YAML file, or a cost_models.Hardware",
        )
    try:
        if isinstance(given, Hardware):
            machine = given
        elif isinstance(given, Path) or given.endswith((".yaml", ".yml")):
            machine = load_hardware(given)
        else:
            machine = get_hardware(given)
    except CostModelError as error:
        raise InputError(error.what, where=error.where, fix=error.fix) from error
    backend_for(machine)  # refuses an unknown compiler model before anything is traced
    return machine


def _device_bytes(machine: Hardware, mesh: Mesh) -> int:
    """What one device offers under a mesh that the machine can have."""
    try:
        model = AlphaBetaModel(machine, [(axis.name, axis.size) for axis in mesh.axes])
    except CostModelError as error:
        raise InputError(error.what, where=error.where, fix=error.fix) from error
    return model.device_memory_bytes()
