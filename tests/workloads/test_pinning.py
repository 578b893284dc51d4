"""Activations that models would pin, pinned where someone asks and nowhere else."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import AbstractMesh

from experiments.workloads import SMALL_WORKLOADS, baseline_batch_axes, get_workload, with_pins

MESH = AbstractMesh((2, 4), ("data", "model"))
PINNING = ("embedding", "gnn", "gpt", "llama", "mlp", "moe", "rnn", "unet")


def constraints(name: str, batch_axes: tuple[str, ...]) -> list[str]:
    workload = get_workload(name)
    step = with_pins(workload.step, batch_axes)
    with jax.sharding.use_abstract_mesh(MESH):
        text = str(jax.make_jaxpr(step)(workload.state, workload.batch))
    return [line for line in text.splitlines() if "sharding_constraint" in line]


@pytest.mark.parametrize("name", PINNING)
def test_activations_are_pinned_to_the_axes_of_the_batch_and_so_are_their_gradients(
    name: str,
) -> None:
    assert name in SMALL_WORKLOADS
    found = constraints(name, ("data",))
    assert len(found) >= 2
    assert constraints(name, ()) == []


def test_a_step_is_pinned_while_it_is_traced_and_not_after() -> None:
    assert constraints("mlp", ("data", "model"))
    assert constraints("mlp", ()) == []


@pytest.mark.parametrize(
    ("kind", "axes"),
    [
        ("replicated", ()),
        ("data_parallel", ("data", "model")),
        ("fsdp", ("data", "model")),
        ("megatron", ("data",)),
        ("megatron_fsdp", ("data",)),
    ],
)
def test_what_is_pinned_is_cut_as_the_batch_is(kind: str, axes: tuple[str, ...]) -> None:
    assert baseline_batch_axes(kind, ("data", "model")) == axes


def test_an_unknown_baseline_has_no_axes() -> None:
    with pytest.raises(ValueError, match="no baseline 'zero'"):
        baseline_batch_axes("zero", ("data",))
