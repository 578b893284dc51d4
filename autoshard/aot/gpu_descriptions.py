"""GPUs as XLA wants them described where none is present."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDescription:
    """What XLA asks of a GPU before it compiles for it.

    Args:
        name: As the driver calls it.
        compute_capability: Major and minor.
        num_cores: Streaming multiprocessors.
        fpus_per_core: Single-precision units of one of them.
        shared_bytes_per_core: Shared memory of one of them.
        shared_bytes_per_block: What one block can ask for.
        l2_bytes: Second-level cache.
        clock_ghz: Boost clock.
        memory_bytes: Device memory.
        memory_bytes_per_second: Its bandwidth.
        source: Where the numbers are from.
    """

    name: str
    compute_capability: tuple[int, int]
    num_cores: int
    fpus_per_core: int
    shared_bytes_per_core: int
    shared_bytes_per_block: int
    l2_bytes: int
    clock_ghz: float
    memory_bytes: int
    memory_bytes_per_second: int
    source: str

    def as_text_proto(self) -> str:
        """The target configuration of `get_topology_desc`, as a text proto.

        What all these GPUs have alike (threads and registers of a core, grid limits) is from the
        table of compute capabilities in NVIDIA's CUDA C++ Programming Guide.
        """
        major, minor = self.compute_capability
        return f"""\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: {48 * 1024}
  shared_memory_per_core: {self.shared_bytes_per_core}
  threads_per_core_limit: 2048
  core_count: {self.num_cores}
  fpus_per_core: {self.fpus_per_core}
  block_dim_limit_x: {2**31 - 1}
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {self.memory_bytes_per_second}
  l2_cache_size: {self.l2_bytes}
  clock_rate_ghz: {self.clock_ghz}
  device_memory_size: {self.memory_bytes}
  shared_memory_per_block_optin: {self.shared_bytes_per_block}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 patch: 0 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{self.name}"
"""


_A100_SOURCE = "NVIDIA A100 Tensor Core GPU whitepaper (2020), SXM"
_H100_SOURCE = "NVIDIA H100 Tensor Core GPU whitepaper (2022) and data sheet (2023), SXM"


def _a100(name: str, memory_bytes: int, memory_bytes_per_second: int) -> GpuDescription:
    return GpuDescription(
        name=name,
        compute_capability=(8, 0),
        num_cores=108,
        fpus_per_core=64,
        shared_bytes_per_core=164 * 1024,
        shared_bytes_per_block=163 * 1024,
        l2_bytes=40 * 2**20,
        clock_ghz=1.41,
        memory_bytes=memory_bytes,
        memory_bytes_per_second=memory_bytes_per_second,
        source=_A100_SOURCE,
    )


def _hopper(name: str, memory_bytes: int, memory_bytes_per_second: int) -> GpuDescription:
    return GpuDescription(
        name=name,
        compute_capability=(9, 0),
        num_cores=132,
        fpus_per_core=128,
        shared_bytes_per_core=228 * 1024,
        shared_bytes_per_block=227 * 1024,
        l2_bytes=50 * 2**20,
        clock_ghz=1.98,
        memory_bytes=memory_bytes,
        memory_bytes_per_second=memory_bytes_per_second,
        source=_H100_SOURCE,
    )


_A100_80GB = _a100("NVIDIA A100-SXM4-80GB", 80 * 10**9, 2_039 * 10**9)

GPU_DESCRIPTIONS = {
    "A100": _A100_80GB,
    "A100-40GB": _a100("NVIDIA A100-SXM4-40GB", 40 * 10**9, 1_555 * 10**9),
    "A100-80GB": _A100_80GB,
    "H100": _hopper("NVIDIA H100 80GB HBM3", 80 * 10**9, 3_350 * 10**9),
    "H200": _hopper("NVIDIA H200", 141 * 10**9, 4_800 * 10**9),
    "B200": GpuDescription(
        name="NVIDIA B200",
        compute_capability=(10, 0),
        num_cores=148,
        fpus_per_core=128,
        shared_bytes_per_core=228 * 1024,
        shared_bytes_per_block=227 * 1024,
        l2_bytes=126 * 2**20,
        clock_ghz=1.965,
        memory_bytes=180 * 10**9,
        memory_bytes_per_second=8_000 * 10**9,
        source="NVIDIA Blackwell architecture technical brief (2024), HGX B200; cores, cache and"
        " clock as a driver reports them",
    ),
}
"""By the names that `targets` knows."""
