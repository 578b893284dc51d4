"""Which collectives a compiler makes of sums, gathers and exchanges over devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.verification.collective_comparison import WINDOWED
from experiments.probes.bench import Array, Bench, Compiled, Pin
from experiments.probes.probe import TPU, InconclusiveError, Probe
from experiments.probes.search import largest

_MIB = 2**20
_EXCHANGES = ("all-to-all", "ragged-all-to-all")
_LARGE_SLICES = {"v4": "4x4x4", "v5e": "8x8", "v5p": "4x4x4", "v6e": "8x8", "tpu7x": "4x4x2"}
_HALF_SLICES = {"v4": "2x4x4", "v5e": "4x8", "v5p": "2x4x4", "v6e": "4x8", "tpu7x": "2x4x2"}
"""Of 64 devices, and of 32."""
_SQUARE_SLICES = {"v4": "2x2x2", "v5e": "4x4", "v5p": "2x2x2", "v6e": "4x4", "tpu7x": "2x2x2"}
"""Slices that are no line: each has two dimensions of more than two devices, or three."""


def convert_motion(bench: Bench) -> bool:
    """Gathered float32 operands of two matmuls that take bfloat16, and one all-to-all of such."""
    moved = _converted_operands(bench).collectives
    narrow = {c.kind: c.bytes_per_device <= 2 * 1024 * 2048 for c in moved}
    if narrow.keys() < {"all-gather", "all-to-all"} or len(set(narrow.values())) != 1:
        raise InconclusiveError(f"narrowed: {narrow}")
    return narrow["all-gather"]


def far_convert_motion(bench: Bench) -> bool:
    """A gathered float32 stack of 4 matrices that bfloat16 matmuls take: in a scan, and sliced."""
    narrow = {_is_stack_narrowed(bench, is_scanned=one) for one in (False, True)}
    if len(narrow) != 1:
        raise InconclusiveError("only one of scanned and sliced stacks is narrowed")
    return narrow.pop()


def _is_stack_narrowed(bench: Bench, *, is_scanned: bool) -> bool:
    def layer(x: Any, matrix: Any) -> Any:
        return jnp.tanh(x @ matrix.astype(jnp.bfloat16)), None

    def program(pin: Pin, x: Any, stack: Any) -> Any:
        stack = pin(stack)
        if is_scanned:
            return (jax.lax.scan(layer, x, stack)[0],)
        for place in range(4):
            x, _ = layer(x, stack[place])
        return (x,)

    compiled = bench.compile(
        program,
        Array((4096, 1024), "bfloat16", ("d",)),
        Array((4, 1024, 1024), "float32", (None, "d")),
        mesh=f"d={bench.num_devices}",
        out=[("d",)],
    )
    moved = sum(c.count * c.bytes_per_device for c in compiled.collectives)
    return moved <= 2 * 4 * 1024 * 1024


def cse_reshards(bench: Bench) -> bool:
    """Two all-gathers of one float32 operand, for two matmuls."""
    gathers = [c for c in _converted_operands(bench).collectives if c.kind == "all-gather"]
    return len(gathers) == 1


def _converted_operands(bench: Bench) -> Compiled:
    def program(pin: Pin, a: Any, b: Any, c: Any, d: Any) -> Any:
        once = b @ pin(a).astype(jnp.bfloat16)
        twice = jnp.tanh(b) @ pin(a).astype(jnp.bfloat16)
        return once, twice, d @ pin(c, None, "d").astype(jnp.bfloat16)

    count = bench.num_devices
    return bench.compile(
        program,
        Array((1024, 2048), "float32", ("d",)),
        Array((4096, 1024), "bfloat16", ("d",)),
        Array((1024, 2048), "float32", ("d",)),
        Array((4096, 1024), "bfloat16"),
        mesh=f"d={count}",
        out=[("d",), ("d",), (None, "d")],
    )


def reassociates_all_reduces(bench: Bench) -> bool:
    """Two matmuls over a sharded dimension, added."""

    def program(_: Pin, a: Any, b: Any, c: Any, d: Any) -> Any:
        return a @ b + c @ d

    left = Array((1024, 4096), "bfloat16", (None, "d"))
    right = Array((4096, 1024), "bfloat16", ("d",))
    compiled = bench.compile(program, left, right, left, right, mesh=f"d={bench.num_devices}")
    return sum(c.count * c.bytes_per_device for c in compiled.collectives) <= 2 * 1024 * 1024


def loop_all_reduce_motion(bench: Bench) -> bool:
    """A scan over 8 microbatches that accumulates a matmul over the sharded batch."""

    def program(_: Pin, xs: Any, ys: Any) -> Any:
        def body(total: Any, both: Any) -> Any:
            return total + jnp.einsum("bi,bj->ij", *both), None

        return jax.lax.scan(body, jnp.zeros((256, 512), jnp.float32), (xs, ys))[0]

    compiled = bench.compile(
        program,
        Array((8, 1024, 256), "bfloat16", (None, "d")),
        Array((8, 1024, 512), "bfloat16", (None, "d")),
        mesh=f"d={bench.num_devices}",
    )
    return sum(c.count for c in compiled.collectives) == 1


def all_reduce_per_dimension(bench: Bench) -> bool:
    """A matmul contracted over two dimensions, each sharded over one mesh axis."""

    def program(_: Pin, a: Any, b: Any) -> Any:
        return jnp.einsum("abi,abj->ij", a, b)

    compiled = bench.compile(
        program,
        Array((8, 1024, 256), "bfloat16", ("x", "y")),
        Array((8, 1024, 512), "bfloat16", ("x", "y")),
        mesh=f"x=2,y={bench.num_devices // 2}",
    )
    return len(compiled.collectives) > 1


def unpartitioned_ops(bench: Bench) -> frozenset[str]:
    """A top_k, a sort and an FFT of rows whose batch is sharded."""

    def program(_: Pin, a: Any, b: Any, c: Any) -> Any:
        return jax.lax.top_k(a, 4)[0], jnp.sort(b, axis=1), jnp.fft.fft(c).real

    rows = Array((64, 2048), "float32", ("d",))
    mesh, out = f"d={bench.num_devices}", [("d",)] * 3
    compiled = bench.compile(program, rows, rows, rows, mesh=mesh, out=out)
    names = " ".join(c.op_name for c in compiled.collectives)
    return frozenset(op for op in ("top_k", "sort", "fft") if op in names)


def copies_all_to_alls(bench: Bench) -> bool:
    """An all-to-all of an argument, whose pieces may need a copy to be together."""

    def program(pin: Pin, a: Any) -> Any:
        return jnp.sin(pin(a, None, "d"))

    count = bench.num_devices
    held = Array((1024 * count, 1024), "float32", ("d",))
    compiled = bench.compile(program, held, mesh=f"d={count}", out=(None, "d"))
    sent = [i for i in compiled.entry if i.opcode.removesuffix("-start") in _EXCHANGES]
    if not sent:
        raise InconclusiveError("no all-to-all in the program")
    for made in compiled.entry:
        opcodes = compiled.opcodes(made)
        if made.num_bytes == 4 * 1024 * 1024 and opcodes & {"copy", "transpose"}:
            return True
    return False


def transposes_all_gathers(bench: Bench) -> bool:
    """An all-gather along the columns of a matrix."""

    def program(pin: Pin, a: Any) -> Any:
        return jnp.sin(pin(a))

    count = bench.num_devices
    held = Array((1024, 256 * count), "float32", (None, "d"))
    compiled = bench.compile(program, held, mesh=f"d={count}")
    gathers = [i for _, i in compiled.everywhere() if i.opcode.startswith("all-gather")]
    started = [i for i in gathers if not i.opcode.endswith("-done")]
    if not started:
        raise InconclusiveError("no all-gather in the program")
    copied = any(
        made.num_bytes == 4 * 1024 * 256 * count
        and {made.opcode, *(i.opcode for i in compiled.inside(made))} & {"copy", "transpose"}
        for made in compiled.entry
    )
    return copied and "dimensions={0}" in started[0].attributes


def reduce_scatter_whole_tiles(bench: Bench) -> bool:
    """Scattered sums over 4 devices: a matrix, a vector, pieces of 4 rows, and two dimensions."""

    def program(_: Pin, matrix: Any, vector: Any, low: Any, both: Any) -> Any:
        return matrix.sum(0), vector.sum(0), low.sum(0), both.sum(0)

    compiled = bench.compile(
        program,
        Array((4, 1024, 1024), "float32", ("y",)),
        Array((4, 2**19), "float32", ("y",)),
        Array((4, 16, 1024), "float32", ("y",)),
        Array((4, 1024, 512), "float32", ("y",)),
        mesh=f"x={bench.num_devices // 4},y=4",
        out=[("y",), ("y",), ("y",), ("y", "x")],
    )
    # Sums of one group may share a call, so bytes tell, and not calls.
    scattered = sum(c.bytes_per_device for c in compiled.collectives if c.kind == "reduce-scatter")
    matrix = 4 * _MIB
    if scattered < matrix:
        raise InconclusiveError("the sum of a matrix is not scattered")
    return scattered == matrix


def reduce_scatter_along_lines(bench: Bench) -> bool:
    """Scattered sums over a line of a slice, and over all of one that is no line."""
    square = bench.elsewhere(f"{bench.target.kind}:{_SQUARE_SLICES[bench.target.kind]}")

    def program(_: Pin, matrix: Any) -> Any:
        return jnp.sin(matrix.sum(0))

    count, line = square.num_devices, square.target.shape[-1]

    def is_scattered(group: int) -> bool:
        compiled = square.compile(
            program,
            Array((group, 2048, 1024), "float32", ("y",)),
            mesh=f"x={count // group},y={group}",
            out=("y",),
        )
        return any(c.kind == "reduce-scatter" for c in compiled.collectives)

    if not is_scattered(line):
        raise InconclusiveError("not even a sum over a line is scattered")
    return not is_scattered(count)


def gather_by_sum_max_bytes(bench: Bench) -> float:
    """All-gathers of 1 MiB to 1 GiB over all of a slice of 64 devices."""
    large = bench.elsewhere(f"{bench.target.kind}:{_LARGE_SLICES[bench.target.kind]}")
    found = largest(1, 64, lambda sizes: _gathered_by_sum(large, sizes))
    if found is None:
        return 0.0
    if found < 64:
        return float(found * _MIB)
    return float("inf") if _gathered_by_sum(large, (1024,)) else 64.0 * _MIB


def gather_by_sum_min_devices(bench: Bench) -> int:
    """All-gathers of 1 MiB over all of slices of 32 and 64 devices."""
    kind = bench.target.kind
    by_devices = {
        64: _gathered_by_sum(bench.elsewhere(f"{kind}:{_LARGE_SLICES[kind]}"), (1,)),
        32: _gathered_by_sum(bench.elsewhere(f"{kind}:{_HALF_SLICES[kind]}"), (1,)),
    }
    if by_devices[32] or not by_devices[64]:
        raise InconclusiveError(
            "a slice of 32 devices gathers by a sum too"
            if by_devices[32]
            else "neither a slice of 32 nor one of 64 devices gathers by a sum"
        )
    return 64


def _gathered_by_sum(bench: Bench, sizes: Sequence[int]) -> set[int]:
    """Sizes in MiB of gathered results that an all-reduce makes."""

    def program(pin: Pin, *inputs: Any) -> Any:
        before = jnp.float32(1)
        for value in inputs:
            before = jnp.abs(jnp.sin(pin(value * before))).max()
        return before

    inputs = [Array((512 * mib, 512), "float32", ("d",)) for mib in sizes]
    compiled = bench.compile(program, *inputs, mesh=f"d={bench.num_devices}")
    # Sums of several gathers may share a call.
    sums = [i.type_text for _, i in compiled.everywhere() if i.opcode.startswith("all-reduce")]
    return {size for size in sizes if f"f32[{512 * size},512]" in " ".join(sums)}


def is_hierarchical(bench: Bench) -> bool:
    """An all-gather over all devices of two slices."""
    chips = "x".join(map(str, bench.target.shape))
    two = bench.elsewhere(f"2x {bench.target.kind}:{chips}")

    def program(pin: Pin, a: Any) -> Any:
        return jnp.sin(pin(a))

    count = two.num_devices
    compiled = two.compile(program, Array((1024, 1024), "float32", ("d",)), mesh=f"d={count}")
    return len({c.group_size for c in compiled.collectives}) > 1


_CONTRACTED = (256, 512, 640, 1024, 1280, 2048, 4096, 8192)


def windows_reduce_scatters(bench: Bench) -> bool:
    """Matmuls of up to 8,192 contracted elements, scattered over 4 and over 8 devices."""
    return any(_is_windowed(bench, group) for group in (4, 8))


def _is_windowed(bench: Bench, group: int) -> bool:
    """True where matmuls whose sums are scattered over so many devices become windowed einsums."""

    def program(_: Pin, *operands: Any) -> Any:
        pairs = zip(operands[::2], operands[1::2], strict=True)
        return tuple(left @ right for left, right in pairs)

    operands: list[Array] = []
    for place, size in enumerate(_CONTRACTED):
        operands.append(Array((2048, size * group), "bfloat16", (None, "y")))
        operands.append(Array((size * group, 512 + 128 * place), "bfloat16", ("y",)))
    compiled = bench.compile(
        program,
        *operands,
        mesh=f"x={bench.num_devices // group},y={group}",
        out=[("y",)] * len(_CONTRACTED),
    )
    return any(one.form == WINDOWED for one in compiled.collectives)


def _boolean(measure: Any, **more: Any) -> Probe:
    return Probe(record=f"collectives.{measure.__name__}", unit="boolean", measure=measure, **more)


PROBES = (
    _boolean(convert_motion),
    _boolean(far_convert_motion),
    Probe(record="memory.cse_reshards", unit="boolean", measure=cse_reshards),
    _boolean(reassociates_all_reduces),
    _boolean(loop_all_reduce_motion),
    _boolean(all_reduce_per_dimension),
    Probe(record="collectives.unpartitioned_ops", unit="op names", measure=unpartitioned_ops),
    _boolean(copies_all_to_alls),
    _boolean(transposes_all_gathers),
    _boolean(reduce_scatter_whole_tiles),
    _boolean(reduce_scatter_along_lines, platforms=TPU),
    Probe(
        record="collectives.gather_by_sum_max_bytes",
        unit="bytes",
        measure=gather_by_sum_max_bytes,
        platforms=TPU,
    ),
    Probe(
        record="collectives.gather_by_sum_min_devices",
        unit="devices",
        measure=gather_by_sum_min_devices,
        platforms=TPU,
    ),
    _boolean(is_hierarchical, platforms=TPU),
    _boolean(windows_reduce_scatters),
)
