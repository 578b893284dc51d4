"""What a traced function is called, where its arguments come from, and when two are the same."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.extend.core import Primitive
from jax.sharding import NamedSharding, PartitionSpec

from autoshard.errors import AutoshardError, InputError, ShardingError
from autoshard.frontend.trace import Traced, trace
from autoshard.sharding import format_sharding, parse_mesh_sizes, parse_sharding

MESH = parse_mesh_sizes("x=2,y=4")
X = jax.ShapeDtypeStruct((8, 16), jnp.float32)
W = jax.ShapeDtypeStruct((16, 16), jnp.float32)
OPEN = PartitionSpec.UNCONSTRAINED


def shown(shardings: tuple[Any, ...]) -> list[str | None]:
    return [sharding and format_sharding(sharding) for sharding in shardings]


def step(state: Any, batch: Any) -> Any:
    def loss(params: Any) -> Any:
        return jnp.mean((batch["x"] @ params["w"] + params["b"]) ** 2)

    value, gradient = jax.value_and_grad(loss)(state["params"])
    return jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], gradient), value


STATE = {"params": {"b": jax.ShapeDtypeStruct((16,), jnp.float32), "w": W}}


def test_arguments_and_results_have_the_users_names() -> None:
    program = trace(step, (STATE, {"x": X}), mesh=MESH)
    assert program.in_names == ("state['params']['b']", "state['params']['w']", "batch['x']")
    assert program.out_names == ("result[0]['b']", "result[0]['w']", "result[1]")
    assert [aval.str_short() for aval in program.in_avals] == [
        "float32[16]",
        "float32[16,16]",
        "float32[8,16]",
    ]
    assert [aval.str_short() for aval in program.out_avals][-1] == "float32[]"


def test_a_field_called_value_is_named_beside_others() -> None:
    class Search(NamedTuple):
        value: Any
        steps: Any

    program = trace(lambda state: state, (Search(X, X),), mesh=MESH)
    assert program.in_names == ("state.value", "state.steps")
    assert program.out_names == ("result.value", "result.steps")


def test_positional_keyword_and_collected_arguments_are_all_named() -> None:
    def fn(first: Any, *rest: Any, scale: Any) -> Any:
        return first + sum(rest) * scale

    program = trace(fn, (X, X, X), {"scale": jnp.float32(2)}, mesh=MESH)
    assert program.in_names == ("first", "rest[0]", "rest[1]", "scale")


def test_partial_functions_and_lambdas_trace() -> None:
    program = trace(functools.partial(lambda a, x: x * a, 2.0), (X,), mesh=MESH)
    assert program.in_names == ("x",)


def test_numbers_are_traced_with_a_weak_type() -> None:
    program = trace(lambda x, rate: x * rate, (X.update(dtype=jnp.bfloat16), 0.1), mesh=MESH)
    assert program.out_avals[0].dtype == jnp.bfloat16


def test_static_arguments_stay_python_values() -> None:
    def fn(x: Any, mode: str, power: int) -> Any:
        return jnp.tanh(x) if mode == "tanh" else x**power

    program = trace(fn, (X, "power", 3), mesh=MESH, static_argnums=(1, 2))
    assert program.in_names == ("x",)
    assert [eqn.primitive.name for eqn in program.jaxpr.jaxpr.eqns] == ["integer_pow"]


def test_unused_arguments_are_kept() -> None:
    program = trace(lambda x, _: x * 2, (X, W), mesh=MESH)
    assert len(program.in_avals) == 2


def test_donation_is_told_per_flat_argument() -> None:
    program = trace(step, (STATE, {"x": X}), mesh=MESH, donate_argnums=0)
    assert program.donated == (True, True, False)
    program = trace(
        lambda _, state, x: (state, x),
        ("m", STATE, X),
        mesh=MESH,
        static_argnums=0,
        donate_argnums=-2,
    )
    assert program.donated == (True, True, False)


def test_a_jitted_function_is_the_program_that_it_is_without() -> None:
    plain = trace(step, (STATE, {"x": X}), mesh=MESH)
    for jitted in (jax.jit(step), jax.jit(jax.jit(step), keep_unused=True)):
        program = trace(jitted, (STATE, {"x": X}), mesh=MESH)
        assert program.in_names[0] == "state['params']['b']"
        assert program.operand_paths == plain.operand_paths
        assert program.source_by_equation == plain.source_by_equation
        assert program.fingerprint == plain.fingerprint


def test_a_jitted_function_of_shardings_stays_one_equation() -> None:
    kinds = (jax.sharding.AxisType.Auto,) * 2
    whole = jax.NamedSharding(jax.make_mesh((2, 4), ("x", "y"), axis_types=kinds), jax.P())
    program = trace(jax.jit(lambda x: x * 2, in_shardings=whole), (X,), mesh=MESH)
    assert [eqn.primitive.name for eqn in program.jaxpr.jaxpr.eqns] == ["jit"]


def test_the_results_of_a_call_may_be_its_arguments_and_numbers() -> None:
    call = jax.jit(lambda x, y: (y, 1.0, x * 2, x))
    program = trace(lambda x, y: call(x, y)[::-1], (X, X), mesh=MESH)
    jaxpr = program.jaxpr.jaxpr
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["mul"]
    (x, y), (product,) = jaxpr.invars, jaxpr.eqns[0].outvars
    first, second, number, last = jaxpr.outvars
    assert (first, second, last) == (x, product, y)
    assert number.val == 1.0


def test_every_equation_knows_its_line() -> None:
    program = trace(lambda x: jnp.tanh(x) * 2, (X,), mesh=MESH)
    assert set(program.source_by_equation) == {"0", "1"}
    for line in program.source_by_equation.values():
        assert line.startswith(f"{__file__}:")
        assert line.endswith("(<lambda>)")


def test_the_module_is_platform_neutral_and_falls_back_where_it_cannot_be() -> None:
    assert trace(lambda x: x * 2, (X,), mesh=MESH).platform == "tpu"

    primitive = Primitive("only_on_cpu")
    primitive.def_abstract_eval(lambda x: x)
    jax.interpreters.mlir.register_lowering(primitive, lambda _, x: [x], platform="cpu")
    program = trace(primitive.bind, (X,), mesh=MESH)
    assert program.platform == "cpu"
    assert program.notes == (
        "lowered for cpu, because lowering for tpu failed: MLIR translation rule for primitive"
        " 'only_on_cpu' not found for platform tpu",
    )


def test_placements_of_abstract_arguments_are_noted_and_not_taken() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    placed = X.update(sharding=NamedSharding(mesh, PartitionSpec("x")))
    program = trace(lambda x: x * 2, (placed,), mesh=MESH)
    assert program.user_in == (None,)
    assert program.notes == (
        "the shardings of the ShapeDtypeStructs of x are not taken as constraints; pass"
        " in_shardings to fix them",
    )


# -- states of other libraries ---------------------------------------------------------------------


def test_an_optax_state_is_named_by_its_fields() -> None:
    params = STATE["params"]
    optimizer = optax.adam(1e-3)
    state = jax.eval_shape(optimizer.init, params)

    def update(params: Any, state: Any, gradient: Any) -> Any:
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    program = trace(update, (params, state, params), mesh=MESH)
    assert "state[0].mu['w']" in program.in_names
    assert "result[1][0].nu['b']" in program.out_names


def test_an_equinox_module_keeps_its_functions_and_settings() -> None:
    model = eqx.nn.MLP(16, 4, 8, 1, key=jax.random.key(0))
    dropped = eqx.nn.Dropout(0.5, inference=True)

    def fn(model: Any, dropout: Any, x: Any) -> Any:
        value = jnp.mean(jax.vmap(model)(dropout(x)))
        return model, value

    program = trace(fn, (model, dropped, X), mesh=MESH)
    assert "model.layers[0].weight" in program.in_names
    assert not any("dropout" in name or "activation" in name for name in program.in_names)
    assert program.out_names[-1] == "result[1]"
    assert len(program.out_names) == len(program.in_names)


def test_a_flax_module_and_its_split_state_are_named_alike() -> None:
    module = nnx.Linear(16, 4, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(module)

    def from_state(state: Any, x: Any) -> Any:
        return nnx.merge(graphdef, state)(x)

    assert trace(lambda model, x: model(x), (module, X), mesh=MESH).in_names == (
        "model.bias",
        "model.kernel",
        "x",
    )
    assert trace(from_state, (state, X), mesh=MESH).in_names == (
        "state['bias']",
        "state['kernel']",
        "x",
    )


# -- the user's shardings --------------------------------------------------------------------------


def test_shardings_are_read_in_every_spelling_and_spread_over_prefixes() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    program = trace(
        step,
        (STATE, {"x": X}),
        mesh=MESH,
        in_shardings=(
            {"params": {"b": None, "w": PartitionSpec(OPEN, ("x", "y"))}},
            NamedSharding(mesh, PartitionSpec("x")),
        ),
        out_shardings=({"b": PartitionSpec(), "w": parse_sharding("<@mesh, [{}, {?}]>")}, None),
    )
    assert shown(program.user_in) == [
        None,
        '<@mesh, [{?}, {"x", "y"}]>',
        '<@mesh, [{"x"}, {}]>',
    ]
    assert shown(program.user_out) == ["<@mesh, [{}]>", "<@mesh, [{}, {?}]>", None]


def test_one_sharding_serves_all_arguments() -> None:
    program = trace(lambda a, b: a @ b, (X, W), mesh=MESH, in_shardings=PartitionSpec("x"))
    assert shown(program.user_in) == ['<@mesh, [{"x"}, {}]>'] * 2


def test_static_leaves_take_no_sharding() -> None:
    model = eqx.nn.MLP(16, 4, 8, 1, key=jax.random.key(0))
    program = trace(
        lambda model, x: jax.vmap(model)(x),
        (model, X),
        mesh=MESH,
        in_shardings=(None, PartitionSpec("x")),
    )
    assert shown(program.user_in) == [None] * (len(program.in_names) - 1) + ['<@mesh, [{"x"}, {}]>']


SPEC_ERRORS = [
    (
        PartitionSpec("z"),
        ShardingError,
        'the sharding uses axis "z", which the mesh does not have\n'
        "  where: in_shardings of `x`\n"
        "  fix: use one of x, y, or add it to the mesh",
    ),
    (
        PartitionSpec("x", "x"),
        ShardingError,
        'the sharding uses axis "x" twice\n'
        "  where: in_shardings of `x`\n"
        "  fix: an axis cuts one dimension of a tensor at most",
    ),
    (
        PartitionSpec(None, None, "x"),
        ShardingError,
        "P(None, None, 'x') has 3 entries for 2 dimensions\n"
        "  where: in_shardings of `x`\n"
        "  fix: write one entry per dimension; None or a missing entry leaves it unsharded",
    ),
    (
        PartitionSpec(None, "y"),
        ShardingError,
        "dimension 1 has size 30, which 4 shards do not divide\n"
        "  where: in_shardings of `x`\n"
        "  fix: pad it to 32, or shard another dimension",
    ),
    (
        "x",
        InputError,
        "expected None, a PartitionSpec, a NamedSharding or an autoshard Sharding, found str\n"
        "  where: in_shardings of `x`\n"
        "  fix: write PartitionSpec('x')",
    ),
    (
        NamedSharding(jax.make_mesh((4,), ("x",)), PartitionSpec("x")),
        InputError,
        "the sharding is on mesh (x=4) of 4 devices, the plan is for mesh (x=2, y=4) of 8\n"
        "  where: in_shardings of `x`\n"
        "  fix: use meshes over the same devices",
    ),
    (
        parse_sharding('<@mesh, [{"x"}]>'),
        ShardingError,
        "the sharding has 1 dimensions, the tensor has 2\n"
        "  where: in_shardings of `x`\n"
        "  fix: give one dimension sharding per tensor dimension",
    ),
]


@pytest.mark.parametrize(("given", "kind", "message"), SPEC_ERRORS)
def test_a_sharding_that_does_not_fit_is_refused_with_the_arguments_name(
    given: Any, kind: type[AutoshardError], message: str
) -> None:
    x = jax.ShapeDtypeStruct((8, 30), jnp.float32)
    with pytest.raises(kind) as caught:
        trace(lambda x: x * 2, (x,), mesh=MESH, in_shardings=(given,))
    assert str(caught.value) == message


def test_a_prefix_of_another_shape_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        trace(lambda x: x * 2, (X,), mesh=MESH, in_shardings=(None, None))
    assert caught.value.what.startswith("in_shardings does not match what it is for: ")
    assert caught.value.where == "in_shardings"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"b": {"up": None}}, "it has 'b' and it lacks 'a'"),
        ({"a": {"up": None, "upp": None}}, "it has 'upp'"),
        ({"a": {}}, "it lacks 'up'"),
    ],
)
def test_keys_of_a_prefix_that_the_tree_does_not_have_are_told(given: Any, told: str) -> None:
    with pytest.raises(InputError) as caught:
        trace(lambda p: p["a"]["up"] * 2, ({"a": {"up": X}},), mesh=MESH, in_shardings=(given,))
    assert caught.value.what == f"in_shardings does not match what it is for: {told}"


# -- fingerprints ----------------------------------------------------------------------------------


def fingerprint(fn: Any, *args: Any) -> str:
    return trace(fn, args, mesh=MESH).fingerprint


def test_the_same_program_has_the_same_fingerprint() -> None:
    def again(state: Any, batch: Any) -> Any:
        return step(state, batch)

    assert fingerprint(step, STATE, {"x": X}) == fingerprint(again, STATE, {"x": X})
    arrays = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), (STATE, {"x": X}))
    assert fingerprint(step, STATE, {"x": X}) == fingerprint(step, *arrays)


@pytest.mark.parametrize(
    "other",
    [
        lambda x, w: jnp.sin(x @ w),
        lambda x, w: jnp.tanh(x @ w) * 2,
        lambda x, w: jnp.tanh(x @ w.T),
        lambda x, w: [jnp.tanh(x @ w)],
        lambda x, w: jnp.tanh(jax.lax.with_sharding_constraint(x @ w, PartitionSpec("x"))),
        lambda x, w: jax.jit(jnp.tanh)(x @ w),
    ],
)
def test_a_changed_program_has_another_fingerprint(other: Any) -> None:
    assert fingerprint(lambda x, w: jnp.tanh(x @ w), X, W) != fingerprint(other, X, W)


def test_a_change_inside_a_loop_changes_the_fingerprint() -> None:
    def loop(factor: float) -> Any:
        return lambda x: jax.lax.fori_loop(0, 3, lambda _, c: c * factor, x)

    assert fingerprint(loop(2.0), X) == fingerprint(loop(2.0), X)
    assert fingerprint(loop(2.0), X) != fingerprint(loop(3.0), X)


def test_another_shape_or_type_changes_the_fingerprint() -> None:
    found = {
        fingerprint(lambda x: x * 2, x)
        for x in (X, jax.ShapeDtypeStruct((8, 32), jnp.float32), X.update(dtype=jnp.bfloat16))
    }
    assert len(found) == 3


def test_the_record_of_a_program_says_how_many_equations_it_has() -> None:
    program: Traced = trace(
        lambda x: jax.lax.fori_loop(0, 3, lambda _, c: jnp.tanh(c) * 2, x), (X,), mesh=MESH
    )
    assert program.record.num_equations == 3
    assert program.record.argument_types == ("float32[8,16]",)
