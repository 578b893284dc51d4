"""Any schedule on JAX: other einsums, transformations, the examples of `shard_map`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from autoshard import schedules
from autoshard.errors import ScheduleError
from autoshard.hlo.compiled import read_collectives
from autoshard.loops import Placed, placed, schedule
from tests.schedules.algorithms import mesh_of

MATMUL = "A(i,j) += B(i,k) * C(k,j)"
P = PartitionSpec


def arrays_for(made: Placed) -> list[jax.Array]:
    draw = np.random.default_rng(5)
    operands = made.schedule.statement.operands
    return [
        jnp.asarray(draw.normal(size=made.shape(access.tensor)), "float32") for access in operands
    ]


def close(value: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(value), np.asarray(expected), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["cannon", "pumma"])
def test_axes_may_be_named_in_another_order_than_the_mesh_has_them(name: str) -> None:
    draw = np.random.default_rng(7)
    a, b = (jnp.asarray(draw.normal(size=(16, 16)), "float32") for _ in range(2))
    product = getattr(schedules, name)(mesh_of((2, 2)), ("y", "x"))
    close(jax.jit(product)(a, b), a @ b)


def basic() -> Placed:
    nest = schedule(MATMUL, i=8, j=32, k=16)
    nest = nest.distribute(("i", "k"), ("io", "ko"), ("ii", "ki"), (2, 4))
    nest = nest.communicate(("A", "B", "C"), "ko")
    return placed(nest, A="A ij -> i* M", B="B ik -> ik M", C="C kj -> *k M")


def basic_scattered() -> Placed:
    nest = basic().schedule
    return placed(nest, A="A ij -> ij M", B="B ik -> ik M", C="C kj -> *k M")


def mttkrp() -> Placed:
    nest = schedule("A(i,l) += B(i,j,k) * C(j,l) * D(k,l)", i=8, j=8, k=8, l=4)
    nest = nest.distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 4))
    nest = nest.communicate(("A", "B", "C", "D"), "jo")
    return placed(nest, A="A il -> i* M", B="B ijk -> ij M", C="C jl -> *j M", D="D kl -> k* M")


def ttm() -> Placed:
    nest = schedule("A(i,j,l) += B(i,j,k) * C(k,l)", i=8, j=4, k=8, l=4)
    nest = nest.distribute(("i", "k"), ("io", "ko"), ("ii", "ki"), (2, 4))
    nest = nest.communicate(("A", "B", "C"), "ko")
    return placed(nest, A="A ijl -> il M", B="B ijk -> ik M", C="C kl -> *k M")


def batched() -> Placed:
    nest = schedule("A(b,i,j) += B(b,i,k) * C(b,k,j)", b=4, i=8, j=8, k=8)
    nest = nest.distribute(("b", "i"), ("bo", "io"), ("bi", "ii"), (2, 4))
    nest = nest.split("k", "ko", "ki", 2).reorder("ko", "bi", "ii", "j", "ki")
    nest = nest.communicate("A", "io").communicate(("B", "C"), "ko")
    return placed(nest, A="A bij -> bi M", B="B bik -> bi M", C="C bkj -> bj M")


def inner() -> Placed:
    nest = schedule("a() += B(i,j) * C(i,j)", i=8, j=8)
    nest = nest.distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 4))
    nest = nest.communicate(("a", "B", "C"), "jo")
    return placed(nest, a="a -> ** M", B="B ij -> ij M", C="C ij -> *j M")


def gathered_result() -> Placed:
    nest = schedule(MATMUL, i=8, j=8, k=8)
    nest = nest.distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 4))
    nest = nest.communicate(("A", "B", "C"), "jo")
    return placed(nest, A="A ij -> i* M", B="B ik -> i* M", C="C kj -> *j M")


def neighbouring_panels() -> Placed:
    nest = schedule(MATMUL, i=8, j=8, k=16)
    nest = nest.distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 4))
    nest = nest.split("k", "ko", "ki", 2).reorder("ko", "ii", "ji", "ki")
    nest = nest.communicate("A", "jo").communicate(("B", "C"), "ko")
    return placed(nest, A="A ij -> ij M", B="B ik -> ik M", C="C kj -> kj M")


def nested_steps() -> Placed:
    """B in long steps, C in short ones inside."""
    nest = schedule(MATMUL, i=8, j=8, k=32)
    nest = nest.distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 4))
    nest = nest.divide("k", "kb", "kr", 4).divide("kr", "ko", "kq", 2).divide("kq", "kp", "ki", 2)
    nest = nest.reorder("ko", "kp", "ii", "ji", "kb", "ki")
    nest = nest.communicate("A", "jo").communicate("B", "ko").communicate("C", "kp")
    return placed(nest, A="A ij -> ij M", B="B ik -> ik M", C="C kj -> kj M")


def swapped_homes() -> Placed:
    """Operands that live along the other axes, and are fetched through corners of the grid."""
    nest = schedule(MATMUL, i=8, j=8, k=8)
    nest = nest.distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 2))
    nest = nest.communicate(("A", "B", "C"), "jo")
    return placed(nest, A="A ij -> ij M", B="B ik -> ki M", C="C kj -> jk M")


SCHEDULES = [
    basic,
    basic_scattered,
    mttkrp,
    ttm,
    batched,
    inner,
    gathered_result,
    neighbouring_panels,
    nested_steps,
    swapped_homes,
]


@pytest.mark.parametrize("make", SCHEDULES, ids=lambda make: make.__name__)
def test_a_schedule_runs_as_its_einsum(make: Callable[[], Placed]) -> None:
    made = make()
    arrays = arrays_for(made)
    run = jax.jit(schedules.lower(made, mesh_of(made.grid)))
    close(run(*arrays), jnp.einsum(made.schedule.statement.einsum_text(), *arrays))


def test_a_sum_over_the_grid_is_one_all_reduce_or_one_reduce_scatter() -> None:
    kinds = []
    for made in (basic(), basic_scattered()):
        mesh = mesh_of(made.grid)
        specs = (NamedSharding(mesh, P("x", "y")), NamedSharding(mesh, P("y", None)))
        run = jax.jit(schedules.lower(made, mesh), in_shardings=specs)
        text = run.lower(*arrays_for(made)).compile().as_text() or ""
        kinds.append([c.kind for c in read_collectives(text)])
    assert kinds == [["all-reduce"], ["reduce-scatter"]]


def test_a_block_that_one_device_has_reaches_the_others_without_it_being_doubled() -> None:
    made = neighbouring_panels()
    mesh = mesh_of(made.grid)
    whole = NamedSharding(mesh, P("x", "y"))
    run = jax.jit(schedules.lower(made, mesh), in_shardings=(whole, whole))
    text = run.lower(*arrays_for(made)).compile().as_text() or ""
    assert {c.kind for c in read_collectives(text)} == {"collective-permute"}


DIFFERENTIATED = [
    (schedules.summa, (2, 2)),
    (lambda mesh: schedules.summa(mesh, panel=4), (2, 4)),
    (schedules.pumma, (2, 2)),
    (schedules.cannon, (2, 2)),
    (schedules.johnson, (2, 2, 2)),
    (schedules.solomonik, (2, 2, 2)),
    (lambda mesh: schedules.all_gather_matmul(mesh, both_ways=True), (4,)),
    (lambda mesh: schedules.matmul_reduce_scatter(mesh, both_ways=True), (4,)),
]


@pytest.mark.parametrize(("make", "grid"), DIFFERENTIATED)
def test_a_product_can_be_jitted_differentiated_and_mapped(
    make: Callable[[Any], schedules.ScheduledMatmul], grid: tuple[int, ...]
) -> None:
    product = make(mesh_of(grid))
    draw = np.random.default_rng(2)
    a = jnp.asarray(draw.normal(size=(3, 16, 8)), "float32")
    b = jnp.asarray(draw.normal(size=(3, 8, 16)), "float32")

    def loss(multiply: Callable[..., jax.Array], a: jax.Array, b: jax.Array) -> jax.Array:
        total: jax.Array = jnp.sum(jnp.sin(jax.vmap(multiply)(a, b)))
        return total

    value, slopes = jax.jit(jax.value_and_grad(lambda a, b: loss(product, a, b), (0, 1)))(a, b)
    plain = jax.jit(jax.value_and_grad(lambda a, b: loss(jnp.matmul, a, b), (0, 1)))
    expected, expected_slopes = plain(a, b)
    close(value, expected)
    for slope, other in zip(slopes, expected_slopes, strict=True):
        close(slope, other)


def test_differentiating_in_panels_keeps_no_gathered_operand() -> None:
    mesh = mesh_of((2, 2))
    matrix = jnp.zeros((256, 256), "float32")
    home = NamedSharding(mesh, P("x", "y"))

    def temp_bytes(panel: int | None) -> int:
        product = schedules.summa(mesh, panel=panel)
        slope = jax.grad(lambda a, b: jnp.sum(product(a, b) ** 2), (0, 1))
        run = jax.jit(slope, in_shardings=(home, home), out_shardings=(home, home))
        memory = run.lower(matrix, matrix).compile().memory_analysis()
        assert memory is not None
        return int(memory.temp_size_in_bytes)

    gathered = 2 * 128 * 256 * 4
    assert temp_bytes(16) < gathered < temp_bytes(None)


def test_sums_of_short_numbers_are_kept_long_while_they_are_added_up() -> None:
    # Each step adds one; in bfloat16, 256 + 1 is 256.
    product = schedules.summa(mesh_of((2, 2)), panel=2)
    ones = jnp.ones((4, 512), jnp.bfloat16)
    value = jax.jit(product)(ones, ones.T)
    assert value.dtype == jnp.bfloat16
    assert (value == 512).all()


def test_sums_of_short_numbers_travel_short() -> None:
    product = schedules.matmul_reduce_scatter(mesh_of((4,)))
    ones = jax.ShapeDtypeStruct((16, 16), jnp.bfloat16)
    text = jax.jit(product).lower(ones, ones).as_text()
    sent = [line for line in text.splitlines() if "stablehlo.collective_permute" in line]
    assert sent
    assert all("tensor<4x16xbf16>" in line for line in sent)


def test_meshes_with_explicit_axes_and_more_axes_than_needed_will_do() -> None:
    mesh = jax.make_mesh((2, 2, 2), ("data", "x", "y"))
    a, b = jnp.arange(64.0).reshape(8, 8), jnp.ones((8, 8))
    close(jax.jit(schedules.cannon(mesh, ("x", "y")))(a, b), a @ b)


def test_a_batch_that_is_mapped_over_stays_cut_along_an_axis_of_its_own() -> None:
    mesh = mesh_of((2, 2, 2))
    places = NamedSharding(mesh, P("x", "y", "z")), NamedSharding(mesh, P("y", "z"))
    batched = jax.vmap(schedules.cannon(mesh, ("y", "z")), (0, None))
    run = jax.jit(batched, in_shardings=places)
    a, b = jnp.arange(128.0).reshape(2, 8, 8), jnp.ones((8, 8))
    program = run.lower(a, b).compile()
    kinds = {c.kind for c in read_collectives(program.as_text() or "")}
    assert kinds == {"collective-permute"}
    value = run(a, b)
    assert value.sharding.is_equivalent_to(places[0], 3)
    close(value, a @ b)


@pytest.mark.parametrize(
    ("left", "right", "dims"),
    [
        ((8, 4), (4, 8), (((1,), (0,)), ((), ()))),
        ((4, 8), (8, 4), (((0,), (1,)), ((), ()))),
        ((2, 4, 8), (8, 2, 4), (((2,), (0,)), ((), ()))),
        ((2, 4, 8), (4, 8, 2), (((1, 2), (0, 1)), ((), ()))),
        ((3, 4, 8), (8, 3, 6), (((2,), (0,)), ((0,), (1,)))),
    ],
)
def test_a_product_stands_in_for_dot_general(left: Any, right: Any, dims: Any) -> None:
    draw = np.random.default_rng(1)
    a = jnp.asarray(draw.normal(size=left), "float32")
    b = jnp.asarray(draw.normal(size=right), "float32")
    dot_general = schedules.as_dot_general(schedules.summa(mesh_of((2, 2))))
    close(jax.jit(lambda a, b: dot_general(a, b, dims))(a, b), jax.lax.dot_general(a, b, dims))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: schedules.lower(basic(), mesh_of((2, 2))),
            "the schedule is for a grid of 2 x 4, and axes x, y are 2 x 2\n"
            "  where: mesh {'x': 2, 'y': 2}\n"
            "  fix: make the schedule for these sizes, or name other axes",
        ),
        (
            lambda: schedules.lower(
                placed(
                    schedule(MATMUL, i=8, j=8, k=8).distribute(
                        ("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 2)
                    ),
                    A="A ij -> ij M",
                    B="B ik -> ik M",
                    C="C kj -> kj M",
                ),
                mesh_of((2, 2)),
            ),
            "nothing says where A is communicated\n"
            "  where: A(i,j) += B(i,k) * C(k,j)\n"
            "  fix: add communicate(A, jo), or a loop further in",
        ),
        (
            lambda: schedules.lower(
                placed(basic().schedule, A="A ij -> j* M", B="B ik -> ik M", C="C kj -> *k M"),
                mesh_of((2, 4)),
            ),
            "the pieces of A are computed along other dimensions of the grid than they live:"
            " dimension 0\n"
            "  where: A ij -> j* M\n"
            "  fix: place A where it is computed, or distribute other loops",
        ),
        (
            lambda: schedules.lower(
                placed(
                    schedule(MATMUL, i=8, j=8, k=8)
                    .distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 2))
                    .split("k", "ko", "ki", 2)
                    .reorder("ko", "ii", "ji", "ki")
                    .communicate(("A", "B", "C"), "ko"),
                    A="A ij -> ij M",
                    B="B ik -> ik M",
                    C="C kj -> kj M",
                ),
                mesh_of((2, 2)),
            ),
            "A is sent home in every turn of ko, and its sums do not travel from neighbour to"
            " neighbour\n"
            "  where: communicate(A, ko)\n"
            "  fix: communicate the result at the last loop over the grid, or rotate ko by the loop"
            " over which it is summed",
        ),
        (
            lambda: schedules.lower(
                placed(basic().schedule, A="A ij -> i* M", B="B ik -> ik% M", C="C kj -> *k M"),
                mesh_of((2, 4)),
            ),
            "B is dealt out in turns, and the pieces of an array are runs of neighbours\n"
            "  where: B ik -> ik% M\n"
            "  fix: use a home without %; divide and split the loop to take its parts in turns",
        ),
        (
            lambda: schedules.lower(
                placed(
                    schedule(MATMUL, i=12, j=12, k=12)
                    .distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 2))
                    .divide("k", "ko", "ki", 3)
                    .reorder("ko", "ii", "ji", "ki")
                    .communicate("A", "jo")
                    .communicate(("B", "C"), "ko"),
                    A="A ij -> ij M",
                    B="B ik -> ik M",
                    C="C kj -> kj M",
                ),
                mesh_of((2, 2)),
            ),
            "home and loops cut variable k at places that do not fit together\n"
            "  where: B ik -> ik M; loops of sizes 3, 4\n"
            "  fix: divide the loop into a multiple or a divisor of the pieces at home",
        ),
    ],
)
def test_a_schedule_that_has_no_form_on_jax_is_refused(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ScheduleError) as caught:
        make()
    assert str(caught.value) == message
