"""What a user asks for changes the plan, and the compiled program on eight devices keeps to it.

Each test shows a choice without and with the constraint, and runs the planned function: the numbers
are those of the function alone.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.shard_alike import shard_alike
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard import Group, Pin, Plan, Uses
from autoshard.cli import main
from autoshard.hlo.compiled import compare_collectives, read_compiled
from autoshard.plans.plan_json import load_plan_data

MESH = "x=2,y=4"
HERE = Path(__file__).name


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


PARAMS = {"w1": f32(64, 128), "w2": f32(128, 32)}
X = f32(256, 64)


def mlp(params: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ params["w1"])
    return hidden @ params["w2"]


def line_of(fn: Callable[..., Any], text: str) -> str:
    """Selector of the line of a function that holds `text`."""
    lines, first = inspect.getsourcelines(fn)
    return f"{HERE}:{first + next(i for i, line in enumerate(lines) if text in line)}"


def plan_of(fn: Callable[..., Any], *args: Any, **options: Any) -> Plan:
    return autoshard.optimize(fn, *args, mesh=MESH, hardware="cpu-host", baselines=False, **options)


def ends(plan: Plan) -> dict[str, tuple[str, ...]]:
    """How arguments and results are cut, by name."""
    tensors = (*plan.data.arguments, *plan.data.results)
    return {tensor.name: spec_of(tensor.sharding) for tensor in tensors}


def spec_of(sharding: autoshard.Sharding) -> tuple[str, ...]:
    return tuple("".join(ref.name for ref in dim.axes) for dim in sharding.dims)


def run(plan: Plan, fn: Callable[..., Any], *args: Any) -> str:
    """Run the planned function, check its numbers and shardings; the compiled program as text."""
    rng = np.random.default_rng(0)
    given = jax.tree.map(lambda s: rng.normal(scale=0.1, size=s.shape).astype(np.float32), args)
    step = plan.jit()
    found = step(*given)
    for have, want in zip(jax.tree.leaves(found), jax.tree.leaves(fn(*given)), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    wanted = jax.tree.leaves(plan.out_shardings)
    for value, sharding in zip(jax.tree.leaves(found), wanted, strict=True):
        assert value.sharding.is_equivalent_to(sharding, value.ndim)
    compiled = step.lower(*args).compile()
    for have, want in zip(
        jax.tree.leaves(compiled.input_shardings[0]),
        jax.tree.leaves(plan.in_shardings),
        strict=True,
    ):
        assert have.is_equivalent_to(want, len(want.spec) or 2)
    return str(compiled.as_text())


def pieces(text: str, op: str) -> set[tuple[int, ...]]:
    """Shapes that one device computes of an op, from the compiled program."""
    return {
        tuple(map(int, shape.split(",")))
        for shape in re.findall(rf"= f32\[([\d,]+)\]\S* {op}\(", text)
    }


@pytest.fixture(scope="module")
def free() -> Plan:
    """The plan of `mlp` nobody asked anything of: rows over both axes, weights whole."""
    plan = plan_of(mlp, PARAMS, X)
    assert ends(plan) == {
        "params['w1']": ("", ""),
        "params['w2']": ("", ""),
        "x": ("xy", ""),
        "result": ("xy", ""),
    }
    return plan


# -- arguments and results -------------------------------------------------------------------------


@pytest.mark.usefixtures("free")
def test_a_closed_argument_is_final() -> None:
    plan = plan_of(mlp, PARAMS, X, constraints={'params["w1"]': '[{}, {"y"}]'})
    assert ends(plan)["params['w1']"] == ("", "y")
    assert ends(plan)["x"] == ("x", "")
    run(plan, mlp, PARAMS, X)


@pytest.mark.usefixtures("free")
def test_an_open_argument_is_extended_where_that_pays() -> None:
    plan = plan_of(mlp, PARAMS, X, constraints={"x": '[{"y", ?}, {}]'})
    assert ends(plan)["x"] == ("yx", "")
    closed = plan_of(mlp, PARAMS, X, constraints={"x": '[{"y"}, {}]'})
    assert ends(closed)["x"] == ("y", "")
    run(plan, mlp, PARAMS, X)
    run(closed, mlp, PARAMS, X)


@pytest.mark.usefixtures("free")
def test_replicated_axes_are_off_limits() -> None:
    plan = plan_of(mlp, PARAMS, X, constraints={"x": '[{?}, {?}], replicated={"x"}'})
    assert ends(plan)["x"] == ("y", "")
    run(plan, mlp, PARAMS, X)


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("sharding", [P("x", "y"), '[{"x"}, {"y"}]'])
def test_a_result_is_handed_back_as_asked(sharding: Any) -> None:
    plan = plan_of(mlp, PARAMS, X, constraints={"result": sharding})
    assert ends(plan)["result"] == ("x", "y")
    run(plan, mlp, PARAMS, X)


@pytest.mark.usefixtures("free")
def test_a_pattern_reaches_every_tensor_it_matches() -> None:
    plan = plan_of(mlp, PARAMS, X, constraints={'params["w*"]': '[{?}, {"y"}]'})
    assert ends(plan)["params['w1']"][1] == "y"
    assert ends(plan)["params['w2']"][1] == "y"
    run(plan, mlp, PARAMS, X)


# -- values inside ---------------------------------------------------------------------------------


def test_a_line_of_source_is_pinned(free: Plan) -> None:
    assert pieces(run(free, mlp, PARAMS, X), "tanh") == {(32, 128)}
    plan = plan_of(mlp, PARAMS, X, constraints={line_of(mlp, "tanh"): '[{"x"}, {"y"}]'})
    assert spec_of(plan.data.values["1.0"]) == ("x", "y")
    assert pieces(run(plan, mlp, PARAMS, X), "tanh") == {(128, 32)}


def test_a_primitive_of_a_line_is_pinned(free: Plan) -> None:
    assert spec_of(free.data.values["0.0"]) == ("xy", "")
    plan = plan_of(
        mlp, PARAMS, X, constraints={line_of(mlp, "tanh") + " dot_general": '[{}, {"y"}]'}
    )
    assert spec_of(plan.data.values["0.0"]) == ("", "y")
    run(plan, mlp, PARAMS, X)


def named_mlp(params: Any, x: Any) -> Any:
    hidden = checkpoint_name(jnp.tanh(x @ params["w1"]), "hidden")
    return hidden @ params["w2"]


def test_a_checkpoint_name_is_pinned() -> None:
    assert pieces(run(plan_of(named_mlp, PARAMS, X), mlp, PARAMS, X), "tanh") == {(32, 128)}
    plan = plan_of(named_mlp, PARAMS, X, constraints={"name:hidden": '[{"x"}, {"y"}]'})
    assert pieces(run(plan, mlp, PARAMS, X), "tanh") == {(128, 32)}


def loss(params: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ params["w1"])
    return ((hidden @ params["w2"]) ** 2).mean()


def test_the_backward_pass_of_a_line_is_pinned_apart() -> None:
    """Its cotangents, and not what the line makes in the forward pass."""
    gradient = jax.grad(loss)
    line = line_of(loss, "tanh")
    free = plan_of(gradient, PARAMS, X)
    forward = plan_of(gradient, PARAMS, X, constraints={f"{line} tanh": '[{"y"}, {"x"}]'})
    backward = plan_of(
        gradient, PARAMS, X, constraints={f"{line} dot_general backward": '[{"y"}, {"x"}]'}
    )

    def shardings(plan: Plan, *terms: Plan) -> list[tuple[str, ...]]:
        paths = [path for asked in terms for term in asked.data.asked for path in term.paths]
        return [spec_of(plan.data.values[path]) for path in paths]

    assert shardings(forward, forward) == [("y", "x")]
    assert shardings(backward, backward) == [("y", "x")]
    assert ("y", "x") not in shardings(free, forward, backward)
    assert ("y", "x") not in shardings(backward, forward)
    run(forward, gradient, PARAMS, X)
    run(backward, gradient, PARAMS, X)


def layers(stack: Any, x: Any) -> Any:
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        hidden = jnp.tanh(x @ w)
        return jnp.sin(hidden), None

    return jax.lax.scan(jax.checkpoint(layer), x, stack)[0].sum()


def test_a_line_in_a_loop_and_what_remat_computes_again_are_pinned() -> None:
    gradient = jax.grad(layers)
    args = (f32(3, 64, 64), f32(256, 64))
    line = line_of(layers, "tanh")
    free = plan_of(gradient, *args)
    plan = plan_of(gradient, *args, constraints={line: '[{"x"}, {"y"}]'})
    (term,) = plan.data.asked
    assert len(term.paths) == 2
    assert {spec_of(plan.data.values[path]) for path in term.paths} == {("x", "y")}
    assert {spec_of(free.data.values[path]) for path in term.paths} != {("x", "y")}
    assert set(term.paths) <= set(plan.constraints)
    run(plan, gradient, *args)


# -- uses ------------------------------------------------------------------------------------------


def twice(x: Any, w: Any) -> Any:
    a = jnp.tanh(x) @ w
    b = jnp.sin(x) * 2
    return a, b


def test_a_use_is_sharded_apart_from_other_uses() -> None:
    args = (f32(256, 64), f32(64, 64))
    free = run(plan_of(twice, *args), twice, *args)
    assert pieces(free, "tanh") == pieces(free, "sine") == {(32, 64)}
    rows = Pin("x", '[{"x", "y"}, {}]')
    columns = Uses("x", '[{}, {"y"}]', by=line_of(twice, "tanh"))
    plan = plan_of(twice, *args, constraints=[rows, columns])
    assert spec_of(plan.constraints["0<0"]) == ("", "y")
    assert ends(plan)["x"] == ("xy", "")
    text = run(plan, twice, *args)
    assert pieces(text, "tanh") == {(256, 16)}
    assert pieces(text, "sine") == {(32, 64)}


def test_every_use_of_a_value_leaves_the_value_free() -> None:
    args = (f32(256, 64), f32(64, 64))
    line = line_of(twice, "tanh") + " tanh"
    plan = plan_of(twice, *args, constraints=[Uses(line, "[{}, {}]")])
    assert spec_of(plan.data.wanted_uses["1<0"]) == ("", "")
    run(plan, twice, *args)


def test_a_read_inside_a_loop_is_sharded_as_asked() -> None:
    def repeated(x: Any, w: Any) -> Any:
        def body(x: Any, _: None) -> tuple[Any, None]:
            return jnp.tanh(x @ w), None

        return jax.lax.scan(body, x, None, length=3)[0]

    args = (f32(256, 64), f32(64, 64))
    assert ends(plan_of(repeated, *args))["x"] == ("xy", "")
    plan = plan_of(
        repeated, *args, constraints=[Uses("w", '[{}, {"y"}]', by=line_of(repeated, "tanh"))]
    )
    ((use, sharding),) = [(p, s) for p, s in plan.constraints.items() if p.endswith("/0<1")]
    assert use.startswith("0.")
    assert spec_of(sharding) == ("", "y")
    run(plan, repeated, *args)


def test_a_read_inside_a_while_loop_is_sharded_as_asked() -> None:
    def repeated(x: Any, w: Any) -> Any:
        def more(state: Any) -> Any:
            return state[0] < 3

        def turn(state: Any) -> Any:
            return state[0] + 1, jnp.tanh(state[1] @ w)

        return jax.lax.while_loop(more, turn, (0, x))[1]

    args = (f32(256, 64), f32(64, 64))
    asked = [Uses("w", '[{}, {"y"}]', by=line_of(repeated, "tanh"))]
    plan = plan_of(repeated, *args, constraints=asked)
    (term,) = plan.data.asked
    assert [path.startswith("0.body_jaxpr/") for path in term.paths] == [True]
    assert spec_of(plan.constraints[term.paths[0]]) == ("", "y")
    run(plan, repeated, *args)


def test_what_a_call_returns_is_read_behind_what_its_body_makes() -> None:
    """Both paths name one value of the module, each with a constraint of its own."""

    def program(x: Any) -> Any:
        ordered = jnp.sort(x, -1)
        return jnp.cumsum(ordered, 0)

    args = (f32(256, 64),)
    asked = {
        line_of(program, "sort"): P("y", "x"),
        line_of(program, "cumsum"): P("x", "y"),
    }
    plan = plan_of(program, *args, constraints=asked)
    step = plan.jit()
    assert plan.data.misses == ()
    assert [spec_of(plan.constraints[p]) for t in plan.data.asked for p in t.paths] == [
        ("y", "x"),
        ("x", "y"),
    ]
    found = read_compiled(step.lower(*args).compile(), plan.data.mesh).collectives
    assert compare_collectives(plan.data.collectives, found).difference_percent == 0
    run(plan, program, *args)


def accumulated(params: Any, batches: Any) -> Any:
    def add(i: Any, total: Any) -> Any:
        batch = jax.lax.dynamic_index_in_dim(batches, i, 0, keepdims=False)
        gradient = jax.grad(lambda p: (jnp.tanh(batch @ p["w1"]) @ p["w2"]).sum() ** 2)(params)
        return jax.tree.map(jnp.add, total, gradient)

    return jax.lax.fori_loop(0, 4, add, jax.tree.map(jnp.zeros_like, params))


def test_a_loop_and_its_body_may_both_read_a_parameter_otherwise_than_it_lies() -> None:
    """Constraints at both places once went into the module in the wrong order, which crashed."""
    args = ({"w1": f32(32, 64), "w2": f32(64, 16)}, f32(4, 16, 32))
    line = line_of(accumulated, "gradient =")
    asked = {
        "batches": P(None, "x"),
        "params**": P("y"),
        f"{line} tanh": '[{"x"}, {"y"}]',
        "result**": P("y", "x"),
    }
    plan = plan_of(accumulated, *args, constraints=asked)
    assert {path.partition(".")[0].partition("<")[0] for path in plan.constraints} == {"2", "out"}
    assert any(path.startswith("2<") for path in plan.constraints)
    assert any(path.startswith("2.jaxpr/") and "<" in path for path in plan.constraints)
    assert not plan.data.misses
    run(plan, accumulated, *args)


def test_reads_that_begin_with_one_step_share_it() -> None:
    """Rows by "y" are gathered once, for a read of whole rows and one of rows by "x"."""

    def program(x: Any, w: Any) -> Any:
        a = jnp.tanh(x) @ w
        b = jnp.sin(x) @ w
        return a, b

    plan = plan_of(
        program,
        f32(256, 64),
        f32(64, 64),
        constraints=[
            Pin("x", '[{"y"}, {}]'),
            Uses("x", "[{}, {}]", by=line_of(program, "tanh")),
            Uses("x", '[{"x"}, {}]', by=line_of(program, "sin(x)")),
        ],
    )
    (gather,) = (c for c in plan.data.collectives if c.kind == "all-gather" and c.axes == ("y",))
    assert gather.bytes_per_device == 256 * 64 * 4
    compiled = plan.jit().lower(f32(256, 64), f32(64, 64)).compile()
    found = read_compiled(compiled, plan.data.mesh).collectives
    assert compare_collectives(plan.data.collectives, found).difference_percent == 0
    run(plan, program, f32(256, 64), f32(64, 64))


# -- written in the program ------------------------------------------------------------------------


def dropped(params: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ params["w1"])
    jax.lax.with_sharding_constraint(hidden, P("x", "y"))
    return hidden @ params["w2"]


def test_a_constraint_whose_result_is_dropped_shards_the_value() -> None:
    plan = plan_of(dropped, PARAMS, X)
    assert pieces(run(plan, mlp, PARAMS, X), "tanh") == {(128, 32)}


def dropped_in_bodies(x: Any) -> Any:
    def body(x: Any, _: None) -> tuple[Any, None]:
        x = jnp.sin(x)
        jax.lax.with_sharding_constraint(x, P("x", "y"))
        return x, None

    x, _ = jax.lax.scan(body, x, None, length=2)

    def inner(x: Any) -> Any:
        y = jnp.tanh(x)
        jax.lax.with_sharding_constraint(y, P("y", "x"))
        return y

    def branch(x: Any) -> Any:
        y = jnp.cos(x)
        jax.lax.with_sharding_constraint(y, P(None, "x"))
        return y

    return jax.lax.cond(x[0, 0] > 0, branch, lambda x: x, jax.jit(inner)(x))


def plain_bodies(x: Any) -> Any:
    y = jnp.tanh(jnp.sin(jnp.sin(x)))
    return jnp.where(jnp.sin(jnp.sin(x))[0, 0] > 0, jnp.cos(y), y)


def test_a_dropped_constraint_in_a_body_shards_the_value_there() -> None:
    plan = plan_of(dropped_in_bodies, X)
    text = run(plan, plain_bodies, X)
    assert pieces(text, "sine") == {(128, 16)}
    in_call = [s for path, s in plan.data.values.items() if path.startswith("4.jaxpr/")]
    assert spec_of(in_call[-1]) == spec_of(plan.data.values["4.0"]) == ("y", "x")
    assert not plan.data.misses
    in_branches = [s for path, s in plan.data.values.items() if ".branches[" in path]
    assert ("", "x") in map(spec_of, in_branches)


def constrains_its_argument(x: Any) -> Any:
    jax.lax.with_sharding_constraint(x, P("y", "x"))
    return jnp.sin(x) * 2


def test_a_dropped_constraint_on_an_argument_shards_the_argument() -> None:
    def alone(x: Any) -> Any:
        return jnp.sin(x) * 2

    assert ends(plan_of(alone, X))["x"] == ("xy", "")
    plan = plan_of(constrains_its_argument, X)
    assert ends(plan)["x"] == ("y", "x")
    run(plan, alone, X)


def test_an_argument_asked_otherwise_is_moved_to_its_constraint() -> None:
    plan = plan_of(constrains_its_argument, X, in_shardings=(P("x"),))
    assert ends(plan)["x"] == ("x", "")
    assert pieces(run(plan, lambda x: jnp.sin(x) * 2, X), "sine") == {(64, 32)}


# -- in a shard_map body ---------------------------------------------------------------------------


def by_hand(x: Any, w: Any) -> Any:
    def body(x: Any, w: Any) -> Any:
        hidden = jnp.tanh(x @ w)
        return jnp.sin(hidden) * 2

    return jax.shard_map(
        body, in_specs=(P("x"), P()), out_specs=P("x"), axis_names=frozenset({"x"})
    )(x, w)


def test_a_line_in_a_shard_map_body_is_pinned_along_the_axes_it_leaves_free() -> None:
    def alone(x: Any, w: Any) -> Any:
        return jnp.sin(jnp.tanh(x @ w)) * 2

    args = (f32(256, 64), f32(64, 128))
    line = line_of(by_hand, "tanh")
    assert pieces(run(plan_of(by_hand, *args), alone, *args), "tanh") == {(32, 128)}
    plan = plan_of(by_hand, *args, constraints={line: '[{}, {"y"}]'})
    assert pieces(run(plan, alone, *args), "tanh") == {(128, 32)}
    with pytest.raises(autoshard.ConstraintError) as caught:
        plan_of(by_hand, *args, constraints={line: '[{"x"}, {"y"}]'})
    assert str(caught.value) == (
        f'tanh at {line} (body): float32[128, 128]: "x" is manual inside this shard_map body,'
        " where tensors are local to it\n"
        f"  where: pin `{line}`\n"
        "  fix: use axes that the shard_map does not map over"
    )


# -- groups ----------------------------------------------------------------------------------------


def zeros_beside(x: Any) -> Any:
    return jnp.sin(x), jnp.zeros_like(x)


def alike_zeros(x: Any) -> Any:
    x, zeros = shard_alike(x, jnp.zeros_like(x))
    return jnp.sin(x), zeros


def test_zeros_in_a_group_with_an_argument_are_sharded_like_it() -> None:
    """The example of Shardy's compiler API: a constant that no data leads to."""
    given = {"in_shardings": (P("y", "x"),)}
    assert ends(plan_of(zeros_beside, X, **given))["result[1]"] != ("y", "x")
    for plan in (
        plan_of(alike_zeros, X, **given),
        plan_of(zeros_beside, X, **given, constraints=[Group("x", "result[1]")]),
    ):
        assert ends(plan)["result[1]"] == ("y", "x")
        run(plan, zeros_beside, X)


def test_tensors_of_one_group_end_the_same(free: Plan) -> None:
    assert ends(free)["x"] != ends(free)["params['w1']"]
    plan = plan_of(
        mlp,
        PARAMS,
        X,
        constraints=[Group("x", id=1), Group("params**", id=1), Pin("x", '[{"y"}, {"x"}]')],
    )
    assert ends(plan)["params['w1']"] == ends(plan)["params['w2']"] == ("y", "x")
    run(plan, mlp, PARAMS, X)


def test_a_value_in_a_group_ends_like_the_others(free: Plan) -> None:
    assert spec_of(free.data.values["1.0"]) == ("xy", "")
    line = line_of(mlp, "tanh")
    plan = plan_of(mlp, PARAMS, X, constraints=[Group(line, "result"), Pin("result", P("y", "x"))])
    assert spec_of(plan.data.values["1.0"]) == ("y", "x")
    assert pieces(run(plan, mlp, PARAMS, X), "tanh") == {(64, 64)}


# -- from a file, and kept -------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, whose modules are forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("net", None)


NET = """\
import jax
import jax.numpy as jnp


def mlp(params, x):
    hidden = jnp.tanh(x @ params["w1"])
    return hidden @ params["w2"]


def autoshard_args():
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return {
        "args": ({"w1": f32(64, 128), "w2": f32(128, 32)}, f32(256, 64)),
        "constraints": {"result": '[{"x", ?}, {?}]'},
    }
"""

CONSTRAINTS = """\
pins:
  net.py:6: '[{"x"}, {"y"}]'
uses:
  - select: 'params["w2"]'
    by: net.py:7
    sharding: '[{"y"}, {}]'
"""


def test_the_command_line_takes_a_file_beside_what_the_hook_says(folder: Path) -> None:
    (folder / "net.py").write_text(NET)
    (folder / "asked.yaml").write_text(CONSTRAINTS)
    command = ("plan", "net:mlp", "--mesh", MESH, "--no-baselines", "--out", "plan.json")
    done = CliRunner().invoke(main, (*command, "--constraints", "asked.yaml"))
    assert (done.exit_code, done.stderr) == (0, "")
    data = load_plan_data(folder / "plan.json")
    assert spec_of(data.values["1.0"]) == ("x", "y")
    assert spec_of(data.results[0].sharding)[0][:1] == "x"
    assert spec_of(data.wanted_uses["2<1"]) == ("y", "")
    assert [term.text for term in data.asked] == [
        'pin `result`: [{"x", ?}, {?}]',
        'pin `net.py:6` (asked.yaml:2): [{"x"}, {"y"}]',
        'uses of `params["w2"]` by `net.py:7` (asked.yaml:4): [{"y"}, {}]',
    ]
    loaded = autoshard.load_plan(folder / "plan.json", mlp, PARAMS, X)
    assert pieces(run(loaded, mlp, PARAMS, X), "tanh") == {(128, 32)}


def test_the_command_line_names_the_line_of_the_file(folder: Path) -> None:
    (folder / "net.py").write_text(NET)
    (folder / "asked.yaml").write_text("pins:\n  result: '[{\"y\"}, {?}]'\n")
    command = ("plan", "net:mlp", "--mesh", MESH, "--no-baselines")
    done = CliRunner().invoke(main, (*command, "--constraints", "asked.yaml"))
    assert done.exit_code == 2
    assert done.stderr == (
        'error: `result`: float32[256, 32] cannot be both [{"x", ?}, {?}] and [{"y"}, {?}]:'
        ' dimension 0 is closed at {"y"} and asked to begin with {"x", ?}\n'
        "  where: pin `result`; pin `result` (asked.yaml:2)\n"
        "  fix: ask for one of them, or open a dimension of the other: {?} or"
        " P.UNCONSTRAINED\n"
    )
