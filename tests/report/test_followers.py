"""Moments told beside their parameters, and results told beside arguments."""

from __future__ import annotations

from dataclasses import replace

from autoshard.plans.plan import PlannedTensor
from autoshard.report import format_report, gather_facts
from autoshard.report.followers import moments_of, sharded_like_arguments
from autoshard.sharding import parse_sharding
from tests.plan.plans import gpt_plan


def tensor(name: str, sharding: str = '[{"data"}]', size: int = 8) -> PlannedTensor:
    found = parse_sharding(sharding)
    return PlannedTensor(
        name=name, shape=(size,), dtype="f32", sharding=found, num_bytes=4 * size, local_bytes=size
    )


def told(*names: str) -> dict[str, list[str]]:
    tensors = [tensor(name) for name in names]
    found = moments_of(tensors)
    return {names[p]: [f"{label}: {names[c]}" for label, c in some] for p, some in found.items()}


def test_moments_are_told_with_the_parameter_of_their_keys() -> None:
    assert told(
        "state['opt'][0].mu['a']", "state['opt'][0].nu['a']", "state['params']['a']", "x"
    ) == {"state['params']['a']": ["mu: state['opt'][0].mu['a']", "nu: state['opt'][0].nu['a']"]}


def test_modules_of_equal_leaves_are_not_each_others_moments() -> None:
    assert told("model.linear.kernel", "model.block.linear.bias", "model.block.linear.kernel") == {}
    names = [f"{root}.{layer}.kernel" for root in ("model", "opt.mu") for layer in ("a", "b.c")]
    assert [*told(*names)] == names[:2]


def test_moments_of_a_part_of_a_model_are_named_by_what_the_parts_do_not_share() -> None:
    names = ["model.up.kernel", "model.norm.mean", "opt.mu.up.kernel", "opt.nu.up.kernel"]
    assert told(*names) == {names[0]: [f"mu: {names[2]}", f"nu: {names[3]}"]}


def test_moments_go_with_their_own_layer_where_many_are_alike_and_two_models_are_given() -> None:
    """All moments of layers of one shape were told with the first of them."""
    layers = [
        f"{layer}.{name}" for layer in ("key", "query", "up", "bn") for name in ("bias", "kernel")
    ]
    models = [f"{model}.{name}" for model in ("model", "ema") for name in (*layers, "bn.mean")]
    moments = [f"opt.s[0].{moment}.{name}" for moment in ("mu", "nu") for name in layers]
    assert told(*models, "model.pos", *moments, "opt.s[0].mu.pos") == {
        f"model.{name}": [f"mu: opt.s[0].mu.{name}", f"nu: opt.s[0].nu.{name}"] for name in layers
    } | {"model.pos": ["mu: opt.s[0].mu.pos"]}


def test_counters_are_no_moments_of_one_another() -> None:
    others = [f"model.{layer}.kernel" for layer in "abcdefgh"]
    counters = ["opt.s[0].count", "model.a.drop.rngs.count", "model.b.drop.rngs.count"]
    assert told(*counters, *others) == {}


def test_layers_beside_one_another_are_not_told_together() -> None:
    assert told("params['a']['w']", "params['b']['w']", "params['c']['d']['w']") == {}


def test_a_moment_in_another_sharding_has_a_row_of_its_own() -> None:
    tensors = [tensor("s.params.w"), tensor("s.opt.mu.w", "[{}]"), tensor("s.opt.nu.w")]
    assert moments_of(tensors) == {0: [("nu", 2)]}


def test_results_are_like_arguments_by_name_type_and_sharding() -> None:
    arguments = [tensor("state['w']"), tensor("state['v']"), tensor("model.down.bias"), tensor("x")]
    results = [
        tensor("result[0]['w']"),
        tensor("result[0]['v']", "[{}]"),
        tensor("updated.model.down.bias"),
        tensor("result[1]"),
        tensor("x"),
    ]
    assert sharded_like_arguments(results, arguments) == {0, 2}


def test_rows_count_the_bytes_of_moments_and_the_heading_counts_results() -> None:
    w, mu = tensor("state['params']['w']"), tensor("state['opt'].mu['w']")
    plan = replace(gpt_plan(), arguments=(w, mu), results=(tensor("result[0]['params']['w']"),))
    (row,) = gather_facts(plan).arguments
    assert (row.name, row.moments, row.local_bytes) == ("state['params']['w']", ("mu",), 16)
    text = format_report(plan)
    assert "state['params']['w'] and mu   f32[8]" in text
    assert "Results  1, 1 sharded like arguments; bytes per device" in text
