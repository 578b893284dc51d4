"""Where the softmax of a matmul's result is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from experiments.probes.bench import Array, Bench, Compiled, computes, cycles
from experiments.probes.probe import TPU, Probe

_HEADS, _HEAD, _WIDTH = 8, 128, 1024
_ROWS = (512, 1024, 2048, 4096)
_NUM_SCORES = 1 << 24  # of a head: more than fit on the chip with those of other heads
_MATMULS = frozenset({"convolution", "dot"})
_GRADIENT_ROW, _SLOWER = 1024, 1.1
_OF_ALL = "elements: (alone, masked by constants, by what is read), then of float32"


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention that a probe compiles.

    Args:
        mask: `computed` of constants, `read`, or none.
        scores: Type in which they are made.
        num_kept: Heads of keys and values.
        is_split: Columns of matmuls are split into heads; else matmuls make these, before rows.
        with_gradients: Its gradients are compiled, of a sum of squares.
    """

    mask: str = ""
    scores: str = "bfloat16"
    num_kept: int = _HEADS
    is_split: bool = True
    with_gradients: bool = False


_ALONE, _MASKED = Attention(), Attention(mask="computed")


def softmax_rows(bench: Bench) -> tuple[int, ...]:
    """Gradients of attention of 512 to 4,096 scores a row: no mask, a computed one, one read."""
    kinds = product(("bfloat16", "float32"), (_ALONE, _MASKED, replace(_MASKED, mask="read")))
    every = (replace(one, scores=scores, with_gradients=True) for scores, one in kinds)
    return tuple(_longest(bench, one, _is_with_matmuls) for one in every)


def narrow_score_rows(bench: Bench) -> tuple[int, ...]:
    """Attention of keys that heads share, of 512 to 4,096 scores a row: alone, and masked."""
    shared = (replace(one, num_kept=2) for one in (_ALONE, _MASKED))
    return tuple(_longest(bench, one, _writes_narrow) for one in shared)


def softmax_of_turned(bench: Bench) -> bool:
    """Gradients of masked attention of 1,024 float32 scores a row, heads behind and before rows."""
    wide = replace(_MASKED, scores="float32", with_gradients=True)
    behind, before = (
        sum(cycles(made) or 0 for made in _compiled(bench, one, _GRADIENT_ROW).entry)
        for one in (wide, replace(wide, is_split=False))
    )
    return before < _SLOWER * behind


def _longest(bench: Bench, kind: Attention, holds: Callable[[Compiled, int], bool]) -> int:
    """Scores of the longest rows of which something holds, and of all shorter ones."""
    longest = 0
    for row in _ROWS:
        if not holds(_compiled(bench, kind, row), row):
            break
        longest = row
    return longest


def _compiled(bench: Bench, kind: Attention, row: int) -> Compiled:
    query, key = ("bqhe", "bkhe") if kind.is_split else ("bhqe", "bhke")

    def made(x: Any, weight: Any) -> Any:
        if not kind.is_split:
            return jnp.einsum("btd,dhe->bhte", x, weight)
        return (x @ weight.reshape(_WIDTH, -1)).reshape(*x.shape[:2], *weight.shape[1:])

    def attention(x: Any, mask: Any, *weights: Any) -> Any:
        q, k, v = (made(x, weight) for weight in weights)
        if kind.num_kept < _HEADS:
            k, v = (jnp.repeat(one, _HEADS // kind.num_kept, 2) for one in (k, v))
        scores = jnp.einsum(f"{query},{key}->bhqk", q, k, preferred_element_type=kind.scores)
        scores = scores.astype(jnp.float32) * _HEAD**-0.5
        if kind.mask == "computed":
            mask = jnp.tril(jnp.ones((row, row), bool))
        if kind.mask:
            scores = jnp.where(mask, scores, -1e9)
        softmax = jax.nn.softmax(scores).astype(x.dtype)
        return jnp.einsum(f"bhqk,{key}->bqhe", softmax, v)

    def program(_: Any, x: Any, mask: Any, *weights: Any) -> Any:
        if not kind.with_gradients:
            return attention(x, mask, *weights)

        def loss(x: Any, *weights: Any) -> Any:
            return jnp.square(attention(x, mask, *weights).astype(jnp.float32)).sum()

        return jax.grad(loss, range(4))(x, *weights)

    kept = Array((_WIDTH, kind.num_kept, _HEAD), "bfloat16")
    arrays = (
        Array((max(1, _NUM_SCORES // row**2), row, _WIDTH), "bfloat16"),
        Array((row, row), "bool"),
        Array((_WIDTH, _HEADS, _HEAD), "bfloat16"),
        kept,
        kept,
    )
    return bench.compile(program, *arrays, mesh=f"d={bench.num_devices}")


def _is_with_matmuls(compiled: Compiled, _: int) -> bool:
    """True where matmuls compute all exponentials."""
    opcodes = [compiled.opcodes(made) for made in compiled.entry]
    return all(one & _MATMULS for one in opcodes if "exponential" in one)


def _writes_narrow(compiled: Compiled, row: int) -> bool:
    """True where matmuls write scores in bfloat16, or compute what follows."""
    return _written(compiled, row) in {None, "bf16"}


def _written(compiled: Compiled, row: int) -> str | None:
    """The type in which a matmul writes scores; None where it computes what follows."""
    for made in compiled.entry:
        opcodes = compiled.opcodes(made)
        is_matmul = bool(opcodes & _MATMULS) and "exponential" not in opcodes
        if is_matmul and f"{row},{row}]" in made.type_text and computes(made):
            return made.type_text.lstrip("(").partition("[")[0]
    return None


PROBES = (
    Probe(
        record="fusion.softmax_rows",
        unit=_OF_ALL,
        measure=softmax_rows,
        platforms=TPU,
    ),
    Probe(
        record="fusion.softmax_of_turned",
        unit="boolean",
        measure=softmax_of_turned,
        platforms=TPU,
    ),
    Probe(
        record="fusion.narrow_score_rows",
        unit="elements: (alone, masked)",
        measure=narrow_score_rows,
        platforms=TPU,
    ),
)
