"""What a team reviews of a plan for a model of a library: names, rules, specs, constraints."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.errors import InputError, PlanError
from autoshard.plans.plan_diff import diff_plans

nn = pytest.importorskip("flax.linen", reason="Flax is not installed")
optax = pytest.importorskip("optax", reason="Optax is not installed")

WIDTH, HEADS, VOCAB, LENGTH, BATCH = 64, 4, 256, 32, 8


class Attention(nn.Module):  # type: ignore[misc, name-defined]
    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        width = x.shape[-1]
        heads = (*x.shape[:2], HEADS, width // HEADS)
        query, key, value = jnp.split(nn.Dense(3 * width, name="c_attn")(x), 3, -1)
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        made = nn.dot_product_attention(
            query.reshape(heads), key.reshape(heads), value.reshape(heads), mask=mask
        )
        return nn.Dense(width, name="c_proj")(made.reshape(x.shape))


class Mlp(nn.Module):  # type: ignore[misc, name-defined]
    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        width = x.shape[-1]
        return nn.Dense(width, name="c_proj")(nn.gelu(nn.Dense(4 * width, name="c_fc")(x)))


class Block(nn.Module):  # type: ignore[misc, name-defined]
    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        x = x + Attention(name="attn")(nn.LayerNorm(name="ln_1")(x))
        return x + Mlp(name="mlp")(nn.LayerNorm(name="ln_2")(x))


class Gpt2(nn.Module):  # type: ignore[misc, name-defined]
    """GPT-2 of two layers, with the names of its published weights."""

    width: int = WIDTH
    vocab: int = VOCAB

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, tokens: Any) -> Any:
        table, length = nn.Embed(self.vocab, self.width, name="wte"), tokens.shape[1]
        x = table(tokens) + nn.Embed(length, self.width, name="wpe")(jnp.arange(length)[None])
        for layer in range(2):
            x = Block(name=f"h_{layer}")(x)
        return table.attend(nn.LayerNorm(name="ln_f")(x))


MODEL, SGD = Gpt2(), optax.sgd(1e-2, momentum=0.9)
TOKENS = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)


def init(key: Any, model: Gpt2 = MODEL, tokens: Any = TOKENS) -> Any:
    params = model.init(key, jnp.ones(tokens.shape, int))["params"]
    return {"params": params, "opt": SGD.init(params)}


def step_of(model: Gpt2) -> Any:
    def train_step(state: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = model.apply({"params": params}, tokens)[:, :-1]
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        value, grads = jax.value_and_grad(loss)(state["params"])
        updates, opt = SGD.update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value

    return train_step


train_step = step_of(MODEL)


def planned(model: Gpt2 = MODEL, tokens: Any = TOKENS, **options: Any) -> autoshard.Plan:
    return autoshard.optimize(
        step_of(model),
        jax.eval_shape(lambda key: init(key, model, tokens), jax.random.key(0)),
        tokens,
        mesh="data=2,model=4",
        hardware="cpu-host",
        donate_argnums=0,
        baselines=False,
        **options,
    )


@pytest.fixture(scope="module")
def plan() -> autoshard.Plan:
    return planned()


def test_reports_name_modules_first_and_fold_layers(plan: autoshard.Plan) -> None:
    _ = plan.constraints
    text = plan.report(width=160)
    assert "h_0..1 (2)" in text
    assert "Gpt2/h_0..1/mlp/c_fc" in text
    assert "..." not in {op.source.partition(",")[0] for op in plan.data.ops}
    changed = diff_plans(plan.data, planned(constraints={"h_*/mlp": P("data")}).data)
    assert any("Gpt2/h_0/mlp" in change.name for change in changed.ops)


def test_modules_are_pinned_by_pattern_and_numbers_stay_right() -> None:
    plan = planned(constraints={"h_*/mlp/c_fc": P("data", None, "model")})
    (term,) = plan.data.asked
    shown = {autoshard.sharding.format_sharding(plan.data.values[path]) for path in term.paths}
    assert len(term.paths) == 2
    assert shown == {'<@mesh, [{"data"}, {}, {"model"}]>'}
    state = init(jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), TOKENS.shape, 0, VOCAB)
    expected = jax.jit(train_step)(state, tokens)
    found = plan.jit(donate_argnums=())(state, tokens)
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("compiled_here")
def test_few_constraints_bring_about_all_of_the_plan(plan: autoshard.Plan) -> None:
    assert len(plan.constraints) <= 12  # 29 before reads shared one, 17 with all gathers
    assert not plan.data.misses
    verification = plan.verify("local")
    assert verification.compiled_bytes == pytest.approx(verification.predicted_bytes)


def test_a_gpt_2_of_its_published_width_takes_few_constraints() -> None:
    model, tokens = Gpt2(768, 50304), jax.ShapeDtypeStruct((16, 256), jnp.int32)
    fastest, usual = planned(model, tokens, simplicity=0), planned(model, tokens)
    assert len(usual.constraints) <= 12  # 47 where moves and no constraints were counted
    assert usual.data.priced_seconds <= 1.01 * fastest.data.priced_seconds
    assert usual.data.solver.gap <= 0.01


def test_a_module_is_asked_for_its_sharding(plan: autoshard.Plan) -> None:
    found = plan.why("h_0/mlp/c_fc dot_general", num_alternatives=1)
    assert found.name.startswith("dot_general at Gpt2/h_0/mlp/c_fc, test_reviewing.py:")


def test_a_module_that_is_asked_for_like_an_argument_is_named_as_one(
    plan: autoshard.Plan,
) -> None:
    for said in ("ln_f", "ln_*"):
        with pytest.raises(InputError) as caught:
            plan.why(said)
        assert caught.value.fix == f"for the module write `module:{said}`"


def test_rules_give_every_argument_the_sharding_of_the_plan(plan: autoshard.Plan) -> None:
    rules = plan.rules()
    assert rules[-1] == (".*", P())
    specs = plan.partition_specs()
    for tensor in plan.data.arguments:
        path = "/".join(_words(tensor))
        found = next(spec for rule, spec in rules if re.search(rule, path))
        assert P(*found, *[None] * (len(tensor.shape) - len(found))) == specs[tensor.name]


def _words(tensor: Any) -> list[str]:
    found = re.findall(r"\['?([^'\]]+)'?\]|\.(\w+)", tensor.name)
    return [key or attribute for key, attribute in found] or [tensor.name]


def test_rules_of_modules_are_constraints_that_the_plan_meets(plan: autoshard.Plan) -> None:
    rules = dict(plan.rules(of="modules"))
    pattern = "Gpt2/h_[0-9]+/mlp"
    assert pattern in rules
    again = planned(constraints={f"re:{pattern}": rules[pattern]})
    (term,) = again.data.asked
    assert {plan.data.values[path] for path in term.paths} == {
        again.data.values[path] for path in term.paths
    }


def test_a_loaded_plan_has_specs_and_rules_without_its_function(
    plan: autoshard.Plan, tmp_path: Any
) -> None:
    path = tmp_path / "plan.json"
    plan.save(path)
    loaded = autoshard.load_plan(path)
    assert loaded.partition_specs() == plan.partition_specs()
    assert loaded.partition_specs("results") == plan.partition_specs("results")
    assert loaded.rules() == plan.rules()
    with pytest.raises(PlanError):
        loaded.rules(of="modules")
    with pytest.raises(InputError, match="there are no 'values' of a plan"):
        loaded.partition_specs("values")


def test_a_plan_shows_itself_in_a_line_and_a_sharding_in_shardys_text(
    plan: autoshard.Plan,
) -> None:
    shown = repr(plan)
    assert shown.startswith("<Plan train_step on 8 x cpu-host, mesh data=2, model=4: ")
    assert len(shown) < 200
    sharding = plan.data.arguments[0].sharding
    assert str(sharding) == autoshard.sharding.format_sharding(sharding)
    assert P(*sharding.spec) == plan.partition_specs()[plan.data.arguments[0].name]
