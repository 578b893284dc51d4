"""Element-wise operands of several matmuls: which each of them computes, and which are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.probes.bench import Array, Bench, Pin, computes
from experiments.probes.probe import TPU, InconclusiveError, Probe
from experiments.probes.search import largest

_BATCH, _SIDE = 16, 2048
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "divide": lambda made, other: other / made,
    "erf": lambda made, _: jax.lax.erf(made),
    "log": lambda made, _: jnp.log(made),
    "logistic": lambda made, _: jax.lax.logistic(made),
    "power": jnp.power,
    "rsqrt": lambda made, _: jax.lax.rsqrt(made),
    "sine": lambda made, _: jnp.sin(made),
    "sqrt": lambda made, _: jnp.sqrt(made),
    "tanh": lambda made, _: jnp.tanh(made),
}
_MOST = 63


def recomputed_ops(bench: Bench) -> int:
    """Sums and products of two bfloat16[16, 2048, 2048] that two matmuls to 128 columns read."""
    return _longest(bench, 128, lambda made, _: made, num_sources=2)


def op_costs(bench: Bench) -> tuple[tuple[str, float], ...]:
    """The same with one op of another kind, for matmuls to 1,024 columns, in sums and products."""
    alone = _longest(bench, 1024, lambda made, _: made)
    found = {
        name: alone - _longest(bench, 1024, operation) for name, operation in _OPERATIONS.items()
    }
    return tuple((name, float(cost)) for name, cost in found.items() if cost > 1)


def _longest(
    bench: Bench, columns: int, operation: Callable[[Any, Any], Any], num_sources: int = 1
) -> int:
    """The most sums and products beside an operation that both matmuls compute."""
    found = largest(0, _MOST, partial(_computed, bench, columns, operation, num_sources))
    if found is None:
        raise InconclusiveError("an operation by itself is stored")
    if found == _MOST:
        raise InconclusiveError(f"{_MOST} sums and products are computed by both")
    return found


def _computed(
    bench: Bench,
    columns: int,
    operation: Callable[[Any, Any], Any],
    num_sources: int,
    lengths: Sequence[int],
) -> Sequence[int]:
    """Those of several rising lengths that both matmuls compute; longer ones are stored."""

    def program(_: Pin, rows: Any, left: Any, right: Any, *sources: Any) -> Any:
        results = []
        for place, length in enumerate(lengths):
            given = sources[num_sources * place : num_sources * (place + 1)]
            own = [source.astype(jnp.float32) for source in given]
            made, other = own[0], own[-1] if num_sources > 1 else rows
            for step in range(length):
                made = made * other if step % 2 else made + rows
            made = operation(made, other).astype(jnp.bfloat16)
            results.append(jnp.einsum("bmk,bkn->bmn", made, right))
            results.append(jnp.einsum("bmk,bmn->bkn", made, left))
        return results

    shape = (_BATCH, _SIDE, _SIDE)
    half = Array((_BATCH, _SIDE, columns), "bfloat16")
    sources = [Array(shape, "bfloat16")] * (num_sources * len(lengths))
    rows = Array((_BATCH, _SIDE, 1))
    mesh = f"d={bench.num_devices}"
    compiled = bench.compile(program, rows, half, half, *sources, mesh=mesh)
    text = f"bf16[{','.join(map(str, shape))}]"
    written = [
        made
        for made in compiled.entry
        if made.type_text.startswith(text)
        and (computes(made) or made.opcode == "get-tuple-element")
    ]
    return lengths[: len(lengths) - len(written)]


PROBES = (
    Probe(record="fusion.recomputed_ops", unit="operations", measure=recomputed_ops, platforms=TPU),
    Probe(record="fusion.op_costs", unit="(op, operations)", measure=op_costs, platforms=TPU),
)
