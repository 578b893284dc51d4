"""Activations that models would pin, pinned where someone asks and nowhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import pytest
from jax._src.core import jaxprs_in_params
from jax.sharding import AbstractMesh, PartitionSpec

from experiments.as_written import ways_to_write
from experiments.workloads import (
    SMALL_WORKLOADS,
    Pins,
    baseline_batch_axes,
    get_workload,
    with_pins,
)
from experiments.workloads.pinning import pinned

MESH = AbstractMesh((2, 4), ("data", "model"))
PINNING = ("embedding", "gnn", "gpt", "llama", "mlp", "moe", "rnn", "unet")
BY_DATA = Pins(("data",))

Pin = tuple[tuple[int, ...], PartitionSpec]


def pins_of(name: str, pins: Pins) -> Counter[Pin]:
    """Shapes and specs of what a step pins."""
    workload = get_workload(name)
    step = with_pins(workload.step, pins)
    with jax.sharding.use_abstract_mesh(MESH):
        traced = jax.make_jaxpr(step)(workload.state, workload.batch)
    return Counter(_found(traced.jaxpr))


def _found(jaxpr: Any) -> Iterator[Pin]:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "sharding_constraint":
            yield equation.outvars[0].aval.shape, equation.params["sharding"].spec
        for inner in jaxprs_in_params(equation.params):
            yield from _found(inner)


@pytest.mark.parametrize("name", PINNING)
def test_activations_are_pinned_to_the_axes_of_the_batch(name: str) -> None:
    assert name in SMALL_WORKLOADS
    found = pins_of(name, BY_DATA)
    assert sum(found.values()) >= 2
    for shape, spec in found:
        (dim,) = [place for place, cut in enumerate(spec) if cut]
        assert spec[dim] == "data"
        assert shape[dim] % 2 == 0
    assert not pins_of(name, Pins())


@pytest.mark.parametrize("name", PINNING)
def test_gradients_of_what_is_pinned_are_pinned_alike(name: str) -> None:
    assert all(times % 2 == 0 for times in pins_of(name, BY_DATA).values())


def test_weights_are_made_whole_before_a_loop_where_that_is_asked_for() -> None:
    whole = pins_of("rnn", Pins(("data", "model"), whole_weights=True))
    kept = pins_of("rnn", Pins(("data", "model")))
    assert {spec for _, spec in whole - kept} == {PartitionSpec()}
    assert not kept - whole


def test_a_batch_that_the_axes_do_not_divide_is_pinned_to_those_that_do() -> None:
    def step(x: jax.Array) -> jax.Array:
        return pinned(x)

    with jax.sharding.use_abstract_mesh(MESH):
        traced = jax.make_jaxpr(with_pins(step, Pins(("data", "model"))))(jax.numpy.ones((6, 3)))
    (pin,) = _found(traced.jaxpr)
    assert pin == ((6, 3), PartitionSpec("data"))


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
    plain, *pinning = ways_to_write(kind, ("data", "model"))
    assert plain == Pins()
    assert [one.batch_axes for one in pinning] == ([axes] if axes else [])
    assert [one.whole_weights for one in pinning] == ([kind == "fsdp"] if axes else [])


def test_an_unknown_baseline_has_no_axes() -> None:
    with pytest.raises(ValueError, match="no baseline 'zero'"):
        baseline_batch_axes("zero", ("data",))
