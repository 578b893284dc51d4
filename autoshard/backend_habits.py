"""What a compiler backend does otherwise than the op sharding rules say, as measured.

The plan is priced as the backend will run it, so that what it lists is what gets compiled. Figures
for jaxlib 0.10.2 on CPU; `experiments/fidelity.py` measures them again.
"""

from __future__ import annotations

# Ops the partitioner runs whole on every device, whatever their rule allows.
_KEPT_WHOLE = {"cpu": frozenset({"top_k", "fft"})}

# Temporaries as allocated over temporaries as counted from live ranges: copies in other dimension
# orders for matmuls, and gaps between buffers. Mean over the small workloads on three meshes; the
# spread is +-15 %.
_TEMPORARY_OVERHEAD = {"cpu": 1.13}


# Bits in which a backend computes, keeps and sends an element type, where wider than the type.
_WIDENED_BITS = {("cpu", "bf16"): 32}


def widened_bits(backend: str, dtype: str, bits: int) -> int:
    """Bits an intermediate element really takes: XLA's CPU backend does bfloat16 in float32."""
    return _WIDENED_BITS.get((backend, dtype), bits)


def keeps_whole(backend: str, op_name: str) -> bool:
    """Whether a backend replicates an op instead of cutting it."""
    return op_name in _KEPT_WHOLE.get(backend, frozenset())


def temporary_overhead(backend: str) -> float:
    """Factor on the bytes of temporaries; 1 where nothing was measured."""
    return _TEMPORARY_OVERHEAD.get(backend, 1.0)


def copies_convolution_gradients(backend: str) -> bool:
    """Whether gradients of convolutions first copy their operands to another dimension order."""
    return backend == "cpu"


def sums_by_dimension(backend: str) -> bool:
    """Whether partial sums over several cut dimensions take an all-reduce for each of them.

    The partitioner makes one for each dimension; the compilers of TPUs fold them into one (seen
    with libtpu 0.0.52 for a v5e), that of host CPUs does not.
    """
    return backend == "cpu"
