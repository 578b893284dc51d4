"""Every small workload trains; the big ones are only shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.workloads import SMALL_WORKLOADS, WORKLOADS, Workload, get_workload
from tests.workloads.named import named

NUM_STEPS = 5
# Unoptimised code: these programs take longer to compile than to run.
QUICK = {"xla_backend_optimization_level": 0}


def num_params(workload: Workload) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(workload.state["params"]))


@dataclass(frozen=True)
class Run:
    """A small workload trained on one batch for `NUM_STEPS` steps."""

    init: Any
    batch: Any
    after_first: Any
    losses: list[float]


@cache
def run(name: str) -> Run:
    workload = named(name)
    step = jax.jit(workload.step, compiler_options=QUICK)
    batch = jax.jit(workload.make_batch, compiler_options=QUICK)(jax.random.key(1))
    states = [jax.jit(workload.init, compiler_options=QUICK)(jax.random.key(0))]
    losses = []
    for _ in range(NUM_STEPS):
        state, loss = step(states[-1], batch)
        states.append(state)
        losses.append(float(loss))
    return Run(states[0], batch, states[1], losses)


@pytest.mark.parametrize("name", SMALL_WORKLOADS)
def test_a_step_returns_a_state_of_the_same_types_and_a_float32_loss(name: str) -> None:
    workload = named(name)
    state, loss = jax.eval_shape(workload.step, workload.state, workload.batch)
    assert jax.tree.structure(state) == jax.tree.structure(workload.state)
    assert jax.tree.leaves(state) == jax.tree.leaves(workload.state)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))
    assert (loss.shape, loss.dtype) == ((), jnp.float32)


@pytest.mark.parametrize("name", SMALL_WORKLOADS)
def test_concrete_state_and_batch_have_the_promised_shapes(name: str) -> None:
    workload, trained = named(name), run(name)
    for made, promised in [(trained.init, workload.state), (trained.batch, workload.batch)]:
        found = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), made)
        assert jax.tree.structure(found) == jax.tree.structure(promised)
        assert jax.tree.leaves(found) == jax.tree.leaves(promised)


@pytest.mark.parametrize("name", SMALL_WORKLOADS)
def test_training_on_one_batch_lowers_the_loss_at_every_step(name: str) -> None:
    losses = run(name).losses
    assert all(math.isfinite(loss) for loss in losses)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", SMALL_WORKLOADS)
def test_every_parameter_gets_a_finite_gradient_that_is_not_zero(name: str) -> None:
    state = run(name).after_first
    # After one step Adam's first moment is the gradient times a constant.
    moments = jax.tree_util.tree_leaves_with_path(state["opt"][0].mu)
    assert len(moments) == len(jax.tree.leaves(state["params"]))
    for path, moment in moments:
        name_of_leaf = jax.tree_util.keystr(path)
        assert np.all(np.isfinite(moment)), name_of_leaf
        # Adding a constant to every key moves no attention weight.
        if not name_of_leaf.endswith("['bk']"):
            assert float(jnp.max(jnp.abs(moment))) > 1e-7, name_of_leaf


@pytest.mark.parametrize(("unrolled", "scanned"), [("gpt", "gpt_scan"), ("llama", "llama_scan")])
def test_scanning_with_remat_trains_as_unrolling_does(unrolled: str, scanned: str) -> None:
    np.testing.assert_allclose(run(scanned).losses, run(unrolled).losses, rtol=1e-5)
    moments = run(unrolled).after_first["opt"][0].mu
    scanned_moments = run(scanned).after_first["opt"][0].mu
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *moments["blocks"])
    jax.tree.map(
        lambda leaf, other: np.testing.assert_allclose(leaf, other, rtol=1e-3, atol=1e-7),
        stacked,
        scanned_moments["blocks"],
    )


@pytest.mark.parametrize("name", ["gpt", "gpt_scan", "llama", "llama_scan", "moe"])
def test_bfloat16_compute_keeps_parameters_and_adam_in_float32(name: str) -> None:
    workload = get_workload(name, compute_dtype="bfloat16")
    new_state, loss = jax.eval_shape(workload.step, workload.state, workload.batch)
    assert loss.dtype == jnp.float32
    assert jax.tree.leaves(new_state) == jax.tree.leaves(workload.state)
    trace = str(jax.make_jaxpr(workload.step)(workload.state, workload.batch))
    assert "bf16" in trace


def test_a_tied_head_saves_its_parameters() -> None:
    untied, tied = get_workload("gpt"), get_workload("gpt", tied_head=True)
    assert num_params(untied) - num_params(tied) == 64 * 256
    _, loss = jax.eval_shape(tied.step, tied.state, tied.batch)
    assert loss.shape == ()


@pytest.mark.parametrize(
    ("name", "billions"), [("gpt_1b", 1.42), ("gpt_7b_scan", 6.72), ("llama_7b", 8.03)]
)
def test_a_big_preset_is_only_shapes(name: str, billions: float) -> None:
    workload = named(name)
    leaves = jax.tree.leaves((workload.state, workload.batch))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    assert num_params(workload) == pytest.approx(billions * 1e9, rel=0.005)


def test_the_scanned_7b_step_traces_without_allocating() -> None:
    workload = get_workload("gpt_7b_scan")
    state, loss = jax.eval_shape(workload.step, workload.state, workload.batch)
    assert jax.tree.leaves(state) == jax.tree.leaves(workload.state)
    assert loss.shape == ()


def test_overrides_change_the_size() -> None:
    workload = get_workload("gpt_7b_scan", layers=4, batch=8)
    assert workload.state["params"]["blocks"]["attn"]["wq"].shape == (4, 4096, 4096)
    assert workload.batch["tokens"].shape == (8, 2048)


def test_an_unknown_workload_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(ValueError, match=r"^no workload 'lama'; did you mean 'llama'\?$"):
        get_workload("lama")


def test_an_unknown_size_is_named_with_the_nearest_known_one() -> None:
    message = r"^workload 'gpt' has no size 'layer'; did you mean 'layers'\?$"
    with pytest.raises(ValueError, match=message):
        get_workload("gpt", layer=3)


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("gpt", {"heads": 7}, "d_model=64 is not a multiple of heads=7"),
        ("llama", {"num_kv_heads": 3}, "heads=8 is not a multiple of num_kv_heads=3"),
        ("moe", {"top_k": 9}, "top_k=9 is more than experts=8"),
        ("unet", {"image_size": 15}, "image_size=15 cannot be halved 1 times"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(
    name: str, sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        get_workload(name, **sizes)


def test_every_small_workload_is_a_workload() -> None:
    assert set(SMALL_WORKLOADS) <= set(WORKLOADS)
