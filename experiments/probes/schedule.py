"""What a compiler runs beside computing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.hlo.collective_instructions import (
    ASYNC_DONE,
    Place,
    carried_collectives,
    collective_kind,
    collectives_called,
    is_async_start,
)
from autoshard.hlo.text import Instruction
from experiments.probes.bench import Array, Bench, Compiled, Pin
from experiments.probes.probe import CUDA, InconclusiveError, Probe

KINDS: dict[str, tuple[Any, ...]] = {
    "all-gather": (),
    "all-reduce": (),
    "reduce-scatter": ("d",),
    "all-to-all": (None, "d"),
    "collective-permute": ("d",),
}
"""Mesh axes of what each gives."""


def async_collectives(bench: Bench) -> frozenset[str]:
    """A collective of each kind beside four matmuls that do not need it."""
    found, missing = set(), []
    for kind in KINDS:
        compiled = _beside(bench, kind, _matmuls)
        if not any(c.kind == kind for c in compiled.collectives):
            missing.append(kind)
        elif work_beside(compiled, kind, "matmul"):
            found.add(kind)
    unknown = [kind for kind in missing if kind != "reduce-scatter"]
    if unknown:
        raise InconclusiveError(f"the programs have no {', '.join(unknown)}")
    return frozenset(found)


def overlaps_matmuls_only(bench: Bench) -> bool:
    """An asynchronous collective beside element-wise ops and reductions that do not need it."""
    kinds = async_collectives(bench)
    if not kinds:
        raise InconclusiveError("no collective runs beside matmuls")
    # Permutations are sent by a unit of their own everywhere: they tell nothing of the others.
    asked = min(kinds - {"collective-permute"} or kinds)
    return not work_beside(_beside(bench, asked, _reductions), asked, "other")


def _matmuls(value: Any, weight: Any) -> Any:
    for _ in range(4):
        value = jnp.tanh(value @ weight)
    return value


def _reductions(value: Any, weight: Any) -> Any:
    """Means and deviations of rows, each of which waits for the one before."""
    for _ in range(4):
        value = jnp.sin(value - value.mean(1, keepdims=True)) * weight[0]
    return value


def _beside(bench: Bench, kind: str, work: Callable[[Any, Any], Any]) -> Compiled:
    def program(pin: Pin, value: Any, weight: Any, other: Any) -> Any:
        parts = other.reshape(bench.num_devices, -1, other.shape[1])
        moved = {
            "all-gather": lambda: pin(other),
            "all-reduce": lambda: pin(parts.sum(0)),
            "reduce-scatter": lambda: pin(parts.sum(0), "d"),
            "all-to-all": lambda: pin(other, None, "d"),
            "collective-permute": lambda: jnp.roll(other, other.shape[0] // bench.num_devices, 0),
        }[kind]()
        return work(value, weight), jnp.sin(moved)

    count = bench.num_devices
    return bench.compile(
        program,
        Array((1024 * count, 2048), "bfloat16", ("d",)),
        Array((2048, 2048), "bfloat16"),
        Array((1024 * count, 1024), "float32", ("d",)),
        mesh=f"d={count}",
        out=[("d",), KINDS[kind]],
    )


def work_beside(compiled: Compiled, kind: str, work: str) -> bool:
    """True where a kernel of a sort runs between the start and the end of a collective.

    Args:
        compiled: Scheduled.
        kind: Of the collective.
        work: `matmul` or `other`.
    """
    underway = False
    for made in compiled.entry:
        starts, ends = _starts_and_ends(compiled, made, kind)
        if (underway or (starts and not ends)) and _work(compiled, made) == work:
            return True
        underway = (underway or starts) and not ends
    return False


def _starts_and_ends(compiled: Compiled, made: Instruction, kind: str) -> tuple[bool, bool]:
    if made.opcode in ASYNC_DONE:
        return False, made.opcode != "async-update"
    if made.opcode == "async-start":
        inside = collectives_called(compiled.module, compiled.mesh, made, Place())
        return any(c.kind == kind for c in inside), False
    if made.opcode == "fusion":
        carried = carried_collectives(compiled.module, compiled.mesh, made)
        ours = [c for c in carried if c.collective.kind == kind]
        return any(c.starts for c in ours), any(c.ends for c in ours)
    return collective_kind(made) == kind and is_async_start(made), False


def _work(compiled: Compiled, made: Instruction) -> str | None:
    opcodes = compiled.opcodes(made)
    if opcodes & {"convolution", "dot"} or "cublas" in made.string("custom_call_target"):
        return "matmul"
    return "other" if opcodes & {"sine", "reduce"} else None


def orders_for_memory(bench: Bench) -> bool:
    """A matmul of a large result that waits for sums of another one, which is written after it."""

    def program(_: Pin, value: Any, up: Any, other: Any, widen: Any) -> Any:
        waiting, beside = value @ up, other @ widen
        sums = jnp.exp(beside - beside.max(1, keepdims=True)).sum(1, keepdims=True)
        return jnp.exp(waiting - waiting.max(1, keepdims=True) * sums).sum(1)

    rows, width, large, smaller = 4096, 1024, 8192, 6144
    compiled = bench.compile(
        program,
        Array((rows * bench.num_devices, width), "bfloat16", ("d",)),
        Array((width, large), "bfloat16"),
        Array((rows * bench.num_devices, width), "bfloat16", ("d",)),
        Array((width, smaller), "bfloat16"),
        mesh=f"d={bench.num_devices}",
        out=("d",),
    )
    matmuls = [one.type_text for one in compiled.entry if _work(compiled, one) == "matmul"]
    made = [size for text in matmuls for size in (large, smaller) if f",{size}]" in text]
    if sorted(made) != [smaller, large]:
        raise InconclusiveError(f"{len(matmuls)} matmuls, {len(made)} of them large")
    return made == [smaller, large]


def collective_microseconds(bench: Bench) -> float:
    """Twelve convolutions that may run beside the second of two small all-reduces."""
    count, num_images = bench.num_devices, 12

    def convolved(image: Any, kernel: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            image, kernel, (1, 1), "SAME", dimension_numbers=numbers
        )

    def program(pin: Pin, rows: Any, *others: Any) -> Any:
        first = jnp.tanh(pin(rows.sum(0)))
        second = pin((rows * first).sum(0))
        return second, *map(convolved, others[:num_images], others[num_images:])

    compiled = bench.compile(
        program,
        Array((8 * count, 256), "float32", ("d",)),
        *[Array((8 * count, 32, 32, 64), "bfloat16", ("d",))] * num_images,
        *[Array((3, 3, 64, 64), "bfloat16")] * num_images,
        mesh=f"d={count}",
        out=[(), *[("d",)] * num_images],
    )
    starts = [
        place
        for place, made in enumerate(compiled.entry)
        if _starts_and_ends(compiled, made, "all-reduce")[0]
    ]
    if len(starts) != 2:
        raise InconclusiveError(f"{len(starts)} all-reduces")
    beside = 0
    for made in compiled.entry[starts[1] :]:
        if _starts_and_ends(compiled, made, "all-reduce")[1]:
            break
        beside += "cudnn" in made.string("custom_call_target")
    if not 1 < beside < num_images:
        raise InconclusiveError(f"{beside} of {num_images} convolutions beside it")
    return 10.0 * (beside - 2)  # the last may be longer, and it takes ten itself


PROBES = (
    Probe(record="schedule.async_collectives", unit="kinds", measure=async_collectives),
    Probe(record="schedule.overlaps_matmuls_only", unit="boolean", measure=overlaps_matmuls_only),
    Probe(record="schedule.orders_for_memory", unit="boolean", measure=orders_for_memory),
    Probe(
        record="schedule.collective_microseconds",
        unit="us",
        measure=collective_microseconds,
        platforms=CUDA,
    ),
)
