"""Uses that are constrained, by path, in decided plans of which some choices are set by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.apply.placed_values import placed_layout
from autoshard.apply.wanted_uses import wanted_uses
from autoshard.encoding.encoded import Decoded
from autoshard.frontend.trace import trace
from autoshard.graph.program import Op, OpKind
from autoshard.layouts import Layout
from autoshard.planning.solution import Solution
from autoshard.sharding import format_sharding, parse_mesh_sizes, parse_sharding
from autoshard.use_paths import split_uses
from tests.apply.loop_programs import by_while, summed

MESH = "x=2,y=4"
SIDE = 256
WHOLE: Layout = ((),)


def array(*shape: int, dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.dtype(dtype))


def solved(fn: Callable[..., Any], *args: Any, **asked: Any) -> Solution:
    given = {"mesh": MESH, "hardware": "cpu-host", "baselines": False, **asked}
    plan = autoshard.optimize(fn, *args, **given)
    assert plan.solution is not None
    return plan.solution


def chosen(solution: Solution, op: Op, decoded: Decoded, **wanted: dict[int, Layout]) -> Decoded:
    """A decided plan with another choice for an op: the first with the layouts wanted."""
    encoded = solution.encoded
    candidate = next(
        candidate
        for candidate in encoded.candidates[encoded.ops.index(op.index)]
        if all(
            getattr(candidate, side)[position] == layout
            for side, by_position in wanted.items()
            for position, layout in by_position.items()
        )
    )
    layouts = list(decoded.layouts)
    for value, layout in zip(op.results, candidate.results, strict=True):
        layouts[value] = layout
    return replace(
        decoded,
        candidates={**decoded.candidates, op.index: candidate},
        layouts=tuple(layouts),
    )


def uses(
    solution: Solution, decoded: Decoded, fn: Callable[..., Any], *args: Any
) -> dict[str, str]:
    traced = trace(fn, args, mesh=parse_mesh_sizes(MESH))
    found = wanted_uses(solution.encoded, decoded, traced.operand_paths, merges_all_gathers=True)
    return {path: format_sharding(sharding) for path, sharding in found.items()}


def layout_of(solution: Solution, text: str) -> Layout:
    return solution.encoded.parts.to_layout(parse_sharding(text))


def by_scan(weights: Any, x: Any) -> Any:
    return lax.scan(lambda carry, _: (summed(weights, carry), None), x, None, length=8)[0]


def twice_carried(weights: Any, x: Any) -> Any:
    def body(_: Any, carry: Any) -> Any:
        made = summed(weights, carry[0] * carry[1])
        return made, made

    return lax.fori_loop(0, 8, body, (x, x + 1))


def carries(solution: Solution) -> list[Op]:
    """Of the loop, in order; the counter is not among them."""
    graph = solution.graph
    return [
        op
        for op in graph.ops
        if op.kind is OpKind.JOIN and len(op.operands) == 2 and graph.values[op.results[0]].shape
    ]


@pytest.mark.parametrize(
    ("fn", "end"), [(by_scan, "0.jaxpr/out<0"), (by_while, "0.body_jaxpr/out<1")]
)
def test_what_goes_round_a_loop_in_other_pieces_than_it_is_made_in_is_constrained_at_its_end(
    fn: Callable[..., Any], end: str
) -> None:
    args = (array(SIDE, SIDE), array(SIDE))
    solution = solved(fn, *args)
    (carry,) = carries(solution)
    made = solution.graph.ops[solution.graph.values[carry.operands[1]].op]
    cut = layout_of(solution, '[{"y"}]')
    decoded = chosen(solution, made, solution.decoded, results={0: cut})
    moved = uses(solution, chosen(solution, carry, decoded, results={0: WHOLE}), fn, *args)
    assert moved[end] == "<@mesh, [{}]>"
    kept = uses(solution, chosen(solution, carry, decoded, results={0: cut}), fn, *args)
    assert end not in kept


@pytest.mark.parametrize("moved", [0, 1])
def test_of_carries_that_go_round_with_one_value_the_one_that_is_moved_is_constrained(
    moved: int,
) -> None:
    args = (array(SIDE, SIDE), array(SIDE))
    solution = solved(twice_carried, *args)
    both = carries(solution)
    assert both[0].operands[1] == both[1].operands[1]
    cut = layout_of(solution, '[{"y"}]')
    made = solution.graph.ops[solution.graph.values[both[0].operands[1]].op]
    decoded = chosen(solution, made, solution.decoded, results={0: cut})
    for number, carry in enumerate(both):
        layout = WHOLE if number == moved else cut
        decoded = chosen(solution, carry, decoded, results={0: layout})
    found = uses(solution, decoded, twice_carried, *args)
    ends = {path: text for path, text in found.items() if ".jaxpr/out<" in path}
    assert ends == {f"1.jaxpr/out<{moved}": "<@mesh, [{}]>"}


def projected(rows: Any, updates: Any, weights: Any) -> Any:
    return jnp.zeros((4096, 512), updates.dtype).at[rows].add(updates) @ weights


def test_the_pieces_of_a_sum_that_is_held_whole_are_constrained_before_they_are_moved_on() -> None:
    args = (array(8192, dtype=np.int32), array(8192, 512), array(512, 128))
    pinned = (P("y"), P("y"), None)
    solution = solved(projected, *args, hardware="tpu-v5e", in_shardings=pinned)
    graph, decoded = solution.graph, solution.decoded
    product = next(op for op in graph.ops if op.name == "dot_general")
    total = product.operands[0]
    held, pieces = (layout_of(solution, text) for text in ('[{"x"}, {}]', '[{"x", "y"}, {}]'))
    assert placed_layout(graph, decoded, total) == held
    assert decoded.layouts[total] == pieces

    at = f"{product.equation}<0"

    def read_as(text: str) -> dict[str, str]:
        wanted = {0: layout_of(solution, text)}
        moved = chosen(solution, product, decoded, operands=wanted)
        found = uses(solution, moved, projected, *args)
        return {path: text for path, text in found.items() if path.startswith(at)}

    assert read_as('[{}, {"x", "y"}]') == {
        f"{at}~0": '<@mesh, [{"x", "y"}, {}]>',
        at: '<@mesh, [{}, {"x", "y"}]>',
    }
    assert read_as('[{"x", "y"}, {}]') == {at: '<@mesh, [{"x", "y"}, {}]>'}


def updated(rows: Any, updates: Any, mean: Any, square: Any) -> Any:
    gradient = jnp.zeros(mean.shape, updates.dtype).at[rows].add(updates)
    return 0.9 * mean + 0.1 * gradient, 0.9 * square + gradient * gradient


def test_a_sum_that_is_held_whole_is_cut_by_name_at_all_that_reads_it() -> None:
    state = array(4096, 512)
    args = (array(8192, dtype=np.int32), array(8192, 512), state, state)
    cut = P(("x", "y"))
    pinned = (P("y"), P("y"), cut, cut)
    solution = solved(updated, *args, hardware="tpu-v5e", in_shardings=pinned, out_shardings=cut)
    graph, decoded = solution.graph, solution.decoded
    total = next(op for op in graph.ops if op.name == "scatter").results[0]
    assert placed_layout(graph, decoded, total) != decoded.layouts[total]
    readers = {graph.ops[index].equation for index in graph.consumers[total]}
    assert len(readers) == 2
    found = uses(solution, decoded, updated, *args)
    cuts = {path.split("<")[0] for path, text in found.items() if '[{"x", "y"}, {}]' in text}
    assert readers <= cuts


def taken(table: Any, rows: Any) -> Any:
    return jnp.take(table, rows, axis=0, mode="clip") * 2.0


def test_rows_that_are_summed_onto_a_batch_are_held_before_they_are_cut() -> None:
    args = (array(4096, 512), array(1024, dtype=np.int32))
    cut = P(("y", "x"))
    asked = {"in_shardings": (P("x"), P("y")), "out_shardings": cut}
    solution = solved(taken, *args, hardware="tpu-v5e", **asked)
    graph = solution.graph
    look_up = next(op for op in graph.ops if op.name == "gather")
    held, pieces = (layout_of(solution, text) for text in ('[{"y"}, {}]', '[{"y", "x"}, {}]'))
    layouts = {0: layout_of(solution, '[{"x"}, {}]')}
    decoded = chosen(solution, look_up, solution.decoded, operands=layouts, results={0: pieces})
    assert placed_layout(graph, decoded, look_up.results[0]) == held
    (reader,) = (graph.ops[index] for index in graph.consumers[look_up.results[0]])
    found = uses(solution, decoded, taken, *args)
    assert found[f"{reader.equation}<0"] == '<@mesh, [{"y", "x"}, {}]>'


def updated_experts(weights: Any, x: Any, cotangent: Any) -> Any:
    gradient = jnp.einsum("bec,bef->ecf", x, jnp.tanh(cotangent))
    return weights - lax.transpose(gradient, (0, 2, 1))


def test_the_transpose_of_a_sum_onto_a_batch_is_held_in_its_place() -> None:
    args = (array(8, 512, 256), array(1024, 8, 256), array(1024, 8, 512))
    cut = P(("x", "y"))
    pinned = (cut, cut, cut)
    plan = autoshard.optimize(
        updated_experts,
        *args,
        mesh=MESH,
        hardware="tpu-v5e",
        baselines=False,
        in_shardings=pinned,
        out_shardings=cut,
    )
    solution = plan.solution
    assert solution is not None
    graph, decoded = solution.graph, solution.decoded
    transpose = next(op for op in graph.ops if op.name == "transpose")
    (total,), (turned,) = transpose.operands, transpose.results
    whole = layout_of(solution, "[{}, {}, {}]")
    assert decoded.layouts[total] == layout_of(solution, '[{"x", "y"}, {}, {}]')
    assert placed_layout(graph, decoded, total) == placed_layout(graph, decoded, turned) == whole
    (reader,) = (graph.ops[index] for index in graph.consumers[turned])
    found = uses(solution, decoded, updated_experts, *args)
    assert found == {f"{reader.equation}<1": '<@mesh, [{"x", "y"}, {}, {}]>'}
    paths = {value: path for path, value in graph.value_by_path.items()}
    assert paths[turned] in plan.data.values
    assert paths[total] not in plan.data.values


def read_after_a_loop(x: Any, weights: Any) -> Any:
    return lax.scan(lambda carry, _: (jnp.tanh(carry), None), x, None, length=8)[0] @ weights


@pytest.mark.parametrize(
    ("wanted", "held"),
    [('[{}, {"x", "y"}]', {"0.0": '<@mesh, [{"x", "y"}, {}]>'}), ('[{"x", "y"}, {}]', {})],
)
def test_what_a_loop_gives_is_constrained_where_an_op_after_it_wants_it_elsewhere(
    wanted: str, held: dict[str, str]
) -> None:
    args = (array(SIDE, SIDE), array(SIDE, SIDE))
    solution = solved(read_after_a_loop, *args)
    (carry,) = carries(solution)
    rows = layout_of(solution, '[{"x", "y"}, {}]')
    decoded = chosen(solution, carry, solution.decoded, results={0: rows})
    product = next(op for op in solution.graph.ops if op.name == "dot_general")
    decoded = chosen(solution, product, decoded, operands={0: layout_of(solution, wanted)})
    found = uses(solution, decoded, read_after_a_loop, *args)
    assert {path: text for path, text in found.items() if "<" not in path} == held


def read_twice_after_a_loop(x: Any, weights: Any) -> Any:
    made = lax.scan(lambda carry, _: (jnp.tanh(carry), None), x, None, length=8)[0]
    return made @ weights, jnp.copy(made) @ weights


def test_what_a_loop_gives_is_constrained_once_whatever_it_is_called_after_that() -> None:
    args = (array(SIDE, SIDE), array(SIDE, SIDE))
    solution = solved(read_twice_after_a_loop, *args)
    (carry,) = carries(solution)
    paths = [path for path, value in solution.graph.value_by_path.items() if value in carry.results]
    assert {"0.0", "2.0"} <= set(paths)
    rows, columns = (layout_of(solution, one) for one in ('[{"x", "y"}, {}]', '[{}, {"x", "y"}]'))
    decoded = chosen(solution, carry, solution.decoded, results={0: rows})
    for product in (op for op in solution.graph.ops if op.name == "dot_general"):
        decoded = chosen(solution, product, decoded, operands={0: columns})
    found = uses(solution, decoded, read_twice_after_a_loop, *args)
    assert [path for path in found if "<" not in path] == ["0.0"]


def layer_with_gradient(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        return (jnp.tanh(x @ params["w1"]) @ params["w2"]).sum()

    return jax.value_and_grad(loss)(params)


def test_reads_of_one_value_in_one_sharding_are_one_constraint_and_one_gather() -> None:
    args = ({"w1": array(512, 64), "w2": array(64, 512)}, array(4096, 512))
    cut = P(("x", "y"))
    plan = autoshard.optimize(
        layer_with_gradient,
        *args,
        mesh=MESH,
        hardware="cpu-host",
        baselines=False,
        in_shardings=({"w1": cut, "w2": cut}, cut),
    )
    assert plan.solution is not None
    found = uses(plan.solution, plan.solution.decoded, layer_with_gradient, *args)
    shared = [path for path in found if "&" in path]
    assert len(shared) == 1  # w2, in the forward and in the backward pass
    reads = {*split_uses(shared[0])}
    assert sum(not reads.isdisjoint(split_uses(path)) for path in plan.constraints) == 1
    assert not plan.data.misses
    verification = plan.verify("local")
    assert verification.compiled_bytes == pytest.approx(verification.predicted_bytes)


def given_back(x: Any) -> Any:
    held = lax.with_sharding_constraint(2 * x, P("y", "x"))
    return jnp.linalg.qr(held)[1], held


def clipped(x: Any) -> Any:
    return lax.cumsum(x), lax.cummax(jnp.clip(lax.stop_gradient(x), -1, 1))


@pytest.mark.usefixtures("compiled_here")
@pytest.mark.parametrize("fn", [given_back, clipped])
def test_a_value_that_is_gathered_in_two_steps_is_gathered_once(fn: Callable[..., Any]) -> None:
    plan = autoshard.optimize(
        fn,
        array(64, 64),
        mesh=MESH,
        hardware="cpu-host",
        baselines=False,
        in_shardings=P("x", "y"),
        out_shardings=P(),
    )
    verification = plan.verify("local")
    assert verification.compiled_bytes == pytest.approx(verification.predicted_bytes)


def test_what_a_matmul_gathers_whatever_it_does_takes_no_constraint() -> None:
    every = P(("x", "y"))

    def layer(x: Any, w: Any) -> Any:
        return x @ w

    args = array(4096, SIDE), array(SIDE, SIDE)
    solution = solved(layer, *args, in_shardings=(every, P(None, ("x", "y"))), out_shardings=every)
    (op,) = (op for op in solution.graph.ops if op.name == "dot_general")
    whole: Layout = ((), ())
    assert solution.decoded.candidates[op.index].operands[1] == whole
    paths = trace(layer, args, mesh=parse_mesh_sizes(MESH)).operand_paths
    assert not wanted_uses(solution.encoded, solution.decoded, paths, merges_all_gathers=True)


@pytest.mark.parametrize("merges_all_gathers", [True, False])
def test_what_two_matmuls_gather_is_named_unless_the_compiler_makes_their_gathers_one(
    merges_all_gathers: bool,
) -> None:
    every = P(("x", "y"))

    def layer(x: Any, w: Any) -> Any:
        return jnp.cos(jnp.tanh(x @ w)) @ w

    args = array(4096, SIDE), array(SIDE, SIDE)
    solution = solved(layer, *args, in_shardings=(every, every), out_shardings=every)
    paths = trace(layer, args, mesh=parse_mesh_sizes(MESH)).operand_paths
    found = wanted_uses(
        solution.encoded, solution.decoded, paths, merges_all_gathers=merges_all_gathers
    )
    assert list(found) == ([] if merges_all_gathers else ["0<1&3<1"])


def test_a_read_inside_a_jit_shares_its_constraint_with_reads_outside() -> None:
    rows = P("x")

    def layer(x: Any, w: Any) -> Any:
        return jax.jit(lambda w, x: x @ w)(w, x), jnp.sin(x) @ w

    args = array(4096, SIDE), array(SIDE, SIDE)
    solution = solved(layer, *args, in_shardings=(rows, P("y")), out_shardings=(rows, rows))
    decoded = solution.decoded
    for op in [op for op in solution.graph.ops if op.name == "dot_general"]:
        decoded = chosen(solution, op, decoded, operands={1: ((), ())})
    paths = trace(layer, args, mesh=parse_mesh_sizes(MESH)).operand_paths
    found = wanted_uses(solution.encoded, decoded, paths, merges_all_gathers=True)
    assert "0<0&2<1" in found


def test_a_scatter_in_the_pieces_of_what_is_added_to_it_takes_no_constraint() -> None:
    def add_up(x: Any, rows: Any, updates: Any) -> Any:
        return x + jnp.zeros_like(x).at[rows].add(updates)

    columns = P(None, ("x", "y"))
    args = array(1024, 1024), array(8192, dtype=np.int32), array(8192, 1024)
    asked = {"in_shardings": (columns, P(), columns), "out_shardings": columns}
    solution = solved(add_up, *args, hardware="tpu-v5e", **asked)
    assert not uses(solution, solution.decoded, add_up, *args)
    layouts = list(solution.decoded.layouts)
    layouts[solution.graph.arguments[0].results[0]] = ((), ())
    elsewhere = replace(solution.decoded, layouts=tuple(layouts))
    scattered = '<@mesh, [{}, {"x", "y"}]>'
    assert [*uses(solution, elsewhere, add_up, *args).values()] == [scattered]


def test_a_matmul_on_part_of_the_mesh_is_told_what_to_gather() -> None:
    rows = P("x")

    def layer(x: Any, w: Any) -> Any:
        return x @ w

    args = array(4096, SIDE), array(SIDE, SIDE)
    solution = solved(layer, *args, in_shardings=(rows, P("y")), out_shardings=rows)
    (op,) = (op for op in solution.graph.ops if op.name == "dot_general")
    decoded = chosen(solution, op, solution.decoded, operands={1: ((), ())})
    paths = trace(layer, args, mesh=parse_mesh_sizes(MESH)).operand_paths
    assert "0<1" in wanted_uses(solution.encoded, decoded, paths, merges_all_gathers=True)


def test_a_matrix_that_a_transpose_reads_too_is_gathered_once_for_both() -> None:
    rows = P(("x", "y"))

    def layer(x: Any, w: Any) -> Any:
        return x @ w, jnp.sin(x) @ w.T

    args = array(4096, SIDE), array(SIDE, SIDE)
    solution = solved(layer, *args, in_shardings=(rows, P("y")), out_shardings=(rows, rows))
    graph, decoded = solution.graph, solution.decoded
    (turn,) = (op for op in graph.ops if op.name == "transpose")
    decoded = chosen(solution, turn, decoded, operands={0: ((), ())}, results={0: ((), ())})
    paths = trace(layer, args, mesh=parse_mesh_sizes(MESH)).operand_paths
    found = wanted_uses(solution.encoded, decoded, paths, merges_all_gathers=True)
    assert list(found) == ["0<1&2<0"]


def test_branches_end_alike_where_one_ends_in_a_constraint_of_the_program() -> None:
    """XLA refuses a conditional whose branches end in unlike constraints; `c + 0` folds away."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def held(x: Any, *axes: Any) -> Any:
        return lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, P(*axes)))

    def either(x: Any) -> Any:
        return lax.cond(x[0] > 0, lambda c: held(c, None) + 0, lambda c: held(c * 2, "x"), x)

    x = jnp.arange(16.0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="Inconsistent conditional sharding"):
        jax.jit(either)(x)
    plan = autoshard.optimize(either, x, mesh=mesh, hardware="cpu-host", baselines=False)
    np.testing.assert_array_equal(plan.jit()(jax.device_put(x, plan.in_shardings[0])), x * 2)


def test_what_a_constraint_in_a_branch_moves_stays_where_it_is_before() -> None:
    """Else propagation may have a loop carry it as the branch wants it, moved there and back."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def held(x: Any, *axes: Any) -> Any:
        return lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, P(None, axes)))

    def with_sum(*axes: Any) -> Any:
        return lambda c: c + jnp.sum(held(c, *axes))

    def body(step: Any, x: Any) -> Any:
        return lax.cond(step % 2 == 0, with_sum("x", "y"), with_sum("y", "x"), x)

    def looped(x: Any) -> Any:
        return lax.fori_loop(0, 3, body, held(jnp.sin(x), "x", "y"))

    x = array(8192, 1024)
    solution = solved(looped, x, mesh=mesh)
    carried = {"2.jaxpr/in.1": '<@mesh, [{}, {"x", "y"}]>'}
    assert uses(solution, solution.decoded, looped, x) == carried
