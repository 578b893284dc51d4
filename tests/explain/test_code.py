"""A plan as Python: run, it makes the plan's shardings; its constraints are those of the plan."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.apply.named_shardings import JaxMesh
from autoshard.errors import PlanError
from autoshard.plan import Plan
from tests.plan.plans import gpt_plan

DEVICES = np.array(jax.devices())
MESH = jax.sharding.Mesh(DEVICES.reshape(2, 4), ("data", "model"))
X = jax.ShapeDtypeStruct((64, 32), jnp.float32)
W = jax.ShapeDtypeStruct((32, 128), jnp.float32)
_CONSTRAINT = re.compile(
    r"# .*\[(?P<path>[^\]]*(?:\[\d+\][^\]]*)?)\]:\n"
    r"#     x = jax\.lax\.with_sharding_constraint\(x, (?P<code>.*)\)\n"
)


def planned(fn: Any, *args: Any, mesh: Any = "data=2,model=4", **options: Any) -> Plan:
    return autoshard.optimize(fn, *args, mesh=mesh, hardware="cpu-host", baselines=False, **options)


def assert_code_makes(plan: Plan, **variables: Any) -> str:
    """Runs the code of a plan, compares all that it makes and shows, and returns the code."""
    code, names = plan.code(), dict(variables)
    exec(code, names)
    for made, wanted in (
        (names["in_shardings"], plan.in_shardings),
        (names["out_shardings"], plan.out_shardings),
    ):
        assert jax.tree.structure(made) == jax.tree.structure(wanted)
        for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(wanted), strict=True):
            assert one.is_equivalent_to(other, 8)
    shown = {found["path"]: eval(found["code"], names) for found in _CONSTRAINT.finditer(code)}
    assert set(shown) == set(plan.constraints)
    mesh = JaxMesh(names["mesh"])
    for path, sharding in plan.constraints.items():
        assert shown[path].is_equivalent_to(mesh.named_sharding(sharding), sharding.rank)
    return code


def step(params: dict[str, jax.Array], x: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    hidden = jnp.tanh(x @ params["w"])
    return {"w": params["w"] * 2}, hidden


LINE = step.__code__.co_firstlineno + 1


def test_code_is_the_shardings_the_constraints_and_how_to_use_them() -> None:
    plan = planned(
        step,
        {"w": W},
        X,
        donate_argnums=0,
        in_shardings=({"w": P(None, "model")}, P("data")),
        out_shardings=(None, P("data", "model")),
        constraints={f"test_code.py:{LINE} tanh": P("data", "model")},
    )
    assert (
        assert_code_makes(plan)
        == f"""\
import jax
from jax.sharding import NamedSharding, PartitionSpec as P

# The mesh of the plan; one like it that you have will do.
mesh = jax.make_mesh((2, 4), ('data', 'model'), axis_types=(jax.sharding.AxisType.Auto,) * 2)

# One for each positional argument, as jax.jit takes them.
in_specs = ({{'w': P(None, 'model')}}, P('data'))
out_specs = ({{'w': P(None, 'model')}}, P('data', 'model'))


def on_mesh(spec):
    return spec if isinstance(spec, NamedSharding) else NamedSharding(mesh, spec)


in_shardings, out_shardings = jax.tree.map(on_mesh, (in_specs, out_specs))

# Constraints inside the function, in program order.
#
# test_code.py:{LINE} (step), on what tanh makes [1.0]:
#     x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P('data', 'model')))

# jax.jit(step, in_shardings=in_shardings, out_shardings=out_shardings, donate_argnums=(0,))
"""
    )


def test_constraints_at_borders_and_on_single_reads_say_so() -> None:
    def program(x: jax.Array) -> Any:
        y = jnp.sin(x)
        return jnp.cos(y), jax.lax.fori_loop(0, 3, lambda _, z: jnp.tanh(z) + y, y)

    plan = planned(program, X)
    paths = {
        "in.0": P("data"),
        "0.0": P("data"),
        "1<0": P("model"),
        "out<0": P(None, "data"),
    }
    mesh = JaxMesh(MESH)
    held = {path: mesh.read(NamedSharding(MESH, spec), 2) for path, spec in paths.items()}
    plan.data = replace(plan.data, constraints=held)
    code = assert_code_makes(plan)
    line = program.__code__.co_firstlineno + 1
    for told in (
        "# on the argument x [in.0]:",
        f"# test_code.py:{line} (program), on what sin makes [0.0]:",
        f"# test_code.py:{line + 1} (program), before operand 0 of cos, for this read alone [1<0]:",
        "# on the result result[0] [out<0]:",
    ):
        assert told in code


class Moments(NamedTuple):
    first: Any
    second: Any


@pytest.mark.parametrize(
    "tree",
    [
        {"w": W},
        [W, {"w": (W, None)}],
        (W,),
        Moments({"w": W}, [W]),
        {1: W, 2: W},
        OrderedDict(w=W),
        {"bad key'\"": W},
    ],
    ids=str,
)
def test_trees_of_every_kind_are_rebuilt(tree: Any) -> None:
    def double(tree: Any, x: jax.Array) -> Any:
        return jax.tree.map(lambda w: 2 * (x @ w), tree)

    assert_code_makes(planned(double, tree, X), tree=tree, double=double, x=X)


def test_named_tuples_of_optax_are_written_as_they_are() -> None:
    adam = optax.adam(1e-3)
    state = jax.eval_shape(lambda: adam.init({"w": jnp.zeros((32, 128))}))
    code = assert_code_makes(planned(lambda state: state, state))
    assert "from optax import ScaleByAdamState\n" in code
    assert "ScaleByAdamState(" in code


def test_what_has_no_literal_is_taken_apart_with_the_name_of_every_array() -> None:
    class Model(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.up = nnx.Linear(32, 128, rngs=rngs)

    graph, state = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))

    def apply(state: Any, x: jax.Array) -> Any:
        return nnx.merge(graph, state).up(x), state

    code = assert_code_makes(planned(apply, state, X), state=state, apply=apply, x=X)
    assert "jax.tree.unflatten(structure(state), [" in code
    assert ",  # state['up']['kernel']\n" in code
    assert "result = jax.eval_shape(apply, state, x)\n" in code


def test_part_of_an_axis_is_an_axis_of_a_finer_mesh() -> None:
    plan = planned(
        lambda x: 2 * x,
        jax.ShapeDtypeStruct((6, 8), jnp.float32),
        mesh="model=8",
        constraints={"x": '[{"model":(1)2}, {"model":(2)4}]'},
    )
    code = assert_code_makes(plan)
    assert "mesh_1 = jax.sharding.Mesh(mesh.devices.flatten().reshape(2, 4), " in code


def test_devices_in_another_order_are_named() -> None:
    shuffled = jax.sharding.Mesh(DEVICES[[3, 1, 0, 2, 7, 5, 6, 4]].reshape(2, 4), ("a", "b"))
    plan = planned(lambda x: 2 * x, X, mesh=shuffled, in_shardings=P("a", "b"))
    code = assert_code_makes(plan)
    assert "np.array(jax.devices())[[3, 1, 0, 2, 7, 5, 6, 4]].reshape(2, 4)" in code


def test_keyword_arguments_have_a_tree_of_their_own() -> None:
    plan = planned(lambda x, *, w: x @ w, X, kwargs={"w": W})
    names: dict[str, Any] = {}
    exec(assert_code_makes(plan), names)
    assert set(names["keyword_specs"]) == {"w"}


def test_no_device_is_needed() -> None:
    plan = planned(step, {"w": W}, X, mesh="data=64,model=8")
    assert "mesh = jax.make_mesh((64, 8), ('data', 'model')" in plan.code()


def test_a_plan_read_from_a_file_needs_its_program() -> None:
    with pytest.raises(PlanError):
        Plan(gpt_plan()).code()


def test_leaves_that_are_no_arrays_stay_out_of_the_tree() -> None:
    model = eqx.filter_eval_shape(lambda key: eqx.nn.MLP(32, 8, 64, 1, key=key), jax.random.key(0))

    def apply(model: Any, x: jax.Array) -> Any:
        return jax.vmap(model)(x)

    code = assert_code_makes(planned(apply, model, X), model=model)
    assert "jax.tree.unflatten(structure(model), [" in code
