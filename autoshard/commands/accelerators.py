"""Keeping JAX from looking for accelerators that a machine has not."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

_DEVICES = ("accel*", "vfio/[0-9]*", "nvidia[0-9]*", "nvidiactl", "kfd", "dxg")
"""Of TPUs, NVIDIA and AMD GPUs, as Linux names them; `dxg` is a GPU under WSL."""


def use_host_where_nothing_else(
    environment: MutableMapping[str, str] = os.environ, devices: Path = Path("/dev")
) -> None:
    """Set `JAX_PLATFORMS=cpu` on a Linux machine without accelerators, unless it is set.

    libtpu and the CUDA plugin may be installed there, to compile with. JAX would start them for
    devices of its own, and they would print errors on every command.
    """
    if devices.is_dir() and not any(next(devices.glob(name), None) for name in _DEVICES):
        environment.setdefault("JAX_PLATFORMS", "cpu")
