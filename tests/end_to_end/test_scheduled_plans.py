"""Products that gather their operands in panels where the memory budget is tight."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.export import stage_names, verify_module
from autoshard.hlo.compiled import read_collectives
from tests.export.compile_module import compiles

NUM = 512
WHOLE = NUM * NUM * 4  # bytes of one matrix
NUM_LAYERS = 3
LOOSE = 8  # whole matrices: a budget that everything keeps
NUM_PRODUCTS = 5  # of a training step: two forwards, three backwards

MATRIX = jax.ShapeDtypeStruct((NUM, NUM), jnp.float32)
WEIGHTS = {"w1": MATRIX, "w2": MATRIX}
STACKED = {name: jax.ShapeDtypeStruct((NUM_LAYERS, NUM, NUM), jnp.float32) for name in ("w1", "w2")}


def mlp(params: Any, x: Any) -> Any:
    return jax.nn.relu(x @ params["w1"]) @ params["w2"]


def stack(params: Any, x: Any) -> Any:
    return jax.lax.scan(lambda y, layer: (mlp(layer, y), None), x, params)[0]


def train(params: Any, x: Any) -> Any:
    loss, slopes = jax.value_and_grad(lambda p: jnp.mean((mlp(p, x) - 1) ** 2))(params)
    return jax.tree.map(lambda w, slope: w - 0.1 * slope, params, slopes), loss


def planned(
    fn: Callable[..., Any], params: Any, budget: float, *, mesh: str = "data=8", **options: Any
) -> autoshard.Plan:
    """A plan under a budget in whole matrices."""
    return autoshard.optimize(
        fn,
        params,
        MATRIX,
        mesh=mesh,
        hardware="cpu-host",
        memory_budget=int(budget * WHOLE),
        baselines=False,
        **options,
    )


def drawn(like: Any, seed: int = 3) -> Any:
    draw = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(size=leaf.shape) / NUM**0.5, leaf.dtype), like
    )


def check_runs_right(plan: autoshard.Plan, fn: Callable[..., Any], params: Any) -> None:
    arrays, x = drawn(params), drawn(MATRIX, 4)
    expected = jax.jit(fn)(arrays, x)
    found = plan.jit(fn)(arrays, x)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected
    )


def compiled(plan: autoshard.Plan, fn: Callable[..., Any], params: Any) -> Any:
    return plan.jit(fn).lower(params, MATRIX).compile()


def peak_bytes(program: Any) -> int:
    memory = program.memory_analysis()
    held = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    return int(held - memory.alias_size_in_bytes)


def amounts(collectives: Any) -> dict[tuple[str, int, int], float]:
    """How often each runs, without the reduction of the loss, a few bytes."""
    found: dict[tuple[str, int, int], float] = {}
    for one in collectives:
        key = (one.kind, one.bytes_per_device, one.group_size)
        if one.bytes_per_device > 64:
            found[key] = found.get(key, 0) + one.count
    return found


CASES = [
    pytest.param(mlp, WEIGHTS, "data=8", 1.2, id="mlp"),
    pytest.param(mlp, WEIGHTS, "data=4,model=2", 1.0, id="mlp on two axes"),
    pytest.param(stack, STACKED, "data=8", 2.2, id="scanned stack"),
]


@pytest.mark.parametrize(("fn", "params", "mesh", "budget"), CASES)
def test_weights_that_do_not_fit_gathered_are_streamed(
    fn: Callable[..., Any], params: Any, mesh: str, budget: float
) -> None:
    without = planned(fn, params, budget, mesh=mesh, schedules="none")
    assert without.data.solver.status == "infeasible"
    plan = planned(fn, params, budget, mesh=mesh)
    assert plan.data.is_feasible
    assert plan.data.schedules
    assert plan.data.memory.peak_bytes <= budget * WHOLE
    program = compiled(plan, fn, params)
    assert peak_bytes(program) <= budget * WHOLE
    assert amounts(read_collectives(program.as_text() or "")) == amounts(plan.data.collectives)
    check_runs_right(plan, fn, params)


def algorithms(plan: autoshard.Plan) -> set[str]:
    return {p.schedule.algorithm for p in plan.data.products if p.schedule is not None}


def test_the_tighter_the_budget_the_less_is_held_at_a_time() -> None:
    rows = P("data")
    asked: Any = {"in_shardings": ({"w1": rows, "w2": rows}, rows), "out_shardings": rows}
    budgets = (3, 1.6, 1.2)
    at_once, panels, ring = (planned(mlp, WEIGHTS, budget, **asked) for budget in budgets)
    assert algorithms(at_once) == set()
    assert algorithms(panels) == {"summa in panels"}
    assert algorithms(ring) == {"all-gather-matmul"}
    seconds = [plan.data.seconds for plan in (at_once, panels, ring)]
    assert seconds == sorted(seconds)
    assert {"collective-permute"} == {c.kind for c in ring.data.collectives}
    for plan, budget in zip((at_once, panels, ring), budgets, strict=True):
        program = compiled(plan, mlp, WEIGHTS)
        assert amounts(read_collectives(program.as_text() or "")) == amounts(plan.data.collectives)
        assert peak_bytes(program) <= budget * WHOLE
        check_runs_right(plan, mlp, WEIGHTS)


@pytest.mark.parametrize(
    ("budget", "algorithm"),
    [(2.0, "all-gather-matmul"), (0.7, "cannon"), (0.4, "summa in panels")],
)
def test_where_pieces_travel_beside_products_they_go_round_before_panels_are_gathered(
    budget: float, algorithm: str
) -> None:
    num = 16384
    matrix = jax.ShapeDtypeStruct((num, num), jnp.bfloat16)
    blocks = P("x", "y")
    plan = autoshard.optimize(
        lambda a, b: a @ b,
        matrix,
        matrix,
        mesh="x=4,y=4",
        hardware="tpu-v5e",
        in_shardings=(blocks, blocks),
        out_shardings=blocks,
        memory_budget=int(budget * num * num * 2),
        baselines=False,
    )
    assert algorithms(plan) == {algorithm}
    assert plan.data.overlapped_seconds is not None
    is_hidden = plan.data.overlapped_seconds < plan.data.seconds
    assert is_hidden == (algorithm != "summa in panels")


def test_sums_that_do_not_fit_go_round() -> None:
    columns = P(None, "data")
    asked: Any = {
        "in_shardings": ({"w1": P("data"), "w2": P("data")}, columns),
        "out_shardings": P("data"),
    }
    plan = planned(mlp, WEIGHTS, 1.0, **asked)
    assert algorithms(plan) == {"matmul-reduce-scatter", "summa in panels"}
    program = compiled(plan, mlp, WEIGHTS)
    assert amounts(read_collectives(program.as_text() or "")) == amounts(plan.data.collectives)
    assert peak_bytes(program) <= plan.data.memory.peak_bytes <= WHOLE
    check_runs_right(plan, mlp, WEIGHTS)


@pytest.mark.parametrize("budget", [1.3, 1.6])
def test_a_training_step_streams_forwards_and_backwards(budget: float) -> None:
    options: Any = {"donate_argnums": 0}
    without = planned(train, WEIGHTS, budget, schedules="none", **options)
    assert without.data.solver.status == "infeasible"
    plan = planned(train, WEIGHTS, budget, **options)
    assert len(plan.data.schedules) == NUM_PRODUCTS
    program = compiled(plan, train, WEIGHTS)
    assert amounts(read_collectives(program.as_text() or "")) == amounts(plan.data.collectives)
    assert plan.data.memory.peak_bytes <= budget * WHOLE
    check_runs_right(plan, train, WEIGHTS)
    # CPUs copy weights that a ring reads and an update overwrites, and compute the loss last, which
    # predictions leave out; the plan says that it may be so.
    assert any("plan.verify tells" in note for note in plan.data.notes)
    at_once = planned(train, WEIGHTS, LOOSE, schedules="none", **options)
    assert peak_bytes(program) < 0.5 * peak_bytes(compiled(at_once, train, WEIGHTS))


def test_the_sums_of_a_product_are_held_only_from_when_it_runs() -> None:
    def deep(params: Any, x: Any) -> Any:
        for layer in params:
            x = mlp(layer, x)
        return x

    params = [WEIGHTS] * NUM_LAYERS
    plan = planned(deep, params, 1.8)
    assert len(plan.data.schedules) == 2 * NUM_LAYERS
    assert peak_bytes(compiled(plan, deep, params)) <= plan.data.memory.peak_bytes
    check_runs_right(plan, deep, params)


@pytest.mark.parametrize("budget", [3.96, 4.05, 4.4])
def test_what_fits_a_budget_is_found_within_a_larger_one(budget: float) -> None:
    def train_stack(params: Any, x: Any) -> Any:
        slopes = jax.grad(lambda p: jnp.mean((stack(p, x) - 1) ** 2))(params)
        return jax.tree.map(lambda w, slope: w - 0.1 * slope, params, slopes)

    assert planned(train_stack, STACKED, budget, donate_argnums=0).data.is_feasible


def test_where_all_fits_every_product_stays_one_gather() -> None:
    rows = P("data")
    asked: Any = {"in_shardings": ({"w1": rows, "w2": rows}, rows), "out_shardings": rows}
    plan = planned(mlp, WEIGHTS, 8, **asked)
    assert not plan.data.schedules
    for product in plan.data.products:
        assert product.other_seconds is not None
        assert product.other_fits
        assert product.other_seconds > product.seconds
    assert "fits, no faster" in plan.report()
    kinds = [(c.kind, c.count) for c in plan.data.collectives]
    assert kinds == [("all-gather", 1.0), ("all-gather", 1.0)]


def test_only_the_heavy_product_of_a_program_has_steps() -> None:
    def head(params: Any, x: Any) -> Any:
        return mlp(params, x) @ params["small"]

    params = {**WEIGHTS, "small": jax.ShapeDtypeStruct((NUM, 16), jnp.float32)}
    plan = planned(head, params, 1.2)
    heavy = f"f32[{NUM}, {NUM}]"
    assert [p.result for p in plan.data.products if p.schedule is not None] == [heavy, heavy]
    check_runs_right(plan, head, params)


def test_the_report_says_what_runs_in_steps_and_why() -> None:
    plan = planned(mlp, WEIGHTS, 1.2)
    report = plan.report()
    assert "Heavy matmuls" in report
    assert all(algorithm in report for algorithm in algorithms(plan))
    assert "round data" in report
    assert "in 8 steps, from" in report
    assert "does not fit" in report


def test_a_saved_plan_keeps_its_schedules(tmp_path: Path) -> None:
    plan = planned(mlp, WEIGHTS, 1.2)
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.load_plan(tmp_path / "plan.json", mlp)
    assert loaded.data.products == plan.data.products
    check_runs_right(loaded, mlp, WEIGHTS)


def test_a_wrapped_function_in_steps_can_be_differentiated() -> None:
    plan = planned(mlp, WEIGHTS, 1.2)
    wrapped = plan.wrap(mlp)
    arrays, x = drawn(WEIGHTS), drawn(MATRIX, 4)
    slopes = [
        jax.jit(jax.grad(lambda p, fn=fn: jnp.sum(jnp.tanh(fn(p, x)))))(arrays)
        for fn in (mlp, wrapped)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *slopes)


def test_products_inside_a_shard_map_are_left_alone() -> None:
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((8,), ("data",), axis_types=auto)

    def body(w: Any, x: Any) -> Any:
        return x @ w

    def mapped(params: Any, x: Any) -> Any:
        inner = jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
        return inner(params["w1"], x)

    plan = planned(mapped, WEIGHTS, 4)
    assert plan.data.products == ()


@pytest.mark.parametrize(("fn", "params", "mesh", "budget"), CASES)
def test_an_exported_plan_runs_its_products_in_steps(
    fn: Callable[..., Any], params: Any, mesh: str, budget: float
) -> None:
    plan = planned(fn, params, budget, mesh=mesh)
    exported = jax.export.deserialize(plan.export().serialize())
    placed = jax.device_put((drawn(params), drawn(MATRIX, 4)), plan.in_shardings)
    called = jax.jit(exported.call)
    np.testing.assert_array_equal(called(*placed), plan.jit(fn)(*placed))
    program = called.lower(*placed).compile()
    assert amounts(read_collectives(program.as_text() or "")) == amounts(plan.data.collectives)
    assert peak_bytes(program) <= budget * WHOLE


def test_an_exported_training_step_in_steps_gives_the_numbers_of_the_plan() -> None:
    plan = planned(train, WEIGHTS, 1.6, donate_argnums=0)
    assert plan.data.schedules
    exported = jax.export.deserialize(plan.export().serialize())
    arrays, x = drawn(WEIGHTS), drawn(MATRIX, 4)
    found = jax.jit(exported.call)(*jax.device_put((arrays, x), plan.in_shardings))
    jax.tree.map(np.testing.assert_array_equal, found, plan.jit(train)(arrays, x))


@cache
def on_two_axes() -> autoshard.Plan:
    return planned(mlp, WEIGHTS, 1.0, mesh="data=4,model=2")


@pytest.mark.parametrize("stage", ["planned", *stage_names()])
def test_every_export_step_keeps_products_in_steps(stage: str) -> None:
    plan = on_two_axes()
    text = plan.stablehlo(stage, platform="cpu")
    assert text.count("sdy.manual_computation(") == len(plan.data.schedules)
    args = (drawn(WEIGHTS), drawn(MATRIX, 4))
    found = compiles(text, plan.export(), args, plan)
    np.testing.assert_allclose(found[0], jax.jit(mlp)(*args), rtol=1e-4, atol=1e-5)
    if stage in ("explicit", "no-rules", "collectives"):
        assert verify_module(text) == ()


def test_an_unknown_way_to_choose_schedules_is_refused() -> None:
    with pytest.raises(autoshard.InputError) as caught:
        planned(mlp, WEIGHTS, 1.2, schedules="all")
    assert str(caught.value) == (
        "schedules is 'all', which is no way to choose them\n"
        "  where: schedules='all'\n"
        '  fix: use "auto" or "none"'
    )
