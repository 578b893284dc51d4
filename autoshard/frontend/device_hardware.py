"""The machine that JAX devices are: their kind, and how many of them hang together."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_KINDS = (
    (re.compile(r"TPU v4"), "tpu-v4"),
    (re.compile(r"TPU v5 lite|TPU v5e"), "tpu-v5e"),
    (re.compile(r"TPU v5p?"), "tpu-v5p"),
    (re.compile(r"TPU v6 lite|TPU v6e"), "tpu-v6e"),
    (re.compile(r"TPU ?7x"), "tpu7x"),
    (re.compile(r"NVIDIA A100-SXM4-40GB"), "a100-40gb"),
    (re.compile(r"NVIDIA A100-SXM4-80GB"), "a100-80gb"),
    (re.compile(r"NVIDIA H100 80GB HBM3"), "h100"),
    (re.compile(r"NVIDIA H200"), "h200"),
    (re.compile(r"NVIDIA B200"), "b200"),
    (re.compile(r"NVIDIA GB200"), "gb200"),
    (re.compile(r"cpu"), "cpu-host"),
)
"""What JAX calls a kind of device, and its name in the table of machines.

TPUs as `get_topology_desc` of libtpu 0.0.52 names them, v5p and v6e also in the names of the cloud;
GPUs as the driver names the boards that NVLink joins; others of their generation are none of these.
"""

_FLAT = ("TPU v5 lite", "TPU v5e", "TPU v6 lite", "TPU v6e")
"""Kinds whose slices have two dimensions; JAX gives their chips three coordinates."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a JAX device tells of itself.

    Args:
        kind: `TPU v5 lite`, `NVIDIA H100 80GB HBM3`, `cpu`.
        coords: Of its chip in its slice; none for what is no TPU.
        slice_index: Of its slice.
        host: Of its process.
    """

    kind: str
    coords: tuple[int, ...] = ()
    slice_index: int = 0
    host: int = 0


def device_facts(device: Any) -> DeviceFacts:
    return DeviceFacts(
        str(device.device_kind),
        tuple(getattr(device, "coords", None) or ()),
        getattr(device, "slice_index", None) or 0,
        device.process_index,
    )


def machine_names(devices: Sequence[DeviceFacts]) -> tuple[str, ...]:
    """Names of the machine that devices are, the most exact one first; none where it is not known.

    `2x tpu-v5e:4x4` where they are whole slices of one shape, `2x h100:8` for hosts of as many
    GPUs; then the machine alone, with as many slices as a mesh needs. A slice whose shape cannot be
    had has to be left out by the caller.
    """
    kinds = {device.kind for device in devices}
    if len(kinds) != 1:
        return ()
    kind = kinds.pop()
    name = next((name for pattern, name in _KINDS if pattern.fullmatch(kind)), None)
    if name is None:
        return ()
    if name == "cpu-host":
        return (name,)
    groups = Counter(device.slice_index if device.coords else device.host for device in devices)
    if len(set(groups.values())) != 1:
        return (name,)
    size = next(iter(groups.values()))
    shape = _slice_shape(devices, size) if devices[0].coords else str(size)
    count = f"{len(groups)}x " if len(groups) > 1 else ""
    return (name,) if shape is None else (f"{count}{name}:{shape}", name)


def _slice_shape(devices: Sequence[DeviceFacts], size: int) -> str | None:
    """`4x4`, where the chips of each slice fill one box of that shape."""
    first = devices[0].slice_index
    chips = {device.coords for device in devices if device.slice_index == first}
    sides = [1 + max(along) - min(along) for along in zip(*chips, strict=True)]
    if devices[0].kind in _FLAT and sides[-1] == 1:
        sides.pop()
    is_box = math.prod(sides) == len(chips) and size % len(chips) == 0
    return "x".join(map(str, sides)) if is_box else None
