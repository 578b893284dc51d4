"""The machines known by name.

Numbers are those of public data sheets, per JAX device, in base units; what no sheet states
(latencies, launch times, the share of a link that collectives reach) is an order of magnitude and
its source says so.
"""

from __future__ import annotations

import difflib

from cost_models.errors import CostModelError
from cost_models.hardware import Compute, Hardware, Link, Memory, PeakFlops, Switch, Torus

_GIB = 2**30

_TPU_DOCS = "Google Cloud TPU documentation, cloud.google.com/tpu/docs"
_VPU = (
    "vector peak: 8 x 128 lanes x ALUs per lane x TensorCores x clock, after Austin et al. (2025), "
    "How to Scale Your Model, chapter on TPUs"
)
_TPU_F32 = "a float32 product at JAX's default precision is one bfloat16 pass; float64 is emulated"
_TPU_LATENCY = "latency of a hop, about 1 us: Austin et al. (2025), chapter on sharded matrices"
_TPU_EFFICIENCY = (
    "0.9 of the nominal link: the usable figures (4.5e10, 9e10) of Austin et al. (2025)"
)
_TPU_LAUNCH = "launch: order of magnitude, default until calibrated"

_CUBE_SHAPES = (
    (1, 1, 1), (1, 2, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8),
    (4, 8, 8), (4, 4, 16), (8, 8, 8), (4, 8, 16), (8, 8, 16), (4, 16, 16), (8, 16, 16),
    (16, 16, 16), (16, 16, 24),
)  # fmt: skip
_FLAT_SHAPES = (
    (1, 1), (1, 2), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)
)  # fmt: skip


def _tpu(
    *,
    name: str,
    page: str,
    bfloat16: float,
    float8: float,
    int8: float,
    vector: float,
    matmul_tile: tuple[int, int, int],
    memory_gib: int,
    memory_bytes_per_second: float,
    link_bytes_per_second: float,
    link_source: str,
    network_bytes_per_second: float,
    network_source: str,
    cubes: bool,
    devices_per_chip: int = 1,
    chip_link: Link | None = None,
    note: str = "",
) -> Hardware:
    source = f"{_TPU_DOCS}, {page}{note}"
    return Hardware(
        name=name,
        backend="tpu",
        has_reduce_scatter=True,
        collective_launch_seconds=2e-6,
        compute=Compute(
            matmul=PeakFlops(
                float64=bfloat16 / 100,
                float32=bfloat16,
                bfloat16=bfloat16,
                float16=bfloat16,
                float8=float8,
                int8=int8,
            ),
            vector=PeakFlops(
                float64=vector / 20,
                float32=vector,
                bfloat16=vector,
                float16=vector,
                float8=vector,
                int8=vector,
            ),
            matmul_tile=matmul_tile,
            kernel_launch_seconds=5e-7,
            source=f"{source}; {_TPU_F32}; {_VPU}; {_TPU_LAUNCH}",
        ),
        memory=Memory(
            capacity_bytes=memory_gib * _GIB,
            reserved_bytes=_GIB // 2,
            bytes_per_second=memory_bytes_per_second,
            source=f"{source}; reserved: 0.5 GiB as v5e's out-of-memory reports state it",
        ),
        torus=Torus(
            link=Link(
                bytes_per_second=link_bytes_per_second,
                efficiency=0.9,
                latency_seconds=1e-6,
                source=f"{source}: {link_source}; {_TPU_EFFICIENCY}; {_TPU_LATENCY}",
            ),
            num_dims=3 if cubes else 2,
            slice_shapes=_CUBE_SHAPES if cubes else _FLAT_SHAPES,
            wrap_multiple=4 if cubes else 16,
            wrap_needs_every_dim=cubes,
            devices_per_chip=devices_per_chip,
            chip_link=chip_link,
            source=(
                f"{source}: slices of whole 4x4x4 cubes are full tori, smaller ones are open grids"
                if cubes
                else f"{source}: only a dimension of 16 chips, the pod's edge, closes"
            ),
        ),
        switch=None,
        network=Link(
            bytes_per_second=network_bytes_per_second,
            efficiency=0.8,
            latency_seconds=2e-5,
            source=f"{source}: {network_source}; efficiency and latency: default until calibrated",
        ),
    )


def _gpu(
    *,
    name: str,
    sheet: str,
    matmul: PeakFlops,
    vector: PeakFlops,
    memory_bytes: int,
    memory_bytes_per_second: float,
    nvlink_bytes_per_second: float,
    network_bytes_per_second: float,
    network_source: str,
) -> Hardware:
    return Hardware(
        name=name,
        backend="gpu",
        has_reduce_scatter=True,
        collective_launch_seconds=8e-6,
        compute=Compute(
            matmul=matmul,
            vector=vector,
            matmul_tile=(16, 16, 16),
            kernel_launch_seconds=3e-6,
            source=(
                f"{sheet}, dense (half of the figures with sparsity); float32 products at JAX's "
                "default precision run as TF32; tile: a tensor core fragment; launch: order of "
                "magnitude, default until calibrated"
            ),
        ),
        memory=Memory(
            capacity_bytes=memory_bytes,
            reserved_bytes=0,
            bytes_per_second=memory_bytes_per_second,
            source=f"{sheet}; the decimal figure printed is already below what the driver reports",
        ),
        torus=None,
        switch=Switch(
            link=Link(
                bytes_per_second=nvlink_bytes_per_second,
                efficiency=0.82,
                latency_seconds=2e-6,
                source=(
                    f"{sheet}: half of the bidirectional figure; efficiency: 370 of 450 GB/s, "
                    "github.com/NVIDIA/nccl-tests/issues/212; latency: default until calibrated"
                ),
            ),
            domain_size=8,
            source=f"{sheet}: 8 GPUs on one baseboard",
        ),
        network=Link(
            bytes_per_second=network_bytes_per_second,
            efficiency=0.9,
            latency_seconds=5e-6,
            source=f"{network_source}; efficiency and latency: default until calibrated",
        ),
    )


_V4 = _tpu(
    name="tpu-v4",
    page="v4",
    bfloat16=275e12,
    float8=275e12,
    int8=275e12,
    vector=4.3e12,
    matmul_tile=(8, 128, 128),
    memory_gib=32,
    memory_bytes_per_second=1228e9,
    link_bytes_per_second=50e9,
    link_source="2,400 Gb/s per chip over 6 links, each way",
    network_bytes_per_second=6.25e9,
    network_source="50 Gb/s per chip (200 Gb/s host interface for 4 chips)",
    cubes=True,
)
_V5E = _tpu(
    name="tpu-v5e",
    page="v5e",
    bfloat16=197e12,
    float8=197e12,
    int8=393e12,
    vector=6.1e12,
    matmul_tile=(8, 128, 128),
    memory_gib=16,
    memory_bytes_per_second=819e9,
    link_bytes_per_second=50e9,
    link_source="1,600 Gb/s per chip over 4 links, each way",
    network_bytes_per_second=3.125e9,
    network_source="two 100 Gb/s interfaces per host of 8 chips",
    cubes=False,
)
_V5P = _tpu(
    name="tpu-v5p",
    page="v5p",
    bfloat16=459e12,
    float8=459e12,
    int8=918e12,
    vector=14e12,
    matmul_tile=(8, 128, 128),
    memory_gib=95,
    memory_bytes_per_second=2765e9,
    link_bytes_per_second=100e9,
    link_source="4,800 Gb/s per chip over 6 links, each way",
    network_bytes_per_second=6.25e9,
    network_source="50 Gb/s per chip",
    cubes=True,
)
_V6E = _tpu(
    name="tpu-v6e",
    page="v6e",
    bfloat16=918e12,
    float8=918e12,
    int8=1836e12,
    vector=7.2e12,
    matmul_tile=(8, 256, 256),
    memory_gib=32,
    memory_bytes_per_second=1638e9,
    link_bytes_per_second=100e9,
    link_source="800 GB/s per chip in both directions together over 4 links",
    network_bytes_per_second=12.5e9,
    network_source="100 Gb/s per chip",
    cubes=False,
)
_7X = _tpu(
    name="tpu7x",
    page="tpu7x",
    bfloat16=2307e12 / 2,
    float8=4614e12 / 2,
    int8=2307e12 / 2,
    vector=8e12,
    matmul_tile=(8, 256, 256),
    memory_gib=96,
    memory_bytes_per_second=7380e9 / 2,
    link_bytes_per_second=50e9,
    link_source="1,200 GB/s per chip in both directions together over 6 links, halved per device",
    network_bytes_per_second=6.25e9,
    network_source="100 Gb/s per chip",
    cubes=True,
    devices_per_chip=2,
    chip_link=Link(
        bytes_per_second=600e9,
        efficiency=0.9,
        latency_seconds=5e-7,
        source=(
            f"{_TPU_DOCS}, tpu7x: the link between the two dies is six times one inter-chip link; "
            "efficiency and latency: default until calibrated"
        ),
    ),
    note=" (each chip is two JAX devices, which share its figures equally)",
)

_A100_MATMUL = PeakFlops(
    float64=19.5e12,
    float32=156e12,
    bfloat16=312e12,
    float16=312e12,
    float8=312e12,
    int8=624e12,
)
_A100_VECTOR = PeakFlops(
    float64=9.7e12,
    float32=19.5e12,
    bfloat16=39e12,
    float16=78e12,
    float8=19.5e12,
    int8=19.5e12,
)
_H100_MATMUL = PeakFlops(
    float64=67e12,
    float32=494.5e12,
    bfloat16=989e12,
    float16=989e12,
    float8=1979e12,
    int8=1979e12,
)
_H100_VECTOR = PeakFlops(
    float64=34e12,
    float32=67e12,
    bfloat16=134e12,
    float16=134e12,
    float8=67e12,
    int8=67e12,
)
_A100_SHEET = "NVIDIA A100 Tensor Core GPU data sheet and whitepaper (2020), SXM"
_IB_200 = "DGX A100 data sheet: one 200 Gb/s InfiniBand interface per GPU"
_IB_400 = "one 400 Gb/s InfiniBand interface per GPU"

_A100_40GB = _gpu(
    name="a100-40gb",
    sheet=_A100_SHEET,
    matmul=_A100_MATMUL,
    vector=_A100_VECTOR,
    memory_bytes=40_000_000_000,
    memory_bytes_per_second=1555e9,
    nvlink_bytes_per_second=300e9,
    network_bytes_per_second=25e9,
    network_source=_IB_200,
)
_A100_80GB = _gpu(
    name="a100-80gb",
    sheet=_A100_SHEET,
    matmul=_A100_MATMUL,
    vector=_A100_VECTOR,
    memory_bytes=80_000_000_000,
    memory_bytes_per_second=2039e9,
    nvlink_bytes_per_second=300e9,
    network_bytes_per_second=25e9,
    network_source=_IB_200,
)
_H100 = _gpu(
    name="h100",
    sheet="NVIDIA H100 Tensor Core GPU data sheet (2023), SXM",
    matmul=_H100_MATMUL,
    vector=_H100_VECTOR,
    memory_bytes=80_000_000_000,
    memory_bytes_per_second=3350e9,
    nvlink_bytes_per_second=450e9,
    network_bytes_per_second=50e9,
    network_source=f"DGX H100 data sheet: {_IB_400}",
)
_H200 = _gpu(
    name="h200",
    sheet="NVIDIA H200 Tensor Core GPU data sheet (2024), SXM",
    matmul=_H100_MATMUL,
    vector=_H100_VECTOR,
    memory_bytes=141_000_000_000,
    memory_bytes_per_second=4800e9,
    nvlink_bytes_per_second=450e9,
    network_bytes_per_second=50e9,
    network_source=f"DGX H200 data sheet: {_IB_400}",
)
_B200 = _gpu(
    name="b200",
    sheet="NVIDIA Blackwell architecture technical brief (2024), HGX B200 at 1,000 W",
    matmul=PeakFlops(
        float64=40e12,
        float32=1100e12,
        bfloat16=2250e12,
        float16=2250e12,
        float8=4500e12,
        int8=4500e12,
    ),
    vector=PeakFlops(
        float64=40e12,
        float32=80e12,
        bfloat16=160e12,
        float16=160e12,
        float8=80e12,
        int8=80e12,
    ),
    memory_bytes=180_000_000_000,
    memory_bytes_per_second=8000e9,
    nvlink_bytes_per_second=900e9,
    network_bytes_per_second=50e9,
    network_source=f"DGX B200 data sheet: {_IB_400}",
)

_CPU_SOURCE = (
    "default, replace by calibrate: order of magnitude measured with 8 XLA host devices on 2 cores"
)
_CPU_HOST = Hardware(
    name="cpu-host",
    backend="cpu",
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
    _V4,
    _V5E,
    _V5P,
    _V6E,
    _7X,
    _A100_40GB,
    _A100_80GB,
    _H100,
    _H200,
    _B200,
    _CPU_HOST,
)
"""Every machine known by name, TPUs first, then GPUs, then the host."""


def get_hardware(name: str) -> Hardware:
    """The machine of that name.

    Raises:
        CostModelError: No machine is named so; the message lists the names that come close.
    """
    by_name = {hardware.name: hardware for hardware in CATALOG}
    if name in by_name:
        return by_name[name]
    wanted = name.lower().replace("_", "-")
    near = difflib.get_close_matches(wanted, by_name, n=3, cutoff=0.5)
    near += [known for known in by_name if wanted and wanted in known and known not in near]
    fix = f"write {' or '.join(near)}" if near else f"write one of {', '.join(by_name)}"
    raise CostModelError(
        f'no hardware is named "{name}"',
        where="the hardware catalog",
        fix=f"{fix}, or give the path of a YAML file that describes the machine",
    )
