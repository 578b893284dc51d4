"""Products that are cut already, with their operands gathered in panels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from autoshard import schedules
from autoshard.errors import ScheduleError
from autoshard.hlo.compiled import read_collectives
from autoshard.loops import (
    Distribution,
    Placed,
    dot_general_statement,
    messages,
    parse_statement,
    simulate,
    stream,
)
from tests.schedules.algorithms import mesh_of

LAYER = parse_statement("Y(b,t,f) += X(b,t,e) * W(e,f)")


def sharded_layer(panel: int | None) -> Placed:
    """A batch cut over `x`, weights cut over `x` at home and over `y` in the product."""
    homes = {
        "Y": Distribution.by_cuts("Y", tuple("btf"), ((0,), (), (1,)), 2),
        "X": Distribution.by_cuts("X", tuple("bte"), ((0,), (), ()), 2),
        "W": Distribution.by_cuts("W", tuple("ef"), ((0,), (1,)), 2),
    }
    extents = {"b": 8, "t": 4, "e": 256, "f": 128}
    return stream(LAYER, extents, (4, 2), ("b", "f"), homes, over="e", panel=panel)


def arrays_for(made: Placed) -> list[Any]:
    draw = np.random.default_rng(4)
    operands = made.schedule.statement.operands
    return [draw.normal(size=made.shape(access.tensor)) for access in operands]


@pytest.mark.parametrize("panel", [None, 64, 16])
def test_streamed_weights_give_the_product_and_move_the_same_words(panel: int | None) -> None:
    made = sharded_layer(panel)
    arrays = arrays_for(made)
    expected = np.einsum("bte,ef->btf", *arrays)
    np.testing.assert_allclose(simulate(made, *arrays).value, expected, rtol=1e-10)
    run = jax.jit(schedules.lower(made, mesh_of((4, 2))))
    short = [jnp.asarray(array, "float32") for array in arrays]
    np.testing.assert_allclose(run(*short), expected, rtol=1e-4, atol=1e-4)
    words = sum(message.received * message.count for message in messages(made))
    assert words == 256 * 64 * 3 // 4


def test_temporary_memory_of_gathered_weights_falls_with_the_panel() -> None:
    temps = {}
    for panel in (None, 64, 16):
        made = sharded_layer(panel)
        run = jax.jit(schedules.lower(made, mesh_of((4, 2))))
        shapes = [
            jax.ShapeDtypeStruct(
                made.shape(t),
                "float32",
                sharding=NamedSharding(mesh_of((4, 2)), PartitionSpec(*s)),
            )
            for t, s in (("X", ("x",)), ("W", ("x", "y")))
        ]
        program = run.lower(*shapes).compile()
        kinds = [(c.kind, c.count) for c in read_collectives(program.as_text() or "")]
        assert kinds == [("all-gather", 1 if panel is None else 256 // panel)]
        memory = program.memory_analysis()
        assert memory is not None
        temps[panel] = memory.temp_size_in_bytes
    assert temps[None] >= 256 * 64 * 4
    assert temps[64] - temps[16] >= (64 - 16) * 64 * 4
    assert temps[16] < temps[64] < temps[None]


def test_one_variable_may_be_cut_along_two_dimensions() -> None:
    homes = {
        "A": Distribution.by_cuts("A", tuple("ij"), ((0, 1), ()), 2),
        "B": Distribution.by_cuts("B", tuple("ik"), ((0, 1), ()), 2),
        "C": Distribution.by_cuts("C", tuple("kj"), ((1, 0), ()), 2),
    }
    matmul = parse_statement("A(i,j) += B(i,k) * C(k,j)")
    made = stream(matmul, {"i": 16, "j": 4, "k": 32}, (2, 4), ("i", "i"), homes, over="k", panel=8)
    arrays = arrays_for(made)
    np.testing.assert_allclose(simulate(made, *arrays).value, arrays[0] @ arrays[1], rtol=1e-10)
    run = jax.jit(schedules.lower(made, mesh_of((2, 4))))
    short = [jnp.asarray(array, "float32") for array in arrays]
    np.testing.assert_allclose(run(*short), arrays[0] @ arrays[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("left", "right", "dims"),
    [
        ((4, 8), (8, 4), (((1,), (0,)), ((), ()))),
        ((3, 4, 8), (8, 3, 6), (((2,), (0,)), ((0,), (1,)))),
        ((2, 4, 8), (4, 8, 2), (((1, 2), (0, 1)), ((), ()))),
    ],
)
def test_a_dot_general_is_a_statement(left: Any, right: Any, dims: Any) -> None:
    draw = np.random.default_rng(6)
    a, b = draw.normal(size=left), draw.normal(size=right)
    statement = dot_general_statement(dims, len(left), len(right))
    value = np.einsum(statement.einsum_text(), a, b)
    np.testing.assert_allclose(jax.lax.dot_general(a, b, dims), value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("over", "panel", "message"),
    [
        (
            "f",
            8,
            "steps run over a variable that is summed over, and f is not\n"
            "  where: Y(b,t,f) += X(b,t,e) * W(e,f)\n"
            "  fix: use one of: e",
        ),
        (
            "e",
            6,
            "a panel of 6 does not divide the 256 values of e on a processor evenly over 4 pieces\n"
            "  where: panel=6\n"
            "  fix: use a multiple of 4 that divides 256",
        ),
    ],
)
def test_steps_that_do_not_fit_are_refused(over: str, panel: int, message: str) -> None:
    made = sharded_layer(None)
    with pytest.raises(ScheduleError) as caught:
        stream(
            LAYER,
            made.schedule.sizes,
            (4, 2),
            ("b", "f"),
            dict(made.homes),
            over=over,
            panel=panel,
        )
    assert str(caught.value) == message
