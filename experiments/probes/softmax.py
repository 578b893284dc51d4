"""Where the softmax of a matmul's result is computed."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import jax
import jax.numpy as jnp

from experiments.probes.bench import Array, Bench, Compiled, computes
from experiments.probes.probe import TPU, Probe

_HEADS, _HEAD, _WIDTH = 8, 128, 1024
_ROWS = (512, 1024, 2048, 4096)
_NUM_SCORES = 1 << 24  # of a head: more than fit on the chip with those of other heads


def softmax_rows(bench: Bench) -> tuple[int, int]:
    """Attention of heads that matmuls make, of 512 to 4,096 scores a row: alone, and masked."""
    return _longest(bench, "made", {None}), _longest(bench, "masked made", {None})


def narrow_score_rows(bench: Bench) -> tuple[int, int]:
    """Attention of keys that heads share, of 512 to 4,096 scores a row: alone, and masked."""
    narrow = {None, "bf16"}
    return _longest(bench, "shared", narrow), _longest(bench, "masked shared", narrow)


def _longest(bench: Bench, kind: str, written: Set[str | None]) -> int:
    """Scores of the longest rows that matmuls write in such a type, or not at all."""
    longest = 0
    for row in _ROWS:
        if _written(_attention(bench, kind, row), row) not in written:
            break
        longest = row
    return longest


def _attention(bench: Bench, kind: str, row: int) -> Compiled:
    is_masked, num_kept = "masked" in kind, 2 if "shared" in kind else _HEADS

    def program(_: Any, x: Any, query: Any, key: Any, value: Any) -> Any:
        q, k, v = (jnp.einsum("btd,dhe->bthe", x, weight) for weight in (query, key, value))
        k, v = (jnp.repeat(one, _HEADS // num_kept, 2) for one in (k, v))
        scores = jnp.einsum("bqhe,bkhe->bhqk", q, k).astype(jnp.float32) * _HEAD**-0.5
        if is_masked:
            scores = jnp.where(jnp.tril(jnp.ones((row, row), bool)), scores, -1e9)
        weights = jax.nn.softmax(scores).astype(x.dtype)
        return jnp.einsum("bhqk,bkhe->bqhe", weights, v)

    kept = Array((_WIDTH, num_kept, _HEAD), "bfloat16")
    x = Array((max(1, _NUM_SCORES // row**2), row, _WIDTH), "bfloat16")
    query = Array((_WIDTH, _HEADS, _HEAD), "bfloat16")
    return bench.compile(program, x, query, kept, kept, mesh=f"d={bench.num_devices}")


def _written(compiled: Compiled, row: int) -> str | None:
    """The type in which a matmul writes scores; None where it computes what follows."""
    for made in compiled.entry:
        opcodes = compiled.opcodes(made)
        is_matmul = bool(opcodes & {"convolution", "dot"}) and "exponential" not in opcodes
        if is_matmul and f"{row},{row}]" in made.type_text and computes(made):
            return made.type_text.lstrip("(").partition("[")[0]
    return None


PROBES = (
    Probe(
        record="fusion.softmax_rows",
        unit="elements: (alone, masked)",
        measure=softmax_rows,
        platforms=TPU,
    ),
    Probe(
        record="fusion.narrow_score_rows",
        unit="elements: (alone, masked)",
        measure=narrow_score_rows,
        platforms=TPU,
    ),
)
