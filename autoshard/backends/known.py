"""The compiler models by name, and the one that programs for a machine are planned with."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from autoshard.backends.backend import Backend, Model, generic, replace
from autoshard.backends.chip_data import chip_data
from autoshard.errors import InputError

if TYPE_CHECKING:
    from cost_models import Hardware

_CHIPS = {
    "cpu": (),
    "gpu": ("a100", "h100", "h200", "b200", "gb200"),
    "tpu": ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu7x"),
}
"""By platform; each has a file of its name in `data`, and so has the generic model of each."""


def _read(platform: str, name: str) -> Backend:
    data = chip_data(name)
    return generic(platform, data) if name == platform else replace(get_backend(platform), data)


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        name: partial(_read, platform, name)
        for platform, chips in _CHIPS.items()
        for name in (platform, *chips)
    }
)
"""By `Hardware.compiler`; the generic ones are named as the platform is."""

_PLATFORMS = {"cuda": "gpu", "rocm": "gpu"}  # what JAX calls them


@cache
def get_backend(name: str) -> Backend:
    """The compiler model of that name.

    Raises:
        InputError: There is none.
    """
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, n=3)
        raise InputError(
            f'no compiler model is called "{name}"',
            where="the compiler models",
            fix=(f"write {' or '.join(near)}; " if near else "") + f"known: {', '.join(MODELS)}",
        )
    return MODELS[name]()


def backend_for(hardware: Hardware) -> Backend:
    """The model of a machine's compiler: that of its `compiler`, or the generic one.

    Raises:
        InputError: No model has that name, or it is one of another platform.
    """
    where = f'hardware "{hardware.name}", `compiler`'
    try:
        found = get_backend(hardware.compiler or hardware.backend)
    except InputError as error:
        raise InputError(error.what, where=where, fix=error.fix) from error
    if found.platform != hardware.backend:
        raise InputError(
            f"{found.name} is a model of {found.platform} compilers, and `backend` is "
            f"{hardware.backend}",
            where=where,
            fix=f"write {hardware.backend}, or the name of a model for its chip",
        )
    return found


def compiler_options(
    platform: str, *, in_order: bool = False, windowed_einsum: bool = False
) -> dict[str, str]:
    """Options that a platform's compiler needs; none for a platform without a model.

    Args:
        platform: As JAX names it.
        in_order: The program has to run in its own order.
        windowed_einsum: Matmuls may become windowed einsums.
    """
    name = _PLATFORMS.get(platform, platform)
    if name not in MODELS:
        return {}
    found = get_backend(name)
    return {
        **({} if windowed_einsum else dict(found.collectives.unwindowed_options)),
        **(dict(found.schedule.in_order_options) if in_order else {}),
    }
