"""Hand-written shardings are valid, and cut what they say."""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.workloads import (
    BASELINES,
    SMALL_WORKLOADS,
    WORKLOADS,
    Workload,
    baseline_specs,
    get_workload,
)
from tests.workloads.named import named

MESHES = [{"x": 8}, {"data": 2, "model": 4}, {"a": 2, "b": 2, "c": 2}, {"data": 4, "model": 8}]


def local_shapes(tree: Any, specs: Any, mesh_sizes: dict[str, int]) -> list[tuple[int, ...]]:
    mesh = AbstractMesh(tuple(mesh_sizes.values()), tuple(mesh_sizes))
    return [
        NamedSharding(mesh, spec).shard_shape(leaf.shape)
        for leaf, spec in zip(jax.tree.leaves(tree), jax.tree.leaves(specs), strict=True)
    ]


def param_specs(
    workload: Workload, kind: str, mesh_sizes: dict[str, int]
) -> dict[str, tuple[tuple[int, ...], P]]:
    specs, _ = baseline_specs(workload, kind, mesh_sizes)
    shapes = jax.tree_util.tree_leaves_with_path(workload.state["params"])
    return {
        jax.tree_util.keystr(path): (leaf.shape, spec)
        for (path, leaf), spec in zip(shapes, jax.tree.leaves(specs["params"]), strict=True)
    }


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_baseline_divides_every_argument(name: str) -> None:
    workload = named(name)
    for kind, mesh_sizes in product(BASELINES, MESHES):
        state_specs, batch_specs = baseline_specs(workload, kind, mesh_sizes)
        assert jax.tree.structure(state_specs) == jax.tree.structure(workload.state)
        assert jax.tree.structure(batch_specs) == jax.tree.structure(workload.batch)
        local_shapes(workload.state, state_specs, mesh_sizes)
        local_shapes(workload.batch, batch_specs, mesh_sizes)


@pytest.mark.parametrize("name", SMALL_WORKLOADS)
def test_data_parallel_cuts_the_batch_over_all_devices_and_no_parameter(name: str) -> None:
    workload = named(name)
    state_specs, batch_specs = baseline_specs(workload, "data_parallel", {"a": 2, "b": 4})
    assert set(jax.tree.leaves(state_specs)) == {P()}
    assert set(jax.tree.leaves(batch_specs)) == {P(("a", "b"))}


@pytest.mark.parametrize("name", SMALL_WORKLOADS)
def test_moments_are_cut_as_their_parameters(name: str) -> None:
    workload = named(name)
    for kind in BASELINES:
        specs, _ = baseline_specs(workload, kind, {"data": 2, "model": 4})
        adam = specs["opt"][0]
        assert adam.mu == adam.nu == specs["params"]
        assert adam.count == P()


@pytest.mark.parametrize("name", SMALL_WORKLOADS)
def test_fsdp_leaves_little_on_every_device(name: str) -> None:
    workload = named(name)
    mesh_sizes = {"data": 2, "model": 4}
    specs, _ = baseline_specs(workload, "fsdp", mesh_sizes)
    whole = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(workload.state))
    local = sum(map(math.prod, local_shapes(workload.state, specs, mesh_sizes)))
    assert whole / 8 <= local < whole / 6


def test_fsdp_cuts_the_largest_dimension_that_all_devices_divide() -> None:
    specs = param_specs(get_workload("unet"), "fsdp", {"data": 2, "model": 4})
    assert specs["['stem']['kernel']"] == ((3, 3, 3, 32), P(None, None, None, ("data", "model")))
    assert specs["['out']['kernel']"] == ((3, 3, 32, 3), P(None, None, ("data", "model")))
    assert specs["['out']['bias']"] == ((3,), P())


def test_megatron_cuts_gpt_by_heads_width_and_vocabulary() -> None:
    workload = get_workload("gpt_scan")
    specs = param_specs(workload, "megatron", {"data": 2, "model": 4})
    assert specs["['embed']"][1] == P("model")
    assert specs["['head']"][1] == P(None, "model")
    assert specs["['position']"][1] == P()
    assert specs["['blocks']['attn']['wq']"] == ((2, 64, 64), P(None, None, "model"))
    assert specs["['blocks']['attn']['bq']"] == ((2, 64), P(None, "model"))
    assert specs["['blocks']['attn']['wo']"] == ((2, 64, 64), P(None, "model"))
    assert specs["['blocks']['attn']['bo']"] == ((2, 64), P())
    assert specs["['blocks']['mlp']['w1']"][1] == P(None, None, "model")
    assert specs["['blocks']['mlp']['w2']"][1] == P(None, "model")
    _, batch_specs = baseline_specs(workload, "megatron", {"data": 2, "model": 4})
    assert batch_specs == {"tokens": P("data"), "targets": P("data")}


def test_on_one_axis_megatron_cuts_parameters_and_leaves_the_batch_whole() -> None:
    workload = get_workload("gpt")
    specs, batch_specs = baseline_specs(workload, "megatron", {"x": 8})
    assert specs["params"]["blocks"][1]["attn"]["wq"] == P(None, "x")
    assert batch_specs == {"tokens": P(), "targets": P()}


def test_megatron_with_fsdp_cuts_what_megatron_leaves_whole() -> None:
    workload = get_workload("gpt_scan")
    specs = param_specs(workload, "megatron_fsdp", {"data": 2, "model": 4})
    assert specs["['embed']"][1] == P("model", "data")
    assert specs["['head']"][1] == P("data", "model")
    assert specs["['blocks']['mlp']['w1']"][1] == P(None, "data", "model")
    assert specs["['blocks']['mlp']['w2']"][1] == P(None, "model", "data")
    _, batch_specs = baseline_specs(workload, "megatron_fsdp", {"data": 2, "model": 4})
    assert batch_specs == {"tokens": P("data"), "targets": P("data")}


def test_four_key_heads_stay_whole_on_an_eight_way_axis() -> None:
    workload = get_workload("llama")
    for size, expected in [(4, P(None, "model")), (8, P())]:
        specs, _ = baseline_specs(workload, "megatron", {"data": 1, "model": size})
        attention = specs["params"]["blocks"][0]["attn"]
        assert attention["wk"] == attention["wv"] == expected
        assert attention["wq"] == P(None, "model")


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("mlp", 0.99),
        ("gpt", 0.9),
        ("llama_scan", 0.9),
        ("moe", 0.9),
        ("unet", 0.5),
        ("embedding", 0.8),
        ("gnn", 0.8),
        ("rnn", 0.9),
        ("mixtral_scan", 0.9),
        ("deepseek", 0.9),
        ("gemma_scan", 0.9),
        ("vit", 0.9),
        ("dit", 0.4),
        ("ssm", 0.9),
        ("decode", 0.9),
        ("lora_scan", 0.9),
        ("conformer", 0.6),
        ("clip", 0.9),
        ("convnext", 0.7),
        ("griffin", 0.9),
        ("denoiser", 0.7),
        ("two_tower", 0.7),
        ("float8_gpt", 0.9),
    ],
)
def test_megatron_cuts_most_of_each_model(name: str, share: float) -> None:
    specs = param_specs(named(name), "megatron", {"data": 2, "model": 4})
    sizes = {path: math.prod(shape) for path, (shape, _) in specs.items()}
    cut = sum(size for path, size in sizes.items() if "model" in specs[path][1])
    assert cut / sum(sizes.values()) > share


def test_a_cache_is_cut_as_the_batch_and_by_heads() -> None:
    mesh_sizes = {"data": 2, "model": 4}
    for name, layers in [("decode", ()), ("decode_scan", (None,))]:
        workload = named(name)
        for kind, spec in [
            ("replicated", P()),
            ("data_parallel", P(*layers, ("data", "model"))),
            ("fsdp", P(*layers, ("data", "model"))),
            ("megatron", P(*layers, "data", None, "model")),
        ]:
            specs, batch_specs = baseline_specs(workload, kind, mesh_sizes)
            assert set(jax.tree.leaves(specs["cache"])) == {spec}
            assert specs["position"] == P()
            assert set(jax.tree.leaves(batch_specs)) == {P(*spec[len(layers) :][:1])}


def test_moments_of_what_is_trained_alone_are_cut_as_it_is() -> None:
    workload = get_workload("lora")
    for kind in BASELINES:
        specs, _ = baseline_specs(workload, kind, {"data": 2, "model": 4})
        assert specs["opt"][0].mu == specs["opt"][0].nu == specs["params"]["adapters"]
    specs, _ = baseline_specs(workload, "megatron", {"data": 2, "model": 4})
    assert specs["params"]["adapters"][0]["q"] == {"down": P(), "up": P(None, "model")}
    assert specs["params"]["base"]["blocks"][0]["attn"]["wq"] == P(None, "model")


def test_a_batch_too_small_for_all_axes_takes_the_leading_ones() -> None:
    workload = get_workload("gpt", batch=4)
    _, batch_specs = baseline_specs(workload, "data_parallel", {"a": 4, "b": 2})
    assert batch_specs["tokens"] == P("a")
    workload = get_workload("gpt", batch=3)
    _, batch_specs = baseline_specs(workload, "data_parallel", {"a": 4, "b": 2})
    assert batch_specs["tokens"] == P()


def test_an_unknown_baseline_lists_the_known_ones() -> None:
    message = f"^no baseline 'ddp'; choose from {', '.join(BASELINES)}$"
    with pytest.raises(ValueError, match=message):
        baseline_specs(get_workload("mlp"), "ddp", {"x": 8})


SMALLER = {
    "mlp": get_workload("mlp", layers=2, batch=16),
    "gpt": get_workload("gpt", layers=1, seq=8),
}
# Unoptimised code: these programs take longer to compile than to run.
QUICK = {"xla_backend_optimization_level": 0}


@cache
def unsharded(name: str) -> tuple[Any, Any, float]:
    """A smaller workload's first state, its batch, and the loss of a step on one device."""
    workload = SMALLER[name]
    state = jax.jit(workload.init, compiler_options=QUICK)(jax.random.key(0))
    batch = jax.jit(workload.make_batch, compiler_options=QUICK)(jax.random.key(1))
    _, loss = jax.jit(workload.step, compiler_options=QUICK)(state, batch)
    return state, batch, float(loss)


@pytest.mark.parametrize("kind", BASELINES)
@pytest.mark.parametrize("name", SMALLER)
def test_each_baseline_compiles_on_eight_devices_and_gives_the_same_loss(
    name: str, kind: str
) -> None:
    devices = np.asarray(jax.devices()[:8]).reshape(2, 4)
    mesh = Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    specs = baseline_specs(SMALLER[name], kind, {"data": 2, "model": 4})
    in_shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    step = jax.jit(
        SMALLER[name].step,
        in_shardings=in_shardings,
        out_shardings=(in_shardings[0], None),
        compiler_options=QUICK,
    )
    state, batch, expected = unsharded(name)
    _, loss = step(*jax.device_put((state, batch), in_shardings))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
