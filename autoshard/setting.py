"""What a program is planned for, and how: the options of users, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.argument_types import check_types
from autoshard.backends import backend_for
from autoshard.errors import InputError
from autoshard.frontend.device_hardware import device_facts, machine_names
from autoshard.mesh_search.request import AUTO, MeshChoice, MeshRequest, mesh_choice
from autoshard.planning.memory_budget import parse_memory_budget
from autoshard.planning.searches import SolveOptions
from autoshard.planning.stages import Stages
from autoshard.sharding import Mesh
from cost_models import CATALOG as MACHINES
from cost_models import AlphaBetaModel, CostModelError, Hardware, get_hardware, load_hardware
from solvers import CATALOG

REMAT_AUTO, REMAT_KEEP, REMAT_OFF = "auto", "keep", "off"
_FRACTIONS = frozenset({"relative_gap", "simplicity"})


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
        remat: How residuals are treated: `auto`, `keep` or `off`.
        accumulate: Microbatches that the program runs over, or `auto`.
    """

    choice: MeshChoice
    machine: Hardware
    budget: int | None
    options: SolveOptions
    stages: Stages
    baselines: bool
    remat: str = REMAT_KEEP
    accumulate: int | str = 1

    @property
    def asked(self) -> Mapping[str, Any]:
        """All that a plan follows from here, as plain values."""
        return {
            "meshes": (*self.choice.meshes, *self.choice.refused, self.choice.is_search),
            "machine": self.machine,
            "budget": self.budget,
            "options": self.options,
            "baselines": self.baselines,
            "remat": self.remat,
            "accumulate": self.accumulate,
        }

    @staticmethod
    def of(
        request: MeshRequest,
        named: Mapping[str, str],
        hardware: str | Path | Hardware,
        memory_budget: str | float | None,
        options: SolveOptions,
        stages: Stages,
        baselines: bool,
        remat: str = REMAT_KEEP,
        accumulate: int | str = 1,
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
            remat: How residuals are treated, as `read_remat` knows it.
            accumulate: As `read_accumulate` gives it.

        Raises:
            InputError: No such machine or compiler model, or it has no such mesh; or the budget
                cannot be read.
        """
        machine = _own_hardware(request) if _is_auto_hardware(hardware) else _hardware(hardware)
        choice = mesh_choice(request, machine, named)
        device_bytes = _device_bytes(machine, choice.meshes[0])
        budget = parse_memory_budget(memory_budget, device_bytes)
        return Setting(choice, machine, budget, options, stages, baselines, remat, accumulate)


def read_solve_options(
    solver: str,
    time_limit_seconds: float,
    relative_gap: float,
    seed: int,
    overlap: str,
    simplicity: float | None = None,
    constraint_effort: float = 1.0,
) -> SolveOptions:
    """How hard to look; what no solver takes is refused before the program is traced.

    Raises:
        InputError: An option that cannot be used.
    """
    check_types(solver=solver, overlap=overlap)
    known = ("auto", *(engine.name for engine in CATALOG))
    if solver not in known:
        raise InputError(
            f"there is no solver called {solver!r}",
            where=f"solver={solver!r}",
            fix=f"use one of {', '.join(known)}",
        )
    amounts = {
        "time_limit_seconds": time_limit_seconds,
        "relative_gap": relative_gap,
        "constraint_effort": constraint_effort,
        **({} if simplicity is None else {"simplicity": simplicity}),
    }
    check_types(**amounts, seed=seed)
    for name, number in amounts.items():
        if not number >= 0:  # nan is not
            raise InputError(
                f"{name} is {number}, which is no amount",
                where=f"{name}={number!r}",
                fix="give 0 or more",
            )
    for name in _FRACTIONS & amounts.keys():
        if amounts[name] > 1:
            raise InputError(
                f"{name} is a fraction, and {amounts[name]} is above 1",
                where=f"{name}={amounts[name]!r}",
                fix=f"write 5 % as {name}=0.05",
            )
    return SolveOptions(
        engine=solver,
        time_limit_seconds=time_limit_seconds,
        relative_gap=relative_gap,
        seed=seed,
        overlap=is_auto("overlap", overlap, "price collectives"),
        simplicity=simplicity,
        constraint_effort=constraint_effort,
    )


def read_remat(said: str) -> str:
    """How residuals are treated: `auto`, `keep` or `off`.

    Raises:
        InputError: It is something else.
    """
    if said not in (REMAT_AUTO, REMAT_KEEP, REMAT_OFF):
        raise InputError(
            f"remat cannot be {said!r}",
            where=f"remat={said!r}",
            fix='use "auto", "keep" or "off"',
        )
    return said


def read_accumulate(said: int | str | None) -> int | str:
    """Microbatches to run over: a number, or `auto`.

    Raises:
        InputError: It is something else.
    """
    if said is None or said == AUTO:
        return said or 1
    if isinstance(said, bool) or not isinstance(said, int) or said < 1:
        raise InputError(
            f"accumulate is {said!r}, which is no number of microbatches",
            where=f"accumulate={said!r}",
            fix='give a whole number of at least 1, or "auto"',
        )
    return said


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


def _is_auto_hardware(given: str | Path | Hardware) -> bool:
    return isinstance(given, str) and given.strip() == AUTO


def _own_hardware(request: MeshRequest) -> Hardware:
    """The machine that the devices of a mesh are, or those here that one is searched for.

    Raises:
        InputError: There are no devices, or nobody knows what they are.
    """
    devices = request.devices
    if not devices:
        raise InputError(
            "the mesh has no devices to tell what machine it is on",
            where=f"{request.text}, hardware='auto'",
            fix=f'name the machine, as in hardware="tpu-v5p": {_known_machines()}; or give a'
            " jax.sharding.Mesh of devices",
        )
    found = [device_facts(device) for device in devices]
    for name in machine_names(found):
        try:
            machine = get_hardware(name)
            if request.given is not None:
                _device_bytes(machine, request.given[0])
        except (CostModelError, InputError):  # no such slice, or none for this mesh
            continue
        return machine
    kinds = ", ".join(dict.fromkeys(device.kind for device in found))
    raise InputError(
        f"the devices of the mesh are {kinds}, which is no known machine",
        where=f"{request.text}, hardware='auto'",
        fix=f"name the machine that comes closest: {_known_machines()}; or give a YAML file that"
        " describes it (autoshard calibrate measures one)",
    )


def _known_machines() -> str:
    return ", ".join(machine.name for machine in MACHINES)


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
