"""Cloud TPUs, per JAX device: a chip, or half a chip of TPU7x.

Numbers are those of Google's documentation, in base units; what no page states (latencies, launch
times, the share of a link that collectives reach) is an order of magnitude, and its source says so.
"""

from __future__ import annotations

from cost_models.hardware import (
    Compute,
    ElementPasses,
    Hardware,
    Host,
    Link,
    Memory,
    PeakFlops,
    RingOrder,
    StreamedAccess,
    Torus,
)

_GIB = 2**30

_TPU_DOCS = "Google Cloud TPU documentation, cloud.google.com/tpu/docs"
_VPU = (
    "vector peak: 8 x 128 lanes x ALUs per lane x TensorCores x clock, after Austin et al. (2025), "
    "How to Scale Your Model, chapter on TPUs"
)
_TPU_F32 = "a float32 product at JAX's default precision is one bfloat16 pass; float64 is emulated"
_TPU_LATENCY = "latency of a hop, about 1 us: Austin et al. (2025), chapter on sharded matrices"
_CYCLES = "the TPU compiler's estimated_cycles count in it: libtpu 0.0.52, large products"
_BOOK_CLOCK = f"1.5 GHz, Austin et al. (2025), chapter on TPUs; {_CYCLES}"
_PEAK_CLOCK = f"the bfloat16 peak over the FLOP a cycle of 8 units of 128 x 128; {_CYCLES}"
_PEAK_CLOCK_256 = (
    "the bfloat16 peak over 524,288 FLOP a cycle of a TensorCore, the power of two next above the "
    f"408,750 and 444,834 that estimated_cycles give v6e and tpu7x; {_CYCLES}"
)
_TPU_EFFICIENCY = (
    "0.9 of the nominal link: the usable figures (4.5e10, 9e10) of Austin et al. (2025)"
)
_PCIE = (
    "1.5e10 bytes/s over PCIe, of a v6e in Austin et al. (2025), chapter on TPUs; of other chips: "
    "default until calibrated"
)
_AVAILABLE = "all but what the compiler of libtpu 0.0.52 reports as available when memory runs out"
_PASSES = "; passes of elements: libtpu 0.0.52, experiments.probes.elements, 2026-12-01"
_STREAMED = "; shares of streamed accesses: libtpu 0.0.52, experiments.probes.elements, 2026-12-01"
_TPU_LAUNCH = (
    "launch: least estimated_cycles of a fusion, 618 on a v4, 1,820 on a v5e, 2,120 on a v5p and a"
    " v6e, 2,300 on a TPU7x, libtpu 0.0.52"
)

_CUBE_SHAPES = (
    (1, 1, 1), (1, 2, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8),
    (4, 8, 8), (4, 4, 16), (8, 8, 8), (4, 8, 16), (8, 8, 16), (4, 16, 16), (8, 16, 16),
    (16, 16, 16), (16, 16, 24),
)  # fmt: skip
_FLAT_SHAPES = (
    (1, 1), (1, 2), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)
)  # fmt: skip


_FLAT_RINGS = (
    RingOrder(shape=(2, 2), devices=(0, 1, 3, 2), only_whole=False),
    RingOrder(shape=(2, 4), devices=(0, 1, 2, 3, 7, 6, 5, 4), only_whole=False),
    RingOrder(shape=(4, 2), devices=(0, 1, 2, 3, 7, 6, 5, 4), only_whole=False),
    RingOrder(
        shape=(4, 4),
        devices=(0, 1, 2, 3, 7, 6, 5, 9, 10, 11, 15, 14, 13, 12, 8, 4),
        only_whole=True,
    ),
)
_7X_RINGS = tuple(
    RingOrder(
        shape=(2, 2, depth),
        devices=tuple(8 * z + place for z in range(depth) for place in (0, 1, 2, 3, 6, 7, 4, 5)),
        only_whole=False,
    )
    for depth in (1, 2, 4)
)
"""The slices that `jax.experimental.mesh_utils` numbers round a ring, jax 0.10.2."""


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
    available_gib: float,
    memory_bytes_per_second: float,
    link_bytes_per_second: float,
    link_source: str,
    network_bytes_per_second: float,
    network_source: str,
    available_source: str = _AVAILABLE,
    cubes: bool,
    clock_hertz: float,
    clock_source: str,
    launch_seconds: float = 1.2e-6,
    host_bytes: int,
    host_source: str,
    ring_orders: tuple[RingOrder, ...] = (),
    devices_per_chip: int = 1,
    chip_link: Link | None = None,
    streamed: StreamedAccess | None = None,
    passes: ElementPasses | None = None,
    note: str = "",
) -> Hardware:
    source = f"{_TPU_DOCS}, {page}{note}"
    return Hardware(
        name=name,
        backend="tpu",
        compiler=name,
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
            kernel_launch_seconds=launch_seconds,
            clock_hertz=clock_hertz,
            passes=passes,
            source=f"{source}; {_TPU_F32}; {_VPU}; clock: {clock_source}; {_TPU_LAUNCH}"
            + (_PASSES if passes else ""),
        ),
        memory=Memory(
            capacity_bytes=memory_gib * _GIB,
            reserved_bytes=round((memory_gib - available_gib) * _GIB),
            bytes_per_second=memory_bytes_per_second,
            source=f"{source}; reserved: {available_source}" + (_STREAMED if streamed else ""),
            streamed=streamed,
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
            ring_orders=ring_orders,
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
        host=Host(
            capacity_bytes=host_bytes,
            bytes_per_second=15e9,
            source=f"{source}: {host_source}; {_PCIE}",
        ),
    )


V4 = _tpu(
    name="tpu-v4",
    page="v4",
    bfloat16=275e12,
    float8=275e12,
    int8=275e12,
    vector=4.3e12,
    matmul_tile=(8, 128, 128),
    memory_gib=32,
    available_gib=30.75,
    available_source="1.25 GiB in an out-of-memory report, github.com/erfanzar/EasyDeL/issues/166",
    memory_bytes_per_second=1228e9,
    link_bytes_per_second=50e9,
    link_source="2,400 Gb/s per chip over 6 links, each way",
    network_bytes_per_second=6.25e9,
    network_source="25 GB/s per host of 4 chips: Austin et al. (2025), chapter on TPUs",
    clock_hertz=1.05e9,
    clock_source=f"1,050 MHz, Jouppi et al. (2023), TPU v4; {_CYCLES}",
    launch_seconds=0.6e-6,
    host_bytes=407_000_000_000 // 4,
    host_source="407 GB per host of 4 chips, ct4p-hightpu-4t",
    streamed=StreamedAccess(
        products=0.74,
        elementwise=0.768,
        copies=0.468,
        conversions=0.395,
        fills=0.52,
        row_copies=0.67,
        held_row_copies=0.89,
    ),
    passes=ElementPasses(read_bytes=8.98e11, kept=2.36e11, narrowed=2.38e11, plain_reduced=1.65e11),
    cubes=True,
)
V5E = _tpu(
    name="tpu-v5e",
    page="v5e",
    bfloat16=197e12,
    float8=197e12,
    int8=393e12,
    vector=6.1e12,
    matmul_tile=(8, 128, 128),
    memory_gib=16,
    available_gib=15.75,
    memory_bytes_per_second=819e9,
    link_bytes_per_second=50e9,
    link_source="1,600 Gb/s per chip over 4 links, each way",
    network_bytes_per_second=3.125e9,
    network_source="two 100 Gb/s interfaces per host of 8 chips",
    clock_hertz=1.5e9,
    clock_source=_BOOK_CLOCK,
    host_bytes=48_000_000_000,
    host_source="384 GB per host of 8 chips, ct5lp-hightpu-8t",
    ring_orders=_FLAT_RINGS,
    streamed=StreamedAccess(
        products=0.72,
        elementwise=0.807,
        copies=0.38,
        conversions=0.321,
        fills=0.33,
        row_copies=0.57,
        held_row_copies=1.0,
    ),
    passes=ElementPasses(read_bytes=6.44e11, kept=2.41e12, narrowed=1.7e11, plain_reduced=7.13e10),
    cubes=False,
)
V5P = _tpu(
    name="tpu-v5p",
    page="v5p",
    bfloat16=459e12,
    float8=459e12,
    int8=918e12,
    vector=14e12,
    matmul_tile=(8, 128, 128),
    memory_gib=96,
    available_gib=95.73,
    memory_bytes_per_second=2765e9,
    link_bytes_per_second=100e9,
    link_source="4,800 Gb/s per chip over 6 links, each way",
    network_bytes_per_second=6.25e9,
    network_source="50 Gb/s per chip",
    clock_hertz=1.75e9,
    clock_source=_PEAK_CLOCK,
    host_bytes=112_000_000_000,
    host_source="448 GB per host of 4 chips, ct5p-hightpu-4t",
    streamed=StreamedAccess(
        products=0.605,
        elementwise=0.718,
        copies=0.295,
        conversions=0.245,
        fills=0.229,
        row_copies=0.44,
    ),
    passes=ElementPasses(read_bytes=1.91e12, kept=5.27e12, narrowed=5.2e11, plain_reduced=1.67e11),
    cubes=True,
)
V6E = _tpu(
    name="tpu-v6e",
    page="v6e",
    bfloat16=918e12,
    float8=918e12,
    int8=1836e12,
    vector=7.2e12,
    matmul_tile=(8, 256, 256),
    memory_gib=32,
    available_gib=31.24,
    memory_bytes_per_second=1638e9,
    link_bytes_per_second=100e9,
    link_source="800 GB/s per chip in both directions together over 4 links",
    network_bytes_per_second=12.5e9,
    network_source="100 Gb/s per chip",
    clock_hertz=1.75e9,
    clock_source=_PEAK_CLOCK_256,
    host_bytes=180_000_000_000,
    host_source="1,440 GB per host of 8 chips, ct6e-standard-8t",
    ring_orders=_FLAT_RINGS,
    streamed=StreamedAccess(
        products=0.82,
        elementwise=0.89,
        copies=0.292,
        conversions=0.239,
        fills=0.21,
        row_copies=0.44,
    ),
    passes=ElementPasses(
        read_bytes=6.39e12,
        kept=2.62e12,
        narrowed=3.1e11,
        plain_reduced=8.8e10,
        product_narrowed=3.85e11,
        product_kept=3.76e12,
        written=3.81e12,
    ),
    cubes=False,
)
TPU7X = _tpu(
    name="tpu7x",
    page="tpu7x",
    bfloat16=2307e12 / 2,
    float8=4614e12 / 2,
    int8=2307e12 / 2,
    vector=9e12,
    matmul_tile=(8, 256, 256),
    memory_gib=96,
    available_gib=94.74,
    memory_bytes_per_second=7380e9 / 2,
    link_bytes_per_second=50e9,
    link_source="1,200 GB/s per chip in both directions together over 6 links, halved per device",
    network_bytes_per_second=6.25e9,
    network_source="100 Gb/s per chip",
    clock_hertz=2.2e9,
    clock_source=_PEAK_CLOCK_256,
    launch_seconds=1.05e-6,
    host_bytes=120_000_000_000,
    host_source="960 GB per host of 4 chips, tpu7x-standard-4t",
    ring_orders=_7X_RINGS,
    streamed=StreamedAccess(
        products=0.71,
        elementwise=0.907,
        copies=0.199,
        conversions=0.486,
        fills=0.56,
        row_copies=1.0,
        held_row_copies=0.27,
    ),
    passes=ElementPasses(
        read_bytes=3.15e12,
        kept=2.13e12,
        narrowed=6.19e11,
        plain_reduced=5.97e11,
        product_narrowed=1.01e12,
        product_kept=7.05e11,
        written=4.35e12,
    ),
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
