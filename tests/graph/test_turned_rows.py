"""Copies to the dimension order of attention, as libtpu 0.0.52 makes them for a v5p."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.backends import backend_for
from autoshard.costing.turned_copies import TurnedCopies
from autoshard.graph import turned_rows as turned_rows_module
from autoshard.graph.buffers import find_buffers
from autoshard.graph.op_traits import is_elementwise
from autoshard.graph.program import Op
from autoshard.graph.turned_rows import turned_rows
from cost_models import get_hardware
from tests.planner.graphs import plan
from tests.planner.traced import exported

BATCH, TIME, HEADS, HEAD = 4, 128, 8, 64
WIDTH = HEADS * HEAD

Split = Callable[[Any, Any], Any]


def heads(rows: Any) -> Any:
    return rows.reshape(BATCH, TIME, HEADS, HEAD)


def rotated(rows: Any) -> Any:
    first, second = jnp.split(heads(rows), 2, axis=-1)
    return jnp.concatenate([first - second, first + second], axis=-1)


def constrained(value: Any) -> Any:
    mesh = jax.sharding.AbstractMesh((1,), ("x",))
    return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, P("x")))


def attention(split: Split) -> Callable[..., Any]:
    def program(x: Any, queries: Any, keys: Any, values: Any, bias: Any) -> Any:
        q, k, v = (split(x @ weight, bias) for weight in (queries, keys, values))
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-1)
        made = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return jnp.einsum("bqhd,hde->bqe", made, queries.reshape(HEADS, HEAD, WIDTH))

    return program


def arguments() -> list[jax.ShapeDtypeStruct]:
    shapes = [(BATCH, TIME, WIDTH), *[(WIDTH, WIDTH)] * 3, (WIDTH,)]
    return [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]


def num_copies(program: Callable[..., Any]) -> int:
    graph, _ = exported(program, *arguments(), mesh="x=1")
    buffers = find_buffers(graph, backend_for(get_hardware("tpu-v5p")))
    assert all(buffers.is_stored[value] for value in buffers.turned_rows.values())
    return len(buffers.turned_rows)


@pytest.mark.parametrize(
    ("split", "copies"),
    [
        (lambda rows, _: heads(rows), 0),
        (lambda rows, bias: heads(rows + bias), 3),
        (lambda rows, _: heads(rows * 0.125), 3),
        (lambda rows, _: heads(jax.nn.gelu(rows)), 3),
        (lambda rows, bias: constrained(heads(rows + bias)), 3),
        (lambda rows, bias: heads(constrained(constrained(rows) + bias)), 3),
        (lambda rows, _: heads(constrained(rows)), 0),
        (lambda rows, bias: heads(rows) + bias.reshape(HEADS, HEAD), 0),
        (lambda rows, _: rotated(rows), 0),
    ],
)
def test_rows_that_element_wise_ops_make_are_copied_for_heads(split: Split, copies: int) -> None:
    assert num_copies(attention(split)) == copies


@pytest.mark.parametrize("constrain", [lambda value: value, constrained])
def test_gradients_of_heads_are_copied_for_element_wise_ops(
    constrain: Callable[[Any], Any],
) -> None:
    program = attention(lambda rows, _: constrain(heads(constrain(jax.nn.gelu(rows)))))

    def gradients(*values: Any) -> Any:
        return jax.grad(lambda *v: jnp.sum(program(*v) ** 2), argnums=(1, 2, 3))(*values)

    assert num_copies(gradients) == 6


def test_heads_that_are_pieces_of_no_row_are_not_copied() -> None:
    def program(x: Any, y: Any) -> Any:
        return jnp.einsum("bqd,bkd->bqk", jnp.sin(x).reshape(8, 64, 64), y.reshape(8, 64, 64))

    x = jax.ShapeDtypeStruct((8, 4096), jnp.bfloat16)
    graph, _ = exported(program, x, x, mesh="x=1")
    assert not turned_rows(graph)


def test_the_time_to_find_copies_grows_as_the_program_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Any, weight: Any) -> Any:
        for _ in range(40):
            rows = heads(x * 0.5)
            scores = jnp.einsum("bqhd,bkhd->bhqk", rows, rows)
            x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, rows).reshape(x.shape) @ weight
        return x

    shapes = ((BATCH, TIME, WIDTH), (WIDTH, WIDTH))
    graph, _ = exported(program, *(jax.ShapeDtypeStruct(s, "bfloat16") for s in shapes), mesh="x=1")
    asked: list[Op] = []

    def counted(op: Op) -> bool:
        asked.append(op)
        return is_elementwise(op)

    monkeypatch.setattr(turned_rows_module, "is_elementwise", counted)
    assert len(turned_rows(graph)) == 39  # the first rows are made of an argument
    assert len(asked) <= 4 * len(graph.ops)


@pytest.mark.parametrize(("hardware", "takes_time"), [("tpu-v5p", True), ("h100", False)])
def test_copies_take_time_where_nothing_of_a_matmul_stays_in_vmem(
    hardware: str, *, takes_time: bool
) -> None:
    def seconds(split: Split) -> float:
        graph, wishes = exported(attention(split), *arguments(), mesh="x=1")
        return plan(graph, "x=1", wishes, None, hardware).account.compute_seconds

    rows_first = seconds(lambda rows, bias: heads(rows + bias))
    heads_first = seconds(lambda rows, bias: heads(rows) + bias.reshape(HEADS, HEAD))
    assert (rows_first > heads_first + 3e-6) is takes_time


@pytest.mark.parametrize(
    ("examples", "rows", "is_copied"),
    [(4, 384, True), (4, 512, False), (2, 512, False), (1, 512, True), (1, 2048, True)],
)
def test_several_examples_of_many_rows_are_computed_in_the_order_of_attention(
    examples: int, rows: int, *, is_copied: bool
) -> None:
    """Source: the same programs by libtpu 0.0.52 for a v5p."""

    def program(x: Any, queries: Any, keys: Any, bias: Any) -> Any:
        q, k = ((x @ w + bias).reshape(examples, rows, HEADS, HEAD) for w in (queries, keys))
        return jnp.einsum("bqhd,bkhd->bhqk", q, k)

    shapes = [(examples, rows, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH,)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    graph, wishes = exported(program, *arguments, mesh="x=1")
    solution = plan(graph, "x=1", wishes, None, "tpu-v5p")
    facts = solution.encoder.facts
    vmem = replace(facts.vmem, short_lived=(False,) * len(graph.values))
    outside: Any = SimpleNamespace(
        graph=graph, buffers=facts.buffers, costing=facts.costing, vmem=vmem
    )
    seconds = [
        TurnedCopies(outside).seconds(graph.ops[index], (solution.decoded.candidates[index],)).sum()
        for index in facts.buffers.turned_rows
    ]
    assert [one > 0 for one in seconds] == [is_copied] * 2
