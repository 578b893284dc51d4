"""Loops, branches, calls and derivatives in the graph."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.errors import InputError
from autoshard.frontend.module import ModuleNames, module_to_graph
from autoshard.graph.program import OpKind
from tests.frontend.exporting import (
    array,
    export,
    inside,
    named,
    names,
    notes,
    one,
    regions,
    text,
)

X = array(8, 16)
W = array(16, 16)
STACK = array(5, 16, 16)


def layer(x: Any, w: Any) -> tuple[Any, Any]:
    x = jnp.tanh(x @ w)
    return x, x.sum()


# -- scan ------------------------------------------------------------------------------------------


def test_a_scan_is_a_loop_whose_carries_join_before_it() -> None:
    graph = export(lambda x, w: lax.scan(layer, x, w), X, STACK)
    assert text(graph) == [
        "%0: f32[8, 16] = argument x",
        "%1: f32[5, 16, 16] = argument w",
        "%2: f32[] = free constant",
        "%3: f32[5] = free broadcast_in_dim %2",
        "%4: i32[] = free constant",
        "%5: f32[5, 16, 16] = while %1",
        "%6: i32[] = while %4 %21",
        "%7: f32[8, 16] = while %0 %15",
        "%8: f32[5] = while %3 %19",
        "loop 5 times:",
        "  %9: i32[] = free constant",
        "  %10: i1[] = compare %6 %9  flops=1",
        "  %11: i32[] = free constant",
        "  %12: f32[1, 16, 16] = dynamic_slice %5 %6 %11 %11"
        "  ([i, j, k], [], [], [])->([i, j, k]) {i=5, j=16, k=16} need_replication={i}",
        "  %13: f32[16, 16] = reshape %12  ([i, j, k])->([j, k]) {i=1, j=16, k=16}",
        "  %14: f32[8, 16] = dot_general %7 %13"
        "  ([i, k], [k, j])->([i, j]) {i=8, j=16, k=16} reduction={k}  flops=4096",
        "  %15: f32[8, 16] = tanh %14  flops=128",
        "  %16: f32[] = free constant",
        "  %17: f32[] = reduce %15 %16  ([i, j], [])->([]) {i=8, j=16} reduction={i, j}  flops=129",
        "  %18: f32[1] = free broadcast_in_dim %17",
        "  %19: f32[5] = dynamic_update_slice %8 %18 %6"
        "  ([i], [j], [])->([i]) {i=5, j=1} need_replication={j}",
        "  %20: i32[] = free constant",
        "  %21: i32[] = add %6 %20  flops=1",
        "return result[0] %7",
        "return result[1] %8",
    ]


def test_what_a_loop_does_counts_as_often_as_it_runs() -> None:
    graph = export(lambda x, w: lax.scan(layer, x, w), X, STACK)
    assert {op.repeat for op in named(graph, "dot_general")} == {5.0}
    carry = graph.ops[graph.values[7].op]
    assert carry.repeat == 1.0
    assert carry.operand_repeats == (1.0, 5.0)


def test_loops_inside_loops_multiply() -> None:
    def fn(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, c: lax.fori_loop(0, 4, lambda _, d: d @ d, c), x)

    graph = export(fn, W)
    assert [region.trip_count for region in regions(graph, "loop")] == [3.0, 4.0]
    assert one(graph, "dot_general").repeat == 12.0
    inner = graph.ops[one(graph, "dot_general").operands[0]]
    assert graph.regions[one(graph, "dot_general").region].parent == 1
    assert inner.index < one(graph, "dot_general").index


def test_a_reversed_scan_runs_as_often() -> None:
    graph = export(lambda x, w: lax.scan(layer, x, w, reverse=True), X, STACK)
    (loop,) = regions(graph, "loop")
    assert (loop.trip_count, loop.is_trip_count_known) == (5.0, True)


def test_copies_of_an_unrolled_body_must_be_sharded_alike() -> None:
    graph = export(lambda x, w: lax.scan(layer, x, w, unroll=2), X, STACK)
    (loop,) = regions(graph, "loop")
    assert loop.trip_count == 2.0
    products = [op.results[0] for op in named(graph, "dot_general")]
    assert len(products) == 3  # two in the loop, one left over behind it
    assert tuple(products) in graph.groups


def test_a_scan_of_nothing_runs_zero_times() -> None:
    graph = export(lambda x, w: lax.scan(layer, x, w), X, array(0, 16, 16))
    for loop in regions(graph, "loop"):
        assert loop.trip_count == 0.0
    assert all(op.repeat == 0.0 for op in named(graph, "dot_general"))


def test_lax_map_is_a_loop_over_the_leading_dimension() -> None:
    graph = export(lambda x: lax.map(lambda row: jnp.outer(row, row), x), X)
    assert [region.trip_count for region in regions(graph, "loop")] == [8.0]
    graph = export(lambda x: lax.map(lambda row: jnp.outer(row, row), x, batch_size=4), X)
    assert [region.trip_count for region in regions(graph, "loop")] == [2.0]


def test_what_a_body_computes_the_same_in_every_run_is_computed_before_the_loop() -> None:
    def fn(x: Any, w: Any) -> Any:
        def inner(_: Any, c: Any) -> Any:
            return c + jnp.tanh(w).T.sum() + jnp.sin(c)

        return lax.fori_loop(0, 3, lambda _, c: lax.fori_loop(0, 4, inner, c), x)

    graph = export(fn, X, W)
    for name in ("tanh", "transpose", "reduce"):
        assert (one(graph, name).repeat, one(graph, name).region) == (1.0, 0)
    assert one(graph, "sine").repeat == 12.0
    inner = regions(graph, "loop")[-1]  # no move for what stands before the loop serves this read
    assert graph.region_of_read(one(graph, "tanh"), 0) == inner.index


def test_inner_loops_and_conditionals_that_do_the_same_in_every_run_stand_before_the_loop() -> None:
    def fn(x: Any, w: Any) -> Any:
        def body(i: Any, c: Any) -> Any:
            power = lax.fori_loop(0, 3, lambda _, v: jnp.sin(v) @ w, w)
            chosen = lax.cond(w.sum() > 0, lambda v: v, jnp.cos, power)
            own = lax.cond(i > 1, jnp.exp, lambda v: v, c)
            return jnp.tanh(c + own + chosen.mean())

        return lax.fori_loop(0, 5, body, x)

    graph = export(fn, X, W)
    assert [region.trip_count for region in regions(graph, "loop")] == [3.0, 5.0]
    repeats = {"sine": 3.0, "dot_general": 3.0, "cosine": 0.5, "exponential": 2.5, "tanh": 5.0}
    assert {name: one(graph, name).repeat for name in repeats} == repeats


def test_what_is_made_of_constants_or_converted_or_may_not_run_stays_in_a_body() -> None:
    def fn(x: Any, w: Any) -> Any:
        def body(i: Any, c: Any) -> Any:
            mask = jnp.arange(16) * 2 > 3
            held = lax.cond(i > 1, lambda: jnp.sin(w), lambda: w)
            return jnp.where(mask, c @ w.astype(c.dtype) + held.sum().astype(c.dtype), c)

        return lax.fori_loop(0, 3, body, x)

    graph = export(fn, array(8, 16, dtype=jnp.bfloat16), W)
    (loop,) = regions(graph, "loop")
    staying = [name for name in ("iota", "multiply", "convert", "case") for _ in named(graph, name)]
    assert set(staying) == {"iota", "multiply", "convert", "case"}
    for name in staying:
        assert all(op.region == loop.index for op in named(graph, name))
    assert one(graph, "sine").repeat == 1.5


# -- trip counts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "stop", "trips"), [(0, 7, 7), (2, 9, 7), (5, 5, 0), (7, 3, 0), (-4, 4, 8)]
)
def test_a_fori_loop_with_fixed_bounds_runs_their_difference(
    start: int, stop: int, trips: int
) -> None:
    # An array as a bound makes it a while loop, a plain number a scan.
    for bound in (stop, jnp.int32(stop)):
        graph = export(lambda x, b=bound: lax.fori_loop(start, b, lambda _, c: c * 2, x), X)
        assert sum(region.trip_count for region in regions(graph, "loop")) == trips
        assert graph.notes == ()


def test_a_while_loop_that_counts_is_counted() -> None:
    def up(step: int, stop: int) -> Any:
        return lambda x: lax.while_loop(
            lambda c: c[0] < stop, lambda c: (c[0] + step, c[1] * 2), (0, x)
        )

    def down(x: Any) -> Any:
        return lax.while_loop(lambda c: c[0] >= 0, lambda c: (c[0] - 3, c[1] * 2), (10, x))

    for fn, trips in ((up(1, 6), 6.0), (up(4, 6), 2.0), (down, 4.0)):
        graph = export(fn, X)
        assert [(r.trip_count, r.is_trip_count_known) for r in regions(graph, "loop")] == [
            (trips, True)
        ]


def test_a_bound_that_is_computed_from_constants_is_known() -> None:
    def fn(x: Any) -> Any:
        stop = jnp.minimum(jnp.int32(12), jnp.int32(20)) - 2
        return lax.fori_loop(0, stop, lambda _, c: c * 2, x)

    assert [r.trip_count for r in regions(export(fn, X), "loop")] == [10.0]


def test_a_bound_that_an_outer_loop_changes_is_not_known() -> None:
    def fn(x: Any) -> Any:
        return lax.fori_loop(
            0, jnp.int32(4), lambda i, c: lax.fori_loop(0, i, lambda _, d: d * 2, c), x
        )

    graph = export(fn, X)
    assert [(r.trip_count, r.is_trip_count_known) for r in regions(graph, "loop")] == [
        (4.0, True),
        (10.0, False),
    ]


def test_an_unknown_trip_count_is_taken_as_ten_and_noted() -> None:
    graph = export(lambda x: lax.while_loop(lambda c: c.sum() < 9.0, lambda c: c * 2, x), X)
    (loop,) = regions(graph, "loop")
    assert (loop.trip_count, loop.is_trip_count_known) == (10.0, False)
    assert notes(graph) == [
        "loop with unknown trip count: taken as 10 (test_module_control_flow.py);"
        " pass trip_counts={'file.py:line': n}"
    ]
    assert f"{__file__}:" in graph.notes[0]


def test_a_dynamic_bound_is_unknown() -> None:
    def fn(n: Any, x: Any) -> Any:
        return lax.fori_loop(0, n, lambda _, c: c * 2, x)

    graph = export(fn, array(dtype=jnp.int32), X)
    assert [region.is_trip_count_known for region in regions(graph, "loop")] == [False]


def test_a_loop_that_may_end_early_is_taken_to_run_to_its_limit() -> None:
    def fn(x: Any) -> Any:
        return lax.while_loop(
            lambda c: (c[0] < 25) & (c[1].sum() < 3.0), lambda c: (c[0] + 1, c[1] * 2), (0, x)
        )

    graph = export(fn, X)
    (loop,) = regions(graph, "loop")
    assert (loop.trip_count, loop.is_trip_count_known) == (25.0, False)
    assert notes(graph) == [
        "loop that may end early: taken to run 25 times, its limit (test_module_control_flow.py);"
        " pass trip_counts={'file.py:line': n}"
    ]


def test_the_user_tells_trip_counts_by_line() -> None:
    def fn(x: Any) -> Any:
        return lax.while_loop(lambda c: c.sum() < 9.0, lambda c: c * 2, x)

    line = fn.__code__.co_firstlineno + 1
    graph = export(fn, X, trip_counts={f"test_module_control_flow.py:{line}": 33})
    (loop,) = regions(graph, "loop")
    assert (loop.trip_count, loop.is_trip_count_known) == (33.0, True)
    assert graph.notes == ()
    (body_op,) = (op for op in named(graph, "multiply") if op.region == loop.index)
    assert body_op.repeat == 33.0


def test_a_trip_count_for_a_loop_that_is_not_there_is_refused() -> None:
    def fn(x: Any) -> Any:
        return lax.while_loop(lambda c: c.sum() < 9.0, lambda c: c * 2, x)

    line = fn.__code__.co_firstlineno + 1
    # A line number that only begins alike names another loop.
    key = f"test_module_control_flow.py:{str(line)[:-1]}"
    with pytest.raises(InputError) as caught:
        export(fn, X, trip_counts={key: 3})
    assert caught.value.what == f"the program has no loop at {key!r}"
    assert caught.value.where == "trip_counts"
    assert caught.value.fix.endswith(f"the program's loops: {__file__}:{line} (fn)")


def test_a_trip_count_the_program_contradicts_is_noted() -> None:
    def fn(x: Any) -> Any:
        return lax.fori_loop(0, 7, lambda _, c: c * 2, x)

    line = fn.__code__.co_firstlineno + 1
    key = f"test_module_control_flow.py:{line}"
    graph = export(fn, X, trip_counts={key: 3})
    assert [region.trip_count for region in regions(graph, "loop")] == [7.0]
    assert notes(graph) == [
        f"trip_counts['{key}'] = 3 is not used: the program says that the loop runs 7 times"
        " (test_module_control_flow.py)"
    ]


@pytest.mark.parametrize("count", [-1, float("nan"), float("inf"), True, "many"])
def test_a_trip_count_that_is_no_number_of_runs_is_refused(count: Any) -> None:
    with pytest.raises(InputError) as caught:
        export(lambda x: x * 2, X, trip_counts={"train.py:40": count})
    assert caught.value.where == "trip_counts['train.py:40']"


def test_a_default_that_is_no_number_of_runs_is_refused() -> None:
    names = ModuleNames(arguments=[], results=[], donated=[])
    with pytest.raises(
        InputError, match=r"a loop cannot run -2 times\n  where: default_trip_count"
    ):
        module_to_graph("", names, default_trip_count=-2)


def test_a_loop_that_counts_in_floats_runs_as_often() -> None:
    def fn(x: Any) -> Any:
        state = lax.while_loop(lambda s: s[0] < 7, lambda s: (s[0] + 2, jnp.sin(s[1])), (1.0, x))
        return state[1]

    (loop,) = regions(export(fn, X), "loop")
    assert (loop.trip_count, loop.is_trip_count_known) == (3.0, True)


def test_a_loop_of_one_equation_carries_what_is_sharded_like_its_result() -> None:
    graph = export(lambda x: lax.igamma(x, x + 1), X)
    result = graph.results[0].operands[0]
    (group,) = (group for group in graph.groups if result in group)
    carried = {op.results[0] for op in named(graph, "while") if len(op.operands) == 2}
    assert {value for value in carried if graph.values[value].shape == (8, 16)} < set(group)


# -- branches --------------------------------------------------------------------------------------


def test_branches_are_equally_likely() -> None:
    graph = export(
        lambda p, x: lax.cond(p, jnp.sin, lambda x: x @ x.T @ x, x), array(dtype=bool), X
    )
    first, second = regions(graph, "branch")
    assert inside(graph, first) == ["transpose", "dot_general", "dot_general"]
    assert inside(graph, second) == ["sine"]
    assert one(graph, "sine").repeat == 0.5
    join = one(graph, "case")
    assert join.kind is OpKind.JOIN
    assert join.repeat == 1.0
    assert join.operand_repeats == (0.5, 0.5)


def test_a_switch_has_one_region_a_branch_and_may_pass_a_value_on() -> None:
    branches = [jnp.sin, jnp.cos, lambda x: x]
    graph = export(lambda i, x: lax.switch(i, branches, x), array(dtype=jnp.int32), X)
    assert [inside(graph, region) for region in regions(graph, "branch")] == [
        ["sine"],
        ["cosine"],
        [],
    ]
    join = one(graph, "case")
    assert graph.ops[graph.values[join.operands[2]].op].kind is OpKind.ARGUMENT
    assert one(graph, "cosine").repeat == pytest.approx(1 / 3)


def test_a_branch_that_the_counter_of_a_loop_chooses_is_taken_as_often_as_others() -> None:
    def fn(x: Any) -> Any:
        return lax.fori_loop(0, 4, lambda i, c: lax.switch(i, [jnp.sin, jnp.cos], c), x)

    graph = export(fn, X)
    assert [one(graph, name).repeat for name in ("sine", "cosine")] == [2.0, 2.0]


def test_a_branch_inside_a_loop_runs_its_share() -> None:
    def body(i: Any, x: Any) -> Any:
        return lax.cond(i < 2, jnp.sin, jnp.cos, x)

    graph = export(lambda x: lax.fori_loop(0, 6, body, x), X)
    assert one(graph, "sine").repeat == 3.0
    assert one(graph, "case").operand_repeats == (3.0, 3.0)


@pytest.mark.parametrize(("index", "runs"), [(0, (1.0, 0.0)), (1, (0.0, 1.0)), (-3, (0.0, 1.0))])
def test_a_branch_whose_index_is_written_down_is_the_only_one_that_runs(
    index: int, runs: tuple[float, float]
) -> None:
    module = f"""
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
      %index = stablehlo.constant dense<{index}> : tensor<i32>
      %0 = "stablehlo.case"(%index) ({{
        %1 = stablehlo.sine %x : tensor<8xf32>
        stablehlo.return %1 : tensor<8xf32>
      }}, {{
        %1 = stablehlo.cosine %x : tensor<8xf32>
        stablehlo.return %1 : tensor<8xf32>
      }}) : (tensor<i32>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }}"""
    graph = module_to_graph(
        module, ModuleNames(arguments=["x"], results=["result"], donated=[False])
    )
    assert (one(graph, "sine").repeat, one(graph, "cosine").repeat) == runs
    assert one(graph, "case").operand_repeats == runs


@pytest.mark.parametrize(("index", "taken"), [(0, "sine"), (1, "cosine"), (7, "tanh")])
def test_a_switch_by_a_number_is_the_branch_it_takes(index: int, taken: str) -> None:
    """JAX clamps the number, which is a constant no more."""
    branches = [jnp.sin, jnp.cos, jnp.tanh]
    graph = export(lambda x: lax.switch(index, branches, x), X)
    assert names(graph) == [taken]


def test_a_composite_is_what_it_is_made_of() -> None:
    graph = export(lax.composite(lambda x: jnp.sin(x) * 2, name="my.op"), X)
    assert names(graph) == ["sine", "multiply"]


# -- calls and derivatives -------------------------------------------------------------------------


def test_calls_are_inlined_at_each_call() -> None:
    helper = jax.jit(lambda x: jnp.tanh(x) * 2)
    graph = export(lambda x: helper(helper(x)), X)
    assert names(graph) == ["tanh", "multiply", "tanh", "multiply"]
    assert len(graph.regions) == 1


def test_remat_computes_again_behind_a_barrier() -> None:
    def fn(x: Any, w: Any) -> Any:
        block = jax.checkpoint(lambda x, w: jnp.sin(jnp.sin(x @ w)))
        return jax.value_and_grad(lambda w: block(x, w).sum())(w)

    graph = export(fn, X, W)
    barriers = named(graph, "optimization_barrier")
    assert barriers
    assert all(op.kind is OpKind.JOIN and len(op.operands) == 1 for op in barriers)
    assert len(named(graph, "dot_general")) == 3  # forward, again, gradient


def test_custom_derivatives_are_what_the_user_wrote() -> None:
    clip = jax.custom_vjp(lambda x: jnp.minimum(x, 1.0))
    clip.defvjp(lambda x: (clip(x), x), lambda x, g: (jnp.cos(x) * g,))

    soft = jax.custom_jvp(jnp.exp)
    soft.defjvp(lambda p, t: (soft(p[0]), jnp.sin(p[0]) * t[0]))
    graph = export(jax.grad(lambda x: clip(x).sum()), X)
    assert "cosine" in names(graph)
    graph = export(jax.grad(lambda x: soft(x).sum()), X)
    assert "sine" in names(graph)
    assert "exponential" in names(export(soft, X))


def test_ops_inside_a_lowering_rule_have_the_line_of_the_call() -> None:
    def fn(a: Any, b: Any) -> Any:
        return jnp.linalg.solve(a, b)

    graph = export(fn, array(4, 8, 8), array(4, 8, 8))
    line = fn.__code__.co_firstlineno + 1
    assert {op.source for op in graph.ops if op.kind is OpKind.COMPUTE} == {
        f"{__file__}:{line} (fn)"
    }


def test_every_path_leads_to_a_value_of_its_type() -> None:
    def fn(x: Any, w: Any) -> Any:
        y, _ = lax.scan(layer, x, w)
        return jnp.where(y > 0, y, 0.0)

    graph = export(fn, X, STACK)
    assert graph.values[graph.value_by_path["in.0"]].name == "x"
    products = [
        index
        for path, index in graph.value_by_path.items()
        if graph.ops[graph.values[index].op].name == "dot_general"
    ]
    (product,) = set(products)
    assert graph.values[product].path.startswith("0.jaxpr/")
