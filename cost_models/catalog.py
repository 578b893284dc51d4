"""The machines known by name, and slices or nodes of them."""

from __future__ import annotations

import difflib
import re

from cost_models.errors import CostModelError
from cost_models.gpus import A100_40GB, A100_80GB, B200, GB200, H100, H200
from cost_models.hardware import Compute, Hardware, Link, Memory, PeakFlops, Switch
from cost_models.slices import with_slices
from cost_models.tpus import TPU7X, V4, V5E, V5P, V6E

_CPU_SOURCE = (
    "default, replace by calibrate: order of magnitude measured with 8 XLA host devices on 2 cores"
)
_CPU_HOST = Hardware(
    name="cpu-host",
    backend="cpu",
    compiler="cpu",
    has_reduce_scatter=False,
    collective_launch_seconds=1e-4,
    compute=Compute(
        matmul=PeakFlops(
            float64=1e10, float32=2e10, bfloat16=2e10, float16=2e10, float8=1e10, int8=1e10
        ),
        vector=PeakFlops(float64=5e8, float32=1e9, bfloat16=5e8, float16=5e8, float8=5e8, int8=1e9),
        matmul_tile=(1, 1, 1),
        kernel_launch_seconds=2e-6,
        source=_CPU_SOURCE,
    ),
    memory=Memory(
        capacity_bytes=16_000_000_000,
        reserved_bytes=0,
        bytes_per_second=2e9,
        source=f"{_CPU_SOURCE}; all devices share the host's memory, so capacity is one host's",
    ),
    torus=None,
    switch=Switch(
        link=Link(
            bytes_per_second=5e8,
            efficiency=1.0,
            latency_seconds=1e-5,
            source=f"{_CPU_SOURCE}; a copy through shared memory",
        ),
        domain_size=1024,
        source=f"{_CPU_SOURCE}; every device is on the one host",
    ),
    network=None,
)

CATALOG: tuple[Hardware, ...] = (
    V4,
    V5E,
    V5P,
    V6E,
    TPU7X,
    A100_40GB,
    A100_80GB,
    H100,
    H200,
    B200,
    GB200,
    _CPU_HOST,
)
"""Every machine known by name, TPUs first, then GPUs, then the host."""

_ALIASES = {
    "tpu-v7": "tpu7x",
    "tpu-v7x": "tpu7x",
    "tpu-7x": "tpu7x",
    "tpu-v5-lite": "tpu-v5e",
    "tpu-v6-lite": "tpu-v6e",
    **{machine.name.removeprefix("tpu-"): machine.name for machine in (V4, V5E, V5P, V6E)},
}
"""What some machines are called besides their names."""

_WITH_SLICES = re.compile(
    r"(?:(?P<count>[0-9]+)\s*x\s*)?(?P<name>[^:]*[^:\s])(?:\s*:\s*(?P<shape>[0-9]+(?:x[0-9]+)*))?"
)


def machine_kind(name: str) -> str:
    """The name of a machine without its slices: `tpu-v5e` of `2x tpu-v5e:4x4`."""
    match = _WITH_SLICES.fullmatch(name.strip())
    return name if match is None else match["name"]


def get_hardware(name: str) -> Hardware:
    """The machine of that name: `[COUNT x] NAME [: SHAPE]`.

    `tpu-v5e` is the kind of machine, with as many slices as a mesh needs; `tpu-v5e:4x4` one slice
    of 4x4 chips, `2x tpu-v5e:4x4` two of them joined by the network; `h100:4` one node of 4 GPUs,
    `4x h100` four nodes. Capitals count for nothing, and `v5e` or `tpu-v7` are known as well.

    Raises:
        CostModelError: No machine is named so (the message lists the names that come close), or
            it has no such slices.
    """
    by_name = {hardware.name: hardware for hardware in CATALOG}
    match = _WITH_SLICES.fullmatch(name.strip())
    called = "" if match is None else match["name"].lower().replace("_", "-").replace(" ", "-")
    hardware = by_name.get(_ALIASES.get(called, called))
    if match is not None and hardware is not None:
        if match["count"] is None and match["shape"] is None:
            return hardware
        return with_slices(
            hardware,
            None if match["shape"] is None else tuple(map(int, match["shape"].split("x"))),
            None if match["count"] is None else int(match["count"]),
        )
    wanted = called or name.lower()
    near = difflib.get_close_matches(wanted, by_name, n=3, cutoff=0.5)
    near += [known for known in by_name if wanted and wanted in known and known not in near]
    fix = f"write {' or '.join(near)}" if near else f"write one of {', '.join(by_name)}"
    raise CostModelError(
        f'no hardware is named "{name}"',
        where="the hardware catalog",
        fix=f"{fix}, or give the path of a YAML file that describes the machine",
    )
