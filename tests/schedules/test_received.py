"""Bytes received, read from the text of a compiled program."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from autoshard.apply.scheduled.received import received_bytes, total_received_bytes
from autoshard.errors import InputError
from tests.schedules.algorithms import mesh_of

P = PartitionSpec


def text_of(function: Callable[[jax.Array], Any], out: PartitionSpec) -> str:
    """The HLO of a function of one device's 4 of 16 floats, on a ring of four."""
    mapped = jax.shard_map(
        function, mesh=mesh_of((4,)), in_specs=P("x"), out_specs=out, check_vma=False
    )
    return jax.jit(mapped).lower(jnp.zeros(16, "float32")).compile().as_text() or ""


def again(x: jax.Array) -> jax.Array:
    ring = [(p, (p + 1) % 4) for p in range(4)]
    moved: jax.Array = lax.fori_loop(0, 5, lambda _, x: lax.ppermute(x, "x", ring) * 2, x)
    return moved


@pytest.mark.parametrize(
    ("function", "out", "kind", "num_bytes", "count"),
    [
        (lambda x: lax.all_gather(x, "x"), P(), "all-gather", 48, 1),
        (lambda x: lax.psum(x, "x"), P(), "all-reduce", 24, 1),
        (lambda x: lax.psum_scatter(x, "x", tiled=True), P("x"), "reduce-scatter", 12, 1),
        (
            lambda x: lax.ppermute(x, "x", [(0, 1), (2, 2)]),
            P("x"),
            "collective-permute",
            4,
            1,
        ),
        (again, P("x"), "collective-permute", 16, 5),
    ],
    ids=["all-gather", "all-reduce", "reduce-scatter", "one of four", "in a loop"],
)
def test_a_device_receives_what_it_does_not_have(
    function: Callable[[jax.Array], Any],
    out: PartitionSpec,
    kind: str,
    num_bytes: int,
    count: int,
) -> None:
    text = text_of(function, out)
    (found,) = received_bytes(text)
    assert (found.kind, found.num_bytes, found.count) == (kind, Fraction(num_bytes), count)
    assert total_received_bytes(text) == num_bytes * count


def test_a_loop_that_does_not_say_how_often_it_runs_is_refused() -> None:
    def until_large(x: jax.Array) -> jax.Array:
        ring = [(p, (p + 1) % 4) for p in range(4)]
        moved: jax.Array = lax.while_loop(
            lambda x: x[0] < 9, lambda x: lax.ppermute(x, "x", ring) + 1, x
        )
        return moved

    with pytest.raises(InputError, match="does not say how often it runs"):
        received_bytes(text_of(until_large, P("x")))
