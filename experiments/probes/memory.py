"""Probes of buffers that are written over, and of sums that share a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from experiments.probes.bench import Array, Bench, Pin
from experiments.probes.probe import CUDA, InconclusiveError, Probe

_SIDE = 8192  # no temporary stays in VMEM
_MIB = 2**20


def normalizes_at_once(bench: Bench) -> bool:
    """A softmax of a matmul's result between two barriers."""
    return _buffers_of(bench, jax.nn.softmax) == 2


def _buffers_of(bench: Bench, between: Callable[[Any], Any]) -> int:
    """Whole matrices of float32 that are held at once, where a matmul makes one and one reads it.

    A narrower copy that the second matmul reads counts for nothing.
    """

    def program(_: Pin, left: Any, right: Any) -> Any:
        made = jax.lax.optimization_barrier(left @ right)
        read = jax.lax.optimization_barrier(between(made))
        return jnp.sum(read @ right[:, :64], axis=0)

    square = Array((_SIDE, _SIDE))
    compiled = bench.compile(program, square, square, mesh=f"data={bench.num_devices}")
    found = int(compiled.ahead.memory["temp"] / (4 * _SIDE**2))
    if found not in (1, 2):
        raise InconclusiveError(f"{found} matrices are held between two matmuls")
    return found


def results_apart(bench: Bench) -> bool:
    """Three matmuls in a row, of whose last results a number is left, and one result of the size.

    Where temporaries may take the memory of the result, they take that of one matrix less than
    beside a result of a few bytes.
    """

    def summed(left: Any, right: Any) -> Any:
        first = left @ right
        second = jnp.sin(first) @ right
        third = jax.lax.optimization_barrier(jnp.cos(second) @ first)
        return jnp.sum(jnp.sin(third))

    def late(_: Pin, left: Any, right: Any) -> Any:
        return (left * summed(left, right)) @ right

    def small(_: Pin, left: Any, right: Any) -> Any:
        return jnp.sum(jnp.tanh((left * summed(left, right)) @ right), axis=0)

    square = Array((_SIDE, _SIDE))
    mesh = f"data={bench.num_devices}"
    with_result, without = (
        bench.compile(program, square, square, mesh=mesh).ahead.memory["temp"]
        for program in (late, small)
    )
    fewer = round((without - with_result) / (4 * _SIDE**2))
    if fewer not in (0, 1):
        raise InconclusiveError(f"temporaries take {fewer} matrices less")
    return fewer == 0


def combined_sum_bytes(bench: Bench) -> int:
    """Gradients of 72 weights of 1 MiB, summed over all devices: the largest call."""

    def program(_: Pin, x: Any, *weights: Any) -> Any:
        def loss(weights: tuple[Any, ...]) -> Any:
            made = x
            for weight in weights:
                made = jnp.tanh(made @ weight)
            return jnp.sum(made)

        return tuple(jax.grad(loss)(weights))

    weights = [Array((512, 512))] * 72
    compiled = bench.compile(
        program,
        Array((512 * bench.num_devices, 512), "float32", ("data", None)),
        *weights,
        mesh=f"data={bench.num_devices}",
        out=[()] * len(weights),
    )
    sums = [one for one in compiled.collectives if one.kind == "all-reduce"]
    largest = max((one.bytes_per_device for one in sums), default=0)
    if not _MIB < largest < len(weights) * _MIB:
        raise InconclusiveError(f"the largest of {len(sums)} all-reduces takes {largest} bytes")
    return int(largest)


PROBES = (
    Probe(record="fusion.normalizes_at_once", unit="boolean", measure=normalizes_at_once),
    Probe(record="memory.results_apart", unit="boolean", measure=results_apart),
    Probe(
        record="memory.combined_sum_bytes",
        unit="bytes",
        measure=combined_sum_bytes,
        platforms=CUDA,
    ),
)
