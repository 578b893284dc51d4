"""Which ops one kernel computes, and which results are therefore never stored."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.backends import get_backend
from autoshard.backends.split_k import Products, num_splits
from autoshard.hlo.text import Instruction
from experiments.probes.bench import Array, Bench, Compiled, Pin, computes
from experiments.probes.probe import BOTH, CUDA, TPU, InconclusiveError, Probe

_MATMULS = frozenset({"convolution", "dot"})
_UPDATES = frozenset({"dynamic-update-slice"})


def fuses_into_matmuls(bench: Bench) -> bool:
    """A matmul of a product of two tensors, whose result goes through a bias and a tanh."""

    def program(_: Pin, a: Any, b: Any, weight: Any, bias: Any) -> Any:
        return jnp.tanh((a * b) @ weight + bias)

    wide = Array((1024, 1024), "bfloat16")
    compiled = _whole(bench, program, wide, wide, wide, Array((1024,), "bfloat16"))
    fused = _fused_with_matmul(compiled)
    before, after = "multiply" in fused, "tanh" in fused
    if before != after:
        raise InconclusiveError(
            f"a matmul computes only {'its operands' if before else 'what follows'}"
        )
    return before


def quantized_bits(bench: Bench) -> int:
    """Twice a bfloat16 tensor, as integers of 4, 8 and 16 bits, that a bfloat16 matmul reads."""
    rows, weight = Array((2048, 1024), "bfloat16"), Array((1024, 1024), "bfloat16")

    def is_stored(bits: int) -> bool:
        def program(_: Pin, x: Any, weight: Any) -> Any:
            return (2 * x).astype(f"int{bits}").astype(jnp.bfloat16) @ weight

        return "multiply" not in _fused_with_matmul(_whole(bench, program, rows, weight))

    return max((bits for bits in (4, 8, 16) if is_stored(bits)), default=0)


def narrows_matmuls(bench: Bench) -> bool:
    """A float32 matmul whose result is scaled and narrowed, and read by two kernels."""

    def program(_: Pin, a: Any, weight: Any, scale: Any) -> Any:
        wide = jnp.matmul(a, weight, preferred_element_type=jnp.float32)
        made = (wide * scale).astype(jnp.bfloat16)
        return jnp.tanh(made) @ weight, jnp.sum(jnp.exp(made), axis=0)

    wide = Array((1024, 1024), "bfloat16")
    compiled = _whole(bench, program, wide, wide, Array((), "float32"))
    return not any("f32[1024,1024]" in made.type_text and computes(made) for made in compiled.entry)


def sinks_into_loops(bench: Bench) -> bool:
    """A loop over activations that are at least a constant that a called function makes."""
    shape = (2048, 1024)
    fill = jax.jit(lambda: jnp.full(shape, 2.5, jnp.float32))

    def program(_: Pin, a: Any, weights: Any) -> Any:
        least = fill()
        return jax.lax.scan(lambda x, w: (jnp.maximum(x @ w, least), None), a, weights)[0]

    compiled = _whole(bench, program, Array(shape), Array((4, 1024, 1024)))
    outside = (made for made in compiled.entry if made.opcode in {"broadcast", "fusion"})
    return not any(
        "f32[2048,1024]" in made.type_text and "broadcast" in compiled.opcodes(made)
        for made in outside
    )


def matmuls_read_single_source(bench: Bench) -> bool:
    """A matmul of cheap element-wise ops of one bfloat16 tensor."""

    def program(_: Pin, a: Any, weight: Any) -> Any:
        return jnp.maximum(a, 0) * 2 @ weight

    wide = Array((1024, 1024), "bfloat16")
    return "maximum" in _fused_with_matmul(_whole(bench, program, wide, wide))


def fuses_into_gathers(bench: Bench) -> bool:
    """Rows looked up in an element-wise result that has more of them."""

    def program(_: Pin, table: Any, rows: Any) -> Any:
        return jnp.abs(table * 3)[rows]

    table = Array((16384, 256))
    compiled = _whole(bench, program, table, Array((128,), "int32"))
    return not any("f32[16384,256]" in i.type_text and computes(i) for i in compiled.entry)


def fuses_gathers(bench: Bench) -> bool:
    """Rows looked up, scaled and summed by segment, and multiplied and summed."""

    def program(_: Pin, table: Any, rows: Any, segments: Any, scales: Any, others: Any) -> Any:
        taken = table[rows]
        added = jax.ops.segment_sum(taken * scales[:, None], segments, 1024)
        return added, jnp.sum(taken * others, axis=1)

    rows, table = Array((32768,), "int32"), Array((16384, 256))
    compiled = _whole(bench, program, table, rows, rows, Array((32768,)), Array((32768, 256)))
    return not any("f32[32768,256]" in one.type_text and computes(one) for one in compiled.entry)


def fuses_into_scatters(bench: Bench) -> bool:
    """A scatter of the absolute values of a product of two tensors."""
    compiled = _scatter(bench)
    return any({"scatter", "abs"} <= compiled.opcodes(made) for _, made in compiled.everywhere())


def scatters_into_addends(bench: Bench) -> bool:
    """A scatter into zeros, whose result is added to a tensor."""
    compiled = _scatter(bench)
    scatters = [made for _, made in compiled.everywhere() if made.opcode == "scatter"]
    if not scatters:
        raise InconclusiveError("no scatter in the program")
    added = [made for made in compiled.entry if "f32[4096,256]" in made.type_text]
    return not any(
        "add" in compiled.opcodes(made) and "scatter" not in compiled.opcodes(made)
        for made in added
    )


def fuses_into_overlapping_windows(bench: Bench) -> bool:
    """A max pool of overlapping windows that reads the SiLU of a scaled convolution."""
    numbers = ("NHWC", "HWIO", "NHWC")

    def program(_: Pin, images: Any, kernel: Any, scale: Any) -> Any:
        def convolved(images: Any) -> Any:
            return jax.lax.conv_general_dilated(
                images, kernel, (1, 1), "SAME", dimension_numbers=numbers
            )

        made = jax.nn.silu(convolved(images) * scale)
        size, strides = (1, 3, 3, 1), (1, 2, 2, 1)
        return convolved(jax.lax.reduce_window(made, -jnp.inf, jax.lax.max, size, strides, "SAME"))

    images, kernel = Array((64, 64, 64, 128)), Array((3, 3, 128, 128))
    compiled = _whole(bench, program, images, kernel, Array((128,)))
    kernels = [compiled.opcodes(made) for made in compiled.entry]
    if not any("reduce-window" in opcodes for opcodes in kernels):
        raise InconclusiveError("no reduce-window in the program")
    return any({"exponential", "reduce-window"} <= opcodes for opcodes in kernels)


def stores_shared_slices(bench: Bench) -> bool:
    """A product of two tensors, of whose halves two kernels compute."""

    def program(_: Pin, a: Any, b: Any) -> Any:
        made = a * b
        return jnp.tanh(made[:, :512]), jnp.sum(jnp.exp(made[:, 512:]), axis=1)

    wide = Array((4096, 1024))
    compiled = _whole(bench, program, wide, wide)
    kernels = [compiled.opcodes(made) for made in compiled.entry]
    return not any({"multiply", "slice"} <= opcodes for opcodes in kernels)


def _scatter(bench: Bench) -> Compiled:
    def program(_: Pin, base: Any, rows: Any, a: Any, b: Any) -> Any:
        zeros = jnp.zeros((4096, 256), jnp.float32)
        return base + zeros.at[rows].add(jnp.abs(a * b))

    updates = Array((512, 256))
    return _whole(bench, program, Array((4096, 256)), Array((512,), "int32"), updates, updates)


def kernels_per_window(bench: Bench) -> int:
    """A row written into each sequence of a cache, at a position of its own."""

    def program(_: Pin, cache: Any, rows: Any, positions: Any) -> Any:
        def write(cache: Any, row: Any, position: Any) -> Any:
            return jax.lax.dynamic_update_slice(cache, row, (position, 0, 0))

        return jax.vmap(write)(jnp.abs(cache), rows, positions)

    cache, rows = Array((16, 1024, 8, 128), "bfloat16"), Array((16, 1, 8, 128), "bfloat16")
    compiled = _whole(bench, program, cache, rows, Array((16,), "int32"))
    bodies = _bodies(compiled)
    return sum(made.opcode == "fusion" and name in bodies for name, made in compiled.everywhere())


def one_hot_scatters(bench: Bench) -> bool:
    """The gradient of one logit taken from each row."""

    def program(_: Pin, logits: Any, labels: Any) -> Any:
        def loss(values: Any) -> Any:
            return jnp.take_along_axis(values, labels[:, None], axis=1).sum()

        return jax.grad(loss)(jnp.sin(logits)) * logits

    compiled = _whole(bench, program, Array((1024, 4096)), Array((1024,), "int32"))
    return not any(made.opcode == "scatter" for _, made in compiled.everywhere())


def strength_reduces_dots(bench: Bench) -> bool:
    """A matmul of one row of bfloat16."""

    def program(_: Pin, row: Any, weight: Any) -> Any:
        return row @ weight

    row, weight = Array((1, 1024), "bfloat16"), Array((1024, 1024), "bfloat16")
    compiled = _whole(bench, program, row, weight)
    return not any(made.opcode in _MATMULS or _is_cublas(made) for _, made in compiled.everywhere())


_SPLIT_SHAPES = (
    (512, 1024, 1024, 1),
    (1024, 1024, 8192, 1),
    (1024, 4096, 8192, 1),
    (256, 256, 4096, 1),
    (512, 512, 2048, 1),
    (128, 128, 65536, 1),
    (2048, 2048, 16384, 1),
    (256, 256, 1024, 8),
    (64, 4096, 4096, 1),
    (512, 512, 512, 16),
    (8, 8192, 4096, 1),
    (16, 16, 65536, 1),
)


def split_k(bench: Bench) -> tuple[float, ...]:
    """Twelve bfloat16 matmuls of other rows, columns and sums in one program."""

    def program(_: Pin, *operands: Any) -> Any:
        pairs = zip(operands[::2], operands[1::2], strict=True)
        return tuple(jnp.einsum("bkm,bkn->bmn", a, b) for a, b in pairs)

    arguments = [
        Array((batch, summed, size), "bfloat16")
        for rows, columns, summed, batch in _SPLIT_SHAPES
        for size in (rows, columns)
    ]
    mesh, out = f"d={bench.num_devices}", [()] * len(_SPLIT_SHAPES)
    compiled = bench.compile(program, *arguments, mesh=mesh, out=out)
    weights = get_backend(bench.target.kind.partition("-")[0].lower()).fusion.split_k
    written = {made.type_text.partition("{")[0] for made in compiled.entry}
    m, n, k, b = np.array(_SPLIT_SHAPES, dtype=np.float64).T
    found = num_splits(Products(m, n, k, b, operand_bits=(16, 16), result_bits=16), weights)
    for (rows, columns, _, batch), parts in zip(_SPLIT_SHAPES, found, strict=True):
        whole = f"{batch},{rows},{columns}" if batch > 1 else f"{rows},{columns}"
        expected = (
            f"f32[{parts},{whole}]" if batch == 1 else f"f32[{batch},{parts},{rows},{columns}]"
        )
        if (f"bf16[{whole}]" if parts == 1 else expected) not in written:
            raise InconclusiveError(f"no {expected} in the program")
    return weights


def fuses_stack_updates(bench: Bench) -> bool:
    """A scan that stacks three element-wise results of one carried value."""

    def program(_: Pin, value: Any, weight: Any) -> Any:
        def body(carried: Any, _: Any) -> Any:
            made = jnp.sin(carried * weight)
            return made, (jnp.abs(made) + 1, made * carried, made - weight)

        return jax.lax.scan(body, value, None, length=16)[1]

    held = Array((256, 512))
    mesh, out = f"d={bench.num_devices}", [()] * 3
    compiled = bench.compile(program, held, held, mesh=mesh, out=out)
    kernels = [
        made
        for name, made in compiled.everywhere()
        if made.opcode in {"fusion", *_UPDATES} and name in _bodies(compiled)
    ]
    writers = [made for made in kernels if compiled.opcodes(made) & _UPDATES]
    if not writers:
        raise InconclusiveError("no kernel of the loop updates a stack")
    return len(writers) < 3


def _bodies(compiled: Compiled) -> set[str]:
    """Computations that are bodies of loops."""
    return {
        name
        for _, made in compiled.everywhere()
        if made.opcode == "while"
        for kind, name in made.called()
        if kind == "body"
    }


def _whole(bench: Bench, program: Any, *arguments: Array) -> Compiled:
    """A program that every device runs whole."""
    return bench.compile(program, *arguments, mesh=f"d={bench.num_devices}")


def _fused_with_matmul(compiled: Compiled) -> set[str]:
    """Opcodes of the kernels that have a matmul."""
    kernels = (compiled.opcodes(made) for made in compiled.entry)
    return {opcode for opcodes in kernels if opcodes & _MATMULS for opcode in opcodes}


def _is_cublas(made: Instruction) -> bool:
    return "cublas" in made.string("custom_call_target")


def _fusion(measure: Any, platforms: frozenset[str] = BOTH) -> Probe:
    return Probe(
        record=f"fusion.{measure.__name__}", unit="boolean", measure=measure, platforms=platforms
    )


PROBES = (
    _fusion(fuses_into_matmuls),
    Probe(record="fusion.quantized_bits", unit="bits", measure=quantized_bits, platforms=TPU),
    Probe(record="fusion.kernels_per_window", unit="kernels", measure=kernels_per_window),
    _fusion(narrows_matmuls, CUDA),
    _fusion(sinks_into_loops),
    # With `fuses_into_matmuls` it says nothing more.
    _fusion(matmuls_read_single_source, CUDA),
    _fusion(fuses_into_gathers),
    _fusion(fuses_gathers),
    _fusion(fuses_into_scatters),
    _fusion(fuses_into_overlapping_windows),
    _fusion(stores_shared_slices),
    _fusion(scatters_into_addends),
    _fusion(one_hot_scatters),
    _fusion(strength_reduces_dots),
    _fusion(fuses_stack_updates),
    Probe(
        record="fusion.split_k",
        unit="multiprocessors, and costs: operation, byte, byte summed, start",
        measure=split_k,
        platforms=CUDA,
    ),
)
