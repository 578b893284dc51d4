"""Tiles, widths of elements, and what matmuls, convolutions and conversions take by size."""

from __future__ import annotations

import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.hlo.text import Instruction
from cost_models import get_hardware
from experiments.probes.bench import Array, Bench, Compiled, Pin, cycles
from experiments.probes.probe import BOTH, TPU, InconclusiveError, Probe

_TILE = re.compile(r"T\(([\d,]+)\)(?:\((\d+),1\))?")
_OUTPUT_DIMS = re.compile(r"dim_labels=\w+->(\w+)")
_SHAPE = re.compile(r"\[([\d,]*)\]")
_OUTPUT_WINDOW = re.compile(r'"output_window_bounds":\s*\["(\d+)","(\d+)"\]')
_RAGGED_TILING = re.compile(r'ragged_dot_tiling="(\d+),')

_SHAPES = {
    "matrix": Array((512, 1024)),
    "narrow": Array((512, 1024), "bfloat16"),
    "vector": Array((100_000,)),
}


def num_lanes(bench: Bench) -> int:
    """Tile of an argument float32[512, 1024]: its row."""
    return _tiles(bench)["matrix"][-1]


def num_sublanes(bench: Bench) -> int:
    """Tile of an argument float32[512, 1024]: its number of rows."""
    return _tiles(bench)["matrix"][-2]


def word_bits(bench: Bench) -> int:
    """Second tile of an argument bfloat16[512, 1024]: rows that share a word."""
    found = _TILE.search(_argument(_arguments(bench), "narrow"))
    if found is None:
        raise InconclusiveError("arguments have no tiles")
    return 16 * int(found[2] or 1)


def max_vector_tile(bench: Bench) -> int:
    """Tile of an argument float32[100000]."""
    return _tiles(bench)["vector"][-1]


def _arguments(bench: Bench) -> Compiled:
    def program(_: Pin, *values: Any) -> Any:
        return tuple(jnp.sin(value) for value in values)

    mesh, out = f"d={bench.num_devices}", [()] * len(_SHAPES)
    return bench.compile(program, *_SHAPES.values(), mesh=mesh, out=out)


def _argument(compiled: Compiled, name: str) -> str:
    wanted = f"({list(_SHAPES).index(name)},)"
    return next(
        made.type_text
        for made in compiled.entry
        if made.opcode == "parameter" and f"({made.operands[0]},)" == wanted
    )


def _tiles(bench: Bench) -> dict[str, tuple[int, ...]]:
    compiled = _arguments(bench)
    found = {name: _TILE.search(_argument(compiled, name)) for name in _SHAPES}
    if None in found.values():
        raise InconclusiveError("arguments have no tiles")
    return {
        name: tuple(int(size) for size in tile[1].split(","))
        for name, tile in found.items()
        if tile is not None
    }


def widened_bits(bench: Bench) -> tuple[tuple[str, int], ...]:
    """An all-gather of an element-wise bfloat16 result."""

    def program(pin: Pin, value: Any) -> Any:
        return jnp.cos(pin(jnp.sin(value)))

    held = Array((2048, 1024), "bfloat16", ("d",))
    moved = _moved(bench.compile(program, held, mesh=f"d={bench.num_devices}"))
    return (("bf16", 32),) if moved == 4 * 2048 * 1024 else ()


def multiplied_bits(bench: Bench) -> tuple[tuple[str, int], ...]:
    """An all-gather of a float32 operand of a float32 matmul at default precision."""

    def program(pin: Pin, value: Any, weight: Any) -> Any:
        return value @ pin(weight)

    compiled = bench.compile(
        program,
        Array((2048, 1024), "float32", ("d",)),
        Array((1024, 1024), "float32", ("d",)),
        mesh=f"d={bench.num_devices}",
        out=("d",),
    )
    return (("f32", 16),) if _moved(compiled) == 2 * 1024 * 1024 else ()


def _moved(compiled: Compiled) -> int:
    """Bytes of the only collective."""
    if len(compiled.collectives) != 1:
        raise InconclusiveError(f"there are {len(compiled.collectives)} collectives")
    return compiled.collectives[0].bytes_per_device


_ROWS = (8, 16, 32, 64, 128, 256, 512)


def mxu_min_rows(bench: Bench) -> int:
    """Cycles of bfloat16[r, 1024] @ [1024, 1024] in a loop, r from 8 to 512, where they bend."""
    return _matmul_bend(_matmul_cycles(bench))[0]


def mxu_fill_cycles(bench: Bench) -> int:
    """Cycles of bfloat16[8, 1024] @ [1024, 1024] in a loop, beside its arithmetic and a kernel."""
    taken = _matmul_cycles(bench)
    rows, by_row, with_matmul = _matmul_bend(taken)
    beside = round(taken[8] - rows * (with_matmul - by_row) - 8 * by_row)
    start = kernel_cycles(bench)
    return beside - start if beside >= start else beside  # some matmuls have no start of a kernel


def mxu_window_cycles(bench: Bench) -> float:
    """Of six matmuls bfloat16[r, 2048] @ [2048, 2048] with `tanh` between, r of 1024 and 4096."""
    start, found = kernel_cycles(bench), []
    for rows in (1024, 4096):
        taken = _chained_matmul_cycles(bench, rows)
        arithmetic = _arithmetic_cycles(bench, rows * 2048**2)
        found.append(max(taken - arithmetic - start, 0.0) / arithmetic**0.5)
    return round(sum(found) / len(found), 1)


def _arithmetic_cycles(bench: Bench, multiply_adds: int) -> float:
    """Cycles in which matrix units multiply and add so many pairs of bfloat16."""
    compute = get_hardware(bench.target.hardware).compute
    assert compute.clock_hertz is not None
    return 2 * multiply_adds / compute.matmul.bfloat16 * compute.clock_hertz


_DEEP = (16384, 8192, 8192)
"""Rows, summed length and columns of a matmul both of whose operands are larger than VMEM."""


def hbm_window(bench: Bench) -> int:
    """Window of the result of bfloat16 (v * w) @ (x * y), beyond VMEM: the root of its elements."""
    found = _OUTPUT_WINDOW.search(_products_matmul(bench).attributes)
    if found is None:
        raise InconclusiveError("the matmul names no window of its result")
    sublanes, lanes = num_sublanes(bench), num_lanes(bench)
    return round((int(found[1]) * sublanes * int(found[2]) * lanes) ** 0.5)


def hbm_window_share(bench: Bench) -> float:
    """Bytes that the same matmul moves by windows, over its time and the memory bandwidth."""
    machine = get_hardware(bench.target.hardware)
    clock = machine.compute.clock_hertz
    assert clock is not None
    spent, side = cycles(_products_matmul(bench)), hbm_window(bench)
    if not spent:
        raise InconclusiveError("the matmul has no cycles")
    rows, summed, columns = _DEEP
    read = 2 * 2 * 2 * rows * summed * columns / side  # two operands of two tensors of bfloat16
    moved = read * (1 + side / 2 / summed) + 2 * rows * columns
    return round(moved * clock / spent / machine.memory.bytes_per_second, 3)


def _products_matmul(bench: Bench) -> Instruction:
    """The kernel of bfloat16 (v * w) @ (x * y), of which nothing fits VMEM."""

    def program(_: Pin, first: Any, second: Any, third: Any, fourth: Any) -> Any:
        return (first * second) @ (third * fourth)

    rows, summed, columns = _DEEP
    left, right = Array((rows, summed), "bfloat16"), Array((summed, columns), "bfloat16")
    mesh = f"d={bench.num_devices}"
    compiled = bench.compile(program, left, left, right, right, mesh=mesh, out=())
    made = [one for one in compiled.entry if "convolution" in compiled.opcodes(one)]
    if len(made) != 1 or len(made[0].operands) != 4:
        raise InconclusiveError(f"{len(made)} kernels, or products in kernels of their own")
    return made[0]


def _chained_matmul_cycles(bench: Bench, rows: int) -> int:
    """Cycles of one of six matmuls after another, of which neither end is at an end."""

    def program(_: Pin, value: Any, *weights: Any) -> Any:
        for weight in weights:
            value = jnp.tanh(value @ weight)
        return value

    matrix = Array((2048, 2048), "bfloat16")
    compiled = bench.compile(
        program,
        Array((rows, 2048), "bfloat16"),
        *[matrix] * 6,
        mesh=f"d={bench.num_devices}",
    )
    taken = [cycles(made) for made in compiled.entry if "convolution" in compiled.opcodes(made)]
    middle = taken[len(taken) // 2]
    if len(taken) != 6 or middle is None:
        raise InconclusiveError(f"cycles of six matmuls: {taken}")
    return middle


def _matmul_bend(taken: dict[int, int]) -> tuple[int, float, float]:
    """Rows from which the matrix units take longer by the row, and cycles a row before and after.

    Raises:
        InconclusiveError: Cycles grow alike from the fewest rows on.
    """
    pairs = [
        (rows, (taken[after] - taken[rows]) / (after - rows))
        for rows, after in itertools.pairwise(_ROWS)
    ]
    few, many = pairs[0][1], max(slope for _, slope in pairs)
    if many < 1.25 * few or many <= 0:
        raise InconclusiveError(f"cycles grow alike from 8 rows on: {taken}")
    bend = next(rows for rows, slope in pairs if slope > (few + many) / 2)
    return bend, few, many


def _matmul_cycles(bench: Bench) -> dict[int, int]:
    """Cycles of the matmul in a loop that keeps its operands, by rows."""

    def program(_: Pin, weight: Any, *inputs: Any) -> Any:
        def body(carried: Any, _: Any) -> Any:
            return tuple((value @ weight) for value in carried), None

        return jax.lax.scan(body, tuple(inputs), None, length=32)[0]

    inputs = [Array((rows, 1024), "bfloat16") for rows in _ROWS]
    compiled = bench.compile(
        program,
        Array((1024, 1024), "bfloat16"),
        *inputs,
        mesh=f"d={bench.num_devices}",
        out=[()] * len(_ROWS),
    )
    found: dict[int, int] = {}
    for _, made in compiled.everywhere():
        spent = cycles(made)
        is_matmul = made.opcode == "convolution" or any(
            inner.opcode == "convolution" for inner in compiled.inside(made)
        )
        if spent is not None and is_matmul:
            found.setdefault(_dims(made)[0], spent)
    missing = [rows for rows in _ROWS if rows not in found]
    if missing:
        raise InconclusiveError(f"no cycles are told of matmuls of {missing} rows")
    return found


def min_conv_batch(bench: Bench) -> int:
    """Convolutions of 3 x 3 over 1 to 16 images of 32 x 32 x 128."""
    batches = (1, 2, 4, 7, 8, 9, 16)

    def program(_: Pin, kernel: Any, *images: Any) -> Any:
        def convolved(image: Any) -> Any:
            return jax.lax.conv_general_dilated(
                image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

        return tuple(convolved(jnp.tanh(convolved(image))) for image in images)

    compiled = bench.compile(
        program,
        Array((3, 3, 128, 128), "bfloat16"),
        *[Array((batch, 32, 32, 128), "bfloat16") for batch in batches],
        mesh=f"d={bench.num_devices}",
        out=[()] * len(batches),
    )
    made = {_images(i) for _, i in compiled.everywhere() if i.opcode == "convolution"}
    whole = [batch for batch in batches if batch in made]
    cut = [batch for batch in batches if batch not in made]
    if not cut:
        return 1
    if not whole or max(cut) > min(whole):
        raise InconclusiveError(f"images stay whole in batches of {whole}, and do not of {cut}")
    return min(whole)


def turn_cycles(bench: Bench) -> float:
    """A copy of bfloat16[16, 512, 1024] that exchanges its last two dimensions."""
    compiled = bench.compile(
        lambda _, x: jax.lax.optimization_barrier(jnp.swapaxes(x, 1, 2)),
        Array((16, 512, 1024), "bfloat16"),
        mesh=f"d={bench.num_devices}",
    )
    (spent,) = filter(None, map(cycles, compiled.entry))
    return round(spent / (16 * 512), 1)


def row_slice_cycles(bench: Bench) -> tuple[float, float]:
    """Slices of float32 and bfloat16[128, 64, 512 and 2048] that a matmul makes, read by a scan."""
    few, many = 512, 2048
    found = []
    for dtype in ("float32", "bfloat16"):
        taken = {width: _slice_cycles(bench, width, dtype) for width in (few, many)}
        found.append(round(128 * (taken[many] - taken[few]) / (64 * (many - few)), 1))
    return found[0], found[1]


def _slice_cycles(bench: Bench, width: int, dtype: str) -> int:
    def summed(_: Any, x: Any, weight: Any) -> Any:
        def run(state: Any, piece: Any) -> tuple[Any, None]:
            return jnp.tanh(state + piece), None

        return jax.lax.scan(run, jnp.zeros((64, width), dtype), x @ weight)[0]

    compiled = bench.compile(
        summed,
        Array((128, 64, 512), dtype),
        Array((512, width), dtype),
        mesh=f"d={bench.num_devices}",
    )
    slices = (one for _, one in compiled.everywhere() if "dynamic-slice" in compiled.opcodes(one))
    (spent,) = (c for one in slices if f"[1,64,{width}]" in one.type_text and (c := cycles(one)))
    return spent


def ragged_tile_rows(bench: Bench) -> int:
    """A ragged matmul of bfloat16[8192, 512] by 8 groups."""
    compiled = bench.compile(
        lambda _, rows, matrices, sizes: jax.lax.ragged_dot(rows, matrices, sizes),
        Array((8192, 512), "bfloat16"),
        Array((8, 512, 512), "bfloat16"),
        Array((8,), "int32"),
        mesh=f"d={bench.num_devices}",
    )
    tilings = (_RAGGED_TILING.search(one.attributes) for _, one in compiled.everywhere())
    return max((int(found[1]) for found in tilings if found), default=0)


def depthwise_macs(bench: Bench) -> tuple[float, float]:
    """Depthwise convolutions of 7 and 31 taps over bfloat16[16, 512, 512], and their gradients."""
    few, many = 7, 31
    taken = {taps: _depthwise_cycles(bench, taps) for taps in (few, many)}
    more = 16 * 512 * 512 * (many - few)
    forward, gradient = (
        round(more / (after - before))
        for before, after in zip(taken[few], taken[many], strict=True)
    )
    return float(forward), float(gradient)


def _depthwise_cycles(bench: Bench, taps: int) -> tuple[int, int]:
    """Cycles of a depthwise convolution, and of the gradient of its kernel."""

    def convolved(image: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(
            image,
            kernel,
            (1,),
            "SAME",
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=image.shape[-1],
        )

    def gradient(image: Any, kernel: Any, cotangent: Any) -> Any:
        return jax.vjp(lambda kernel: convolved(image, kernel), kernel)[1](cotangent)[0]

    image, kernel = Array((16, 512, 512), "bfloat16"), Array((taps, 1, 512), "bfloat16")
    forward = _conv_cycles(bench, convolved, image, kernel)
    return forward, _conv_cycles(bench, gradient, image, kernel, image)


def _conv_cycles(bench: Bench, program: Any, *arguments: Array) -> int:
    """Cycles of the only kernel with a convolution."""
    compiled = bench.compile(
        lambda _, *given: program(*given), *arguments, mesh=f"d={bench.num_devices}"
    )
    kernels = [i for i in compiled.entry if "convolution" in compiled.opcodes(i)]
    found = [cycles(made) for made in kernels]
    if len(found) != 1 or found[0] is None:
        raise InconclusiveError(f"{len(found)} kernels convolve {arguments[0].shape}")
    return found[0]


def dilated_rows(bench: Bench) -> int:
    """The image's gradient of bfloat16[8, 57, 57, 256] under 3 x 3 taps and strides of 2."""
    images, features, made, taps = 8, 256, 28, 3

    def gradient(image: Any, kernel: Any, cotangent: Any) -> Any:
        def convolved(image: Any) -> Any:
            return jax.lax.conv_general_dilated(
                image, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

        return jax.vjp(convolved, image)[1](cotangent)[0]

    shapes = (
        (images, 57, 57, features),
        (taps, taps, features, features),
        (images, made, made, features),
    )
    spent = _conv_cycles(bench, gradient, *(Array(one, "bfloat16") for one in shapes))
    arithmetic = _arithmetic_cycles(bench, images * (made * taps * features) ** 2)
    return round(images * spent / arithmetic)


def _images(convolution: Instruction) -> int:
    """Batch of the result, by its dimension labels."""
    labels = _OUTPUT_DIMS.search(convolution.attributes)
    sizes = _dims(convolution)
    return sizes[labels[1].index("b")] if labels and "b" in labels[1] else 0


_WRITTEN_KIB = (256, 512, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 6144, 16384)


def fast_convert_bytes(bench: Bench) -> int:
    """Cycles of conversions from float32 to bfloat16 that write 0.25 to 16 MiB."""
    taken = _convert_cycles(bench)
    start = kernel_cycles(bench)
    per_kib = {kib: (spent - start) / kib for kib, spent in taken.items()}
    slow = per_kib[_WRITTEN_KIB[-1]]
    fast = [kib for kib in _WRITTEN_KIB if per_kib[kib] < 0.8 * slow]
    if fast != list(_WRITTEN_KIB[: len(fast)]):
        told = ", ".join(f"{kib}: {spent:.2f}" for kib, spent in per_kib.items())
        raise InconclusiveError(f"cycles for a KiB written, by KiB: {told}")
    return 3 * 1024 * max(fast, default=0)


def kernel_cycles(bench: Bench) -> int:
    """Cycles that a conversion takes beside those that grow with its size."""
    taken = _convert_cycles(bench)
    return 2 * taken[256] - taken[512]


def _convert_cycles(bench: Bench) -> dict[int, int]:
    """Cycles by KiB written."""

    def program(_: Pin, *values: Any) -> Any:
        return tuple(value.astype(jnp.bfloat16) for value in values)

    compiled = bench.compile(
        program,
        *[Array((kib, 512), "float32") for kib in _WRITTEN_KIB],
        mesh=f"d={bench.num_devices}",
        out=[()] * len(_WRITTEN_KIB),
    )
    taken: dict[int, int] = {}
    for made in compiled.entry:
        kib, spent = made.num_bytes // 1024, cycles(made)
        if spent is not None and kib in _WRITTEN_KIB and made.type_text.startswith("bf16"):
            taken[kib] = spent
    if taken.keys() != set(_WRITTEN_KIB):
        raise InconclusiveError(f"cycles are told of conversions of {sorted(taken)} KiB only")
    return taken


def _dims(made: Instruction) -> list[int]:
    found = _SHAPE.search(made.type_text)
    return [int(size) for size in found[1].split(",") if size] if found else []


def _layout(measure: Any, unit: str, platforms: frozenset[str] = TPU) -> Probe:
    return Probe(
        record=f"layout.{measure.__name__}", unit=unit, measure=measure, platforms=platforms
    )


PROBES = (
    _layout(num_lanes, "elements"),
    _layout(num_sublanes, "rows"),
    _layout(word_bits, "bits"),
    _layout(max_vector_tile, "elements"),
    _layout(widened_bits, "(element type, bits)", BOTH),
    _layout(multiplied_bits, "(element type, bits)", BOTH),
    _layout(mxu_min_rows, "rows"),
    _layout(mxu_fill_cycles, "cycles"),
    _layout(mxu_window_cycles, "cycles over the root of cycles"),
    _layout(hbm_window, "rows"),
    _layout(hbm_window_share, "share"),
    _layout(turn_cycles, "cycles"),
    _layout(row_slice_cycles, "cycles: (words, narrower elements)"),
    _layout(ragged_tile_rows, "rows"),
    _layout(depthwise_macs, "multiply-adds a cycle: (convolution, gradient of its kernel)"),
    _layout(dilated_rows, "images"),
    _layout(min_conv_batch, "images"),
    _layout(fast_convert_bytes, "bytes"),
)
