"""What is asked of refining, checked before anything is compiled."""

from __future__ import annotations

import math

from autoshard.aot.installed import check_installed, check_topology
from autoshard.aot.targets import LOCAL, Target, parse_target
from autoshard.errors import InputError
from autoshard.sharding import Mesh
from cost_models import CATALOG, machine_kind

MEASURE = "measure"
"""A target: the devices at hand, on which the step is run."""


def is_measured(target: str) -> bool:
    """Whether plans are run on the devices at hand, not compiled for others."""
    return target in (MEASURE, LOCAL)


def target_hardware(target: str | None) -> str | None:
    """The name of the machine to compile for; None for the devices at hand, or without a target.

    Raises:
        InputError: The target is unknown, or its compiler is not installed.
    """
    if target is None or is_measured(target):
        return None
    found = parse_target(target)
    check_installed(found)
    return found.hardware


def check_request(
    target: str, rounds: int, minutes: float, mesh: Mesh, hardware: str, num_devices: int
) -> None:
    """Refuse what cannot be refined.

    Args:
        target: As `Plan.verify` takes a topology, or `measure`.
        rounds: Of compiling.
        minutes: For all of them.
        mesh: Of the plan.
        hardware: Name of the machine that the plan is for.
        num_devices: At hand.

    Raises:
        InputError: The target is unknown, has another number of devices than the mesh, is another
            chip than the plan is for, or its compiler is not installed; or there is no round or no
            time.
    """
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise InputError(
            f"{rounds!r} rounds compile nothing",
            where=f"rounds={rounds!r}",
            fix="give a whole number of at least 1",
        )
    if isinstance(minutes, bool) or not isinstance(minutes, (int, float)) or not minutes > 0:
        raise InputError(
            f"{minutes!r} is no time to compile in",
            where=f"minutes={minutes!r}",
            fix="give a number above 0",
        )
    if math.isinf(minutes):
        raise InputError(
            "refining has to end", where=f"minutes={minutes!r}", fix="give a number of minutes"
        )
    if not isinstance(target, str):
        raise InputError(
            f"expected a target, found {type(target).__name__}",
            where=f"target={target!r}",
            fix='name one, as in "v5e:2x4" or "8xH100", or "measure" for the devices at hand',
        )
    if not is_measured(target):
        _check_name(target)
        _check_chip(check_topology(target, mesh), hardware)
    elif num_devices < mesh.num_devices:
        raise InputError(
            f"the mesh has {mesh.num_devices} devices, and {num_devices} are at hand",
            where=f'target "{target}"',
            fix='name the devices to compile for instead, as in "v5e:2x4"',
        )


def _check_chip(target: Target, hardware: str) -> None:
    """Refuse a chip whose prices are not those of the plan; a machine of the user's may be any."""
    kind = machine_kind(hardware)
    if kind != target.hardware and kind in {one.name for one in CATALOG}:
        raise InputError(
            f"the plan is for {hardware}, and {target.text} is {target.hardware}",
            where=f'target "{target.text}"',
            fix=f'plan with hardware="{target.hardware}"; `verify` compiles for any chip',
        )


def _check_name(target: str) -> None:
    try:
        parse_target(target)
    except InputError as error:
        fix = f'{error.fix}; "{MEASURE}" runs the step on them'
        raise InputError(error.what, where=error.where, fix=fix) from error
