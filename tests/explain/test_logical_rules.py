"""Logical-axis rules that say a plan, read back as Flax reads them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

import autoshard
from autoshard.apply.logical_rules import LogicalRules, NamedDims, find_logical_rules
from autoshard.errors import InputError, PlanError
from tests.plan.plans import gpt_plan

AXES = ("embed", "mlp", "heads", "batch")
MESH_AXES = ("x", "y", "z")


def tensor(name: str, **cuts: str) -> NamedDims:
    """`tensor("w", embed="x y", mlp="")`: `embed` is cut by x and y, `mlp` by nothing."""
    return NamedDims(
        name=name, logical=tuple(cuts), cuts=tuple(tuple(cut.split()) for cut in cuts.values())
    )


def as_flax_reads(
    logical: tuple[str | None, ...], rules: LogicalRules
) -> tuple[tuple[str, ...], ...]:
    """Per dimension, the mesh axes that Flax gives it, as a tuple."""
    spec = nn.logical_to_mesh_axes(logical, rules)
    assert spec is not None
    entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec]
    return (*entries, *((),) * (len(logical) - len(entries)))


def test_each_axis_gets_the_mesh_axes_that_cut_it() -> None:
    found = find_logical_rules(
        [
            tensor("w1", embed="x", mlp="y z"),
            tensor("w2", mlp="y z", embed="x"),
            tensor("b", out=""),
        ]
    )
    assert found == (("embed", "x"), ("mlp", ("y", "z")), ("out", None))


def test_a_dimension_that_gives_way_to_another_one_comes_after_it() -> None:
    found = find_logical_rules(
        [tensor("w", embed="x"), tensor("activations", embed="", batch="x"), tensor("b", embed="x")]
    )
    assert found == (("batch", "x"), ("embed", "x"))


def test_without_a_name_a_dimension_may_be_whole() -> None:
    whole = NamedDims(name="w", logical=("embed", None), cuts=(("x",), ()))
    assert find_logical_rules([whole]) == (("embed", "x"),)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            [tensor("w1", embed="x"), tensor("w2", embed="y")],
            "no one rule for `embed` says the plan: it is cut by x in w1, and by y in w2\n"
            "  where: logical axis rules\n"
            "  fix: give the two dimensions different logical names, or pin one of the tensors (or"
            " group them) and plan again",
        ),
        (
            [tensor("w1", embed="x", mlp="y"), tensor("w2", embed="", mlp="y")],
            "no one rule for `embed` says the plan: it is cut by x in w1, and by nothing in w2\n"
            "  where: logical axis rules\n"
            "  fix: give the two dimensions different logical names, or pin one of the tensors (or"
            " group them) and plan again",
        ),
        (
            [tensor("w1", embed="x", mlp=""), tensor("w2", embed="", mlp="x")],
            "no order of rules says the plan: in w2 `mlp` takes x before `embed` can, and in w1"
            " `embed` does so before `mlp`\n"
            "  where: logical axis rules\n"
            "  fix: give the dimensions of one of them other logical names, or pin one of them and"
            " plan again",
        ),
        (
            [NamedDims(name="w", logical=("embed", None), cuts=((), ("x",)))],
            "dimension 1 of w has no logical name, and the plan cuts it by x\n"
            "  where: logical names ('embed', None)\n"
            "  fix: name the dimension",
        ),
        (
            [NamedDims(name="w", logical=("embed", "embed"), cuts=((), ("x",)))],
            "`embed` names 2 dimensions of w, which no rule can tell apart\n"
            "  where: logical names ('embed', 'embed')\n"
            "  fix: give each dimension of a tensor a name of its own",
        ),
        (
            [NamedDims(name="w", logical=("embed",), cuts=((), ("x",)))],
            "w has 2 dimensions and 1 logical names\n"
            "  where: logical names ('embed',)\n"
            "  fix: name each dimension, or write None for one without a name",
        ),
    ],
)
def test_what_no_rules_say_names_the_tensors(tensors: list[NamedDims], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        find_logical_rules(tensors)
    assert str(caught.value) == message


rules = st.permutations(AXES).flatmap(
    lambda order: st.tuples(
        *(
            st.tuples(
                st.just(axis),
                st.one_of(
                    st.none(),
                    st.sampled_from(MESH_AXES),
                    st.lists(st.sampled_from(MESH_AXES), min_size=2, max_size=3, unique=True).map(
                        tuple
                    ),
                ),
            )
            for axis in order
        )
    )
)
dims = st.lists(st.sampled_from(AXES), min_size=1, max_size=3, unique=True).map(tuple)


@given(given_rules=rules, shapes=st.lists(dims, min_size=1, max_size=6))
def test_shardings_that_rules_gave_are_those_that_the_rules_found_give(
    given_rules: LogicalRules, shapes: list[tuple[str, ...]]
) -> None:
    tensors = [
        NamedDims(name=f"w{i}", logical=logical, cuts=as_flax_reads(logical, given_rules))
        for i, logical in enumerate(shapes)
    ]
    found = find_logical_rules(tensors)
    assert [as_flax_reads(one.logical, found) for one in tensors] == [one.cuts for one in tensors]


# -- of a plan -------------------------------------------------------------------------------------


class Mlp(nn.Module):  # type: ignore[misc]
    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: jax.Array) -> jax.Array:
        init = nn.initializers.lecun_normal()
        up = nn.with_logical_partitioning(init, ("embed", "mlp"))
        down = nn.with_logical_partitioning(init, ("mlp", "embed"))
        hidden = nn.relu(nn.Dense(512, kernel_init=up, use_bias=False)(x))
        out: jax.Array = nn.Dense(64, kernel_init=down, use_bias=False)(hidden)
        return out


X = jax.ShapeDtypeStruct((32, 64), jnp.float32)


def linen_plan() -> autoshard.Plan:
    model = Mlp()
    variables = jax.eval_shape(model.init, jax.random.key(0), X)

    def step(variables: object, x: jax.Array) -> object:
        def loss(variables: object) -> jax.Array:
            out = model.apply(nn.meta.unbox(variables), x)
            mean: jax.Array = jnp.mean(out**2)
            return mean

        return jax.tree.map(lambda v, g: v - 0.1 * g, variables, jax.grad(loss)(variables))

    return autoshard.optimize(
        step,
        variables,
        X,
        mesh="data=2,model=4",
        hardware="cpu-host",
        donate_argnums=0,
        baselines=False,
    )


def assert_rules_say(plan: autoshard.Plan, found: LogicalRules, **names: tuple[str, ...]) -> None:
    for argument in plan.data.arguments:
        for end, logical in names.items():
            if argument.name.endswith(f"['{end}']['kernel']"):
                cuts = tuple(tuple(ref.name for ref in dim.axes) for dim in argument.sharding.dims)
                assert as_flax_reads(logical, found) == cuts


def test_names_that_linen_keeps_are_read_from_the_argument() -> None:
    plan = linen_plan()
    found = plan.logical_rules()
    assert {axis for axis, _ in found} == {"embed", "mlp"}
    assert any(axes for _, axes in found)
    assert_rules_say(plan, found, Dense_0=("embed", "mlp"), Dense_1=("mlp", "embed"))


def test_names_may_be_given_by_selector() -> None:
    plan = linen_plan()
    given_names = {
        '**["Dense_0"]**': ("embed", "mlp"),
        '**["Dense_1"]**': ("mlp", "embed"),
        "x": ("batch", "embed_in"),
    }
    assert set(plan.logical_rules()) <= set(plan.logical_rules(given_names))


def test_names_that_nnx_keeps_are_read_from_variables_and_their_moments() -> None:
    class Model(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: nnx.Rngs) -> None:
            init = nnx.initializers.lecun_normal()
            up = nnx.with_partitioning(init, ("embed", "mlp"))
            self.up = nnx.Linear(64, 512, rngs=rngs, kernel_init=up, use_bias=False)

    def make() -> object:
        model = Model(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    with nnx.use_eager_sharding(False):
        graph, state = nnx.split(nnx.eval_shape(make))

    def step(state: object, x: jax.Array) -> object:
        model, optimizer = nnx.merge(graph, state)
        grads = nnx.grad(lambda model: jnp.mean(model.up(x) ** 2))(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer))

    with nnx.use_eager_sharding(False):
        plan = autoshard.optimize(
            step,
            state,
            X,
            mesh="data=2,model=4",
            hardware="cpu-host",
            donate_argnums=0,
            baselines=False,
        )
    found = plan.logical_rules()
    assert_rules_say(plan, found, up=("embed", "mlp"))
    assert any(axes for _, axes in found)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            {'params**["kernle"]': ("embed",)},
            '`params**["kernle"]` selects nothing in this program',
        ),
        ({"result**": ("embed",)}, "`result**` selects no argument"),
        ({"x": ("embed",)}, "`x` has 2 dimensions, and 1 names are given"),
    ],
)
def test_names_that_fit_no_argument_are_refused(
    names: dict[str, tuple[str, ...]], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        linen_plan().logical_rules(names)
    assert caught.value.what == message


def test_a_plan_whose_arguments_have_no_names_says_how_to_give_them() -> None:
    plan = autoshard.optimize(jnp.sin, X, mesh="data=8", hardware="cpu-host", baselines=False)
    with pytest.raises(PlanError) as caught:
        plan.logical_rules()
    assert caught.value.what == "no argument has logical names"


def test_a_plan_read_from_a_file_needs_its_program() -> None:
    with pytest.raises(PlanError) as caught:
        autoshard.Plan(gpt_plan()).logical_rules()
    assert caught.value.fix == "use plan.jit(fn), which finds them on the first call"
