"""What TPU kernels take for the elements they read, write, narrow and reduce.

    python -m experiments.probes.elements v5e:1x1 [v5p:1x1x1 ...]

Prints cycles for 1,024 elements by kind, as the compiler estimates them, and what
`cost_models.ElementPasses` and the share of the memory bandwidth are by them. These are figures of
a machine, which `cost_models.tpus` has, not of a compiler model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from typing import Any

import jax.numpy as jnp
from jax.lax import optimization_barrier

from autoshard.aot.targets import parse_target
from autoshard.backends import backend_for
from cost_models import get_hardware
from experiments.probes.bench import Array, Bench, cycles

_LARGE, _SMALL = (16_384, 4_096), (2_048, 2_048)  # in HBM; in VMEM between two kernels
_TABLE_ROWS, _HELD_ROWS = 2_000_000, 25_000  # in HBM; in VMEM
_STACK = (8, 512, 1_024)  # a TPU7x leaves larger copies to its SparseCores
_TALL = (262_144, 256)  # in HBM; a matmul's arithmetic takes less than memory
_WIDTH = 64  # half of the lanes
_HEADS = (16, 512, 64)  # batch, rows of either operand, summed: a small part of what is written
_KI = 1024


def element_cycles(bench: Bench) -> dict[str, float]:
    """Cycles for 1,024 elements: moved in float32 by a kernel of five, and what comes to these."""
    wide = Array(_LARGE)
    two, four = (
        _taken(bench, lambda a, b: a * b + 1, wide, wide),
        _taken(bench, lambda a, b, c, d: a * b + c * d, wide, wide, wide, wide),
    )
    moved = four / 5
    narrowed = _taken(bench, lambda a: (2 * a).astype(jnp.bfloat16), wide) - 1.5 * moved
    reduced = _taken(bench, lambda a: (a * a).sum(1), wide) - moved
    plain = _taken(bench, lambda a: a.sum(1), wide) - moved
    kept = _between(bench, 2)
    read_kept = _between(bench, 3) - kept
    return {
        "moved": moved,
        "written to HBM beside": two - 3 * moved,
        "read from VMEM": read_kept,
        "written to VMEM": kept - 2 * read_kept,
        "narrowed": narrowed,
        "reduced": reduced,
        "reduced as it lies": plain,
    }


def streamed_shares(bench: Bench) -> dict[str, float]:
    """Shares of the memory bandwidth of copies, conversions and fills.

    Of copies: the mean of two that exchange the last dimensions, of 2 and of 4 bytes an element.
    """
    count, whole = prod(_STACK), prod(_LARGE)
    turned = [
        _share(bench, 2 * count * size, lambda a: a.transpose(0, 2, 1), Array(_STACK, dtype))
        for size, dtype in ((2, "bfloat16"), (4, "float32"))
    ]
    wide, scalar = Array(_LARGE), Array(())
    return {
        "copies": sum(turned) / 2,
        "conversions": _share(bench, 6 * whole, lambda a: a.astype(jnp.bfloat16), wide),
        "fills": _share(bench, 4 * whole, lambda a: jnp.broadcast_to(a, _LARGE), scalar),
    }


def row_copy_share(bench: Bench, rows: int) -> float:
    """Share of the memory bandwidth at which a table's rows are copied into lanes of their own."""

    def looked_up(_: Any, table: Any, indices: Any) -> Any:
        return table[indices]

    compiled = bench.compile(
        looked_up, Array((rows, _WIDTH)), Array((4096,), "int32"), mesh=f"d={bench.num_devices}"
    )
    spent = max(cycles(one) or 0 for one in compiled.entry if one.opcode == "copy")
    lanes = backend_for(get_hardware(bench.target.hardware)).layout.num_lanes
    return min(1.0, _of_bandwidth(bench, 4 * rows * (_WIDTH + lanes), spent))


def product_share(bench: Bench) -> float:
    """Share of the memory bandwidth of a matmul that memory bounds, all its tensors in HBM."""
    tall, square = Array(_TALL), Array((_TALL[1], _TALL[1]))
    spent = _kernel_cycles(bench, lambda v, w: v @ w, tall, square) - _start_cycles(bench)
    return _of_bandwidth(bench, 2 * 4 * prod(_TALL), spent)


def narrowed_by_products(bench: Bench, share: float) -> float:
    """Cycles for 1,024 elements that a matmul writes to HBM in bfloat16, beside their bytes.

    Args:
        bench: That compiles.
        share: As of `product_share`.
    """
    tall, square = (Array(one, "bfloat16") for one in (_TALL, (_TALL[1], _TALL[1])))

    def spent(dtype: str) -> float:
        return _kernel_cycles(
            bench, lambda v, w: jnp.dot(v, w, preferred_element_type=dtype), tall, square
        )

    machine = get_hardware(bench.target.hardware)
    speed = share * machine.memory.bytes_per_second
    fewer = 2 * prod(_TALL) / speed * (machine.compute.clock_hertz or 0)
    return (spent("bfloat16") - spent("float32") + fewer) * _KI / prod(_TALL)


def kept_by_products(bench: Bench, kept: float) -> float:
    """Cycles for 1,024 elements that a matmul writes to VMEM in bfloat16, beside their bytes.

    Args:
        bench: That compiles.
        kept: Cycles for 1,024 elements in float32.
    """

    def scores(dtype: str) -> float:
        def with_maxima(_: Any, x: Any, y: Any) -> Any:
            made = jnp.einsum("bqe,bke->bqk", x, y, preferred_element_type=dtype)
            return made, made.max(-1)

        operand = Array(_HEADS, "bfloat16")
        mesh = f"d={bench.num_devices}"
        compiled = bench.compile(with_maxima, operand, operand, mesh=mesh, out=[(), ()])
        return float(next(filter(None, map(cycles, compiled.entry))))

    num_elements = _HEADS[0] * _HEADS[1] ** 2
    return (scores("bfloat16") - scores("float32")) * _KI / num_elements + kept / 2


def _taken(bench: Bench, function: Callable[..., Any], *arguments: Array) -> float:
    """Cycles for 1,024 elements of the one kernel that computes a function."""
    return _kernel_cycles(bench, function, *arguments) * _KI / prod(_LARGE)


def _share(bench: Bench, num_bytes: int, function: Callable[..., Any], argument: Array) -> float:
    """Share of the memory bandwidth of the one kernel that moves so many bytes."""
    return _of_bandwidth(bench, num_bytes, _kernel_cycles(bench, function, argument))


def _of_bandwidth(bench: Bench, num_bytes: int, spent: float) -> float:
    """Share of the memory bandwidth at which so many bytes move in so many cycles."""
    machine = get_hardware(bench.target.hardware)
    seconds = spent / (machine.compute.clock_hertz or 1)
    return num_bytes / seconds / machine.memory.bytes_per_second


def _start_cycles(bench: Bench) -> float:
    compute = get_hardware(bench.target.hardware).compute
    return compute.kernel_launch_seconds * (compute.clock_hertz or 0)


def _kernel_cycles(bench: Bench, function: Callable[..., Any], *arguments: Array) -> float:
    mesh = f"d={bench.num_devices}"
    compiled = bench.compile(lambda _, *values: function(*values), *arguments, mesh=mesh)
    (spent,) = filter(None, map(cycles, compiled.entry))
    return spent


def _between(bench: Bench, num_operands: int) -> float:
    """Cycles of a kernel that reads and writes VMEM: the second of three, its start left out."""

    def chained(_: Any, first: Any, *others: Any) -> Any:
        for turn in (2, 3, 5):  # factors that no two kernels share
            taken = sum(turn * place * other for place, other in enumerate(others, 7))
            first = optimization_barrier(turn * first + taken)
        return first

    arguments = [Array(_SMALL)] * num_operands
    compiled = bench.compile(chained, *arguments, mesh=f"d={bench.num_devices}")
    _, second, _ = filter(None, map(cycles, compiled.entry))
    return (second - _start_cycles(bench)) * _KI / (_SMALL[0] * _SMALL[1])


def main() -> None:
    """Print what is found for every target named."""
    for target in sys.argv[1:]:
        bench = Bench(target=parse_target(target))
        machine = get_hardware(bench.target.hardware)
        clock = machine.compute.clock_hertz
        assert clock is not None
        found = element_cycles(bench)
        print(target, ", ".join(f"{name} {spent:.2f}" for name, spent in found.items()))
        share = 4 * _KI * clock / found["moved"] / machine.memory.bytes_per_second
        narrowed = (found["narrowed"] + found["reduced"]) / 2
        rates = {
            "written": found["written to HBM beside"],
            "kept": found["written to VMEM"],
            "narrowed": narrowed,
            "plain_reduced": found["reduced as it lies"],
        }
        products = product_share(bench)
        rates["product_narrowed"] = narrowed_by_products(bench, products)
        rates["product_kept"] = kept_by_products(bench, found["written to VMEM"])
        told = ", ".join(f"{name} {_KI * clock / spent:.3g}/s" for name, spent in rates.items())
        told += f", read_bytes {4 * _KI * clock / found['read from VMEM']:.3g}/s"
        streamed = streamed_shares(bench).items()
        told += "; " + ", ".join(f"{name} {one:.3f}" for name, one in streamed)
        shares = [f"{row_copy_share(bench, rows):.2f}" for rows in (_TABLE_ROWS, _HELD_ROWS)]
        told += f"; copies of rows {shares[0]} of the bandwidth, held {shares[1]}"
        print(f"  elementwise {share:.3f} of the bandwidth, products {products:.3f}; {told}")


if __name__ == "__main__":
    main()
