"""What is asked of refining, checked before anything is compiled."""

from __future__ import annotations

import math

from autoshard.aot.targets import LOCAL, parse_target
from autoshard.aot.verify import check_topology
from autoshard.errors import InputError
from autoshard.sharding import Mesh

MEASURE = "measure"
"""A target: the devices at hand, on which the step is run."""


def is_measured(target: str) -> bool:
    """Whether plans are run on the devices at hand, not compiled for others."""
    return target in (MEASURE, LOCAL)


def check_request(target: str, rounds: int, minutes: float, mesh: Mesh, num_devices: int) -> None:
    """Refuse what cannot be refined.

    Args:
        target: As `Plan.verify` takes a topology, or `measure`.
        rounds: Of compiling.
        minutes: For all of them.
        mesh: Of the plan.
        num_devices: At hand.

    Raises:
        InputError: The target is unknown, has another number of devices than the mesh, or its
            compiler is not installed; or there is no round or no time.
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
        check_topology(target, mesh)
    elif num_devices < mesh.num_devices:
        raise InputError(
            f"the mesh has {mesh.num_devices} devices, and {num_devices} are at hand",
            where=f'target "{target}"',
            fix='name the devices to compile for instead, as in "v5e:2x4"',
        )


def _check_name(target: str) -> None:
    try:
        parse_target(target)
    except InputError as error:
        fix = f'{error.fix}; "{MEASURE}" runs the step on them'
        raise InputError(error.what, where=error.where, fix=fix) from error
