"""Compilers for devices that need not be present: which are installed, and which a target needs."""

from __future__ import annotations

import importlib.util

from autoshard.aot.targets import Target, check_num_devices, parse_target
from autoshard.errors import InputError
from autoshard.sharding import Mesh, format_mesh

_NEEDED = {
    "tpu": (("libtpu",), 'pip install "autoshard[tpu]"', "the TPU compiler (libtpu)", "TPU"),
    "cuda": (
        ("jax_cuda13_plugin", "jax_plugins.xla_cuda13"),
        'pip install "autoshard[gpu-verify]"',
        "the GPU compiler (jax-cuda13-plugin, jax-cuda13-pjrt, nvidia-cuda-nvcc, nvidia-nvvm)",
        "GPU",
    ),
}


def check_topology(topology: str, mesh: Mesh) -> Target:
    """The target of a compile, checked against the mesh of a plan.

    Raises:
        InputError: The topology is unknown or impossible, has another number of devices than the
            mesh, or its compiler is not installed.
    """
    target = parse_target(topology)
    check_num_devices(target, mesh.num_devices, format_mesh(mesh))
    check_installed(target)
    return target


def check_installed(target: Target) -> None:
    """Refuse a topology whose compiler is not installed.

    Raises:
        InputError: It is not; says how to install it.
    """
    if target.platform not in _NEEDED:
        return
    modules, command, name, device = _NEEDED[target.platform]
    missing = [module for module in modules if not _is_there(module)]
    if missing:
        raise InputError(
            f"{name} is not installed",
            where=f'topology "{target.text}"',
            fix=f"run {command}; it needs no {device}",
        )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
