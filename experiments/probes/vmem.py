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

from autoshard.backends import backend_for
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
    """A result that waits in VMEM beside 2 to 64 matmuls of bfloat16[2048, 2048], to 64 MiB."""
    machine = get_hardware(bench.target.hardware)
    seconds = 2 * _SIDE**3 / machine.compute.matmul.bfloat16

    def waits(counts: Sequence[int]) -> set[int]:
        return {count for count in counts if not _is_evicted(bench, count)}

    found = largest(2, 64, waits)
    if found is None or found == 64:
        raise InconclusiveError("it waits beside all of 64 matmuls, or not beside 2")
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


_LOOKUPS = 24
_ROWS = 2048


def lookup_slowdowns(bench: Bench) -> tuple[float, float]:
    """Results that wait in VMEM beside 24 gathers, or scatters, of 8,192 rows of 512 bytes."""
    return _slowdown(bench, is_gather=True), _slowdown(bench, is_gather=False)


def _slowdown(bench: Bench, *, is_gather: bool) -> float:
    """Seconds of a look-up over those in which HBM moves its rows."""
    rows, width = 4 * _ROWS, 128

    def waiting(_pin: Pin, table: Any, indices: Any, *inputs: Any) -> Any:
        waits = []
        for one in inputs:
            made = jnp.sin(one + table[0, 0])  # not before the last look-up
            waits.append(jax.lax.optimization_barrier(made))
            table += jnp.tile(waits[-1], (2, 1))
            if is_gather:
                taken = jax.lax.optimization_barrier(table[indices])
                table += jnp.abs(taken).sum(0)
            else:
                added = jnp.broadcast_to(table[:1], (rows, width)) * indices[:, None]
                added = jax.lax.optimization_barrier(added)
                table += jax.ops.segment_sum(added, indices, num_segments=_ROWS)
        return sum((one * table[: one.shape[0]]).sum() for one in waits)

    # Inputs of 0.5 MB: the only buffers of that size, evicted ones among them.
    inputs = [Array((_ROWS // 2, width))] * _LOOKUPS
    held = math.prod(inputs[0].shape) * 4
    table = Array((_ROWS, width))
    mesh = f"d={bench.num_devices}"
    compiled = bench.compile(waiting, table, Array((rows,), "int32"), *inputs, mesh=mesh)
    evicted = [
        one for one in compiled_buffers(compiled.module) if one.in_hbm and one.num_bytes == held
    ]
    if not 0 < len(evicted) < _LOOKUPS:
        raise InconclusiveError(f"{len(evicted)} of {_LOOKUPS} results are evicted")
    longest = backend_for(get_hardware(bench.target.hardware)).memory.most_unread_bytes
    moved = rows * width * 4
    beside = 2 * moved + 3 * _ROWS * width * 4  # rows written and read, the table read and written
    return round((longest / (_LOOKUPS - len(evicted) + 0.5) - beside) / moved, 1)


_ELEMENTS = 4096


def element_scatter_slowdown(bench: Bench) -> float:
    """A result that waits in VMEM beside a scatter of 32,768 to 262,144 elements, added up."""

    def waits(counts: Sequence[int]) -> set[int]:
        return {count for count in counts if not _is_evicted_by(bench, count * _ELEMENTS)}

    found = largest(8, 64, waits)
    if found is None or found == 64:
        raise InconclusiveError("it waits beside all of them, or not beside 32,768")
    longest = backend_for(get_hardware(bench.target.hardware)).memory.most_unread_bytes
    return round(longest / ((found + 0.5) * _ELEMENTS * 4), -1)


def _is_evicted_by(bench: Bench, num_elements: int) -> bool:
    """True where a result goes to HBM while so many elements are scattered."""

    def waiting(_pin: Pin, value: Any, table: Any, indices: Any, added: Any) -> Any:
        waits = jax.lax.optimization_barrier(jnp.sin(value))
        total = waits.sum()
        made = jnp.tanh(table + total).at[indices].add(jnp.tanh(added + total))
        return (waits * (made * made).sum()).max()

    elements = Array((num_elements,), "int32"), Array((num_elements,))
    mesh = f"d={bench.num_devices}"
    compiled = bench.compile(waiting, Array((_SIDE, _SIDE)), Array((16384,)), *elements, mesh=mesh)
    held = _SIDE * _SIDE * 4
    return any(one.in_hbm and one.num_bytes == held for one in compiled_buffers(compiled.module))


def unsorted_scatter_bytes(bench: Bench) -> int:
    """Scatters of 16,384 rows into 4 to 36 MiB: up to where their indices are not sorted."""
    sizes = range(4, 37, 2)

    def program(_: Pin, rows: Any, indices: Any) -> Any:
        total = jnp.float32(0)
        for mib in sizes:
            made = jax.ops.segment_sum(rows + total, indices, num_segments=mib * 512)
            total += jnp.abs(made).max() * 1e-9
        return total

    count = bench.num_devices
    arrays = Array((16384, 512)), Array((16384,), "int32")
    compiled = bench.compile(program, *arrays, mesh=f"d={count}")
    scatters = [
        made
        for computation in compiled.module.computations.values()
        for made in computation.values()
        if made.opcode == "scatter"
    ]
    plain = [one for one in scatters if "indices_are_sorted=true" not in one.attributes]
    if not plain:
        raise InconclusiveError("every scatter sorts its indices first")
    return max(int(one.type_text.split("[")[1].split(",")[0]) for one in plain) // 512 * _MIB


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
        record="memory.lookup_slowdowns",
        unit="(gather, scatter)",
        measure=lookup_slowdowns,
        platforms=TPU,
    ),
    Probe(
        record="memory.element_scatter_slowdown",
        unit="ratio",
        measure=element_scatter_slowdown,
        platforms=TPU,
    ),
    Probe(
        record="memory.unsorted_scatter_bytes",
        unit="bytes",
        measure=unsorted_scatter_bytes,
        platforms=TPU,
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
