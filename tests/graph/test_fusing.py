"""Which values take memory, by what a compiler computes together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.backends import backend_for
from autoshard.graph.buffer_reads import buffer_reads
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import Rule
from cost_models import get_hardware
from tests.planner.graphs import Program
from tests.planner.traced import exported

MACHINES = {"cpu": "cpu-host", "gpu": "h100", "tpu": "tpu-v5e", "v5p": "tpu-v5p"}


def stored(graph: Graph, backend: str) -> set[str]:
    """Names of the ops, with their place among those of that name, whose results take memory."""
    is_stored = find_buffers(graph, backend_for(get_hardware(MACHINES[backend]))).is_stored
    seen: dict[str, int] = {}
    found = set()
    for op in graph.ops:
        if op.results and op.name != "argument":
            seen[op.name] = seen.get(op.name, 0) + 1
            if is_stored[op.results[0]]:
                found.add(f"{op.name} {seen[op.name]}")
    return found


def two_layers() -> Graph:
    """Product, bias, activation, product."""
    program = Program()
    x, w, b, v = (program.argument(64, 64) for _ in range(4))
    added = program.elementwise(program.matmul(x, w), b, name="add")
    return program.graph(program.matmul(program.elementwise(added, name="tanh"), v), added)


def test_a_tpu_keeps_of_a_layer_its_sums_with_the_bias_added() -> None:
    assert stored(two_layers(), "tpu") == {"add 1", "dot_general 2"}


def test_on_a_cpu_a_product_and_what_the_next_one_reads_are_kept() -> None:
    assert stored(two_layers(), "cpu") == {"dot_general 1", "add 1", "tanh 1", "dot_general 2"}


def test_a_product_on_a_gpu_computes_what_is_made_of_one_tensor() -> None:
    assert stored(two_layers(), "gpu") == {"dot_general 1", "add 1", "dot_general 2"}


def between_products(of: str, *, bits: int = 32) -> Graph:
    """Two products, and between them what is made of the first one's result."""
    program = Program()
    x, w = program.argument(64, 64), program.argument(64, 64)
    made = program.matmul(x, w)
    others = {"one": (), "constant": (program.zeros(64, 64),), "two": (made,), "weights": (w,)}
    read = program.elementwise(made, *others[of], name="negate")
    program.values[read] = replace(program.values[read], bits=bits)
    return program.graph(program.matmul(read, w), program.sum(read))


@pytest.mark.parametrize(
    ("of", "bits", "is_kept"),
    [
        ("one", 32, False),
        ("constant", 32, False),
        ("two", 32, True),
        ("weights", 32, True),
        ("one", 16, True),
    ],
)
def test_but_not_what_is_made_of_two_or_of_wider_elements(
    of: str, bits: int, *, is_kept: bool
) -> None:
    assert ("negate 1" in stored(between_products(of, bits=bits), "gpu")) == is_kept


def test_what_a_product_computes_leads_back_to_a_tensor_that_is_kept() -> None:
    program = Program()
    x, w, b = (program.argument(64, 64) for _ in range(3))
    total = program.elementwise(x, b, name="add")
    read = program.elementwise(program.elementwise(total, name="negate"), name="sine")
    graph = program.graph(program.matmul(read, w))
    assert stored(graph, "gpu") == {"add 1", "dot_general 1"}


def test_two_products_that_are_added_up_are_written_as_one_by_the_later() -> None:
    program = Program()
    x, w, v = (program.argument(64, 64) for _ in range(3))
    total = program.elementwise(program.matmul(x, w), program.matmul(x, v))
    graph = program.graph(program.matmul(total, w), total)
    assert stored(graph, "tpu") == {"dot_general 1", "add 1", "dot_general 3"}


def test_a_product_does_not_wait_for_what_comes_later() -> None:
    program = Program()
    x, w = program.argument(64, 64), program.argument(64, 64)
    early = program.matmul(x, w)
    late = program.matmul(program.matmul(x, x), w)
    read_twice = program.graph(program.elementwise(early, late), late)
    assert stored(read_twice, "tpu") == {
        "dot_general 1",
        "dot_general 2",
        "dot_general 3",
        "add 1",
    }


def narrowed(other: str) -> Graph:
    """A float32 product and another tensor's product with it in bfloat16, which two ops read."""
    program = Program()
    x, w, bias = (program.argument(64, 64) for _ in range(3))
    others = {
        "argument": (bias,),
        "constant": (program.zeros(64, 64),),
        "computed": (program.elementwise(bias, name="sine"),),
    }
    wide = program.elementwise(program.matmul(x, w), *others[other], name="multiply")
    made = program.elementwise(wide, name="convert")
    program.values[made] = replace(program.values[made], dtype="bf16", bits=16)
    return program.graph(program.sum(made), program.sum(program.elementwise(made, name="sine")))


@pytest.mark.parametrize("other", ["argument", "constant"])
def test_a_matmul_on_a_gpu_writes_what_is_made_narrower_of_it_at_once(other: str) -> None:
    assert {"convert 1"} == stored(narrowed(other), "gpu") - {"reduce 1", "reduce 2"}


def test_but_not_with_another_tensor_that_is_computed() -> None:
    assert {"dot_general 1"} == stored(narrowed("computed"), "gpu") - {"reduce 1", "reduce 2"}


def widened_scores() -> Graph:
    """A bfloat16 product, converted to float32, of which a maximum and an exponential are taken."""
    program = Program()
    x, w = program.argument(64, 64), program.argument(64, 64)
    made = program.matmul(x, w)
    program.values[made] = replace(program.values[made], dtype="bf16", bits=16)
    wide = program.elementwise(made, name="convert")
    return program.graph(program.sum(wide), program.sum(program.elementwise(wide, name="sine")))


def test_a_tpu_leaves_the_widening_of_a_product_to_what_reads_it() -> None:
    assert stored(widened_scores(), "tpu") == {"dot_general 1", "reduce 1", "reduce 2"}


@pytest.mark.parametrize(
    ("name", "bits", "kept_on"),
    [
        ("tanh", 32, {"cpu"}),
        ("tanh", 16, {"cpu", "gpu"}),
        ("divide", 32, {"cpu"}),
        ("divide", 16, {"cpu"}),
        ("negate", 16, set()),
    ],
)
def test_what_several_ops_read_is_kept_or_made_again(
    name: str, bits: int, kept_on: set[str]
) -> None:
    program = Program()
    made = program.elementwise(program.argument(64, 64), name=name)
    program.values[made] = replace(program.values[made], bits=bits)
    graph = program.graph(program.sum(made), program.sum(made))
    found = {backend for backend in ("cpu", "gpu", "tpu") if f"{name} 1" in stored(graph, backend)}
    assert found == kept_on


@pytest.mark.parametrize(("is_normalized", "is_kept"), [(False, True), (True, False)])
def test_a_gpu_keeps_a_wide_tanh_that_is_reduced_but_not_for_its_normalization_alone(
    *, is_normalized: bool, is_kept: bool
) -> None:
    program = Program()
    made = program.elementwise(program.argument(64, 64), name="tanh")
    other = program.argument(64, 64)
    if is_normalized:
        total = program.sum(made)
        rule = Rule((64, 64), ((),), (((0,), (1,)),))
        (other,) = program.compute("broadcast_in_dim", (total,), [(64, 64)], rule, OpClass.COPY)
    graph = program.graph(
        program.sum(program.elementwise(made, other)),
        *([] if is_normalized else [program.sum(made)]),
    )
    assert ("tanh 1" in stored(graph, "gpu")) is is_kept


@pytest.mark.parametrize(("updates", "is_kept"), [((64, 1), False), ((64, 2), True)])
def test_a_tpu_compares_positions_where_one_element_of_a_row_changes(
    updates: tuple[int, ...], *, is_kept: bool
) -> None:
    program = Program()
    zeros, rows, update = program.zeros(64, 512), program.argument(64, 1), program.zeros(*updates)
    rule = Rule((64,), (((0,), ()), ((0,), ()), ((0,), ())), (((0,), ()),))
    (made,) = program.compute("scatter", (zeros, rows, update), [(64, 512)], rule, OpClass.SCATTER)
    graph = program.graph(program.sum(made))
    assert ("scatter 1" in stored(graph, "tpu")) == is_kept
    assert "scatter 1" in stored(graph, "gpu")


def added_rows(*shapes: tuple[int, int]) -> Graph:
    """Rows that are computed, and added to zeros, one such table after the other."""
    program = Program()
    made: list[int] = []
    for shape in shapes:
        product = program.matmul(program.argument(64, 64), program.argument(64, shape[1]))
        rows = program.elementwise(product, name="negate")
        zeros, places = program.zeros(*shape), program.argument(64, 1)
        rule = Rule((shape[1],), (((), (0,)), ((), ()), ((), (0,))), (((), (0,)),))
        made += program.compute("scatter", (zeros, places, rows), [shape], rule, OpClass.SCATTER)
    return program.graph(*made)


@pytest.mark.parametrize(("backend", "is_kept"), [("cpu", True), ("gpu", False)])
def test_a_scatter_on_a_gpu_computes_the_rows_it_adds(backend: str, *, is_kept: bool) -> None:
    assert ("negate 1" in stored(added_rows((512, 64)), backend)) == is_kept


def starts(graph: Graph, backend: str, name: str = "scatter") -> list[int]:
    intervals = find_buffers(graph, backend_for(get_hardware(MACHINES[backend]))).intervals
    return [intervals[op.results[0]][0] for op in graph.ops if op.name == name]


def test_zeros_are_written_before_the_product_before_their_scatter() -> None:
    graph = added_rows((512, 64), (256, 64))
    assert starts(graph, "gpu") == starts(graph, "gpu", "dot_general")
    assert starts(graph, "cpu") == [op.index for op in graph.ops if op.name == "scatter"]


def test_zeros_of_one_shape_are_written_at_once() -> None:
    graph = added_rows((512, 64), (512, 64), (512, 32))
    first, _, third = starts(graph, "gpu", "dot_general")
    assert starts(graph, "gpu") == [first, first, third]


def gathered_scores() -> Graph:
    program = Program()
    made = program.elementwise(program.argument(64, 512), name="negate")
    rows = program.argument(64)
    rule = Rule((64,), (((0,), ()), ((0,),)), (((0,),),))
    (taken,) = program.compute("gather", (made, rows), [(64,)], rule, OpClass.GATHER)
    return program.graph(taken)


@pytest.mark.parametrize(("backend", "is_kept"), [("cpu", True), ("gpu", False), ("tpu", True)])
def test_a_gpu_computes_only_what_a_gather_takes(backend: str, *, is_kept: bool) -> None:
    assert ("negate 1" in stored(gathered_scores(), backend)) == is_kept


def test_a_gather_of_more_elements_than_there_are_reads_what_is_kept() -> None:
    program = Program()
    made = program.elementwise(program.argument(64, 8), name="negate")
    rule = Rule((512, 8), (((), (1,)), ((0,),)), (((0,), (1,)),))
    rows = program.argument(512)
    (taken,) = program.compute("gather", (made, rows), [(512, 8)], rule, OpClass.GATHER)
    assert "negate 1" in stored(program.graph(taken), "gpu")


def gradient_of_a_label() -> Graph:
    """A dense gradient, to which that of one element per row is added."""
    program = Program()
    dense = program.elementwise(program.argument(64, 512), name="sine")
    zeros, rows, update = program.zeros(64, 512), program.argument(64, 1), program.zeros(64, 1)
    rule = Rule((64,), (((0,), ()), ((0,), ()), ((0,), ())), (((0,), ()),))
    (spread,) = program.compute(
        "scatter", (zeros, rows, update), [(64, 512)], rule, OpClass.SCATTER
    )
    return program.graph(program.sum(program.elementwise(dense, spread, name="add")))


def test_a_gpu_scatters_into_what_is_added() -> None:
    graph = gradient_of_a_label()
    buffers = find_buffers(graph, backend_for(get_hardware("h100")))
    by_name = {op.name: op.results[0] for op in graph.ops if op.results}
    start, _ = buffers.intervals[by_name["add"]]
    assert buffers.intervals[by_name["sine"]] == (graph.values[by_name["sine"]].op, start)
    assert buffers.is_stored[by_name["sine"]]
    assert not buffers.is_stored[by_name["scatter"]]


def test_of_several_scatters_that_are_added_only_the_first_is_made_into_the_rest() -> None:
    program = Program()
    total = program.elementwise(program.argument(64, 512), name="sine")
    for _ in range(2):
        zeros, rows, update = program.zeros(64, 512), program.argument(64, 1), program.zeros(64, 1)
        rule = Rule((64,), (((0,), ()), ((0,), ()), ((0,), ())), (((0,), ()),))
        operands = (zeros, rows, update)
        (spread,) = program.compute("scatter", operands, [(64, 512)], rule, OpClass.SCATTER)
        total = program.elementwise(total, spread, name="add")
    assert {"scatter 1", "scatter 2"} & stored(program.graph(total), "gpu") == {"scatter 2"}


def read_by_two(total: str) -> Graph:
    """Rows scattered into zeros, what they are added to, and two readers of the sum."""
    program = Program()
    zeros, rows, update = program.zeros(64, 512), program.argument(64, 1), program.argument(64, 512)
    rule = Rule((64, 512), (((0,), (1,)), ((0,), ()), ((0,), (1,))), (((0,), (1,)),))
    operands = (zeros, rows, update)
    (spread,) = program.compute("scatter", operands, [(64, 512)], rule, OpClass.SCATTER)
    added = program.elementwise(program.argument(64, 512), spread, name=total)
    return program.graph(program.sum(added), program.elementwise(added, name="sine"))


@pytest.mark.parametrize(
    ("total", "backend", "is_written"),
    [("add", "tpu", True), ("add", "cpu", False), ("subtract", "tpu", False)],
)
def test_a_tpu_writes_what_a_scatter_is_added_to(
    total: str, backend: str, *, is_written: bool
) -> None:
    assert (f"{total} 1" in stored(read_by_two(total), backend)) == is_written


def joined_and_read(parts: tuple[int, int], *, is_summed_along: bool) -> tuple[Graph, int, int]:
    """Two tensors, both put together and read by a product later; the first, and both."""
    program = Program()
    w = program.argument(64, 64)
    first, second = (program.matmul(w, program.argument(64, size)) for size in parts)
    size = sum(parts)
    rule = Rule((64, size), (((0,), (1,)), ((0,), (1,))), (((0,), (1,)),))
    (both,) = program.compute("concatenate", (first, second), [(64, size)], rule, OpClass.COPY)
    sums = [program.sum(value) for value in (first, second, both)]
    if is_summed_along:
        made = program.matmul(both, program.argument(size, 64))
    else:
        made = program.matmul(w, both)
    return program.graph(*sums, made), first, both


@pytest.mark.parametrize(
    ("parts", "is_summed_along", "backend", "is_by_parts"),
    [
        ((64, 128), False, "gpu", True),
        ((64, 96), False, "gpu", False),
        ((64, 128), True, "gpu", False),
        ((64, 128), False, "cpu", False),
    ],
)
def test_a_product_on_a_gpu_reads_the_parts_it_does_not_sum_along(
    parts: tuple[int, int], backend: str, *, is_summed_along: bool, is_by_parts: bool
) -> None:
    graph, first, both = joined_and_read(parts, is_summed_along=is_summed_along)
    buffers = find_buffers(graph, backend_for(get_hardware(MACHINES[backend])))
    product = max(op.index for op in graph.ops if op.name == "dot_general")
    assert (buffers.last_use[both] <= product) == is_by_parts
    assert (buffers.last_use[first] > product) == is_by_parts


@pytest.mark.parametrize("machine", ["tpu", "v5p"])
def test_an_argument_is_narrowed_in_the_products_that_read_it(machine: str) -> None:
    program = Program()
    x, w = program.argument(64, 64), program.argument(64, 64)
    narrow = program.elementwise(w, name="convert")
    program.values[narrow] = replace(program.values[narrow], dtype="bf16", bits=16)
    graph = program.graph(program.matmul(program.matmul(x, narrow), narrow))
    assert stored(graph, machine) == {"dot_general 1", "dot_general 2"}


def test_a_tpu_has_a_widened_product_for_a_gather_alone_and_the_narrower_one_for_all_else() -> None:
    program = Program()
    x, w, rows = program.argument(64, 64), program.argument(64, 64), program.argument(64)
    scores = program.matmul(x, w)
    program.values[scores] = replace(program.values[scores], dtype="bf16", bits=16)
    wide = program.elementwise(scores, name="convert")
    rule = Rule((), (((), ()), ((),)), (((),),))
    (taken,) = program.compute("gather", (wide, rows), [(64,)], rule, OpClass.GATHER)
    later = program.sum(program.elementwise(wide, name="exponential"))
    last = program.matmul(program.elementwise(wide, name="negate"), w)
    graph = program.graph(taken, later, last)
    buffers = find_buffers(graph, backend_for(get_hardware("tpu-v5p")))
    made, gathered, multiplied = (graph.values[value].op for value in (wide, taken, last))
    assert buffers.intervals[wide] == (made, gathered + 1)
    assert buffers.last_use[scores] == multiplied + 1
    assert buffers.reads[multiplied][0].num_bytes == graph.values[scores].num_bytes
    assert buffers.reads[gathered][0].num_bytes == 64 * 4
    reads, _ = buffer_reads(graph, buffers)
    assert reads[wide] == {gathered}
    assert {made, multiplied} < reads[scores]


def _moved(fn: Any, *shapes: tuple[int, ...]) -> Graph:
    """A program that makes tensors element by element, moves them, and computes with the result."""
    given = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return exported(fn, *given, mesh="x=2")[0]


MOVES: dict[str, tuple[Callable[[jax.Array], jax.Array], set[str]]] = {
    # What libtpu 0.0.52 wrote for a v5e and a v5p, beside the last sum.
    "pad": (lambda x: jnp.pad(x, ((0, 0), (0, 8), (0, 0))), {"add 1"}),
    "spread": (
        lambda x: jax.lax.pad(x, 0.0, ((0, 0, 0), (0, 1, 1), (0, 0, 0))),
        {"add 1", "pad 1"},
    ),
    "concatenate": (lambda x: jnp.concatenate([x, x], axis=1), {"add 1"}),
    "reverse": (lambda x: jnp.flip(x, 0), {"add 1"}),
    "slice": (lambda x: x[:, 4:], set()),
    "stride of rows": (lambda x: x[:, ::2], {"add 1", "slice 1"}),
    "stride of tiles": (lambda x: x[::2], {"add 1"}),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_tpu_writes_what_is_padded_joined_reversed_or_strided(name: str) -> None:
    move, expected = MOVES[name]
    size = jax.eval_shape(move, jax.ShapeDtypeStruct((16, 8, 128), jnp.float32)).shape
    graph = _moved(lambda x, y: move(x * 3.0 + 1.0) * y, (16, 8, 128), size)
    last = {"multiply 2"}
    assert stored(graph, "tpu") - last == stored(graph, "v5p") - last == expected
    assert stored(graph, "cpu") - last == set()


@pytest.mark.parametrize(
    ("dtype", "num_tensors", "is_kept"),
    [
        # Kept or computed by both, as libtpu 0.0.52 did it for a v5e.
        ("float32", 1, False),
        ("float32", 2, True),
        ("float32", 3, True),
        ("bfloat16", 2, False),
        ("bfloat16", 3, False),
    ],
)
def test_a_tpu_keeps_an_operand_of_two_products_if_both_would_read_more(
    dtype: str, num_tensors: int, *, is_kept: bool
) -> None:
    def fn(w: Any, v: Any, first: Any, *others: Any) -> Any:
        made = jnp.abs(first)
        for other in others:
            made = made * other
        made = made.astype(jnp.bfloat16)
        return made @ w, made.T @ v

    rows = [jax.ShapeDtypeStruct((256, 128), jnp.dtype(dtype))] * num_tensors
    weights = (jax.ShapeDtypeStruct((n, 64), jnp.bfloat16) for n in (128, 256))
    graph, _ = exported(fn, *weights, *rows, mesh="x=2")
    kept = {name for name in stored(graph, "tpu") if not name.startswith("dot_general")}
    assert bool(kept) == is_kept


def test_a_product_on_a_tpu_writes_what_its_readers_meet_in() -> None:
    program = Program()
    x, w, h = (program.argument(64, 64) for _ in range(3))
    made = program.matmul(x, w)
    left = program.elementwise(made, h, name="multiply")
    right = program.elementwise(program.elementwise(made, name="negate"), left, name="subtract")
    graph = program.graph(program.matmul(program.elementwise(left, right, name="add"), w))
    assert stored(graph, "tpu") == {"add 1", "dot_general 2"}


def test_but_not_past_what_another_op_reads_too() -> None:
    program = Program()
    x, w, h = (program.argument(64, 64) for _ in range(3))
    made = program.matmul(x, w)
    left = program.elementwise(made, h, name="multiply")
    right = program.matmul(made, w)
    graph = program.graph(program.elementwise(left, right, name="add"))
    assert "dot_general 1" in stored(graph, "tpu")


def filled_in_a_loop(fill: Callable[[], Any]) -> Graph:
    """A loop that reads in every run a tensor with the same element everywhere."""

    def fn(x: jax.Array, weights: jax.Array) -> Any:
        least = fill()
        return jax.lax.scan(lambda x, w: (jnp.maximum(x @ w, least), None), x, weights)[0]

    return exported(fn, jnp.ones((64, 64)), jnp.ones((4, 64, 64)), mesh="x=2")[0]


def fill() -> Any:
    return jnp.full((64, 64), 2.5)


@pytest.mark.parametrize(
    ("made", "backend", "is_kept"),
    [
        (fill, "gpu", False),
        (jax.jit(fill), "gpu", True),
        (jax.jit(fill), "cpu", True),
        (jax.jit(fill), "tpu", False),
    ],
)
def test_a_loop_makes_a_constant_itself_but_that_of_a_function_only_on_a_tpu(
    made: Callable[[], Any], backend: str, *, is_kept: bool
) -> None:
    graph = filled_in_a_loop(made)
    found = find_buffers(graph, backend_for(get_hardware(MACHINES[backend])))
    carried = [op for op in graph.ops if op.name == "while" and len(op.operands) == 1]
    read = [op for op in carried if graph.values[op.results[0]].shape == (64, 64)]
    assert [found.is_stored[op.results[0]] for op in read] == [is_kept]


@pytest.mark.parametrize(
    ("size", "stride", "backends"),
    [
        (2, 2, set()),
        (64, 1, set()),  # one window
        (3, 2, {"cpu"}),
    ],
)
def test_a_pool_computes_what_it_reads_but_on_a_cpu_not_where_its_windows_overlap(
    size: int, stride: int, backends: set[str]
) -> None:
    def fn(x: jax.Array) -> Any:
        window, strides = (1, size), (1, stride)
        return jax.lax.reduce_window(x * x, -jnp.inf, jax.lax.max, window, strides, "VALID")

    graph, _ = exported(fn, jnp.ones((64, 64)), mesh="x=2")
    assert {name for name in MACHINES if "multiply 1" in stored(graph, name)} == backends


def test_no_running_sum_computes_what_it_reads() -> None:
    def fn(x: jax.Array) -> Any:
        padding = ((63, 0), (0, 0))
        return jax.lax.reduce_window(x * x, 0.0, jax.lax.add, (64, 1), (1, 1), padding)

    graph, _ = exported(fn, jnp.ones((64, 64)), mesh="x=2")
    assert all("multiply 1" in stored(graph, name) for name in MACHINES)


def test_a_tpu_writes_the_matmul_that_a_pool_reads() -> None:
    def fn(x: jax.Array, w: jax.Array) -> Any:
        return jax.lax.reduce_window(x @ w, -jnp.inf, jax.lax.max, (2, 1), (2, 1), "VALID")

    graph, _ = exported(fn, jnp.ones((64, 64)), jnp.ones((64, 64)), mesh="x=2")
    assert "dot_general 1" in stored(graph, "tpu")


@pytest.mark.parametrize(
    ("parts", "is_stored"),
    [
        (lambda x: (jnp.tanh(x[:, :8]), jnp.sin(x[:, 8:])), True),
        (lambda x: jnp.tanh(x[1:]) * x[:-1], True),
        (lambda x: (jnp.tanh(x[:, :8]), jnp.sin(x)), True),
        (lambda x: jnp.tanh(x[:, :8]), False),
        (lambda x: (jnp.tanh(x), jnp.sum(jnp.sin(x), 1)), False),
    ],
    ids=["halves", "shifted", "half and whole", "one half", "whole twice"],
)
def test_a_tpu_stores_what_several_ops_read_and_one_slices(parts: Any, is_stored: bool) -> None:
    given = [jax.ShapeDtypeStruct((32, 16), jnp.float32)] * 2
    graph, _ = exported(lambda a, b: parts(a * b), *given, mesh="d=1")
    assert ("multiply 1" in stored(graph, "tpu")) is is_stored
    assert "multiply 1" not in stored(graph, "gpu")


def test_a_matmul_writes_what_is_widened_and_sliced_as_wide_as_it_is() -> None:
    def program(x: Any, w: Any) -> Any:
        left, right = jnp.split((x @ w).astype(jnp.float32), 2, -1)
        return jnp.concatenate([left - right, left + right], -1).astype(x.dtype)

    given = [jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)] * 2
    graph, _ = exported(program, *given, mesh="d=1")
    found = stored(graph, "tpu")
    assert "convert 1" in found
    assert "dot_general 1" not in found
