"""Times as a machine with known numbers would take, noise and outliers as wanted."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from cost_models import AlphaBetaModel, AxisPart, Hardware, get_hardware, op_seconds
from cost_models.calibrate import Measurements
from cost_models.measured import (
    COLLECTIVE_KINDS,
    CollectiveKind,
    CollectiveSample,
    OpSample,
)

NUM_DEVICES = 8
SIZES = (4096, 65536, 2**20, 2**24)
MATMULS = ((8192, 8192, 8192), (256, 256, 256), (4096, 4096, 4096), (1000, 3000, 777))
COUNTS = (64, 4096, 2**16, 2**20, 2**23)


def switched(
    *,
    bytes_per_second: float = 450e9,
    latency_seconds: float = 2e-6,
    launch_seconds: float = 8e-6,
) -> Hardware:
    """An H100 node with other links, whose collectives are run level by level."""
    h100 = get_hardware("h100")
    assert h100.switch is not None
    link = dataclasses.replace(
        h100.switch.link,
        bytes_per_second=bytes_per_second,
        efficiency=1.0,
        latency_seconds=latency_seconds,
    )
    return dataclasses.replace(
        h100,
        name="known",
        collective_launch_seconds=launch_seconds,
        switch=dataclasses.replace(h100.switch, link=link, reduction_efficiency=None),
        algorithms=("levels",),
    )


def price_of(machine: Hardware, kind: CollectiveKind, full_bytes: float, group_size: int) -> float:
    """What the planner pays for a collective in groups of neighbours of eight devices."""
    model = AlphaBetaModel(machine, {"other": NUM_DEVICES // group_size, "group": group_size})
    price = {
        "all-gather": model.all_gather_seconds,
        "reduce-scatter": model.reduce_scatter_seconds,
        "all-reduce": model.all_reduce_seconds,
        "all-to-all": model.all_to_all_seconds,
        "collective-permute": model.permute_seconds,
    }[kind]
    return float(price(full_bytes, (AxisPart("group", 1, group_size),)))


def collective_samples(
    machine: Hardware,
    kind: CollectiveKind,
    *,
    factors: tuple[float, ...] = (1.0,),
    spread: float = 0.01,
) -> tuple[CollectiveSample, ...]:
    """Samples of every size in every group, times the factors in turn."""
    return tuple(
        CollectiveSample(
            num_devices=group,
            full_bytes=size,
            seconds=price_of(machine, kind, size, group) * factor,
            spread=spread,
        )
        for (size, group), factor in zip(
            itertools.product(SIZES, (8, 4, 2)), itertools.cycle(factors), strict=False
        )
    )


def op_samples(machine: Hardware, op_class: str, dtype: str) -> tuple[OpSample, ...]:
    """Samples that the roofline gives for ops of several sizes."""
    found = []
    for size in MATMULS if op_class == "matmul" else COUNTS:
        dims = size if isinstance(size, tuple) else None
        flops, num_bytes = 0.0, 8.0 * float(np.prod(size))
        if dims is not None:
            m, n, k = dims
            flops, num_bytes = 2.0 * m * n * k, 4.0 * (m * k + k * n + m * n)
        elif op_class == "elementwise":
            flops = 1e5 * float(np.prod(size))
        seconds = op_seconds(
            machine,
            flops=flops,
            bytes_accessed=num_bytes,
            dtype=dtype,
            op_class=op_class,
            matmul_dims=dims,
        )
        found.append(
            OpSample(
                flops=flops,
                bytes_accessed=num_bytes,
                matmul_dims=dims,
                seconds=float(seconds),
                spread=0.01,
            )
        )
    return tuple(found)


def measurements_of(machine: Hardware) -> Measurements:
    """Everything a calibration measures, as that machine would take."""
    ops = [("copy", "float32"), ("matmul", "float32"), ("elementwise", "float32")]
    ops += [(name, "float32") for name in ("gather", "scatter", "sort")]
    return Measurements(
        date="2026-11-22",
        backend=machine.backend,
        platform="gpu",
        device_kind="Known 1",
        num_devices=NUM_DEVICES,
        host="Linux x86_64, 2 cores",
        versions="jax 0.10.2, jaxlib 0.10.2",
        capacity_bytes=None,
        collectives={kind: collective_samples(machine, kind) for kind in COLLECTIVE_KINDS},
        ops={key: op_samples(machine, *key) for key in ops},
    )
