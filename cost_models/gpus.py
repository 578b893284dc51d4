"""NVIDIA GPUs, per GPU, in base units and without sparsity.

Numbers are those of NVIDIA's data sheets; what no sheet states (latencies, launch times, the share
of a link that collectives reach) is measured by others or an order of magnitude, and its source
says which.
"""

from __future__ import annotations

from cost_models.hardware import Compute, Hardware, Link, Memory, PeakFlops, Switch


def _gpu(
    *,
    name: str,
    chip: str,
    sheet: str,
    matmul: PeakFlops,
    vector: PeakFlops,
    memory_bytes: int,
    memory_bytes_per_second: float,
    nvlink_bytes_per_second: float,
    network_bytes_per_second: float,
    network_source: str,
    clock_hertz: float | None = None,
    clock_source: str = "not stated",
    domain_size: int = 8,
    domain_source: str = "8 GPUs on one baseboard",
    reduction_efficiency: float | None = None,
    reduction_source: str = "the switch does not add",
) -> Hardware:
    return Hardware(
        name=name,
        backend="gpu",
        compiler=chip,
        has_reduce_scatter=True,
        collective_launch_seconds=8e-6,
        compute=Compute(
            matmul=matmul,
            vector=vector,
            matmul_tile=(16, 16, 16),
            kernel_launch_seconds=3e-6,
            clock_hertz=clock_hertz,
            source=(
                f"{sheet}, dense (half of the figures with sparsity); float32 products at JAX's "
                f"default precision run as TF32; clock: {clock_source}; tile: a tensor core "
                "fragment; launch: order of magnitude, default until calibrated"
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
            domain_size=domain_size,
            reduction_efficiency=reduction_efficiency,
            source=f"{sheet}: {domain_source}; reduction: {reduction_source}",
        ),
        network=Link(
            bytes_per_second=network_bytes_per_second,
            efficiency=0.9,
            latency_seconds=5e-6,
            source=f"{network_source}; efficiency and latency: default until calibrated",
        ),
        algorithms=("ring", "tree", "in-switch"),
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
_A100_CLOCK = "1,410 MHz, the boost clock of the whitepaper"
_HOPPER_CLOCK = "1,830 MHz, the boost clock of tensor cores, H100 whitepaper (2022), table 3"
_NVLS_HOPPER = (
    "275 of 450 GB/s for an all-reduce on 8 GPUs with NVLink SHARP, "
    "github.com/NVIDIA/nccl-tests/issues/212 and github.com/NVIDIA/nccl/issues/1455"
)
_NVLS_GB200 = (
    "429 of 900 GB/s for an all-reduce on 72 GPUs with NVLink SHARP, "
    "github.com/coreweave/nccl-tests/pull/43"
)
_A100_SHEET = "NVIDIA A100 Tensor Core GPU data sheet and whitepaper (2020), SXM"
_IB_200 = "DGX A100 data sheet: one 200 Gb/s InfiniBand interface per GPU"
_IB_400 = "one 400 Gb/s InfiniBand interface per GPU"

A100_40GB = _gpu(
    name="a100-40gb",
    chip="a100",
    sheet=_A100_SHEET,
    matmul=_A100_MATMUL,
    vector=_A100_VECTOR,
    memory_bytes=40_000_000_000,
    memory_bytes_per_second=1555e9,
    nvlink_bytes_per_second=300e9,
    network_bytes_per_second=25e9,
    network_source=_IB_200,
    clock_hertz=1.41e9,
    clock_source=_A100_CLOCK,
)
A100_80GB = _gpu(
    name="a100-80gb",
    chip="a100",
    sheet=_A100_SHEET,
    matmul=_A100_MATMUL,
    vector=_A100_VECTOR,
    memory_bytes=80_000_000_000,
    memory_bytes_per_second=2039e9,
    nvlink_bytes_per_second=300e9,
    network_bytes_per_second=25e9,
    network_source=_IB_200,
    clock_hertz=1.41e9,
    clock_source=_A100_CLOCK,
)
H100 = _gpu(
    name="h100",
    chip="h100",
    sheet="NVIDIA H100 Tensor Core GPU data sheet (2023), SXM",
    matmul=_H100_MATMUL,
    vector=_H100_VECTOR,
    memory_bytes=80_000_000_000,
    memory_bytes_per_second=3350e9,
    nvlink_bytes_per_second=450e9,
    network_bytes_per_second=50e9,
    network_source=f"DGX H100 data sheet: {_IB_400}",
    clock_hertz=1.83e9,
    clock_source=_HOPPER_CLOCK,
    reduction_efficiency=0.61,
    reduction_source=_NVLS_HOPPER,
)
H200 = _gpu(
    name="h200",
    chip="h200",
    sheet="NVIDIA H200 Tensor Core GPU data sheet (2024), SXM",
    matmul=_H100_MATMUL,
    vector=_H100_VECTOR,
    memory_bytes=141_000_000_000,
    memory_bytes_per_second=4800e9,
    nvlink_bytes_per_second=450e9,
    network_bytes_per_second=50e9,
    network_source=f"DGX H200 data sheet: {_IB_400}",
    clock_hertz=1.83e9,
    clock_source=_HOPPER_CLOCK,
    reduction_efficiency=0.61,
    reduction_source=f"{_NVLS_HOPPER} (H100)",
)
B200 = _gpu(
    name="b200",
    chip="b200",
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
    reduction_efficiency=0.48,
    reduction_source=f"{_NVLS_GB200} (GB200)",
)
GB200 = _gpu(
    name="gb200",
    chip="gb200",
    sheet="NVIDIA Blackwell architecture technical brief (2024), GB200 at 1,200 W per GPU",
    matmul=PeakFlops(
        float64=45e12,
        float32=1250e12,
        bfloat16=2500e12,
        float16=2500e12,
        float8=5000e12,
        int8=5000e12,
    ),
    vector=PeakFlops(
        float64=45e12,
        float32=90e12,
        bfloat16=180e12,
        float16=180e12,
        float8=90e12,
        int8=90e12,
    ),
    memory_bytes=186_000_000_000,
    memory_bytes_per_second=8000e9,
    nvlink_bytes_per_second=900e9,
    network_bytes_per_second=50e9,
    network_source=f"DGX GB200 data sheet: {_IB_400}",
    domain_size=72,
    domain_source="the 72 GPUs of an NVL72 rack",
    reduction_efficiency=0.48,
    reduction_source=_NVLS_GB200,
)
