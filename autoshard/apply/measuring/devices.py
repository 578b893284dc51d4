"""The devices to measure, and what they say of themselves."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

import jax
import jaxlib

from autoshard.errors import InputError


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What is known of the devices without measuring.

    Attributes:
        backend: "cpu", "gpu" or "tpu".
        platform: As JAX names it.
        kind: Likewise.
        num_devices: How many are measured.
        capacity_bytes: What the runtime lets programs use of one device; None if it does not say.
        host: Kind of system and number of cores.
        versions: Of JAX and jaxlib.
    """

    backend: str
    platform: str
    kind: str
    num_devices: int
    capacity_bytes: int | None
    host: str
    versions: str


def find_devices(count: int | None) -> tuple[jax.Device, ...]:
    """The first devices of this process; all of them, if no count is given.

    Raises:
        InputError: There are fewer, or the program runs in several processes.
    """
    if jax.process_count() > 1:
        raise InputError(
            f"this is one of {jax.process_count()} processes; expected one alone",
            where="jax.process_count()",
            fix="calibrate one node or slice from one process",
        )
    found = jax.devices()
    if count is None:
        return tuple(found)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(
            f"expected a number of devices from 1 up, found {count!r}",
            where="argument `devices`",
            fix=f"give a number up to {len(found)}",
        )
    if count > len(found):
        platform_name = found[0].platform
        fix = f"give {len(found)} or fewer"
        if platform_name == "cpu":
            fix += f", or set XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        raise InputError(
            f"{count} devices are asked for and this machine has {len(found)}",
            where=f"jax.devices() of platform {platform_name}",
            fix=fix,
        )
    return tuple(found[:count])


def describe_devices(devices: tuple[jax.Device, ...]) -> DeviceFacts:
    """What the devices say of themselves; no name of a host is in it."""
    first = devices[0]
    backend = "gpu" if first.platform in ("cuda", "rocm", "gpu") else first.platform
    memory = first.memory_stats() if backend != "cpu" else None
    return DeviceFacts(
        backend=backend,
        platform=first.platform,
        kind=first.device_kind,
        num_devices=len(devices),
        capacity_bytes=(memory or {}).get("bytes_limit"),
        host=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        versions=f"jax {jax.__version__}, jaxlib {jaxlib.__version__}",
    )
