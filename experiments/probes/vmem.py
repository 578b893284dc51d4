"""VMEM: how many bytes it holds, of which ops, and the tables that copies to it keep in HBM.

On a v4 the large memory on the chip is CMEM (memory space 3), which the compiler uses likewise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.hlo.live_buffers import compiled_buffers
from cost_models import get_hardware
from experiments.probes.bench import Array, Bench, Compiled, Pin, in_vmem
from experiments.probes.probe import TPU, InconclusiveError, Probe
from experiments.probes.search import largest

_MIB = 2**20
_SIDE = 2048
_TUPLE_LINE = re.compile(r"^\s*\S+\(\s*\d+%\);\s*\S+;\s*(\d+);\s*\d+; \(", re.MULTILINE)


def vmem_bytes(bench: Bench) -> int:
    """Largest element-wise result that is read by the next op and lies in VMEM, to a MiB."""

    def held(sizes: Sequence[int]) -> set[int]:
        return _held(_written_and_read(bench, sizes, is_matmul=False))

    try:
        found = largest(1, 159, held)
    except ValueError as error:
        raise InconclusiveError(str(error)) from error
    if found is None:
        raise InconclusiveError("no result of one MiB lies in VMEM")
    return found * _MIB


def most_unread_bytes(bench: Bench) -> int:
    """A result that waits in VMEM beside 8 to 40 matmuls of bfloat16[2048, 2048], to 64 MiB."""
    machine = get_hardware(bench.target.hardware)
    seconds = 2 * _SIDE**3 / machine.compute.matmul.bfloat16

    def waits(counts: Sequence[int]) -> set[int]:
        return {count for count in counts if not _is_evicted(bench, count)}

    found = largest(8, 40, waits)
    if found is None or found == 40:
        raise InconclusiveError("it waits beside all of 40 matmuls, or not beside 8")
    return round(found * seconds * machine.memory.bytes_per_second / 2**26) * 2**26


def _is_evicted(bench: Bench, num_matmuls: int) -> bool:
    """Whether a result goes to HBM while so many matmuls run between two reads of it."""

    def waiting(_pin: Pin, value: Any, weight: Any) -> Any:
        waits = jnp.sin(value)
        made = jax.lax.optimization_barrier(waits) @ weight
        for _ in range(num_matmuls):
            made = made @ weight
        return (made * waits).sum()

    square = Array((_SIDE, _SIDE), "bfloat16")
    compiled = bench.compile(waiting, square, square, mesh=f"d={bench.num_devices}")
    return any(one.in_hbm and one.num_bytes > _MIB for one in compiled_buffers(compiled.module))


def matmul_results_in_vmem(bench: Bench) -> bool:
    """Matmul results of 2, 4 and 8 MiB that are read by the next op."""
    sizes = (2, 4, 8)
    made = _held(_written_and_read(bench, sizes, is_matmul=True))
    if made and made != set(sizes):
        raise InconclusiveError(
            f"of matmul results of 2, 4 and 8 MiB those of {sorted(made)} lie there"
        )
    return bool(made)


def tuple_index_table_bytes(bench: Bench) -> int:
    """Spacing in HBM of the tables of tuple elements that asynchronous copies keep."""
    compiled = _written_and_read(bench, (2, 4, 8), is_matmul=True)
    report = compiled.ahead.memory_report
    offsets = {int(offset) for offset in _TUPLE_LINE.findall(report)}
    spacing = math.gcd(*offsets)
    if len(offsets) < 2:
        raise InconclusiveError("fewer than two tables were reported")
    return spacing


def _written_and_read(bench: Bench, sizes: Sequence[int], *, is_matmul: bool) -> Compiled:
    """Results of so many MiB a device, each written, read and done with before the next one."""

    def program(_: Pin, weight: Any, before: Any, *inputs: Any) -> Any:
        total = jnp.float32(0)
        for value in inputs:
            scaled = value * before.astype(value.dtype)  # two ops: a v5p writes only fusions there
            made = scaled @ weight if is_matmul else jnp.sin(scaled)
            made = jax.lax.optimization_barrier(made)  # or the reader would compute it again
            before = jnp.abs(made).max().astype(jnp.float32)
            total += before
        return total

    count = bench.num_devices
    inputs = [Array((count * 512 * mib, 1024), "bfloat16", ("d",)) for mib in sizes]
    weight = Array((1024, 1024), "bfloat16")
    return bench.compile(program, weight, Array(()), *inputs, mesh=f"d={count}")


def _held(compiled: Compiled) -> set[int]:
    """Sizes in MiB of the computed results in VMEM."""
    return {
        made.num_bytes // _MIB
        for made in compiled.entry
        if made.opcode in {"fusion", "convolution", "sine"} and in_vmem(made)
    }


PROBES = (
    Probe(record="memory.vmem_bytes", unit="bytes", measure=vmem_bytes, platforms=TPU),
    Probe(
        record="memory.most_unread_bytes", unit="bytes", measure=most_unread_bytes, platforms=TPU
    ),
    Probe(
        record="memory.matmul_results_in_vmem",
        unit="boolean",
        measure=matmul_results_in_vmem,
        platforms=TPU,
    ),
    Probe(
        record="memory.tuple_index_table_bytes",
        unit="bytes",
        measure=tuple_index_table_bytes,
        platforms=TPU,
    ),
)
